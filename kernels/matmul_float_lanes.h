/*
 * Products in float32, over the type lanes of the twin that includes this: float weights, and
 * any weights with float activations. The includer defines MATMUL_TILE_ROWS (4 to 12) and
 * MATMUL_TILE_PANELS (1 or 2), whose sums fit its registers beside the operands, and gives the
 * two functions declared below.
 *
 * A weight vector serves all rows of a tile, a broadcast activation all its panels. A chunk of
 * K at a time is widened to floats on the stack, [inputs][16 outputs] of each panel, where all
 * rows find it in the L1 cache; float32 weights lie so already and are read in place. Sums wait
 * in memory between chunks.
 */
#ifndef SHEAF_MATMUL_FLOAT_LANES_H
#define SHEAF_MATMUL_FLOAT_LANES_H

#include "inline_int.h"
#include "kernels_int.h"
#include "pack_int.h"
#include "quant_int.h"

enum {
    CHUNK_INPUTS = 128,
    WAIT_ROWS = 96, /* rows whose sums wait between chunks */
    ROW_GROUP = 3,  /* rows of a tile that one pointer reaches */
    ROW_GROUPS = (MATMUL_TILE_ROWS + ROW_GROUP - 1) / ROW_GROUP,
};

typedef float panel_sums[MATMUL_TILE_PANELS][PANEL_COLS];

/* n inputs of a panel of 16-bit floats, from input k on. */
static void widen_floats(enum quant_type type, const uint8_t *panel, size_t k, size_t n,
                         float (*value)[PANEL_COLS]);
/* A packed block's ACT_BLOCK inputs. */
static void dequantize_block(const struct pack_layout *layout, const uint8_t *codes,
                             float (*value)[PANEL_COLS]);

/* ---- tiles */

/* Inputs of a chunk for one tile. */
struct span {
    const float *w[MATMUL_TILE_PANELS]; /* [n_inputs][16] each */
    const float *x;                     /* rows x_stride apart */
    size_t x_stride;
    size_t n_inputs;
    bool is_first; /* of K: sums start at 0, and are not read */
};

/* sums[t][p] += the span. */
static ALWAYS_INLINE void run_tile(int n_panels, int n_rows, const struct span *s,
                                   panel_sums *sums)
{
    lanes acc[MATMUL_TILE_PANELS][MATMUL_TILE_ROWS];
    const float *x[ROW_GROUPS];
    UNROLL(2)
    for (int p = 0; p < n_panels; p++) {
        UNROLL(12)
        for (int t = 0; t < n_rows; t++)
            acc[p][t] = s->is_first ? lanes_set1(0.0f) : lanes_load(sums[t][p]);
    }
    UNROLL(4)
    for (int g = 0; g < ROW_GROUPS; g++)
        x[g] = s->x + (size_t)(g * ROW_GROUP < n_rows ? g * ROW_GROUP : 0) * s->x_stride;
    for (size_t k = 0; k < s->n_inputs; k++) {
        lanes w[MATMUL_TILE_PANELS];
        UNROLL(2)
        for (int p = 0; p < n_panels; p++)
            w[p] = lanes_load(s->w[p] + k * PANEL_COLS);
        UNROLL(12)
        for (int t = 0; t < n_rows; t++) {
            const lanes a =
                lanes_set1(x[t / ROW_GROUP][(size_t)(t % ROW_GROUP) * s->x_stride + k]);
            UNROLL(2)
            for (int p = 0; p < n_panels; p++)
                acc[p][t] = lanes_fma(a, w[p], acc[p][t]);
        }
    }
    UNROLL(2)
    for (int p = 0; p < n_panels; p++) {
        UNROLL(12)
        for (int t = 0; t < n_rows; t++)
            lanes_store(sums[t][p], acc[p][t]);
    }
}

/* Returns the rows of the tile that it ran. */
static ALWAYS_INLINE size_t run_rows(int n_panels, size_t n_rows, const struct span *s,
                                     panel_sums *sums)
{
    if (n_rows >= MATMUL_TILE_ROWS) {
        run_tile(n_panels, MATMUL_TILE_ROWS, s, sums);
        return MATMUL_TILE_ROWS;
    }
    if (n_rows >= 4) {
        run_tile(n_panels, 4, s, sums);
        return 4;
    }
    if (n_rows >= 2) {
        run_tile(n_panels, 2, s, sums);
        return 2;
    }
    run_tile(n_panels, 1, s, sums);
    return 1;
}

/* ---- driver */

/* Up to WAIT_ROWS rows against the panels of a tile. */
struct band {
    const struct weight *w;
    const struct pack_layout *layout; /* NULL: float weights */
    size_t panel;
    size_t n_panels;
    const float *x; /* [n_rows, K] */
    size_t n_rows;
};

/* Inputs k ... of a panel as floats, in value unless they are already. */
static const float *load_chunk(const struct band *band, size_t panel, size_t k, size_t n,
                               float (*value)[PANEL_COLS])
{
    const uint8_t *data = band->w->data + panel * band->w->panel_bytes;
    if (band->w->type == QUANT_F32)
        return (const float *)(const void *)data + k * PANEL_COLS;
    if (!band->layout) {
        widen_floats(band->w->type, data, k, n, value);
        return value[0];
    }
    const uint8_t *block = data + k / ACT_BLOCK * band->layout->block_bytes;
    for (size_t i = 0; i < n; i += ACT_BLOCK, block += band->layout->block_bytes)
        dequantize_block(band->layout, block, value + i);
    return value[0];
}

static void run_band(const struct band *band, panel_sums *sums)
{
    __attribute__((aligned(64))) float values[MATMUL_TILE_PANELS][CHUNK_INPUTS][PANEL_COLS];
    struct span s = {.x_stride = band->w->n_cols};
    for (size_t k = 0; k < band->w->n_cols; k += CHUNK_INPUTS) {
        const size_t left = band->w->n_cols - k;
        s.n_inputs = left < CHUNK_INPUTS ? left : (size_t)CHUNK_INPUTS;
        s.is_first = k == 0;
        for (size_t p = 0; p < band->n_panels; p++)
            s.w[p] = load_chunk(band, band->panel + p, k, s.n_inputs, values[p]);
        for (size_t t = 0; t < band->n_rows;) {
            s.x = band->x + t * s.x_stride + k;
            if (band->n_panels == MATMUL_TILE_PANELS)
                t += run_rows(MATMUL_TILE_PANELS, band->n_rows - t, &s, sums + t);
            else
                t += run_rows(1, band->n_rows - t, &s, sums + t);
        }
    }
}

static void store_sums(const struct band *band, enum matmul_mode mode, const panel_sums *sums,
                       float *y, size_t y_stride)
{
    for (size_t p = 0; p < band->n_panels; p++) {
        const size_t col = (band->panel + p) * PANEL_COLS;
        const size_t left = band->w->n_rows - col;
        const size_t n = left < PANEL_COLS ? left : (size_t)PANEL_COLS;
        for (size_t t = 0; t < band->n_rows; t++) {
            float *out = y + t * y_stride + col;
            lanes sum = lanes_load(sums[t][p]);
            if (mode == MATMUL_ADD)
                sum = lanes_add(lanes_load_first(out, n), sum);
            if (n == PANEL_COLS) /* masked stores are microcode on some CPUs */
                lanes_store(out, sum);
            else
                lanes_store_first(out, n, sum);
        }
    }
}

static void matmul_float(const struct weight *w, const struct act *x, size_t panel_begin,
                         size_t panel_end, enum matmul_mode mode, float *y, size_t y_stride)
{
    __attribute__((aligned(64))) panel_sums sums[WAIT_ROWS];
    const bool is_float = quant_is_float(w->type);
    const struct pack_layout layout =
        is_float ? (struct pack_layout){0} : pack_layout_of(w->type);
    struct band band = {.w = w, .layout = is_float ? NULL : &layout};
    for (size_t p = panel_begin; p < panel_end; p += MATMUL_TILE_PANELS) {
        const size_t left = panel_end - p;
        band.panel = p;
        band.n_panels = left < MATMUL_TILE_PANELS ? left : (size_t)MATMUL_TILE_PANELS;
        for (size_t t = 0; t < x->n_rows; t += WAIT_ROWS) {
            band.x = x->f32 + t * w->n_cols;
            band.n_rows = x->n_rows - t < WAIT_ROWS ? x->n_rows - t : (size_t)WAIT_ROWS;
            run_band(&band, sums);
            store_sums(&band, mode, sums, y + t * y_stride, y_stride);
        }
    }
}

#endif
