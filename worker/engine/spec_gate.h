/*
 * Whether a source of drafts is worth the time that asking it takes: an account in
 * microseconds.
 *
 * Asking is paid for at once; what it brought is known after the step. The account earns a
 * small share of every step's time, and what drafts that only this source named saved; it pays
 * for asking. While it is overdrawn the source is not asked. So a source that pays is always
 * asked, and one that does not costs the share at most: as often as that allows it is asked
 * again, and if it then pays it earns its way back. What is kept has a limit, so that a source
 * that ceases to pay is found out soon.
 *
 * Pure; no clock. Thread: the engine's.
 */
#ifndef SHEAF_SPEC_GATE_H
#define SHEAF_SPEC_GATE_H

#include <stdbool.h>

enum { SPEC_GATE_STEPS_KEPT = 4 }; /* of the account, at most: the time of so many steps */

struct spec_gate {
    double share;     /* of the steps' time that may be lost */
    double credit_us; /* below 0: overdrawn */
    double step_us;   /* moving averages; 0 at first */
    double ask_us;
    bool begins_full; /* the source computes something before it can bring anything: its first
                         asking is not counted, and the account is full after it */
};

struct spec_gate spec_gate_open(double share);
bool spec_gate_asks(const struct spec_gate *g);
/* Asking took so long. One that took far longer than it does counts for that little more: a
 * thread that was kept waiting says nothing of the source. */
void spec_gate_pay(struct spec_gate *g, double us);
/* A step took so long, asking apart, and without the drafts that only this source named would
 * have taken saved_us more for the same tokens; below 0 when they cost more than they saved. */
void spec_gate_earn(struct spec_gate *g, double step_us, double saved_us);

#endif
