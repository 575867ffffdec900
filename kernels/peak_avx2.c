/* Chains of the instructions that bound the AVX2 kernels,
 * all in registers: every loop over them is unrolled, or the array would live in memory. */
#include <immintrin.h>
#include <stdbool.h>

#include "inline_int.h"
#include "peak_int.h"

/* Each chain is a whole dot product: vpmaddubsw for bytes, vpmaddwd, vpaddd. */
static ALWAYS_INLINE int dot_chains(size_t n, bool of_words, __m256i a, __m256i b)
{
    __m256i acc[PEAK_DOT_CHAINS_AVX2];
    const __m256i ones = _mm256_set1_epi16(1);
#pragma GCC unroll 6
    for (int i = 0; i < PEAK_DOT_CHAINS_AVX2; i++)
        acc[i] = _mm256_set1_epi32(i);
    for (size_t round = 0; round < n; round++) {
#pragma GCC unroll 6
        for (int i = 0; i < PEAK_DOT_CHAINS_AVX2; i++) {
            PEAK_KEEP(b);
            const __m256i sums = of_words ? _mm256_madd_epi16(a, b)
                                          : _mm256_madd_epi16(_mm256_maddubs_epi16(a, b), ones);
            acc[i] = _mm256_add_epi32(acc[i], sums);
        }
    }
#pragma GCC unroll 6
    for (int i = 1; i < PEAK_DOT_CHAINS_AVX2; i++)
        acc[0] = _mm256_add_epi32(acc[0], acc[i]);
    return _mm256_extract_epi32(acc[0], 0);
}

int peak_dot_avx2(size_t n, const uint8_t *memory)
{
    (void)memory;
    return dot_chains(n, false, _mm256_set1_epi8(3), _mm256_set1_epi8(-5));
}

int peak_dot_words_avx2(size_t n, const uint8_t *memory)
{
    (void)memory;
    return dot_chains(n, true, _mm256_set1_epi16(3), _mm256_set1_epi16(-5));
}

int peak_fma_avx2(size_t n, const uint8_t *memory)
{
    (void)memory;
    __m256 acc[PEAK_FMA_CHAINS_AVX2];
    __m256 a = _mm256_set1_ps(0.999f);
    __m256 b = _mm256_set1_ps(0.001f);
#pragma GCC unroll 10
    for (int i = 0; i < PEAK_FMA_CHAINS_AVX2; i++)
        acc[i] = _mm256_set1_ps((float)i);
    for (size_t round = 0; round < n; round++) {
        PEAK_KEEP(a);
        PEAK_KEEP(b);
#pragma GCC unroll 10
        for (int i = 0; i < PEAK_FMA_CHAINS_AVX2; i++)
            acc[i] = _mm256_fmadd_ps(acc[i], a, b);
    }
#pragma GCC unroll 10
    for (int i = 1; i < PEAK_FMA_CHAINS_AVX2; i++)
        acc[0] = _mm256_add_ps(acc[0], acc[i]);
    return (int)_mm256_cvtss_f32(acc[0]);
}
