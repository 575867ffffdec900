/*
 * The read-ahead window: which of the queued jobs runs next.
 *
 * Jobs lie in a trie of their prompts' 32-token blocks (by chained hash: order only, never
 * equality of answers, hangs on it); salts and priorities have tries of their own. At a node,
 *
 *     saved = (jobs below - 1) x tokens above / prompt tokens of the jobs below
 *
 * is the share of the work that running these jobs together saves. A group is a subtree: the
 * jobs below the first node on a job's path that saves at least 3/4 of what the best node below
 * it does. So a document beats the system prompt that all share, however many documents there
 * are, and examples that few questions share below a document do not split its group. A job
 * whose path has no such node is alone.
 *
 * Groups run whole, depth first inside, so that nested prefixes (system, document, examples)
 * stay warm; jobs that arrive below an open node join its group. At most open_max groups are
 * open at once, and jobs come from the open ones in turn, so that one group's decoding fills
 * the steps of another's prefill. A place where no group is open takes jobs that are alone.
 * A group that has come to save less than half of what a node below it does is closed: what
 * began as the leavings of a system prompt does not swallow the documents that arrive later.
 *
 * The next group to open is the one with the highest priority, then the greatest saved share,
 * which orders as saved tokens per KV page held does; a prefix that the place's last group has
 * left warm counts as saved too. A group that has been open lately comes before an equal one,
 * then the older one. A job of lower priority never goes before one of a higher, but for
 * ageing: a job that has waited max_wait_us, or whose deadline is nearer than that, goes first,
 * oldest first, and opens its group (in the place of the one that saves least, but not of one
 * of higher priority). With grouping off, jobs come by priority, then in order of arrival;
 * ageing stays.
 *
 * Memory: 8 bytes for each block that differs, and about 400 for each job. Time: adding reads
 * the prompt once; all else is a step, or its logarithm, for each branching on a job's path.
 *
 * A pure state machine: the clock is the caller's. Thread: one.
 */
#ifndef SHEAF_GROUP_H
#define SHEAF_GROUP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

struct group_window;

struct group_limits {
    size_t jobs_max;
    size_t tokens_max; /* of prompts */
    size_t bytes_max;  /* as the caller counts them */
    size_t open_max;   /* groups open at once */
    int64_t max_wait_us;
    bool enabled; /* false: order of arrival */
};

struct group_job {
    const int32_t *tokens; /* the prompt; read by group_add only */
    size_t n_tokens;
    const char *salt; /* or NULL; part of the path */
    size_t bytes;
    int64_t priority;    /* higher goes first */
    int64_t deadline_us; /* on the clock of now_us; 0: none */
    int64_t added_us;
    void *user;
};

/* What the window knew of the job's group when it gave the job out. */
struct group_pick {
    void *user;
    uint64_t group;       /* hash of the group's shared blocks; 0: alone */
    size_t group_jobs;    /* jobs of the group then in the window, this one included */
    size_t shared_tokens; /* of the group, full blocks; 0: alone */
    bool aged;            /* it went first because of its age or deadline */
};

int group_open(const struct group_limits *limits, struct group_window **out, struct err *e);
void group_close(struct group_window *w); /* empty, or its jobs were taken; accepts NULL */

/* True while a job of average size would still fit; an empty window always has room. */
bool group_has_room(const struct group_window *w);
size_t group_length(const struct group_window *w);

int group_add(struct group_window *w, const struct group_job *job,
              struct err *e); /* ERR_NOMEM */

/* Takes the next job out; false when the window is empty. */
bool group_next(struct group_window *w, int64_t now_us, struct group_pick *out);

/* Takes any job out, in no order; NULL when empty. For shutting down. */
void *group_take_any(struct group_window *w);

bool group_check(const struct group_window *w); /* walks everything */

#endif
