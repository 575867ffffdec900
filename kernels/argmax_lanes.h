/*
 * argmax over the type lanes of the twin that includes this: the greatest value first, then
 * where it stands first. The second pass over a row of logits comes from the cache.
 */
#ifndef SHEAF_ARGMAX_LANES_H
#define SHEAF_ARGMAX_LANES_H

#include <math.h>

#include "kernels_int.h"

static inline float argmax_greatest(const float *x, size_t n)
{
    lanes best = lanes_set1(-INFINITY);
    size_t i = 0;
    for (; i + LANES <= n; i += LANES)
        best = lanes_max(lanes_load(x + i), best);
    if (i < n) {
        const lanes tail = lanes_load_first(x + i, n - i);
        best = lanes_max(lanes_keep_first(tail, n - i, lanes_set1(-INFINITY)), best);
    }
    return lanes_greatest(best);
}

/* 0 when no element equals value: then all of them are NaN. */
static inline size_t argmax_find(const float *x, size_t n, float value)
{
    const lanes wanted = lanes_set1(value);
    size_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        const uint32_t equal = lanes_equal(lanes_load(x + i), wanted);
        if (equal)
            return i + (size_t)__builtin_ctz(equal);
    }
    for (; i < n; i++)
        if (x[i] == value)
            return i;
    return 0;
}

static inline size_t argmax_all(const float *x, size_t n)
{
    return argmax_find(x, n, argmax_greatest(x, n));
}

#endif
