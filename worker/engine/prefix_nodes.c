#include "engine/prefix_int.h"

#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/hash.h"

enum { PAGE = KV_PAGE_TOKENS };

static bool goes_before(const struct prefix_tree *t, const struct prefix_node *a,
                        const struct prefix_node *b)
{
    if (t->options.evicts_by_demand && (a->n_wanted > 0) != (b->n_wanted > 0))
        return b->n_wanted > 0;
    if (t->options.evicts_by_demand && a->n_wanted > 0 && a->first_wanting != b->first_wanting)
        return a->first_wanting->turn > b->first_wanting->turn;
    return a->last_used < b->last_used;
}

static void place(struct prefix_tree *t, size_t at, struct prefix_node *node)
{
    t->victims[at] = node;
    node->victim = at;
}

/* Puts the node where it belongs, starting at a place that is free. */
static void settle(struct prefix_tree *t, size_t at, struct prefix_node *node)
{
    while (at > 0 && goes_before(t, node, t->victims[(at - 1) / 2])) {
        place(t, at, t->victims[(at - 1) / 2]);
        at = (at - 1) / 2;
    }
    for (;;) {
        size_t child = 2 * at + 1;
        if (child + 1 < t->n_victims &&
            goes_before(t, t->victims[child + 1], t->victims[child]))
            child++;
        if (child >= t->n_victims || !goes_before(t, t->victims[child], node))
            break;
        place(t, at, t->victims[child]);
        at = child;
    }
    place(t, at, node);
}

static void remove_victim(struct prefix_tree *t, struct prefix_node *node)
{
    const size_t at = node->victim;
    node->victim = PREFIX_NO_VICTIM;
    struct prefix_node *last = t->victims[--t->n_victims];
    if (last != node)
        settle(t, at, last);
}

static bool can_go(const struct prefix_tree *t, const struct prefix_node *node)
{
    return node->page != KVPOOL_NO_PAGE && !node->first_child &&
           kvpool_is_idle(t->pool, node->page);
}

void prefix_nodes_update(struct prefix_tree *t, struct prefix_node *node)
{
    const bool is_victim = node->victim != PREFIX_NO_VICTIM;
    if (!can_go(t, node)) {
        if (is_victim)
            remove_victim(t, node);
        return;
    }
    settle(t, is_victim ? node->victim : t->n_victims++, node);
}

static uint64_t hash_root(const struct prefix_tree *t, const char *salt)
{
    return hash_bytes(salt, strlen(salt)) & t->options.hash_mask;
}

static uint64_t hash_block(const struct prefix_tree *t, const struct prefix_node *parent,
                           const int32_t *tokens)
{
    struct {
        uint64_t parent;
        int32_t tokens[PAGE];
    } key = {.parent = parent->hash};
    memcpy(key.tokens, tokens, sizeof key.tokens);
    return hash_bytes(&key, sizeof key) & t->options.hash_mask;
}

static struct prefix_node **bucket_of(const struct prefix_tree *t, uint64_t hash)
{
    return &t->buckets[hash & (t->n_buckets - 1)];
}

static void insert_hashed(struct prefix_tree *t, struct prefix_node *node)
{
    struct prefix_node **bucket = bucket_of(t, node->hash);
    node->next_hashed = *bucket;
    *bucket = node;
    t->n_hashed++;
}

static void remove_hashed(struct prefix_tree *t, struct prefix_node *node)
{
    struct prefix_node **at = bucket_of(t, node->hash);
    while (*at != node)
        at = &(*at)->next_hashed;
    *at = node->next_hashed;
    t->n_hashed--;
}

static int make_buckets(struct prefix_tree *t, size_t n_buckets, struct err *e)
{
    struct prefix_node **old = t->buckets;
    const size_t n_old = t->n_buckets;
    struct prefix_node **buckets = calloc(n_buckets, sizeof buckets[0]);
    if (!buckets)
        return ERR_SET(e, ERR_NOMEM, "no memory for a prefix tree of %zu blocks", n_buckets);
    t->buckets = buckets;
    t->n_buckets = n_buckets;
    t->n_hashed = 0;
    for (size_t i = 0; i < n_old; i++) {
        for (struct prefix_node *node = old[i], *next; node; node = next) {
            next = node->next_hashed;
            insert_hashed(t, node);
        }
    }
    free(old);
    return 0;
}

static struct prefix_node *find_root(const struct prefix_tree *t, const char *salt)
{
    struct prefix_node *node = *bucket_of(t, hash_root(t, salt));
    while (node && (node->parent || strcmp(node->salt, salt) != 0))
        node = node->next_hashed;
    return node;
}

struct prefix_node *prefix_nodes_find(const struct prefix_tree *t,
                                      const struct prefix_node *parent, const int32_t *tokens)
{
    const uint64_t hash = hash_block(t, parent, tokens);
    struct prefix_node *node = *bucket_of(t, hash);
    while (node &&
           (node->parent != parent || memcmp(node->tokens, tokens, sizeof node->tokens) != 0))
        node = node->next_hashed;
    return node;
}

static struct prefix_node *new_node(struct prefix_node *parent)
{
    struct prefix_node *node = calloc(1, sizeof *node);
    if (!node)
        return NULL;
    node->parent = parent;
    node->page = KVPOOL_NO_PAGE;
    node->victim = PREFIX_NO_VICTIM;
    return node;
}

static void free_node(struct prefix_node *node)
{
    if (!node)
        return;
    free(node->salt);
    free(node);
}

static bool is_claimed(const struct prefix_node *node)
{
    return node->n_wanted + node->n_held > 0;
}

static void add_spare(struct prefix_tree *t, struct prefix_node *node)
{
    node->next = t->spares;
    t->spares = node;
    t->n_spares++;
}

static struct prefix_node *take_spare(struct prefix_tree *t)
{
    struct prefix_node *node = t->spares;
    ASSERT(node);
    t->spares = node->next;
    t->n_spares--;
    return node;
}

int prefix_nodes_open(struct prefix_tree *t, struct err *e)
{
    const size_t n_pages = kvpool_pages(t->pool);
    size_t n_buckets = 64;
    while (n_buckets < n_pages)
        n_buckets *= 2;
    TRY(make_buckets(t, n_buckets, e));
    t->by_page = calloc(n_pages, sizeof t->by_page[0]);
    t->victims = calloc(n_pages, sizeof t->victims[0]);
    if (!t->by_page || !t->victims)
        return ERR_SET(e, ERR_NOMEM, "no memory for a prefix tree of %zu pages", n_pages);
    for (size_t i = 0; i < n_pages; i++) {
        struct prefix_node *node = new_node(NULL);
        if (!node)
            return ERR_SET(e, ERR_NOMEM, "no memory for a prefix tree of %zu pages", n_pages);
        add_spare(t, node);
    }
    return 0;
}

void prefix_nodes_close(struct prefix_tree *t)
{
    while (t->n_victims > 0)
        prefix_nodes_drop_page(t, t->victims[0]);
    ASSERT(t->n_hashed == 0 && t->n_kept == 0);
    while (t->n_spares > 0)
        free_node(take_spare(t));
    free(t->buckets);
    free(t->by_page);
    free(t->victims);
}

int prefix_nodes_want_root(struct prefix_tree *t, const char *salt, struct prefix_path *path,
                           struct err *e)
{
    struct prefix_node *root = find_root(t, salt);
    if (!root) {
        root = new_node(NULL);
        if (root)
            root->salt = strdup(salt);
        if (!root || !root->salt) {
            free_node(root);
            return ERR_SET(e, ERR_NOMEM, "no memory for a salt");
        }
        root->hash = hash_root(t, salt);
        root->salt_hash = (uint32_t)hash_bytes(salt, strlen(salt));
        insert_hashed(t, root);
    }
    root->n_wanted++;
    path->root = root;
    return 0;
}

static void set_tokens(struct prefix_tree *t, struct prefix_node *node, const int32_t *tokens,
                       size_t n_tokens)
{
    memcpy(node->tokens, tokens, n_tokens * sizeof tokens[0]);
    node->n_tokens = (uint32_t)n_tokens;
    node->chain = prefix_seen_chain(node->parent->chain, tokens, n_tokens);
    if (n_tokens < PAGE)
        return;
    node->hash = hash_block(t, node->parent, tokens);
    insert_hashed(t, node);
}

int prefix_nodes_want_next(struct prefix_tree *t, const int32_t *tokens,
                           struct prefix_path *path, struct err *e)
{
    struct prefix_node *parent =
        path->n_nodes > 0 ? path->steps[path->n_nodes - 1].node : path->root;
    if (t->n_hashed >= t->n_buckets)
        TRY(make_buckets(t, 2 * t->n_buckets, e));
    struct prefix_node *node = prefix_nodes_find(t, parent, tokens);
    if (!node || !is_claimed(node)) {
        struct prefix_node *fresh = new_node(parent);
        if (!fresh)
            return ERR_SET(e, ERR_NOMEM, "no memory for a prompt's prefix");
        if (!node) {
            node = fresh;
            node->salt_hash = parent->salt_hash;
            set_tokens(t, node, tokens, PAGE);
        } else { /* no longer kept by its page alone: a spare node in its place */
            add_spare(t, fresh);
            t->n_kept--;
        }
    }
    path->steps[path->n_nodes].node = node;
    prefix_queue_join(path, path->n_nodes++);
    prefix_nodes_update(t, node);
    return 0;
}

static void forget(struct prefix_tree *t, struct prefix_node *node)
{
    remove_hashed(t, node);
    free_node(node);
}

void prefix_nodes_unwant_root(struct prefix_tree *t, struct prefix_path *path)
{
    struct prefix_node *root = path->root;
    ASSERT(root->n_wanted > 0);
    root->n_wanted--;
    if (root->n_wanted == 0 && !root->first_child)
        forget(t, root);
}

void prefix_nodes_unwant_last(struct prefix_tree *t, struct prefix_path *path)
{
    struct prefix_node *node = path->steps[--path->n_nodes].node;
    prefix_queue_leave(path, path->n_nodes);
    prefix_nodes_update(t, node);
    if (is_claimed(node))
        return;
    if (node->page == KVPOOL_NO_PAGE) {
        forget(t, node);
        return;
    }
    t->n_kept++;
    free_node(take_spare(t));
}

struct prefix_node *prefix_nodes_add_leaf(struct prefix_tree *t, struct prefix_node *parent)
{
    struct prefix_node *leaf = take_spare(t);
    *leaf = (struct prefix_node){.parent = parent,
                                 .salt_hash = parent->salt_hash,
                                 .page = KVPOOL_NO_PAGE,
                                 .victim = PREFIX_NO_VICTIM};
    t->n_kept++;
    return leaf;
}

static void link_child(struct prefix_node *node)
{
    struct prefix_node *parent = node->parent;
    node->previous = NULL;
    node->next = parent->first_child;
    if (node->next)
        node->next->previous = node;
    parent->first_child = node;
}

static void unlink_child(struct prefix_node *node)
{
    if (node->previous)
        node->previous->next = node->next;
    else
        node->parent->first_child = node->next;
    if (node->next)
        node->next->previous = node->previous;
    node->next = node->previous = NULL;
}

static void use(struct prefix_tree *t, struct prefix_node *node)
{
    node->last_used = t->n_uses;
    unlink_child(node);
    link_child(node);
    prefix_nodes_update(t, node);
}

void prefix_nodes_grow_leaf(struct prefix_tree *t, struct prefix_node *leaf,
                            const int32_t *tokens, size_t n_tokens)
{
    ASSERT(leaf->n_tokens < PAGE && leaf->n_tokens <= n_tokens);
    set_tokens(t, leaf, tokens, n_tokens);
    if (leaf->page != KVPOOL_NO_PAGE)
        use(t, leaf);
}

void prefix_nodes_set_page(struct prefix_tree *t, struct prefix_node *node, int32_t page)
{
    ASSERT(node->page == KVPOOL_NO_PAGE && !t->by_page[page]);
    kvpool_cache_page(t->pool, page);
    node->page = page;
    t->by_page[page] = node;
    link_child(node);
    prefix_nodes_update(t, node->parent);
    use(t, node);
}

void prefix_nodes_drop_page(struct prefix_tree *t, struct prefix_node *node)
{
    struct prefix_node *parent = node->parent;
    ASSERT(!node->first_child);
    t->by_page[node->page] = NULL;
    kvpool_uncache_page(t->pool, node->page);
    node->page = KVPOOL_NO_PAGE;
    unlink_child(node);
    prefix_nodes_update(t, node);
    if (!is_claimed(node)) {
        if (node->n_tokens == PAGE)
            remove_hashed(t, node);
        t->n_kept--;
        add_spare(t, node);
    }
    prefix_nodes_update(t, parent);
    if (!parent->parent && !parent->first_child && !is_claimed(parent))
        forget(t, parent);
}

void prefix_nodes_hold(struct prefix_tree *t, struct prefix_node *node)
{
    kvpool_share_page(t->pool, node->page);
    use(t, node);
}

void prefix_nodes_release(struct prefix_tree *t, struct prefix_node *node)
{
    kvpool_release_page(t->pool, node->page);
    use(t, node);
}

static bool is_consistent(const struct prefix_tree *t, const struct prefix_node *node)
{
    const bool is_victim = node->victim != PREFIX_NO_VICTIM;
    if (is_victim != can_go(t, node))
        return false;
    if (is_victim && (node->victim >= t->n_victims || t->victims[node->victim] != node))
        return false;
    const struct prefix_node *parent = node->parent;
    if (!parent)
        return node->page == KVPOOL_NO_PAGE && (is_claimed(node) || node->first_child);
    if (!prefix_queue_check(node) || node->n_coming > node->n_held || node->n_tokens == 0 ||
        node->n_tokens > PAGE)
        return false;
    if (node->n_tokens < PAGE && (is_claimed(node) || node->first_child))
        return false;
    if (node->page == KVPOOL_NO_PAGE)
        return is_claimed(node) && !node->first_child;
    if (t->by_page[node->page] != node || !kvpool_is_cached(t->pool, node->page))
        return false;
    if (!parent->parent)
        return true;
    return parent->n_tokens == PAGE && parent->page != KVPOOL_NO_PAGE &&
           (kvpool_is_idle(t->pool, node->page) || !kvpool_is_idle(t->pool, parent->page));
}

/* Every node that can be found by its hash. */
static bool check_hashed(const struct prefix_tree *t)
{
    size_t n_hashed = 0;
    for (size_t i = 0; i < t->n_buckets; i++) {
        for (const struct prefix_node *node = t->buckets[i]; node; node = node->next_hashed) {
            n_hashed++;
            if (bucket_of(t, node->hash) != &t->buckets[i] || !is_consistent(t, node))
                return false;
            if (node->parent && prefix_nodes_find(t, node->parent, node->tokens) != node)
                return false;
            if (!node->parent && find_root(t, node->salt) != node)
                return false;
        }
    }
    return n_hashed == t->n_hashed;
}

static bool is_child(const struct prefix_node *parent, const struct prefix_node *node)
{
    const struct prefix_node *child = parent->first_child;
    while (child && child != node)
        child = child->next;
    return child == node;
}

/* Every node with a page. */
static bool check_paged(const struct prefix_tree *t)
{
    size_t n_kept = 0, n_victims = 0;
    for (size_t page = 0; page < kvpool_pages(t->pool); page++) {
        const struct prefix_node *node = t->by_page[page];
        if (kvpool_is_cached(t->pool, (int32_t)page) != (node != NULL))
            return false;
        if (!node)
            continue;
        if (node->page != (int32_t)page || !is_consistent(t, node) ||
            !is_child(node->parent, node))
            return false;
        n_kept += !is_claimed(node);
        n_victims += node->victim != PREFIX_NO_VICTIM;
    }
    return n_kept == t->n_kept && n_victims == t->n_victims;
}

bool prefix_nodes_check(const struct prefix_tree *t)
{
    for (size_t i = 1; i < t->n_victims; i++)
        if (goes_before(t, t->victims[i], t->victims[(i - 1) / 2]))
            return false;
    size_t n_spares = 0;
    for (const struct prefix_node *node = t->spares; node; node = node->next)
        n_spares++;
    return n_spares == t->n_spares && t->n_spares + t->n_kept == kvpool_pages(t->pool) &&
           check_hashed(t) && check_paged(t);
}
