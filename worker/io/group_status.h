/*
 * How far a group is with a job topic, told from outside: nobody joins the group and nothing is
 * committed.
 *
 * Counts of jobs are counts of offsets; the marks of transactions and what compaction took away
 * take offsets too. So they are exact for a topic written without transactions, and else too
 * high. A partition with nothing but such offsets left is told apart, by a look.
 *
 * Thread: one.
 */
#ifndef SHEAF_GROUP_STATUS_H
#define SHEAF_GROUP_STATUS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "io/queue_kafka.h"

struct member_status {
    char *id, *client, *host, *instance; /* instance: of a static member, or NULL */
};

struct partition_status {
    int64_t begin, end;     /* the first offset that is there; the one behind the last */
    int64_t committed;      /* -1: nothing */
    uint64_t settled_above; /* the committed offset */
    uint64_t lag_offsets;   /* from the committed offset to the end */
    uint64_t lag_jobs;      /* of these not settled */
    uint64_t lost;          /* unsettled, and deleted by the topic's retention */
    int64_t oldest_wall_us; /* when the oldest unsettled job was submitted; 0: unknown */
    int member;             /* that has it; -1: none */
};

/* A topic's offsets, all partitions together; n_partitions 0: the topic does not exist. */
struct topic_status {
    int n_partitions;
    uint64_t records_max;
};

struct group_status {
    char *state;   /* as the coordinator calls it: Stable, Empty, Dead, ... */
    bool is_known; /* has members, or has committed something of the topic */
    struct member_status *members;
    size_t n_members;
    struct partition_status *partitions;
    size_t n_partitions;
    uint64_t records, lag_offsets, lag_jobs, settled_above, lost; /* sums */
    int64_t oldest_wall_us;                                       /* 0: unknown */
    struct topic_status results, dead_letters;
    uint64_t open_letters_max; /* dead letters that the group's redrive has not noted */
};

/* o: brokers, props, group, jobs_topic, results_topic; dead_letters: their topic, or NULL.
 * ERR_NOTFOUND when the job topic does not exist; a group that is not there is no error. */
int group_status_read(const struct kafka_options *o, const char *dead_letters,
                      struct group_status **out, struct err *e);
void group_status_free(struct group_status *s); /* accepts NULL */

#endif
