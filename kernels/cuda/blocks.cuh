/*
 * Stored blocks taken apart on the device; the layouts are kernels/quant.c's, byte for byte,
 * and the values those of quant_dequantize_row, bit for bit.
 *
 * A group is 32 neighbouring elements of a row, a quad four: lanes that each take a quad read
 * and write side by side. The value of element j of a group is scale[j / 16] * (code[j] -
 * zero), plus min where the type has minima. IQ4_NL's levels are looked up when its codes are
 * read, so its codes are the levels plus 128.
 *
 * Rows are at least 2-byte aligned (4-byte for F32), which those of a matrix that starts on 16
 * bytes always are. Wider loads are used where every block of the type allows them.
 */
#ifndef SHEAF_CUDA_BLOCKS_CUH
#define SHEAF_CUDA_BLOCKS_CUH

#include <string.h>

#include "port.cuh"

extern "C" {
#include "quant.h"
}

enum { GROUP_ELEMS = 32, QUAD_ELEMS = 4, GROUP_QUADS = GROUP_ELEMS / QUAD_ELEMS };

/* ---- the types as numbers known when the code is built */

template <quant_type T> struct block_of;
#define BLOCK_OF(type, elems, bytes, align, zero, has_min)                                     \
    template <> struct block_of<type> {                                                        \
        enum { ELEMS = elems, BYTES = bytes, ALIGN = align, ZERO = zero, HAS_MIN = has_min };  \
    }
BLOCK_OF(QUANT_F32, 1, 4, 4, 0, 0);
BLOCK_OF(QUANT_F16, 1, 2, 2, 0, 0);
BLOCK_OF(QUANT_BF16, 1, 2, 2, 0, 0);
BLOCK_OF(QUANT_Q4_0, 32, 18, 2, 8, 0);
BLOCK_OF(QUANT_Q4_1, 32, 20, 4, 0, 1);
BLOCK_OF(QUANT_Q5_0, 32, 22, 2, 16, 0);
BLOCK_OF(QUANT_Q5_1, 32, 24, 4, 0, 1);
BLOCK_OF(QUANT_Q8_0, 32, 34, 2, 128, 0);
BLOCK_OF(QUANT_IQ4_NL, 32, 18, 2, 128, 0);
BLOCK_OF(QUANT_Q4_K, 256, 144, 4, 0, 1);
BLOCK_OF(QUANT_Q5_K, 256, 176, 4, 0, 1);
BLOCK_OF(QUANT_Q6_K, 256, 210, 2, 32, 0);
#undef BLOCK_OF

template <quant_type T> DEVICE constexpr bool is_float_type()
{
    return T == QUANT_F32 || T == QUANT_F16 || T == QUANT_BF16;
}

/*
 * Runs the statement with T being the constant of a type's run-time id:
 *     WITH_QUANT_TYPE(w.type, LAUNCH(kernel<T>, ...));
 * An id that is none of quant.h's runs nothing.
 */
#define QUANT_CASE(type, ...)                                                                  \
    case type: {                                                                               \
        constexpr quant_type T = type;                                                         \
        __VA_ARGS__;                                                                           \
        break;                                                                                 \
    }
#define WITH_QUANT_TYPE(type_id, ...)                                                          \
    switch (type_id) {                                                                         \
        QUANT_CASE(QUANT_F32, __VA_ARGS__)                                                     \
        QUANT_CASE(QUANT_F16, __VA_ARGS__)                                                     \
        QUANT_CASE(QUANT_BF16, __VA_ARGS__)                                                    \
        WITH_BLOCK_CASES(__VA_ARGS__)                                                          \
    default: break;                                                                            \
    }
/* The same for the types that have codes. */
#define WITH_BLOCK_TYPE(type_id, ...)                                                          \
    switch (type_id) {                                                                         \
        WITH_BLOCK_CASES(__VA_ARGS__)                                                          \
    default: break;                                                                            \
    }
#define WITH_BLOCK_CASES(...)                                                                  \
    QUANT_CASE(QUANT_Q4_0, __VA_ARGS__)                                                        \
    QUANT_CASE(QUANT_Q4_1, __VA_ARGS__)                                                        \
    QUANT_CASE(QUANT_Q5_0, __VA_ARGS__)                                                        \
    QUANT_CASE(QUANT_Q5_1, __VA_ARGS__)                                                        \
    QUANT_CASE(QUANT_Q8_0, __VA_ARGS__)                                                        \
    QUANT_CASE(QUANT_IQ4_NL, __VA_ARGS__)                                                      \
    QUANT_CASE(QUANT_Q4_K, __VA_ARGS__)                                                        \
    QUANT_CASE(QUANT_Q5_K, __VA_ARGS__)                                                        \
    QUANT_CASE(QUANT_Q6_K, __VA_ARGS__)

/* ---- bits */

DEVICE float float_of_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

DEVICE uint16_t load_u16(const uint8_t *at)
{
    return *(const uint16_t *)at;
}

DEVICE float load_half(const uint8_t *at)
{
    return half_bits_to_float(load_u16(at));
}

/* Four bytes as a little-endian number, from a place that all blocks of the type align. */
template <quant_type T> DEVICE uint32_t load_word(const uint8_t *at)
{
    if constexpr (block_of<T>::ALIGN >= 4)
        return *(const uint32_t *)at;
    else
        return load_u16(at) | (uint32_t)load_u16(at + 2) << 16;
}

/* Bit i of the low four goes to bit 4 of byte i: the fifth bits of four codes. */
DEVICE uint32_t fifth_bits(uint32_t bits)
{
    return ((bits & 15u) * 0x00204081u & 0x01010101u) << 4;
}

/* ---- one group's numbers */

struct group_scales {
    float scale[2]; /* of elements 0..15 and 16..31; equal but in Q6_K */
    float min;      /* signed so that it is added; 0 without minima */
};

/* Where the block of a row's group starts. */
template <quant_type T> DEVICE const uint8_t *block_of_group(const uint8_t *row, int group)
{
    constexpr int n_groups = block_of<T>::ELEMS / GROUP_ELEMS;
    return row + (int64_t)(group / n_groups) * block_of<T>::BYTES;
}

/* Of a block that has several, the group's number in it. */
template <quant_type T> DEVICE int group_in_block(int group)
{
    return group % (block_of<T>::ELEMS / GROUP_ELEMS);
}

/* The 6-bit scale and minimum of group g from Q4_K's and Q5_K's twelve bytes. */
DEVICE void read_k_scales(const uint8_t *sc, int g, uint32_t *scale, uint32_t *min)
{
    if (g < 4) {
        *scale = sc[g] & 63u;
        *min = sc[g + 4] & 63u;
    } else {
        *scale = (sc[g + 4] & 15u) | (uint32_t)(sc[g - 4] >> 6) << 4;
        *min = (uint32_t)(sc[g + 4] >> 4) | (uint32_t)(sc[g] >> 6) << 4;
    }
}

DEVICE group_scales k_scales_of(const uint8_t *block, int g)
{
    uint32_t scale;
    uint32_t min;
    read_k_scales(block + 4, g, &scale, &min);
    const float s = mul_rounded(load_half(block), (float)scale);
    return {{s, s}, -mul_rounded(load_half(block + 2), (float)min)};
}

DEVICE group_scales q6k_scales_of(const uint8_t *block, int g)
{
    const int8_t *sc = (const int8_t *)block + 192 + 2 * g;
    const float d = load_half(block + 208);
    return {{mul_rounded(d, (float)sc[0]), mul_rounded(d, (float)sc[1])}, 0.0f};
}

template <quant_type T> DEVICE group_scales read_scales(const uint8_t *block, int g)
{
    static_assert(!is_float_type<T>(), "has blocks");
    if constexpr (T == QUANT_Q6_K) {
        return q6k_scales_of(block, g);
    } else if constexpr (T == QUANT_Q4_K || T == QUANT_Q5_K) {
        return k_scales_of(block, g);
    } else {
        const float d = load_half(block);
        return {{d, d}, block_of<T>::HAS_MIN ? load_half(block + 2) : 0.0f};
    }
}

/* ---- codes: those of elements 4 w .. 4 w + 3 of group g, one each byte, w in 0..7 */

/* Sixteen bytes of low, then high nibbles. */
template <quant_type T> DEVICE uint32_t read_nibbles(const uint8_t *qs, int w)
{
    return load_word<T>(qs + 4 * (w & 3)) >> (w & 4) & 0x0f0f0f0fu;
}

/* A nibble's level, plus 128. */
DEVICE uint32_t iq4nl_code(uint32_t nibble)
{
    const uint64_t low = 0x766a5d4f3f2d1801u;  /* 118 106 93 79 63 45 24 1 */
    const uint64_t high = 0xf1d9c5b5a6998d81u; /* 241 217 197 181 166 153 141 129 */
    return (uint32_t)((nibble & 8 ? high : low) >> 8 * (nibble & 7)) & 255u;
}

DEVICE uint32_t iq4nl_codes(uint32_t nibbles)
{
    return iq4nl_code(nibbles & 15) | iq4nl_code(nibbles >> 8 & 15) << 8 |
           iq4nl_code(nibbles >> 16 & 15) << 16 | iq4nl_code(nibbles >> 24 & 15) << 24;
}

template <quant_type T> DEVICE uint32_t read_k_codes(const uint8_t *block, int g, int w)
{
    const uint8_t *qs = block + (T == QUANT_Q5_K ? 48 : 16) + 32 * (g / 2);
    const uint32_t low = load_word<T>(qs + 4 * w) >> 4 * (g & 1) & 0x0f0f0f0fu;
    if constexpr (T == QUANT_Q5_K)
        return low | (load_word<T>(block + 16 + 4 * w) >> g & 0x01010101u) << 4;
    else
        return low;
}

DEVICE uint32_t read_q6k_codes(const uint8_t *block, int g, int w)
{
    const int half = g / 4;
    const int j = g % 4;
    const uint8_t *ql = block + 64 * half + 32 * (j & 1);
    const uint8_t *qh = block + 128 + 32 * half;
    const uint32_t low = load_word<QUANT_Q6_K>(ql + 4 * w) >> 2 * (j & 2) & 0x0f0f0f0fu;
    return low | (load_word<QUANT_Q6_K>(qh + 4 * w) >> 2 * j & 0x03030303u) << 4;
}

template <quant_type T> DEVICE uint32_t read_codes(const uint8_t *block, int g, int w)
{
    static_assert(!is_float_type<T>(), "has codes");
    if constexpr (T == QUANT_Q4_0 || T == QUANT_Q4_1) {
        return read_nibbles<T>(block + (T == QUANT_Q4_1 ? 4 : 2), w);
    } else if constexpr (T == QUANT_IQ4_NL) {
        return iq4nl_codes(read_nibbles<T>(block + 2, w));
    } else if constexpr (T == QUANT_Q5_0 || T == QUANT_Q5_1) {
        const uint8_t *high = block + (T == QUANT_Q5_1 ? 4 : 2);
        return read_nibbles<T>(high + 4, w) | fifth_bits(load_word<T>(high) >> 4 * w);
    } else if constexpr (T == QUANT_Q8_0) {
        return load_word<T>(block + 2 + 4 * w) ^ 0x80808080u;
    } else if constexpr (T == QUANT_Q6_K) {
        return read_q6k_codes(block, g, w);
    } else {
        return read_k_codes<T>(block, g, w);
    }
}

/* The code in byte i as a float, less the type's zero; exact, and cheaper than a conversion:
 * the byte becomes the lowest bits of 2^23. */
template <quant_type T> DEVICE float level_of(uint32_t codes, int i)
{
    constexpr float zero = 8388608.0f + (float)block_of<T>::ZERO;
    return float_of_bits((codes >> 8 * i & 255u) | 0x4b000000u) - zero;
}

template <quant_type T> DEVICE float value_of(float level, float scale, float min)
{
    const float product = mul_rounded(scale, level);
    return block_of<T>::HAS_MIN ? add_rounded(product, min) : product;
}

/* ---- values */

/* Element i of a row of a float type. */
template <quant_type T> DEVICE float read_float(const uint8_t *row, int i)
{
    static_assert(is_float_type<T>(), "has no blocks");
    if constexpr (T == QUANT_F32)
        return ((const float *)row)[i];
    else if constexpr (T == QUANT_F16)
        return load_half(row + 2 * (int64_t)i);
    else
        return float_of_bits((uint32_t)load_u16(row + 2 * (int64_t)i) << 16);
}

template <typename WORD> struct alignas(QUAD_ELEMS * sizeof(WORD)) quad_of {
    WORD v[QUAD_ELEMS];
};

/* One access where the row lies so that it can be. */
template <quant_type T> DEVICE void read_float_quad(const uint8_t *row, int quad, float out[4])
{
    const uint8_t *at = row + (int64_t)quad * QUAD_ELEMS * block_of<T>::BYTES;
    if ((uintptr_t)at % (QUAD_ELEMS * block_of<T>::BYTES) != 0) {
        for (int i = 0; i < QUAD_ELEMS; i++)
            out[i] = read_float<T>(at, i);
    } else if constexpr (T == QUANT_F32) {
        const quad_of<uint32_t> bits = *(const quad_of<uint32_t> *)at;
        for (int i = 0; i < QUAD_ELEMS; i++)
            out[i] = float_of_bits(bits.v[i]);
    } else {
        const quad_of<uint16_t> bits = *(const quad_of<uint16_t> *)at;
        for (int i = 0; i < QUAD_ELEMS; i++)
            out[i] = T == QUANT_F16 ? half_bits_to_float(bits.v[i])
                                    : float_of_bits((uint32_t)bits.v[i] << 16);
    }
}

/* The four values from element 4 * quad on. A row of a float type has them all. */
template <quant_type T> DEVICE void decode_quad(const uint8_t *row, int quad, float out[4])
{
    if constexpr (is_float_type<T>()) {
        read_float_quad<T>(row, quad, out);
    } else {
        const int group = quad / GROUP_QUADS;
        const int w = quad % GROUP_QUADS;
        const uint8_t *block = block_of_group<T>(row, group);
        const group_scales s = read_scales<T>(block, group_in_block<T>(group));
        const uint32_t codes = read_codes<T>(block, group_in_block<T>(group), w);
        const float scale = w < GROUP_QUADS / 2 ? s.scale[0] : s.scale[1];
        for (int i = 0; i < QUAD_ELEMS; i++)
            out[i] = value_of<T>(level_of<T>(codes, i), scale, s.min);
    }
}

/* The 32 values of a group. */
template <quant_type T> DEVICE void decode_group(const uint8_t *row, int group, float out[32])
{
    for (int w = 0; w < GROUP_QUADS; w++)
        decode_quad<T>(row, group * GROUP_QUADS + w, out + w * QUAD_ELEMS);
}

#endif
