/* A batch of stored outcomes -> records, and marks of what became of them. */
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/fault.h"
#include "kafka_batch.h"
#include "transport_kafka_int.h"

static struct kafka_batch_origin origin_of(const struct kafka_transport *t)
{
    return (struct kafka_batch_origin){
        .store = t->store, .results_topic = t->results_topic, .letters = &t->letters};
}

typedef int (*mark_call)(struct store *s, const struct job_source *const *sources, size_t n,
                         struct err *e);

/* Of the outputs in that state, those with a line. */
static int mark(struct kafka_transport *t, const struct transport_output *outputs,
                struct kafka_batch *b, enum kafka_answer_state state, mark_call call,
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

static int send_burst(struct kafka_transport *t, const struct kafka_batch_origin *origin,
                      struct kafka_batch *b, struct err *e)
{
    int rc;
    while ((rc = kafka_burst_send(t->burst, t->source, b->answers, b->n, b->states, e)) ==
           ERR_LIMIT) {
        err_clear(e);
        TRY(kafka_batch_shrink(origin, b, e));
    }
    return rc;
}

/* Visible and settled at once, then marked: a kill in between leaves an answer that is only not
 * known here to be visible; the group's offsets tell when this worker reads them next. */
static int give(struct kafka_transport *t, const struct transport_output *outputs, size_t n,
                struct kafka_batch *b, struct err *e)
{
    const struct kafka_batch_origin origin = origin_of(t);
    TRY(kafka_batch_make(&origin, outputs, n, b, e));
    if (GUARD("store-first"))
        TRY(mark(t, outputs, b, ANSWER_OPEN, store_mark_offered, e));
    CRASH_POINT("offered");
    const bool was_unsure = kafka_burst_is_unsure(t->burst);
    const int rc = send_burst(t, &origin, b, e);
    if (rc != 0) {
        if (!kafka_burst_is_unsure(t->burst))
            mark(t, outputs, b, ANSWER_OPEN, store_mark_withdrawn, NULL);
        return rc;
    }
    CRASH_POINT("marking");
    TRY(mark(t, outputs, b, ANSWER_GIVEN, store_mark_published, e));
    TRY(mark(t, outputs, b, ANSWER_DELAYED, store_mark_withdrawn, e));
    /* Else it may be the one of ours that is visible: the group's offsets will tell. */
    if (!was_unsure)
        TRY(mark(t, outputs, b, ANSWER_NOT_OURS, store_mark_superseded, e));
    CRASH_POINT("marked");
    return 0;
}

/* All in one burst: it may take many to make a text short that was long already. */
static int give_delayed(struct kafka_transport *t, struct err *e)
{
    const size_t n = t->delayed.n;
    if (n == 0)
        return 0;
    struct kafka_batch b = {0};
    bool *is_kept = calloc(n, sizeof is_kept[0]);
    int rc = is_kept ? give(t, t->delayed.outputs, n, &b, e)
                     : ERR_SET_FLAGS(e, ERR_NOMEM, ERR_RETRY, "no memory to send results");
    if (rc == 0) {
        for (size_t i = 0; i < n; i++)
            is_kept[i] = b.states[i] == ANSWER_DELAYED;
        delayed_keep(&t->delayed, is_kept);
    }
    free(is_kept);
    kafka_batch_fini(&b);
    return rc;
}

/* What is delayed counts as delivered: it is stored, and its job stays unsettled. */
int kafka_deliver_exactly_once(void *ctx, const struct transport_output *outputs, size_t n,
                               struct err *e)
{
    struct kafka_transport *t = ctx;
    struct kafka_batch b = {0};
    int rc = give(t, outputs, n, &b, e);
    for (size_t i = 0; rc == 0 && i < n; i++)
        if (b.states[i] == ANSWER_DELAYED)
            rc = delayed_add(&t->delayed, &outputs[i], e);
    kafka_batch_fini(&b);
    return rc == 0 ? give_delayed(t, e) : rc;
}

/* ------------------------------------------------------------------ at least once */

/* The result, then its dead letter; what is too large is made smaller and sent again. */
static int send_one(struct kafka_transport *t, struct kafka_batch *b, size_t i, struct err *e)
{
    const struct kafka_batch_origin origin = origin_of(t);
    struct kafka_answer *a = &b->answers[i];
    int rc;
    while ((rc = kafka_sink_send(t->sink, &a->message, 1, e)) == ERR_LIMIT) {
        err_clear(e);
        TRY(kafka_batch_replace_result(&origin, b, i, e));
    }
    if (rc == 0 && a->dead_letter.topic &&
        (rc = kafka_sink_send(t->sink, &a->dead_letter, 1, e)) == ERR_LIMIT) {
        err_clear(e);
        kafka_batch_leave_letter_out(b, i);
        rc = 0;
    }
    return rc;
}

/* What goes alone: a dead letter besides, or too large for the topic. */
static int send_singly(struct kafka_transport *t, struct kafka_batch *b, struct err *e)
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
static int send(struct kafka_transport *t, struct kafka_batch *b, struct err *e)
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
    const struct kafka_batch_origin origin = origin_of(t);
    struct kafka_batch b = {0};
    ASSERT(n <= TRANSPORT_BATCH_MAX);
    int rc = 0;
    TRY_OUT(rc, kafka_batch_make(&origin, outputs, n, &b, e));
    TRY_OUT(rc, send(t, &b, e));
    CRASH_POINT("marking");
    TRY_OUT(rc, mark(t, outputs, &b, ANSWER_OPEN, store_mark_published, e));
    CRASH_POINT("marked");
    memset(t->acknowledged, 0, sizeof t->acknowledged);
    for (size_t i = 0; i < n; i++)
        kafka_source_settle(t->source, outputs[i].source->topic, outputs[i].source->partition,
                            outputs[i].source->offset);
out:
    kafka_batch_fini(&b);
    return rc;
}
