#include "lanes_avx2.h"

#include "act_lanes.h"

void silu_mul_avx2(const float *gate, const float *up, size_t n, float *y)
{
    act_silu_mul_all(gate, up, n, y);
}
