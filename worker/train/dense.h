/* Products of float32 rows with packed weights, and where a label stands among logits. */
#ifndef SHEAF_DENSE_H
#define SHEAF_DENSE_H

#include <stdint.h>

#include "kernels.h"

/* y [n_rows, y_stride] = x [n_rows, K] * w */
static inline void dense_multiply(const struct kernels *k, const struct weight *w,
                                  const float *x, size_t n_rows, float *y, size_t y_stride)
{
    const struct act act = {
        .kind = ACT_F32, .n_rows = n_rows, .n_cols = w->n_cols, .f32 = (float *)(uintptr_t)x};
    k->matmul(w, &act, 0, w->n_panels, MATMUL_SET, y, y_stride);
}

/* How many logits are greater than the label's, or equal and before it. */
static inline int32_t dense_rank(const float *logits, size_t n, size_t label)
{
    int32_t rank = 0;
    for (size_t j = 0; j < n; j++)
        rank += logits[j] > logits[label] || (logits[j] == logits[label] && j < label);
    return rank;
}

#endif
