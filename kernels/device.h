/*
 * A device that runs the forward pass in place of the kernel table, and heads beside the model:
 * weights, KV pages and activations live in its memory. A step's rows go over in one copy; what
 * comes back is what is asked of its logits: the greatest, the best few, or all of them.
 *
 * The engine's pool, prefix tree and scheduler stay on the host: a device knows pages by their
 * numbers only. A backend is a module, sheaf-NAME.so, which is loaded when it is asked for
 * (device_load); the program itself knows nothing of CUDA. sheaf-cuda-emu.so is the same source
 * built for the host, for tests.
 *
 * Arithmetic: products take bfloat16 inputs and bfloat16 (or stored, quantised) weights and add
 * up in float32; the residual stream is float32; keys and values have the pool's type. Sums are
 * in an order of the device's own, so tokens may differ from the CPU's where two logits are
 * nearly the same. With `fp8` the layers' weights are rounded to FP8 (E4M3, a scale for each
 * output) when they are copied, but for those in Q4_0 and Q4_1, which take less as they are;
 * and products of many rows round their inputs likewise. With `exact`, a row's bits do not
 * depend on the rows beside it: one way to compute each product whatever the number of rows,
 * and no cut of a row's keys that depends on anything but their positions; inputs are bfloat16
 * then, whatever the weights. Without it the fastest way for the number of rows is taken.
 *
 * Thread: the engine's. A step is only given: it is computed behind what was asked for before,
 * while the host goes on; what reads waits.
 */
#ifndef SHEAF_DEVICE_H
#define SHEAF_DEVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "kernels.h"
#include "quant.h"

enum { DEVICE_ABI = 2 }; /* of the structs below; a module of another one is refused */

/* ------------------------------------------------------------------ the model */

/* Stored rows in the file's type, on the host; data NULL: there is none. */
struct device_tensor {
    enum quant_type type;
    size_t n_rows, n_cols;
    const void *data;
};

struct device_layer {
    const float *attn_norm, *ffn_norm; /* [D] */
    const float *q_norm, *k_norm;      /* [HD] or NULL */
    const float *qkv_bias, *out_bias;  /* [(H + 2 KVH) * HD], [D]; or NULL */
    struct device_tensor q, k, v, out, gate, up, down;
};

/*
 * Heads beside the model (engine/medusa.h). Each begins with the same hidden row x and has
 * n_blocks blocks x += silu(W x + b); the outputs then give n_draft logits, neighbours with one
 * output side by side.
 */
enum { DEVICE_HEADS_MAX = 8, DEVICE_HEAD_BLOCKS_MAX = 4, DEVICE_GUESSES = 4 };

struct device_head_output {
    struct device_tensor weight; /* [n_draft, D]; the model's output's data: that matrix */
    size_t first_head, n_heads;
};

struct device_heads {
    size_t n_heads, n_blocks, n_draft, n_outputs;
    /* Of each block those of all heads. */
    struct device_tensor weights[DEVICE_HEAD_BLOCKS_MAX][DEVICE_HEADS_MAX]; /* [D, D] */
    const float *biases[DEVICE_HEAD_BLOCKS_MAX][DEVICE_HEADS_MAX];          /* [D] */
    struct device_head_output outputs[DEVICE_HEADS_MAX];
};

/* A logit and its place in the draft vocabulary, or -1: none. */
struct device_guess {
    float value;
    int32_t index;
};

/* Borrowed during open only. */
struct device_model {
    size_t n_layers, dim, n_heads, n_kv_heads, head_dim, ffn_dim, n_vocab, n_rot;
    float rms_eps;
    enum rope_pairing rope_pairing;
    const struct device_layer *layers; /* [L] */
    const float *output_norm;          /* [D] */
    struct device_tensor embedding;    /* [V, D] */
    struct device_tensor output;       /* [V, D]; the embedding's data again when tied */
    const struct device_heads *heads;  /* or NULL */
};

struct device_options {
    size_t ordinal; /* which device of the machine */
    /* Of the KV pool: as many of n_pages as there is memory for, but n_pages_min at least;
     * KV_PAGES_MAX at most. */
    size_t n_pages, n_pages_min;
    enum kv_type kv_type; /* KV_F32 or KV_BF16 */
    /* Of a step. */
    size_t n_rows_max;
    size_t n_logits_max;
    size_t n_page_refs_max; /* struct device_step's pages */
    size_t n_slots_max;     /* struct device_step's slots */
    size_t n_kept_max;      /* hidden rows that are kept for heads, n_rows_max at most */
    bool exact;
    bool graphs; /* small steps of like shape are captured once and launched as one */
    bool fp8;    /* weights of the layers; needs compute capability 8.9 */
};

/* ------------------------------------------------------------------ a step */

/*
 * Attention as the engine plans it (engine/forward_int.h): rows in the order of their page
 * lists; a block's rows go over its spans, parents first, every row's state being carried on.
 * A row sees the keys of positions 0..position.
 */
struct device_attend_row {
    int32_t row; /* of the step */
    int32_t position;
    int32_t branch; /* index of the step's branches, or -1: a position's slot is the position */
};

struct device_span {
    int32_t first_row, n_rows; /* of the block */
    int32_t first_page;        /* position / 32 of the first key */
    int32_t n_keys;            /* from there on that some row sees */
    int32_t pages;             /* index of the step's pages: one each 32 keys */
};

struct device_block {
    int32_t first_row, n_rows;
    int32_t first_span, n_spans;
};

/* A path of a draft whose slots are not its positions: the key of position first_position + i
 * is in slot slots[first_slot + i] of the row's sequence, whose page numbers stand at pages. */
struct device_branch {
    int32_t first_position, n_positions;
    int32_t first_slot; /* index of the step's slots */
    int32_t pages;      /* index of the step's pages: the sequence's, from its first on */
};

/* Rows of a longer vocabulary are asked for no candidates. */
enum { DEVICE_CANDIDATES = 64, DEVICE_CANDIDATES_VOCAB_MAX = 1 << 20 };

/*
 * Enough of most rows to draw a token from: the best of its logits and how much all of them
 * weigh. A logit weighs exp((logit - the greatest) / temperature), as kernels_exp computes it.
 * NaN and -infinity are never among them.
 */
struct device_candidate {
    float logit; /* of both zeros the one without a sign */
    int32_t id;  /* or -1: there are no more */
};
struct device_candidates {
    double total; /* in an order that depends on the vocabulary's size alone */
    /* Higher logits first, lower ids among equals. */
    struct device_candidate best[DEVICE_CANDIDATES];
};

struct device_step {
    size_t n_rows;
    const int32_t *tokens;   /* [n_rows] ids, or device_best_of() the step before */
    const float *cos_sin;    /* [n_rows, n_rot / 2, 2] */
    const int32_t *kv_slots; /* [n_rows] page * 32 + slot where its key and value go */

    size_t n_attend_rows, n_spans, n_blocks, n_branches, n_pages, n_slots;
    const struct device_attend_row *attend_rows;
    const struct device_span *spans;
    const struct device_block *blocks;
    const struct device_branch *branches;
    const int32_t *pages;
    const int32_t *slots;

    size_t n_logits;
    const int32_t *logits_rows; /* [n_logits] rows of the step */
    const float *temperatures;  /* [n_logits] of rows that want candidates, others have 0 */

    /* All of them, but when time is measured; modulo L. 0: the head alone, of the rows of the
     * step before. */
    size_t first_layer, n_layers;
    bool has_head;
};

/* In place of a row's token: the greatest of that logits row of the step before, which had a
 * head; so a step may be given while its tokens are still being computed. */
static inline int32_t device_best_of(size_t logits_row)
{
    return -1 - (int32_t)logits_row;
}

/* Families of operations, one for each kind of kernel (cuda/ops.cuh). */
enum device_family {
    DEVICE_EMBED,
    DEVICE_NORM,
    DEVICE_SILU,
    DEVICE_ARGMAX,
    DEVICE_SAMPLE,      /* candidates */
    DEVICE_SPLIT_HEADS, /* queries and keys rotated, keys and values written */
    DEVICE_ATTEND,
    DEVICE_PAGES,
    DEVICE_PRODUCT,
    DEVICE_DEQUANTIZE, /* of a whole matrix, before its product */
    DEVICE_GUESS,      /* of heads, but for their products */
    DEVICE_N_FAMILIES
};

/* bytes: of device memory that an operation needs, every byte of its inputs and outputs once,
 * however often caches are asked for it; attention: once for each block that reads it. */
struct device_cost {
    uint64_t launches, bytes_read, bytes_written, flops;
};

/* What steps have cost since open, as the source counts it: of graphs as of launches. Rows that
 * fill a step up to a graph's number of rows are computed, and so counted. */
struct device_counters {
    uint64_t steps, copies;
    uint64_t graphs_captured, graphs_replayed;
    uint64_t graph_launches; /* those of the families below that were part of a replay */
    uint64_t bytes_to_host;  /* of results: tokens, candidates, logits, hidden states */
    struct device_cost of[DEVICE_N_FAMILIES];
};

struct device_info {
    char name[96];          /* "NVIDIA H200", "cuda-emu" */
    char arithmetic[16];    /* part of the names of KV files: "sm90-bf16", "sm90-fp8-exact" */
    int compute_capability; /* 90 */
    size_t memory_bytes, free_bytes;
    /* Once it is open: what it took, and the pages of its KV pool. */
    size_t weights_bytes, kv_bytes, activations_bytes;
    size_t n_pages;
    size_t block_rows; /* of a step's blocks at most, as its attention likes them best */
};

/* What a device can do at most, measured: the yardstick of its speeds. */
struct device_peaks {
    double copy;    /* bytes a second, read and written both counted */
    double product; /* bfloat16 operations a second; an addition and a multiplication are two */
};

struct device_peak_sizes {
    size_t copy_bytes;   /* many times the cache; twice as much memory is taken */
    size_t product_side; /* of a square matrix, a multiple of 32 */
    int64_t us;          /* that each measurement goes on for at least */
};

/* ------------------------------------------------------------------ the backend */

struct device;

/* A call that fails leaves the device as good as closed: close is all that is left. */
struct device_backend {
    int abi; /* DEVICE_ABI */
    /* Copies the weights. ERR_UNSUPPORTED with a sentence for a person: no driver, no such
     * device, too old; ERR_NOMEM with what is needed and what there is. */
    int (*open)(const struct device_options *o, const struct device_model *m,
                struct device **out, struct err *e);
    void (*close)(struct device *d);
    void (*info)(const struct device *d, struct device_info *out);
    void (*counters)(const struct device *d, struct device_counters *out);

    int (*step)(struct device *d, const struct device_step *s, struct err *e);
    /* Of the last step. All wait for what they read. Row logits_rows[i], in rising order, goes
     * to its place in out. */
    int (*read_logits)(struct device *d, const int32_t *logits_rows, size_t n,
                       float *out /* [n_logits, V] */, struct err *e);
    /* Of the last step that had logits, or with n_later 1 of the one before that: waits for
     * that step alone. */
    int (*read_best)(struct device *d, size_t n_later, int32_t *out /* [n_logits] */,
                     struct err *e);
    /* Rows that wanted none may hold anything. */
    int (*read_candidates)(struct device *d, struct device_candidates *out /* [n_logits] */,
                           struct err *e);
    int (*read_hidden)(struct device *d, size_t logits_row, float *out, struct err *e);
    int (*wait)(struct device *d, struct err *e);

    /* Pages hold [L][KVH][key, value][32][HD] in the pool's type when they are read or written;
     * a page is L * KVH * 2 * 32 * HD elements. */
    int (*copy_page)(struct device *d, int32_t to, int32_t from, struct err *e);
    int (*move_token)(struct device *d, int32_t to, size_t to_slot, int32_t from,
                      size_t from_slot, struct err *e);
    int (*read_page)(struct device *d, int32_t page, void *out, struct err *e);
    int (*write_page)(struct device *d, int32_t page, const void *in, struct err *e);

    /* Of a device that nothing else uses meanwhile; needs none to be open. */
    int (*peaks)(size_t ordinal, const struct device_peak_sizes *sizes,
                 struct device_peaks *out, struct err *e);

    /* Of a device with heads. keep_hidden: the hidden states behind n different logits rows of
     * the last step go to n different places of the device's own, 0..n_kept_max - 1, where they
     * stay until others do. */
    int (*keep_hidden)(struct device *d, size_t n, const int32_t *logits_rows,
                       const int32_t *places, struct err *e);
    /* What the heads say of n places: of each head the greatest logits, of equals the lower
     * index first; NaN is none. Waits. What the last step computed cannot be read after. */
    int (*guess)(struct device *d, size_t n, const int32_t *places,
                 struct device_guess *out /* [n_heads, n, DEVICE_GUESSES] */, struct err *e);
};

/* The symbol of a module that gives its backend. */
#define DEVICE_SYMBOL "sheaf_device_backend"
typedef const struct device_backend *device_backend_fn(void);

/*
 * Loads sheaf-NAME.so from the program's folder or its ../lib/sheaf; once per process. NAME is
 * "cuda" or "cuda-emu". ERR_UNSUPPORTED with a sentence when there is none or it cannot be
 * loaded (a library that it needs is missing).
 */
int device_load(const char *name, const struct device_backend **out, struct err *e);

#endif
