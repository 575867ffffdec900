/* rmsnorm over the type lanes of the twin that includes this. */
#ifndef SHEAF_NORM_LANES_H
#define SHEAF_NORM_LANES_H

#include <math.h>

#include "kernels_int.h"

static inline float norm_sum_of_squares(const float *x, size_t n)
{
    lanes sum = lanes_set1(0.0f);
    size_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        const lanes v = lanes_load(x + i);
        sum = lanes_fma(v, v, sum);
    }
    if (i < n) {
        const lanes v = lanes_load_first(x + i, n - i);
        sum = lanes_fma(v, v, sum);
    }
    return lanes_sum(sum);
}

static inline void norm_scale(const float *x, const float *weight, float inv, size_t n,
                              float *y)
{
    const lanes scale = lanes_set1(inv);
    size_t i = 0;
    for (; i + LANES <= n; i += LANES)
        lanes_store(y + i,
                    lanes_mul(lanes_mul(lanes_load(x + i), scale), lanes_load(weight + i)));
    if (i < n) {
        const lanes v = lanes_mul(lanes_load_first(x + i, n - i), scale);
        lanes_store_first(y + i, n - i, lanes_mul(v, lanes_load_first(weight + i, n - i)));
    }
}

static inline void norm_rows(const float *x, const float *weight, float eps, size_t n_rows,
                             size_t n_cols, float *y)
{
    for (size_t t = 0; t < n_rows; t++, x += n_cols, y += n_cols) {
        const float mean = norm_sum_of_squares(x, n_cols) / (float)n_cols;
        norm_scale(x, weight, 1.0f / sqrtf(mean + eps), n_cols, y);
    }
}

#endif
