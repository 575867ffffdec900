#include "transport.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "io/queue_kafka.h"

enum { POLL_MS = 100 };

struct kafka_transport {
    struct kafka_source *source;
    struct kafka_sink *sink;
    struct shared_store *store;
    char *results_topic;
    bool exit_when_empty;
    struct kafka_record *record; /* what take lent out last */
};

static int take(void *ctx, struct transport_input *in, enum transport_event *event,
                struct err *e)
{
    struct kafka_transport *t = ctx;
    kafka_record_free(t->record);
    t->record = NULL;
    *event = TRANSPORT_NOTHING;
    TRY(kafka_source_poll(t->source, POLL_MS, &t->record, e));
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
                   .timestamp_us = r->timestamp_us ? r->timestamp_us : clock_wall_us()},
        .custom_id = r->custom_id_header,
    };
    return 0;
}

static int send(struct kafka_transport *t, const struct transport_output *outputs, size_t n,
                struct err *e)
{
    struct kafka_message *messages = calloc(n + 1, sizeof messages[0]);
    if (!messages)
        return ERR_SET(e, ERR_NOMEM, "no memory for %zu results", n);
    size_t n_messages = 0;
    for (size_t i = 0; i < n; i++) {
        const struct transport_output *o = &outputs[i];
        if (!o->line)
            continue;
        const char *key = o->key ? o->key : o->custom_id;
        messages[n_messages++] = (struct kafka_message){.topic = t->results_topic,
                                                        .key = key,
                                                        .key_length = strlen(key),
                                                        .value = o->line,
                                                        .value_length = strlen(o->line),
                                                        .custom_id = o->custom_id};
    }
    const int rc = n_messages > 0 ? kafka_sink_send(t->sink, messages, n_messages, e) : 0;
    free(messages);
    return rc;
}

static int mark(struct kafka_transport *t, const struct transport_output *outputs, size_t n,
                struct err *e)
{
    const struct job_source **sources = calloc(n + 1, sizeof sources[0]);
    if (!sources)
        return ERR_SET(e, ERR_NOMEM, "no memory for %zu results", n);
    size_t n_sources = 0;
    for (size_t i = 0; i < n; i++)
        if (outputs[i].line)
            sources[n_sources++] = outputs[i].source;
    pthread_mutex_lock(&t->store->lock);
    const int rc = store_mark_published(t->store->store, sources, n_sources, e);
    pthread_mutex_unlock(&t->store->lock);
    free(sources);
    return rc;
}

/* Acknowledged, then marked, then settled: a kill in between repeats a line, never loses one.
 */
static int deliver(void *ctx, const struct transport_output *outputs, size_t n, struct err *e)
{
    struct kafka_transport *t = ctx;
    TRY(send(t, outputs, n, e));
    TRY(mark(t, outputs, n, e));
    for (size_t i = 0; i < n; i++)
        kafka_source_settle(t->source, outputs[i].source->topic, outputs[i].source->partition,
                            outputs[i].source->offset);
    return 0;
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
    kafka_sink_close(t->sink);
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
    t->results_topic = strdup(o->results_topic);
    if (!t->results_topic) {
        rc = ERR_SET(e, ERR_NOMEM, "no memory for the Kafka transport");
        goto out;
    }
    TRY_OUT(rc, kafka_sink_open(o, &t->sink, e));
    TRY_OUT(rc, kafka_source_open(o, &t->source, e));
    *out = (struct transport){.ctx = t,
                              .take = take,
                              .deliver = deliver,
                              .progress = progress,
                              .finish = finish,
                              .close = close_kafka};
out:
    if (rc != 0)
        close_kafka(t);
    return rc;
}
