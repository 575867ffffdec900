/*
 * When sequences meet the disk: what is loaded before they are admitted, and what of them is
 * saved while they hold their pages. All accept a NULL disk, which does nothing.
 */
#ifndef SHEAF_KV_DISK_SEQ_H
#define SHEAF_KV_DISK_SEQ_H

#include "engine/kv_disk.h"
#include "engine/sched.h"

/*
 * Before a step is planned: looks once, and once more after a preemption, for each waiting
 * sequence that may now be admitted, whose prefix no running one is about to compute and whose
 * pages fit beside those that were loaded for others before it. What decodes waits meanwhile,
 * so one sequence at most is loaded for in a step; those behind it wait for their turn
 * (waits_for_disk) instead of computing what lies there.
 */
void kv_disk_load_waiting(struct kv_disk *d, struct prefix_tree *t, const struct sched *s,
                          size_t batch);

/* After a step is committed, and once more at its end: hands on what of the sequence's prompt
 * is worth saving. At its end it waits for the writer, for its pages may go afterwards, but a
 * quarter of a second at most: everything else waits meanwhile. */
void kv_disk_save_seq(struct kv_disk *d, struct seq *seq, bool ends);

#endif
