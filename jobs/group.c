#include "group_int.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "base/check.h"
#include "base/limits.h"

/* ---- the window ---- */

int group_open(const struct group_limits *limits, struct group_window **out, struct err *e)
{
    ASSERT(limits->jobs_max > 0);
    ASSERT(limits->open_max > 0);
    ASSERT(limits->max_wait_us >= 0);
    struct group_window *w = calloc(1, sizeof *w);
    if (!w)
        return ERR_SET(e, ERR_NOMEM, "no memory for the window of jobs");
    w->limits = *limits;
    if (!group_trie_init(&w->trie, limits->open_max + 1)) {
        group_close(w);
        return ERR_SET(e, ERR_NOMEM, "no memory for %zu groups", limits->open_max);
    }
    *out = w;
    return 0;
}

void group_close(struct group_window *w)
{
    if (!w)
        return;
    while (w->n_jobs > 0)
        group_take_any(w);
    group_trie_fini(&w->trie);
    group_heap_fini(&w->by_age);
    group_heap_fini(&w->by_deadline);
    free(w->path);
    free(w);
}

bool group_has_room(const struct group_window *w)
{
    const size_t n = w->n_jobs;
    if (n == 0)
        return true;
    return n < w->limits.jobs_max && w->n_tokens + w->n_tokens / n <= w->limits.tokens_max &&
           w->n_bytes + w->n_bytes / n <= w->limits.bytes_max;
}

size_t group_length(const struct group_window *w)
{
    return w->n_jobs;
}

/* ---- adding ---- */

/* The job's way through the trie: the key of its tree, then a chained hash for each full block.
 * Priorities have trees of their own; the hashes of the blocks do not depend on them. Without
 * grouping, all jobs of a priority end at the root. */
static bool make_path(struct group_window *w, const struct group_job *job, size_t *n_path)
{
    const size_t n_blocks = w->limits.enabled ? job->n_tokens / KV_PAGE_TOKENS : 0;
    if (w->path_capacity < n_blocks + 1) {
        uint64_t *path = realloc(w->path, 2 * (n_blocks + 1) * sizeof path[0]);
        if (!path)
            return false;
        w->path = path;
        w->path_capacity = 2 * (n_blocks + 1);
    }
    const char *salt = w->limits.enabled && job->salt ? job->salt : "";
    uint64_t hash = XXH3_64bits(salt, strlen(salt));
    w->path[0] = XXH3_64bits_withSeed(&job->priority, sizeof job->priority, hash);
    for (size_t i = 0; i < n_blocks; i++) {
        hash = XXH3_64bits_withSeed(job->tokens + i * KV_PAGE_TOKENS,
                                    KV_PAGE_TOKENS * sizeof job->tokens[0], hash);
        hash += hash == 0; /* 0 says "alone" in a pick */
        w->path[i + 1] = hash;
    }
    *n_path = n_blocks + 1;
    return true;
}

static struct group_entry *entry_new(const struct group_window *w, const struct group_job *job)
{
    struct group_entry *entry = calloc(1, sizeof *entry);
    if (entry)
        *entry = (struct group_entry){.seq = w->seq + 1,
                                      .n_tokens = job->n_tokens,
                                      .bytes = job->bytes,
                                      .priority = job->priority,
                                      .deadline_us = job->deadline_us,
                                      .added_us = job->added_us,
                                      .user = job->user};
    return entry;
}

int group_add(struct group_window *w, const struct group_job *job, struct err *e)
{
    size_t n_path;
    struct group_entry *entry = entry_new(w, job);
    if (!entry || !make_path(w, job, &n_path) || !group_due_reserve(w, w->n_jobs + 1) ||
        !group_trie_add(&w->trie, w->path, n_path, entry)) {
        free(entry);
        return ERR_SET(e, ERR_NOMEM, "no memory for one more job in the window");
    }
    w->seq++;
    w->n_jobs++;
    w->n_tokens += entry->n_tokens;
    w->n_bytes += entry->bytes;
    if (!group_trie_slot_of(entry->node))
        group_due_add(w, entry);
    return 0;
}

/* ---- taking out ---- */

static void *take(struct group_window *w, struct group_entry *entry)
{
    void *user = entry->user;
    if (!group_trie_slot_of(entry->node))
        group_due_remove(w, entry);
    group_trie_remove(&w->trie, entry);
    w->n_jobs--;
    w->n_tokens -= entry->n_tokens;
    w->n_bytes -= entry->bytes;
    free(entry);
    return user;
}

void *group_take_any(struct group_window *w)
{
    for (size_t i = 0; i < w->trie.n_slots; i++)
        if (w->trie.slots[i].node)
            group_due_close(w, &w->trie.slots[i]);
    /* The last of the heap is the cheapest to take out. */
    return w->n_jobs ? take(w, w->by_age.items[w->n_jobs - 1]) : NULL;
}

static void pick(struct group_window *w, struct group_entry *entry, bool aged,
                 struct group_pick *out)
{
    *out = (struct group_pick){.group_jobs = 1, .aged = aged};
    struct group_slot *slot = group_trie_slot_of(entry->node);
    if (slot) {
        slot->left--;
        out->group = group_node_hash(slot->node);
        out->group_jobs = (size_t)slot->node->n_jobs;
        out->shared_tokens = group_node_tokens(slot->node);
    }
    out->user = take(w, entry);
}

static void reopen(struct group_window *w, struct group_slot *slot, struct group_node *group)
{
    if (slot->node)
        group_due_close(w, slot);
    group_due_open(w, group, slot);
}

/* ---- jobs in turn ---- */

static int64_t priority_of(const struct group_choice *c)
{
    return c->group ? c->group->priority : c->alone->priority;
}

/* The share of its tokens that the choice saves when n_warm of a prompt are there already. */
static double saved_by(const struct group_choice *c, size_t n_warm)
{
    if (!c->group)
        return c->alone->n_tokens ? (double)n_warm / (double)c->alone->n_tokens : 0;
    const size_t own = group_node_tokens(c->group);
    return c->group->saved + (double)(n_warm < own ? n_warm : own) / (double)c->group->n_tokens;
}

/* The nearest node above what the slot read last where jobs wait; NULL: none of use. */
static struct group_node *find_near(const struct group_slot *slot)
{
    struct group_node *node = slot->at;
    while (node && node->parent && node->n_jobs == 0)
        node = node->parent;
    if (!node || group_node_tokens(node) == 0 || group_trie_slot_of(node))
        return NULL;
    return node;
}

/* What a free slot should run: the best there is, or what goes on from the prefix that its last
 * group has left in the cache, when that saves as much. */
static struct group_choice choose(const struct group_window *w, const struct group_slot *slot)
{
    const struct group_choice best = group_trie_choose(w->trie.top);
    struct group_node *near = find_near(slot);
    if (!near || near->priority < priority_of(&best))
        return best;
    struct group_choice stay = {.group = group_trie_cut(near)};
    if (!stay.group)
        stay = group_trie_choose(near);
    return saved_by(&stay, group_node_tokens(near)) >= saved_by(&best, 0) ? stay : best;
}

/* The waiting job of the highest priority is below the top's first child. */
static bool waits_at(const struct group_window *w, int64_t priority)
{
    const struct group_node *top = w->trie.top;
    return top->n_jobs > 0 &&
           ((const struct group_node *)top->children.items[0])->priority == priority;
}

static int64_t highest_priority(const struct group_window *w)
{
    const struct group_node *top = w->trie.top;
    int64_t highest = INT64_MIN;
    if (top->n_jobs > 0)
        highest = ((const struct group_node *)top->children.items[0])->priority;
    for (size_t i = 0; i < w->trie.n_slots; i++) {
        const struct group_node *open = w->trie.slots[i].node;
        if (open && open->priority > highest)
            highest = open->priority;
    }
    return highest;
}

/* A job of that priority, or NULL when the slot has none to offer. */
static struct group_entry *offer(struct group_window *w, struct group_slot *slot,
                                 int64_t priority)
{
    if (slot->node && group_trie_outgrown(slot->node))
        group_due_close(w, slot);
    if (slot->node && slot->node->priority == priority)
        return group_trie_inside(slot);
    if (!waits_at(w, priority))
        return NULL;
    const struct group_choice c = choose(w, slot);
    if (c.alone)
        return c.alone; /* needs no slot */
    reopen(w, slot, c.group);
    return group_trie_inside(slot);
}

static struct group_entry *find_in_turn(struct group_window *w, int64_t priority)
{
    struct group_entry *entry = NULL;
    for (size_t i = 0; !entry && i < w->limits.open_max; i++) {
        entry = offer(w, &w->trie.slots[w->turn], priority);
        w->turn = (w->turn + 1) % w->limits.open_max;
    }
    ASSERT(entry);
    w->owed -= w->owed > 0;
    return entry;
}

/* ---- due jobs ---- */

static struct group_slot *extra_slot(const struct group_window *w)
{
    return &w->trie.slots[w->limits.open_max];
}

static bool runs_at(const struct group_slot *slot, int64_t priority)
{
    return slot->node && slot->node->priority == priority;
}

/* A group that jobs keep joining must not hold its slot for ever: having given out as many as
 * it had, it goes on only if nobody is due, a job of its own included. */
static void end_long_runs(struct group_window *w, int64_t now_us)
{
    for (size_t i = 0; i < w->trie.n_slots; i++) {
        struct group_slot *slot = &w->trie.slots[i];
        struct group_node *group = slot->node;
        if (!group || slot->left > 0)
            continue;
        group_due_close(w, slot);
        if (!group_due_find(w, highest_priority(w), now_us))
            group_due_open(w, group, slot);
    }
}

/* Whether jobs may go out of turn: not before the open groups have got back what earlier ones
 * took, for else an endless row of due jobs would hold them up for ever. */
static bool may_interrupt(struct group_window *w, int64_t priority)
{
    bool is_owed = false;
    for (size_t i = 0; i < w->limits.open_max; i++)
        is_owed |= runs_at(&w->trie.slots[i], priority);
    if (!is_owed)
        w->owed = 0;
    return w->owed == 0;
}

/* The slot for a due job's group, or NULL: it has to wait. */
static struct group_slot *find_place(struct group_window *w, int64_t priority)
{
    struct group_slot *lower = NULL;
    for (size_t i = 0; i < w->limits.open_max; i++) {
        struct group_slot *slot = &w->trie.slots[i];
        if (!slot->node)
            return slot;
        if (slot->node->priority < priority)
            lower = slot;
    }
    if (!runs_at(extra_slot(w), priority) && may_interrupt(w, priority))
        return extra_slot(w);
    return lower;
}

/* The due job that goes now, its group open; or NULL. */
static struct group_entry *find_due(struct group_window *w, int64_t priority, int64_t now_us)
{
    struct group_entry *entry = group_due_find(w, priority, now_us);
    if (!entry)
        return NULL;
    struct group_node *group = group_trie_cut(entry->node);
    if (!group && !may_interrupt(w, priority))
        return NULL;
    struct group_slot *slot = group ? find_place(w, priority) : NULL;
    if (group && !slot)
        return NULL;
    if (slot)
        reopen(w, slot, group);
    if (!slot || slot == extra_slot(w))
        w->owed++;
    return entry;
}

/* The next job of the extra group, which runs without a break; or NULL. */
static struct group_entry *find_extra(struct group_window *w, int64_t priority)
{
    struct group_slot *extra = extra_slot(w);
    if (extra->node && group_trie_outgrown(extra->node))
        group_due_close(w, extra);
    if (!runs_at(extra, priority))
        return NULL;
    w->owed++;
    return group_trie_inside(extra);
}

bool group_next(struct group_window *w, int64_t now_us, struct group_pick *out)
{
    if (w->n_jobs == 0)
        return false;
    end_long_runs(w, now_us);
    const int64_t priority = highest_priority(w);
    struct group_entry *entry = find_due(w, priority, now_us);
    const bool aged = entry != NULL;
    if (!entry)
        entry = find_extra(w, priority);
    if (!entry)
        entry = find_in_turn(w, priority);
    pick(w, entry, aged, out);
    return true;
}
