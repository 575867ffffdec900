/*
 * Jobs of which an attempt came to nothing for a reason that may pass (no memory, a document
 * that could not be read), and when each is tried again: after a random part of 1 s, 2 s, 4 s
 * and so on, 5 minutes at most ("full jitter", so that many that failed together do not come
 * back together), RETRY_ATTEMPTS_MAX attempts in all.
 *
 * They are in flight like those that wait for documents: taken, not settled. Waiting needs no
 * memory beyond the job's own.
 *
 * The clock is an argument. Thread: one.
 */
#ifndef SHEAF_RETRY_H
#define SHEAF_RETRY_H

#include "job.h"

enum { RETRY_ATTEMPTS_MAX = 5 };
#define RETRY_FIRST_US INT64_C(1000000)
#define RETRY_MAX_US   INT64_C(300000000)

struct retry {
    struct job *first; /* by job->next; by job->wait_until_us, equals in order of arrival */
    size_t n;
    uint64_t seed;
    uint64_t n_drawn;
};

/* How long to wait after so many failed attempts (from 1); a function of its arguments. */
int64_t retry_delay_us(uint64_t seed, uint64_t draw, int64_t n_failed);

/* Takes the job and counts the attempt; until_us (monotonic, 0: none): it is due then at the
 * latest. False: that was the last attempt, and the job stays the caller's. */
bool retry_add(struct retry *r, struct job *job, int64_t now_us, int64_t until_us);
/* A job that is due, or NULL. */
struct job *retry_next(struct retry *r, int64_t now_us);
void retry_drop(struct retry *r); /* frees the jobs */

#endif
