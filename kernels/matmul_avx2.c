/*
 * Products of quantised weights with int8 activations, AVX2.
 *
 * A tile is up to 4 rows against 8 outputs (half a panel). vpmaddubsw adds two products into
 * 16 bits and saturates, so what is exact depends on the codes: up to 31 (4- and 5-bit types)
 * the products of four quads fit together (4 * 2 * 31 * 127 < 2^15) before they are widened.
 * Larger codes are made signed, their magnitude goes in as the unsigned factor and their sign
 * moves to the activation: 2 * 128 * 127 < 2^15, widened every quad.
 */
#include <immintrin.h>
#include <string.h>

#include "kernels_int.h"
#include "matmul_avx2_int.h"
#include "pack_int.h"
#include "quant_int.h"

enum { TILE_ROWS = 4, GROUP_QUADS = 4 };

/* FORM_NIBBLE and FORM_BYTE take codes as they are, the others signed levels. */
enum form { FORM_NIBBLE, FORM_BYTE, FORM_LEVEL, FORM_SIGNED, FORM_HALVES };

struct tile {
    const struct pack_layout *layout;
    const uint8_t *panel;
    int half;              /* which 8 outputs of the panel */
    size_t prefetch_bytes; /* how far ahead to prefetch; 0: not */
    const int8_t *q;
    const float *scale;
    const int32_t *sum;
    size_t n_blocks; /* K / 32 */
};

static ALWAYS_INLINE bool form_is_signed(enum form form)
{
    return form == FORM_LEVEL || form == FORM_SIGNED || form == FORM_HALVES;
}

/* Quads 4 group ... 4 group + 3 of 8 outputs. */
static ALWAYS_INLINE void unpack(enum form form, const struct tile *tile, const uint8_t *codes,
                                 int group, __m256i *w /* [4] */)
{
    const __m256i low = _mm256_set1_epi8(15);
    const __m256i zero = _mm256_set1_epi8((char)tile->layout->zero);
    UNROLL(4)
    for (int i = 0; i < GROUP_QUADS; i++) {
        const bool is_nibble = form == FORM_NIBBLE || form == FORM_LEVEL;
        const int quad = is_nibble ? i : group * GROUP_QUADS + i;
        w[i] = _mm256_loadu_si256((const __m256i *)(codes + quad * 64 + tile->half * 32));
        if (is_nibble)
            w[i] = _mm256_and_si256(group ? _mm256_srli_epi16(w[i], 4) : w[i], low);
        if (form == FORM_LEVEL)
            w[i] = _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(
                                           _mm_loadu_si128((const __m128i *)quant_iq4nl_level)),
                                       w[i]);
        else if (form_is_signed(form))
            w[i] = _mm256_sub_epi8(w[i], zero);
    }
}

static ALWAYS_INLINE __m256i broadcast_quad(const int8_t *q)
{
    int32_t quad;
    memcpy(&quad, q, sizeof quad);
    return _mm256_set1_epi32(quad);
}

/* The integer dot product of four quads. */
static ALWAYS_INLINE __m256i dot_group(enum form form, const __m256i *w, const int8_t *q)
{
    const __m256i ones = _mm256_set1_epi16(1);
    __m256i sum = _mm256_setzero_si256();
    UNROLL(4)
    for (int i = 0; i < GROUP_QUADS; i++) {
        const __m256i x = broadcast_quad(q + i * 4);
        if (form_is_signed(form)) {
            const __m256i pairs =
                _mm256_maddubs_epi16(_mm256_abs_epi8(w[i]), _mm256_sign_epi8(x, w[i]));
            sum = _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, ones));
        } else {
            sum = _mm256_add_epi16(sum, _mm256_maddubs_epi16(w[i], x));
        }
    }
    return form_is_signed(form) ? sum : _mm256_madd_epi16(sum, ones);
}

static ALWAYS_INLINE __m256 add_scaled(__m256i dot, __m256 w_scale, float x_scale, __m256 acc)
{
    const __m256 scale = _mm256_mul_ps(w_scale, _mm256_set1_ps(x_scale));
    return _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot), scale, acc);
}

static ALWAYS_INLINE void add_block(enum form form, bool has_min, int n_rows,
                                    const struct tile *tile, size_t b, __m256 *acc)
{
    const struct pack_layout *layout = tile->layout;
    const uint8_t *codes = tile->panel + b * layout->block_bytes;
    const uint8_t *factors = codes + layout->codes_bytes;
    __m256i dot[TILE_ROWS];
    UNROLL(4)
    for (int t = 0; t < n_rows; t++) {
        const size_t at = (size_t)t * tile->n_blocks + b;
        dot[t] = form_is_signed(form) ? _mm256_setzero_si256()
                                      : _mm256_set1_epi32(-layout->zero * tile->sum[at]);
    }
    UNROLL(2)
    for (int group = 0; group < PACK_QUADS / GROUP_QUADS; group++) {
        __m256i w[GROUP_QUADS];
        unpack(form, tile, codes, group, w);
        const bool is_end = form == FORM_HALVES || group == 1;
        const __m256 w_scale =
            load_factors(layout->factors, factors, form == FORM_HALVES ? group : 0, tile->half);
        UNROLL(4)
        for (int t = 0; t < n_rows; t++) {
            const size_t at = (size_t)t * tile->n_blocks + b;
            const int8_t *q = tile->q + at * ACT_BLOCK + group * 4 * GROUP_QUADS;
            dot[t] = _mm256_add_epi32(dot[t], dot_group(form, w, q));
            if (!is_end)
                continue;
            acc[t] = add_scaled(dot[t], w_scale, tile->scale[at], acc[t]);
            dot[t] = _mm256_setzero_si256();
        }
    }
    if (!has_min)
        return;
    const __m256 min = load_factors(layout->factors, factors, 1, tile->half);
    UNROLL(4)
    for (int t = 0; t < n_rows; t++) {
        const size_t at = (size_t)t * tile->n_blocks + b;
        const float scaled_sum = tile->scale[at] * (float)tile->sum[at];
        acc[t] = _mm256_fmadd_ps(min, _mm256_set1_ps(scaled_sum), acc[t]);
    }
}

static ALWAYS_INLINE void run_tile(enum form form, bool has_min, int n_rows,
                                   const struct tile *tile, const struct output *out)
{
    __m256 acc[TILE_ROWS];
    UNROLL(4)
    for (int t = 0; t < n_rows; t++)
        acc[t] = _mm256_setzero_ps();
    for (size_t b = 0; b < tile->n_blocks; b++) {
        const char *block = (const char *)tile->panel + b * tile->layout->block_bytes;
        if (tile->prefetch_bytes != 0)
            for (size_t at = 0; at < tile->layout->block_bytes; at += 64)
                _mm_prefetch(block + tile->prefetch_bytes + at, _MM_HINT_T0);
        add_block(form, has_min, n_rows, tile, b, acc);
    }
    UNROLL(4)
    for (int t = 0; t < n_rows; t++)
        store_row(out, (size_t)t, acc[t]);
}

/* One function per form, with a loop per number of rows so that the sums stay in registers. */
#define DEFINE_FORM(name, form, has_min)                                                       \
    static void name(size_t n_rows, const struct tile *tile, const struct output *out)         \
    {                                                                                          \
        switch (n_rows) {                                                                      \
        case 1: run_tile(form, has_min, 1, tile, out); break;                                  \
        case 2: run_tile(form, has_min, 2, tile, out); break;                                  \
        case 3: run_tile(form, has_min, 3, tile, out); break;                                  \
        default: run_tile(form, has_min, 4, tile, out); break;                                 \
        }                                                                                      \
    }

DEFINE_FORM(run_nibble, FORM_NIBBLE, false)
DEFINE_FORM(run_nibble_min, FORM_NIBBLE, true)
DEFINE_FORM(run_byte, FORM_BYTE, false)
DEFINE_FORM(run_byte_min, FORM_BYTE, true)
DEFINE_FORM(run_level, FORM_LEVEL, false)
DEFINE_FORM(run_signed, FORM_SIGNED, false)
DEFINE_FORM(run_halves, FORM_HALVES, false)

typedef void (*run_fn)(size_t n_rows, const struct tile *tile, const struct output *out);

static run_fn run_of(enum quant_type type)
{
    switch (type) {
    case QUANT_Q4_0: return run_nibble;
    case QUANT_Q4_1:
    case QUANT_Q4_K: return run_nibble_min;
    case QUANT_Q5_0: return run_byte;
    case QUANT_Q5_1:
    case QUANT_Q5_K: return run_byte_min;
    case QUANT_IQ4_NL: return run_level;
    case QUANT_Q6_K: return run_halves;
    default: return run_signed;
    }
}

static void matmul_int8(const struct weight *w, const struct act *x, size_t panel_begin,
                        size_t panel_end, enum matmul_mode mode, float *y, size_t y_stride)
{
    const struct pack_layout layout = pack_layout_of(w->type);
    const run_fn run = run_of(w->type);
    struct tile tile = {.layout = &layout, .n_blocks = w->n_cols / ACT_BLOCK};
    for (size_t p = panel_begin; p < panel_end; p++) {
        size_t n;
        tile.panel = w->data + p * w->panel_bytes;
        tile.prefetch_bytes = p + 1 < panel_end ? w->panel_bytes : 0;
        for (size_t t = 0; t < x->n_rows; t += n) {
            n = x->n_rows - t < TILE_ROWS ? x->n_rows - t : (size_t)TILE_ROWS;
            tile.q = x->q + t * w->n_cols;
            tile.scale = x->scale + t * tile.n_blocks;
            tile.sum = x->sum + t * tile.n_blocks;
            for (tile.half = 0; tile.half < 2; tile.half++) {
                const struct output out = output_of(w, p, tile.half, t, mode, y, y_stride);
                run(n, &tile, &out);
                tile.prefetch_bytes = 0;
            }
        }
    }
}

void matmul_avx2(const struct weight *w, const struct act *x, size_t panel_begin,
                 size_t panel_end, enum matmul_mode mode, float *y, size_t y_stride)
{
    if (x->kind == ACT_INT8 && !quant_is_float(w->type))
        matmul_int8(w, x, panel_begin, panel_end, mode, y, y_stride);
    else
        matmul_float_avx2(w, x, panel_begin, panel_end, mode, y, y_stride);
}
