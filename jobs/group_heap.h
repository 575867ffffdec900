/*
 * A binary heap of pointers whose items know their places, so that any of them can be taken out
 * or moved when its key has changed. Zeroed is empty. Thread: one.
 */
#ifndef SHEAF_GROUP_HEAP_H
#define SHEAF_GROUP_HEAP_H

#include <stdbool.h>
#include <stddef.h>

struct group_heap {
    void **items; /* [0] goes first */
    size_t n;
    size_t capacity;
};

struct group_heap_kind {
    bool (*before)(const void *a, const void *b);
    size_t *(*place)(void *item); /* where the item keeps its index */
};

/* Room for n items in all, so that pushes cannot fail; false: out of memory. */
bool group_heap_reserve(struct group_heap *h, size_t n);
void group_heap_push(struct group_heap *h, const struct group_heap_kind *kind, void *item);
void group_heap_remove(struct group_heap *h, const struct group_heap_kind *kind, size_t at);
/* The key of the item there has changed. */
void group_heap_moved(struct group_heap *h, const struct group_heap_kind *kind, size_t at);
bool group_heap_check(const struct group_heap *h, const struct group_heap_kind *kind);
void group_heap_fini(struct group_heap *h); /* the items are not its own */

#endif
