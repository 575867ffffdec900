/*
 * The jobs that are in the engine: their slots in the running file, and their deadlines.
 *
 * Thread: the engine's.
 */
#ifndef SHEAF_IN_WORK_H
#define SHEAF_IN_WORK_H

#include "base/limits.h"
#include "engine/engine.h"
#include "job.h"
#include "running.h"

struct in_work {
    struct job *jobs[ENGINE_SEQS_MAX]; /* by slot; NULL: free */
    int64_t next_us;                   /* no deadline (wall) passes before; 0: there is none */
    struct running *running;           /* borrowed; or NULL */
};

/* Names the job; there are fewer than ENGINE_SEQS_MAX. Borrows it until it is removed. */
void in_work_add(struct in_work *w, struct job *job);
void in_work_remove(struct in_work *w, struct job *job);
/* Cancels those whose deadline has passed and gives them the error deadline_exceeded. */
void in_work_expire(struct in_work *w, struct engine *eng, int64_t now_wall_us);
/* For tests that break a job in the engine; nothing in a release. */
void in_work_fault(const struct in_work *w);

#endif
