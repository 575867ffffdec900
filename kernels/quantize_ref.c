/*
 * Activations to int8, blocks of 32. The largest magnitude is found among the bit patterns of
 * |x|, where infinities and NaN are the greatest: a block that has one gets q = 0 and scale =
 * NaN, which makes every output of its row NaN instead of a plausible number. Blocks whose
 * largest magnitude is below ACT_MAX_TINY count as zeros, because 127 / max would overflow.
 */
#include <math.h>
#include <string.h>

#include "kernels_int.h"
#include "quantize_int.h"

static float largest_magnitude(const float *x)
{
    uint32_t largest = 0;
    for (size_t i = 0; i < ACT_BLOCK; i++) {
        uint32_t bits;
        memcpy(&bits, &x[i], sizeof bits);
        bits &= 0x7fffffff;
        if (bits > largest)
            largest = bits;
    }
    float value;
    memcpy(&value, &largest, sizeof value);
    return value;
}

static void quantize_block(const float *x, int8_t *q, float *scale, int32_t *sum)
{
    const float largest = largest_magnitude(x);
    memset(q, 0, ACT_BLOCK);
    *sum = 0;
    *scale = 0.0f;
    if (!(largest < INFINITY)) {
        *scale = NAN;
        return;
    }
    if (largest < ACT_MAX_TINY)
        return;
    *scale = largest / 127.0f;
    const float inverse = 127.0f / largest;
    for (size_t i = 0; i < ACT_BLOCK; i++) {
        q[i] = (int8_t)lrintf(x[i] * inverse);
        *sum += q[i];
    }
}

void quantize_ref(struct act *x, size_t row_begin, size_t row_end, size_t col_begin,
                  size_t col_end)
{
    quantize_blocks(quantize_block, x, row_begin, row_end, col_begin, col_end);
}
