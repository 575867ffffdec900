/*
 * Kafka as job queue and result topic (librdkafka >= 2.0.2).
 *
 * Exactly once is kafka_burst.h's: results and offsets in one transaction, and the source
 * commits nothing. Else delivery is at least once: a result is stored, then produced
 * (idempotent producer, acknowledged), then its input offset counts as settled. What is
 * committed is the low watermark, the smallest offset of a partition that is not settled, and
 * beside it which offsets above are (offset_metadata.h): whoever reads the partition next is
 * given only the others. The offset tracker is a pure state machine of its own
 * (offset_tracker.h).
 *
 * A record that was handed out is settled by its taker sooner or later, also when its partition
 * has moved to another worker meanwhile. Then: if the partition comes straight back (every
 * rebalance of the eager protocol takes all partitions away and gives most of them back), the
 * settle counts and the record does not come again; if it went to another worker, the settle is
 * dropped, and that worker answers the record, here a second time, unless its taker had not
 * begun with it and asked kafka_source_holds before. A record never counts as settled without
 * kafka_source_settle.
 *
 * Errors: ERR_RETRY in e->flags means that the same call may succeed later; ERR_FATAL that this
 * handle is done with and nothing more is committed. Trouble that librdkafka gets over by
 * itself (a broker that restarts, a moved coordinator, a missed poll) is logged and is no
 * error.
 *
 * Thread: kafka (the one that polls) for kafka_source_* where nothing else is said; store for
 * kafka_sink_*.
 */
#ifndef SHEAF_QUEUE_KAFKA_H
#define SHEAF_QUEUE_KAFKA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "io/offset_metadata.h"
#include "job_record.h"

/*
 * props: librdkafka's properties, key, value, key, value, ..., NULL. Those that would break a
 * promise above are refused with the reason (kafka_conf.c has the list), also inline secrets:
 * the value of sasl.password (and the other secret properties) comes from the file named
 * by sasl.password.file, and is never logged.
 */
struct kafka_options {
    const char *brokers;          /* bootstrap.servers */
    const char *group;            /* consumer group; the sink does not need it */
    const char *jobs_topic;       /* likewise */
    const char *results_topic;    /* each message names its own; or NULL */
    const char *letters_topic;    /* likewise, of dead letters */
    const char *transactional_id; /* of kafka_burst.h; NULL: delivery is at least once */
    const char *const *props;     /* or NULL */
    size_t inflight_jobs_max;     /* consumption pauses at this many unsettled jobs, */
    size_t inflight_bytes_max;    /* or bytes; resumes at half. 0: no such limit */
};

/* One record, copied out of librdkafka. Free with kafka_record_free. */
struct kafka_record {
    char *topic;
    int32_t partition;
    int64_t offset;
    int64_t timestamp_us; /* 0: the record has none */
    uint64_t lease;       /* of the partition, for kafka_source_holds */
    struct job_record record;
};
void kafka_record_free(struct kafka_record *r); /* accepts NULL */

struct kafka_source;
/*
 * Looks the topic up and joins the group. ERR_BROKER with ERR_RETRY when no broker answers in
 * 10 s, ERR_NOTFOUND when the topic does not exist, ERR_CONFIG for a bad property. A partition
 * is read from the group's committed offset, or from its beginning when there is none.
 */
int kafka_source_open(const struct kafka_options *o, struct kafka_source **out, struct err *e);
/* The id of the cluster; free() it. NULL: no broker has told it, or no memory. */
char *kafka_source_cluster(struct kafka_source *s);
/* Waits up to wait_ms; *out NULL when nothing came. Serves rebalances, commits, pauses: call it
 * at least every few seconds, whatever else goes on. */
int kafka_source_poll(struct kafka_source *s, int wait_ms, struct kafka_record **out,
                      struct err *e);
/* Serves what kafka_source_poll does, and takes nothing more from now on: every partition is
 * paused. Waits up to wait_ms. */
int kafka_source_tend(struct kafka_source *s, int wait_ms, struct err *e);
/* Called whenever it was read what the group has committed of a partition that is ours now;
 * settled lives for the call. Set it before the first poll. Thread: kafka, or the one that
 * publishes. */
void kafka_source_on_committed(struct kafka_source *s,
                               void (*callback)(void *ctx, const char *topic, int32_t partition,
                                                const struct offset_bits *settled),
                               void *ctx);
/* The job's result is acknowledged; thread: any. Commits follow on the poll thread, within
 * a second or 256 settled jobs. */
void kafka_source_settle(struct kafka_source *s, const char *topic, int32_t partition,
                         int64_t offset);
/* False when the partition went to another worker after the record was handed out: that worker
 * answers the record. Thread: any. */
bool kafka_source_holds(struct kafka_source *s, const char *topic, int32_t partition,
                        uint64_t lease);
/*
 * Every partition that is assigned to this worker is read to its end as of now, and everything
 * is settled. A worker whose group has no partition left for it is drained when that has been
 * so for 3 seconds; between two assignments nobody is drained.
 */
bool kafka_source_is_drained(struct kafka_source *s);

struct kafka_progress {
    int partitions;             /* assigned now */
    uint64_t received, settled; /* since open */
    size_t inflight_jobs;       /* received, not settled */
    uint64_t inflight_bytes;    /* their keys, values and headers */
    uint64_t behind; /* offsets between what was read and the partitions' ends as last heard */
    bool behind_known; /* false until each assigned partition's end was heard of */
    bool is_paused;    /* the in-flight limits are reached */
};
/* Thread: any. */
void kafka_source_progress(struct kafka_source *s, struct kafka_progress *out);

/* Offsets that the topic's retention deleted before they were read. */
struct kafka_lost {
    int32_t partition;
    int64_t first, last; /* both are lost */
};
/* False: there is no more to tell. Ask after each poll. */
bool kafka_source_next_lost(struct kafka_source *s, struct kafka_lost *out);

/* Commits what is settled and leaves the group, in 20 s at most; s is gone also when that
 * fails: then some settled jobs come again. Accepts NULL. */
int kafka_source_close(struct kafka_source *s, struct err *e);

struct kafka_sink;
/* Talks to nobody yet. */
int kafka_sink_open(const struct kafka_options *o, struct kafka_sink **out, struct err *e);
struct kafka_header {
    const char *name;
    const void *value; /* any bytes; NULL: none */
    size_t length;
};
struct kafka_message {
    const char *topic;
    const char *key; /* any bytes; murmur2 of them chooses the partition, as Java's clients do.
                        NULL: any partition */
    size_t key_length;
    const char *value; /* NULL: a tombstone */
    size_t value_length;
    const char *custom_id;              /* header, or NULL */
    const struct kafka_header *headers; /* after it */
    size_t n_headers;
};
/* Produces all and waits until each is acknowledged or failed; failed: the first error, but
 * ERR_LIMIT only when there is no other. Some of the messages may be acknowledged then; sending
 * all again is fine for at-least-once. A message larger than the client's or the topic's limit
 * is ERR_LIMIT, a missing topic ERR_NOTFOUND. */
int kafka_sink_send(struct kafka_sink *s, const struct kafka_message *messages, size_t n,
                    struct err *e);
/* The same, and tells each message's outcome in codes[n]: 0 or an err_code. */
int kafka_sink_send_each(struct kafka_sink *s, const struct kafka_message *messages, size_t n,
                         int *codes, struct err *e);
/* Takes records of 17 MiB whatever the broker's default is. A topic that exists already is left
 * as it is: *created false (created may be NULL). */
int kafka_sink_create_topic(struct kafka_sink *s, const char *topic, int partitions,
                            bool *created, struct err *e);
/* The same; of each key such a topic keeps the latest record. */
int kafka_sink_create_compacted(struct kafka_sink *s, const char *topic, int partitions,
                                bool *created, struct err *e);
void kafka_sink_close(struct kafka_sink *s); /* accepts NULL */

#endif
