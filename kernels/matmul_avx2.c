/*
 * Products of quantised weights with int8 activations, AVX2.
 *
 * A tile is up to 4 rows against the 16 outputs of a panel, one block of 32 inputs after
 * another: a 4-byte broadcast of activations serves 16 outputs, a weight vector all rows. When
 * there are more rows than one tile takes, the codes of a block are first made ready for them
 * all: nibbles as bytes, signed levels beside their magnitudes. The float sums of a band wait
 * in memory, which costs a load and a store for every 8 products.
 *
 * vpmaddubsw adds two products into 16 bits and saturates, so the codes decide how many quads
 * fit together before they are widened: up to 15 all 8 of a block (8 * 2 * 15 * 127 < 2^15), up
 * to 31 four. Other codes are made signed; their magnitude goes in as the unsigned factor,
 * their sign moves to the activation: up to 32 (Q6_K) four quads fit, up to 128 one.
 */
#include <assert.h>
#include <immintrin.h>
#include <string.h>

#include "kernels_int.h"
#include "matmul_avx2_int.h"
#include "pack_int.h"
#include "quant_int.h"

enum {
    TILE_ROWS = 4,
    BAND_ROWS = 64, /* their activations and sums stay in the nearest caches */
};

/* How codes lie, and what their products take. */
enum form {
    FORM_NIBBLE, /* 0..15, two in a byte */
    FORM_BYTE,   /* 0..31 */
    FORM_LEVEL,  /* nibbles that number signed levels */
    FORM_SIGNED, /* bytes that become -128..127 */
    FORM_HALVES, /* bytes that become -32..31, with a scale for each half of a block */
};

/* The codes of a block as tiles take them. */
struct ready {
    _Alignas(32) uint8_t codes[PACK_BYTE_BYTES]; /* [8 quads][16 outputs][4]; signed levels */
    _Alignas(32) uint8_t magnitudes[PACK_BYTE_BYTES]; /* of signed levels */
};

struct block {
    const uint8_t *packed;
    const struct ready *ready;                 /* filled when there is more than one tile */
    _Alignas(32) float factors[2][PANEL_COLS]; /* scales, then minima or Q6_K's second scales */
};

/* Rows of activations, at one block of K. */
struct rows {
    const int8_t *q;
    const float *scale;
    const int32_t *sum;
    const float *scaled_sum;
    size_t q_stride;
    size_t factor_stride;
    size_t n_rows;
    float (*acc)[PANEL_COLS];
};

static ALWAYS_INLINE bool form_is_signed(enum form form)
{
    return form != FORM_NIBBLE && form != FORM_BYTE;
}

static_assert(8 * 2 * 15 * 127 <= INT16_MAX, "the products of 8 quads, codes up to 15");
static_assert(4 * 2 * 31 * 127 <= INT16_MAX, "of 4 quads, codes up to 31");
static_assert(4 * 2 * 32 * 127 <= INT16_MAX, "of 4 quads, levels from -32 to 31");
static_assert(1 * 2 * 128 * 127 <= INT16_MAX, "of a quad, levels from -128 to 127");

/* Quads whose products fit into 16 bits together. */
static ALWAYS_INLINE int form_group(enum form form)
{
    switch (form) {
    case FORM_NIBBLE: return PACK_QUADS;
    case FORM_BYTE:
    case FORM_HALVES: return PACK_QUADS / 2;
    default: return 1;
    }
}

/* ---- weights */

static ALWAYS_INLINE __m256i load_vector(const uint8_t *at)
{
    return _mm256_loadu_si256((const __m256i *)at);
}

static ALWAYS_INLINE __m256i look_up_levels(__m256i codes)
{
    return _mm256_shuffle_epi8(
        _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)quant_iq4nl_level)),
        codes);
}

/* One quad of 8 outputs as codes or signed levels. */
static ALWAYS_INLINE __m256i read_codes(enum form form, const uint8_t *packed, int quad,
                                        int half)
{
    if (form == FORM_NIBBLE || form == FORM_LEVEL) {
        const __m256i both = load_vector(packed + quad % (PACK_QUADS / 2) * 64 + half * 32);
        const __m256i codes = _mm256_and_si256(
            quad < PACK_QUADS / 2 ? both : _mm256_srli_epi16(both, 4), _mm256_set1_epi8(15));
        return form == FORM_LEVEL ? look_up_levels(codes) : codes;
    }
    const __m256i codes = load_vector(packed + quad * 64 + half * 32);
    if (form == FORM_BYTE)
        return codes;
    return _mm256_sub_epi8(codes, _mm256_set1_epi8(form == FORM_HALVES ? 32 : -128));
}

static ALWAYS_INLINE void make_ready(enum form form, const uint8_t *packed, struct ready *out)
{
    UNROLL(8)
    for (int quad = 0; quad < PACK_QUADS; quad++) {
        UNROLL(2)
        for (int h = 0; h < 2; h++) {
            const int at = quad * 64 + h * 32;
            const __m256i w = read_codes(form, packed, quad, h);
            _mm256_store_si256((__m256i *)(out->codes + at), w);
            if (form_is_signed(form))
                _mm256_store_si256((__m256i *)(out->magnitudes + at), _mm256_abs_epi8(w));
        }
    }
}

static ALWAYS_INLINE void read_factors(const struct pack_layout *layout, const uint8_t *packed,
                                       struct block *block)
{
    const int n_factors = layout->n_scales + layout->has_min;
    for (int i = 0; i < n_factors; i++)
        for (int half = 0; half < 2; half++)
            _mm256_store_ps(
                block->factors[i] + half * HALF_COLS,
                load_factors(layout->factors, packed + layout->codes_bytes, i, half));
}

/* ---- tiles */

static ALWAYS_INLINE __m256i broadcast_quad(const int8_t *q)
{
    int32_t quad;
    memcpy(&quad, q, sizeof quad);
    return _mm256_set1_epi32(quad);
}

/* The sums that one row has with 8 outputs of a block. */
struct dots {
    __m256i pairs; /* 16 bits: the quads of the group so far */
    __m256i wide;  /* the groups before */
};

/* Adds one quad. Each sum is kept where it is: tiles use all registers. */
static ALWAYS_INLINE void add_products(enum form form, int quad, __m256i pairs,
                                       struct dots *dots)
{
    const int group = form_group(form);
    if (quad % group != 0)
        pairs = _mm256_add_epi16(dots->pairs, pairs);
    if (quad % group != group - 1) {
        KEEP(pairs);
        dots->pairs = pairs;
        return;
    }
    __m256i wide = _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
    if (form != FORM_HALVES && quad >= group)
        wide = _mm256_add_epi32(dots->wide, wide);
    KEEP(wide);
    dots->wide = wide;
}

/* The unsigned factor of a product, and the signed one for 8 outputs. */
struct quad {
    __m256i level;
    __m256i magnitude;
};

static ALWAYS_INLINE struct quad read_quad(enum form form, bool is_ready,
                                           const struct block *block, int quad, int half)
{
    const int at = quad * 64 + half * 32;
    struct quad w;
    w.level = is_ready ? load_vector(block->ready->codes + at)
                       : read_codes(form, block->packed, quad, half);
    if (!form_is_signed(form))
        w.magnitude = w.level;
    else if (is_ready)
        w.magnitude = load_vector(block->ready->magnitudes + at);
    else
        w.magnitude = _mm256_abs_epi8(w.level);
    return w;
}

static ALWAYS_INLINE void add_quad(enum form form, bool is_ready, int n_rows, int quad,
                                   const struct block *block, const int8_t *q, size_t q_stride,
                                   struct dots (*dots)[2])
{
    const struct quad w[2] = {read_quad(form, is_ready, block, quad, 0),
                              read_quad(form, is_ready, block, quad, 1)};
    UNROLL(4)
    for (int t = 0; t < n_rows; t++) {
        const __m256i x = broadcast_quad(q + (size_t)t * q_stride + quad * 4);
        UNROLL(2)
        for (int h = 0; h < 2; h++) {
            const __m256i signed_x = form_is_signed(form) ? _mm256_sign_epi8(x, w[h].level) : x;
            add_products(form, quad, _mm256_maddubs_epi16(w[h].magnitude, signed_x),
                         &dots[t][h]);
        }
    }
}

/* Adds the dot products of a block, or of its half part, to the sums of rows t0, t0 + 1, ... */
static ALWAYS_INLINE void add_dots(enum form form, bool has_min, int n_rows, int part, int zero,
                                   const struct block *block, const struct rows *r, size_t t0,
                                   const struct dots (*dots)[2])
{
    UNROLL(4)
    for (int t = 0; t < n_rows; t++) {
        const size_t at = (t0 + (size_t)t) * r->factor_stride;
        const __m256 x_scale = _mm256_set1_ps(r->scale[at]);
        float *acc = r->acc[t0 + (size_t)t];
        UNROLL(2)
        for (int h = 0; h < 2; h++) {
            const int col = h * HALF_COLS;
            __m256 dot = _mm256_cvtepi32_ps(dots[t][h].wide);
            if (!form_is_signed(form) && !has_min) /* integers below 2^24: exact */
                dot = _mm256_fmadd_ps(_mm256_set1_ps((float)-zero),
                                      _mm256_cvtepi32_ps(_mm256_set1_epi32(r->sum[at])), dot);
            const __m256 scale =
                _mm256_mul_ps(_mm256_load_ps(block->factors[part] + col), x_scale);
            __m256 sum = _mm256_fmadd_ps(dot, scale, _mm256_load_ps(acc + col));
            if (has_min)
                sum = _mm256_fmadd_ps(_mm256_load_ps(block->factors[1] + col),
                                      _mm256_set1_ps(r->scaled_sum[at]), sum);
            _mm256_store_ps(acc + col, sum);
        }
    }
}

static ALWAYS_INLINE void run_tile(enum form form, bool has_min, bool is_ready, int n_rows,
                                   int zero, const struct block *block, const struct rows *r,
                                   size_t t)
{
    const int group = form_group(form);
    const int8_t *q = r->q + t * r->q_stride;
    struct dots dots[TILE_ROWS][2];
    UNROLL(8)
    for (int quad = 0; quad < PACK_QUADS; quad++) {
        add_quad(form, is_ready, n_rows, quad, block, q, r->q_stride, dots);
        if (form == FORM_HALVES && quad % group == group - 1)
            add_dots(form, has_min, n_rows, quad / group, zero, block, r, t, dots);
    }
    if (form != FORM_HALVES)
        add_dots(form, has_min, n_rows, 0, zero, block, r, t, dots);
}

/* The last rows of a band, up to a whole tile: a tile for each number of them. */
static ALWAYS_INLINE void run_last_tile(enum form form, bool has_min, bool is_ready, int zero,
                                        const struct block *block, const struct rows *r,
                                        size_t t)
{
    const size_t n_rows = r->n_rows - t;
    UNROLL(4)
    for (size_t n = 1; n <= TILE_ROWS; n++)
        if (n == n_rows)
            run_tile(form, has_min, is_ready, (int)n, zero, block, r, t);
}

/* ---- panels */

struct product {
    const struct weight *w;
    struct pack_layout layout;
};

static void prefetch_block(const uint8_t *block, size_t n_bytes)
{
    for (size_t at = 0; at < n_bytes; at += 64)
        _mm_prefetch((const char *)block + at, _MM_HINT_T0);
}

/* r.acc += a band of rows times one panel. prefetch_bytes: how far ahead to prefetch; 0: not.
 */
static ALWAYS_INLINE void run_panel(enum form form, bool has_min, const struct product *p,
                                    const uint8_t *panel, size_t prefetch_bytes, struct rows r)
{
    const size_t block_bytes = p->layout.block_bytes;
    const bool is_one_tile = r.n_rows <= TILE_ROWS;
    const int zero = p->layout.zero;
    struct ready ready;
    struct block block = {.packed = panel, .ready = &ready};
    for (size_t b = 0; b < p->w->n_cols / ACT_BLOCK; b++) {
        size_t t = 0;
        if (prefetch_bytes != 0)
            prefetch_block(block.packed + prefetch_bytes, block_bytes);
        read_factors(&p->layout, block.packed, &block);
        if (is_one_tile) {
            run_last_tile(form, has_min, false, zero, &block, &r, 0);
        } else {
            make_ready(form, block.packed, &ready);
            for (; t + TILE_ROWS <= r.n_rows; t += TILE_ROWS)
                run_tile(form, has_min, true, TILE_ROWS, zero, &block, &r, t);
            run_last_tile(form, has_min, true, zero, &block, &r, t);
        }
        block.packed += block_bytes;
        r.q += ACT_BLOCK;
        r.scale++;
        r.sum++;
        r.scaled_sum++;
    }
}

typedef void (*panel_fn)(const struct product *p, const uint8_t *panel, size_t prefetch_bytes,
                         const struct rows *r);

#define DEFINE_FORM(name, form, has_min)                                                       \
    static void name(const struct product *p, const uint8_t *panel, size_t prefetch_bytes,     \
                     const struct rows *r)                                                     \
    {                                                                                          \
        run_panel(form, has_min, p, panel, prefetch_bytes, *r);                                \
    }

DEFINE_FORM(run_nibble, FORM_NIBBLE, false)
DEFINE_FORM(run_nibble_min, FORM_NIBBLE, true)
DEFINE_FORM(run_byte, FORM_BYTE, false)
DEFINE_FORM(run_byte_min, FORM_BYTE, true)
DEFINE_FORM(run_level, FORM_LEVEL, false)
DEFINE_FORM(run_signed, FORM_SIGNED, false)
DEFINE_FORM(run_halves, FORM_HALVES, false)

static panel_fn panel_of(enum quant_type type)
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

/* ---- driver */

static struct rows rows_of(const struct act *x, size_t row, float (*acc)[PANEL_COLS])
{
    const size_t n_blocks = x->n_cols / ACT_BLOCK;
    const size_t left = x->n_rows - row;
    return (struct rows){
        .q = x->q + row * x->n_cols,
        .scale = x->scale + row * n_blocks,
        .sum = x->sum + row * n_blocks,
        .scaled_sum = x->scaled_sum + row * n_blocks,
        .q_stride = x->n_cols,
        .factor_stride = n_blocks,
        .n_rows = left < BAND_ROWS ? left : (size_t)BAND_ROWS,
        .acc = acc,
    };
}

/* Outputs lie far apart and are written all at once: their lines come while the panel runs. */
static void prefetch_rows(const float *y, size_t y_stride, size_t n_rows)
{
    for (size_t t = 0; t < n_rows; t++)
        __builtin_prefetch(y + t * y_stride, 1);
}

static void matmul_int8(const struct weight *w, const struct act *x, size_t panel_begin,
                        size_t panel_end, enum matmul_mode mode, float *y, size_t y_stride)
{
    _Alignas(32) float acc[BAND_ROWS][PANEL_COLS];
    const struct product product = {.w = w, .layout = pack_layout_of(w->type)};
    const panel_fn run = panel_of(w->type);
    for (size_t row = 0; row < x->n_rows; row += BAND_ROWS) {
        const struct rows r = rows_of(x, row, acc);
        for (size_t p = panel_begin; p < panel_end; p++) {
            const bool prefetches = row == 0 && p + 1 < panel_end;
            prefetch_rows(y + row * y_stride + p * PANEL_COLS, y_stride, r.n_rows);
            memset(acc, 0, r.n_rows * sizeof *acc);
            run(&product, w->data + p * w->panel_bytes, prefetches ? w->panel_bytes : 0, &r);
            for (int half = 0; half < 2; half++) {
                const struct output out = output_of(w, p, half, row, mode, y, y_stride);
                for (size_t t = 0; t < r.n_rows; t++)
                    store_row(&out, t, _mm256_load_ps(acc[t] + half * HALF_COLS));
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
