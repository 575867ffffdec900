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
#include "base/log.h"
#include "transport_kafka_int.h"

/* The messages of one batch, and what they borrow from. */
struct batch_messages {
    struct kafka_answer *answers;
    enum kafka_answer_state *states;
    struct dead_letter *letters;
    char **refusals;                   /* in place of lines that are too large */
    const struct job_source **sources; /* room for those to be marked */
    size_t n;
};

/* Accepts what make_batch did not finish. */
static void free_batch(struct batch_messages *b)
{
    for (size_t i = 0; b->letters && i < b->n; i++)
        dead_letter_fini(&b->letters[i]);
    for (size_t i = 0; b->refusals && i < b->n; i++)
        free(b->refusals[i]);
    free(b->answers);
    free(b->states);
    free(b->letters);
    free(b->refusals);
    free(b->sources);
}

static int make_batch(struct batch_messages *b, size_t n, struct err *e)
{
    *b = (struct batch_messages){.answers = calloc(n, sizeof b->answers[0]),
                                 .states = calloc(n, sizeof b->states[0]),
                                 .letters = calloc(n, sizeof b->letters[0]),
                                 .refusals = calloc(n, sizeof b->refusals[0]),
                                 .sources = calloc(n, sizeof b->sources[0]),
                                 .n = n};
    if (b->answers && b->states && b->letters && b->refusals && b->sources)
        return 0;
    return ERR_SET_FLAGS(e, ERR_NOMEM, ERR_RETRY, "no memory to send %zu results", n);
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
    TRY(make_batch(b, n, e));
    for (size_t i = 0; i < n; i++) {
        const struct transport_output *o = &outputs[i];
        b->answers[i] = (struct kafka_answer){.message = message_of(t, o),
                                              .topic = o->source->topic,
                                              .partition = o->source->partition,
                                              .offset = o->source->offset,
                                              .lease = o->source->lease};
        if (t->letters.topic && o->line && o->error && o->record)
            TRY(dead_letter_make(&t->letters, o, &b->letters[i], &b->answers[i].dead_letter,
                                 e));
    }
    return 0;
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
                struct batch_messages *b, enum kafka_answer_state state, mark_call call,
                struct err *e)
{
    size_t n_sources = 0;
    for (size_t i = 0; i < b->n; i++)
        if (outputs[i].line && b->states[i] == state)
            b->sources[n_sources++] = outputs[i].source;
    pthread_mutex_lock(&t->store->lock);
    const int rc = call(t->store->store, b->sources, n_sources, e);
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
static int give(struct kafka_transport *t, const struct transport_output *outputs, size_t n,
                struct batch_messages *b, struct err *e)
{
    TRY(make_messages(t, outputs, n, b, e));
    TRY(mark(t, outputs, b, ANSWER_OPEN, store_mark_offered, e));
    TRY(send_burst(t, b, e));
    TRY(mark(t, outputs, b, ANSWER_GIVEN, store_mark_published, e));
    return mark(t, outputs, b, ANSWER_NOT_OURS, store_mark_superseded, e);
}

/* All in one burst: it may take many to make a text short that was long already. */
static int give_delayed(struct kafka_transport *t, struct err *e)
{
    const size_t n = t->delayed.n;
    if (n == 0)
        return 0;
    struct batch_messages b = {0};
    bool *is_kept = calloc(n, sizeof is_kept[0]);
    int rc = is_kept ? give(t, t->delayed.outputs, n, &b, e)
                     : ERR_SET_FLAGS(e, ERR_NOMEM, ERR_RETRY, "no memory to send results");
    if (rc == 0) {
        for (size_t i = 0; i < n; i++)
            is_kept[i] = b.states[i] == ANSWER_DELAYED;
        delayed_keep(&t->delayed, is_kept);
    }
    free(is_kept);
    free_batch(&b);
    return rc;
}

/* What is delayed counts as delivered: it is stored, and its job stays unsettled. */
int kafka_deliver_exactly_once(void *ctx, const struct transport_output *outputs, size_t n,
                               struct err *e)
{
    struct kafka_transport *t = ctx;
    struct batch_messages b = {0};
    int rc = give(t, outputs, n, &b, e);
    for (size_t i = 0; rc == 0 && i < n; i++)
        if (b.states[i] == ANSWER_DELAYED)
            rc = delayed_add(&t->delayed, &outputs[i], e);
    free_batch(&b);
    return rc == 0 ? give_delayed(t, e) : rc;
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
    struct batch_messages b = {0};
    ASSERT(n <= TRANSPORT_BATCH_MAX);
    int rc = 0;
    TRY_OUT(rc, make_messages(t, outputs, n, &b, e));
    TRY_OUT(rc, send(t, &b, e));
    TRY_OUT(rc, mark(t, outputs, &b, ANSWER_OPEN, store_mark_published, e));
    memset(t->acknowledged, 0, sizeof t->acknowledged);
    for (size_t i = 0; i < n; i++)
        kafka_source_settle(t->source, outputs[i].source->topic, outputs[i].source->partition,
                            outputs[i].source->offset);
out:
    free_batch(&b);
    return rc;
}
