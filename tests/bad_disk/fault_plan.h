/*
 * What the preloaded libraries here share: which call fails, counted over all threads from the
 * moment the library is loaded, and a report of it.
 *
 * PREFIX_NTH     the call that fails, from 1; 0 or unset: none, only count
 * PREFIX_COUNT   how many fail from it on; unset: one, 0: all
 * PREFIX_REPORT  a file that gets "calls N\nfailed N\nfirst WHAT\n" when the program exits
 */
#ifndef SHEAF_TESTS_FAULT_PLAN_H
#define SHEAF_TESTS_FAULT_PLAN_H

#include <stdatomic.h>
#include <stdbool.h>

enum { FAULT_TEXT_BYTES = 256 };

struct fault_plan {
    long nth, count;
    _Atomic long calls, failed;
    char first[FAULT_TEXT_BYTES]; /* what failed first; written by the thread that met it */
    char report[FAULT_TEXT_BYTES];
};

/* Reads the environment. Allocates nothing. */
void fault_plan_read(struct fault_plan *plan, const char *prefix);
/* Counts a call. True: it is to fail. Thread: any. */
bool fault_plan_strikes(struct fault_plan *plan, const char *call, const char *object);
/* Writes the report with system calls of its own, which nothing can stand in front of. */
void fault_plan_report(struct fault_plan *plan);

#endif
