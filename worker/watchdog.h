/*
 * Ends a process whose engine stands still: a step of it that takes longer than the time it is
 * given is a bug or broken hardware, and a worker that hangs would hold its partitions for
 * ever.
 *
 * The engine's thread says when it enters and leaves a step, by a store. Between two steps it
 * may wait as long as it likes, for work or for delivery. A thread of the watchdog's own looks
 * now and then; time in which it did not look itself (the whole process was stopped, the
 * machine slept) does not count.
 */
#ifndef SHEAF_WATCHDOG_H
#define SHEAF_WATCHDOG_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

/* What is decided from looks; the clock is an argument. */
struct watch {
    int64_t timeout_us;
    int64_t look_us;    /* a look is due so often */
    int64_t looked_us;  /* the last; 0: none yet */
    uint64_t beat;      /* at the last look */
    int64_t stalled_us; /* that this beat was seen to last */
};
/* True: the step that this beat is in is stalled. */
bool watch_look(struct watch *w, uint64_t beat, int64_t now_us);

struct watchdog;
/* on_stall is called once, on the watchdog's thread, and is expected not to come back.
 * timeout_us 0: nobody watches, and *out is NULL. */
int watchdog_open(int64_t timeout_us, void (*on_stall)(void *ctx), void *ctx,
                  struct watchdog **out, struct err *e);
void watchdog_close(struct watchdog *w); /* accepts NULL */

/* Around a step. Thread: the engine's. Accept NULL. */
void watchdog_enter(struct watchdog *w);
void watchdog_leave(struct watchdog *w);

#endif
