/*
 * The partitions of one consumer: which are owned, what of them is unsettled. No librdkafka and
 * no locks here; the owner holds its lock around every call.
 *
 * State outlives a revoke until the next assignment is known: what was settled stays settled
 * and what is in work stays in work, so a partition that comes straight back goes on where it
 * was. It is dropped when the partition is not in the next assignment.
 */
#ifndef SHEAF_KAFKA_PARTITIONS_H
#define SHEAF_KAFKA_PARTITIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "offset_tracker.h"

struct kafka_partition {
    char *topic;
    int32_t id;
    uint64_t lease; /* another one when the partition was forgotten and came back */
    struct offset_tracker tracker;
    int64_t committed; /* acknowledged by the group's coordinator; -1: none that we know of */
    bool is_changed;   /* something was settled since what was last sent to be committed */
    bool is_owned;
    bool is_paused; /* as librdkafka was told last */
    bool is_held;   /* a record of it waits for room in the span */
    bool is_at_end; /* nothing was left to read when last heard */
};

struct kafka_partitions {
    struct kafka_partition **items;
    size_t n, capacity;
    uint64_t leases;        /* given out so far */
    bool are_texts_limited; /* to less than any text of ours (offset_metadata.h): */
    size_t text_max;        /* characters beside an offset that brokers take */
};

/* NULL when there is none. */
struct kafka_partition *kafka_partitions_find(const struct kafka_partitions *ps,
                                              const char *topic, int32_t id);

/* Takes ownership of a partition of which this is committed: an offset and what is settled
 * above it; base -1 when nothing is, or nobody knows. *start: where to read on, -1 when nothing
 * is known. */
int kafka_partitions_assign(struct kafka_partitions *ps, const char *topic, int32_t id,
                            const struct offset_bits *committed, int64_t *start, struct err *e);
void kafka_partitions_revoke_all(struct kafka_partitions *ps);
/* Forgets the partitions that are not owned. */
void kafka_partitions_drop_revoked(struct kafka_partitions *ps);

/* The longest text that may stand beside an offset. */
size_t kafka_partitions_text_max(const struct kafka_partitions *ps);

size_t kafka_partitions_count_owned(const struct kafka_partitions *ps);
void kafka_partitions_sum_unsettled(const struct kafka_partitions *ps, size_t *jobs,
                                    uint64_t *bytes);
/* Owned, with offsets settled that are not committed. */
bool kafka_partition_is_commit_due(const struct kafka_partition *p);
/* All owned ones at their end with nothing unsettled. */
bool kafka_partitions_are_drained(const struct kafka_partitions *ps);

void kafka_partitions_fini(struct kafka_partitions *ps);

#endif
