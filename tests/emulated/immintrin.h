/*
 * Stands in for the compiler's <immintrin.h> where kernels/ *_avx512.c are compiled for a CPU
 * of AVX2: the compiler's header first, then AVX-512 by SIMDe under its own names, then what
 * SIMDe 0.7.4 lacks, each as Intel's guide defines it and, where AVX2 has the instruction at
 * half the width, as two of those. An intrinsic that is in none of the three does not compile:
 * add it here.
 */
#ifndef SHEAF_EMULATED_IMMINTRIN_H
#define SHEAF_EMULATED_IMMINTRIN_H

#include_next <immintrin.h>

#define SIMDE_ENABLE_NATIVE_ALIASES
#include <simde/x86/avx512.h>
#include <stdint.h>
#include <string.h>

#if defined(__AVX512F__) || !defined(__AVX2__) || !defined(__FMA__) || !defined(__F16C__)
#error "the emulation is for -mavx2 -mfma -mf16c, and would be no emulation beyond"
#endif

union emulated_vector {
    __m512 ps;
    __m512i si;
    __m256 half_ps[2];
    __m256i half_si[2];
    float f[16];
    int32_t i[16];
};

/* ---- loads and stores under a mask: what the mask leaves out is not touched */

static inline __m512i emulated_maskz_loadu_epi32(__mmask16 mask, const void *p)
{
    union emulated_vector r = {.i = {0}};
    for (int i = 0; i < 16; i++)
        if (mask >> i & 1)
            memcpy(&r.i[i], (const char *)p + i * 4, 4);
    return r.si;
}

static inline __m512 emulated_maskz_loadu_ps(__mmask16 mask, const void *p)
{
    return _mm512_castsi512_ps(emulated_maskz_loadu_epi32(mask, p));
}

static inline void emulated_mask_storeu_ps(void *p, __mmask16 mask, __m512 x)
{
    const union emulated_vector v = {.ps = x};
    for (int i = 0; i < 16; i++)
        if (mask >> i & 1)
            memcpy((char *)p + i * 4, &v.f[i], 4);
}

/* ---- conversions, in halves */

static inline __m256 emulated_extractf32x8_ps(__m512 x, int half)
{
    const union emulated_vector v = {.ps = x};
    return v.half_ps[half & 1];
}

static inline __m512 emulated_cvtepi32_ps(__m512i x)
{
    const union emulated_vector v = {.si = x};
    const union emulated_vector r = {
        .half_ps = {_mm256_cvtepi32_ps(v.half_si[0]), _mm256_cvtepi32_ps(v.half_si[1])}};
    return r.ps;
}

static inline __m512i emulated_cvtps_epi32(__m512 x)
{
    const union emulated_vector v = {.ps = x};
    const union emulated_vector r = {
        .half_si = {_mm256_cvtps_epi32(v.half_ps[0]), _mm256_cvtps_epi32(v.half_ps[1])}};
    return r.si;
}

static inline __m512 emulated_cvtph_ps(__m256i x)
{
    const union emulated_vector r = {
        .half_ps = {_mm256_cvtph_ps(_mm256_castsi256_si128(x)),
                    _mm256_cvtph_ps(_mm256_extracti128_si256(x, 1))}};
    return r.ps;
}

static inline __m512i emulated_cvtepu16_epi32(__m256i x)
{
    const union emulated_vector r = {
        .half_si = {_mm256_cvtepu16_epi32(_mm256_castsi256_si128(x)),
                    _mm256_cvtepu16_epi32(_mm256_extracti128_si256(x, 1))}};
    return r.si;
}

static inline __m512i emulated_cvtepi8_epi32(__m128i x)
{
    const union emulated_vector r = {
        .half_si = {_mm256_cvtepi8_epi32(x), _mm256_cvtepi8_epi32(_mm_srli_si128(x, 8))}};
    return r.si;
}

static inline __m512i emulated_cvtepi8_epi16(__m256i x)
{
    const union emulated_vector r = {
        .half_si = {_mm256_cvtepi8_epi16(_mm256_castsi256_si128(x)),
                    _mm256_cvtepi8_epi16(_mm256_extracti128_si256(x, 1))}};
    return r.si;
}

/* The low byte of every lane. */
static inline __m128i emulated_cvtepi32_epi8(__m512i x)
{
    const union emulated_vector v = {.si = x};
    int8_t low[16];
    for (int i = 0; i < 16; i++)
        low[i] = (int8_t)(v.i[i] & 0xff);
    return _mm_loadu_si128((const __m128i *)low);
}

/* The low word of every lane. */
static inline __m256i emulated_cvtepi32_epi16(__m512i x)
{
    const union emulated_vector v = {.si = x};
    int16_t low[16];
    for (int i = 0; i < 16; i++)
        low[i] = (int16_t)(v.i[i] & 0xffff);
    return _mm256_loadu_si256((const __m256i *)low);
}

/* ---- lanes of a pair put in both, or exchanged within quarters */

static inline __m512 emulated_moveldup_ps(__m512 x)
{
    const union emulated_vector v = {.ps = x};
    const union emulated_vector r = {
        .half_ps = {_mm256_moveldup_ps(v.half_ps[0]), _mm256_moveldup_ps(v.half_ps[1])}};
    return r.ps;
}

static inline __m512 emulated_movehdup_ps(__m512 x)
{
    const union emulated_vector v = {.ps = x};
    const union emulated_vector r = {
        .half_ps = {_mm256_movehdup_ps(v.half_ps[0]), _mm256_movehdup_ps(v.half_ps[1])}};
    return r.ps;
}

/* Two quarters of a, then two of b, each named by two bits of which, lowest first. */
static inline __m512 emulated_shuffle_f32x4(__m512 a, __m512 b, int which)
{
    const union emulated_vector u = {.ps = a};
    const union emulated_vector v = {.ps = b};
    union emulated_vector r;
    for (int i = 0; i < 16; i++)
        r.f[i] = (i < 8 ? u.f : v.f)[(which >> i / 4 * 2 & 3) * 4 + i % 4];
    return r.ps;
}

/* Lane i of a quarter is the lane of it that two bits of order name, lowest first. */
static inline __m512 emulated_permute_ps(__m512 x, int order)
{
    const union emulated_vector v = {.ps = x};
    union emulated_vector r;
    for (int i = 0; i < 16; i++)
        r.f[i] = v.f[(i & ~3) + (order >> 2 * (i & 3) & 3)];
    return r.ps;
}

/* ---- dot products of words, and of unsigned by signed bytes */

static inline __m512i emulated_dpwssd_epi32(__m512i sum, __m512i a, __m512i b)
{
    union emulated_vector r = {.si = sum};
    const union emulated_vector u = {.si = a};
    const union emulated_vector v = {.si = b};
    for (int half = 0; half < 2; half++)
        r.half_si[half] = _mm256_add_epi32(r.half_si[half],
                                           _mm256_madd_epi16(u.half_si[half], v.half_si[half]));
    return r.si;
}

/* Even and odd bytes as 16-bit numbers; a sum of two products fits 32 bits, none saturates. */
static inline __m256i emulated_dot_half(__m256i sum, __m256i a, __m256i b)
{
    const __m256i even = _mm256_madd_epi16(_mm256_and_si256(a, _mm256_set1_epi16(255)),
                                           _mm256_srai_epi16(_mm256_slli_epi16(b, 8), 8));
    const __m256i odd = _mm256_madd_epi16(_mm256_srli_epi16(a, 8), _mm256_srai_epi16(b, 8));
    return _mm256_add_epi32(sum, _mm256_add_epi32(even, odd));
}

/* SIMDe has both too, in 2,048-bit vectors: a kernel of them takes minutes to compile. */
static inline __m512i emulated_dpbusd_epi32(__m512i sum, __m512i a, __m512i b)
{
    union emulated_vector r = {.si = sum};
    const union emulated_vector u = {.si = a};
    const union emulated_vector s = {.si = b};
    for (int half = 0; half < 2; half++)
        r.half_si[half] = emulated_dot_half(r.half_si[half], u.half_si[half], s.half_si[half]);
    return r.si;
}

/* ---- reductions */

static inline int emulated_reduce_add_epi32(__m512i x)
{
    const union emulated_vector v = {.si = x};
    uint32_t sum = 0;
    for (int i = 0; i < 16; i++)
        sum += (uint32_t)v.i[i];
    return (int)sum;
}

static inline int emulated_reduce_max_epi32(__m512i x)
{
    const union emulated_vector v = {.si = x};
    int greatest = v.i[0];
    for (int i = 1; i < 16; i++)
        greatest = v.i[i] > greatest ? v.i[i] : greatest;
    return greatest;
}

/* No instruction but a sequence of the compiler's: lanes 8 apart are added, then 4, 2, 1. */
static inline float emulated_reduce_add_ps(__m512 x)
{
    union emulated_vector v = {.ps = x};
    for (int apart = 8; apart > 0; apart /= 2)
        for (int i = 0; i < apart; i++)
            v.f[i] = v.f[i] + v.f[i + apart];
    return v.f[0];
}

#undef _mm512_maskz_loadu_epi32
#undef _mm512_maskz_loadu_ps
#undef _mm512_mask_storeu_ps
#undef _mm512_extractf32x8_ps
#undef _mm512_cvtepi32_ps
#undef _mm512_cvtps_epi32
#undef _mm512_cvtph_ps
#undef _mm512_cvtepu16_epi32
#undef _mm512_cvtepi8_epi32
#undef _mm512_cvtepi8_epi16
#undef _mm512_cvtepi32_epi8
#undef _mm512_cvtepi32_epi16
#undef _mm512_moveldup_ps
#undef _mm512_movehdup_ps
#undef _mm512_shuffle_f32x4
#undef _mm512_permute_ps
#undef _mm512_dpwssd_epi32
#undef _mm512_dpbusd_epi32
#undef _mm512_reduce_add_epi32
#undef _mm512_reduce_max_epi32
#undef _mm512_reduce_add_ps
#define _mm512_maskz_loadu_epi32(mask, p) emulated_maskz_loadu_epi32(mask, p)
#define _mm512_maskz_loadu_ps(mask, p)    emulated_maskz_loadu_ps(mask, p)
#define _mm512_mask_storeu_ps(p, mask, x) emulated_mask_storeu_ps(p, mask, x)
#define _mm512_extractf32x8_ps(x, half)   emulated_extractf32x8_ps(x, half)
#define _mm512_cvtepi32_ps(x)             emulated_cvtepi32_ps(x)
#define _mm512_cvtps_epi32(x)             emulated_cvtps_epi32(x)
#define _mm512_cvtph_ps(x)                emulated_cvtph_ps(x)
#define _mm512_cvtepu16_epi32(x)          emulated_cvtepu16_epi32(x)
#define _mm512_cvtepi8_epi32(x)           emulated_cvtepi8_epi32(x)
#define _mm512_cvtepi8_epi16(x)           emulated_cvtepi8_epi16(x)
#define _mm512_cvtepi32_epi8(x)           emulated_cvtepi32_epi8(x)
#define _mm512_cvtepi32_epi16(x)          emulated_cvtepi32_epi16(x)
#define _mm512_moveldup_ps(x)             emulated_moveldup_ps(x)
#define _mm512_movehdup_ps(x)             emulated_movehdup_ps(x)
#define _mm512_shuffle_f32x4(a, b, which) emulated_shuffle_f32x4(a, b, which)
#define _mm512_permute_ps(x, order)       emulated_permute_ps(x, order)
#define _mm512_dpwssd_epi32(sum, a, b)    emulated_dpwssd_epi32(sum, a, b)
#define _mm512_dpbusd_epi32(sum, a, b)    emulated_dpbusd_epi32(sum, a, b)
#define _mm512_reduce_add_epi32(x)        emulated_reduce_add_epi32(x)
#define _mm512_reduce_max_epi32(x)        emulated_reduce_max_epi32(x)
#define _mm512_reduce_add_ps(x)           emulated_reduce_add_ps(x)

/* Every size of a tile inlined is speed alone, and here it takes minutes to compile. */
#define always_inline

#endif
