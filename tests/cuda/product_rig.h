/*
 * Random matrices of every type, a product of the device and the same product in double: what
 * the tests of products share. All memory of the device ends where its data ends, so that a
 * read beyond it is seen.
 */
#ifndef SHEAF_TESTS_PRODUCT_RIG_H
#define SHEAF_TESTS_PRODUCT_RIG_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

extern "C" {
#include <cmocka.h>

#include "base/rng.h"
#include "quant.h"
}

#include "products_int.h"

static const quant_type ALL_TYPES[] = {QUANT_F32,  QUANT_F16,  QUANT_BF16, QUANT_Q4_0,
                                       QUANT_Q4_1, QUANT_Q5_0, QUANT_Q5_1, QUANT_Q8_0,
                                       QUANT_Q4_K, QUANT_Q5_K, QUANT_Q6_K, QUANT_IQ4_NL};

static uint64_t random_seed = 20261130;
static uint64_t random_counter;

static inline float random_float(float low, float high)
{
    return low + (high - low) * (float)rng_uniform(random_seed, 0, random_counter++);
}

static inline void put_half(uint8_t *at)
{
    const uint16_t bits = quant_f32_to_f16(random_float(-0.1f, 0.1f));
    memcpy(at, &bits, sizeof(bits));
}

/* Where a block's half floats stand; -1: there is no second one. */
struct half_places {
    int first, second;
};

static inline half_places half_places_of(quant_type type)
{
    switch (type) {
    case QUANT_Q6_K: return {208, -1};
    case QUANT_Q4_1:
    case QUANT_Q5_1:
    case QUANT_Q4_K:
    case QUANT_Q5_K: return {0, 2};
    default: return {0, -1};
    }
}

/* One stored block: random codes under small scales. */
static inline void fill_block(quant_type type, const quant_info *info, uint8_t *block)
{
    if (type == QUANT_F32) {
        const float value = random_float(-1, 1);
        memcpy(block, &value, sizeof(value));
    } else if (type == QUANT_F16 || type == QUANT_BF16) {
        const float value = random_float(-1, 1);
        const uint16_t bits =
            type == QUANT_F16 ? quant_f32_to_f16(value) : quant_f32_to_bf16(value);
        memcpy(block, &bits, sizeof(bits));
    } else {
        for (size_t i = 0; i < info->block_bytes; i++)
            block[i] = (uint8_t)rng_bits(random_seed, 1, random_counter++);
        const half_places places = half_places_of(type);
        put_half(block + places.first);
        if (places.second >= 0)
            put_half(block + places.second);
    }
}

/* A stored matrix, its exact values, and the device's copies. */
struct stored {
    matrix m; /* on the device */
    size_t bytes;
    uint8_t *blocks; /* on the host, like the rest */
    float *values;   /* [N, K] */
    uint16_t *rounded;
    double *minima; /* [N, K] what is added to scale * code: 0 but for Q4_1 */
};

static inline void *on_device(const void *from, size_t bytes)
{
    void *p = device_alloc(bytes);
    assert_non_null(p);
    copy_to_device(nullptr, p, from, bytes);
    return p;
}

static inline double minimum_of(quant_type type, const uint8_t *row, int k)
{
    uint16_t bits;
    if (type != QUANT_Q4_1)
        return 0;
    memcpy(&bits, row + k / 32 * 20 + 2, sizeof(bits));
    return (double)quant_f16_to_f32(bits);
}

static inline void read_values(stored *w)
{
    const size_t n = (size_t)w->m.n_rows;
    const size_t k = (size_t)w->m.n_cols;
    const size_t row_bytes = w->bytes / n;
    for (size_t i = 0; i < n; i++) {
        const uint8_t *row = w->blocks + i * row_bytes;
        quant_dequantize_row(w->m.type, row, w->values + i * k, k);
        for (size_t j = 0; j < k; j++) {
            w->rounded[i * k + j] = quant_f32_to_bf16(w->values[i * k + j]);
            w->minima[i * k + j] = minimum_of(w->m.type, row, (int)j);
        }
    }
}

static inline stored make_stored(quant_type type, int n_rows, int n_cols, bool with_rows)
{
    const quant_info *info = quant_find(type);
    const size_t n = (size_t)n_rows * (size_t)n_cols;
    stored w = {};
    w.bytes = (size_t)n_rows * quant_row_bytes(type, (size_t)n_cols);
    w.blocks = (uint8_t *)malloc(w.bytes);
    w.values = (float *)malloc(n * sizeof(float));
    w.rounded = (uint16_t *)malloc(n * sizeof(uint16_t));
    w.minima = (double *)malloc(n * sizeof(double));
    for (size_t at = 0; at < w.bytes; at += info->block_bytes)
        fill_block(type, info, w.blocks + at);
    w.m.type = type;
    w.m.n_rows = n_rows;
    w.m.n_cols = n_cols;
    read_values(&w);
    w.m.blocks = (const uint8_t *)on_device(w.blocks, w.bytes);
    if (with_rows)
        w.m.rows = (const bf16 *)on_device(w.rounded, n * sizeof(uint16_t));
    return w;
}

static inline void free_stored(stored *w)
{
    device_free((void *)w->m.blocks);
    device_free((void *)w->m.rows);
    free(w->blocks);
    free(w->values);
    free(w->rounded);
    free(w->minima);
}

/* ---- inputs and outputs of a product */

struct inputs {
    int n_rows, n_cols; /* T, K */
    uint16_t *host;
    bf16 *device;
};

static inline inputs make_inputs(int n_rows, int n_cols)
{
    inputs x = {n_rows, n_cols, nullptr, nullptr};
    const size_t n = (size_t)n_rows * (size_t)n_cols;
    x.host = (uint16_t *)malloc(n * sizeof(uint16_t));
    for (size_t i = 0; i < n; i++)
        x.host[i] = quant_f32_to_bf16(random_float(-2, 2));
    x.device = (bf16 *)on_device(x.host, n * sizeof(uint16_t));
    return x;
}

static inline void free_inputs(inputs *x)
{
    free(x->host);
    device_free(x->device);
}

static inline size_t element_bytes(product_out kind)
{
    return kind == PRODUCT_BF16 ? 2 : 4;
}

/* Rows y_stride apart, of which the first n_outputs elements are a product's. */
struct outputs {
    int n_rows, y_stride;
    product_out kind;
    size_t bytes;
    uint8_t *before, *after; /* on the host */
};

static inline outputs make_outputs(int n_rows, int y_stride, product_out kind)
{
    outputs y = {n_rows, y_stride, kind, 0, nullptr, nullptr};
    y.bytes = (size_t)n_rows * (size_t)y_stride * element_bytes(kind);
    y.before = (uint8_t *)malloc(y.bytes);
    y.after = (uint8_t *)malloc(y.bytes);
    for (size_t at = 0; at < y.bytes; at += element_bytes(kind)) {
        const float value = random_float(-1, 1);
        const uint16_t rounded = quant_f32_to_bf16(value);
        if (kind == PRODUCT_BF16)
            memcpy(y.before + at, &rounded, sizeof(rounded));
        else
            memcpy(y.before + at, &value, sizeof(value));
    }
    return y;
}

static inline void free_outputs(outputs *y)
{
    free(y->before);
    free(y->after);
}

static inline double output_at(const uint8_t *y, product_out kind, size_t i)
{
    uint16_t rounded;
    float value;
    memcpy(&rounded, y + i * 2, kind == PRODUCT_BF16 ? 2 : 0);
    if (kind == PRODUCT_BF16)
        return (double)quant_bf16_to_f32(rounded);
    memcpy(&value, y + i * 4, sizeof(value));
    return (double)value;
}

/* y.after = what the device makes of y.before with rows first_row .. of x; its code. */
static inline int multiply_rows(products *p, const stored &w, const inputs &x, int first_row,
                                const float *bias, outputs *y, struct err *e)
{
    void *device = on_device(y->before, y->bytes);
    const int code = product(p, nullptr, w.m, x.device + (size_t)first_row * (size_t)x.n_cols,
                             y->n_rows, bias, y->kind, device, y->y_stride, e);
    copy_to_host(nullptr, y->after, device, y->bytes);
    stream_wait(nullptr);
    assert_null(last_error());
    device_free(device);
    return code;
}

/* ---- the same in double */

/*
 * Every output is a sum of K products in some order. Rounded to float32 after each of at most
 * K + 40 additions, it is wrong by K + 40 halves of 2^-23 of the sum of its terms' sizes at
 * most; tensor cores cut off instead of rounding, which doubles that. A bfloat16 result is off
 * by 2^-8 of itself more.
 */
struct expected {
    double value, tolerance;
};

static inline expected expected_output(const stored &w, bool is_rounded, const inputs &x,
                                       int row, int output, const float *bias, const outputs &y)
{
    const size_t k = (size_t)w.m.n_cols;
    const size_t at = (size_t)row * (size_t)y.y_stride + (size_t)output;
    double sum = 0;
    double size = 0;
    for (size_t i = 0; i < k; i++) {
        const size_t j = (size_t)output * k + i;
        const double a = (double)quant_bf16_to_f32(x.host[(size_t)row * k + i]);
        const double b =
            is_rounded ? (double)quant_bf16_to_f32(w.rounded[j]) : (double)w.values[j];
        sum += a * b;
        size +=
            __builtin_fabs(a) * (__builtin_fabs(b - w.minima[j]) + __builtin_fabs(w.minima[j]));
    }
    const double added = (bias ? (double)bias[output] : 0) +
                         (y.kind == PRODUCT_F32_ADD ? output_at(y.before, y.kind, at) : 0);
    size += __builtin_fabs(added);
    sum += added;
    const double rounding = y.kind == PRODUCT_BF16 ? 0x1p-8 * __builtin_fabs(sum) : 0;
    return {sum, (double)(k + 40) * 0x1p-23 * size + 1.01 * rounding};
}

static bool is_mistake_wanted; /* and nobody wants to read of it */

/* Outputs that are wrong, or elements between rows that have changed. */
static inline int count_wrong(const stored &w, bool is_rounded, const inputs &x,
                              const float *bias, const outputs &y)
{
    int n_wrong = 0;
    for (int row = 0; row < y.n_rows; row++) {
        for (int output = 0; output < y.y_stride; output++) {
            const size_t at = (size_t)row * (size_t)y.y_stride + (size_t)output;
            const size_t bytes = element_bytes(y.kind);
            if (output >= w.m.n_rows) {
                n_wrong += memcmp(y.before + at * bytes, y.after + at * bytes, bytes) != 0;
                continue;
            }
            const expected want = expected_output(w, is_rounded, x, row, output, bias, y);
            const double off = __builtin_fabs(output_at(y.after, y.kind, at) - want.value);
            if (!(off <= want.tolerance) && n_wrong++ == 0 && !is_mistake_wanted)
                print_error("%s, row %d, output %d: off by %g, %g is allowed\n",
                            quant_find(w.m.type)->name, row, output, off, want.tolerance);
        }
    }
    return n_wrong;
}

#endif
