/* Walks a window: every count, key, place and link is worked out again and compared. */
#include "group_int.h"

/* ---- the trie ---- */

/* Parents before children; NULL after the last. */
static struct group_node *next_node(const struct group_node *node)
{
    if (node->children.n > 0)
        return node->children.items[0];
    while (node->parent && node->place + 1 == node->parent->children.n)
        node = node->parent;
    return node->parent ? node->parent->children.items[node->place + 1] : NULL;
}

/* Adds the jobs that end here. */
static bool check_entries(const struct group_node *node, int64_t *n_jobs, int64_t *n_tokens)
{
    const struct group_entry *prev = NULL;
    for (const struct group_entry *entry = node->first; entry; entry = entry->next) {
        if (entry->node != node || entry->prev != prev)
            return false;
        if (entry->priority != node->priority || (prev && prev->seq >= entry->seq))
            return false;
        *n_jobs += 1;
        *n_tokens += (int64_t)entry->n_tokens;
        prev = entry;
    }
    return node->last == prev;
}

static bool check_child(const struct group_node *node, const struct group_node *child)
{
    return child->parent == node && child->n_edge > 0 &&
           child->depth == node->depth + child->n_edge && (child->first || child->children.n) &&
           (!node->parent || child->priority == node->priority);
}

static bool same(double a, double b)
{
    return !(a < b) && !(a > b);
}

static bool check_node(const struct group_trie *t, const struct group_node *node)
{
    int64_t n_jobs = 0, n_tokens = 0;
    if (!check_entries(node, &n_jobs, &n_tokens) ||
        !group_heap_check(&node->children, &group_node_kind))
        return false;
    for (size_t i = 0; i < node->children.n; i++) {
        const struct group_node *child = node->children.items[i];
        if (!check_child(node, child) || group_trie_find(t, node, child->edge[0]) != child)
            return false;
        n_jobs += child->slot ? 0 : child->n_jobs;
        n_tokens += child->slot ? 0 : child->n_tokens;
    }
    double saved, best;
    group_node_rate(node, &saved, &best);
    return node->n_jobs == n_jobs && node->n_tokens == n_tokens && same(node->saved, saved) &&
           same(node->best, best) && (!node->slot || node->slot->node == node);
}

static bool is_below(const struct group_node *node, const struct group_node *above)
{
    while (node && node != above)
        node = node->parent;
    return node != NULL;
}

/* The place of the last job must be in the trie, and within the group while it is open. */
static bool check_slot(const struct group_trie *t, const struct group_slot *slot)
{
    const struct group_node *node = t->top;
    while (node && slot->at && node != slot->at)
        node = next_node(node);
    if (!node || !slot->node)
        return node != NULL;
    return slot->node->slot == slot && slot->node->n_jobs > 0 && is_below(slot->at, slot->node);
}

bool group_trie_check(const struct group_trie *t, size_t *n_jobs, size_t *n_tokens)
{
    size_t n_nodes = 0;
    int64_t jobs = 0, tokens = 0;
    for (const struct group_node *node = t->top; node; node = next_node(node)) {
        if (!check_node(t, node))
            return false;
        check_entries(node, &jobs, &tokens);
        n_nodes++;
    }
    for (size_t i = 0; i < t->n_slots; i++)
        if (!check_slot(t, &t->slots[i]))
            return false;
    *n_jobs = (size_t)jobs;
    *n_tokens = (size_t)tokens;
    return t->n_table + 1 == n_nodes && !t->top->slot;
}

/* ---- the window ---- */

/* The heaps hold the jobs that are in no open group, and no others. */
static bool check_due(const struct group_window *w, const struct group_node *node,
                      size_t *n_ages, size_t *n_deadlines)
{
    if (group_trie_slot_of(node))
        return true;
    for (const struct group_entry *entry = node->first; entry; entry = entry->next) {
        if (entry->place_age >= w->by_age.n || w->by_age.items[entry->place_age] != entry)
            return false;
        *n_ages += 1;
        if (entry->deadline_us == 0)
            continue;
        if (entry->place_deadline >= w->by_deadline.n ||
            w->by_deadline.items[entry->place_deadline] != entry)
            return false;
        *n_deadlines += 1;
    }
    return true;
}

static bool check_jobs(const struct group_window *w)
{
    size_t n_ages = 0, n_deadlines = 0, n_bytes = 0;
    for (const struct group_node *node = w->trie.top; node; node = next_node(node)) {
        if (!check_due(w, node, &n_ages, &n_deadlines))
            return false;
        for (const struct group_entry *entry = node->first; entry; entry = entry->next)
            n_bytes += entry->bytes;
    }
    return n_ages == w->by_age.n && n_deadlines == w->by_deadline.n && n_bytes == w->n_bytes;
}

bool group_check(const struct group_window *w)
{
    size_t n_jobs = 0, n_tokens = 0;
    return group_trie_check(&w->trie, &n_jobs, &n_tokens) && n_jobs == w->n_jobs &&
           n_tokens == w->n_tokens && group_heap_check(&w->by_age, &group_by_age) &&
           group_heap_check(&w->by_deadline, &group_by_deadline) && check_jobs(w);
}
