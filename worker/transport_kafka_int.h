/* What transport_kafka*.c share. */
#ifndef SHEAF_TRANSPORT_KAFKA_INT_H
#define SHEAF_TRANSPORT_KAFKA_INT_H

#include "dead_letter.h"
#include "delayed.h"
#include "io/kafka_burst.h"
#include "io/queue_kafka.h"
#include "transport.h"

struct kafka_transport {
    struct kafka_source *source;
    struct kafka_sink *sink;
    struct kafka_burst *burst; /* or NULL: at least once */
    struct shared_store *store;
    char *jobs_topic, *results_topic;
    struct dead_letters letters;
    bool exit_when_empty;
    struct kafka_record *record;            /* what take lent out last */
    bool acknowledged[TRANSPORT_BATCH_MAX]; /* of the batch that deliver works on */
    struct delayed delayed; /* answers that the brokers have no room to tell of yet */
};

/* transport.deliver, by the way of delivery. Thread: delivery. */
int kafka_deliver_exactly_once(void *ctx, const struct transport_output *outputs, size_t n,
                               struct err *e);
int kafka_deliver_at_least_once(void *ctx, const struct transport_output *outputs, size_t n,
                                struct err *e);

#endif
