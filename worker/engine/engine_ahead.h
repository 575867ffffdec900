/*
 * One step ahead: while a device computes a step, the next one is planned and given to it, so
 * that it never waits for what the host does between them.
 *
 *                  begun by engine_step          begun behind it, before its results are read
 *     AHEAD_NONE ------------------------> now ----------------------------> AHEAD_BEGUN
 *         ^                                                                    |      |
 *         +------ its sequences have all ended: nobody reads its results ------+      |
 *         ^                                                                           |
 *         +------ it is the step that engine_step works on: now ----------------------+
 *
 * The state is that of the borders of engine_step and of what it does with a step's results. A
 * step is begun ahead only while all that run decode greedily without drafts and nobody is to
 * be admitted (sched_plan_behind); everything else takes the way in which a step is planned
 * when the one before has ended. So a new prompt, a cancellation, a preemption or a row that
 * wants its logits waits for one step at most.
 *
 * Tokens of such a step are not known when it is planned: the device takes them from the step
 * before. A sequence that ends by what it says, or is cancelled, has a row too many in the step
 * behind: ahead_forget takes it out and its result is never read. What that row writes is
 * behind the sequence's tokens, in a page that was its own when the row was planned; the page
 * may have another owner when the row is computed, but whatever that one does to it the device
 * does later, for it works in the order in which it is asked.
 *
 * Thread: the engine's.
 */
#ifndef SHEAF_ENGINE_AHEAD_H
#define SHEAF_ENGINE_AHEAD_H

#include <stdbool.h>

#include "base/err.h"
#include "engine/forward.h"
#include "engine/sched.h"

enum ahead_state {
    AHEAD_NONE,  /* nothing is at work behind the step whose results were read last */
    AHEAD_BEGUN, /* the plan below is: its results come next */
};

struct ahead {
    enum ahead_state state;
    bool is_on;
    struct step_plan plan; /* segments whose sequences have ended are not in it any more */
    uint64_t n_steps;      /* begun ahead */
    uint64_t n_wasted;     /* rows of them, and of no sequence in the end */
};

/* is_on false: ahead_begin never begins one. */
int ahead_open(bool is_on, size_t batch, struct ahead *a, struct err *e);
void ahead_close(struct ahead *a);

/* Where a step has been begun it becomes *plan, and *plan's memory is the next one's; else
 * false. */
bool ahead_take(struct ahead *a, struct step_plan *plan);
/* Begins the step behind `now`, which is begun and has not ended, where that can be. */
void ahead_begin(struct ahead *a, struct sched *s, struct forward *f,
                 const struct step_plan *now);
/* The sequence ends: its pages are about to be given back. */
void ahead_forget(struct ahead *a, struct forward *f, const struct seq *seq);

#endif
