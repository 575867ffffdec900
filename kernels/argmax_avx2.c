#include "lanes_avx2.h"

#include "argmax_lanes.h"

size_t argmax_avx2(const float *x, size_t n)
{
    return argmax_all(x, n);
}
