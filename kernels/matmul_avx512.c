/*
 * Products of quantised weights with int8 activations, AVX-512 VNNI.
 *
 * A tile is up to 12 rows against 2 panels, whose 24 integer sums stay in registers: a weight
 * vector serves 12 rows, a 4-byte broadcast of activations serves 2 panels. The float sums are
 * read and written once a block in memory; those of up to 6 rows stay in registers too. Per
 * row, panel and block that is 8 dot instructions, a conversion, a product of scales and a
 * fused multiply-add (two with minima): where all of them share two ports the limit is 8 / 11
 * (8 / 12) of the dot peak.
 *
 * Few rows take 4-bit codes apart in registers; up to about 4 the bound is the stream of
 * weights, so the first tile prefetches the next panels. From EXPAND_ROWS on, 4-bit blocks are
 * first expanded to bytes in a buffer on the stack, once for all rows where K fits it; sums
 * wait in memory between chunks of K.
 */
#include <immintrin.h>

#include "kernels_int.h"
#include "matmul_avx512_int.h"
#include "pack_int.h"
#include "quant_int.h"

enum {
    CHUNK_BLOCKS = 32,
    TILE_ROWS = 12,
    KEPT_ROWS = 6, /* rows of a tile whose sums stay in registers */
    ROW_GROUP = 3, /* rows of a tile that one pointer reaches */
    TILE_PANELS = 2,
    EXPAND_ROWS = 40, /* from here on, expanding codes once pays */
    WAIT_ROWS = 96,   /* rows whose sums wait between chunks */
    KEPT_BLOCKS = 64, /* of K, expanded once for all rows */
    BYTE_BLOCK_BYTES = PACK_BYTE_BYTES + 2 * 4 * PANEL_COLS, /* expanded: f32 factors */
};

/* What a tile is specialised for; all else of struct pack_layout is looked up as it runs. */
enum form { FORM_NIBBLE, FORM_NIBBLE_MIN, FORM_LEVEL, FORM_BYTE, FORM_BYTE_MIN, FORM_HALVES };

/* Blocks [begin, end) of K for one tile, end - begin <= CHUNK_BLOCKS. */
struct span {
    const struct pack_layout *layout;
    const uint8_t *blocks[TILE_PANELS]; /* block begin of each panel */
    size_t prefetch_bytes;              /* how far ahead to prefetch; 0: not */
    const int8_t *q;                    /* of block begin, rows q_stride apart */
    const float *scale;                 /* the same, factor_stride */
    const int32_t *sum;
    const float *scaled_sum;
    size_t q_stride;
    size_t factor_stride;
    size_t n_blocks;
};

/* The activations' factors of a tile, where one pointer reaches them all. */
struct factors {
    float scale[TILE_ROWS][CHUNK_BLOCKS];
    union {
        int32_t start[2][TILE_ROWS][CHUNK_BLOCKS]; /* -zero * sum, of both halves in Q6_K */
        float scaled_sum[TILE_ROWS][CHUNK_BLOCKS]; /* scale * sum, for the minima */
    };
};

static ALWAYS_INLINE bool form_has_min(enum form form)
{
    return form == FORM_NIBBLE_MIN || form == FORM_BYTE_MIN;
}

static ALWAYS_INLINE bool form_is_packed(enum form form)
{
    return form == FORM_NIBBLE || form == FORM_NIBBLE_MIN || form == FORM_LEVEL;
}

/* ---- weights */

static ALWAYS_INLINE __m512i level_bytes(__m512i codes)
{
    const __m128i levels = _mm_loadu_si128((const __m128i *)quant_iq4nl_level);
    const __m128i biased = _mm_xor_si128(levels, _mm_set1_epi8((char)0x80));
    return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(biased), codes);
}

/* Quads q and q + 4 of a 4-bit block. */
static ALWAYS_INLINE void split_nibbles(bool has_levels, const uint8_t *codes, int q,
                                        __m512i *low, __m512i *high)
{
    const __m512i mask = _mm512_set1_epi8(15);
    const __m512i both = _mm512_loadu_si512(codes + q * 64);
    *low = _mm512_and_si512(both, mask);
    *high = _mm512_and_si512(_mm512_srli_epi16(both, 4), mask);
    if (has_levels) {
        *low = level_bytes(*low);
        *high = level_bytes(*high);
    }
}

/* One 4-bit block as bytes, with float factors: the layout of a byte type. */
static void expand_block(const struct pack_layout *layout, const uint8_t *codes, uint8_t *out)
{
    const uint8_t *factors = codes + layout->codes_bytes;
    for (int q = 0; q < PACK_QUADS / 2; q++) {
        __m512i low;
        __m512i high;
        split_nibbles(layout->has_levels, codes, q, &low, &high);
        _mm512_store_si512(out + q * 64, low);
        _mm512_store_si512(out + (q + PACK_QUADS / 2) * 64, high);
    }
    _mm512_store_ps(out + PACK_BYTE_BYTES, load_factors(layout->factors, factors, 0));
    if (layout->has_min)
        _mm512_store_ps(out + PACK_BYTE_BYTES + 64, load_factors(layout->factors, factors, 1));
}

/* ---- activations */

/* Sum of the first 16 activations of a block. */
static ALWAYS_INLINE int32_t sum_first_half(const int8_t *q)
{
    const __m128i x = _mm_loadu_si128((const __m128i *)q);
    const __m128i quads = _mm_dpbusd_epi32(_mm_setzero_si128(), _mm_set1_epi8(1), x);
    const __m128i pairs = _mm_add_epi32(quads, _mm_shuffle_epi32(quads, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(pairs, _mm_shuffle_epi32(pairs, 0xb1)));
}

static ALWAYS_INLINE void read_halves(const struct span *s, size_t t, struct factors *f)
{
    for (size_t b = 0; b < s->n_blocks; b++) {
        const int32_t first = sum_first_half(s->q + t * s->q_stride + b * ACT_BLOCK);
        f->start[0][t][b] = -s->layout->zero * first;
        f->start[1][t][b] = -s->layout->zero * (s->sum[t * s->factor_stride + b] - first);
    }
}

/* -zero * sum, a shift because the zero of every type without minima is a power of two. */
static ALWAYS_INLINE __m512i starts(const struct pack_layout *layout, __m512i sums)
{
    const __m512i log2_zero = _mm512_set1_epi32(__builtin_ctz((unsigned)layout->zero));
    return _mm512_sub_epi32(_mm512_setzero_si512(), _mm512_sllv_epi32(sums, log2_zero));
}

static ALWAYS_INLINE void read_factors(enum form form, int n_rows, const struct span *s,
                                       struct factors *f)
{
    for (size_t t = 0; t < (size_t)n_rows; t++) {
        for (size_t b = 0; b < s->n_blocks; b += 16) {
            const size_t left = s->n_blocks - b;
            const __mmask16 mask = (__mmask16)(left >= 16 ? 0xffff : (1u << left) - 1);
            const size_t at = t * s->factor_stride + b;
            const __m512 scale = _mm512_maskz_loadu_ps(mask, s->scale + at);
            _mm512_storeu_ps(&f->scale[t][b], scale);
            if (form_has_min(form))
                _mm512_storeu_ps(&f->scaled_sum[t][b],
                                 _mm512_maskz_loadu_ps(mask, s->scaled_sum + at));
            else
                _mm512_storeu_si512(
                    &f->start[0][t][b],
                    starts(s->layout, _mm512_maskz_loadu_epi32(mask, s->sum + at)));
        }
        if (form == FORM_HALVES)
            read_halves(s, t, f);
    }
}

/* ---- tiles */

/* dot += one quad of every row with one vector of every panel. */
static ALWAYS_INLINE void dot_quad(int n_panels, int n_rows, const __m512i *w,
                                   const int8_t *const *q, size_t at, size_t q_stride,
                                   __m512i (*dot)[TILE_ROWS])
{
    UNROLL(12)
    for (int t = 0; t < n_rows; t++) {
        const __m512i x =
            broadcast_quad(q[t / ROW_GROUP] + (size_t)(t % ROW_GROUP) * q_stride + at);
        UNROLL(2)
        for (int p = 0; p < n_panels; p++)
            dot[p][t] = _mm512_dpbusd_epi32(dot[p][t], w[p], x);
    }
}

/* Quads [begin, end) of a block; those of a 4-bit block come in pairs from its four vectors. */
static ALWAYS_INLINE void dot_quads(enum form form, int n_panels, int n_rows, int begin,
                                    int end, const struct span *s, const uint8_t *const *codes,
                                    const int8_t *const *q, __m512i (*dot)[TILE_ROWS])
{
    UNROLL(8)
    for (int quad = begin; quad < end; quad++) {
        __m512i low[TILE_PANELS];
        __m512i high[TILE_PANELS];
        UNROLL(2)
        for (int p = 0; p < n_panels; p++) {
            if (form_is_packed(form))
                split_nibbles(form == FORM_LEVEL, codes[p], quad, &low[p], &high[p]);
            else
                low[p] = _mm512_loadu_si512(codes[p] + quad * 64);
        }
        const size_t at = (size_t)quad * 4;
        dot_quad(n_panels, n_rows, low, q, at, s->q_stride, dot);
        if (form_is_packed(form))
            dot_quad(n_panels, n_rows, high, q, at + 16, s->q_stride, dot);
    }
}

static ALWAYS_INLINE void prefetch_block(const struct span *s, const uint8_t *block)
{
    for (size_t at = 0; at < s->layout->block_bytes; at += 64)
        _mm_prefetch((const char *)block + s->prefetch_bytes + at, _MM_HINT_T0);
}

/* One part of a block (all of it, or one half in Q6_K): the integers, then their scales. */
static ALWAYS_INLINE void add_part(enum form form, int n_panels, int n_rows, int part,
                                   const struct span *s, const uint8_t *const *codes,
                                   const int8_t *const *q, size_t b, const struct factors *f,
                                   __m512 (*acc)[TILE_PANELS])
{
    const int begin = part * (PACK_QUADS / 2);
    const int n_quads =
        form_is_packed(form) || form == FORM_HALVES ? PACK_QUADS / 2 : PACK_QUADS;
    __m512i dot[TILE_PANELS][TILE_ROWS];
    UNROLL(2)
    for (int p = 0; p < n_panels; p++) {
        UNROLL(12)
        for (int t = 0; t < n_rows; t++)
            dot[p][t] = form_has_min(form) ? _mm512_setzero_si512()
                                           : _mm512_set1_epi32(f->start[part][t][b]);
    }
    dot_quads(form, n_panels, n_rows, begin, begin + n_quads, s, codes, q, dot);
    UNROLL(2)
    for (int p = 0; p < n_panels; p++) {
        const uint8_t *factors = codes[p] + s->layout->codes_bytes;
        const __m512 w_scale = load_factors(s->layout->factors, factors, part);
        const __m512 w_min = form_has_min(form) ? load_factors(s->layout->factors, factors, 1)
                                                : _mm512_setzero_ps();
        UNROLL(12)
        for (int t = 0; t < n_rows; t++) {
            const __m512 scale = _mm512_mul_ps(w_scale, _mm512_set1_ps(f->scale[t][b]));
            __m512 sum = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot[p][t]), scale, acc[t][p]);
            if (form_has_min(form))
                sum = _mm512_fmadd_ps(w_min, _mm512_set1_ps(f->scaled_sum[t][b]), sum);
            acc[t][p] = sum;
        }
    }
}

/* acc[t][p] += the span. */
static ALWAYS_INLINE void run_blocks(enum form form, int n_panels, int n_rows,
                                     const struct span *s, const struct factors *f,
                                     __m512 (*acc)[TILE_PANELS])
{
    const int8_t *q[TILE_ROWS / ROW_GROUP];
    UNROLL(4)
    for (int g = 0; g < TILE_ROWS / ROW_GROUP; g++)
        q[g] = s->q + (size_t)(g * ROW_GROUP < n_rows ? g * ROW_GROUP : 0) * s->q_stride;
    const uint8_t *codes[TILE_PANELS] = {s->blocks[0], s->blocks[1]};
    for (size_t b = 0; b < s->n_blocks; b++) {
        if (n_rows > KEPT_ROWS) /* or the compiler keeps a second copy of them */
            __asm__("" : "+m"(*(__m512(*)[TILE_ROWS][TILE_PANELS])acc));
        if (s->prefetch_bytes != 0) {
            UNROLL(2)
            for (int p = 0; p < n_panels; p++)
                prefetch_block(s, codes[p]);
        }
        add_part(form, n_panels, n_rows, 0, s, codes, q, b, f, acc);
        if (form == FORM_HALVES)
            add_part(form, n_panels, n_rows, 1, s, codes, q, b, f, acc);
        UNROLL(4)
        for (int g = 0; g < TILE_ROWS / ROW_GROUP; g++)
            q[g] += ACT_BLOCK;
        UNROLL(2)
        for (int p = 0; p < n_panels; p++)
            codes[p] += s->layout->block_bytes;
    }
}

/* sums[t][p] += the span, from 0 on when it is the first of K. */
static ALWAYS_INLINE void run_tile(enum form form, int n_panels, int n_rows,
                                   const struct span *s, bool is_first,
                                   __m512 (*sums)[TILE_PANELS])
{
    struct factors f;
    read_factors(form, n_rows, s, &f);
    UNROLL(12)
    for (int t = 0; is_first && t < n_rows; t++)
        sums[t][0] = sums[t][1] = _mm512_setzero_ps();
    if (n_rows > KEPT_ROWS) {
        run_blocks(form, n_panels, n_rows, s, &f, sums);
        return;
    }
    __m512 acc[TILE_ROWS][TILE_PANELS];
    UNROLL(12)
    for (int t = 0; t < n_rows; t++) {
        UNROLL(2)
        for (int p = 0; p < n_panels; p++)
            acc[t][p] = sums[t][p];
    }
    run_blocks(form, n_panels, n_rows, s, &f, acc);
    UNROLL(12)
    for (int t = 0; t < n_rows; t++) {
        UNROLL(2)
        for (int p = 0; p < n_panels; p++)
            sums[t][p] = acc[t][p];
    }
}

typedef void (*tile_fn)(const struct span *s, bool is_first, __m512 (*sums)[TILE_PANELS]);

#define DEFINE_TILE(form, panels, rows)                                                        \
    static void tile_##form##_##panels##_##rows(const struct span *s, bool is_first,           \
                                                __m512(*sums)[TILE_PANELS])                    \
    {                                                                                          \
        run_tile(form, panels, rows, s, is_first, sums);                                       \
    }
#define DEFINE_ROWS(form, panels)                                                              \
    DEFINE_TILE(form, panels, 1)                                                               \
    DEFINE_TILE(form, panels, 2)                                                               \
    DEFINE_TILE(form, panels, 3)                                                               \
    DEFINE_TILE(form, panels, 4)                                                               \
    DEFINE_TILE(form, panels, 5)                                                               \
    DEFINE_TILE(form, panels, 6)                                                               \
    DEFINE_TILE(form, panels, 7)                                                               \
    DEFINE_TILE(form, panels, 8)                                                               \
    DEFINE_TILE(form, panels, 9)                                                               \
    DEFINE_TILE(form, panels, 10)                                                              \
    DEFINE_TILE(form, panels, 11)                                                              \
    DEFINE_TILE(form, panels, 12)
#define DEFINE_FORM(form)                                                                      \
    DEFINE_ROWS(form, 1)                                                                       \
    DEFINE_ROWS(form, 2)

DEFINE_FORM(FORM_NIBBLE)
DEFINE_FORM(FORM_NIBBLE_MIN)
DEFINE_FORM(FORM_LEVEL)
DEFINE_FORM(FORM_BYTE)
DEFINE_FORM(FORM_BYTE_MIN)
DEFINE_FORM(FORM_HALVES)

#define TILES_OF(form, panels)                                                                 \
    {                                                                                          \
        tile_##form##_##panels##_1, tile_##form##_##panels##_2, tile_##form##_##panels##_3,    \
            tile_##form##_##panels##_4, tile_##form##_##panels##_5,                            \
            tile_##form##_##panels##_6, tile_##form##_##panels##_7,                            \
            tile_##form##_##panels##_8, tile_##form##_##panels##_9,                            \
            tile_##form##_##panels##_10, tile_##form##_##panels##_11,                          \
            tile_##form##_##panels##_12                                                        \
    }
#define TILES_OF_FORM(form) [form] = {TILES_OF(form, 1), TILES_OF(form, 2)}

static const tile_fn TILES[][TILE_PANELS][TILE_ROWS] = {
    TILES_OF_FORM(FORM_NIBBLE), TILES_OF_FORM(FORM_NIBBLE_MIN), TILES_OF_FORM(FORM_LEVEL),
    TILES_OF_FORM(FORM_BYTE),   TILES_OF_FORM(FORM_BYTE_MIN),   TILES_OF_FORM(FORM_HALVES),
};

static enum form form_of(const struct pack_layout *layout)
{
    if (layout->n_scales == 2)
        return FORM_HALVES;
    if (layout->has_levels && layout->codes == PACK_NIBBLES)
        return FORM_LEVEL;
    if (layout->codes == PACK_NIBBLES)
        return layout->has_min ? FORM_NIBBLE_MIN : FORM_NIBBLE;
    return layout->has_min ? FORM_BYTE_MIN : FORM_BYTE;
}

/* ---- driver */

/* Up to 96 rows against 1 or 2 panels. */
struct band {
    const struct weight *w;
    const struct act *x;
    size_t row;
    size_t n_rows;
    size_t panel;
    size_t n_panels;
    bool is_first_band; /* of these panels: prefetches the next */
    bool has_next;      /* panels after these */
};

static struct span span_of(const struct band *band, const struct pack_layout *layout,
                           size_t block, size_t n_blocks)
{
    const size_t k_blocks = band->w->n_cols / ACT_BLOCK;
    const uint8_t *panel = band->w->data + band->panel * band->w->panel_bytes;
    struct span s = {
        .layout = layout,
        .blocks = {panel + block * layout->block_bytes},
        .q_stride = band->w->n_cols,
        .factor_stride = k_blocks,
        .n_blocks = n_blocks,
    };
    s.blocks[1] = s.blocks[0] + (band->n_panels == 2 ? band->w->panel_bytes : 0);
    if (band->is_first_band && band->has_next)
        s.prefetch_bytes = band->n_panels * band->w->panel_bytes;
    return s;
}

/* Rows of the next tile when n_rows are left: as few tiles as possible, about equal. */
static size_t tile_rows(size_t n_rows)
{
    const size_t n_tiles = (n_rows + TILE_ROWS - 1) / TILE_ROWS;
    return (n_rows + n_tiles - 1) / n_tiles;
}

/* Where a call's outputs go. */
struct target {
    enum matmul_mode mode;
    float *y;
    size_t y_stride;
};

static void store_tile(const struct band *band, const struct target *to, size_t row,
                       size_t n_rows, __m512 (*sums)[TILE_PANELS])
{
    for (size_t i = 0; i < band->n_panels; i++) {
        const struct output out =
            output_of(band->w, band->panel + i, row, to->mode, to->y, to->y_stride);
        for (size_t r = 0; r < n_rows; r++)
            store_row(&out, r, sums[r][i]);
    }
}

static void run_span(const struct band *band, const struct target *to, struct span s,
                     size_t block, __m512 (*sums)[TILE_PANELS])
{
    const tile_fn *tiles = TILES[form_of(s.layout)][band->n_panels - 1];
    const bool is_last = block + s.n_blocks == s.factor_stride;
    size_t n;
    for (size_t t = 0; t < band->n_rows; t += n) {
        n = tile_rows(band->n_rows - t);
        const size_t row = band->row + t;
        s.q = band->x->q + row * s.q_stride + block * ACT_BLOCK;
        s.scale = band->x->scale + row * s.factor_stride + block;
        s.sum = band->x->sum + row * s.factor_stride + block;
        s.scaled_sum = band->x->scaled_sum + row * s.factor_stride + block;
        tiles[n - 1](&s, block == 0, sums + t);
        if (is_last)
            store_tile(band, to, row, n, sums + t);
        s.prefetch_bytes = 0;
    }
}

/* The panels as bytes, where that pays: blocks [0, n_blocks) of K, or one chunk of a long K. */
struct expansion {
    struct pack_layout layout;
    size_t n_blocks; /* that are there */
    __attribute__((aligned(64))) uint8_t bytes[TILE_PANELS][KEPT_BLOCKS * BYTE_BLOCK_BYTES];
};

static void prepare_expansion(const struct pack_layout *layout, struct expansion *x)
{
    x->layout = *layout;
    x->layout.codes = PACK_BYTES;
    x->layout.factors = PACK_FACTORS_F32;
    x->layout.codes_bytes = PACK_BYTE_BYTES;
    x->layout.block_bytes = BYTE_BLOCK_BYTES;
}

/* Does all of K fit? Then its panels are expanded once for all bands. */
static bool is_kept(const struct band *band)
{
    return band->w->n_cols / ACT_BLOCK <= KEPT_BLOCKS;
}

static bool wants_expansion(const struct band *band, const struct pack_layout *layout)
{
    const size_t n_rows = is_kept(band) ? band->x->n_rows : band->n_rows;
    return layout->codes == PACK_NIBBLES && n_rows >= EXPAND_ROWS;
}

/* The span's panels as bytes. */
static void expand_span(const struct band *band, size_t block, struct expansion *x,
                        struct span *s)
{
    const bool fits = is_kept(band);
    const size_t at = (fits ? block : 0) * BYTE_BLOCK_BYTES;
    const bool is_there = fits && block + s->n_blocks <= x->n_blocks;
    for (size_t p = 0; p < band->n_panels; p++) {
        for (size_t b = 0; !is_there && b < s->n_blocks; b++) {
            const uint8_t *codes = s->blocks[p] + b * s->layout->block_bytes;
            if (s->prefetch_bytes != 0)
                prefetch_block(s, codes);
            expand_block(s->layout, codes, x->bytes[p] + at + b * BYTE_BLOCK_BYTES);
        }
        s->blocks[p] = x->bytes[p] + at;
    }
    if (!is_there)
        x->n_blocks = block + s->n_blocks;
    s->layout = &x->layout;
    s->prefetch_bytes = 0;
}

static void run_band(const struct band *band, const struct target *to,
                     const struct pack_layout *layout, struct expansion *x)
{
    __m512 sums[WAIT_ROWS][TILE_PANELS];
    const size_t k_blocks = band->w->n_cols / ACT_BLOCK;
    for (size_t b = 0; b < k_blocks; b += CHUNK_BLOCKS) {
        const size_t n = k_blocks - b < CHUNK_BLOCKS ? k_blocks - b : (size_t)CHUNK_BLOCKS;
        struct span s = span_of(band, layout, b, n);
        if (wants_expansion(band, layout))
            expand_span(band, b, x, &s);
        run_span(band, to, s, b, sums);
    }
}

static void matmul_int8(const struct weight *w, const struct act *x, size_t panel_begin,
                        size_t panel_end, enum matmul_mode mode, float *y, size_t y_stride)
{
    const struct target to = {mode, y, y_stride};
    struct pack_layout layout = pack_layout_of(w->type);
    if (layout.has_levels)
        layout.zero = 128; /* level_bytes adds it */
    struct expansion expansion;
    prepare_expansion(&layout, &expansion);
    struct band band = {.w = w, .x = x};
    for (size_t p = panel_begin; p < panel_end; p += TILE_PANELS) {
        band.panel = p;
        band.n_panels = panel_end - p < TILE_PANELS ? 1 : TILE_PANELS;
        band.has_next = panel_end - p >= 2 * TILE_PANELS;
        expansion.n_blocks = 0;
        for (size_t t = 0; t < x->n_rows; t += WAIT_ROWS) {
            band.row = t;
            band.n_rows = x->n_rows - t < WAIT_ROWS ? x->n_rows - t : (size_t)WAIT_ROWS;
            band.is_first_band = t == 0;
            run_band(&band, &to, &layout, &expansion);
        }
    }
}

void matmul_avx512(const struct weight *w, const struct act *x, size_t panel_begin,
                   size_t panel_end, enum matmul_mode mode, float *y, size_t y_stride)
{
    if (x->kind == ACT_INT8 && !quant_is_float(w->type))
        matmul_int8(w, x, panel_begin, panel_end, mode, y, y_stride);
    else
        matmul_float_avx512(w, x, panel_begin, panel_end, mode, y, y_stride);
}
