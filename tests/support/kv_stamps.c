#include "kv_stamps.h"

#include <string.h>

#include "base/check.h"
#include "base/limits.h"
#include "base/rng.h"

struct kvpool *stamps_open_pool(size_t n_pages)
{
    const struct kvpool_shape shape = {.n_pages = n_pages,
                                       .n_layers = STAMP_LAYERS,
                                       .n_kv_heads = STAMP_HEADS,
                                       .head_dim = 16,
                                       .type = KV_F32};
    ASSERT(kv_page_bytes(shape.type, shape.head_dim) >= KV_PAGE_TOKENS * sizeof(uint64_t));
    struct kvpool *pool = NULL;
    const int rc = kvpool_open(&shape, &pool, NULL);
    ASSERT(rc == 0);
    return pool;
}

static uint64_t first_stamp(const char *salt)
{
    uint64_t stamp = 1;
    for (; *salt; salt++)
        stamp = rng_bits(stamp, 1, (uint64_t)*salt);
    return stamp;
}

static uint64_t next_stamp(uint64_t stamp, int32_t token)
{
    return rng_bits(stamp, 2, (uint64_t)token);
}

static uint64_t *slot(const struct kvpool *pool, const int32_t *pages, size_t position,
                      size_t layer, size_t head)
{
    uint64_t *slots = kvpool_block(pool, layer, pages[position / KV_PAGE_TOKENS], head);
    return slots + position % KV_PAGE_TOKENS;
}

void stamps_write(struct kvpool *pool, const int32_t *pages, const char *salt,
                  const int32_t *tokens, size_t from, size_t to)
{
    uint64_t stamp = first_stamp(salt);
    for (size_t i = 0; i < to; i++) {
        stamp = next_stamp(stamp, tokens[i]);
        for (size_t layer = 0; i >= from && layer < STAMP_LAYERS; layer++)
            for (size_t head = 0; head < STAMP_HEADS; head++)
                *slot(pool, pages, i, layer, head) = rng_bits(stamp, layer, head);
    }
}

size_t stamps_first_wrong(const struct kvpool *pool, const int32_t *pages, const char *salt,
                          const int32_t *tokens, size_t n)
{
    uint64_t stamp = first_stamp(salt);
    for (size_t i = 0; i < n; i++) {
        stamp = next_stamp(stamp, tokens[i]);
        for (size_t layer = 0; layer < STAMP_LAYERS; layer++)
            for (size_t head = 0; head < STAMP_HEADS; head++)
                if (*slot(pool, pages, i, layer, head) != rng_bits(stamp, layer, head))
                    return i;
    }
    return n;
}
