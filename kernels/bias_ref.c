#include "kernels_int.h"

void bias_add_ref(float *y, size_t y_stride, const float *bias, size_t n_rows, size_t n_cols)
{
    for (size_t t = 0; t < n_rows; t++, y += y_stride)
        for (size_t i = 0; i < n_cols; i++)
            y[i] += bias[i];
}
