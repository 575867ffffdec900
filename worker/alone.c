#include "alone.h"

#include <stddef.h>

void alone_init(struct alone *a, size_t turn)
{
    *a = (struct alone){.turn = turn};
    a->last = &a->first;
}

void alone_add(struct alone *a, struct job *job)
{
    job->next = NULL;
    *a->last = job;
    a->last = &job->next;
    a->n++;
}

bool alone_has_turn(const struct alone *a, bool others_wait)
{
    return a->is_running || (a->n > 0 && (a->n_owed == 0 || !others_wait));
}

static struct job *take_first(struct alone *a)
{
    struct job *job = a->first;
    if (!job)
        return NULL;
    a->first = job->next;
    if (!a->first)
        a->last = &a->first;
    job->next = NULL;
    a->n--;
    return job;
}

struct job *alone_next(struct alone *a, bool others_wait)
{
    a->is_running = false;
    if (!alone_has_turn(a, others_wait))
        return NULL;
    a->is_running = true;
    a->n_owed = a->turn;
    return take_first(a);
}

void alone_note_other(struct alone *a)
{
    if (a->n_owed > 0)
        a->n_owed--;
}

void alone_drop(struct alone *a)
{
    struct job *job;
    while ((job = take_first(a)))
        job_free(job);
}
