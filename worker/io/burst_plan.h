/*
 * What a burst is to say: which of its answers are still ours to give, and what of which
 * partitions is committed together with them. No librdkafka and no locks here; the owner of the
 * partitions holds its lock around every call.
 *
 *     the partition of the answer                     the answer
 *     unknown, or forgotten and come back since       not ours: another worker gives its own
 *     known, the offset settled                       given already
 *     ours, the offset unsettled                      open: to be given now
 *     between two assignments                         nobody knows, and the burst has to wait
 *
 * Of each partition with open answers is committed what is settled already, and those. Where
 * the brokers take short texts only, answers that would need a longer one are delayed.
 */
#ifndef SHEAF_BURST_PLAN_H
#define SHEAF_BURST_PLAN_H

#include "io/kafka_burst.h"
#include "io/kafka_partitions.h"
#include "io/offset_metadata.h"

struct burst_offsets {
    const char *topic; /* the partition's; lent for as long as the partitions do not change */
    int32_t partition;
    struct offset_bits settled;
};

struct burst_plan {
    struct burst_offsets *items; /* owned; in the order of the partitions */
    size_t n;
};

/* Fills states of all n answers. ERR_BROKER with ERR_RETRY while it is not known of one whose
 * it will be, ERR_NOMEM: *out is empty then. */
int burst_plan_make(const struct kafka_partitions *ps, const struct kafka_answer *answers,
                    size_t n, enum kafka_answer_state *states, struct burst_plan *out,
                    struct err *e);
void burst_plan_fini(struct burst_plan *plan); /* accepts a zeroed one */

/* The group has committed this of a partition, perhaps by a burst of ours whose end nobody
 * heard. What is not ours is left alone, and false: it is asked for when it is given to us. */
bool burst_plan_take_over(struct kafka_partitions *ps, const char *topic, int32_t partition,
                          const struct offset_bits *committed);

#endif
