#include "engine/kvpool.h"

#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/limits.h"
#include "engine/engine_device.h"
#include "engine/memory.h"
#include "engine/pool.h"
#include "model/model.h"

struct kvpool {
    struct kvpool_shape shape;
    size_t block_bytes; /* of one layer, page and head */
    size_t bytes;
    uint8_t *base;                /* NULL: the pages are a device's */
    struct engine_device *device; /* borrowed, or NULL */
    uint8_t *staging;             /* with a device: a page on its way there */
    int32_t *free_list;           /* a stack of page numbers */
    size_t n_free;
    size_t n_idle;
    uint32_t *references; /* [P] */
    bool *cached;         /* [P] */
    struct pool *threads; /* borrowed; NULL: pages are copied by the caller alone */
};

struct kvpool_shape kvpool_shape_of(const struct model_config *c, enum kv_type type)
{
    return (struct kvpool_shape){.n_layers = c->n_layers,
                                 .n_kv_heads = c->n_kv_heads,
                                 .head_dim = c->head_dim,
                                 .type = type};
}

size_t kvpool_page_bytes(const struct kvpool_shape *shape)
{
    return shape->n_layers * shape->n_kv_heads * kv_page_bytes(shape->type, shape->head_dim);
}

static int take_pages(struct kvpool *pool, struct err *e)
{
    void *base = NULL;
    if (pool->device) {
        pool->staging = malloc(kvpool_page_bytes(&pool->shape));
        return pool->staging ? 0 : ERR_SET(e, ERR_NOMEM, "no memory for a KV page");
    }
    TRY(memory_take(pool->bytes, "the KV pool", &base, e));
    pool->base = base;
    return 0;
}

int kvpool_open_device(const struct kvpool_shape *shape, struct engine_device *device,
                       struct kvpool **out, struct err *e)
{
    ASSERT(shape->n_pages > 0 && shape->n_pages <= KV_PAGES_MAX);
    struct kvpool *pool = calloc(1, sizeof *pool);
    if (!pool)
        return ERR_SET(e, ERR_NOMEM, "no memory for the KV pool");
    int rc = 0;
    pool->device = device;
    pool->shape = *shape;
    pool->block_bytes = kv_page_bytes(shape->type, shape->head_dim);
    pool->bytes = shape->n_pages * kvpool_page_bytes(shape);
    TRY_OUT(rc, take_pages(pool, e));
    pool->free_list = calloc(shape->n_pages, sizeof pool->free_list[0]);
    pool->references = calloc(shape->n_pages, sizeof pool->references[0]);
    pool->cached = calloc(shape->n_pages, sizeof pool->cached[0]);
    if (!pool->free_list || !pool->references || !pool->cached) {
        rc = ERR_SET(e, ERR_NOMEM, "no memory for %zu KV pages", shape->n_pages);
        goto out;
    }
    for (size_t i = 0; i < shape->n_pages; i++)
        pool->free_list[i] = (int32_t)(shape->n_pages - 1 - i); /* page 0 is taken first */
    pool->n_free = shape->n_pages;
    *out = pool;
out:
    if (rc != 0)
        kvpool_close(pool);
    return rc;
}

int kvpool_open(const struct kvpool_shape *shape, struct kvpool **out, struct err *e)
{
    return kvpool_open_device(shape, NULL, out, e);
}

void kvpool_close(struct kvpool *pool)
{
    if (!pool)
        return;
    memory_give_back(pool->base, pool->bytes);
    free(pool->staging);
    free(pool->free_list);
    free(pool->references);
    free(pool->cached);
    free(pool);
}

static bool is_page(const struct kvpool *pool, int32_t page)
{
    return page >= 0 && (size_t)page < pool->shape.n_pages;
}

int32_t kvpool_acquire_page(struct kvpool *pool)
{
    if (pool->n_free == 0)
        return KVPOOL_NO_PAGE;
    const int32_t page = pool->free_list[--pool->n_free];
    ASSERT(pool->references[page] == 0 && !pool->cached[page]);
    pool->references[page] = 1;
    return page;
}

void kvpool_share_page(struct kvpool *pool, int32_t page)
{
    ASSERT(is_page(pool, page));
    ASSERT(pool->references[page] > 0 || pool->cached[page]);
    if (pool->references[page]++ == 0)
        pool->n_idle--;
}

#ifdef SHEAF_DEBUG
/* All bits set is a NaN in float elements and in the scales of int8: a read of a freed page
 * shows at once. */
static void poison(struct kvpool *pool, int32_t page)
{
    if (pool->device) {
        memset(pool->staging, 0xff, kvpool_page_bytes(&pool->shape));
        engine_device_write_page(pool->device, page, pool->staging);
        return;
    }
    for (size_t layer = 0; layer < pool->shape.n_layers; layer++)
        memset(kvpool_block(pool, layer, page, 0), 0xff,
               pool->block_bytes * pool->shape.n_kv_heads);
}
#endif

static void free_page(struct kvpool *pool, int32_t page)
{
#ifdef SHEAF_DEBUG
    poison(pool, page);
#endif
    pool->free_list[pool->n_free++] = page;
}

void kvpool_release_page(struct kvpool *pool, int32_t page)
{
    ASSERT(is_page(pool, page));
    ASSERT(pool->references[page] > 0);
    if (--pool->references[page] > 0)
        return;
    if (pool->cached[page])
        pool->n_idle++;
    else
        free_page(pool, page);
}

void kvpool_cache_page(struct kvpool *pool, int32_t page)
{
    ASSERT(is_page(pool, page));
    ASSERT(pool->references[page] > 0);
    ASSERT(!pool->cached[page]);
    pool->cached[page] = true;
}

void kvpool_uncache_page(struct kvpool *pool, int32_t page)
{
    ASSERT(is_page(pool, page));
    ASSERT(pool->cached[page]);
    pool->cached[page] = false;
    if (pool->references[page] > 0)
        return;
    pool->n_idle--;
    free_page(pool, page);
}

bool kvpool_is_cached(const struct kvpool *pool, int32_t page)
{
    ASSERT(is_page(pool, page));
    return pool->cached[page];
}

bool kvpool_is_idle(const struct kvpool *pool, int32_t page)
{
    return kvpool_is_cached(pool, page) && pool->references[page] == 0;
}

void kvpool_copy_with(struct kvpool *pool, struct pool *threads)
{
    pool->threads = threads;
}

struct copy {
    const struct kvpool *pool;
    int32_t to, from;
};

static void copy_layer(void *ctx, size_t layer, size_t thread)
{
    (void)thread;
    const struct copy *c = ctx;
    memcpy(kvpool_block(c->pool, layer, c->to, 0), kvpool_block(c->pool, layer, c->from, 0),
           c->pool->block_bytes * c->pool->shape.n_kv_heads);
}

void kvpool_copy_page(struct kvpool *pool, int32_t to, int32_t from)
{
    ASSERT(is_page(pool, to) && is_page(pool, from) && to != from);
    ASSERT(pool->references[to] > 0 && pool->references[from] > 0);
    struct copy copy = {.pool = pool, .to = to, .from = from};
    if (pool->device) {
        engine_device_copy_page(pool->device, to, from);
        return;
    }
    if (pool->threads) {
        pool_run(pool->threads, copy_layer, &copy, pool->shape.n_layers);
        return;
    }
    for (size_t layer = 0; layer < pool->shape.n_layers; layer++)
        copy_layer(&copy, layer, 0);
}

void kvpool_move_token(struct kvpool *pool, int32_t to, size_t to_slot, int32_t from,
                       size_t from_slot)
{
    const struct kvpool_shape *s = &pool->shape;
    ASSERT(is_page(pool, to) && is_page(pool, from));
    ASSERT(to_slot < KV_PAGE_TOKENS && from_slot < KV_PAGE_TOKENS);
    ASSERT(pool->references[to] > 0 && pool->references[from] > 0);
    if (pool->device) {
        engine_device_move_token(pool->device, to, to_slot, from, from_slot);
        return;
    }
    for (size_t layer = 0; layer < s->n_layers; layer++)
        for (size_t head = 0; head < s->n_kv_heads; head++)
            kv_copy_token(s->type, s->head_dim, kvpool_block(pool, layer, to, head), to_slot,
                          kvpool_block(pool, layer, from, head), from_slot);
}

bool kvpool_read_page(const struct kvpool *pool, int32_t page, void *out)
{
    ASSERT(is_page(pool, page) && pool->references[page] > 0);
    if (pool->device)
        return engine_device_read_page(pool->device, page, out);
    const size_t layer_bytes = pool->block_bytes * pool->shape.n_kv_heads;
    for (size_t layer = 0; layer < pool->shape.n_layers; layer++)
        memcpy((uint8_t *)out + layer * layer_bytes, kvpool_block(pool, layer, page, 0),
               layer_bytes);
    return true;
}

void *kvpool_fill(struct kvpool *pool, size_t layer, int32_t page)
{
    ASSERT(is_page(pool, page) && pool->references[page] > 0);
    if (!pool->device)
        return kvpool_block(pool, layer, page, 0);
    return pool->staging + layer * pool->block_bytes * pool->shape.n_kv_heads;
}

bool kvpool_filled(struct kvpool *pool, int32_t page)
{
    return !pool->device || engine_device_write_page(pool->device, page, pool->staging);
}

size_t kvpool_free_pages(const struct kvpool *pool)
{
    return pool->n_free;
}

size_t kvpool_idle_pages(const struct kvpool *pool)
{
    return pool->n_idle;
}

size_t kvpool_pages(const struct kvpool *pool)
{
    return pool->shape.n_pages;
}

size_t kvpool_bytes(const struct kvpool *pool)
{
    return pool->bytes;
}

void *kvpool_block(const struct kvpool *pool, size_t layer, int32_t page, size_t kv_head)
{
    const struct kvpool_shape *s = &pool->shape;
    ASSERT(!pool->device);
    return pool->base +
           ((layer * s->n_pages + (size_t)page) * s->n_kv_heads + kv_head) * pool->block_bytes;
}

bool kvpool_check(const struct kvpool *pool)
{
    size_t n_free = 0, n_idle = 0;
    for (size_t i = 0; i < pool->shape.n_pages; i++)
        if (pool->references[i] == 0)
            *(pool->cached[i] ? &n_idle : &n_free) += 1;
    if (n_free != pool->n_free || n_idle != pool->n_idle)
        return false;
    for (size_t i = 0; i < pool->n_free; i++) {
        const int32_t page = pool->free_list[i];
        if (!is_page(pool, page) || pool->references[page] != 0 || pool->cached[page])
            return false;
    }
    return true;
}
