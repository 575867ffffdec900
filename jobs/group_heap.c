#include "group_heap.h"

#include <stdlib.h>

#include "base/check.h"

enum { CAPACITY_MIN = 4 };

bool group_heap_reserve(struct group_heap *h, size_t n)
{
    if (n <= h->capacity)
        return true;
    size_t capacity = h->capacity ? 2 * h->capacity : CAPACITY_MIN;
    if (capacity < n)
        capacity = n;
    void **items = realloc(h->items, capacity * sizeof items[0]);
    if (!items)
        return false;
    h->items = items;
    h->capacity = capacity;
    return true;
}

static void put(struct group_heap *h, const struct group_heap_kind *kind, void *item, size_t at)
{
    h->items[at] = item;
    *kind->place(item) = at;
}

static size_t move_up(struct group_heap *h, const struct group_heap_kind *kind, size_t at)
{
    void *item = h->items[at];
    while (at > 0 && kind->before(item, h->items[(at - 1) / 2])) {
        put(h, kind, h->items[(at - 1) / 2], at);
        at = (at - 1) / 2;
    }
    put(h, kind, item, at);
    return at;
}

static void move_down(struct group_heap *h, const struct group_heap_kind *kind, size_t at)
{
    void *item = h->items[at];
    for (;;) {
        size_t child = 2 * at + 1;
        if (child + 1 < h->n && kind->before(h->items[child + 1], h->items[child]))
            child++;
        if (child >= h->n || !kind->before(h->items[child], item))
            break;
        put(h, kind, h->items[child], at);
        at = child;
    }
    put(h, kind, item, at);
}

void group_heap_moved(struct group_heap *h, const struct group_heap_kind *kind, size_t at)
{
    ASSERT(at < h->n);
    move_down(h, kind, move_up(h, kind, at));
}

void group_heap_push(struct group_heap *h, const struct group_heap_kind *kind, void *item)
{
    ASSERT(h->n < h->capacity);
    put(h, kind, item, h->n++);
    move_up(h, kind, h->n - 1);
}

void group_heap_remove(struct group_heap *h, const struct group_heap_kind *kind, size_t at)
{
    ASSERT(at < h->n);
    void *last = h->items[--h->n];
    if (at == h->n)
        return;
    put(h, kind, last, at);
    group_heap_moved(h, kind, at);
}

bool group_heap_check(const struct group_heap *h, const struct group_heap_kind *kind)
{
    if (h->n > h->capacity)
        return false;
    for (size_t i = 0; i < h->n; i++) {
        if (*kind->place(h->items[i]) != i)
            return false;
        if (i > 0 && kind->before(h->items[i], h->items[(i - 1) / 2]))
            return false;
    }
    return true;
}

void group_heap_fini(struct group_heap *h)
{
    free(h->items);
    *h = (struct group_heap){0};
}
