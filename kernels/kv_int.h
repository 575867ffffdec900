/*
 * Where an element of a KV page lies and how it is widened, and how many keys of a page a row
 * sees. Only for kernels/; the layout's reasons are in kernels.h.
 */
#ifndef SHEAF_KV_INT_H
#define SHEAF_KV_INT_H

#include <math.h>
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

#define KV_SCALED_MIN 0x1p-112f /* where all |x| are below it all codes are 0 */

enum {
    KV_CODE_MAX = 127,        /* of int8 keys and values */
    KV_CODE_ZERO = 128,       /* what a key's code is stored above */
    KV_WORD_CODE_MAX = 32767, /* of queries that meet them, and of weights */
};

static_assert((int64_t)KV_CODE_ZERO * KV_WORD_CODE_MAX * MODEL_HEAD_DIM_MAX <= INT32_MAX,
              "a dot product of a query and a key is exact");
static_assert((int64_t)KV_CODE_MAX * KV_WORD_CODE_MAX * KV_PAGE_TOKENS <= INT32_MAX,
              "a page's sum of weighted values is exact");

/* Of KV_INT8: bytes of a page. Values lie at kv_value_index. */
static inline size_t kv_int8_key_at(size_t key, size_t dim)
{
    return (dim / 4 * KV_PAGE_TOKENS + key) * 4 + dim % 4;
}

/* The scales of keys [32] and of values [32]. */
static inline const float *kv_int8_key_scales(const void *page, size_t head_dim)
{
    return (const float *)(const void *)((const char *)page + 2 * KV_PAGE_TOKENS * head_dim);
}

static inline const float *kv_int8_value_scales(const void *page, size_t head_dim)
{
    return kv_int8_key_scales(page, head_dim) + KV_PAGE_TOKENS;
}

static inline float kv_largest_magnitude(size_t n, const float *x)
{
    uint32_t largest = 0;
    for (size_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, &x[i], sizeof bits);
        bits &= 0x7fffffffu;
        largest = bits > largest ? bits : largest;
    }
    float value;
    memcpy(&value, &largest, sizeof value);
    return value;
}

/*
 * The scale of x's codes; 1 / scale in *inverse, or 0 there where all codes are 0. The bound
 * keeps the inverse of a scale of words finite.
 */
static inline float kv_scale(size_t n, const float *x, float code_max, float *inverse)
{
    const float largest = kv_largest_magnitude(n, x);
    *inverse = 0.0f;
    if (!(largest < INFINITY))
        return NAN;
    if (largest < KV_SCALED_MIN)
        return 0.0f;
    *inverse = code_max / largest;
    return largest / code_max;
}

/* Adding 1.5 * 2^23 leaves a number below 2^22 in the low bits, rounded to nearest even. */
static inline int32_t kv_nearest(float x)
{
    const float shifted = x + 0x1.8p23f;
    uint32_t bits;
    memcpy(&bits, &shifted, sizeof bits);
    return (int32_t)(bits - 0x4b400000u);
}

/* Codes of a key or a value; returns their scale. */
static inline float kv_quantize(size_t n, const float *x, int8_t *codes)
{
    float inverse;
    const float scale = kv_scale(n, x, KV_CODE_MAX, &inverse);
    for (size_t i = 0; i < n; i++)
        codes[i] = inverse > 0.0f ? (int8_t)kv_nearest(x[i] * inverse) : 0;
    return scale;
}

/* The same of a query, or of a page's weights. */
static inline float kv_quantize_words(size_t n, const float *x, int16_t *codes)
{
    float inverse;
    const float scale = kv_scale(n, x, KV_WORD_CODE_MAX, &inverse);
    for (size_t i = 0; i < n; i++)
        codes[i] = inverse > 0.0f ? (int16_t)kv_nearest(x[i] * inverse) : 0;
    return scale;
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
