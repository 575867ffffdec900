/*
 * The exponential, as constants and as one scalar function. Every twin runs the same
 * operations in the same order on its vectors, so that all of them give the same bits.
 *
 * n = rint(x * log2 e) is taken by adding and subtracting 1.5 * 2^23, which rounds to nearest
 * even and leaves n in the low bits of the sum; r = x - n ln 2 lies in [-0.347, 0.347]. The
 * polynomial is the minimax fit of exp there with its constant term held at 1, which makes
 * exp(0) exactly 1. Multiplying by 2^n is an addition to the exponent field: the clamp keeps
 * the result a normal number, for which both give the same bits (at the lower clamp r > 0, so
 * the polynomial is above 1 when n = -126).
 */
#ifndef SHEAF_EXP_H
#define SHEAF_EXP_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#define EXP_MIN     (-87.33f)
#define EXP_MAX     88.37f
#define EXP_LOG2_E  0x1.715476p+0f
#define EXP_LN2_HI  0x1.62e400p-1f /* 14 bits: n times it is exact */
#define EXP_LN2_LO  0x1.7f7d1cp-20f
#define EXP_ROUNDER 0x1.8p+23f
#define EXP_C1      0x1.fffff6p-1f
#define EXP_C2      0x1.fffdc6p-2f
#define EXP_C3      0x1.555a6cp-3f
#define EXP_C4      0x1.573a66p-5f
#define EXP_C5      0x1.0fa826p-7f

static inline uint32_t exp_bits(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static inline float exp_scalar(float x)
{
    if (x == -INFINITY)
        return 0.0f;
    x = EXP_MIN > x ? EXP_MIN : x; /* a NaN passes through */
    x = EXP_MAX < x ? EXP_MAX : x;
    const float rounded = x * EXP_LOG2_E + EXP_ROUNDER;
    const float n = rounded - EXP_ROUNDER;
    float r = fmaf(n, -EXP_LN2_HI, x);
    r = fmaf(n, -EXP_LN2_LO, r);
    float p = EXP_C5;
    p = fmaf(p, r, EXP_C4);
    p = fmaf(p, r, EXP_C3);
    p = fmaf(p, r, EXP_C2);
    p = fmaf(p, r, EXP_C1);
    p = fmaf(p, r, 1.0f);
    const uint32_t scaled = exp_bits(p) + (exp_bits(rounded) << 23);
    memcpy(&p, &scaled, sizeof p);
    return p;
}

#endif
