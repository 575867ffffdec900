/*
 * The merge loop of byte-level BPE and of SentencePiece: take the best pair of neighbours
 * (lowest rank, ties leftmost) until none is left. A heap holds candidate pairs; a pair whose
 * symbols have changed since is stale and is dropped when it comes up. Each merge removes a
 * symbol and adds at most two pairs, so a piece of n symbols costs O(n log n) and the heap
 * never holds more than 2 n pairs: n - 1 at first, one more for each of n - 1 merges.
 */
#include "model/tokenizer_int.h"

#include <stdlib.h>

#include "base/check.h"

int merge_reserve(struct merge *m, size_t n_symbols, struct err *e)
{
    m->n_symbols = 0;
    m->n_heap = 0;
    if (n_symbols <= m->symbols_capacity)
        return 0;
    if (n_symbols > INT32_MAX / 4)
        return ERR_SET_FLAGS(e, ERR_LIMIT, ERR_JOB, "a text of %zu bytes is too long to encode",
                             n_symbols);
    const size_t capacity = n_symbols < 1024 ? 1024 : n_symbols;
    struct merge_symbol *symbols = realloc(m->symbols, capacity * sizeof *symbols);
    if (!symbols)
        return ERR_SET(e, ERR_NOMEM, "no memory to encode %zu symbols", n_symbols);
    m->symbols = symbols;
    struct merge_pair *heap = realloc(m->heap, 2 * capacity * sizeof *heap);
    if (!heap)
        return ERR_SET(e, ERR_NOMEM, "no memory to encode %zu symbols", n_symbols);
    m->heap = heap;
    m->heap_capacity = 2 * capacity;
    m->symbols_capacity = capacity;
    return 0;
}

void merge_fini(struct merge *m)
{
    free(m->symbols);
    free(m->heap);
    *m = (struct merge){0};
}

void merge_add_symbol(struct merge *m, size_t start, size_t length, int32_t id)
{
    ASSERT(m->n_symbols < m->symbols_capacity);
    const int32_t index = (int32_t)m->n_symbols++;
    m->symbols[index] = (struct merge_symbol){
        .start = (uint32_t)start,
        .length = (uint32_t)length,
        .id = id,
        .previous = index - 1,
        .next = TOKEN_NONE,
    };
    if (index > 0)
        m->symbols[index - 1].next = index;
}

static void heap_push(struct merge *m, struct merge_pair pair)
{
    ASSERT(m->n_heap < m->heap_capacity);
    size_t at = m->n_heap++;
    while (at > 0) {
        const size_t parent = (at - 1) / 2;
        if (m->heap[parent].order <= pair.order)
            break;
        m->heap[at] = m->heap[parent];
        at = parent;
    }
    m->heap[at] = pair;
}

static struct merge_pair heap_pop(struct merge *m)
{
    const struct merge_pair top = m->heap[0];
    const struct merge_pair last = m->heap[--m->n_heap];
    size_t at = 0;
    for (;;) {
        size_t child = 2 * at + 1;
        if (child >= m->n_heap)
            break;
        if (child + 1 < m->n_heap && m->heap[child + 1].order < m->heap[child].order)
            child++;
        if (last.order <= m->heap[child].order)
            break;
        m->heap[at] = m->heap[child];
        at = child;
    }
    m->heap[at] = last;
    return top;
}

static void push_pair(struct merge *m, int32_t left, merge_lookup *lookup, const void *context)
{
    if (left < 0 || m->symbols[left].next < 0)
        return;
    const struct merge_symbol *a = &m->symbols[left];
    const struct merge_symbol *b = &m->symbols[a->next];
    uint32_t rank;
    int32_t id;
    if (!lookup(context, a, b, &rank, &id))
        return;
    heap_push(m, (struct merge_pair){
                     .order = (uint64_t)rank << 32 | (uint32_t)left,
                     .left_bytes = a->length,
                     .right_bytes = b->length,
                     .id = id,
                 });
}

void merge_run(struct merge *m, merge_lookup *lookup, const void *context)
{
    for (size_t i = 0; i + 1 < m->n_symbols; i++)
        push_pair(m, (int32_t)i, lookup, context);
    while (m->n_heap > 0) {
        const struct merge_pair pair = heap_pop(m);
        const int32_t left = (int32_t)(pair.order & UINT32_MAX);
        struct merge_symbol *a = &m->symbols[left];
        /* A symbol's start never changes, so equal lengths mean equal texts. */
        if (a->length != pair.left_bytes || a->next < 0 ||
            m->symbols[a->next].length != pair.right_bytes)
            continue;
        struct merge_symbol *b = &m->symbols[a->next];
        a->id = pair.id;
        a->length += b->length;
        a->next = b->next;
        b->length = 0;
        if (a->next >= 0)
            m->symbols[a->next].previous = left;
        push_pair(m, a->previous, lookup, context);
        push_pair(m, left, lookup, context);
    }
}
