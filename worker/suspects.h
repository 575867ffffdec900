/*
 * Jobs that may be what crashes this worker: those it had in its hands when it ended before,
 * without saying so.
 *
 * A strike: the worker crashed or hung by itself while the hand that had the job was at work,
 * or its device failed while the job was in the engine. A death: the worker vanished (kill -9,
 * out of memory, power), or crashed in another hand. With
 * SUSPECT_STRIKES or SUSPECT_DEATHS a job runs alone, so that it takes nothing else down; with
 * POISON_STRIKES or POISON_DEATHS it is answered with the error poison_crash and is not
 * computed.
 *
 * What was counted is in the database (table crashes) until the job is answered.
 */
#ifndef SHEAF_SUSPECTS_H
#define SHEAF_SUSPECTS_H

#include "io/store.h"
#include "running.h"

enum { SUSPECT_STRIKES = 1, SUSPECT_DEATHS = 2, POISON_STRIKES = 3, POISON_DEATHS = 10 };
enum { SUSPECTS_MAX = 65536 }; /* beyond them no job is known; a crash adds 258 at most */

enum verdict {
    VERDICT_CLEAN,
    VERDICT_ALONE,
    VERDICT_POISON,
    VERDICT_UNREADABLE, /* poison, and reading it may be what crashes */
};

struct suspicion {
    enum verdict verdict;
    int64_t strikes, deaths;
};

struct suspects {
    struct store_crash *items; /* sorted by name; owned */
    size_t n, capacity;
    struct running_last last; /* of the process before */
};

/* Counts what the process before has left beside the database, forgets that, and loads. */
int suspects_open(struct suspects *s, const char *db_path, struct store *store, struct err *e);
void suspects_fini(struct suspects *s); /* accepts all zero */

/* Borrows nothing; s NULL: nobody is suspected. */
struct suspicion suspects_judge(const struct suspects *s, const struct job_source *source,
                                const char *payload_sha256);
/* Sets the error poison_crash unless the job has one. */
void suspects_refuse(struct job *job, const struct suspicion *suspicion);

#endif
