#include "engine/kvpool.h"

#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/limits.h"
#include "engine/memory.h"

struct kvpool {
    struct kvpool_shape shape;
    size_t block_bytes; /* of one layer, page and head */
    size_t bytes;
    uint8_t *base;
    int32_t *free_list; /* a stack of page numbers */
    size_t n_free;
    uint32_t *references; /* [P] */
};

size_t kvpool_page_bytes(const struct kvpool_shape *shape)
{
    return shape->n_layers * shape->n_kv_heads * kv_page_bytes(shape->type, shape->head_dim);
}

int kvpool_open(const struct kvpool_shape *shape, struct kvpool **out, struct err *e)
{
    ASSERT(shape->n_pages > 0 && shape->n_pages <= INT32_MAX);
    struct kvpool *pool = calloc(1, sizeof *pool);
    if (!pool)
        return ERR_SET(e, ERR_NOMEM, "no memory for the KV pool");
    int rc = 0;
    pool->shape = *shape;
    pool->block_bytes = kv_page_bytes(shape->type, shape->head_dim);
    pool->bytes = shape->n_pages * kvpool_page_bytes(shape);
    void *base = NULL;
    TRY_OUT(rc, memory_take(pool->bytes, "the KV pool", &base, e));
    pool->base = base;
    pool->free_list = calloc(shape->n_pages, sizeof pool->free_list[0]);
    pool->references = calloc(shape->n_pages, sizeof pool->references[0]);
    if (!pool->free_list || !pool->references) {
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

void kvpool_close(struct kvpool *pool)
{
    if (!pool)
        return;
    memory_give_back(pool->base, pool->bytes);
    free(pool->free_list);
    free(pool->references);
    free(pool);
}

int32_t kvpool_acquire_page(struct kvpool *pool)
{
    if (pool->n_free == 0)
        return KVPOOL_NO_PAGE;
    const int32_t page = pool->free_list[--pool->n_free];
    ASSERT(pool->references[page] == 0);
    pool->references[page] = 1;
    return page;
}

void kvpool_share_page(struct kvpool *pool, int32_t page)
{
    ASSERT(page >= 0 && (size_t)page < pool->shape.n_pages);
    ASSERT(pool->references[page] > 0);
    pool->references[page]++;
}

#ifdef SHEAF_DEBUG
/* All bits set is a NaN in both element types: a read of a freed page shows at once. */
static void poison(struct kvpool *pool, int32_t page)
{
    for (size_t layer = 0; layer < pool->shape.n_layers; layer++)
        memset(kvpool_block(pool, layer, page, 0), 0xff,
               pool->block_bytes * pool->shape.n_kv_heads);
}
#endif

void kvpool_release_page(struct kvpool *pool, int32_t page)
{
    ASSERT(page >= 0 && (size_t)page < pool->shape.n_pages);
    ASSERT(pool->references[page] > 0);
    if (--pool->references[page] > 0)
        return;
#ifdef SHEAF_DEBUG
    poison(pool, page);
#endif
    pool->free_list[pool->n_free++] = page;
}

size_t kvpool_free_pages(const struct kvpool *pool)
{
    return pool->n_free;
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
    return pool->base +
           ((layer * s->n_pages + (size_t)page) * s->n_kv_heads + kv_head) * pool->block_bytes;
}

bool kvpool_check(const struct kvpool *pool)
{
    size_t n_unreferenced = 0;
    for (size_t i = 0; i < pool->shape.n_pages; i++)
        n_unreferenced += pool->references[i] == 0;
    if (n_unreferenced != pool->n_free)
        return false;
    for (size_t i = 0; i < pool->n_free; i++) {
        const int32_t page = pool->free_list[i];
        if (page < 0 || (size_t)page >= pool->shape.n_pages || pool->references[page] != 0)
            return false;
    }
    return true;
}
