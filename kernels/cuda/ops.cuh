/*
 * The operations of the CUDA backend: each launches kernels on a stream and returns. One .cu
 * file per family; pointers are the device's unless said otherwise. Shapes are in the letters
 * of kernels.h: T rows, D width, H heads, KVH KV heads, HD head dim, F inner width, V
 * vocabulary.
 *
 * Each op has a plain twin in tests/twins that computes it in double from the same inputs.
 * Errors of a launch are seen by the caller (port.cuh: last_error).
 */
#ifndef SHEAF_CUDA_OPS_CUH
#define SHEAF_CUDA_OPS_CUH

#include "port.cuh"

extern "C" {
#include "device.h"
}

/* A matrix of N outputs and K inputs: the file's blocks as they are, and (or) bfloat16 rows, or
 * E4M3 rows in the place of both. */
struct matrix {
    enum quant_type type;
    int n_rows, n_cols;    /* N, K */
    const uint8_t *blocks; /* rows quant_row_bytes(type, K) apart, 16-byte aligned; or NULL */
    const bf16 *rows;      /* [N, K] or NULL */
    /* fp8.cu: w[n, k] is about codes[n, k] * scales[n]; both 16-byte aligned. Or NULL. */
    const uint8_t *codes = nullptr; /* [N, K] */
    const float *scales = nullptr;  /* [N] */
};

/* Keys and values: [L][P][KVH][2][32][HD] of the type. */
struct kv_memory {
    enum kv_type type; /* KV_F32 or KV_BF16 */
    void *data;
    int n_layers, n_pages, n_kv_heads, head_dim;
};

/* ---- rows.cu */

/* x[t] = the embedding's row tokens[t], dequantised exactly; of a token below 0 (device.h:
 * device_best_of) that of best[-1 - tokens[t]]. */
void embed(stream_t s, const matrix &embedding, const int32_t *tokens, int n_rows, float *x,
           const int32_t *best = NULL);

/* For i < n_rows, with r = rows ? rows[i] : i: y[i] = x[r] * rsqrt(mean(x[r]^2) + eps) * w,
 * rounded to bfloat16; y32, unless NULL, has it unrounded. */
void rmsnorm(stream_t s, const float *x, const int32_t *rows, const float *w, float eps,
             int n_rows, int dim, bf16 *y, float *y32);

/* inner = silu(gate) * up; gate_up: [T, 2 F], gate first. */
void silu_mul(stream_t s, const bf16 *gate_up, int n_rows, int ffn_dim, bf16 *inner);

/* best[i] = index of the greatest of logits[i], the lowest among equals; NaN never wins, and a
 * row of nothing else gives 0. scratch lets several blocks share a row while rows are few, with
 * the same result; NULL: a block each. */
void argmax(stream_t s, const float *logits, int n_rows, int n_vocab, int32_t *best,
            void *scratch = NULL);
size_t argmax_scratch_bytes(void); /* whatever the shape */

/* ---- sample.cu */

/* For the n_wanted rows whose temperature is above 0: what device.h says of candidates; the
 * others' results stay as they are. best: argmax's of the same logits. scratch:
 * candidates_scratch_bytes of n_rows. */
void find_candidates(stream_t s, const float *logits, const int32_t *best,
                     const float *temperatures, int n_rows, int n_wanted, int n_vocab,
                     void *scratch, device_candidates *out);
size_t candidates_scratch_bytes(size_t n_rows, size_t n_vocab);

/* ---- split_heads.cu */

struct split_heads_args {
    const float *qkv; /* [T, (H + 2 KVH) * HD] products, bias added */
    int n_rows, n_heads, n_kv_heads, head_dim, n_rot;
    enum rope_pairing pairing;
    const float *cos_sin;         /* [T, n_rot / 2, 2] */
    const float *q_norm, *k_norm; /* [HD] or NULL: RMS norm of each head before it is rotated */
    float eps;
    const int32_t *kv_slots; /* [T] page * 32 + slot; -1: nowhere */
    int layer;
    kv_memory kv;
    bf16 *q; /* [T, H * HD] out */
};
/* Norms and rotates queries and keys, writes keys and values to their pages. */
void split_heads(stream_t s, const split_heads_args &a);

/* ---- attend.cu */

struct attend_args {
    const bf16 *q; /* [T, H * HD], rotated */
    int n_heads, n_kv_heads, head_dim;
    float scale;
    kv_memory kv;
    int layer;
    /* struct device_step's, on the device; counts are the host's. A block of no rows, and an
     * attend row whose row is -1, which no block has, are nothing. */
    const device_attend_row *rows;
    const device_span *spans;
    const device_block *blocks;
    const device_branch *branches;
    const int32_t *pages, *slots;
    int n_blocks, n_attend_rows;
    int block_queries_max; /* (row, query head) pairs of a block and KV head at most */
    int n_pages_max;       /* that any row sees keys of */
    bool exact;
    bf16 *mixed; /* [T, H * HD] out */
    /* Of the device: what a thread block may have of shared memory (0: the least of all
     * devices), and for the mode that is not exact its processors and scratch memory, which may
     * be too small for a step (attend_scratch_bytes) or NULL. */
    size_t shared_bytes_max;
    int n_processors;
    float *scratch;
    size_t scratch_bytes;
    uint64_t split_keys; /* of all blocks' spans, about: how keys are split goes by it */
};
/* Counts itself but for the keys: attend_count_keys(). */
void attend(stream_t s, const attend_args &a);
/* How keys are split: pages of positions to a thread block, and parts of them. */
struct attend_split {
    int n_pages, n_parts;
};
/* Rounds block_queries_max, n_pages_max and split_keys up to what many steps have in common: a
 * launch with greater ones is right, too. Besides pointers, equal n_blocks, n_attend_rows,
 * block_queries_max and splits are then equal launches. */
attend_split attend_round(attend_args *a);
/* Rows of a block that fill the largest tile: what a plan should aim at for rows that share
 * pages. */
int attend_block_rows(int n_heads, int n_kv_heads, int head_dim, size_t shared_bytes_max);
/* How n_pages pages of positions are cut into runs: pages of each but a shorter last one, so
 * that a run is about `share` pages and there are n_runs_max (2 at least) at most. The last run
 * has n_tail pages' work more than its positions; its pages are fewer by that. INT32_MAX: not
 * cut at all. Pure. */
int attend_run_pages(int n_pages, int n_tail, uint64_t share, int n_runs_max);
/* Enough for the splits of any step on a device. */
size_t attend_scratch_bytes(int head_dim, int n_processors);

/* ---- pages.cu */

void copy_page(stream_t s, const kv_memory &kv, int to, int from);
void move_token(stream_t s, const kv_memory &kv, int to, int to_slot, int from, int from_slot);
/* A page of all layers to or from one run of memory, [L][KVH][2][32][HD], 16-byte aligned: the
 * device's, or pinned memory of the host. */
void gather_page(stream_t s, const kv_memory &kv, int page, void *out);
void scatter_page(stream_t s, const kv_memory &kv, int page, const void *in);

/* ---- products.cu */

enum product_out { PRODUCT_F32, PRODUCT_F32_ADD, PRODUCT_BF16 };
inline size_t product_out_bytes(product_out kind) /* of an element */
{
    return kind == PRODUCT_BF16 ? sizeof(bf16) : sizeof(float);
}
enum { PRODUCT_INPUTS_MULTIPLE = 32 }; /* of a matrix; others are refused */

/* Plans, workspace and scratch of the products of one device. */
struct products;

struct products_options {
    bool exact;
    int n_rows_max;
    size_t scratch_bytes; /* for a matrix that is dequantised on its way; 0: none ever is */
    /* Of matrices of E4M3 rows, the most; 0: there are none, or all go to the own kernel. */
    int fp8_inputs_max, fp8_outputs_max;
};
/* 0, or an error with its sentence. */
int products_open(const products_options &o, products **out, struct err *e);
void products_close(products *p);
/* y[t, n] (=|+=) sum over k of x[t, k] * w[n, k], and bias[n] where there is one; rows of y are
 * y_stride elements apart. */
int product(products *p, stream_t s, const matrix &w, const bf16 *x, int n_rows,
            const float *bias, product_out kind, void *y, int y_stride, struct err *e);
typedef int product_fn(products *p, stream_t s, const matrix &w, const bf16 *x, int n_rows,
                       const float *bias, product_out kind, void *y, int y_stride,
                       struct err *e);
/* Tries now what product() would try at its first time with so many rows, and computes nothing:
 * a y that is not added to may hold anything afterwards. */
product_fn product_prepare;
/* rows = the matrix's values in bfloat16, rounded to nearest even. */
void dequantize(stream_t s, const matrix &w, bf16 *rows);

/* ---- medusa.cu: heads beside the model (device.h) */

/* Row to_rows[i] of `to` and of `rounded`, of which one may be NULL, = from[from_rows[i]];
 * which rows they are is read on the host, before it returns. D is a multiple of 4. */
void move_rows(stream_t s, const float *from, const int32_t *from_rows, const int32_t *to_rows,
               int n_rows, int dim, float *to, bf16 *rounded);

struct head_block_args {
    int n_heads, n_rows, dim; /* rows of each head; D is a multiple of 4 */
    const float *x;           /* [heads * T, D], or with `shared` [T, D] for all of them */
    bool shared;
    const float *products; /* [T, heads * D] */
    float *states;         /* [heads * T, D]; may be x */
    bf16 *rounded;         /* likewise */
};
/* states = rounded = x + silu(products) */
void add_silu(stream_t s, const head_block_args &a);

/* best[t]: the DEVICE_GUESSES greatest of n_cols logits in falling order, of equals the lowest
 * index first; NaN is never among them. Rows are `stride` apart. scratch as argmax's. */
void best_few(stream_t s, const float *logits, int n_rows, int n_cols, int stride,
              device_guess (*best)[DEVICE_GUESSES], void *scratch = NULL);
size_t best_few_scratch_bytes(void);

/* ---- fp8.cu */

enum { FP8_OUTPUTS_MULTIPLE = 16 }; /* of a matrix that cuBLASLt multiplies in E4M3 */

/* codes and scales = the matrix's values as E4M3 rows, see struct matrix. K is a multiple of
 * PRODUCT_INPUTS_MULTIPLE. */
void quantize_fp8(stream_t s, const matrix &w, uint8_t *codes, float *scales);
/* That products take for the options' matrices of E4M3 rows. */
size_t fp8_scratch_bytes(const products_options &o);

/* ---- peaks.cu: a slot of struct device_backend */

int measure_peaks(size_t ordinal, const device_peak_sizes *sizes, device_peaks *out,
                  struct err *e);

/* ---- counting: every launcher above says what its op costs by count_op() of count.cuh */

#endif
