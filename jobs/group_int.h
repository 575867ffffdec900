/*
 * What the files of the window share: the trie of prompts, and which of its nodes are open.
 *
 *     top --- [key of salt and priority, block, block] --- [block, block, block] --- ...
 *                               |                +-------- [block]
 *                               +---- jobs whose prompts end here, in order of arrival
 *
 * An edge holds as many chained block hashes as its jobs have in common; a job that goes
 * another way splits it. A node lives as long as there are jobs at it or below.
 *
 * Each node counts the jobs below that wait: not those below an open node, for these belong to
 * that node's group (a node may be open above another one). So an open node is out of the
 * sight of what is above it, and the counts of an open node are those of its group. A child
 * keeps its place in a heap of its siblings; the top's first child therefore leads to the best
 * waiting group, and a change costs a step for each node on the way up.
 */
#ifndef SHEAF_GROUP_INT_H
#define SHEAF_GROUP_INT_H

#include "group.h"
#include "group_heap.h"

enum { GROUP_RECENT = 16 }; /* groups that count as open lately */

struct group_entry {
    struct group_node *node;
    struct group_entry *prev, *next; /* at the same node */
    uint64_t seq;                    /* of arrival */
    size_t n_tokens;
    size_t bytes;
    int64_t priority;
    int64_t deadline_us;
    int64_t added_us;
    void *user;
    size_t place_age;      /* in the heaps, while its group is not open */
    size_t place_deadline; /* if it has one */
};

struct group_node {
    struct group_node *parent;  /* NULL: the top */
    struct group_heap children; /* of struct group_node, best first */
    size_t place;               /* among the parent's children */
    struct group_entry *first, *last;
    struct group_slot *slot; /* NULL: not open */
    size_t depth;            /* hashes from the top to the end of the edge */
    int64_t priority;        /* of all jobs below */
    uint64_t born;           /* seq of the first job */
    uint64_t opened;         /* tick; 0: not lately */
    int64_t n_jobs;          /* waiting, here and below */
    int64_t n_tokens;        /* of their prompts */
    double saved;            /* share of n_tokens that the node's blocks save */
    double best;             /* the greatest of its own and the waiting children's */
    size_t n_edge;
    uint64_t edge[];
};

/* A place for an open group. */
struct group_slot {
    struct group_node *node; /* NULL: free */
    struct group_node *at;   /* where the last job came from, or what is left above it */
    int64_t left;            /* jobs to give out of as many as the group had when it opened */
};

struct group_trie {
    struct group_node *top;
    struct group_node **table; /* by parent and first hash of the edge; NULL: free */
    size_t n_table;            /* nodes in it: all but the top */
    size_t capacity;           /* a power of two */
    struct group_slot *slots;
    size_t n_slots; /* the last one is the extra slot of due jobs */
    uint64_t tick;  /* groups opened so far */
    uint64_t recent[GROUP_RECENT];
};

/* The next job or group to run. */
struct group_choice {
    struct group_node *group;  /* NULL: a job that shares nothing */
    struct group_entry *alone; /* that job */
};

struct group_window {
    struct group_limits limits;
    struct group_trie trie;
    struct group_heap by_age;      /* jobs in no open group: by priority, then oldest first */
    struct group_heap by_deadline; /* those with deadlines: by priority, then nearest first */
    size_t n_jobs;
    size_t n_tokens, n_bytes; /* of all jobs */
    size_t turn;              /* the slot that gives the next job; the extra one has none */
    size_t owed;              /* jobs given out of turn that the open groups get back */
    uint64_t seq;             /* of the last job added */
    uint64_t *path;           /* scratch of group_add */
    size_t path_capacity;
};

bool group_trie_init(struct group_trie *t, size_t n_slots);
void group_trie_fini(struct group_trie *t); /* accepts zeroed; no jobs are left */

/* Hangs the job in; false, with nothing changed, when out of memory. */
bool group_trie_add(struct group_trie *t, const uint64_t *path, size_t n_path,
                    struct group_entry *entry);
/* Closes its group if this was the last one. */
void group_trie_remove(struct group_trie *t, struct group_entry *entry);

/* Full blocks, in tokens, and their hash. */
size_t group_node_tokens(const struct group_node *node);
uint64_t group_node_hash(const struct group_node *node);

/* The open group that a job at the node belongs to, or NULL. */
struct group_slot *group_trie_slot_of(const struct group_node *node);
/* The group that a waiting job at the node belongs to, or NULL: none. */
struct group_node *group_trie_cut(struct group_node *node);
/* Whether an open group had better be several: documents have arrived below a system prompt. */
bool group_trie_outgrown(const struct group_node *node);
/* Below a node where jobs wait. */
struct group_choice group_trie_choose(struct group_node *node);

void group_trie_open(struct group_trie *t, struct group_node *node, struct group_slot *slot);
void group_trie_close(struct group_slot *slot);
/* The open group's next job, depth first from where the last one was. */
struct group_entry *group_trie_inside(struct group_slot *slot);

/* Walks the trie; *n_jobs, *n_tokens: of all jobs found. */
bool group_trie_check(const struct group_trie *t, size_t *n_jobs, size_t *n_tokens);
struct group_node *group_trie_find(const struct group_trie *t, const struct group_node *parent,
                                   uint64_t hash);
/* Recomputes saved and best from counts and children. */
void group_node_rate(const struct group_node *node, double *saved, double *best);
extern const struct group_heap_kind group_node_kind; /* children of a node */

/* Room for n jobs in all, so that the rest cannot fail. */
bool group_due_reserve(struct group_window *w, size_t n);
/* A job that is in no open group. */
void group_due_add(struct group_window *w, struct group_entry *entry);
void group_due_remove(struct group_window *w, struct group_entry *entry);
/* Opening takes the group's jobs from the heaps, closing puts those that are left back. */
void group_due_open(struct group_window *w, struct group_node *group, struct group_slot *slot);
void group_due_close(struct group_window *w, struct group_slot *slot);
/* The first due job of the highest priority there is, in no open group; or NULL. */
struct group_entry *group_due_find(const struct group_window *w, int64_t priority,
                                   int64_t now_us);
extern const struct group_heap_kind group_by_age, group_by_deadline;

#endif
