/* Activations to int8, a block of 32 in four vectors; the rules are in quantize_ref.c. */
#include <immintrin.h>
#include <math.h>

#include "kernels_int.h"
#include "quantize_int.h"

enum { VECTORS = ACT_BLOCK / 8 };

static float largest_magnitude(const __m256 *x)
{
    const __m256i mask = _mm256_set1_epi32(0x7fffffff);
    __m256i largest = _mm256_setzero_si256();
    for (int i = 0; i < VECTORS; i++)
        largest = _mm256_max_epi32(largest, _mm256_and_si256(_mm256_castps_si256(x[i]), mask));
    __m128i m =
        _mm_max_epi32(_mm256_castsi256_si128(largest), _mm256_extracti128_si256(largest, 1));
    m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0x4e));
    m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0xb1));
    return _mm_cvtss_f32(_mm_castsi128_ps(m));
}

static int32_t sum_lanes(__m256i v)
{
    __m128i s = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(s, _mm_shuffle_epi32(s, 0xb1)));
}

static void quantize_block(const float *x, int8_t *q, float *scale, int32_t *sum)
{
    __m256 v[VECTORS];
    __m256i n[VECTORS];
    for (int i = 0; i < VECTORS; i++)
        v[i] = _mm256_loadu_ps(x + 8 * i);
    const float largest = largest_magnitude(v);
    if (!(largest >= ACT_MAX_TINY && largest < INFINITY)) {
        _mm256_storeu_si256((__m256i *)q, _mm256_setzero_si256());
        *scale = largest < ACT_MAX_TINY ? 0.0f : NAN;
        *sum = 0;
        return;
    }
    const __m256 inverse = _mm256_set1_ps(127.0f / largest);
    for (int i = 0; i < VECTORS; i++)
        n[i] = _mm256_cvtps_epi32(_mm256_mul_ps(v[i], inverse));
    /* The packs interleave 128-bit halves: dwords come out as 0 2 4 6 1 3 5 7. */
    const __m256i words =
        _mm256_packs_epi16(_mm256_packs_epi32(n[0], n[1]), _mm256_packs_epi32(n[2], n[3]));
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    _mm256_storeu_si256((__m256i *)q, _mm256_permutevar8x32_epi32(words, order));
    *scale = largest / 127.0f;
    *sum =
        sum_lanes(_mm256_add_epi32(_mm256_add_epi32(n[0], n[1]), _mm256_add_epi32(n[2], n[3])));
}

void quantize_avx2(struct act *x, size_t row_begin, size_t row_end, size_t col_begin,
                   size_t col_end)
{
    quantize_blocks(quantize_block, x, row_begin, row_end, col_begin, col_end);
}
