/*
 * Sixteen floats as one vector. The twins of an op are written once over this type and
 * compiled twice, over lanes_avx512.h and lanes_avx2.h, so both run the same operations in the
 * same order by construction. Only for the _avx512.c files.
 */
#ifndef SHEAF_LANES_AVX512_H
#define SHEAF_LANES_AVX512_H

#include <immintrin.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "exp.h"
#include "kernels.h"

typedef __m512 lanes;

static inline lanes lanes_set1(float x)
{
    return _mm512_set1_ps(x);
}

static inline lanes lanes_load(const float *p)
{
    return _mm512_loadu_ps(p);
}

static inline void lanes_store(float *p, lanes x)
{
    _mm512_storeu_ps(p, x);
}

static inline __mmask16 lanes_first(size_t n)
{
    return (__mmask16)(n < LANES ? (1u << n) - 1 : 0xffffu);
}

/* The first n floats, then zeros; nothing behind them is touched. */
static inline lanes lanes_load_first(const float *p, size_t n)
{
    return _mm512_maskz_loadu_ps(lanes_first(n), p);
}

static inline void lanes_store_first(float *p, size_t n, lanes x)
{
    _mm512_mask_storeu_ps(p, lanes_first(n), x);
}

/* The first n lanes of x, the others of rest. */
static inline lanes lanes_keep_first(lanes x, size_t n, lanes rest)
{
    return _mm512_mask_blend_ps(lanes_first(n), rest, x);
}

static inline lanes lanes_add(lanes a, lanes b)
{
    return _mm512_add_ps(a, b);
}

static inline lanes lanes_sub(lanes a, lanes b)
{
    return _mm512_sub_ps(a, b);
}

static inline lanes lanes_mul(lanes a, lanes b)
{
    return _mm512_mul_ps(a, b);
}

static inline lanes lanes_div(lanes a, lanes b)
{
    return _mm512_div_ps(a, b);
}

static inline lanes lanes_fma(lanes a, lanes b, lanes c)
{
    return _mm512_fmadd_ps(a, b, c);
}

/* b where either is NaN. */
static inline lanes lanes_max(lanes a, lanes b)
{
    return _mm512_max_ps(a, b);
}

/* The tree of kernels.h: lanes 8 apart, 4, 2, 1. */
static inline float lanes_sum(lanes x)
{
    __m256 h = _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
    __m128 q = _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
    q = _mm_add_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_add_ss(q, _mm_movehdup_ps(q)));
}

static inline float lanes_greatest(lanes x)
{
    const __m256 h = _mm256_max_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
    __m128 q = _mm_max_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
    q = _mm_max_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_max_ss(q, _mm_movehdup_ps(q)));
}

/* Bit i: lane i of both is equal. */
static inline uint32_t lanes_equal(lanes a, lanes b)
{
    return _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ);
}

/* 16 pairs of bfloat16, widened: the first of each pair, the second of each pair. */
static inline void lanes_load_pairs_bf16(const uint16_t *p, lanes *first, lanes *second)
{
    const __m512i both = _mm512_loadu_si512(p);
    *first = _mm512_castsi512_ps(_mm512_slli_epi32(both, 16));
    *second = _mm512_castsi512_ps(_mm512_and_si512(both, _mm512_set1_epi32((int)0xffff0000u)));
}

static inline void lanes_load_pairs_f32(const float *p, lanes *first, lanes *second)
{
    const __m512i evens =
        _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    const __m512i odds = _mm512_add_epi32(evens, _mm512_set1_epi32(1));
    const lanes low = lanes_load(p);
    const lanes high = lanes_load(p + 16);
    *first = _mm512_permutex2var_ps(low, evens, high);
    *second = _mm512_permutex2var_ps(low, odds, high);
}

/* Pairs (a, b) of x by pairs (c, s): (a c - b s, b c + a s), products rounded. */
static inline lanes lanes_rotate_pairs(lanes x, lanes cos_sin)
{
    const lanes by_cos = lanes_mul(x, _mm512_moveldup_ps(cos_sin));
    const lanes by_sin = lanes_mul(_mm512_permute_ps(x, 0xb1), _mm512_movehdup_ps(cos_sin));
    return _mm512_mask_sub_ps(lanes_add(by_cos, by_sin), 0x5555, by_cos, by_sin);
}

/* kv_bf16_from_f32 of every lane. */
static inline void lanes_store_bf16(uint16_t *p, lanes x)
{
    const __m512i bits = _mm512_castps_si512(x);
    const __m512i upper = _mm512_srli_epi32(bits, 16);
    const __m512i is_odd = _mm512_and_si512(upper, _mm512_set1_epi32(1));
    const __m512i step = _mm512_add_epi32(is_odd, _mm512_set1_epi32(0x7fff));
    const __m512i rounded = _mm512_srli_epi32(_mm512_add_epi32(bits, step), 16);
    const __mmask16 is_nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    const __m512i half = _mm512_mask_or_epi32(rounded, is_nan, upper, _mm512_set1_epi32(0x40));
    _mm256_storeu_si256((__m256i *)p, _mm512_cvtepi32_epi16(half));
}

/* Sixteen 32-bit integers. */
typedef __m512i lanes_int;

static inline lanes_int lanes_int_set1(int32_t x)
{
    return _mm512_set1_epi32(x);
}

static inline lanes lanes_from_int(lanes_int x)
{
    return _mm512_cvtepi32_ps(x);
}

/* Of 16 quads of unsigned bytes a pair of words each: the first and third, or the others. */
static inline lanes_int lanes_load_words(const uint8_t *quads, bool others)
{
    const __m512i bytes = _mm512_loadu_si512(quads);
    return others ? _mm512_srli_epi16(bytes, 8)
                  : _mm512_and_si512(bytes, _mm512_set1_epi16(0x00ff));
}

/* sum + the two products of words of each lane, exact modulo 2^32. */
static inline lanes_int lanes_dot_words(lanes_int sum, lanes_int a, lanes_int b)
{
    return _mm512_dpwssd_epi32(sum, a, b);
}

/* 16 signed bytes as floats. */
static inline lanes lanes_load_int8(const int8_t *p)
{
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p)));
}

/* exp_scalar of every lane. */
static inline lanes lanes_exp(lanes x)
{
    const __mmask16 above = _mm512_cmp_ps_mask(x, lanes_set1(-INFINITY), _CMP_NEQ_UQ);
    x = _mm512_max_ps(lanes_set1(EXP_MIN), x);
    x = _mm512_min_ps(lanes_set1(EXP_MAX), x);
    const lanes rounder = lanes_set1(EXP_ROUNDER);
    const lanes rounded = lanes_add(lanes_mul(x, lanes_set1(EXP_LOG2_E)), rounder);
    const lanes n = lanes_sub(rounded, rounder);
    lanes r = _mm512_fnmadd_ps(n, lanes_set1(EXP_LN2_HI), x);
    r = _mm512_fnmadd_ps(n, lanes_set1(EXP_LN2_LO), r);
    lanes p = lanes_fma(lanes_set1(EXP_C5), r, lanes_set1(EXP_C4));
    p = lanes_fma(p, r, lanes_set1(EXP_C3));
    p = lanes_fma(p, r, lanes_set1(EXP_C2));
    p = lanes_fma(p, r, lanes_set1(EXP_C1));
    p = lanes_fma(p, r, lanes_set1(1.0f));
    const __m512i scale = _mm512_slli_epi32(_mm512_castps_si512(rounded), 23);
    return _mm512_castsi512_ps(_mm512_maskz_add_epi32(above, _mm512_castps_si512(p), scale));
}

#endif
