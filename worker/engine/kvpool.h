/*
 * The KV cache as a pool of fixed pages.
 *
 * A page holds the keys and values of KV_PAGE_TOKENS (32) positions for every layer and KV
 * head. In memory it is cut up by layer and head, [layer][page][head], so that one layer's
 * attention walks memory that lies together:
 *
 *     block(layer, page, head) = base + ((layer * P + page) * KVH + head) * kv_page_bytes
 *
 * Pages are reference counted: taken with one reference, shared by more, back on the free list
 * at none. Which page is taken never shows in a result.
 *
 * A pure state machine; thread: the engine's.
 */
#ifndef SHEAF_KVPOOL_H
#define SHEAF_KVPOOL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "kernels.h"

struct kvpool;

enum { KVPOOL_NO_PAGE = -1 };

struct kvpool_shape {
    size_t n_pages; /* P */
    size_t n_layers;
    size_t n_kv_heads;
    size_t head_dim;
    enum kv_type type;
};

/* Bytes of one page over all layers and heads. */
size_t kvpool_page_bytes(const struct kvpool_shape *shape);

int kvpool_open(const struct kvpool_shape *shape, struct kvpool **out, struct err *e);
void kvpool_close(struct kvpool *pool);

int32_t kvpool_acquire_page(struct kvpool *pool); /* KVPOOL_NO_PAGE when none is free */
void kvpool_share_page(struct kvpool *pool, int32_t page);
void kvpool_release_page(struct kvpool *pool, int32_t page);

size_t kvpool_free_pages(const struct kvpool *pool);
size_t kvpool_pages(const struct kvpool *pool);
size_t kvpool_bytes(const struct kvpool *pool);

void *kvpool_block(const struct kvpool *pool, size_t layer, int32_t page, size_t kv_head);

/* Walks the free list and the counts; false when they disagree. */
bool kvpool_check(const struct kvpool *pool);

#endif
