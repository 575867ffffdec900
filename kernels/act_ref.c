#include "exp.h"
#include "kernels_int.h"

void silu_mul_ref(const float *gate, const float *up, size_t n, float *y)
{
    for (size_t i = 0; i < n; i++)
        y[i] = gate[i] / (1.0f + exp_scalar(-gate[i])) * up[i];
}
