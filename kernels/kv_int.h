/*
 * Where an element of a KV page lies and how it is widened, and how many keys of a page a row
 * sees. Only for kernels/; the layout's reasons are in kernels.h.
 */
#ifndef SHEAF_KV_INT_H
#define SHEAF_KV_INT_H

#include <string.h>

#include "base/limits.h"
#include "kernels.h"

static inline size_t kv_key_index(size_t key, size_t dim)
{
    return (dim / 2 * KV_PAGE_TOKENS + key) * 2 + dim % 2;
}

static inline size_t kv_value_index(size_t head_dim, size_t token, size_t dim)
{
    return KV_PAGE_TOKENS * head_dim + (token / 2 * head_dim + dim) * 2 + token % 2;
}

/* Round to nearest even. A NaN keeps its sign and upper payload and stays a NaN. */
static inline uint16_t kv_bf16_from_f32(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if ((bits & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)(bits >> 16 | 0x40u);
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

static inline float kv_f32_from_bf16(uint16_t half)
{
    const uint32_t bits = (uint32_t)half << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline float kv_load(enum kv_type type, const void *page, size_t index)
{
    if (type == KV_BF16)
        return kv_f32_from_bf16(((const uint16_t *)page)[index]);
    return ((const float *)page)[index];
}

/* Keys 0 .. result - 1 of the page are the ones that the row sees. */
static inline size_t attend_visible_keys(const struct attend *a, size_t row, size_t page)
{
    const size_t page_key = page * KV_PAGE_TOKENS;
    const int64_t until_row = (int64_t)a->row_pos[row] - a->first_pos - (int64_t)page_key + 1;
    const size_t written = a->n_keys - page_key;
    size_t n = written < KV_PAGE_TOKENS ? written : KV_PAGE_TOKENS;
    if (until_row < (int64_t)n)
        n = until_row > 0 ? (size_t)until_row : 0;
    return n;
}

#endif
