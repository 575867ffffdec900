#include "parked.h"

#include <stdlib.h>

#include "base/clock.h"

enum {
    PASS_US = 50000,       /* at most so often, however fast documents come */
    TIME_PASS_US = 500000, /* and at least so often, for those whose time is up */
};

int parked_add(struct parked *p, struct job *job, struct err *e)
{
    if (p->n == p->capacity) {
        const size_t capacity = p->capacity ? 2 * p->capacity : 64;
        struct job **jobs = realloc(p->jobs, capacity * sizeof jobs[0]);
        if (!jobs)
            return ERR_SET(e, ERR_NOMEM, "no memory for a job that waits for documents");
        p->jobs = jobs;
        p->capacity = capacity;
    }
    p->jobs[p->n++] = job;
    return 0;
}

/* Begins a pass when it is worth asking again. */
static void begin(struct parked *p, const struct documents *d)
{
    const int64_t since_us = clock_mono_us() - p->looked_us;
    const uint64_t generation = documents_generation(d);
    if (p->n == 0 || since_us < PASS_US ||
        (generation == p->generation && since_us < TIME_PASS_US))
        return;
    p->generation = generation; /* before looking: what comes meanwhile is a reason to look */
    p->looked_us = clock_mono_us();
    p->is_passing = true;
    p->at = 0;
    p->kept = 0;
}

static bool is_held(const struct transport *t, const struct job *job)
{
    return !t->holds || t->holds(t->ctx, &job->source);
}

int parked_next(struct parked *p, struct documents *d, const struct transport *t,
                struct job **job, struct err *e)
{
    *job = NULL;
    if (!p->is_passing)
        begin(p, d);
    while (p->is_passing && p->at < p->n) {
        struct job *next = p->jobs[p->at];
        const bool held = is_held(t, next);
        bool waits = true;
        int rc = 0;
        if (held)
            rc = documents_resolve(d, next, next->admitted_us, &waits, e);
        p->jobs[p->at++] = NULL;
        if (rc != 0 || (held && !waits)) {
            *job = next;
            return rc;
        }
        if (held) {
            p->jobs[p->kept++] = next;
        } else {
            job_free(next);
            p->n_dropped++;
        }
    }
    if (p->is_passing)
        p->n = p->kept;
    p->is_passing = false;
    return 0;
}

void parked_fini(struct parked *p)
{
    for (size_t i = 0; i < p->n; i++)
        job_free(p->jobs[i]);
    free(p->jobs);
    *p = (struct parked){0};
}
