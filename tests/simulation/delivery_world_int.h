/* What the files of the world share. True: it happened. */
#ifndef SHEAF_DELIVERY_WORLD_INT_H
#define SHEAF_DELIVERY_WORLD_INT_H

#include "delivery_world.h"
#include "io/kafka_partitions.h"
#include "io/offset_metadata.h"

#define TOPIC "jobs"
enum { OLD_LEASE = 99 };

extern const char *world_found; /* what an action did wrong; NULL: nothing */

static inline bool is_on(const struct world_limits *l, enum world_guard guard)
{
    return !(l->guards_off >> guard & 1);
}

static inline int64_t offset_of(int job)
{
    return job + (job >= 2);
}

static inline int job_at(int64_t offset)
{
    return (int)(offset - (offset > 2));
}

/* delivery_parts.c: the program's own partitions, filled from a worker's bytes and read back.
 */
extern struct kafka_partitions world_ps;
void world_load(const struct worker *k);
void world_save(struct worker *k);
/* What is committed, as a worker reads it: through the text beside the offset. */
void world_read_text(const struct settled *s, struct offset_bits *out);
struct settled world_settled_of(const struct offset_bits *bits);
bool world_is_settled(const struct settled *s, int job);

/* delivery_kafka.c: the group and the transactions. */
void world_leave_group(struct world *w, int worker);
bool world_is_in_group(const struct world *w, int worker);
bool world_kick(struct world *w, int worker);
bool world_join(struct world *w, struct worker *k, int worker);
bool world_complete(struct world *w, const struct world_limits *l, int choice);
void world_apply(struct world *w, int worker);
bool world_time_out(struct world *w, int worker);
/* Ends what the one before left. */
void world_make_producer(struct world *w, int worker);
bool world_is_stable(const struct world *w, const struct world_limits *l, unsigned partitions);

/* delivery_poll.c: a worker's poll thread. */
bool world_notice(struct world *w, const struct world_limits *l, struct worker *k, int worker);
bool world_assign(struct world *w, const struct world_limits *l, int worker);
bool world_receive(struct world *w, const struct world_limits *l, int worker, int p);
bool world_reach_end(struct world *w, int worker, int p);
void world_drop_entry(struct worker *k, int i);

/* delivery_steps.c: its engine and its delivery. */
bool world_compute(struct worker *k, int choice);
bool world_deliver(struct world *w, const struct world_limits *l, int worker, int choice);

#endif
