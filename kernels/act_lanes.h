/* silu_mul over the type lanes of the twin that includes this. */
#ifndef SHEAF_ACT_LANES_H
#define SHEAF_ACT_LANES_H

#include "kernels_int.h"

static inline lanes act_silu_mul(lanes gate, lanes up)
{
    const lanes e = lanes_exp(lanes_mul(gate, lanes_set1(-1.0f)));
    return lanes_mul(lanes_div(gate, lanes_add(lanes_set1(1.0f), e)), up);
}

static inline void act_silu_mul_all(const float *gate, const float *up, size_t n, float *y)
{
    size_t i = 0;
    for (; i + LANES <= n; i += LANES)
        lanes_store(y + i, act_silu_mul(lanes_load(gate + i), lanes_load(up + i)));
    if (i < n)
        lanes_store_first(
            y + i, n - i,
            act_silu_mul(lanes_load_first(gate + i, n - i), lanes_load_first(up + i, n - i)));
}

#endif
