/* Activations to int8, a block of 32 in two vectors; the rules are in quantize_ref.c. */
#include <immintrin.h>
#include <math.h>

#include "kernels_int.h"
#include "quantize_int.h"

static float largest_magnitude(__m512 low, __m512 high)
{
    const __m512i mask = _mm512_set1_epi32(0x7fffffff);
    const __m512i a = _mm512_and_si512(_mm512_castps_si512(low), mask);
    const __m512i b = _mm512_and_si512(_mm512_castps_si512(high), mask);
    const int largest = _mm512_reduce_max_epi32(_mm512_max_epi32(a, b));
    return _mm_cvtss_f32(_mm_castsi128_ps(_mm_cvtsi32_si128(largest)));
}

static void quantize_block(const float *x, int8_t *q, float *scale, int32_t *sum)
{
    const __m512 low = _mm512_loadu_ps(x);
    const __m512 high = _mm512_loadu_ps(x + 16);
    const float largest = largest_magnitude(low, high);
    if (!(largest >= ACT_MAX_TINY && largest < INFINITY)) {
        _mm256_storeu_si256((__m256i *)q, _mm256_setzero_si256());
        *scale = largest < ACT_MAX_TINY ? 0.0f : NAN;
        *sum = 0;
        return;
    }
    const __m512 inverse = _mm512_set1_ps(127.0f / largest);
    const __m512i a = _mm512_cvtps_epi32(_mm512_mul_ps(low, inverse));
    const __m512i b = _mm512_cvtps_epi32(_mm512_mul_ps(high, inverse));
    _mm_storeu_si128((__m128i *)q, _mm512_cvtepi32_epi8(a));
    _mm_storeu_si128((__m128i *)(q + 16), _mm512_cvtepi32_epi8(b));
    *scale = largest / 127.0f;
    *sum = _mm512_reduce_add_epi32(_mm512_add_epi32(a, b));
}

void quantize_avx512(struct act *x, size_t row_begin, size_t row_end, size_t col_begin,
                     size_t col_end)
{
    quantize_blocks(quantize_block, x, row_begin, row_end, col_begin, col_end);
}
