/*
 * A batch of stored outcomes -> result records, dead letters and marks.
 *
 * What the result topic refuses for its size is replaced by an error, which readers see; the
 * answer stays in the database. What the dead-letter topic refuses is left out.
 */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/fault.h"
#include "base/log.h"
#include "io/store_result_headers.h"
#include "transport_kafka_int.h"

/* W3C's trace context. */
static const char *const trace_names[] = {"traceparent", "tracestate"};
enum { TRACE_HEADERS = sizeof trace_names / sizeof *trace_names, LONG_HEADER_BYTES = 1024 };

/* The messages of one batch, and what they borrow from. */
struct batch_messages {
    struct kafka_answer answers[TRANSPORT_BATCH_MAX];
    enum kafka_answer_state states[TRANSPORT_BATCH_MAX];
    struct dead_letter letters[TRANSPORT_BATCH_MAX];
    char *refusals[TRANSPORT_BATCH_MAX]; /* in place of lines that are too large */
    struct result_headers headers[TRANSPORT_BATCH_MAX];
    struct kafka_header lists[TRANSPORT_BATCH_MAX][RESULT_HEADERS_MAX + TRACE_HEADERS];
    size_t n;
};

/* What a trace is followed by, unchanged. Returns how many there are. */
static size_t copy_trace(const struct job_record *record,
                         struct kafka_header out[TRACE_HEADERS])
{
    size_t n = 0;
    for (size_t i = 0; i < TRACE_HEADERS; i++) {
        const struct job_header *h = job_record_header(record, trace_names[i]);
        if (h)
            out[n++] =
                (struct kafka_header){.name = h->name, .value = h->value, .length = h->length};
    }
    return n;
}

/* Of the stored rows, so that an answer that waited for its worker has them too. */
static int add_headers(const struct kafka_transport *t, const struct transport_output *o,
                       struct batch_messages *b, size_t i, struct err *e)
{
    struct result_headers *headers = &b->headers[i];
    const struct job_header *replay =
        o->record ? job_record_header(o->record, "sheaf.replay_of") : NULL;
    pthread_mutex_lock(&t->store->lock);
    const int rc = store_result_headers(t->store->store, o->source,
                                        replay ? replay->value : NULL, headers, e);
    pthread_mutex_unlock(&t->store->lock);
    TRY(rc);
    struct kafka_message *message = &b->answers[i].message;
    for (size_t k = 0; k < headers->n; k++)
        b->lists[i][k] = (struct kafka_header){.name = headers->items[k].name,
                                               .value = headers->items[k].value,
                                               .length = headers->items[k].length};
    message->headers = b->lists[i];
    message->n_headers = headers->n;
    if (o->record)
        message->n_headers += copy_trace(o->record, b->lists[i] + headers->n);
    return 0;
}

/* Results are keyed by job, so that a compacted topic keeps one of each. */
static struct kafka_message message_of(const struct kafka_transport *t,
                                       const struct transport_output *o)
{
    return (struct kafka_message){.topic = t->results_topic,
                                  .key = o->custom_id,
                                  .key_length = strlen(o->custom_id),
                                  .value = o->line,
                                  .value_length = o->line ? strlen(o->line) : 0,
                                  .custom_id = o->custom_id};
}

static int make_messages(const struct kafka_transport *t,
                         const struct transport_output *outputs, size_t n,
                         struct batch_messages *b, struct err *e)
{
    ASSERT(n <= TRANSPORT_BATCH_MAX);
    b->n = n;
    for (size_t i = 0; i < n; i++) {
        const struct transport_output *o = &outputs[i];
        b->answers[i] = (struct kafka_answer){.message = message_of(t, o),
                                              .topic = o->source->topic,
                                              .partition = o->source->partition,
                                              .offset = o->source->offset,
                                              .lease = o->source->lease};
        if (o->line)
            TRY(add_headers(t, o, b, i, e));
        if (t->letters.topic && o->line && o->error && o->record)
            TRY(dead_letter_make(&t->letters, o, &b->letters[i], &b->answers[i].dead_letter,
                                 e));
    }
    return 0;
}

static void free_messages(struct batch_messages *b)
{
    for (size_t i = 0; i < b->n; i++) {
        dead_letter_fini(&b->letters[i]);
        free(b->refusals[i]);
        result_headers_fini(&b->headers[i]);
    }
    free(b);
}

/* What a reader of the topic gets in place of a line that the broker refuses for its size;
 * NULL: no memory. */
static char *make_refusal(const struct kafka_transport *t, const struct kafka_message *refused)
{
    log_error(
        "the result of %s has %zu bytes, more than %s takes; it stays in the database, and "
        "an error goes to the topic",
        refused->custom_id, refused->value_length, t->results_topic);
    json_t *line =
        json_pack("{s:s, s:s, s:n, s:{s:s, s:s}}", "custom_id", refused->custom_id, "status",
                  "failed", "response", "error", "code", "result_too_large", "message",
                  "the result is larger than the topic takes; it is in the worker's "
                  "database");
    char *text = line ? json_dumps(line, JSON_COMPACT) : NULL;
    json_decref(line);
    return text;
}

/* Of an error in place of a result: without those that may be long. */
static void shorten_headers(struct kafka_message *message, struct kafka_header *list)
{
    size_t kept = 0;
    for (size_t i = 0; i < message->n_headers; i++) {
        struct kafka_header h = list[i];
        if (strcmp(h.name, "sheaf.status") == 0)
            h = (struct kafka_header){
                .name = h.name, .value = "failed", .length = strlen("failed")};
        if (h.length <= LONG_HEADER_BYTES)
            list[kept++] = h;
    }
    message->n_headers = kept;
}

static int replace_result(const struct kafka_transport *t, struct batch_messages *b, size_t i,
                          struct err *e)
{
    struct kafka_message *message = &b->answers[i].message;
    if (b->refusals[i])
        return ERR_SET(e, ERR_LIMIT, "the topic %s does not even take an error of %zu bytes",
                       t->results_topic, message->value_length);
    if (!(b->refusals[i] = make_refusal(t, message)))
        return ERR_SET_FLAGS(e, ERR_NOMEM, ERR_RETRY, "no memory for a result");
    message->value = b->refusals[i];
    message->value_length = strlen(b->refusals[i]);
    shorten_headers(message, b->lists[i]);
    return 0;
}

static void leave_letter_out(const struct kafka_transport *t, struct batch_messages *b,
                             size_t i)
{
    struct kafka_answer *a = &b->answers[i];
    log_error("the dead letter of %s (%s [%d] offset %lld) has %zu bytes, more than %s takes: "
              "it is left out",
              a->message.custom_id, a->topic, (int)a->partition, (long long)a->offset,
              a->dead_letter.value_length, t->letters.topic);
    a->dead_letter = (struct kafka_message){0};
}

/* Puts something smaller in the places of what was too large. */
static int shrink(const struct kafka_transport *t, struct batch_messages *b, struct err *e)
{
    for (size_t i = 0; i < b->n; i++) {
        if (b->states[i] == ANSWER_TOO_LARGE)
            TRY(replace_result(t, b, i, e));
        else if (b->states[i] == ANSWER_LETTER_TOO_LARGE)
            leave_letter_out(t, b, i);
    }
    return 0;
}

/* ------------------------------------------------------------------ marks */

typedef int (*mark_call)(struct store *s, const struct job_source *const *sources, size_t n,
                         struct err *e);

/* Of the outputs in that state, those with a line. */
static int mark(struct kafka_transport *t, const struct transport_output *outputs,
                const struct batch_messages *b, enum kafka_answer_state state, mark_call call,
                struct err *e)
{
    const struct job_source *sources[TRANSPORT_BATCH_MAX];
    size_t n_sources = 0;
    for (size_t i = 0; i < b->n; i++)
        if (outputs[i].line && b->states[i] == state)
            sources[n_sources++] = outputs[i].source;
    pthread_mutex_lock(&t->store->lock);
    const int rc = call(t->store->store, sources, n_sources, e);
    pthread_mutex_unlock(&t->store->lock);
    return rc;
}

/* ------------------------------------------------------------------ exactly once */

static int send_burst(struct kafka_transport *t, struct batch_messages *b, struct err *e)
{
    int rc;
    while ((rc = kafka_burst_send(t->burst, t->source, b->answers, b->n, b->states, e)) ==
           ERR_LIMIT) {
        err_clear(e);
        TRY(shrink(t, b, e));
    }
    return rc;
}

/* Visible and settled at once, then marked: a kill in between leaves an answer that is only not
 * known here to be visible; the group's offsets tell when this worker reads them next. */
int kafka_deliver_exactly_once(void *ctx, const struct transport_output *outputs, size_t n,
                               struct err *e)
{
    struct kafka_transport *t = ctx;
    struct batch_messages *b = calloc(1, sizeof *b);
    if (!b)
        return ERR_SET_FLAGS(e, ERR_NOMEM, ERR_RETRY, "no memory to send results");
    int rc = 0;
    TRY_OUT(rc, make_messages(t, outputs, n, b, e));
    if (GUARD("store-first"))
        TRY_OUT(rc, mark(t, outputs, b, ANSWER_OPEN, store_mark_offered, e));
    CRASH_POINT("offered");
    TRY_OUT(rc, send_burst(t, b, e));
    CRASH_POINT("marking");
    TRY_OUT(rc, mark(t, outputs, b, ANSWER_GIVEN, store_mark_published, e));
    TRY_OUT(rc, mark(t, outputs, b, ANSWER_NOT_OURS, store_mark_superseded, e));
    CRASH_POINT("marked");
out:
    free_messages(b);
    return rc;
}

/* ------------------------------------------------------------------ at least once */

/* The result, then its dead letter; what is too large is made smaller and sent again. */
static int send_one(struct kafka_transport *t, struct batch_messages *b, size_t i,
                    struct err *e)
{
    struct kafka_answer *a = &b->answers[i];
    int rc;
    while ((rc = kafka_sink_send(t->sink, &a->message, 1, e)) == ERR_LIMIT) {
        err_clear(e);
        TRY(replace_result(t, b, i, e));
    }
    if (rc == 0 && a->dead_letter.topic &&
        (rc = kafka_sink_send(t->sink, &a->dead_letter, 1, e)) == ERR_LIMIT) {
        err_clear(e);
        leave_letter_out(t, b, i);
        rc = 0;
    }
    return rc;
}

/* What goes alone: a dead letter besides, or too large for the topic. */
static int send_singly(struct kafka_transport *t, struct batch_messages *b, struct err *e)
{
    for (size_t i = 0; i < b->n; i++) {
        if (t->acknowledged[i] || !b->answers[i].message.value)
            continue;
        TRY(send_one(t, b, i, e));
        t->acknowledged[i] = true;
    }
    return 0;
}

/* Sends what of the batch is not acknowledged yet; a retry repeats only that. */
static int send(struct kafka_transport *t, struct batch_messages *b, struct err *e)
{
    struct kafka_message messages[TRANSPORT_BATCH_MAX];
    size_t answer_of[TRANSPORT_BATCH_MAX];
    int codes[TRANSPORT_BATCH_MAX];
    size_t n = 0;
    for (size_t i = 0; i < b->n; i++) {
        if (!b->answers[i].message.value || b->answers[i].dead_letter.topic ||
            t->acknowledged[i])
            continue;
        answer_of[n] = i;
        messages[n++] = b->answers[i].message;
    }
    struct err why = {0};
    if (n == 0)
        return send_singly(t, b, e);
    const int rc = kafka_sink_send_each(t->sink, messages, n, codes, &why);
    for (size_t i = 0; i < n; i++) {
        t->acknowledged[answer_of[i]] = codes[i] == 0;
        if (codes[i] != 0 && codes[i] != ERR_LIMIT)
            return ERR_SET_FLAGS(e, rc, why.flags, "%s", why.text);
    }
    return send_singly(t, b, e);
}

/* Acknowledged, then marked, then settled: a kill in between repeats a line, never loses one.
 */
int kafka_deliver_at_least_once(void *ctx, const struct transport_output *outputs, size_t n,
                                struct err *e)
{
    struct kafka_transport *t = ctx;
    struct batch_messages *b = calloc(1, sizeof *b);
    if (!b)
        return ERR_SET_FLAGS(e, ERR_NOMEM, ERR_RETRY, "no memory to send results");
    int rc = 0;
    TRY_OUT(rc, make_messages(t, outputs, n, b, e));
    TRY_OUT(rc, send(t, b, e));
    CRASH_POINT("marking");
    TRY_OUT(rc, mark(t, outputs, b, ANSWER_OPEN, store_mark_published, e));
    CRASH_POINT("marked");
    memset(t->acknowledged, 0, sizeof t->acknowledged);
    for (size_t i = 0; i < n; i++)
        kafka_source_settle(t->source, outputs[i].source->topic, outputs[i].source->partition,
                            outputs[i].source->offset);
out:
    free_messages(b);
    return rc;
}
