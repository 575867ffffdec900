/* Which jobs must not wait longer. The heaps hold the jobs that are in no open group. */
#include "group_int.h"

#include "base/check.h"

enum { DEADLINE_NEAR_US = 60000000 }; /* where no max_wait_us says what is near */

static bool older(const void *left, const void *right)
{
    const struct group_entry *a = left;
    const struct group_entry *b = right;
    if (a->priority != b->priority)
        return a->priority > b->priority;
    return a->added_us != b->added_us ? a->added_us < b->added_us : a->seq < b->seq;
}

static bool due_earlier(const void *left, const void *right)
{
    const struct group_entry *a = left;
    const struct group_entry *b = right;
    if (a->priority != b->priority)
        return a->priority > b->priority;
    return a->deadline_us != b->deadline_us ? a->deadline_us < b->deadline_us : a->seq < b->seq;
}

static size_t *place_age(void *item)
{
    return &((struct group_entry *)item)->place_age;
}

static size_t *place_deadline(void *item)
{
    return &((struct group_entry *)item)->place_deadline;
}

const struct group_heap_kind group_by_age = {older, place_age};
const struct group_heap_kind group_by_deadline = {due_earlier, place_deadline};

bool group_due_reserve(struct group_window *w, size_t n)
{
    return group_heap_reserve(&w->by_age, n) && group_heap_reserve(&w->by_deadline, n);
}

void group_due_add(struct group_window *w, struct group_entry *entry)
{
    group_heap_push(&w->by_age, &group_by_age, entry);
    if (entry->deadline_us != 0)
        group_heap_push(&w->by_deadline, &group_by_deadline, entry);
}

void group_due_remove(struct group_window *w, struct group_entry *entry)
{
    group_heap_remove(&w->by_age, &group_by_age, entry->place_age);
    if (entry->deadline_us != 0)
        group_heap_remove(&w->by_deadline, &group_by_deadline, entry->place_deadline);
}

/* ---- groups that open and close ---- */

/* The next node of the group at root, parents first; NULL after the last. */
static struct group_node *next_of_group(const struct group_node *root, struct group_node *node)
{
    size_t i = 0;
    for (;;) {
        for (; i < node->children.n; i++) {
            struct group_node *child = node->children.items[i];
            if (!child->slot) /* an open child's jobs are another group */
                return child;
        }
        if (node == root)
            return NULL;
        i = node->place + 1;
        node = node->parent;
    }
}

static void for_each_job(struct group_window *w, struct group_node *root,
                         void (*act)(struct group_window *w, struct group_entry *entry))
{
    if (group_trie_slot_of(root->parent))
        return; /* its jobs are in an open group before and after */
    for (struct group_node *node = root; node; node = next_of_group(root, node))
        for (struct group_entry *entry = node->first; entry; entry = entry->next)
            act(w, entry);
}

void group_due_open(struct group_window *w, struct group_node *group, struct group_slot *slot)
{
    for_each_job(w, group, group_due_remove);
    group_trie_open(&w->trie, group, slot);
}

void group_due_close(struct group_window *w, struct group_slot *slot)
{
    struct group_node *group = slot->node;
    ASSERT(group->n_jobs > 0);
    group_trie_close(slot);
    for_each_job(w, group, group_due_add);
}

/* ---- who is due ---- */

/* Deadlines come from jobs and may be anything. */
static int64_t add_capped(int64_t a, int64_t b)
{
    int64_t sum;
    if (__builtin_add_overflow(a, b, &sum))
        return a < 0 ? INT64_MIN : INT64_MAX;
    return sum;
}

static struct group_entry *first_of(const struct group_heap *h, int64_t priority)
{
    struct group_entry *entry = h->n ? h->items[0] : NULL;
    return entry && entry->priority == priority ? entry : NULL;
}

struct group_entry *group_due_find(const struct group_window *w, int64_t priority,
                                   int64_t now_us)
{
    const int64_t max_wait_us = w->limits.max_wait_us;
    const int64_t near_us = max_wait_us ? max_wait_us : DEADLINE_NEAR_US;
    struct group_entry *entry = first_of(&w->by_deadline, priority);
    if (entry && entry->deadline_us < add_capped(now_us, near_us))
        return entry;
    entry = first_of(&w->by_age, priority);
    if (entry && max_wait_us && entry->added_us <= add_capped(now_us, -max_wait_us))
        return entry;
    return NULL;
}
