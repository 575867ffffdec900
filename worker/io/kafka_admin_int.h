/*
 * Looks at topics and groups from outside: a consumer that joins no group and commits nothing.
 * Partitions are read one at a time, from one offset to another, so that what is in memory does
 * not grow with the topic.
 *
 * Errors: ERR_BROKER, with ERR_RETRY when no broker answers. Thread: one.
 */
#ifndef SHEAF_KAFKA_ADMIN_INT_H
#define SHEAF_KAFKA_ADMIN_INT_H

#include "kafka_int.h"

struct kafka_admin {
    rd_kafka_t *rk;
    char *brokers;
    int32_t partition; /* that is read */
    int64_t end;       /* no record from here on is wanted */
    bool is_at_end;
    struct kafka_error_log error_log;
};

/* Also ERR_CONFIG when no broker lets us in. */
int kafka_admin_open(const struct kafka_options *o, struct kafka_admin **out, struct err *e);
void kafka_admin_close(struct kafka_admin *r); /* accepts NULL */

/* 0 partitions: the topic does not exist. */
int kafka_admin_count_partitions(struct kafka_admin *r, const char *topic, int *n,
                                 struct err *e);

/* The first offset that is there, and the one behind the last that readers of committed records
 * may see. */
struct kafka_range {
    int64_t begin, end;
};
int kafka_admin_range(struct kafka_admin *r, const char *topic, int32_t partition,
                      struct kafka_range *out, struct err *e);

/* From `begin` on, until `end` or until nothing more is there. */
int kafka_admin_seek(struct kafka_admin *r, const char *topic, int32_t partition, int64_t begin,
                     int64_t end, struct err *e);
/* *out: NULL at the end, else rd_kafka_message_destroy it. */
int kafka_admin_next(struct kafka_admin *r, rd_kafka_message_t **out, struct err *e);

/*
 * What a group has committed of partitions 0..n-1: committed[n]; base -1 where there is
 * nothing. is_stable: not while a transaction is open that may commit others.
 */
int kafka_admin_committed(struct kafka_admin *r, const char *group, const char *topic, int n,
                          bool is_stable, struct offset_bits *committed, struct err *e);

/* The answer to an admin request that `ask` sends; rd_kafka_event_destroy it. */
typedef void (*kafka_admin_ask)(rd_kafka_t *rk, const rd_kafka_AdminOptions_t *options,
                                rd_kafka_queue_t *answers, void *ctx);
int kafka_admin_request(struct kafka_admin *r, rd_kafka_admin_op_t kind, bool is_stable,
                        kafka_admin_ask ask, void *ctx, const char *what,
                        rd_kafka_event_t **out, struct err *e);

/* A group from outside; *out is part of *event, which rd_kafka_event_destroy. One that does not
 * exist is told as such, or as Dead. */
int kafka_admin_describe(struct kafka_admin *r, const char *group, rd_kafka_event_t **event,
                         const rd_kafka_ConsumerGroupDescription_t **out, struct err *e);

#endif
