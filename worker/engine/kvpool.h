/*
 * The KV cache as a pool of fixed pages.
 *
 * A page holds the keys and values of KV_PAGE_TOKENS (32) positions for every layer and KV
 * head. In memory it is cut up by layer and head, [layer][page][head], so that one layer's
 * attention walks memory that lies together:
 *
 *     block(layer, page, head) = base + ((layer * P + page) * KVH + head) * kv_page_bytes
 *
 * A page is held by sequences, which are counted, and may be cached besides, which is what the
 * prefix tree says of its pages. It is taken with one reference and is back on the free list
 * when nobody holds it and it is not cached. Cached and held by nobody it is idle: its content
 * stays, and it can be held again. Which page is taken never shows in a result.
 *
 * With a device the pages are in its memory, in an order of its own, and only what stands here
 * of pages as a whole can be done with them. What fails there is said by the device
 * (engine_device.h).
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

struct engine_device;
struct kvpool;
struct model_config;
struct pool;

enum { KVPOOL_NO_PAGE = -1 };

struct kvpool_shape {
    size_t n_pages; /* P */
    size_t n_layers;
    size_t n_kv_heads;
    size_t head_dim;
    enum kv_type type;
};

/* What the model's keys and values take, in pages yet to be counted: n_pages 0. */
struct kvpool_shape kvpool_shape_of(const struct model_config *c, enum kv_type type);

/* Bytes of one page over all layers and heads. */
size_t kvpool_page_bytes(const struct kvpool_shape *shape);

int kvpool_open(const struct kvpool_shape *shape, struct kvpool **out, struct err *e);
/* A pool of a device's pages, which is borrowed. */
int kvpool_open_device(const struct kvpool_shape *shape, struct engine_device *device,
                       struct kvpool **out, struct err *e);
void kvpool_close(struct kvpool *pool);
/* From now on pages are copied by all of these threads, borrowed; they are the caller's to run,
 * as in pool_run. Memory that nobody has touched yet is what makes a copy slow. */
void kvpool_copy_with(struct kvpool *pool, struct pool *threads);

int32_t kvpool_acquire_page(struct kvpool *pool); /* KVPOOL_NO_PAGE when none is free */
void kvpool_share_page(struct kvpool *pool, int32_t page); /* held already, or idle */
void kvpool_release_page(struct kvpool *pool, int32_t page);

void kvpool_cache_page(struct kvpool *pool, int32_t page); /* held, and not cached yet */
void kvpool_uncache_page(struct kvpool *pool, int32_t page);
bool kvpool_is_cached(const struct kvpool *pool, int32_t page);
bool kvpool_is_idle(const struct kvpool *pool, int32_t page);

/* Keys and values of all layers and heads; both pages are held. */
void kvpool_copy_page(struct kvpool *pool, int32_t to, int32_t from);

/* One token's keys and values of all layers and heads, to another slot of 32 of a held page. */
void kvpool_move_token(struct kvpool *pool, int32_t to, size_t to_slot, int32_t from,
                       size_t from_slot);

/* A page's bytes [kvpool_page_bytes], layer after layer, for those who keep them elsewhere.
 * False: the device failed. */
bool kvpool_read_page(const struct kvpool *pool, int32_t page, void *out);
/* Where a layer's part of a held page is to be written from outside; what is there is the
 * page's after kvpool_filled, which is called before the next page is begun. */
void *kvpool_fill(struct kvpool *pool, size_t layer, int32_t page);
bool kvpool_filled(struct kvpool *pool, int32_t page);

size_t kvpool_free_pages(const struct kvpool *pool);
size_t kvpool_idle_pages(const struct kvpool *pool);
size_t kvpool_pages(const struct kvpool *pool);
size_t kvpool_bytes(const struct kvpool *pool);

/* Of a pool without a device. */
void *kvpool_block(const struct kvpool *pool, size_t layer, int32_t page, size_t kv_head);

/* Walks the free list, the counts and the marks; false when they disagree. */
bool kvpool_check(const struct kvpool *pool);

#endif
