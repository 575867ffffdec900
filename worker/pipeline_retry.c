/* One job's failure is not the worker's: it is tried again later, then answered. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/fault.h"
#include "base/log.h"
#include "pipeline_int.h"

static bool may_pass(const struct err *why)
{
    return why->code == ERR_NOMEM || (why->flags & ERR_RETRY) != 0;
}

/* The wall clock's deadline on the monotonic one; 0: none. */
static int64_t deadline_of(const struct job *job, int64_t now_us)
{
    if (job->deadline_us == 0)
        return 0;
    const int64_t at_us = now_us + (job->deadline_us - clock_wall_us());
    return at_us > 0 ? at_us : 1;
}

/* Without memory for the job's result; or for the error that takes its place, which fails the
 * worker. */
static int push(struct pipeline *p, struct job *job, const struct seq_result *s, struct err *e)
{
    struct outcome *outcome = calloc(1, sizeof *outcome);
    struct result *r = NULL;
    if (outcome && !FAULT_AT("result", job->custom_id, strlen(job->custom_id)))
        r = s ? answer_result_take(p->o->answers, job, s)
              : answer_failure_take(p->o->answers, job);
    if (!r) {
        free(outcome);
        return ERR_SET(e, ERR_NOMEM, "no memory for a result");
    }
    outcome->result = r;
    if (!queue_push(p->outcomes, outcome))
        pipeline_free_outcome(outcome); /* shut: the pipeline has failed, it stays unsettled */
    return 0;
}

static int give_up(struct pipeline *p, struct job *job, const struct err *why, struct err *e)
{
    answer_exhaust(job, why->text);
    const int rc = push(p, job, NULL, e);
    if (rc != 0)
        job_free(job);
    return rc;
}

int pipeline_postpone(struct pipeline *p, struct retry *retry, struct job *job,
                      const struct err *why, struct err *e)
{
    if (!may_pass(why)) {
        job_free(job);
        return ERR_SET_FLAGS(e, why->code, why->flags, "%s", why->text);
    }
    if (atomic_load(&p->stop)) {
        job_free(job); /* unanswered and unsettled */
        return 0;
    }
    const int64_t now_us = clock_mono_us();
    if (!retry_add(retry, job, now_us, deadline_of(job, now_us)))
        return give_up(p, job, why, e);
    log_warn("%s-%d-%lld: %s; attempt %lld of %d comes in %.1f s", job->source.topic,
             (int)job->source.partition, (long long)job->source.offset, why->text,
             (long long)job->attempts + 1, RETRY_ATTEMPTS_MAX,
             (double)(job->wait_until_us - now_us) / 1e6);
    return 0;
}

int pipeline_answer(struct pipeline *p, struct retry *retry, struct job *job,
                    const struct seq_result *s, struct err *e)
{
    struct err why = {0};
    return push(p, job, s, &why) == 0 ? 0 : pipeline_postpone(p, retry, job, &why, e);
}

bool pipeline_drop_lost(struct pipeline *p, struct job *job)
{
    const struct transport *t = p->o->transport;
    if (!t->holds || t->holds(t->ctx, &job->source))
        return false;
    job_free(job);
    atomic_fetch_sub(&p->taken, 1);
    return true;
}

struct job *pipeline_retry_next(struct pipeline *p, struct retry *retry)
{
    struct job *job;
    while ((job = retry_next(retry, clock_mono_us())))
        if (!pipeline_drop_lost(p, job))
            return job;
    return NULL;
}
