/*
 * The read-ahead window: which of the queued jobs runs next.
 *
 * Jobs lie in a trie of their prompts' 32-token blocks (by chained hash: order only, never
 * equality of answers, hangs on it). A group is a subtree: the jobs below the node on a job's
 * path where (jobs below - 1) x tokens above is greatest, so a document beats the system prompt
 * that all share. Groups run whole, depth first inside, so that nested prefixes (system,
 * document, examples) stay warm; at most open_max groups are open at once, and jobs come from
 * the open ones in turn, so that one group's decoding fills the steps of another's prefill.
 *
 * The next group to open is the one with the highest priority, then the most saved tokens per
 * KV page held; a group that has been open lately comes before an equal one. Ageing: a job that
 * has waited max_wait_us, or whose deadline is nearer than that, goes first, oldest first, and
 * opens its group. With grouping off, jobs come by priority, then in order of arrival.
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
    size_t shared_tokens; /* of the group, full blocks */
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
