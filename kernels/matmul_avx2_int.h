/* What the AVX2 products of int8 and of float activations share. */
#ifndef SHEAF_MATMUL_AVX2_INT_H
#define SHEAF_MATMUL_AVX2_INT_H

#include <immintrin.h>

#include "inline_int.h"
#include "kernels.h"
#include "pack_int.h"

/*
 * Keeps the order of additions: left alone, the compiler adds the products of a tile as a tree
 * and has far more of them waiting than there are registers.
 */
#define KEEP(vector) __asm__ volatile("" : "+x"(vector))

enum { HALF_COLS = PANEL_COLS / 2 }; /* outputs of one vector */

/* Where 8 outputs go, from some row on. */
struct output {
    float *y;
    size_t stride;
    size_t n_outputs; /* below N: 0..8 */
    enum matmul_mode mode;
};

static inline struct output output_of(const struct weight *w, size_t panel, int half,
                                      size_t row, enum matmul_mode mode, float *y,
                                      size_t stride)
{
    const size_t col = panel * PANEL_COLS + (size_t)half * HALF_COLS;
    const size_t left = w->n_rows > col ? w->n_rows - col : 0;
    return (struct output){left > 0 ? y + row * stride + col : y, stride,
                           left < HALF_COLS ? left : (size_t)HALF_COLS, mode};
}

/* Masked stores take many times as long as whole ones on some CPUs: only for what is left of N.
 */
static inline void store_part(const struct output *out, float *y, __m256 sum)
{
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    const __m256i mask = _mm256_cmpgt_epi32(_mm256_set1_epi32((int)out->n_outputs), lane);
    if (out->mode == MATMUL_ADD)
        sum = _mm256_add_ps(_mm256_maskload_ps(y, mask), sum);
    _mm256_maskstore_ps(y, mask, sum);
}

static ALWAYS_INLINE void store_row(const struct output *out, size_t t, __m256 sum)
{
    float *y = out->y + t * out->stride;
    if (out->n_outputs == HALF_COLS)
        _mm256_storeu_ps(y, out->mode == MATMUL_ADD ? _mm256_add_ps(_mm256_loadu_ps(y), sum)
                                                    : sum);
    else if (out->n_outputs > 0)
        store_part(out, y, sum);
}

/* Factors of outputs 8 half ... of row idx of the factors. */
static ALWAYS_INLINE __m256 load_factors(enum pack_factors kind, const uint8_t *factors,
                                         int idx, int half)
{
    if (kind == PACK_FACTORS_F32)
        return _mm256_loadu_ps((const float *)(const void *)(factors + idx * 64 + half * 32));
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(factors + idx * 32 + half * 16)));
}

void matmul_float_avx2(const struct weight *w, const struct act *x, size_t panel_begin,
                       size_t panel_end, enum matmul_mode mode, float *y, size_t y_stride);

#endif
