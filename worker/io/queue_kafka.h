/*
 * Kafka as job queue and result topic (librdkafka >= 2.0.2).
 *
 * Delivery here is at least once: a result is stored, then produced (idempotent producer,
 * acknowledged), then its input offset counts as settled; what is committed is the low
 * watermark: the smallest offset of a partition that is not settled. The offset tracker is a
 * pure state machine of its own (offset_tracker.h).
 *
 * Thread: kafka (the one that polls) for kafka_source_*; store for kafka_sink_*.
 */
#ifndef SHEAF_QUEUE_KAFKA_H
#define SHEAF_QUEUE_KAFKA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

struct kafka_options {
    const char *brokers; /* bootstrap.servers */
    const char *group;   /* consumer group */
    const char *jobs_topic;
    const char *results_topic;
    const char *const *props;  /* librdkafka properties: key, value, key, value, ... NULL */
    size_t inflight_jobs_max;  /* consumption pauses at this many unsettled jobs, */
    size_t inflight_bytes_max; /* or bytes; resumes at half */
};

/* One record, copied out of librdkafka. Free with kafka_record_free. */
struct kafka_record {
    char *topic;
    int32_t partition;
    int64_t offset;
    int64_t timestamp_us;
    char *key; /* NUL-terminated copy, or NULL */
    size_t key_length;
    char *value; /* NUL-terminated copy; "" for a tombstone */
    size_t value_length;
    char *custom_id_header; /* header custom_id, or NULL */
};
void kafka_record_free(struct kafka_record *r);

struct kafka_source;
int kafka_source_open(const struct kafka_options *o, struct kafka_source **out, struct err *e);
/* Waits up to wait_ms; *out NULL when nothing came. Serves rebalances. */
int kafka_source_poll(struct kafka_source *s, int wait_ms, struct kafka_record **out,
                      struct err *e);
/* The job's result is acknowledged; thread: any. Commits follow on the poll thread. */
void kafka_source_settle(struct kafka_source *s, const char *topic, int32_t partition,
                         int64_t offset);
/* Every partition read to its end as of now, and everything settled. */
bool kafka_source_is_drained(struct kafka_source *s);
/* Commits what is settled and leaves the group. */
int kafka_source_close(struct kafka_source *s, struct err *e);

struct kafka_sink;
int kafka_sink_open(const struct kafka_options *o, struct kafka_sink **out, struct err *e);
struct kafka_message {
    const char *topic;
    const char *key;
    size_t key_length;
    const char *value;
    size_t value_length;
    const char *custom_id; /* header, or NULL */
};
/* Produces all and waits until each is acknowledged or failed; failed: the first error. */
int kafka_sink_send(struct kafka_sink *s, const struct kafka_message *messages, size_t n,
                    struct err *e);
int kafka_sink_create_topic(struct kafka_sink *s, const char *topic, int partitions,
                            bool *created, struct err *e);
void kafka_sink_close(struct kafka_sink *s);

#endif
