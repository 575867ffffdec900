#include "engine/prefix.h"

#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/size.h"
#include "engine/prefix_int.h"

enum {
    PAGE = KV_PAGE_TOKENS,
    /* Blocks below one parent that are compared for a partial match, latest used first. A
     * document with more different continuations than that loses less than a page by it. */
    CHILDREN_COMPARED = 64,
};

#define TURN_LATER (UINT64_C(1) << 63) /* set in the turns that come after all others */

const char *prefix_miss_name(enum prefix_miss miss)
{
    static const char *const names[] = {
        [PREFIX_MISS_NONE] = "none",       [PREFIX_MISS_OFF] = "off",
        [PREFIX_MISS_COLD] = "cold",       [PREFIX_MISS_DIFFERS] = "differs",
        [PREFIX_MISS_EVICTED] = "evicted", [PREFIX_MISS_WINDOW] = "window",
        [PREFIX_MISS_SHORT] = "short",     [PREFIX_MISS_SALT] = "salt",
    };
    return names[miss];
}

int prefix_open(const struct prefix_options *o, struct kvpool *pool, struct prefix_tree **out,
                struct err *e)
{
    struct prefix_tree *t = calloc(1, sizeof *t);
    if (!t)
        return ERR_SET(e, ERR_NOMEM, "no memory for the prefix tree");
    t->options = *o;
    if (t->options.hash_mask == 0)
        t->options.hash_mask = UINT64_MAX;
    t->pool = pool;
    int rc = prefix_nodes_open(t, e);
    if (rc == 0)
        rc = prefix_seen_open(&t->seen, kvpool_pages(pool), t->options.hash_mask, e);
    if (rc != 0) {
        prefix_close(t);
        return rc;
    }
    *out = t;
    return 0;
}

void prefix_close(struct prefix_tree *t)
{
    if (!t)
        return;
    ASSERT(t->n_paths == 0);
    prefix_nodes_close(t);
    prefix_seen_close(&t->seen);
    free(t);
}

static int want_nodes(struct prefix_tree *t, const char *salt, const int32_t *tokens,
                      size_t n_nodes, struct prefix_path *path, struct err *e)
{
    TRY(prefix_nodes_want_root(t, salt, path, e));
    while (path->n_nodes < n_nodes)
        TRY(prefix_nodes_want_next(t, tokens + path->n_nodes * PAGE, path, e));
    return 0;
}

int prefix_want(struct prefix_tree *t, const char *salt, const int32_t *tokens, size_t n_prompt,
                enum prefix_turn turn, struct prefix_path **out, struct err *e)
{
    const size_t n_nodes = t->options.enabled ? n_prompt / PAGE : 0;
    struct prefix_path *path = calloc(1, sizeof *path + n_nodes * sizeof path->steps[0]);
    if (!path)
        return ERR_SET(e, ERR_NOMEM, "no memory for a prompt's prefix");
    path->turn = t->n_turns++ | (turn == PREFIX_LATER ? TURN_LATER : 0);
    t->n_paths++;
    if (t->options.enabled) {
        const int rc = want_nodes(t, salt ? salt : "", tokens, n_nodes, path, e);
        if (rc != 0) {
            prefix_unwant(t, path);
            return rc;
        }
    }
    *out = path;
    return 0;
}

void prefix_unwant(struct prefix_tree *t, struct prefix_path *path)
{
    if (!path)
        return;
    ASSERT(!path->is_held);
    while (path->n_nodes > 0)
        prefix_nodes_unwant_last(t, path);
    if (path->root)
        prefix_nodes_unwant_root(t, path);
    free(path);
    t->n_paths--;
}

struct match {
    struct prefix_node *last; /* of the nodes that can be shared; or the root */
    size_t n_shared;
    size_t n_idle;              /* of their pages */
    struct prefix_node *source; /* of a copy; or NULL */
    size_t n_copied;            /* tokens */
};

static size_t match_tokens(const struct match *m)
{
    return m->n_shared * PAGE + m->n_copied;
}

/* The node of a full block of the sequence, whose parent is known. */
static struct prefix_node *find_block(const struct prefix_tree *t,
                                      const struct prefix_path *path,
                                      const struct prefix_node *parent, const int32_t *tokens,
                                      size_t block)
{
    if (block < path->n_nodes)
        return path->steps[block].node;
    return prefix_nodes_find(t, parent, tokens + block * PAGE);
}

static size_t count_equal(const struct prefix_node *node, const int32_t *tokens, size_t n)
{
    n = size_min(n, node->n_tokens);
    size_t i = 0;
    while (i < n && node->tokens[i] == tokens[i])
        i++;
    return i;
}

/* The page below parent that has most of the next n tokens, latest used first. */
static void find_source(const struct prefix_node *parent, const int32_t *tokens, size_t n,
                        struct match *m)
{
    struct prefix_node *child = parent->first_child;
    for (size_t i = 0; child && i < CHILDREN_COMPARED && m->n_copied < n; i++) {
        const size_t n_equal = count_equal(child, tokens, n);
        if (n_equal > m->n_copied) {
            m->n_copied = n_equal;
            m->source = child;
        }
        child = child->next;
    }
}

static void find_match(const struct prefix_tree *t, const struct prefix_path *path,
                       const int32_t *tokens, size_t n_tokens, struct match *m)
{
    *m = (struct match){.last = path->root};
    while (path->root) {
        const size_t at = m->n_shared * PAGE;
        const size_t left = n_tokens - 1 - at; /* the last token is always computed */
        struct prefix_node *node = NULL;
        if (left + 1 >= PAGE)
            node = find_block(t, path, m->last, tokens, m->n_shared);
        if (!node || node->page == KVPOOL_NO_PAGE) {
            find_source(m->last, tokens + at, size_min(left, PAGE), m);
            return;
        }
        if (left < PAGE) {
            m->source = node;
            m->n_copied = left;
            return;
        }
        m->last = node;
        m->n_shared++;
        m->n_idle += kvpool_is_idle(t->pool, node->page);
    }
}

/* Tokens behind the match that held paths will commit. */
static size_t count_coming(const struct prefix_tree *t, const struct prefix_path *path,
                           const int32_t *tokens, size_t n_tokens, const struct match *m)
{
    if (!path->root)
        return 0;
    size_t block = m->n_shared;
    const struct prefix_node *node = m->last;
    while ((block + 1) * PAGE <= n_tokens) {
        node = find_block(t, path, node, tokens, block);
        if (!node || node->n_coming == 0)
            break;
        block++;
    }
    const size_t end = size_min(block * PAGE, n_tokens - 1);
    return end > match_tokens(m) ? end - match_tokens(m) : 0;
}

static enum prefix_miss explain(const struct prefix_tree *t, const int32_t *tokens,
                                size_t n_tokens, const struct match *m)
{
    const size_t n_found = match_tokens(m);
    if (!t->options.enabled)
        return PREFIX_MISS_OFF;
    if (n_found > 0 && n_found < t->options.tokens_min)
        return PREFIX_MISS_SHORT;
    if (n_found == n_tokens - 1)
        return PREFIX_MISS_NONE;
    const uint64_t chain =
        prefix_seen_chain(m->last->chain, tokens + m->n_shared * PAGE, m->n_copied);
    return prefix_seen_explain(&t->seen, chain, tokens[n_found], m->last->salt_hash);
}

static bool has_prompt_of(const struct prefix_path *path, const int32_t *tokens)
{
    for (size_t i = 0; i < path->n_nodes; i++)
        if (memcmp(path->steps[i].node->tokens, tokens + i * PAGE, PAGE * sizeof tokens[0]) !=
            0)
            return false;
    return true;
}

/* Finds, tells what was found, and leaves of the match what may be used. */
static void look_up(const struct prefix_tree *t, const struct prefix_path *path,
                    const int32_t *tokens, size_t n_tokens, struct match *m,
                    struct prefix_hit *hit)
{
    ASSERT(n_tokens >= 1 && n_tokens >= path->n_nodes * PAGE);
    ASSERT_SLOW(has_prompt_of(path, tokens));
    find_match(t, path, tokens, n_tokens, m);
    const size_t n_found = match_tokens(m);
    const size_t n_coming = count_coming(t, path, tokens, n_tokens, m);
    *hit = (struct prefix_hit){.miss = explain(t, tokens, n_tokens, m), .miss_at = n_found};
    if (hit->miss == PREFIX_MISS_SHORT)
        *m = (struct match){.last = path->root};
    hit->n_tokens = match_tokens(m);
    hit->n_pages_shared = m->n_shared;
    if (n_coming > 0 && n_found + n_coming >= t->options.tokens_min)
        hit->n_coming = n_found + n_coming - hit->n_tokens;
}

void prefix_find(const struct prefix_tree *t, const struct prefix_path *path,
                 const int32_t *tokens, size_t n_tokens, struct prefix_hit *out)
{
    struct match m;
    look_up(t, path, tokens, n_tokens, &m, out);
}

static void let_go(struct prefix_tree *t, struct prefix_node *node)
{
    const bool is_wanted = node->n_wanted > 0;
    prefix_seen_note(&t->seen, node, 0, is_wanted ? PREFIX_LET_GO_WANTED : PREFIX_LET_GO);
    t->counters.pages_evicted++;
    t->counters.pages_evicted_wanted += is_wanted;
    prefix_nodes_drop_page(t, node);
}

int32_t prefix_acquire_page(struct prefix_tree *t)
{
    if (kvpool_free_pages(t->pool) == 0 && t->n_victims > 0)
        let_go(t, t->victims[0]);
    return kvpool_acquire_page(t->pool);
}

size_t prefix_pages_available(const struct prefix_tree *t)
{
    return kvpool_free_pages(t->pool) + kvpool_idle_pages(t->pool);
}

static void release_page(struct prefix_tree *t, int32_t page)
{
    if (t->by_page[page])
        prefix_nodes_release(t, t->by_page[page]);
    else
        kvpool_release_page(t->pool, page);
}

static void share_match(struct prefix_tree *t, const struct match *m, int32_t *pages)
{
    struct prefix_node *node = m->last;
    for (size_t i = m->n_shared; i-- > 0; node = node->parent) {
        prefix_nodes_hold(t, node);
        pages[i] = node->page;
    }
}

static void hold_path(struct prefix_tree *t, struct prefix_path *path, const struct match *m)
{
    path->is_held = true;
    path->n_committed = m->n_shared;
    path->tail = m->last;
    for (size_t i = 0; i < path->n_nodes; i++) {
        struct prefix_node *node = path->steps[i].node;
        prefix_queue_leave(path, i);
        node->n_held++;
        node->n_coming += i >= m->n_shared;
        prefix_nodes_update(t, node);
    }
}

/* A copy of a page that the caller holds for it. When nothing else can be had, the page itself
 * leaves the tree and is used up. */
static int32_t copy_source(struct prefix_tree *t, struct prefix_node *source)
{
    const int32_t from = source->page;
    const int32_t page = prefix_acquire_page(t);
    if (page == KVPOOL_NO_PAGE) {
        let_go(t, source);
        return from;
    }
    kvpool_copy_page(t->pool, page, from);
    t->counters.pages_copied++;
    prefix_nodes_release(t, source);
    return page;
}

bool prefix_start(struct prefix_tree *t, struct prefix_path *path, const int32_t *tokens,
                  size_t n_tokens, size_t n_spare, int32_t *pages, struct prefix_hit *out)
{
    ASSERT(!path->is_held);
    struct match m;
    struct prefix_hit hit;
    look_up(t, path, tokens, n_tokens, &m, &hit);
    const size_t n_pages = (n_tokens + PAGE - 1) / PAGE;
    const size_t n_taken = n_pages - m.n_shared + m.n_idle;
    if (n_taken + n_spare > prefix_pages_available(t))
        return false;
    t->n_uses++;
    share_match(t, &m, pages);
    hold_path(t, path, &m);
    size_t n_filled = m.n_shared;
    if (m.source) {
        prefix_nodes_hold(t, m.source);
        n_filled++;
    }
    for (; n_filled < n_pages; n_filled++)
        pages[n_filled] = prefix_acquire_page(t);
    if (m.source) /* last, because it may have to use up the source */
        pages[m.n_shared] = copy_source(t, m.source);
    *out = hit;
    return true;
}

/* from: tokens of the page that were published before. */
static void publish(struct prefix_tree *t, struct prefix_node *node, int32_t page, size_t from)
{
    prefix_nodes_set_page(t, node, page);
    t->counters.pages_published += from == 0;
    prefix_seen_note(&t->seen, node, from, PREFIX_PUBLISHED);
}

/* The node of the tail's next block has a page already: ours goes, and we hold that one. */
static void adopt(struct prefix_tree *t, struct prefix_path *path, struct prefix_node *node,
                  int32_t *page)
{
    prefix_nodes_hold(t, node);
    if (path->leaf)
        prefix_nodes_drop_page(t, path->leaf);
    kvpool_release_page(t->pool, *page);
    *page = node->page;
    t->counters.pages_adopted++;
}

/* The tail's next block is complete. */
static void commit_block(struct prefix_tree *t, struct prefix_path *path, const int32_t *tokens,
                         int32_t *page)
{
    struct prefix_node *node = find_block(t, path, path->tail, tokens, path->n_committed);
    const int32_t *block = tokens + path->n_committed * PAGE;
    const size_t n_published = path->leaf ? path->leaf->n_tokens : 0;
    if (node && node->page != KVPOOL_NO_PAGE) {
        adopt(t, path, node, page);
    } else if (node) {
        if (path->leaf)
            prefix_nodes_drop_page(t, path->leaf);
        publish(t, node, *page, n_published);
    } else if (path->leaf) {
        node = path->leaf;
        prefix_nodes_grow_leaf(t, node, block, PAGE);
        prefix_seen_note(&t->seen, node, n_published, PREFIX_PUBLISHED);
    } else {
        node = prefix_nodes_add_leaf(t, path->tail);
        prefix_nodes_grow_leaf(t, node, block, PAGE);
        publish(t, node, *page, 0);
    }
    node->n_coming -= path->n_committed < path->n_nodes;
    path->n_committed++;
    path->tail = node;
    path->leaf = NULL;
}

/* The tail's next n tokens, fewer than a page, are final. */
static void commit_partial(struct prefix_tree *t, struct prefix_path *path,
                           const int32_t *tokens, size_t n, int32_t page)
{
    struct prefix_node *leaf = path->leaf;
    const size_t n_published = leaf ? leaf->n_tokens : 0;
    if (n == n_published)
        return;
    if (leaf) {
        prefix_nodes_grow_leaf(t, leaf, tokens, n);
        prefix_seen_note(&t->seen, leaf, n_published, PREFIX_PUBLISHED);
        return;
    }
    struct match twin = {0};
    find_source(path->tail, tokens, n, &twin);
    if (twin.n_copied == n)
        return;
    path->leaf = prefix_nodes_add_leaf(t, path->tail);
    prefix_nodes_grow_leaf(t, path->leaf, tokens, n);
    publish(t, path->leaf, page, 0);
}

void prefix_commit(struct prefix_tree *t, struct prefix_path *path, const int32_t *tokens,
                   size_t n_committed, bool partial, int32_t *pages)
{
    ASSERT(path->is_held);
    if (!path->root)
        return;
    ASSERT(n_committed >= path->n_committed * PAGE);
    t->n_uses++;
    while ((path->n_committed + 1) * PAGE <= n_committed)
        commit_block(t, path, tokens, &pages[path->n_committed]);
    const size_t at = path->n_committed * PAGE;
    if (partial && n_committed > at)
        commit_partial(t, path, tokens + at, n_committed - at, pages[path->n_committed]);
}

static void unhold_path(struct prefix_tree *t, struct prefix_path *path)
{
    for (size_t i = 0; i < path->n_nodes; i++) {
        struct prefix_node *node = path->steps[i].node;
        node->n_held--;
        prefix_queue_join(path, i);
        node->n_coming -= i >= path->n_committed;
        prefix_nodes_update(t, node);
    }
    path->is_held = false;
    path->tail = path->leaf = NULL;
    path->n_committed = 0;
}

static void keep_limit(struct prefix_tree *t)
{
    const size_t n_idle_max = t->options.pages_max ? t->options.pages_max : SIZE_MAX;
    while (kvpool_idle_pages(t->pool) > n_idle_max)
        let_go(t, t->victims[0]);
}

void prefix_stop(struct prefix_tree *t, struct prefix_path *path, const int32_t *tokens,
                 size_t n_committed, int32_t *pages, size_t n_pages, bool again)
{
    ASSERT(n_committed <= n_pages * PAGE);
    prefix_commit(t, path, tokens, n_committed, true, pages);
    unhold_path(t, path);
    t->n_uses++;
    for (size_t i = n_pages; i-- > 0;)
        release_page(t, pages[i]);
    if (!again)
        prefix_unwant(t, path);
    keep_limit(t);
}

bool prefix_insert_page(struct prefix_tree *t, struct prefix_path *path, size_t block,
                        int32_t page)
{
    ASSERT(!path->is_held);
    struct prefix_node *node = block < path->n_nodes ? path->steps[block].node : NULL;
    const bool follows =
        node && (block == 0 || path->steps[block - 1].node->page != KVPOOL_NO_PAGE);
    if (follows && node->page == KVPOOL_NO_PAGE) {
        t->n_uses++;
        publish(t, node, page, 0);
    }
    release_page(t, page);
    keep_limit(t);
    return follows;
}

struct prefix_counters prefix_counters(const struct prefix_tree *t)
{
    return t->counters;
}

bool prefix_check(const struct prefix_tree *t)
{
    return kvpool_check(t->pool) && prefix_nodes_check(t);
}
