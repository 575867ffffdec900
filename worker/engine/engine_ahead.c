#include "engine/engine_ahead.h"

#include <stdlib.h>
#include <string.h>

#include "base/check.h"

int ahead_open(bool is_on, size_t batch, struct ahead *a, struct err *e)
{
    *a = (struct ahead){.is_on = is_on};
    if (!is_on)
        return 0;
    a->plan.segments = calloc(batch, sizeof a->plan.segments[0]);
    return a->plan.segments ? 0 : ERR_SET(e, ERR_NOMEM, "no memory for a batch of %zu", batch);
}

void ahead_close(struct ahead *a)
{
    free(a->plan.segments);
}

bool ahead_take(struct ahead *a, struct step_plan *plan)
{
    if (a->state == AHEAD_NONE)
        return false;
    const struct step_plan taken = a->plan;
    a->plan = *plan;
    *plan = taken;
    a->state = AHEAD_NONE;
    return true;
}

void ahead_begin(struct ahead *a, struct sched *s, struct forward *f,
                 const struct step_plan *now)
{
    ASSERT(a->state == AHEAD_NONE);
    if (!a->is_on || !sched_plan_behind(s, now, &a->plan))
        return;
    forward_begin(f, &a->plan);
    a->state = AHEAD_BEGUN;
    a->n_steps++;
}

void ahead_forget(struct ahead *a, struct forward *f, const struct seq *seq)
{
    struct step_plan *plan = &a->plan;
    size_t i = 0;
    if (a->state == AHEAD_NONE)
        return;
    while (i < plan->n_segments && plan->segments[i].seq != seq)
        i++;
    if (i == plan->n_segments)
        return;
    plan->n_segments--;
    plan->n_rows--;
    a->n_wasted++;
    memmove(plan->segments + i, plan->segments + i + 1,
            (plan->n_segments - i) * sizeof plan->segments[0]);
    if (plan->n_segments > 0)
        return;
    forward_abandon(f);
    a->state = AHEAD_NONE;
}
