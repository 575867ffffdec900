#include "in_work.h"

#include <string.h>

#include "base/check.h"
#include "base/fault.h"

static void note_deadline(struct in_work *w, const struct job *job)
{
    if (job->deadline_us != 0 && (w->next_us == 0 || job->deadline_us < w->next_us))
        w->next_us = job->deadline_us;
}

void in_work_add(struct in_work *w, struct job *job)
{
    size_t slot = 0;
    while (slot < ENGINE_SEQS_MAX && w->jobs[slot])
        slot++;
    ASSERT(slot < ENGINE_SEQS_MAX);
    w->jobs[slot] = job;
    job->slot = slot;
    running_put(w->running, RUNNING_ENGINE + slot, &job->source, job->payload_sha256);
    note_deadline(w, job);
}

void in_work_remove(struct in_work *w, struct job *job)
{
    ASSERT(job->slot < ENGINE_SEQS_MAX && w->jobs[job->slot] == job);
    w->jobs[job->slot] = NULL;
    running_clear(w->running, RUNNING_ENGINE + job->slot);
}

void in_work_expire(struct in_work *w, struct engine *eng, int64_t now_wall_us)
{
    if (w->next_us == 0 || now_wall_us <= w->next_us)
        return;
    w->next_us = 0;
    for (size_t i = 0; i < ENGINE_SEQS_MAX; i++) {
        struct job *job = w->jobs[i];
        if (!job || job->error.status != 0)
            continue;
        if (job->deadline_us == 0 || now_wall_us <= job->deadline_us)
            note_deadline(w, job);
        else if (engine_cancel(eng, job))
            job_fail(job, 408, "deadline_exceeded", "deadline",
                     "the deadline passed while the job was running");
    }
}

void in_work_fault(const struct in_work *w)
{
#ifdef SHEAF_FAULTS
    for (size_t i = 0; i < ENGINE_SEQS_MAX; i++)
        if (w->jobs[i])
            (void)FAULT_AT("step", w->jobs[i]->custom_id, strlen(w->jobs[i]->custom_id));
#else
    (void)w;
#endif
}
