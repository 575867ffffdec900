/*
 * Jobs that wait for a document they refer to, while others go past them. They are in flight:
 * taken, not settled, and so bounded by what the transport lets be in flight; a worker that
 * stops leaves them for the next start, and one that the transport holds no more is dropped.
 *
 * Thread: intake.
 */
#ifndef SHEAF_PARKED_H
#define SHEAF_PARKED_H

#include "io/documents.h"
#include "job.h"
#include "transport.h"

struct parked {
    struct job **jobs; /* in order of arrival; admitted_us is when each began to wait */
    size_t n, capacity;
    bool is_passing; /* a pass over the jobs is under way: */
    size_t at, kept; /* looked at, and kept of those */
    uint64_t generation;
    int64_t looked_us;
    uint64_t n_dropped; /* so far */
};

/* Takes the job when it returns 0. */
int parked_add(struct parked *p, struct job *job, struct err *e);
/* The next job that waits no more, whole or with an error; NULL: none, and nothing to look at
 * before some time has passed or a document has come. Between two calls others may be added.
 * A failure hands out the job that it is about. */
int parked_next(struct parked *p, struct documents *d, const struct transport *t,
                struct job **job, struct err *e);
void parked_fini(struct parked *p); /* frees the jobs */

#endif
