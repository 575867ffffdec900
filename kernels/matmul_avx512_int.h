/* Outputs, broadcasts and factors of the AVX-512 products. */
#ifndef SHEAF_MATMUL_AVX512_INT_H
#define SHEAF_MATMUL_AVX512_INT_H

#include <immintrin.h>
#include <string.h>

#include "inline_int.h"
#include "kernels.h"
#include "pack_int.h"

/* Where the outputs of one panel go, from some row on. */
struct output {
    float *y;
    size_t stride;
    __mmask16 mask; /* outputs below N */
    enum matmul_mode mode;
};

static inline struct output output_of(const struct weight *w, size_t panel, size_t row,
                                      enum matmul_mode mode, float *y, size_t stride)
{
    const size_t left = w->n_rows - panel * PANEL_COLS;
    const unsigned mask = left >= PANEL_COLS ? 0xffff : (1u << left) - 1;
    return (struct output){y + row * stride + panel * PANEL_COLS, stride, (__mmask16)mask,
                           mode};
}

static ALWAYS_INLINE void store_row(const struct output *out, size_t t, __m512 sum)
{
    float *y = out->y + t * out->stride;
    if (out->mode == MATMUL_ADD)
        sum = _mm512_add_ps(_mm512_maskz_loadu_ps(out->mask, y), sum);
    _mm512_mask_storeu_ps(y, out->mask, sum);
}

static ALWAYS_INLINE __m512i broadcast_quad(const int8_t *q)
{
    int32_t quad;
    memcpy(&quad, q, sizeof quad);
    return _mm512_set1_epi32(quad);
}

static ALWAYS_INLINE __m512 load_factors(enum pack_factors kind, const uint8_t *factors,
                                         int idx)
{
    if (kind == PACK_FACTORS_F32)
        return _mm512_loadu_ps(factors + idx * 64);
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(factors + idx * 32)));
}

void matmul_float_avx512(const struct weight *w, const struct act *x, size_t panel_begin,
                         size_t panel_end, enum matmul_mode mode, float *y, size_t y_stride);

#endif
