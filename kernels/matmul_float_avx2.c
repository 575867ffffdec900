/*
 * Products in float32, AVX2: float weights, and any weights with float activations. The inputs
 * of a block become floats in a tile on the stack, [32 inputs][16 outputs], which serves up to
 * 4 rows whose 8 sums stay in registers.
 */
#include <immintrin.h>

#include "kernels_int.h"
#include "matmul_avx2_int.h"
#include "pack_int.h"
#include "quant_int.h"

enum { TILE_ROWS = 4 };

struct tile {
    enum quant_type type;
    const struct pack_layout *layout; /* NULL: float weights */
    const uint8_t *panel;
    const float *x;
    size_t n_cols;
};

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
                             float value[ACT_BLOCK][PANEL_COLS])
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
                         float value[ACT_BLOCK][PANEL_COLS])
{
    const size_t elem_bytes = type == QUANT_F32 ? 4 : 2;
    const uint8_t *at = panel + k * PANEL_COLS * elem_bytes;
    for (size_t i = 0; i < n * PANEL_COLS; i += HALF_COLS)
        _mm256_store_ps(&value[0][0] + i, widen(type, at + i * elem_bytes));
}

static ALWAYS_INLINE void run_tile(int n_rows, const struct tile *tile,
                                   const struct output *out /* [2] */)
{
    __attribute__((aligned(32))) float value[ACT_BLOCK][PANEL_COLS];
    __m256 acc[2][TILE_ROWS];
    UNROLL(4)
    for (int t = 0; t < n_rows; t++)
        acc[0][t] = acc[1][t] = _mm256_setzero_ps();
    for (size_t k = 0; k < tile->n_cols; k += ACT_BLOCK) {
        const size_t n = tile->n_cols - k < ACT_BLOCK ? tile->n_cols - k : (size_t)ACT_BLOCK;
        const struct pack_layout *layout = tile->layout;
        if (layout)
            dequantize_block(layout, tile->panel + k / ACT_BLOCK * layout->block_bytes, value);
        else
            widen_floats(tile->type, tile->panel, k, n, value);
        for (size_t i = 0; i < n; i++) {
            const __m256 low = _mm256_load_ps(value[i]);
            const __m256 high = _mm256_load_ps(value[i] + HALF_COLS);
            UNROLL(4)
            for (int t = 0; t < n_rows; t++) {
                const __m256 x = _mm256_set1_ps(tile->x[(size_t)t * tile->n_cols + k + i]);
                acc[0][t] = _mm256_fmadd_ps(x, low, acc[0][t]);
                acc[1][t] = _mm256_fmadd_ps(x, high, acc[1][t]);
            }
        }
    }
    UNROLL(4)
    for (int t = 0; t < n_rows; t++) {
        store_row(&out[0], (size_t)t, acc[0][t]);
        store_row(&out[1], (size_t)t, acc[1][t]);
    }
}

static void run_rows(size_t n_rows, const struct tile *tile, const struct output *out)
{
    switch (n_rows) {
    case 1: run_tile(1, tile, out); break;
    case 2: run_tile(2, tile, out); break;
    case 3: run_tile(3, tile, out); break;
    default: run_tile(4, tile, out); break;
    }
}

void matmul_float_avx2(const struct weight *w, const struct act *x, size_t panel_begin,
                       size_t panel_end, enum matmul_mode mode, float *y, size_t y_stride)
{
    const bool is_float = quant_is_float(w->type);
    const struct pack_layout layout =
        is_float ? (struct pack_layout){0} : pack_layout_of(w->type);
    struct tile tile = {
        .type = w->type, .layout = is_float ? NULL : &layout, .n_cols = w->n_cols};
    for (size_t p = panel_begin; p < panel_end; p++) {
        tile.panel = w->data + p * w->panel_bytes;
        for (size_t t = 0; t < x->n_rows; t += TILE_ROWS) {
            const size_t left = x->n_rows - t;
            const struct output out[2] = {output_of(w, p, 0, t, mode, y, y_stride),
                                          output_of(w, p, 1, t, mode, y, y_stride)};
            tile.x = x->f32 + t * w->n_cols;
            run_rows(left < TILE_ROWS ? left : TILE_ROWS, &tile, out);
        }
    }
}
