/*
 * Inside the prefix tree: its nodes (prefix_nodes.c), who wants them (prefix_queue.c), and what
 * it remembers of lost ones (prefix_seen.c).
 *
 * A node is there because paths lead through it (claimed) or because it has a page. A node
 * with a page has a parent with a page or a root above it, and who holds its page holds those
 * of all its ancestors: so an idle page has only idle ones below it, and whatever is idle can
 * be let go of, leaves first.
 *
 * Nodes come from the heap while prefix_want makes a path. A node that only its page keeps
 * alive counts as kept, and there are always as many spare nodes as pages that are not kept:
 * publishing a page never needs memory.
 */
#ifndef SHEAF_PREFIX_INT_H
#define SHEAF_PREFIX_INT_H

#include "base/limits.h"
#include "engine/prefix.h"

#define PREFIX_NO_VICTIM SIZE_MAX

struct prefix_node {
    struct prefix_node *parent;          /* NULL: a root */
    struct prefix_node *next_hashed;     /* in its bucket: roots and full blocks */
    struct prefix_node *first_child;     /* of those with a page, most recently used first */
    struct prefix_node *next, *previous; /* in that list of the parent; next of the spares */
    char *salt;                          /* of a root; owned */
    uint32_t salt_hash;                  /* of its root, for reports */
    uint64_t hash;                       /* finds candidates, never decides */
    uint64_t chain;                      /* of all tokens from the root on, for reports */
    uint64_t last_used;
    size_t victim; /* place in the heap of victims, or PREFIX_NO_VICTIM */
    struct prefix_path *first_wanting, *last_wanting; /* WANTED paths by turn; not of roots */
    /* Paths that go through it. A root counts all its paths as wanted. */
    uint32_t n_wanted;
    uint32_t n_held;
    uint32_t n_coming; /* of the held ones: have not committed it yet */
    int32_t page;      /* or KVPOOL_NO_PAGE */
    uint32_t n_tokens; /* fewer than a page's: a leaf that may grow */
    int32_t tokens[KV_PAGE_TOKENS];
};

/* Token by token, what was published and what became of it. */
struct prefix_seen {
    struct prefix_seen_entry *entries; /* [n_entries] in sets of a few, latest first */
    size_t n_entries;                  /* a power of two */
    uint64_t hash_mask;
};
enum prefix_fate { PREFIX_FATE_NONE, PREFIX_PUBLISHED, PREFIX_LET_GO, PREFIX_LET_GO_WANTED };

struct prefix_tree {
    struct prefix_options options;
    struct kvpool *pool; /* borrowed */
    size_t n_paths;
    uint64_t n_turns; /* given out so far */
    uint64_t n_uses;  /* the clock: one tick for each operation that uses pages */
    struct prefix_counters counters;

    struct prefix_node **buckets; /* [n_buckets], a power of two */
    size_t n_buckets;
    size_t n_hashed;
    struct prefix_node *spares;
    size_t n_spares;
    size_t n_kept;
    struct prefix_node **by_page; /* [P] the node that has the page, or NULL */
    struct prefix_node **victims; /* a heap, the next one to go first */
    size_t n_victims;

    struct prefix_seen seen;
};

/* A path at one of its nodes; while WANTED, with its neighbours among those that want it. */
struct prefix_step {
    struct prefix_node *node;
    struct prefix_path *earlier, *later;
};

struct prefix_path {
    struct prefix_node *root; /* NULL when the tree is off */
    uint64_t turn;            /* smaller comes sooner; no two are the same */
    bool is_held;
    size_t n_committed;       /* held: full blocks of its own that have pages in the tree */
    struct prefix_node *tail; /* held: the last of them, or the root */
    struct prefix_node *leaf; /* held: the published, partly filled page behind it, or NULL */
    size_t n_nodes;
    struct prefix_step steps[]; /* [n_nodes] the prompt's full blocks */
};

int prefix_nodes_open(struct prefix_tree *t, struct err *e);
void prefix_nodes_close(struct prefix_tree *t); /* all pages are idle; gives them back */

/* NULL when there is none. tokens: a full block's. */
struct prefix_node *prefix_nodes_find(const struct prefix_tree *t,
                                      const struct prefix_node *parent, const int32_t *tokens);

/* Finds or makes the root, or the node of the path's next step, which the path wants from now
 * on. ERR_NOMEM only. */
int prefix_nodes_want_root(struct prefix_tree *t, const char *salt, struct prefix_path *path,
                           struct err *e);
int prefix_nodes_want_next(struct prefix_tree *t, const int32_t *tokens,
                           struct prefix_path *path, struct err *e);
/* The path wants its root or its last step no longer; the node goes unless something else keeps
 * it. */
void prefix_nodes_unwant_root(struct prefix_tree *t, struct prefix_path *path);
void prefix_nodes_unwant_last(struct prefix_tree *t, struct prefix_path *path);

/* Puts the path among those that want the node of this step, or takes it out; the caller then
 * updates the node. */
void prefix_queue_join(struct prefix_path *path, size_t step);
void prefix_queue_leave(struct prefix_path *path, size_t step);
bool prefix_queue_check(const struct prefix_node *node);

/* A leaf without a page, of no tokens yet, from the spare nodes. */
struct prefix_node *prefix_nodes_add_leaf(struct prefix_tree *t, struct prefix_node *parent);
/* Its first n_tokens tokens are now these, which is a use of its page; a full one can be found
 * from now on. */
void prefix_nodes_grow_leaf(struct prefix_tree *t, struct prefix_node *leaf,
                            const int32_t *tokens, size_t n_tokens);

/* The page is held; the node becomes the one that caches it. */
void prefix_nodes_set_page(struct prefix_tree *t, struct prefix_node *node, int32_t page);
/* Caches its page no longer, and goes itself unless paths lead through it. */
void prefix_nodes_drop_page(struct prefix_tree *t, struct prefix_node *node);

/* Takes or gives up one reference to the node's page; both are a use. */
void prefix_nodes_hold(struct prefix_tree *t, struct prefix_node *node);
void prefix_nodes_release(struct prefix_tree *t, struct prefix_node *node);

/* Wanted or not may have changed: puts the node in its place among the victims. */
void prefix_nodes_update(struct prefix_tree *t, struct prefix_node *node);

bool prefix_nodes_check(const struct prefix_tree *t);

int prefix_seen_open(struct prefix_seen *s, size_t n_pages, uint64_t hash_mask, struct err *e);
void prefix_seen_close(struct prefix_seen *s);
uint64_t prefix_seen_chain(uint64_t chain, const int32_t *tokens, size_t n_tokens);
/* Tokens [from, n_tokens) of the node met their fate. */
void prefix_seen_note(struct prefix_seen *s, const struct prefix_node *node, size_t from,
                      enum prefix_fate fate);
/* Why this token is not there behind the tokens of chain. */
enum prefix_miss prefix_seen_explain(const struct prefix_seen *s, uint64_t chain, int32_t token,
                                     uint32_t salt_hash);

#endif
