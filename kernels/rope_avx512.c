#include "lanes_avx512.h"

#include "rope_lanes.h"

void rope_avx512(float *x, size_t x_stride, size_t n_rows, size_t n_heads, size_t head_dim,
                 size_t n_rot, const float *cos_sin, enum rope_pairing pairing)
{
    rope_all(x, x_stride, n_rows, n_heads, head_dim, n_rot, cos_sin, pairing);
}
