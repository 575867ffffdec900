/*
 * The products in plain C: the meaning of the contract in kernels.h, made fast enough only for
 * tiny models. A block of weights is unpacked once for a tile of rows.
 */
#include <math.h>
#include <string.h>

#include "kernels_int.h"
#include "pack_int.h"
#include "quant_int.h"

enum { TILE_ROWS = 16 };

/* One block of 32 inputs of a panel, unpacked. */
struct block {
    int16_t level[ACT_BLOCK][PANEL_COLS]; /* zero point taken off */
    float scale[2][PANEL_COLS];
    float min[PANEL_COLS];
};

struct tile {
    float acc[TILE_ROWS][PANEL_COLS];
};

static void read_factors(const struct pack_layout *layout, const uint8_t *factors, size_t idx,
                         float *out /* [16] */)
{
    if (layout->factors == PACK_FACTORS_F32) {
        memcpy(out, factors + idx * PANEL_COLS * sizeof *out, PANEL_COLS * sizeof *out);
        return;
    }
    uint16_t half[PANEL_COLS];
    memcpy(half, factors + idx * sizeof half, sizeof half);
    for (size_t c = 0; c < PANEL_COLS; c++)
        out[c] = quant_f16_to_f32(half[c]);
}

static int read_code(const struct pack_layout *layout, const uint8_t *codes, size_t k, size_t c)
{
    const size_t quad = k / 4;
    const size_t at = c * 4 + k % 4;
    if (layout->codes == PACK_BYTES)
        return codes[quad * 64 + at];
    const size_t half = PACK_QUADS / 2;
    return quad < half ? codes[quad * 64 + at] & 15 : codes[(quad - half) * 64 + at] >> 4;
}

static void read_block(const struct pack_layout *layout, const uint8_t *codes,
                       struct block *block)
{
    for (size_t k = 0; k < ACT_BLOCK; k++) {
        for (size_t c = 0; c < PANEL_COLS; c++) {
            const int code = read_code(layout, codes, k, c);
            block->level[k][c] =
                (int16_t)(layout->has_levels ? quant_iq4nl_level[code] : code - layout->zero);
        }
    }
    const uint8_t *factors = codes + layout->codes_bytes;
    read_factors(layout, factors, 0, block->scale[0]);
    read_factors(layout, factors, layout->n_scales == 2 ? 1 : 0, block->scale[1]);
    if (layout->has_min)
        read_factors(layout, factors, (size_t)layout->n_scales, block->min);
}

/* ---- int8 activations */

static void dot_codes(const struct block *block, const int8_t *q, size_t k_begin, size_t k_end,
                      int32_t *dot /* [16] */)
{
    memset(dot, 0, PANEL_COLS * sizeof *dot);
    for (size_t k = k_begin; k < k_end; k++)
        for (size_t c = 0; c < PANEL_COLS; c++)
            dot[c] += block->level[k][c] * q[k];
}

static void add_block_int8(const struct pack_layout *layout, const struct block *block,
                           const int8_t *q, float scale, int32_t sum, float *acc)
{
    const size_t step = ACT_BLOCK / (size_t)layout->n_scales;
    for (size_t k = 0; k < ACT_BLOCK; k += step) {
        int32_t dot[PANEL_COLS];
        dot_codes(block, q, k, k + step, dot);
        for (size_t c = 0; c < PANEL_COLS; c++)
            acc[c] = fmaf((float)dot[c], block->scale[k / step][c] * scale, acc[c]);
    }
    if (!layout->has_min)
        return;
    const float scaled_sum = scale * (float)sum;
    for (size_t c = 0; c < PANEL_COLS; c++)
        acc[c] = fmaf(block->min[c], scaled_sum, acc[c]);
}

/* ---- float activations */

static void dequantize_block(const struct pack_layout *layout, const struct block *block,
                             float out[ACT_BLOCK][PANEL_COLS])
{
    for (size_t k = 0; k < ACT_BLOCK; k++) {
        for (size_t c = 0; c < PANEL_COLS; c++) {
            const float product = block->scale[k / 16][c] * (float)block->level[k][c];
            out[k][c] = layout->has_min ? product + block->min[c] : product;
        }
    }
}

static void add_floats(const float (*value)[PANEL_COLS], const float *x, size_t n_inputs,
                       float *acc)
{
    for (size_t k = 0; k < n_inputs; k++)
        for (size_t c = 0; c < PANEL_COLS; c++)
            acc[c] = fmaf(x[k], value[k][c], acc[c]);
}

/* Inputs [k, k + n_inputs) of a panel of F32, F16 or BF16. */
static void read_floats(enum quant_type type, const uint8_t *panel, size_t k, size_t n_inputs,
                        float out[ACT_BLOCK][PANEL_COLS])
{
    const size_t elem_bytes = type == QUANT_F32 ? 4 : 2;
    const uint8_t *at = panel + k * PANEL_COLS * elem_bytes;
    for (size_t i = 0; i < n_inputs; i++)
        quant_dequantize_row(type, at + i * PANEL_COLS * elem_bytes, out[i], PANEL_COLS);
}

/* ---- driver */

static void sum_quant_tile(const struct weight *w, const struct act *x, const uint8_t *panel,
                           size_t row, size_t n_rows, struct tile *tile)
{
    const struct pack_layout layout = pack_layout_of(w->type);
    const size_t n_blocks = w->n_cols / ACT_BLOCK;
    for (size_t b = 0; b < n_blocks; b++) {
        struct block block;
        float value[ACT_BLOCK][PANEL_COLS];
        read_block(&layout, panel + b * layout.block_bytes, &block);
        if (x->kind == ACT_F32)
            dequantize_block(&layout, &block, value);
        for (size_t t = 0; t < n_rows; t++) {
            const size_t at = (row + t) * n_blocks + b;
            if (x->kind == ACT_F32)
                add_floats(value, x->f32 + at * ACT_BLOCK, ACT_BLOCK, tile->acc[t]);
            else
                add_block_int8(&layout, &block, x->q + at * ACT_BLOCK, x->scale[at], x->sum[at],
                               tile->acc[t]);
        }
    }
}

static void sum_float_tile(const struct weight *w, const struct act *x, const uint8_t *panel,
                           size_t row, size_t n_rows, struct tile *tile)
{
    for (size_t k = 0; k < w->n_cols; k += ACT_BLOCK) {
        const size_t n_inputs = w->n_cols - k < ACT_BLOCK ? w->n_cols - k : ACT_BLOCK;
        float value[ACT_BLOCK][PANEL_COLS];
        read_floats(w->type, panel, k, n_inputs, value);
        for (size_t t = 0; t < n_rows; t++)
            add_floats(value, x->f32 + (row + t) * w->n_cols + k, n_inputs, tile->acc[t]);
    }
}

static void store_tile(const struct tile *tile, size_t n_rows, size_t n_outputs,
                       enum matmul_mode mode, float *y, size_t y_stride)
{
    for (size_t t = 0; t < n_rows; t++)
        for (size_t c = 0; c < n_outputs; c++) {
            float *out = &y[t * y_stride + c];
            *out = mode == MATMUL_ADD ? *out + tile->acc[t][c] : tile->acc[t][c];
        }
}

void matmul_ref(const struct weight *w, const struct act *x, size_t panel_begin,
                size_t panel_end, enum matmul_mode mode, float *y, size_t y_stride)
{
    for (size_t p = panel_begin; p < panel_end; p++) {
        const uint8_t *panel = w->data + p * w->panel_bytes;
        const size_t col = p * PANEL_COLS;
        const size_t n_outputs = w->n_rows - col < PANEL_COLS ? w->n_rows - col : PANEL_COLS;
        for (size_t row = 0; row < x->n_rows; row += TILE_ROWS) {
            const size_t n_rows =
                x->n_rows - row < TILE_ROWS ? x->n_rows - row : (size_t)TILE_ROWS;
            struct tile tile = {0};
            if (quant_is_float(w->type))
                sum_float_tile(w, x, panel, row, n_rows, &tile);
            else
                sum_quant_tile(w, x, panel, row, n_rows, &tile);
            store_tile(&tile, n_rows, n_outputs, mode, y + row * y_stride + col, y_stride);
        }
    }
}
