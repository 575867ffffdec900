/*
 * Tensor element types of model files: ids, block sizes, exact dequantisation.
 *
 * The ids are GGUF's. A row of n elements is stored as n / block_elems blocks; n must be a
 * multiple of block_elems. Layouts byte for byte: kernels/quant.c.
 */
#ifndef SHEAF_QUANT_H
#define SHEAF_QUANT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum quant_type {
    QUANT_F32 = 0,
    QUANT_F16 = 1,
    QUANT_Q4_0 = 2,
    QUANT_Q4_1 = 3,
    QUANT_Q5_0 = 6,
    QUANT_Q5_1 = 7,
    QUANT_Q8_0 = 8,
    QUANT_Q4_K = 12,
    QUANT_Q5_K = 13,
    QUANT_Q6_K = 14,
    QUANT_IQ4_NL = 20,
    QUANT_BF16 = 30,
};

struct quant_info {
    enum quant_type type;
    const char *name; /* as in GGUF listings: "Q4_1" */
    size_t block_elems;
    size_t block_bytes;
};

/* The types Sheaf computes with; NULL for every other id. */
const struct quant_info *quant_find(uint32_t type_id);
/* The name of any id that exists in files ("Q2_K", "IQ3_S", ...), for a refusal; else NULL. */
const char *quant_foreign_name(uint32_t type_id);

/* Bytes of a stored row of n elements. */
size_t quant_row_bytes(enum quant_type type, size_t n);

/*
 * Exact float32 values of one stored row: bit for bit what ggml's dequantize_row_* yield
 * (products and sums rounded separately, never fused). n is a multiple of block_elems.
 */
void quant_dequantize_row(enum quant_type type, const void *row, float *out, size_t n);

float quant_f16_to_f32(uint16_t bits);
uint16_t quant_f32_to_f16(float value); /* round to nearest even */
float quant_bf16_to_f32(uint16_t bits);
uint16_t quant_f32_to_bf16(float value); /* round to nearest even; NaN stays NaN */

#endif
