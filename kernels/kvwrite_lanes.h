/*
 * kv_write over the type lanes of the twin that includes this: bfloat16 pages; other types are
 * left to the reference. Rounding is what costs; the elements then go to their places one pair
 * of dims (keys) or one dim (values) at a time, because a token's neighbours in the page may be
 * written by another thread.
 */
#ifndef SHEAF_KVWRITE_LANES_H
#define SHEAF_KVWRITE_LANES_H

#include "kernels_int.h"
#include "kv_int.h"

static inline void kv_write_key(size_t dim, size_t n, uint16_t *page, size_t slot,
                                const float *key)
{
    uint16_t half[LANES];
    lanes_store_bf16(half, lanes_load_first(key + dim, n));
    for (size_t i = 0; i < n; i += 2)
        memcpy(page + kv_key_index(slot, dim + i), half + i, 2 * sizeof half[0]);
}

static inline void kv_write_value(size_t head_dim, size_t dim, size_t n, uint16_t *page,
                                  size_t slot, const float *value)
{
    uint16_t half[LANES];
    lanes_store_bf16(half, lanes_load_first(value + dim, n));
    for (size_t i = 0; i < n; i++)
        page[kv_value_index(head_dim, slot, dim + i)] = half[i];
}

static inline void kv_write_all(enum kv_type type, size_t head_dim, void *page, size_t slot,
                                const float *key, const float *value)
{
    if (type != KV_BF16) {
        kv_write_ref(type, head_dim, page, slot, key, value);
        return;
    }
    for (size_t dim = 0; dim < head_dim; dim += LANES) {
        const size_t n = head_dim - dim < LANES ? head_dim - dim : LANES;
        kv_write_key(dim, n, page, slot, key);
        kv_write_value(head_dim, dim, n, page, slot, value);
    }
}

#endif
