#include "transport.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"
#include "delayed.h"
#include "io/kafka_burst.h"
#include "io/queue_kafka.h"
#include "io/store_lost.h"

enum {
    POLL_MS = 100,
    RESULT_PARTITIONS = 4, /* of a result topic that is not there yet */
    QUEUE_SLACK = 1024,    /* records that were on their way when consumption paused */
    BURST_LINGER_MS = 200, /* a transaction costs the same for one result and for many */
};

struct kafka_transport {
    struct kafka_source *source;
    struct kafka_sink *sink;
    struct kafka_burst *burst; /* or NULL: at least once */
    struct shared_store *store;
    char *jobs_topic, *results_topic;
    bool exit_when_empty;
    struct kafka_record *record;            /* what take lent out last */
    bool acknowledged[TRANSPORT_BATCH_MAX]; /* of the batch that deliver works on */
    struct delayed delayed; /* answers that the brokers have no room to tell of yet */
};

/* What nobody can answer any more is at least known to whoever asks the database. */
static void note_lost(struct kafka_transport *t)
{
    struct kafka_lost lost;
    while (kafka_source_next_lost(t->source, &lost)) {
        struct err e = {0};
        const struct store_lost row = {.topic = t->jobs_topic,
                                       .partition = lost.partition,
                                       .first = lost.first,
                                       .last = lost.last,
                                       .reason = "retention"};
        pthread_mutex_lock(&t->store->lock);
        if (store_note_lost(t->store->store, &row, &e) != 0)
            log_warn("%s; the range is in this log only", e.text);
        pthread_mutex_unlock(&t->store->lock);
    }
}

static int take(void *ctx, bool may_wait, struct transport_input *in,
                enum transport_event *event, struct err *e)
{
    struct kafka_transport *t = ctx;
    kafka_record_free(t->record);
    t->record = NULL;
    *event = TRANSPORT_NOTHING;
    TRY(kafka_source_poll(t->source, may_wait ? POLL_MS : 0, &t->record, e));
    note_lost(t);
    const struct kafka_record *r = t->record;
    if (!r) {
        if (t->exit_when_empty && kafka_source_is_drained(t->source))
            *event = TRANSPORT_END;
        return 0;
    }
    *event = TRANSPORT_INPUT;
    *in = (struct transport_input){
        .bytes = r->value,
        .length = r->value_length,
        .source = {.topic = r->topic,
                   .partition = r->partition,
                   .offset = r->offset,
                   .timestamp_us = r->timestamp_us ? r->timestamp_us : clock_wall_us(),
                   .lease = r->lease},
        .custom_id = r->custom_id_header,
    };
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

static int send_refusal(struct kafka_transport *t, const struct kafka_message *refused,
                        struct err *e)
{
    char *text = make_refusal(t, refused);
    if (!text)
        return ERR_SET(e, ERR_NOMEM, "no memory for a result");
    struct kafka_message message = *refused;
    message.value = text;
    message.value_length = strlen(text);
    const int rc = kafka_sink_send(t->sink, &message, 1, e);
    free(text);
    return rc;
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

/* Sends what of the batch is not acknowledged yet; a retry repeats only that. */
static int send(struct kafka_transport *t, const struct transport_output *outputs, size_t n,
                struct err *e)
{
    struct kafka_message messages[TRANSPORT_BATCH_MAX];
    size_t output_of[TRANSPORT_BATCH_MAX];
    int codes[TRANSPORT_BATCH_MAX];
    size_t n_messages = 0;
    for (size_t i = 0; i < n; i++) {
        if (!outputs[i].line || t->acknowledged[i])
            continue;
        output_of[n_messages] = i;
        messages[n_messages++] = message_of(t, &outputs[i]);
    }
    if (n_messages == 0)
        return 0;
    struct err why = {0};
    int rc = kafka_sink_send_each(t->sink, messages, n_messages, codes, &why);
    for (size_t i = 0; i < n_messages; i++) {
        if (codes[i] == ERR_LIMIT)
            codes[i] = send_refusal(t, &messages[i], e);
        t->acknowledged[output_of[i]] = codes[i] == 0;
        if (codes[i] != 0 && codes[i] != ERR_LIMIT)
            rc = ERR_SET_FLAGS(e, codes[i], why.flags, "%s", why.text);
    }
    for (size_t i = 0; i < n_messages; i++)
        if (codes[i] != 0)
            return rc;
    return 0;
}

/* Of the outputs that were given, those with a line. */
static int mark(struct kafka_transport *t, const struct transport_output *outputs, size_t n,
                const enum kafka_answer_state *states, struct err *e)
{
    const struct job_source **sources = calloc(n, sizeof sources[0]);
    if (!sources)
        return ERR_SET(e, ERR_NOMEM, "no memory to mark %zu results", n);
    size_t n_sources = 0;
    for (size_t i = 0; i < n; i++)
        if (outputs[i].line && (!states || states[i] == ANSWER_GIVEN))
            sources[n_sources++] = outputs[i].source;
    pthread_mutex_lock(&t->store->lock);
    const int rc = store_mark_published(t->store->store, sources, n_sources, e);
    pthread_mutex_unlock(&t->store->lock);
    free(sources);
    return rc;
}

/* Acknowledged, then marked, then settled: a kill in between repeats a line, never loses one.
 */
static int deliver_at_least_once(void *ctx, const struct transport_output *outputs, size_t n,
                                 struct err *e)
{
    struct kafka_transport *t = ctx;
    ASSERT(n <= TRANSPORT_BATCH_MAX);
    TRY(send(t, outputs, n, e));
    TRY(mark(t, outputs, n, NULL, e));
    memset(t->acknowledged, 0, sizeof t->acknowledged);
    for (size_t i = 0; i < n; i++)
        kafka_source_settle(t->source, outputs[i].source->topic, outputs[i].source->partition,
                            outputs[i].source->offset);
    return 0;
}

/* Puts refusals in the places of what was too large. */
static int replace_refused(const struct kafka_transport *t, struct kafka_answer *answers,
                           size_t n, const enum kafka_answer_state *states, char **refusals,
                           struct err *e)
{
    for (size_t i = 0; i < n; i++) {
        if (states[i] != ANSWER_TOO_LARGE)
            continue;
        if (refusals[i])
            return ERR_SET(e, ERR_LIMIT,
                           "the topic %s does not even take an error of %zu bytes",
                           t->results_topic, answers[i].message.value_length);
        if (!(refusals[i] = make_refusal(t, &answers[i].message)))
            return ERR_SET(e, ERR_NOMEM, "no memory for a result");
        answers[i].message.value = refusals[i];
        answers[i].message.value_length = strlen(refusals[i]);
    }
    return 0;
}

/* Visible and settled at once, then marked: a kill in between leaves an answer that is only not
 * known here to be visible, and it is never asked for again. */
static int give(struct kafka_transport *t, const struct transport_output *outputs, size_t n,
                enum kafka_answer_state *states, struct err *e)
{
    struct kafka_answer *answers = calloc(n, sizeof answers[0]);
    char **refusals = calloc(n, sizeof refusals[0]);
    int rc = 0;
    if (!answers || !refusals)
        TRY_OUT(rc, ERR_SET(e, ERR_NOMEM, "no memory for %zu answers", n));
    for (size_t i = 0; i < n; i++)
        answers[i] = (struct kafka_answer){.message = message_of(t, &outputs[i]),
                                           .topic = outputs[i].source->topic,
                                           .partition = outputs[i].source->partition,
                                           .offset = outputs[i].source->offset,
                                           .lease = outputs[i].source->lease};
    while ((rc = kafka_burst_send(t->burst, t->source, answers, n, states, e)) == ERR_LIMIT) {
        err_clear(e);
        TRY_OUT(rc, replace_refused(t, answers, n, states, refusals, e));
    }
    if (rc == 0)
        rc = mark(t, outputs, n, states, e);
out:
    for (size_t i = 0; refusals && i < n; i++)
        free(refusals[i]);
    free(refusals);
    free(answers);
    return rc;
}

static int give_delayed(struct kafka_transport *t, struct err *e)
{
    const size_t n = t->delayed.n;
    if (n == 0)
        return 0;
    enum kafka_answer_state *states = calloc(n, sizeof states[0]);
    bool *is_kept = calloc(n, sizeof is_kept[0]);
    int rc = states && is_kept ? give(t, t->delayed.outputs, n, states, e)
                               : ERR_SET(e, ERR_NOMEM, "no memory for %zu answers", n);
    if (rc == 0) {
        for (size_t i = 0; i < n; i++)
            is_kept[i] = states[i] == ANSWER_DELAYED;
        delayed_keep(&t->delayed, is_kept);
    }
    free(states);
    free(is_kept);
    return rc;
}

/* What is delayed counts as delivered: it is stored, and its job stays unsettled. */
static int deliver_exactly_once(void *ctx, const struct transport_output *outputs, size_t n,
                                struct err *e)
{
    struct kafka_transport *t = ctx;
    ASSERT(n <= TRANSPORT_BATCH_MAX);
    enum kafka_answer_state states[TRANSPORT_BATCH_MAX];
    TRY(give(t, outputs, n, states, e));
    for (size_t i = 0; i < n; i++)
        if (states[i] == ANSWER_DELAYED)
            TRY(delayed_add(&t->delayed, &outputs[i], e));
    return give_delayed(t, e);
}

static bool holds(void *ctx, const struct job_source *source)
{
    struct kafka_transport *t = ctx;
    return kafka_source_holds(t->source, source->topic, source->partition, source->lease);
}

static void progress(void *ctx, struct transport_progress *out)
{
    struct kafka_transport *t = ctx;
    struct kafka_progress p;
    kafka_source_progress(t->source, &p);
    *out = (struct transport_progress){
        .unit = "jobs",
        .taken = (int64_t)p.received,
        .total = p.behind_known ? (int64_t)(p.received + p.behind) : -1,
    };
}

/* Leaving the group commits what is settled. */
static int finish(void *ctx, bool whole, struct err *e)
{
    (void)whole;
    struct kafka_transport *t = ctx;
    const int rc = kafka_source_close(t->source, e);
    t->source = NULL;
    return rc;
}

static void close_kafka(void *ctx)
{
    struct kafka_transport *t = ctx;
    if (!t)
        return;
    kafka_record_free(t->record);
    kafka_source_close(t->source, NULL);
    kafka_burst_close(t->burst);
    kafka_sink_close(t->sink);
    delayed_fini(&t->delayed);
    free(t->jobs_topic);
    free(t->results_topic);
    free(t);
}

int transport_open_kafka(const struct kafka_options *o, bool exit_when_empty,
                         struct shared_store *store, struct transport *out, struct err *e)
{
    struct kafka_transport *t = calloc(1, sizeof *t);
    if (!t)
        return ERR_SET(e, ERR_NOMEM, "no memory for the Kafka transport");
    int rc = 0;
    t->store = store;
    t->exit_when_empty = exit_when_empty;
    t->jobs_topic = strdup(o->jobs_topic);
    t->results_topic = strdup(o->results_topic);
    if (!t->jobs_topic || !t->results_topic) {
        rc = ERR_SET(e, ERR_NOMEM, "no memory for the Kafka transport");
        goto out;
    }
    struct kafka_options plain = *o;
    plain.transactional_id = NULL;
    TRY_OUT(rc, kafka_sink_open(&plain, &t->sink, e));
    /* Now, not when the first answers are ready. A topic that exists is left as it is. */
    TRY_OUT(rc, kafka_sink_create_topic(t->sink, o->results_topic, RESULT_PARTITIONS, NULL, e));
    if (o->transactional_id)
        TRY_OUT(rc, kafka_burst_open(o, &t->burst, e));
    TRY_OUT(rc, kafka_source_open(o, &t->source, e));
    *out =
        (struct transport){.ctx = t,
                           .queue_max = o->inflight_jobs_max + QUEUE_SLACK,
                           .take = take,
                           .deliver = t->burst ? deliver_exactly_once : deliver_at_least_once,
                           .holds = holds,
                           .linger_ms = t->burst ? BURST_LINGER_MS : 0,
                           .progress = progress,
                           .finish = finish,
                           .close = close_kafka};
out:
    if (rc != 0)
        close_kafka(t);
    return rc;
}
