/*
 * Emulated intrinsics made wrong, one per build: what a twin test must notice. Included before
 * a kernel by the compiler's -include.
 */
#ifndef SHEAF_EMULATED_FLAWS_H
#define SHEAF_EMULATED_FLAWS_H

#include <immintrin.h>
#include <math.h>

#ifdef FLAW_UNFUSED
#undef _mm512_fmadd_ps
#define _mm512_fmadd_ps(a, b, c) _mm512_add_ps(_mm512_mul_ps(a, b), c)
#endif

/* Sums of two products stop at 16 bits, as in the instruction of AVX2 for bytes. */
#ifdef FLAW_SATURATED
static inline __m256i flawed_dot_half(__m256i sum, __m256i a, __m256i b)
{
    const __m256i pairs = _mm256_maddubs_epi16(a, b);
    return _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}
static inline __m512i flawed_dpbusd_epi32(__m512i sum, __m512i a, __m512i b)
{
    union emulated_vector r = {.si = sum};
    const union emulated_vector u = {.si = a};
    const union emulated_vector s = {.si = b};
    for (int half = 0; half < 2; half++)
        r.half_si[half] = flawed_dot_half(r.half_si[half], u.half_si[half], s.half_si[half]);
    return r.si;
}
#undef _mm512_dpbusd_epi32
#define _mm512_dpbusd_epi32(sum, a, b) flawed_dpbusd_epi32(sum, a, b)
#endif

/* Half way goes away from zero, not to the even number. */
#ifdef FLAW_ROUNDED_AWAY
static inline __m512i flawed_cvtps_epi32(__m512 x)
{
    const union emulated_vector v = {.ps = x};
    union emulated_vector r;
    for (int i = 0; i < 16; i++)
        r.i[i] = (int32_t)roundf(v.f[i]);
    return r.si;
}
#undef _mm512_cvtps_epi32
#define _mm512_cvtps_epi32(x) flawed_cvtps_epi32(x)
#endif

/* One bit of one lane. */
#ifdef FLAW_BIT
static inline __m512 flawed_mul_ps(__m512 a, __m512 b)
{
    union emulated_vector r = {.ps = _mm512_mul_ps(a, b)};
    r.i[13] ^= 1;
    return r.ps;
}
#undef _mm512_mul_ps
#define _mm512_mul_ps(a, b) flawed_mul_ps(a, b)
#endif

#endif
