/*
 * All of a topic, read by one consumer: committed records only, every partition, from offsets
 * that the caller keeps. No group is joined and nothing is committed; partitions that are added
 * to the topic later are read too.
 *
 * The topic may have been deleted and made anew, or cut by its retention, since the caller's
 * offsets were kept. That is seen by the record read last (another one stands at its offset)
 * and by offsets that do not exist any more; it is said in the log, and the partition is read
 * from the beginning of what there is.
 *
 * Thread: one.
 */
#ifndef SHEAF_KAFKA_READER_H
#define SHEAF_KAFKA_READER_H

#include "io/queue_kafka.h"
#include "io/store_receive.h"

struct kafka_reader;

enum { KAFKA_READ_HEADERS_MAX = 64 };

/* One record; its bytes are borrowed until the next poll. */
struct kafka_read {
    int32_t partition;
    int64_t offset;
    int64_t timestamp_us; /* 0: the record has none */
    const char *value;    /* not NUL-terminated; "" for a tombstone */
    size_t length;
    struct result_header headers[KAFKA_READ_HEADERS_MAX];
    size_t n_headers;
};

/* start tells where to read a partition on: p->partition is given. */
typedef int (*kafka_reader_start)(void *ctx, struct result_position *p, struct err *e);

/* ERR_BROKER with ERR_RETRY when no broker answers in 10 s, ERR_CONFIG when none lets us in. A
 * topic that is not there is waited for. */
int kafka_reader_open(const struct kafka_options *o, const char *topic,
                      kafka_reader_start start, void *ctx, struct kafka_reader **out,
                      struct err *e);
/* Waits up to wait_ms; *out NULL when nothing came. What is given out counts as read. */
int kafka_reader_poll(struct kafka_reader *r, int wait_ms, const struct kafka_read **out,
                      struct err *e);
/* Where the partition is to be read on after the record that was given out last. */
const struct result_position *kafka_reader_position(const struct kafka_reader *r,
                                                    int32_t partition);
/* Every partition was read to its end, as of now. */
bool kafka_reader_is_at_end(const struct kafka_reader *r);
bool kafka_reader_has_topic(const struct kafka_reader *r);
void kafka_reader_close(struct kafka_reader *r); /* accepts NULL */

#endif
