/*
 * Jobs that wait for a document they refer to, while others go past them. They are in flight:
 * taken, not settled, and so bounded by what the transport lets be in flight; a worker that
 * stops leaves them for the next start.
 *
 * Thread: intake.
 */
#ifndef SHEAF_PARKED_H
#define SHEAF_PARKED_H

#include "io/documents.h"
#include "job.h"

struct parked {
    struct job **jobs; /* in order of arrival; admitted_us is when each began to wait */
    size_t n, capacity;
    size_t at, kept; /* of the pass under way: looked at, and kept of those */
    uint64_t generation;
    int64_t looked_us;
};

/* Takes the job when it returns 0. */
int parked_add(struct parked *p, struct job *job, struct err *e);
/* True when it is worth asking again: then parked_next until it gives none. */
bool parked_begin(struct parked *p, const struct documents *d);
/* The next job that waits no more, whole or with an error; NULL: the pass is over. */
int parked_next(struct parked *p, struct documents *d, struct job **job, struct err *e);
void parked_fini(struct parked *p); /* frees the jobs */

#endif
