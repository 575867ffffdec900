/*
 * What the files of the products share: the ways to compute one, and who chooses.
 *
 *     products.cu      products_open .. product(): takes the matrix and the way together
 *     product_way.cu   which way for how many rows
 *     few_rows.cu      own kernels, which read stored blocks or bfloat16 rows
 *     dequantize.cu    stored blocks to bfloat16 rows
 *     fp8.cu           values to E4M3 rows, and the large products of those
 *     lt.h             cuBLASLt (lt_cuda.cu) or its host twin (lt_emu.cpp)
 */
#ifndef SHEAF_CUDA_PRODUCTS_INT_H
#define SHEAF_CUDA_PRODUCTS_INT_H

#include "ops.cuh"

enum product_way {
    WAY_OWN_BLOCKS,  /* own kernel on the stored blocks: Q4_0, Q4_1, Q8_0 */
    WAY_OWN_ROWS,    /* own kernel on bfloat16 rows */
    WAY_OWN_SCRATCH, /* dequantised into scratch, then the own kernel */
    WAY_LT_ROWS,     /* cuBLASLt on bfloat16 rows */
    WAY_LT_SCRATCH,  /* dequantised into scratch, then cuBLASLt */
    WAY_OWN_FP8,     /* own kernel on E4M3 rows and x as it is */
    WAY_LT_FP8,      /* cuBLASLt on E4M3 rows and x rounded to E4M3 */
    WAY_NONE
};

/* All that the choice depends on. */
struct product_case {
    quant_type type;
    bool has_blocks, has_rows, has_scratch, has_codes;
    bool bias_to_bf16; /* a float32 bias under a bfloat16 result: cuBLASLt takes none */
    bool exact;
    int n_rows; /* T */
};
/* WAY_NONE: there is none (a type without a kernel of its own, and no scratch). */
product_way product_way_of(const product_case &c);

/* For tests: every product takes this way, and fails where it cannot; WAY_NONE: as chosen. */
void products_force(products *p, product_way way);

/* y (=|+=) x w^T + bias on device memory: x is [T, K], packed; see ops.cuh: product. */
struct product_args {
    /* N stored rows, quant_row_bytes(type, K) apart, or E4M3 codes; 16-byte aligned. */
    const uint8_t *w;
    const float *w_scales; /* [N] of E4M3 rows for the own kernel, or NULL */
    int n_outputs, n_inputs;
    const bf16 *x;          /* 16-byte aligned */
    const uint8_t *x_codes; /* in its place: E4M3 like w, for cuBLASLt alone; or NULL */
    int n_rows;
    const float *bias; /* [N] or NULL */
    product_out kind;
    void *y;
    int64_t y_stride;
};

/* Says what the product costs (count.cuh); row_bytes: of a row of w. */
void count_product(const product_args &a, uint64_t row_bytes);

/* Rows of E4M3 codes, as a type of weights: an id that no file has. */
static constexpr quant_type ROWS_E4M3 = (quant_type)31;

bool few_rows_takes(quant_type type);
/* Any number of rows; fast for few. An output's bits depend on its row of x, its row of w and
 * on N and K alone: neither on T nor on where the row stands. */
void few_rows_multiply(stream_t s, quant_type type, const product_args &a);

/* The part of the matrix that starts at w: n_rows rows of n_cols. */
void dequantize_rows(stream_t s, quant_type type, const uint8_t *w, int n_rows, int n_cols,
                     bf16 *rows);

struct lt;

/* Memory of the device for fp8_multiply(). */
struct fp8_scratch {
    uint8_t *x_codes; /* [T, K] */
    float *x_scales;  /* [T] */
    float *sums;      /* [T, outputs of a slice] */
    size_t sums_bytes;
};
/* Lays it out in fp8_scratch_bytes(o) that start at memory. */
fp8_scratch fp8_lay_out(const products_options &o, void *memory);
/* A small product, to know at open whether the device's cuBLASLt has any of E4M3 rows. */
int fp8_try(lt *large, const fp8_scratch &scratch, int n_inputs, stream_t s, struct err *e);
/* Outputs that the sums have room for at once. */
int fp8_slice_outputs(size_t sums_bytes, int n_rows, int n_outputs);

int fp8_multiply(lt *large, const fp8_scratch &scratch, stream_t s, const matrix &w,
                 const product_args &a, struct err *e);
/* Has cuBLASLt know the shapes of such products, and computes none. */
void fp8_prepare(lt *large, const fp8_scratch &scratch, stream_t s, const matrix &w,
                 int n_rows);

#endif
