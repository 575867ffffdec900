#include "engine/spec_gate.h"

static const double WEIGHT = 1.0 / 16; /* of one measured time in its average */
static const double OUTLIER = 8;

struct spec_gate spec_gate_open(double share)
{
    return (struct spec_gate){.share = share};
}

bool spec_gate_asks(const struct spec_gate *g)
{
    return g->credit_us >= 0;
}

/* Returns what counts of it. */
static double average(double *mean, double us)
{
    if (*mean == 0)
        *mean = us;
    const double counted = us < OUTLIER * *mean ? us : OUTLIER * *mean;
    *mean += WEIGHT * (counted - *mean);
    return counted;
}

void spec_gate_pay(struct spec_gate *g, double us)
{
    g->credit_us -= average(&g->ask_us, us);
}

void spec_gate_earn(struct spec_gate *g, double step_us, double saved_us)
{
    g->credit_us += g->share * average(&g->step_us, step_us) + saved_us;
    const double most = SPEC_GATE_STEPS_KEPT * g->step_us;
    if (g->begins_full || g->credit_us > most)
        g->credit_us = most;
    g->begins_full = false;
}
