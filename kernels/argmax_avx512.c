#include "lanes_avx512.h"

#include "argmax_lanes.h"

size_t argmax_avx512(const float *x, size_t n)
{
    return argmax_all(x, n);
}
