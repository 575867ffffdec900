/*
 * Products in float32, AVX-512: float weights, and any weights with float activations. The
 * inputs of a block become floats in a tile on the stack, [32 inputs][16 outputs], which
 * serves up to 24 rows whose sums stay in registers within the block. One multiply-add per
 * load of an activation: bound by the load ports at about half of the fma peak.
 */
#include <immintrin.h>

#include "kernels_int.h"
#include "matmul_avx512_int.h"
#include "pack_int.h"
#include "quant_int.h"

enum { TILE_ROWS = 24 };

struct job {
    enum quant_type type;
    const struct pack_layout *layout; /* NULL: float weights */
    const uint8_t *panel;
    const float *x;
    size_t n_cols;
};

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
                             float value[ACT_BLOCK][PANEL_COLS])
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
                         float value[ACT_BLOCK][PANEL_COLS])
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

static ALWAYS_INLINE void run_tile(int n_rows, const struct job *job, const struct output *out)
{
    __attribute__((aligned(64))) float value[ACT_BLOCK][PANEL_COLS];
    __m512 acc[TILE_ROWS];
    UNROLL(24)
    for (int t = 0; t < n_rows; t++)
        acc[t] = _mm512_setzero_ps();
    for (size_t k = 0; k < job->n_cols; k += ACT_BLOCK) {
        const size_t n = job->n_cols - k < ACT_BLOCK ? job->n_cols - k : ACT_BLOCK;
        if (job->layout)
            dequantize_block(job->layout, job->panel + k / ACT_BLOCK * job->layout->block_bytes,
                             value);
        else
            widen_floats(job->type, job->panel, k, n, value);
        const float *x = job->x + k;
        for (size_t i = 0; i < n; i++) {
            const __m512 w = _mm512_load_ps(value[i]);
            UNROLL(24)
            for (int t = 0; t < n_rows; t++)
                acc[t] =
                    _mm512_fmadd_ps(_mm512_set1_ps(x[(size_t)t * job->n_cols + i]), w, acc[t]);
        }
    }
    UNROLL(24)
    for (int t = 0; t < n_rows; t++)
        store_row(out, (size_t)t, acc[t]);
}

static void run_rows(size_t n_rows, const struct job *job, const struct output *out)
{
    switch (n_rows) {
    case 1: run_tile(1, job, out); break;
    case 2: run_tile(2, job, out); break;
    case 4: run_tile(4, job, out); break;
    case 8: run_tile(8, job, out); break;
    default: run_tile(TILE_ROWS, job, out); break;
    }
}

static size_t tile_rows(size_t n_rows)
{
    if (n_rows >= TILE_ROWS)
        return TILE_ROWS;
    return n_rows >= 8 ? 8 : n_rows >= 4 ? 4 : n_rows >= 2 ? 2 : 1;
}

void matmul_float_avx512(const struct weight *w, const struct act *x, size_t panel_begin,
                         size_t panel_end, enum matmul_mode mode, float *y, size_t y_stride)
{
    const bool is_float = quant_is_float(w->type);
    const struct pack_layout layout =
        is_float ? (struct pack_layout){0} : pack_layout_of(w->type);
    for (size_t p = panel_begin; p < panel_end; p++) {
        size_t n;
        for (size_t t = 0; t < x->n_rows; t += n) {
            n = tile_rows(x->n_rows - t);
            const struct job job = {
                .type = w->type,
                .layout = is_float ? NULL : &layout,
                .panel = w->data + p * w->panel_bytes,
                .x = x->f32 + t * w->n_cols,
                .n_cols = w->n_cols,
            };
            const struct output out = output_of(w, p, t, mode, y, y_stride);
            run_rows(n, &job, &out);
        }
    }
}
