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

/*
 * The greater of each lane. as_bits compares floats as unsigned integers: of numbers from +0 on
 * the order is the same, and a NaN of any sign is greater than all of them.
 */
static inline lanes lanes_greater(bool as_bits, lanes a, lanes b)
{
    return as_bits ? _mm512_castsi512_ps(
                         _mm512_max_epu32(_mm512_castps_si512(a), _mm512_castps_si512(b)))
                   : _mm512_max_ps(a, b);
}

/* Each quarter of the result has what is left of one of a, b, c, d. */
static inline lanes lanes_fold_four(bool as_bits, lanes a, lanes b, lanes c, lanes d)
{
    const lanes ab = lanes_greater(as_bits, _mm512_shuffle_f32x4(a, b, 0x44),
                                   _mm512_shuffle_f32x4(a, b, 0xee));
    const lanes cd = lanes_greater(as_bits, _mm512_shuffle_f32x4(c, d, 0x44),
                                   _mm512_shuffle_f32x4(c, d, 0xee));
    return lanes_greater(as_bits, _mm512_shuffle_f32x4(ab, cd, 0x88),
                         _mm512_shuffle_f32x4(ab, cd, 0xdd));
}

static inline lanes lanes_fold_pairs(bool as_bits, lanes a, lanes b)
{
    return lanes_greater(as_bits, _mm512_shuffle_ps(a, b, 0x88), _mm512_shuffle_ps(a, b, 0xdd));
}

/* Lane i: the greatest of the vector x[i], 0 < n <= LANES; lanes from n on hold anything. */
static inline lanes lanes_greatest_each(bool as_bits, size_t n, const lanes *x)
{
    lanes fours[4];
    for (size_t i = 0; i < 4; i++) {
        const lanes *v = x + (4 * i < n ? 4 * i : 0);
        const size_t last = 4 * i < n ? n - 4 * i - 1 : 0;
        fours[i] = lanes_fold_four(as_bits, v[0], v[last < 1 ? last : 1],
                                   v[last < 2 ? last : 2], v[last < 3 ? last : 3]);
    }
    const lanes quarters =
        lanes_fold_pairs(as_bits, lanes_fold_pairs(as_bits, fours[0], fours[1]),
                         lanes_fold_pairs(as_bits, fours[2], fours[3]));
    const __m512i order =
        _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    return _mm512_permutexvar_ps(order, quarters);
}

/* then where a < b, otherwise where not or either is NaN. */
static inline lanes lanes_if_less(lanes a, lanes b, lanes then, lanes otherwise)
{
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), otherwise, then);
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

/*
 * sum + the two products of words of each lane, exact modulo 2^32. The empty instruction keeps
 * the compiler from copying sums about, for which there are no registers left beside a tile.
 */
static inline lanes_int lanes_dot_words(lanes_int sum, lanes_int a, lanes_int b)
{
    sum = _mm512_dpwssd_epi32(sum, a, b);
#ifdef __AVX512F__ /* where it is not emulated */
    __asm__("" : "+v"(sum));
#endif
    return sum;
}

static inline lanes_int lanes_int_add(lanes_int a, lanes_int b)
{
    return _mm512_add_epi32(a, b);
}

/* 32 signed bytes as words. */
static inline lanes_int lanes_load_bytes(const int8_t *p)
{
    return _mm512_cvtepi8_epi16(_mm256_loadu_si256((const __m256i *)p));
}

/* Numbers of at most 16 bits as 32 words, each the nearest, half way the even one. */
static inline void lanes_store_words(int32_t p[LANES], lanes first, lanes second)
{
    const __m512i order = _mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7);
    const __m512i words =
        _mm512_packs_epi32(_mm512_cvtps_epi32(first), _mm512_cvtps_epi32(second));
    _mm512_storeu_si512(p, _mm512_permutexvar_epi64(order, words));
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
