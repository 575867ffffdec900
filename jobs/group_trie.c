#include "group_int.h"

#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/limits.h"

enum { TABLE_MIN = 64 };

/* ---- one node ---- */

size_t group_node_tokens(const struct group_node *node)
{
    /* The first hash on the way is the key of salt and priority. */
    return node->depth > 1 ? (node->depth - 1) * KV_PAGE_TOKENS : 0;
}

uint64_t group_node_hash(const struct group_node *node)
{
    return node->edge[node->n_edge - 1];
}

/* What the parent sees of it; negative: nothing waits here. */
static double rank_of(const struct group_node *node)
{
    return node->slot || node->n_jobs == 0 ? -1 : node->best;
}

static bool node_before(const void *left, const void *right)
{
    const struct group_node *a = left;
    const struct group_node *b = right;
    const double rank_a = rank_of(a), rank_b = rank_of(b);
    if ((rank_a < 0) != (rank_b < 0))
        return rank_b < 0;
    if (a->priority != b->priority)
        return a->priority > b->priority;
    if (rank_a < rank_b || rank_a > rank_b)
        return rank_a > rank_b;
    if (a->opened != b->opened)
        return a->opened > b->opened;
    return a->born < b->born;
}

static size_t *node_place(void *item)
{
    return &((struct group_node *)item)->place;
}

const struct group_heap_kind group_node_kind = {node_before, node_place};

static struct group_node *first_child(const struct group_node *node)
{
    return node->children.n ? node->children.items[0] : NULL;
}

void group_node_rate(const struct group_node *node, double *saved, double *best)
{
    *saved = 0;
    if (node->n_jobs > 1 && group_node_tokens(node) > 0)
        *saved = (double)(node->n_jobs - 1) * (double)group_node_tokens(node) /
                 (double)node->n_tokens;
    const struct group_node *child = first_child(node);
    *best = child && rank_of(child) > *saved ? rank_of(child) : *saved;
}

/* Counts jobs in (or out) from the node up to the open node whose group they are in, or to the
 * top; returns that one. */
static struct group_node *count(struct group_node *node, int64_t n_jobs, int64_t n_tokens)
{
    for (;; node = node->parent) {
        node->n_jobs += n_jobs;
        node->n_tokens += n_tokens;
        ASSERT(node->n_jobs >= 0);
        group_node_rate(node, &node->saved, &node->best);
        if (!node->parent)
            return node;
        group_heap_moved(&node->parent->children, &group_node_kind, node->place);
        if (node->slot)
            return node;
    }
}

static struct group_node *node_new(size_t n_edge)
{
    struct group_node *node = calloc(1, sizeof *node + n_edge * sizeof node->edge[0]);
    if (node)
        node->n_edge = n_edge;
    return node;
}

static void node_free(struct group_node *node)
{
    if (!node)
        return;
    group_heap_fini(&node->children);
    free(node);
}

/* ---- the table of children ---- */

/* Priorities have separate trees of the same hashes, so the parent is part of the key. */
static size_t home_of(const struct group_trie *t, const struct group_node *parent,
                      uint64_t hash)
{
    return (size_t)(hash ^ (parent->born * 0x9e3779b97f4a7c15u)) & (t->capacity - 1);
}

static size_t slot_of(const struct group_trie *t, const struct group_node *parent,
                      uint64_t hash)
{
    size_t at = home_of(t, parent, hash);
    while (t->table[at] && (t->table[at]->parent != parent || t->table[at]->edge[0] != hash))
        at = (at + 1) & (t->capacity - 1);
    return at;
}

struct group_node *group_trie_find(const struct group_trie *t, const struct group_node *parent,
                                   uint64_t hash)
{
    return t->table[slot_of(t, parent, hash)];
}

static void table_put(struct group_trie *t, struct group_node *node)
{
    t->table[slot_of(t, node->parent, node->edge[0])] = node;
    t->n_table++;
}

/* Closes the gap, so that no search stops at it too early. */
static void table_remove(struct group_trie *t, const struct group_node *node)
{
    const size_t mask = t->capacity - 1;
    size_t gap = slot_of(t, node->parent, node->edge[0]);
    ASSERT(t->table[gap] == node);
    for (size_t at = (gap + 1) & mask; t->table[at]; at = (at + 1) & mask) {
        const size_t home = home_of(t, t->table[at]->parent, t->table[at]->edge[0]);
        if (((at - home) & mask) < ((at - gap) & mask))
            continue; /* between its home and its place there is no gap */
        t->table[gap] = t->table[at];
        gap = at;
    }
    t->table[gap] = NULL;
    t->n_table--;
}

static bool table_reserve(struct group_trie *t, size_t n)
{
    if (2 * n <= t->capacity)
        return true;
    struct group_trie larger = *t;
    larger.capacity = 2 * t->capacity;
    larger.n_table = 0;
    larger.table = calloc(larger.capacity, sizeof larger.table[0]);
    if (!larger.table)
        return false;
    for (size_t i = 0; i < t->capacity; i++)
        if (t->table[i])
            table_put(&larger, t->table[i]);
    free(t->table);
    *t = larger;
    return true;
}

bool group_trie_init(struct group_trie *t, size_t n_slots)
{
    *t = (struct group_trie){.capacity = TABLE_MIN, .n_slots = n_slots};
    t->top = node_new(0);
    t->table = calloc(t->capacity, sizeof t->table[0]);
    t->slots = calloc(n_slots, sizeof t->slots[0]);
    return t->top && t->table && t->slots;
}

void group_trie_fini(struct group_trie *t)
{
    ASSERT(t->n_table == 0);
    node_free(t->top);
    free(t->table);
    free(t->slots);
    *t = (struct group_trie){0};
}

/* ---- adding ---- */

/* Where a path leaves the trie: n_used hashes lead to the end of node, or n_kept hashes into
 * the edge of its child inner. */
struct spot {
    struct group_node *node;
    struct group_node *inner; /* NULL: at the end of node */
    size_t n_kept;
    size_t n_used;
};

static struct spot find_spot(const struct group_trie *t, const uint64_t *path, size_t n_path)
{
    struct spot s = {.node = t->top};
    while (s.n_used < n_path) {
        struct group_node *child = group_trie_find(t, s.node, path[s.n_used]);
        if (!child)
            break;
        size_t n = 0;
        while (n < child->n_edge && s.n_used + n < n_path &&
               child->edge[n] == path[s.n_used + n])
            n++;
        s.n_used += n;
        if (n < child->n_edge) {
            s.inner = child;
            s.n_kept = n;
            break;
        }
        s.node = child;
    }
    return s;
}

/* The tick at which a group of these blocks was opened, if that was lately. */
static uint64_t opened_lately(const struct group_trie *t, uint64_t hash)
{
    for (uint64_t tick = t->tick; tick > 0 && tick + GROUP_RECENT > t->tick; tick--)
        if (t->recent[tick % GROUP_RECENT] == hash)
            return tick;
    return 0;
}

static void hang_in(struct group_trie *t, struct group_node *node, struct group_node *parent)
{
    node->parent = parent;
    node->depth = parent->depth + node->n_edge;
    node->opened = opened_lately(t, group_node_hash(node));
    group_heap_push(&parent->children, &group_node_kind, node);
    table_put(t, node);
}

/* Puts upper between the inner node and its parent; the inner one keeps its jobs, its slot and
 * whoever points to it. */
static void split(struct group_trie *t, struct group_node *inner, struct group_node *upper)
{
    struct group_node *parent = inner->parent;
    const uint64_t opened = inner->opened;
    group_heap_remove(&parent->children, &group_node_kind, inner->place);
    table_remove(t, inner);
    memcpy(upper->edge, inner->edge, upper->n_edge * sizeof upper->edge[0]);
    inner->n_edge -= upper->n_edge;
    memmove(inner->edge, inner->edge + upper->n_edge, inner->n_edge * sizeof inner->edge[0]);
    upper->priority = inner->priority;
    upper->born = inner->born;
    hang_in(t, upper, parent);
    hang_in(t, inner, upper);
    inner->opened = opened;
    if (!inner->slot) {
        upper->n_jobs = inner->n_jobs;
        upper->n_tokens = inner->n_tokens;
    }
    group_node_rate(upper, &upper->saved, &upper->best);
    group_heap_moved(&parent->children, &group_node_kind, upper->place);
}

static void append(struct group_node *node, struct group_entry *entry)
{
    entry->node = node;
    entry->prev = node->last;
    entry->next = NULL;
    *(node->last ? &node->last->next : &node->first) = entry;
    node->last = entry;
}

/* What adding may need; both may stay NULL. */
struct fresh {
    struct group_node *upper, *leaf;
};

static bool prepare(struct group_trie *t, const struct spot *s, size_t n_path,
                    struct fresh *fresh)
{
    const bool needs_leaf = s->n_used < n_path;
    if (s->inner && !(fresh->upper = node_new(s->n_kept)))
        return false;
    if (needs_leaf && !(fresh->leaf = node_new(n_path - s->n_used)))
        return false;
    struct group_node *above = s->inner ? fresh->upper : s->node;
    return group_heap_reserve(&above->children, above->children.n + 2) &&
           table_reserve(t, t->n_table + 2);
}

bool group_trie_add(struct group_trie *t, const uint64_t *path, size_t n_path,
                    struct group_entry *entry)
{
    ASSERT(n_path > 0);
    const struct spot s = find_spot(t, path, n_path);
    struct fresh fresh = {0};
    if (!prepare(t, &s, n_path, &fresh)) {
        node_free(fresh.upper);
        node_free(fresh.leaf);
        return false;
    }
    struct group_node *node = s.node;
    if (s.inner) {
        split(t, s.inner, fresh.upper);
        node = fresh.upper;
    }
    if (fresh.leaf) {
        fresh.leaf->priority = entry->priority;
        fresh.leaf->born = entry->seq;
        memcpy(fresh.leaf->edge, path + s.n_used, fresh.leaf->n_edge * sizeof path[0]);
        hang_in(t, fresh.leaf, node);
        node = fresh.leaf;
    }
    append(node, entry);
    count(node, 1, (int64_t)entry->n_tokens);
    return true;
}

/* ---- removing ---- */

static void unlink_entry(struct group_entry *entry)
{
    struct group_node *node = entry->node;
    *(entry->prev ? &entry->prev->next : &node->first) = entry->next;
    *(entry->next ? &entry->next->prev : &node->last) = entry->prev;
}

/* Frees the node and what is above it, as far as they are empty. */
static void prune(struct group_trie *t, struct group_node *node)
{
    while (node->parent && !node->first && node->children.n == 0) {
        struct group_node *parent = node->parent;
        ASSERT(!node->slot);
        group_heap_remove(&parent->children, &group_node_kind, node->place);
        table_remove(t, node);
        for (size_t i = 0; i < t->n_slots; i++)
            if (t->slots[i].at == node)
                t->slots[i].at = parent;
        node_free(node);
        node = parent;
    }
}

void group_trie_remove(struct group_trie *t, struct group_entry *entry)
{
    unlink_entry(entry);
    struct group_node *counted = count(entry->node, -1, -(int64_t)entry->n_tokens);
    if (counted->slot && counted->n_jobs == 0)
        group_trie_close(counted->slot);
    prune(t, entry->node);
    entry->node = NULL;
}

/* ---- groups ---- */

struct group_slot *group_trie_slot_of(const struct group_node *node)
{
    while (node && !node->slot)
        node = node->parent;
    return node ? node->slot : NULL;
}

/* A node that saves nearly what the best one below does is the better group: it is larger, and
 * runs depth first anyway. A system prompt above many documents is far from that. */
static bool is_group(const struct group_node *node)
{
    return node->saved > 0 && 4 * node->saved >= 3 * node->best;
}

bool group_trie_outgrown(const struct group_node *node)
{
    return 2 * node->saved < node->best;
}

struct group_node *group_trie_cut(struct group_node *node)
{
    struct group_node *cut = NULL;
    for (; node; node = node->parent)
        if (is_group(node))
            cut = node;
    return cut;
}

/* The first of jobs that share nothing. */
static struct group_entry *oldest_below(const struct group_node *node)
{
    for (;;) {
        const struct group_node *child = first_child(node);
        if (child && rank_of(child) < 0)
            child = NULL;
        if (node->first && (!child || node->first->seq < child->born))
            return node->first;
        ASSERT(child);
        node = child;
    }
}

struct group_choice group_trie_choose(struct group_node *node)
{
    ASSERT(node->n_jobs > 0);
    while (!is_group(node) && node->best > 0)
        node = first_child(node);
    if (is_group(node))
        return (struct group_choice){.group = node};
    return (struct group_choice){.alone = oldest_below(node)};
}

void group_trie_open(struct group_trie *t, struct group_node *node, struct group_slot *slot)
{
    ASSERT(!slot->node);
    ASSERT(!node->slot && node->parent && node->n_jobs > 0);
    slot->node = slot->at = node;
    slot->left = node->n_jobs;
    node->slot = slot;
    node->opened = ++t->tick;
    t->recent[t->tick % GROUP_RECENT] = group_node_hash(node);
    group_heap_moved(&node->parent->children, &group_node_kind, node->place);
    count(node->parent, -node->n_jobs, -node->n_tokens);
}

void group_trie_close(struct group_slot *slot)
{
    struct group_node *node = slot->node;
    slot->node = NULL; /* at stays: what was read last is warm */
    node->slot = NULL;
    group_heap_moved(&node->parent->children, &group_node_kind, node->place);
    count(node->parent, node->n_jobs, node->n_tokens);
}

struct group_entry *group_trie_inside(struct group_slot *slot)
{
    struct group_node *node = slot->at;
    ASSERT(slot->node->n_jobs > 0);
    while (node != slot->node && node->n_jobs == 0)
        node = node->parent;
    while (!node->first)
        node = first_child(node);
    slot->at = node;
    return node->first;
}
