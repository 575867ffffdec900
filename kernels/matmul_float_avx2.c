/* How AVX2 widens weights for products in float32; the products: matmul_float_lanes.h. */
#include <immintrin.h>

#include "kernels_int.h"
#include "lanes_avx2.h"
#include "matmul_avx2_int.h"
#include "pack_int.h"
#include "quant_int.h"

/* 12 sums of 8 floats, 2 weights, an activation. */
enum { MATMUL_TILE_ROWS = 6, MATMUL_TILE_PANELS = 1 };

#include "matmul_float_lanes.h"

static __m256i load_codes(const struct pack_layout *layout, const uint8_t *codes, int quad,
                          int half)
{
    const bool is_nibble = layout->codes == PACK_NIBBLES;
    const uint8_t *at = codes + (is_nibble ? quad % 4 : quad) * 64 + half * 32;
    const __m256i bytes = _mm256_loadu_si256((const __m256i *)at);
    if (!is_nibble)
        return bytes;
    return _mm256_and_si256(quad < 4 ? bytes : _mm256_srli_epi16(bytes, 4),
                            _mm256_set1_epi8(15));
}

/* Byte j of every lane, as an integer level. */
static __m256i level_of(const struct pack_layout *layout, __m256i codes, int j)
{
    if (layout->has_levels) {
        const __m256i levels =
            _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)quant_iq4nl_level));
        const __m256i bytes = _mm256_shuffle_epi8(levels, codes);
        const __m256i top = _mm256_sllv_epi32(bytes, _mm256_set1_epi32(24 - 8 * j));
        return _mm256_srai_epi32(top, 24);
    }
    const __m256i code = _mm256_and_si256(_mm256_srlv_epi32(codes, _mm256_set1_epi32(8 * j)),
                                          _mm256_set1_epi32(255));
    return _mm256_sub_epi32(code, _mm256_set1_epi32(layout->zero));
}

static void dequantize_block(const struct pack_layout *layout, const uint8_t *codes,
                             float (*value)[PANEL_COLS])
{
    const uint8_t *factors = codes + layout->codes_bytes;
    for (int at = 0; at < 2 * PACK_QUADS; at++) {
        const int quad = at / 2;
        const int half = at % 2;
        const int scale_idx = quad < 4 ? 0 : layout->n_scales - 1;
        const __m256 scale = load_factors(layout->factors, factors, scale_idx, half);
        const __m256i packed = load_codes(layout, codes, quad, half);
        for (int j = 0; j < 4; j++) {
            __m256 v = _mm256_mul_ps(scale, _mm256_cvtepi32_ps(level_of(layout, packed, j)));
            if (layout->has_min)
                v = _mm256_add_ps(v, load_factors(layout->factors, factors, 1, half));
            _mm256_store_ps(&value[quad * 4 + j][half * HALF_COLS], v);
        }
    }
}

static __m256 widen(enum quant_type type, const uint8_t *at)
{
    if (type == QUANT_F32)
        return _mm256_loadu_ps((const float *)(const void *)at);
    const __m128i bits = _mm_loadu_si128((const __m128i *)at);
    if (type == QUANT_F16)
        return _mm256_cvtph_ps(bits);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
}

static void widen_floats(enum quant_type type, const uint8_t *panel, size_t k, size_t n,
                         float (*value)[PANEL_COLS])
{
    const size_t elem_bytes = type == QUANT_F32 ? 4 : 2;
    const uint8_t *at = panel + k * PANEL_COLS * elem_bytes;
    for (size_t i = 0; i < n * PANEL_COLS; i += HALF_COLS)
        _mm256_store_ps(&value[0][0] + i, widen(type, at + i * elem_bytes));
}

void matmul_float_avx2(const struct weight *w, const struct act *x, size_t panel_begin,
                       size_t panel_end, enum matmul_mode mode, float *y, size_t y_stride)
{
    matmul_float(w, x, panel_begin, panel_end, mode, y, y_stride);
}
