/*
 * E4M3, a number in a byte: sign, four bits of exponent, three of mantissa, as FP8 tensor cores
 * take it. With e = exponent and m = mantissa,
 *
 *     e = 0:  m / 8 * 2^-6       else:  (1 + m / 8) * 2^(e - 7)
 *
 * up to 448 = 0x7e; 0x7f and 0xff are NaN, and there is no infinity. to_e4m3_pair() of port.cuh
 * goes the other way.
 */
#ifndef SHEAF_CUDA_E4M3_CUH
#define SHEAF_CUDA_E4M3_CUH

#include "port.cuh"

#define E4M3_MAX 448.0f

/*
 * Two codes that stand in the low 16 bits as a pair of bfloat16, which hold them exactly; not
 * for NaN. Exponent and mantissa at the place of bfloat16's are the number times 2^-120, which
 * is subnormal when the code is.
 */
DEVICE uint32_t bf16_pair_of_e4m3(uint32_t two)
{
    const uint32_t halves = bytes_to_halves(two);
    const uint32_t pair = (halves & 0x00800080u) << 8 | (halves & 0x007f007fu) << 4;
    return multiply_add_pairs(pair, 0x7b807b80u /* 2^120 */, 0);
}

DEVICE float float_of_e4m3(uint8_t code)
{
    const uint32_t bits = (uint32_t)(code & 0x80) << 24 | (uint32_t)(code & 0x7f) << 20;
    float scaled;
    if ((code & 0x7f) == 0x7f)
        return NAN;
    memcpy(&scaled, &bits, sizeof(scaled));
    return scaled * 0x1p+120f;
}

#endif
