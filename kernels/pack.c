/*
 * Packed weights: panels of 16 outputs, so that one vector holds the same inputs of 16
 * neighbouring outputs, and every vector that is loaded serves many activation rows.
 *
 * F32, F16, BF16: a panel is [K][16 outputs] in the element type.
 *
 * Quantised types: a panel is K / 32 blocks, one after another:
 *
 *   codes    4-bit types (Q4_0, Q4_1, Q4_K, IQ4_NL), 256 bytes: byte q * 64 + c * 4 + j
 *            (q = 0..3, c = output, j = 0..3) holds the code of input 4 q + j in its low and
 *            of input 16 + 4 q + j in its high nibble
 *            other types, 512 bytes: byte q * 64 + c * 4 + j (q = 0..7) is the code of input
 *            4 q + j; Q8_0's code is the stored byte + 128
 *   scales   [16 outputs], f16 as in the file, f32 for the products d * S of the K types;
 *            Q6_K has two such rows, for inputs 0..15 and 16..31
 *   minima   [16 outputs] in the same format: Q4_1, Q5_1, Q4_K, Q5_K; negated for the K types
 *
 * A quad of inputs is what one lane of a byte dot product takes. Bits per weight: Q4_0 4.5,
 * Q4_1 5, Q4_K 6, Q8_0 8.5. Panels start at multiples of 64 bytes. Columns >= N of the last
 * panel are zero bytes: their scale is 0.
 */
#include "pack_int.h"

#include <string.h>

#include "base/check.h"
#include "quant_int.h"

struct pack_layout pack_layout_of(enum quant_type type)
{
    struct pack_layout layout = {
        .codes = PACK_BYTES,
        .factors = PACK_FACTORS_F16,
        .n_scales = type == QUANT_Q6_K ? 2 : 1,
        .has_min = quant_has_min(type),
        .has_levels = type == QUANT_IQ4_NL,
        .zero = quant_zero_code(type),
        .codes_bytes = PACK_BYTE_BYTES,
    };
    if (type == QUANT_Q4_0 || type == QUANT_Q4_1 || type == QUANT_Q4_K ||
        type == QUANT_IQ4_NL) {
        layout.codes = PACK_NIBBLES;
        layout.codes_bytes = PACK_NIBBLE_BYTES;
    }
    if (type == QUANT_Q4_K || type == QUANT_Q5_K || type == QUANT_Q6_K)
        layout.factors = PACK_FACTORS_F32;
    const size_t factor_bytes = layout.factors == PACK_FACTORS_F16 ? 2 : 4;
    const size_t n_factors = (size_t)layout.n_scales + layout.has_min;
    layout.block_bytes = layout.codes_bytes + n_factors * PANEL_COLS * factor_bytes;
    return layout;
}

/* 0 when the type is unknown, n_cols does not fit its blocks, or the size overflows. */
static size_t panel_bytes_of(enum quant_type type, size_t n_cols)
{
    const struct quant_info *info = quant_find(type);
    if (!info || n_cols == 0 || n_cols % info->block_elems != 0)
        return 0;
    const size_t align = KERNELS_ALIGN - 1;
    size_t bytes;
    if (quant_is_float(type)) {
        if (__builtin_mul_overflow(n_cols, info->block_bytes * PANEL_COLS, &bytes))
            return 0;
    } else {
        const struct pack_layout layout = pack_layout_of(type);
        if (__builtin_mul_overflow(n_cols / ACT_BLOCK, layout.block_bytes, &bytes))
            return 0;
    }
    return bytes > SIZE_MAX - align ? 0 : (bytes + align) & ~align;
}

static size_t panels_of(size_t n_rows)
{
    return n_rows / PANEL_COLS + (n_rows % PANEL_COLS != 0);
}

size_t weight_packed_bytes(enum quant_type type, size_t n_rows, size_t n_cols)
{
    size_t bytes;
    if (__builtin_mul_overflow(panels_of(n_rows), panel_bytes_of(type, n_cols), &bytes))
        return 0;
    return bytes;
}

static void put_codes(const struct pack_layout *layout, const uint8_t *code, size_t col,
                      uint8_t *codes)
{
    for (size_t q = 0; q < PACK_QUADS; q++) {
        for (size_t j = 0; j < 4; j++) {
            const uint8_t value = code[4 * q + j];
            uint8_t *at = codes + col * 4 + j;
            if (layout->codes == PACK_BYTES)
                at[q * 64] = value;
            else if (q < PACK_QUADS / 2)
                at[q * 64] = value;
            else
                at[(q - PACK_QUADS / 2) * 64] |= (uint8_t)(value << 4);
        }
    }
}

static void put_factor(const struct pack_layout *layout, float value, size_t idx, size_t col,
                       uint8_t *factors)
{
    const size_t at = idx * PANEL_COLS + col;
    if (layout->factors == PACK_FACTORS_F32) {
        memcpy(factors + at * sizeof value, &value, sizeof value);
        return;
    }
    const uint16_t half = quant_f32_to_f16(value);
    memcpy(factors + at * sizeof half, &half, sizeof half);
}

static void pack_quant_column(enum quant_type type, size_t n_cols, const uint8_t *row,
                              size_t col, uint8_t *panel)
{
    const struct pack_layout layout = pack_layout_of(type);
    for (size_t b = 0; b < n_cols / ACT_BLOCK; b++) {
        struct quant_group group;
        quant_read_group(type, row, b, &group);
        uint8_t *codes = panel + b * layout.block_bytes;
        uint8_t *factors = codes + layout.codes_bytes;
        put_codes(&layout, group.code, col, codes);
        for (int s = 0; s < layout.n_scales; s++)
            put_factor(&layout, group.scale[s], (size_t)s, col, factors);
        if (layout.has_min)
            put_factor(&layout, group.min, (size_t)layout.n_scales, col, factors);
    }
}

static void pack_float_column(size_t elem_bytes, size_t n_cols, const uint8_t *row, size_t col,
                              uint8_t *panel)
{
    for (size_t k = 0; k < n_cols; k++)
        memcpy(panel + (k * PANEL_COLS + col) * elem_bytes, row + k * elem_bytes, elem_bytes);
}

static void pack_rows(const struct weight *w, const uint8_t *rows)
{
    const struct quant_info *info = quant_find(w->type);
    const size_t row_bytes = quant_row_bytes(w->type, w->n_cols);
    memset(w->data, 0, w->n_panels * w->panel_bytes);
    for (size_t n = 0; n < w->n_rows; n++) {
        uint8_t *panel = w->data + n / PANEL_COLS * w->panel_bytes;
        if (quant_is_float(w->type))
            pack_float_column(info->block_bytes, w->n_cols, rows + n * row_bytes,
                              n % PANEL_COLS, panel);
        else
            pack_quant_column(w->type, w->n_cols, rows + n * row_bytes, n % PANEL_COLS, panel);
    }
}

struct weight weight_shape(enum quant_type type, size_t n_rows, size_t n_cols)
{
    return (struct weight){.type = type,
                           .n_rows = n_rows,
                           .n_cols = n_cols,
                           .n_panels = panels_of(n_rows),
                           .panel_bytes = panel_bytes_of(type, n_cols)};
}

int weight_pack(struct weight *w, enum quant_type type, size_t n_rows, size_t n_cols,
                const void *rows, void *dst, struct err *e)
{
    const struct quant_info *info = quant_find(type);
    if (weight_packed_bytes(type, n_rows, n_cols) == 0)
        return ERR_SET(e, ERR_UNSUPPORTED, "a matrix of %zu x %zu in %s cannot be packed",
                       n_rows, n_cols, info ? info->name : "an unknown type");
    ASSERT((uintptr_t)dst % KERNELS_ALIGN == 0);
    *w = weight_shape(type, n_rows, n_cols);
    w->data = dst;
    pack_rows(w, rows);
    return 0;
}
