/* How AVX-512 widens weights for products in float32; the products: matmul_float_lanes.h. */
#include <immintrin.h>

#include "kernels_int.h"
#include "lanes_avx512.h"
#include "matmul_avx512_int.h"
#include "pack_int.h"
#include "quant_int.h"

/* 24 sums, 2 weights, an activation: 14 loads feed 24 multiply-adds. */
enum { MATMUL_TILE_ROWS = 12, MATMUL_TILE_PANELS = 2 };

#include "matmul_float_lanes.h"

static __m512i load_codes(const struct pack_layout *layout, const uint8_t *codes, int quad)
{
    if (layout->codes == PACK_BYTES)
        return _mm512_loadu_si512(codes + quad * 64);
    const __m512i both = _mm512_loadu_si512(codes + quad % 4 * 64);
    return _mm512_and_si512(quad < 4 ? both : _mm512_srli_epi16(both, 4), _mm512_set1_epi8(15));
}

/* Byte j of every lane, as an integer level. */
static __m512i level_of(const struct pack_layout *layout, __m512i codes, int j)
{
    const __m512i code = _mm512_and_si512(_mm512_srlv_epi32(codes, _mm512_set1_epi32(8 * j)),
                                          _mm512_set1_epi32(255));
    if (!layout->has_levels)
        return _mm512_sub_epi32(code, _mm512_set1_epi32(layout->zero));
    const __m512i levels =
        _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)quant_iq4nl_level));
    return _mm512_permutexvar_epi32(code, levels);
}

static void dequantize_block(const struct pack_layout *layout, const uint8_t *codes,
                             float (*value)[PANEL_COLS])
{
    const uint8_t *factors = codes + layout->codes_bytes;
    const int last = layout->n_scales - 1;
    const __m512 min =
        layout->has_min ? load_factors(layout->factors, factors, 1) : _mm512_setzero_ps();
    for (int quad = 0; quad < PACK_QUADS; quad++) {
        const __m512 scale = load_factors(layout->factors, factors, quad < 4 ? 0 : last);
        const __m512i packed = load_codes(layout, codes, quad);
        for (int j = 0; j < 4; j++) {
            __m512 v = _mm512_mul_ps(scale, _mm512_cvtepi32_ps(level_of(layout, packed, j)));
            if (layout->has_min)
                v = _mm512_add_ps(v, min);
            _mm512_store_ps(value[quad * 4 + j], v);
        }
    }
}

static void widen_floats(enum quant_type type, const uint8_t *panel, size_t k, size_t n,
                         float (*value)[PANEL_COLS])
{
    const size_t elem_bytes = type == QUANT_F32 ? 4 : 2;
    const uint8_t *at = panel + k * PANEL_COLS * elem_bytes;
    for (size_t i = 0; i < n; i++, at += PANEL_COLS * elem_bytes) {
        __m512 v;
        if (type == QUANT_F32)
            v = _mm512_loadu_ps(at);
        else if (type == QUANT_F16)
            v = _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)at));
        else
            v = _mm512_castsi512_ps(_mm512_slli_epi32(
                _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)at)), 16));
        _mm512_store_ps(value[i], v);
    }
}

void matmul_float_avx512(const struct weight *w, const struct act *x, size_t panel_begin,
                         size_t panel_end, enum matmul_mode mode, float *y, size_t y_stride)
{
    matmul_float(w, x, panel_begin, panel_end, mode, y, y_stride);
}
