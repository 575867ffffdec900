/*
 * The read-ahead window between intake and engine: queued jobs, grouped by the prefix they
 * share, and known to the engine's cache, which keeps what they will need.
 *
 * Thread: the engine's.
 */
#ifndef SHEAF_READAHEAD_H
#define SHEAF_READAHEAD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/settings.h"
#include "engine/engine.h"
#include "job.h"

struct readahead;

int readahead_open(const struct settings *s, struct engine *eng, struct readahead **out,
                   struct err *e);
void readahead_close(struct readahead *r); /* frees the jobs in it; accepts NULL */

bool readahead_has_room(const struct readahead *r);
size_t readahead_length(const struct readahead *r);

/* Takes the job when it returns 0. ERR_NOMEM only. */
int readahead_add(struct readahead *r, struct job *job, struct err *e);

/*
 * Is it time to begin? An idle engine waits, a second at most, while jobs are still coming in
 * fast: a group that is complete costs less than one that begins with a stray job.
 */
bool readahead_is_ready(const struct readahead *r, bool more_may_come);

/* The job to run next, with group_jobs and shared_tokens filled; NULL when the window is empty.
 */
struct job *readahead_next(struct readahead *r);

#endif
