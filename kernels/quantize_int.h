/* What the quantize twins share. */
#ifndef SHEAF_QUANTIZE_INT_H
#define SHEAF_QUANTIZE_INT_H

#include "kernels.h"

/* 127 / ACT_MAX_TINY is still finite. */
#define ACT_MAX_TINY 0x1p-120f

/* A twin's own part: q, scale and sum of the ACT_BLOCK inputs at x. */
typedef void quantize_block_fn(const float *x, int8_t *q, float *scale, int32_t *sum);

static inline void quantize_blocks(quantize_block_fn *quantize_block, struct act *x,
                                   size_t row_begin, size_t row_end, size_t col_begin,
                                   size_t col_end)
{
    const size_t row_blocks = x->n_cols / ACT_BLOCK;
    for (size_t t = row_begin; t < row_end; t++)
        for (size_t i = col_begin / ACT_BLOCK; i < col_end / ACT_BLOCK; i++) {
            const size_t b = t * row_blocks + i;
            quantize_block(x->f32 + b * ACT_BLOCK, x->q + b * ACT_BLOCK, &x->scale[b],
                           &x->sum[b]);
            x->scaled_sum[b] = x->scale[b] * (float)x->sum[b];
        }
}

#endif
