/*
 * Sixteen floats as two vectors of eight: lanes 0..7 and 8..15. The same functions as
 * lanes_avx512.h, where their contracts are. Only for the _avx2.c files.
 */
#ifndef SHEAF_LANES_AVX2_H
#define SHEAF_LANES_AVX2_H

#include <immintrin.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "exp.h"
#include "kernels.h"

typedef struct {
    __m256 lo, hi;
} lanes;

static inline lanes lanes_set1(float x)
{
    const __m256 v = _mm256_set1_ps(x);
    return (lanes){v, v};
}

static inline lanes lanes_load(const float *p)
{
    return (lanes){_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)};
}

static inline void lanes_store(float *p, lanes x)
{
    _mm256_storeu_ps(p, x.lo);
    _mm256_storeu_ps(p + 8, x.hi);
}

/* All ones in lanes begin + i < n of eight. */
static inline __m256i lanes_first(size_t n, int begin)
{
    const __m256i lane =
        _mm256_add_epi32(_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), _mm256_set1_epi32(begin));
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n < LANES ? (int)n : LANES), lane);
}

static inline lanes lanes_load_first(const float *p, size_t n)
{
    if (n <= 8) /* the address p + 8 may not exist */
        return (lanes){_mm256_maskload_ps(p, lanes_first(n, 0)), _mm256_setzero_ps()};
    return (lanes){_mm256_loadu_ps(p), _mm256_maskload_ps(p + 8, lanes_first(n, 8))};
}

static inline void lanes_store_first(float *p, size_t n, lanes x)
{
    _mm256_maskstore_ps(p, lanes_first(n, 0), x.lo);
    if (n > 8)
        _mm256_maskstore_ps(p + 8, lanes_first(n, 8), x.hi);
}

static inline lanes lanes_keep_first(lanes x, size_t n, lanes rest)
{
    return (lanes){
        _mm256_blendv_ps(rest.lo, x.lo, _mm256_castsi256_ps(lanes_first(n, 0))),
        _mm256_blendv_ps(rest.hi, x.hi, _mm256_castsi256_ps(lanes_first(n, 8))),
    };
}

static inline lanes lanes_add(lanes a, lanes b)
{
    return (lanes){_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)};
}

static inline lanes lanes_sub(lanes a, lanes b)
{
    return (lanes){_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)};
}

static inline lanes lanes_mul(lanes a, lanes b)
{
    return (lanes){_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)};
}

static inline lanes lanes_div(lanes a, lanes b)
{
    return (lanes){_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)};
}

static inline lanes lanes_fma(lanes a, lanes b, lanes c)
{
    return (lanes){_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}

static inline lanes lanes_max(lanes a, lanes b)
{
    return (lanes){_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)};
}

static inline float lanes_sum(lanes x)
{
    const __m256 h = _mm256_add_ps(x.lo, x.hi);
    __m128 q = _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
    q = _mm_add_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_add_ss(q, _mm_movehdup_ps(q)));
}

static inline float lanes_greatest(lanes x)
{
    const __m256 h = _mm256_max_ps(x.lo, x.hi);
    __m128 q = _mm_max_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
    q = _mm_max_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_max_ss(q, _mm_movehdup_ps(q)));
}

static inline __m256 lanes_greater_half(bool as_bits, __m256 a, __m256 b)
{
    return as_bits ? _mm256_castsi256_ps(
                         _mm256_max_epu32(_mm256_castps_si256(a), _mm256_castps_si256(b)))
                   : _mm256_max_ps(a, b);
}

static inline lanes lanes_greater(bool as_bits, lanes a, lanes b)
{
    return (lanes){lanes_greater_half(as_bits, a.lo, b.lo),
                   lanes_greater_half(as_bits, a.hi, b.hi)};
}

static inline __m256 lanes_fold_pairs(bool as_bits, __m256 a, __m256 b)
{
    return lanes_greater_half(as_bits, _mm256_shuffle_ps(a, b, 0x88),
                              _mm256_shuffle_ps(a, b, 0xdd));
}

/* Each half of the result has what is left of a or b. */
static inline __m256 lanes_fold_two(bool as_bits, lanes a, lanes b)
{
    const __m256 x = lanes_greater_half(as_bits, a.lo, a.hi);
    const __m256 y = lanes_greater_half(as_bits, b.lo, b.hi);
    return lanes_greater_half(as_bits, _mm256_permute2f128_ps(x, y, 0x20),
                              _mm256_permute2f128_ps(x, y, 0x31));
}

/* Lane 4 * (i % 2) + i / 2: the greatest of x[i], i < 8. */
static inline __m256 lanes_fold_eight(bool as_bits, size_t n, const lanes *x)
{
    __m256 twos[4];
    for (size_t i = 0; i < 4; i++) {
        const size_t first = 2 * i < n ? 2 * i : 0;
        twos[i] = lanes_fold_two(as_bits, x[first], x[first + 1 < n ? first + 1 : first]);
    }
    return lanes_fold_pairs(as_bits, lanes_fold_pairs(as_bits, twos[0], twos[1]),
                            lanes_fold_pairs(as_bits, twos[2], twos[3]));
}

static inline lanes lanes_greatest_each(bool as_bits, size_t n, const lanes *x)
{
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    const __m256 lo = lanes_fold_eight(as_bits, n < 8 ? n : 8, x);
    const __m256 hi = n <= 8 ? lo : lanes_fold_eight(as_bits, n - 8, x + 8);
    return (lanes){_mm256_permutevar8x32_ps(lo, order), _mm256_permutevar8x32_ps(hi, order)};
}

static inline lanes lanes_if_less(lanes a, lanes b, lanes then, lanes otherwise)
{
    return (lanes){
        _mm256_blendv_ps(otherwise.lo, then.lo, _mm256_cmp_ps(a.lo, b.lo, _CMP_LT_OQ)),
        _mm256_blendv_ps(otherwise.hi, then.hi, _mm256_cmp_ps(a.hi, b.hi, _CMP_LT_OQ)),
    };
}

static inline uint32_t lanes_equal(lanes a, lanes b)
{
    const int lo = _mm256_movemask_ps(_mm256_cmp_ps(a.lo, b.lo, _CMP_EQ_OQ));
    const int hi = _mm256_movemask_ps(_mm256_cmp_ps(a.hi, b.hi, _CMP_EQ_OQ));
    return (uint32_t)(lo | hi << 8);
}

static inline __m256 lanes_widen_first(__m256i both)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(both, 16));
}

static inline __m256 lanes_widen_second(__m256i both)
{
    return _mm256_castsi256_ps(_mm256_and_si256(both, _mm256_set1_epi32((int)0xffff0000u)));
}

static inline void lanes_load_pairs_bf16(const uint16_t *p, lanes *first, lanes *second)
{
    const __m256i lo = _mm256_loadu_si256((const __m256i *)p);
    const __m256i hi = _mm256_loadu_si256((const __m256i *)(p + 16));
    *first = (lanes){lanes_widen_first(lo), lanes_widen_first(hi)};
    *second = (lanes){lanes_widen_second(lo), lanes_widen_second(hi)};
}

/* From pairs 0..7 the firsts and the seconds: shuffle within halves, then order the quarters.
 */
static inline void lanes_split_pairs(const float *p, __m256 *first, __m256 *second)
{
    const __m256 a = _mm256_loadu_ps(p);
    const __m256 b = _mm256_loadu_ps(p + 8);
    const __m256 evens = _mm256_shuffle_ps(a, b, 0x88);
    const __m256 odds = _mm256_shuffle_ps(a, b, 0xdd);
    *first = _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(evens), 0xd8));
    *second = _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(odds), 0xd8));
}

static inline void lanes_load_pairs_f32(const float *p, lanes *first, lanes *second)
{
    lanes_split_pairs(p, &first->lo, &second->lo);
    lanes_split_pairs(p + 16, &first->hi, &second->hi);
}

static inline __m256 lanes_rotate_half(__m256 x, __m256 cos_sin)
{
    const __m256 by_cos = _mm256_mul_ps(x, _mm256_moveldup_ps(cos_sin));
    const __m256 swapped = _mm256_permute_ps(x, 0xb1);
    return _mm256_addsub_ps(by_cos, _mm256_mul_ps(swapped, _mm256_movehdup_ps(cos_sin)));
}

static inline lanes lanes_rotate_pairs(lanes x, lanes cos_sin)
{
    return (lanes){lanes_rotate_half(x.lo, cos_sin.lo), lanes_rotate_half(x.hi, cos_sin.hi)};
}

static inline __m256i lanes_bf16_half(__m256 x)
{
    const __m256i bits = _mm256_castps_si256(x);
    const __m256i upper = _mm256_srli_epi32(bits, 16);
    const __m256i is_odd = _mm256_and_si256(upper, _mm256_set1_epi32(1));
    const __m256i step = _mm256_add_epi32(is_odd, _mm256_set1_epi32(0x7fff));
    const __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(bits, step), 16);
    const __m256i quiet = _mm256_or_si256(upper, _mm256_set1_epi32(0x40));
    const __m256 is_nan = _mm256_cmp_ps(x, x, _CMP_UNORD_Q);
    return _mm256_blendv_epi8(rounded, quiet, _mm256_castps_si256(is_nan));
}

/* The pack interleaves 128-bit halves: quarters come out as 0 2 1 3. */
static inline void lanes_store_bf16(uint16_t *p, lanes x)
{
    const __m256i words = _mm256_packus_epi32(lanes_bf16_half(x.lo), lanes_bf16_half(x.hi));
    _mm256_storeu_si256((__m256i *)p, _mm256_permute4x64_epi64(words, 0xd8));
}

typedef struct {
    __m256i lo, hi;
} lanes_int;

static inline lanes_int lanes_int_set1(int32_t x)
{
    const __m256i v = _mm256_set1_epi32(x);
    return (lanes_int){v, v};
}

static inline lanes lanes_from_int(lanes_int x)
{
    return (lanes){_mm256_cvtepi32_ps(x.lo), _mm256_cvtepi32_ps(x.hi)};
}

static inline __m256i lanes_load_words_half(const uint8_t *quads, bool others)
{
    const __m256i bytes = _mm256_loadu_si256((const __m256i *)quads);
    return others ? _mm256_srli_epi16(bytes, 8)
                  : _mm256_and_si256(bytes, _mm256_set1_epi16(0x00ff));
}

static inline lanes_int lanes_load_words(const uint8_t *quads, bool others)
{
    return (lanes_int){lanes_load_words_half(quads, others),
                       lanes_load_words_half(quads + 32, others)};
}

/*
 * The empty instruction keeps the compiler from adding two steps' products first: for these
 * there are no registers left beside a tile of sums.
 */
static inline lanes_int lanes_dot_words(lanes_int sum, lanes_int a, lanes_int b)
{
    sum.lo = _mm256_add_epi32(sum.lo, _mm256_madd_epi16(a.lo, b.lo));
    sum.hi = _mm256_add_epi32(sum.hi, _mm256_madd_epi16(a.hi, b.hi));
    __asm__("" : "+x"(sum.lo), "+x"(sum.hi));
    return sum;
}

static inline lanes_int lanes_int_add(lanes_int a, lanes_int b)
{
    return (lanes_int){_mm256_add_epi32(a.lo, b.lo), _mm256_add_epi32(a.hi, b.hi)};
}

static inline lanes_int lanes_load_bytes(const int8_t *p)
{
    return (lanes_int){_mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)p)),
                       _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(p + 16)))};
}

/* The pack interleaves 128-bit halves: quarters come out as 0 2 1 3. */
static inline void lanes_store_words_half(int32_t *p, lanes x)
{
    const __m256i words =
        _mm256_packs_epi32(_mm256_cvtps_epi32(x.lo), _mm256_cvtps_epi32(x.hi));
    _mm256_storeu_si256((__m256i *)p, _mm256_permute4x64_epi64(words, 0xd8));
}

static inline void lanes_store_words(int32_t p[LANES], lanes first, lanes second)
{
    lanes_store_words_half(p, first);
    lanes_store_words_half(p + 8, second);
}

static inline __m256 lanes_exp_half(__m256 x)
{
    const __m256 above = _mm256_cmp_ps(x, _mm256_set1_ps(-INFINITY), _CMP_NEQ_UQ);
    x = _mm256_max_ps(_mm256_set1_ps(EXP_MIN), x);
    x = _mm256_min_ps(_mm256_set1_ps(EXP_MAX), x);
    const __m256 rounder = _mm256_set1_ps(EXP_ROUNDER);
    const __m256 rounded = _mm256_add_ps(_mm256_mul_ps(x, _mm256_set1_ps(EXP_LOG2_E)), rounder);
    const __m256 n = _mm256_sub_ps(rounded, rounder);
    __m256 r = _mm256_fnmadd_ps(n, _mm256_set1_ps(EXP_LN2_HI), x);
    r = _mm256_fnmadd_ps(n, _mm256_set1_ps(EXP_LN2_LO), r);
    __m256 p = _mm256_fmadd_ps(_mm256_set1_ps(EXP_C5), r, _mm256_set1_ps(EXP_C4));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(EXP_C3));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(EXP_C2));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(EXP_C1));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f));
    const __m256i scale = _mm256_slli_epi32(_mm256_castps_si256(rounded), 23);
    const __m256i scaled = _mm256_add_epi32(_mm256_castps_si256(p), scale);
    return _mm256_and_ps(_mm256_castsi256_ps(scaled), above);
}

static inline lanes lanes_exp(lanes x)
{
    return (lanes){lanes_exp_half(x.lo), lanes_exp_half(x.hi)};
}

#endif
