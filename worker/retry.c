#include "retry.h"

#include "base/rng.h"

int64_t retry_delay_us(uint64_t seed, uint64_t draw, int64_t n_failed)
{
    int64_t most_us = RETRY_FIRST_US;
    for (int64_t i = 1; i < n_failed && most_us < RETRY_MAX_US; i++)
        most_us *= 2;
    if (most_us > RETRY_MAX_US)
        most_us = RETRY_MAX_US;
    return (int64_t)(rng_uniform(seed, 0, draw) * (double)most_us);
}

static void insert(struct retry *r, struct job *job)
{
    struct job **at = &r->first;
    while (*at && (*at)->wait_until_us <= job->wait_until_us)
        at = &(*at)->next;
    job->next = *at;
    *at = job;
    r->n++;
}

bool retry_add(struct retry *r, struct job *job, int64_t now_us, int64_t until_us)
{
    if (++job->attempts >= RETRY_ATTEMPTS_MAX)
        return false;
    job->wait_until_us = now_us + retry_delay_us(r->seed, r->n_drawn++, job->attempts);
    if (until_us != 0 && until_us < job->wait_until_us)
        job->wait_until_us = until_us;
    insert(r, job);
    return true;
}

static struct job *take_first(struct retry *r)
{
    struct job *job = r->first;
    r->first = job->next;
    job->next = NULL;
    r->n--;
    return job;
}

struct job *retry_next(struct retry *r, int64_t now_us)
{
    return r->first && r->first->wait_until_us <= now_us ? take_first(r) : NULL;
}

void retry_drop(struct retry *r)
{
    while (r->first)
        job_free(take_first(r));
}
