#include "lanes_avx2.h"

#include "norm_lanes.h"

void rmsnorm_avx2(const float *x, const float *weight, float eps, size_t n_rows, size_t n_cols,
                  float *y)
{
    norm_rows(x, weight, eps, n_rows, n_cols, y);
}
