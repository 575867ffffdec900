#include <math.h>

#include "kernels_int.h"
#include "lanes_int.h"

static float sum_of_squares(const float *x, size_t n)
{
    float lane[LANES] = {0};
    for (size_t i = 0; i < n; i++)
        lane[i % LANES] = fmaf(x[i], x[i], lane[i % LANES]);
    return lanes_sum_tree(lane);
}

void rmsnorm_ref(const float *x, const float *weight, float eps, size_t n_rows, size_t n_cols,
                 float *y)
{
    for (size_t t = 0; t < n_rows; t++, x += n_cols, y += n_cols) {
        const float mean = sum_of_squares(x, n_cols) / (float)n_cols;
        const float inv = 1.0f / sqrtf(mean + eps);
        for (size_t i = 0; i < n_cols; i++)
            y[i] = x[i] * inv * weight[i];
    }
}
