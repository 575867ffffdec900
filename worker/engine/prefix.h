/*
 * The prefix tree: which token prefixes the KV pool holds, and which the queue will need.
 *
 *     salt "" ---- [block 0] ---- [block 1] ---- [block 2]          a node is a block of 32
 *                      |              +--------- [block 2']         tokens below its parent
 *                      +--------- [block 1']
 *     salt "x" --- [block 0]
 *
 * A node with a page holds the keys and values of its block, all of them committed; a node
 * without one is only wanted: some queued job's prompt goes that way. A block of fewer than 32
 * tokens may hold a page too (the end of a prompt, of an answer, of a preempted sequence); it
 * is a leaf, is found by comparing tokens, and grows when its page fills.
 *
 * Hits are token-exact: parent and tokens are compared, the hash only finds candidates. Full
 * pages are shared. Of a page that matches in part, or as a whole but for the last prompt
 * token, which is always computed, the matching slots come by copying the page. Salts are
 * separate trees.
 *
 * Pages without a sequence stay as long as nothing else needs their place; then leaves go
 * first: those that no queued job wants, least recently used before others, and only then
 * wanted ones, that whose next turn is furthest away before others. What was let go of is
 * remembered for a while (by hash, for reports only).
 *
 * A sequence or a queued job holds its way through the tree as a struct prefix_path:
 *
 *     WANTED --prefix_start--> HELD --prefix_stop(again)--> WANTED --prefix_unwant--> gone
 *                                |---prefix_stop----------> gone
 *
 * While WANTED, its nodes count one demand more. While HELD, its nodes up to what it has
 * committed have pages, and those pages its reference; the nodes behind, as far as its prompt
 * goes, are coming: who waits for them may wait for this sequence.
 *
 * A pure state machine: no clock but its own count of uses, no threads, no I/O; no operation
 * but prefix_want takes memory. Thread: the engine's.
 */
#ifndef SHEAF_PREFIX_H
#define SHEAF_PREFIX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "engine/kvpool.h"

struct prefix_tree;
struct prefix_path;

struct prefix_options {
    bool enabled;          /* false: nothing is ever found or kept */
    bool evicts_by_demand; /* false: least recently used only, for comparison */
    size_t tokens_min;     /* a hit of fewer tokens counts as none */
    size_t pages_max;      /* idle pages kept at most; 0: no limit but the pool */
    uint64_t hash_mask;    /* and-ed to every hash; 0 is taken as all bits. Tests narrow it. */
};

/* Why the first prompt token that was not found had to be computed. */
enum prefix_miss {
    PREFIX_MISS_NONE,    /* all but the last prompt token was there */
    PREFIX_MISS_OFF,     /* the cache is off */
    PREFIX_MISS_COLD,    /* never seen before */
    PREFIX_MISS_DIFFERS, /* others share the tokens up to here, and then differ */
    PREFIX_MISS_EVICTED, /* was there, and had to go although a queued job wanted it */
    PREFIX_MISS_WINDOW,  /* was there, and went while no job in the window wanted it */
    PREFIX_MISS_SHORT,   /* what was there is shorter than tokens_min */
    PREFIX_MISS_SALT,    /* is there, or was, under another salt only */
};
const char *prefix_miss_name(enum prefix_miss miss); /* "cold", "evicted", ... "none" */

struct prefix_hit {
    size_t n_tokens;       /* positions [0, n_tokens) need no computing; < n_prompt */
    size_t n_pages_shared; /* full pages of them; the rest, if any, is copied */
    size_t n_coming;       /* tokens behind n_tokens that held paths are about to commit */
    enum prefix_miss miss;
    size_t miss_at; /* index of the first token not found; n_tokens unless MISS_SHORT */
};

struct prefix_counters {
    uint64_t pages_published;
    uint64_t pages_adopted; /* given back because the tree had the same page already */
    uint64_t pages_evicted;
    uint64_t pages_evicted_wanted; /* of them */
    uint64_t pages_copied;
};

int prefix_open(const struct prefix_options *o, struct kvpool *pool, struct prefix_tree **out,
                struct err *e);
/* Every path is gone; gives all pages back. Accepts NULL. */
void prefix_close(struct prefix_tree *t);

/* When a wanting path is expected to start: all NEXT before all LATER, each in the order in
 * which they came. A guess that only decides what is let go of. */
enum prefix_turn { PREFIX_NEXT, PREFIX_LATER };

/* A WANTED path for a prompt; tokens are copied, salt NULL is "". ERR_NOMEM only. */
int prefix_want(struct prefix_tree *t, const char *salt, const int32_t *tokens, size_t n_prompt,
                enum prefix_turn turn, struct prefix_path **out, struct err *e);
/* Ends a WANTED path; accepts NULL. */
void prefix_unwant(struct prefix_tree *t, struct prefix_path *path);

/* What a start would find for the first n_tokens tokens (prompt, or prompt and answer of a
 * preempted sequence). Changes nothing. */
void prefix_find(const struct prefix_tree *t, const struct prefix_path *path,
                 const int32_t *tokens, size_t n_tokens, struct prefix_hit *out);

/*
 * WANTED -> HELD: fills pages with ceil(n_tokens / 32) pages, the shared ones first, evicting
 * as needed. False, with nothing changed, when fewer pages are free or idle than those of them
 * that no other sequence holds and n_spare more.
 */
bool prefix_start(struct prefix_tree *t, struct prefix_path *path, const int32_t *tokens,
                  size_t n_tokens, size_t n_spare, int32_t *pages, struct prefix_hit *out);

/* A page for a HELD path's next tokens, or for prefix_insert_page, evicting as needed;
 * KVPOOL_NO_PAGE: none to be had. */
int32_t prefix_acquire_page(struct prefix_tree *t);

/*
 * The first n_committed tokens of a HELD path are computed and final: publishes the full pages
 * that became so, and the partly filled one when partial. A page that the tree has already is
 * given back and its twin put into pages: their bits are the same.
 */
void prefix_commit(struct prefix_tree *t, struct prefix_path *path, const int32_t *tokens,
                   size_t n_committed, bool partial, int32_t *pages);

/* Ends a HELD path: commits, then gives up all n_pages pages. again: -> WANTED, and the path
 * lives on; else it is freed. */
void prefix_stop(struct prefix_tree *t, struct prefix_path *path, const int32_t *tokens,
                 size_t n_committed, int32_t *pages, size_t n_pages, bool again);

/*
 * A page with the committed keys and values of a WANTED path's full block, from elsewhere than
 * a sequence: it becomes the tree's as if a sequence had committed it and gone. Takes the page;
 * it is given back when the tree has that block already. False, and given back, when the block
 * before has no page (any more) or the cache is off.
 */
bool prefix_insert_page(struct prefix_tree *t, struct prefix_path *path, size_t block,
                        int32_t page);

size_t prefix_pages_available(const struct prefix_tree *t); /* free or idle */
struct prefix_counters prefix_counters(const struct prefix_tree *t);

/* Walks the tree and the pool; false when anything disagrees. */
bool prefix_check(const struct prefix_tree *t);

#endif
