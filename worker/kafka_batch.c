#include "kafka_batch.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/fault.h"
#include "base/log.h"
#include "io/store_result_headers.h"

/* W3C's trace context. */
static const char *const trace_names[] = {"traceparent", "tracestate"};
enum { TRACE_HEADERS = sizeof trace_names / sizeof *trace_names, LONG_HEADER_BYTES = 1024 };

struct kafka_batch_item {
    struct result_headers made;
    struct kafka_header headers[RESULT_HEADERS_MAX + TRACE_HEADERS];
    struct dead_letter letter;
    char *refusal; /* in place of a line that is too large */
};

void kafka_batch_fini(struct kafka_batch *b)
{
    for (size_t i = 0; b->items && i < b->n; i++) {
        result_headers_fini(&b->items[i].made);
        dead_letter_fini(&b->items[i].letter);
        free(b->items[i].refusal);
    }
    free(b->answers);
    free(b->states);
    free(b->sources);
    free(b->items);
    *b = (struct kafka_batch){0};
}

static int reserve(struct kafka_batch *b, size_t n, struct err *e)
{
    *b = (struct kafka_batch){.answers = calloc(n, sizeof b->answers[0]),
                              .states = calloc(n, sizeof b->states[0]),
                              .sources = calloc(n, sizeof b->sources[0]),
                              .items = calloc(n, sizeof b->items[0]),
                              .n = n};
    if (b->answers && b->states && b->sources && b->items)
        return 0;
    return ERR_SET_FLAGS(e, ERR_NOMEM, ERR_RETRY, "no memory to send %zu results", n);
}

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
static int make_headers(const struct kafka_batch_origin *origin,
                        const struct transport_output *o, struct kafka_batch_item *item,
                        size_t *n, struct err *e)
{
    const struct job_header *replay =
        o->record ? job_record_header(o->record, "sheaf.replay_of") : NULL;
    pthread_mutex_lock(&origin->store->lock);
    const int rc = store_result_headers(origin->store->store, o->source,
                                        replay ? replay->value : NULL, &item->made, e);
    pthread_mutex_unlock(&origin->store->lock);
    TRY(rc);
    *n = item->made.n;
    for (size_t i = 0; i < *n; i++)
        item->headers[i] = (struct kafka_header){.name = item->made.items[i].name,
                                                 .value = item->made.items[i].value,
                                                 .length = item->made.items[i].length};
    if (o->record)
        *n += copy_trace(o->record, item->headers + *n);
    return 0;
}

/* Results are keyed by job, so that a compacted topic keeps one of each. */
static int make_result(const struct kafka_batch_origin *origin,
                       const struct transport_output *o, struct kafka_batch_item *item,
                       struct kafka_message *out, struct err *e)
{
    *out = (struct kafka_message){.topic = origin->results_topic,
                                  .key = o->custom_id,
                                  .key_length = strlen(o->custom_id),
                                  .value = o->line,
                                  .value_length = o->line ? strlen(o->line) : 0,
                                  .custom_id = o->custom_id,
                                  .headers = item->headers};
    return o->line && GUARD("store-first") ? make_headers(origin, o, item, &out->n_headers, e)
                                           : 0;
}

int kafka_batch_make(const struct kafka_batch_origin *origin,
                     const struct transport_output *outputs, size_t n, struct kafka_batch *b,
                     struct err *e)
{
    TRY(reserve(b, n, e));
    for (size_t i = 0; i < n; i++) {
        const struct transport_output *o = &outputs[i];
        struct kafka_batch_item *item = &b->items[i];
        struct kafka_answer *a = &b->answers[i];
        *a = (struct kafka_answer){.topic = o->source->topic,
                                   .partition = o->source->partition,
                                   .offset = o->source->offset,
                                   .lease = o->source->lease};
        TRY(make_result(origin, o, item, &a->message, e));
        if (origin->letters->topic && o->line && o->error && o->record)
            TRY(dead_letter_make(origin->letters, o, &item->letter, &a->dead_letter, e));
    }
    return 0;
}

/* ------------------------------------------------------------------ too large */

/* What a reader of the topic gets in place of a line that the broker refuses for its size;
 * NULL: no memory. */
static char *make_refusal(const struct kafka_message *refused)
{
    log_error(
        "the result of %s has %zu bytes, more than %s takes; it stays in the database, and "
        "an error goes to the topic",
        refused->custom_id, refused->value_length, refused->topic);
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

int kafka_batch_replace_result(const struct kafka_batch_origin *origin, struct kafka_batch *b,
                               size_t i, struct err *e)
{
    struct kafka_message *message = &b->answers[i].message;
    struct kafka_batch_item *item = &b->items[i];
    if (item->refusal)
        return ERR_SET(e, ERR_LIMIT, "the topic %s does not even take an error of %zu bytes",
                       origin->results_topic, message->value_length);
    if (!(item->refusal = make_refusal(message)))
        return ERR_SET_FLAGS(e, ERR_NOMEM, ERR_RETRY, "no memory for a result");
    message->value = item->refusal;
    message->value_length = strlen(item->refusal);
    shorten_headers(message, item->headers);
    return 0;
}

void kafka_batch_leave_letter_out(struct kafka_batch *b, size_t i)
{
    struct kafka_answer *a = &b->answers[i];
    log_error("the dead letter of %s (%s [%d] offset %lld) has %zu bytes, more than %s takes: "
              "it is left out",
              a->message.custom_id, a->topic, (int)a->partition, (long long)a->offset,
              a->dead_letter.value_length, a->dead_letter.topic);
    a->dead_letter = (struct kafka_message){0};
}

int kafka_batch_shrink(const struct kafka_batch_origin *origin, struct kafka_batch *b,
                       struct err *e)
{
    for (size_t i = 0; i < b->n; i++) {
        if (b->states[i] == ANSWER_TOO_LARGE)
            TRY(kafka_batch_replace_result(origin, b, i, e));
        else if (b->states[i] == ANSWER_LETTER_TOO_LARGE)
            kafka_batch_leave_letter_out(b, i);
    }
    return 0;
}
