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
 * then the older one. A job of lower priority never goes before one of a higher. With grouping
 * off, jobs come by priority, then in order of arrival, but for due jobs, which go first.
 *
 * A job is due when it has waited max_wait_us or its deadline is nearer than that. If its group
 * is open it needs no more; else it opens its group at once, in a slot that is free or else in
 * the one extra slot of due jobs, and is that group's first. The extra group runs without a
 * break; then, before anything else goes out of turn, the other open groups get as many jobs as
 * it had. Due jobs that are alone take one such turn each. So a backlog that is due as a whole
 * runs in groups like any other. Of due jobs of one priority those with near deadlines go
 * first, nearest first, then the aged, oldest first. max_wait_us 0: no job ages, and a deadline
 * is near within 60 seconds.
 *
 * With ageing, a job waits at most max_wait_us, then for the groups that are open and the due
 * groups and jobs that go before it, and for what these hold up by their turns. A group that
 * jobs keep joining counts as long as it was when it opened: after as many jobs it is closed if
 * any job is due. Only work of higher priority, and an endless row of near deadlines, can hold
 * up a job for longer.
 *
 * Memory: 8 bytes for each block that differs, and about 400 for each job. Time: adding reads
 * the prompt once; opening a group, or closing it early, is a logarithm for each of its jobs;
 * all else is a step, or its logarithm, for each branching on a job's path.
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
    size_t tokens_max;   /* of prompts */
    size_t bytes_max;    /* as the caller counts them */
    size_t open_max;     /* groups open at once, but for the extra one */
    int64_t max_wait_us; /* 0: jobs do not age */
    bool enabled;        /* false: order of arrival */
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
    bool aged;            /* due, and it went first or opened its group for that */
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
