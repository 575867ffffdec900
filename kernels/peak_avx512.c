/* Chains of the instructions that bound the AVX-512 kernels,
 * all in registers: every loop over them is unrolled, or the array would live in memory. */
#include <immintrin.h>
#include <stdbool.h>

#include "inline_int.h"
#include "peak_int.h"

static ALWAYS_INLINE int dot_chains(size_t n, bool of_words, __m512i a, __m512i b)
{
    __m512i acc[PEAK_CHAINS_AVX512];
#pragma GCC unroll 16
    for (int i = 0; i < PEAK_CHAINS_AVX512; i++)
        acc[i] = _mm512_set1_epi32(i);
    for (size_t round = 0; round < n; round++) {
        PEAK_KEEP(a);
        PEAK_KEEP(b);
#pragma GCC unroll 16
        for (int i = 0; i < PEAK_CHAINS_AVX512; i++)
            acc[i] = of_words ? _mm512_dpwssd_epi32(acc[i], a, b)
                              : _mm512_dpbusd_epi32(acc[i], a, b);
    }
#pragma GCC unroll 16
    for (int i = 1; i < PEAK_CHAINS_AVX512; i++)
        acc[0] = _mm512_add_epi32(acc[0], acc[i]);
    return _mm_cvtsi128_si32(_mm512_castsi512_si128(acc[0]));
}

int peak_dot_avx512(size_t n, const uint8_t *memory)
{
    (void)memory;
    return dot_chains(n, false, _mm512_set1_epi8(3), _mm512_set1_epi8(-5));
}

int peak_dot_words_avx512(size_t n, const uint8_t *memory)
{
    (void)memory;
    return dot_chains(n, true, _mm512_set1_epi16(3), _mm512_set1_epi16(-5));
}

int peak_fma_avx512(size_t n, const uint8_t *memory)
{
    (void)memory;
    __m512 acc[PEAK_CHAINS_AVX512];
    __m512 a = _mm512_set1_ps(0.999f);
    __m512 b = _mm512_set1_ps(0.001f);
#pragma GCC unroll 16
    for (int i = 0; i < PEAK_CHAINS_AVX512; i++)
        acc[i] = _mm512_set1_ps((float)i);
    for (size_t round = 0; round < n; round++) {
        PEAK_KEEP(a);
        PEAK_KEEP(b);
#pragma GCC unroll 16
        for (int i = 0; i < PEAK_CHAINS_AVX512; i++)
            acc[i] = _mm512_fmadd_ps(acc[i], a, b);
    }
#pragma GCC unroll 16
    for (int i = 1; i < PEAK_CHAINS_AVX512; i++)
        acc[0] = _mm512_add_ps(acc[0], acc[i]);
    return (int)_mm512_reduce_add_ps(acc[0]);
}
