/* Part of port.cuh: floats to E4M3 (e4m3.cuh), by the instruction of devices of 8.9 and later,
 * and without it. */
#ifndef SHEAF_CUDA_PORT_E4M3_CUH
#define SHEAF_CUDA_PORT_E4M3_CUH

DEVICE uint32_t port_e4m3(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof(bits));
    const uint32_t sign = bits >> 24 & 0x80;
    const uint32_t size = bits & 0x7fffffff;
    if (size > 0x7f800000)
        return 0x7f;
    if (size >= 0x43e00000) /* 448 */
        return sign | 0x7e;
    if (size >= 0x3c800000) { /* 2^-6: 20 bits fewer of mantissa, another exponent bias */
        const uint32_t rounded = size + 0x7ffff + (size >> 20 & 1);
        return sign | ((rounded >> 20) - ((127 - 7) << 3));
    }
    const float units = fabsf(value) + 16384.0f; /* whose last bit is 2^-9, like theirs */
    memcpy(&bits, &units, sizeof(bits));
    return sign | (bits - 0x46800000);
}

DEVICE uint32_t to_e4m3_pair(float low, float high)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
    uint16_t pair;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(high), "f"(low));
    return pair;
#else
    return port_e4m3(low) | port_e4m3(high) << 8;
#endif
}

#endif
