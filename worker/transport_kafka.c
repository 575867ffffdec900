#include "transport.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/fault.h"
#include "base/log.h"
#include "io/store_lost.h"
#include "transport_kafka_int.h"

enum {
    POLL_MS = 100,
    RESULT_PARTITIONS = 4, /* of a result topic that is not there yet */
    QUEUE_SLACK = 1024,    /* records that were on their way when consumption paused */
    BURST_LINGER_MS = 200, /* a transaction costs the same for one result and for many */
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
    struct kafka_record *r = t->record;
    if (!r) {
        if (t->exit_when_empty && kafka_source_is_drained(t->source))
            *event = TRANSPORT_END;
        return 0;
    }
    CRASH_POINT("polled");
    const struct job_header *id = job_record_header(&r->record, "custom_id");
    *event = TRANSPORT_INPUT;
    *in = (struct transport_input){
        .bytes = r->record.value,
        .length = r->record.value_length,
        .source = {.topic = r->topic,
                   .partition = r->partition,
                   .offset = r->offset,
                   .timestamp_us = r->timestamp_us ? r->timestamp_us : clock_wall_us(),
                   .lease = r->lease},
        .custom_id = id && strlen(id->value) == id->length ? id->value : NULL,
        .record = &r->record,
    };
    return 0;
}

static int tend(void *ctx, struct err *e)
{
    struct kafka_transport *t = ctx;
    TRY(kafka_source_tend(t->source, POLL_MS, e));
    note_lost(t);
    return 0;
}

/* What was published just before a kill is marked now, before it is asked for again. That it
 * cannot be marked is no harm: it would be found to be settled once more. */
static void on_committed(void *ctx, const char *topic, int32_t partition,
                         const struct offset_bits *settled)
{
    struct kafka_transport *t = ctx;
    struct store_reconciled done;
    struct err e = {0};
    pthread_mutex_lock(&t->store->lock);
    const int rc = store_reconcile(t->store->store, topic, partition, settled, &done, &e);
    pthread_mutex_unlock(&t->store->lock);
    if (rc != 0)
        log_warn("%s [%d]: %s", topic, (int)partition, e.text);
    else if (done.n_published + done.n_superseded > 0)
        log_info("%s [%d]: %zu stored answers were published before the last stop, %zu were "
                 "given by another worker",
                 topic, (int)partition, done.n_published, done.n_superseded);
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

/* Now, not when the first records are ready. A topic that exists is left as it is. */
static int create_topics(struct kafka_transport *t, struct err *e)
{
    TRY(kafka_sink_create_topic(t->sink, t->results_topic, RESULT_PARTITIONS, NULL, e));
    return t->letters.topic ? kafka_sink_create_topic(t->sink, t->letters.topic, 1, NULL, e)
                            : 0;
}

static int claim_topic(struct kafka_transport *t, const struct kafka_options *o, struct err *e)
{
    char *cluster = kafka_source_cluster(t->source);
    const int rc = store_claim_topic(t->store->store, o->jobs_topic, cluster, o->group, e);
    free(cluster);
    return rc;
}

int transport_open_kafka(const struct kafka_options *o, const struct dead_letters *letters,
                         bool exit_when_empty, struct shared_store *store,
                         struct transport *out, struct err *e)
{
    struct kafka_transport *t = calloc(1, sizeof *t);
    if (!t)
        return ERR_SET(e, ERR_NOMEM, "no memory for the Kafka transport");
    int rc = 0;
    t->store = store;
    t->exit_when_empty = exit_when_empty;
    t->letters = *letters;
    t->jobs_topic = strdup(o->jobs_topic);
    t->results_topic = strdup(o->results_topic);
    if (!t->jobs_topic || !t->results_topic) {
        rc = ERR_SET(e, ERR_NOMEM, "no memory for the Kafka transport");
        goto out;
    }
    struct kafka_options plain = *o;
    plain.transactional_id = NULL;
    TRY_OUT(rc, kafka_sink_open(&plain, &t->sink, e));
    TRY_OUT(rc, create_topics(t, e));
    struct kafka_options bursts = *o;
    bursts.letters_topic = letters->topic;
    if (o->transactional_id)
        TRY_OUT(rc, kafka_burst_open(&bursts, &t->burst, e));
    TRY_OUT(rc, kafka_source_open(o, &t->source, e));
    kafka_source_on_committed(t->source, on_committed, t);
    TRY_OUT(rc, claim_topic(t, o, e));
    *out = (struct transport){.ctx = t,
                              .queue_max = o->inflight_jobs_max + QUEUE_SLACK,
                              .take = take,
                              .deliver = t->burst ? kafka_deliver_exactly_once
                                                  : kafka_deliver_at_least_once,
                              .holds = holds,
                              .tend = tend,
                              .linger_ms = t->burst ? BURST_LINGER_MS : 0,
                              .progress = progress,
                              .finish = finish,
                              .close = close_kafka};
out:
    if (rc != 0)
        close_kafka(t);
    return rc;
}
