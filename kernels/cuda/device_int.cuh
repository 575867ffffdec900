/*
 * What the files of the backend share (device.h):
 *
 *     device.cu          the table; opening and closing
 *     device_plan.cu     what memory there is for what, before any is taken
 *     device_weights.cu  the model's weights, copied
 *     device_buffers.cu  the memory of steps: activations, results
 *     device_step.cu     a step: its shape, its layers, its head
 *     device_meta.cu     a step's metadata, copied
 *     device_graph.cu    steps of few rows as graphs
 *     device_tries.cu    products tried before the first step
 *     device_heads.cu    heads beside the model: rows that are kept for them, their guesses
 *     device_read.cu     what comes back: logits, candidates, hidden states, pages
 *
 * All work is on one stream, so that it is done in the order in which it was asked for.
 */
#ifndef SHEAF_CUDA_DEVICE_INT_H
#define SHEAF_CUDA_DEVICE_INT_H

#include "count.cuh"
#include "ops.cuh"

/* Matrices over the same input whose outputs stand side by side: q|k|v, gate|up. Neighbours
 * that are kept alike are one matrix. */
enum { FUSED_PARTS_MAX = 3 };
struct fused {
    int n_parts;
    matrix parts[FUSED_PARTS_MAX];
    int columns[FUSED_PARTS_MAX]; /* first output of each part */
    int n_rows;                   /* all outputs */
    const float *bias;            /* [n_rows] or NULL */
};

struct layer {
    const float *attn_norm, *ffn_norm; /* [D] */
    const float *q_norm, *k_norm;      /* [HD] or NULL */
    fused qkv, out, gate_up, down;
};

/* Heads beside the model; n_heads 0: there are none. */
struct guessing {
    int n_heads, n_blocks, n_draft, n_outputs;
    matrix blocks[DEVICE_HEAD_BLOCKS_MAX];       /* [heads * D, D] one after another */
    const float *biases[DEVICE_HEAD_BLOCKS_MAX]; /* [heads * D] */
    struct {
        matrix weight; /* [n_draft, D] */
        int first_head, n_heads;
    } outputs[DEVICE_HEADS_MAX];

    float *kept; /* [n_kept_max, D] */
    /* Of a run of n places, n_kept_max at most. */
    float *x;                               /* [n, D] */
    bf16 *x_rounded;                        /* [n, D] */
    float *products;                        /* [n, heads * D] of a block */
    float *states;                          /* [heads * n, D] behind a block */
    bf16 *states_rounded;                   /* likewise; without blocks the rows themselves */
    device_guess (*best)[DEVICE_GUESSES];   /* [heads * n] */
    void *best_scratch;                     /* of best_few */
    device_guess (*pinned)[DEVICE_GUESSES]; /* [heads * n] on the host */
    int32_t *from_rows, *to_rows;           /* [heads * n] likewise */
};

/* How a stored tensor is kept: its blocks where kernels compute with them as they are, rows in
 * bfloat16 where they do not. Layers' matrices may be E4M3 rows instead (ops.cuh). */
enum kept_form { KEPT_BLOCKS, KEPT_ROWS, KEPT_FP8 };
kept_form form_of(const device_tensor *t);
kept_form form_in_layer(const device_tensor *t, const device_options *o);

/* Bytes of the device, before any is taken. */
struct memory_plan {
    size_t weights, activations, step, products, reserve;
    size_t scratch;                         /* of the products, part of theirs */
    size_t fp8_inputs_max, fp8_outputs_max; /* likewise (products_options) */
    size_t heads; /* of heads beside the model, part of weights and activations */
    size_t page;  /* of the KV pool, each */
    size_t n_pages;
};

/* Of a step, on the device (device_plan.cu says how much). */
struct buffers {
    float *x;                      /* [T, D] the residual stream */
    bf16 *hidden;                  /* [T, D] normed rows */
    float *qkv;                    /* [T, (H + 2 KVH) * HD] */
    bf16 *q, *mixed;               /* [T, H * HD] */
    bf16 *gate_up;                 /* [T, 2 F] */
    bf16 *inner;                   /* [T, F] */
    bf16 *last;                    /* [n_logits_max, D] normed rows that want logits */
    float *last_f32;               /* likewise, not rounded */
    float *logits;                 /* [n_logits_max, V] */
    int32_t *best;                 /* [n_logits_max] */
    void *best_scratch;            /* of argmax */
    device_candidates *candidates; /* [n_logits_max] */
    void *candidates_scratch;
    float *splits; /* of attention, or NULL; attend_scratch_bytes() */
};

enum { STAGES = 2 };

/* Where a step's metadata is gathered, and where it is copied to (device_meta.cu). */
struct stage {
    uint8_t *pinned[STAGES];
    uint8_t *on_device;
    size_t bytes;    /* of each */
    size_t used;     /* of the current one */
    int current;     /* which of the pinned ones */
    int n_in_flight; /* copies that nobody has waited for since */
};

/* What a step is computed as: its own counts, or greater ones. Launches and the places of the
 * metadata depend on a step by these alone: what else they come to depend on belongs here. */
struct step_shape {
    int n_rows, n_logits;
    int n_candidates; /* of the logits; rounded, all or none */
    int n_blocks, n_spans, n_branches, n_slots;
    /* Of attention, where the shape is rounded up. */
    int block_queries_max;
    attend_split split;
};

enum { SPANS_OF_ROW = 2 };

/* The step's metadata on the device. */
struct step_on_device {
    const int32_t *tokens, *kv_slots, *logits_rows, *pages, *slots;
    const float *cos_sin, *temperatures;
    const device_attend_row *rows;
    const device_span *spans;
    const device_block *blocks;
    const device_branch *branches;
};

/* The greatest logits of a step on their way to the host. Two of them, so that a step may be
 * given before those of the one before were read. */
struct result {
    int32_t *best;   /* [n_logits_max] pinned */
    size_t n_logits; /* of the step */
    uint64_t step;   /* which: counters.steps after it */
    event_t is_there;
};

enum { RESULTS = 2 };
/* A shape that was computed, and its graph, if it has one. */
struct graph_entry {
    step_shape shape;
    uint64_t used_at; /* 0: nothing is here */
    bool is_tried;    /* to capture it */
    graph_t graph;    /* or NULL */
    device_cost cost[DEVICE_N_FAMILIES];
};

enum {
    GRAPHS_MAX = 64,     /* the one that was not used longest goes */
    GRAPH_ROWS_MAX = 256 /* of a step; larger ones keep the device busy by launches */
};
struct graph_cache {
    graph_entry entries[GRAPHS_MAX];
    uint64_t n_uses;
};

struct allocation {
    void *memory;
    bool is_pinned;
    allocation *next;
};

struct device {
    device_options options;
    device_info info;
    device_model model; /* its shape; what it pointed to is gone */
    memory_plan plan;
    int n_processors;
    size_t shared_bytes_max; /* of a thread block */
    stream_t stream;
    allocation *allocations;

    matrix embedding, output;
    const float *output_norm;
    layer *layers; /* [L] */
    products *products_of;
    kv_memory kv;
    buffers b;
    stage meta;
    graph_cache graphs;

    result results[RESULTS];
    int last_result; /* which was begun last */
    guessing heads;

    /* Pinned, for what is read back. */
    device_candidates *candidates; /* [n_logits_max] */
    float *rows;                   /* [n_rows_staged, max(V, D)] */
    size_t n_rows_staged;
    uint8_t *page;   /* of the KV pool */
    size_t n_logits; /* of the last step */

    device_counters counters;
};

/* The first thing that failed on the device, as ERR_IO: "what: why"; 0: nothing did. */
int device_failure(const char *what, struct err *e);
/* Waits until all is done. */
int device_settle(device *d, const char *what, struct err *e);

/* Memory that lives as long as the device. ERR_NOMEM says what it was for. */
int device_take(device *d, size_t bytes, const char *what, void **out, struct err *e);
int device_take_pinned(device *d, size_t bytes, const char *what, void **out, struct err *e);
/* The same for n of a type. */
template <class T>
int device_take_array(device *d, size_t n, const char *what, T **out, struct err *e)
{
    void *memory = NULL;
    TRY(device_take(d, n * sizeof(T), what, &memory, e));
    *out = (T *)memory;
    return 0;
}
template <class T>
int device_take_pinned_array(device *d, size_t n, const char *what, T **out, struct err *e)
{
    void *memory = NULL;
    TRY(device_take_pinned(d, n * sizeof(T), what, &memory, e));
    *out = (T *)memory;
    return 0;
}

/* ERR_UNSUPPORTED with a sentence, when its weights are wanted in FP8 and it has no products of
 * those. */
int device_check_fp8(const device_options *o, const device_info *info, struct err *e);
/* What its products are opened with. */
products_options device_products_options(const device_options *o, const memory_plan *p);
/* ERR_NOMEM with what is needed and what there is. */
int device_plan_memory(const device_options *o, const device_model *m, const device_info *info,
                       int n_processors, memory_plan *out, struct err *e);
size_t device_step_bytes(const device_options *o, const device_model *m);
/* 0: the vocabulary is too long for candidates. */
size_t device_candidates_bytes(const device_options *o, const device_model *m);
size_t device_splits_bytes(const device_options *o, const device_model *m, int n_processors);

/* Of heads, but for weights. */
size_t device_heads_bytes(const device_options *o, const device_model *m);
int device_heads_open(device *d, struct err *e);
int device_keep_hidden(device *d, size_t n, const int32_t *logits_rows, const int32_t *places,
                       struct err *e);
int device_run_heads(device *d, size_t n, const int32_t *places, device_guess *out,
                     struct err *e);

int device_copy_weights(device *d, const device_model *m, struct err *e);

int device_meta_open(device *d, struct err *e);
/* One copy, which the stream makes before what comes after. */
int device_copy_metadata(device *d, const device_step *s, const step_shape *as,
                         step_on_device *out, struct err *e);

/* Whether the step is one that graphs are made for. */
bool device_is_for_graph(const device *d, const device_step *s);
/* Rounds up the shape, and counts of attention with it. */
void device_round_shape(const device *d, step_shape *as, attend_args *a);
/* Launches of a step of this shape, on the device's stream; called again for a capture. */
typedef int device_work(const void *context, struct err *e);
int device_run_by_graph(device *d, const step_shape *shape, device_work *work,
                        const void *context, struct err *e);
void device_free_graphs(device *d);

int device_buffers_open(device *d, struct err *e);
void device_buffers_close(device *d);
/* Needs the weights and buffers. */
int device_try_products(device *d, struct err *e);
/* Parts of a matrix, each by f: product or product_prepare. */
int device_multiply(device *d, product_fn *f, const fused *w, const bf16 *x, int n_rows,
                    product_out kind, void *y, struct err *e);
int device_run_step(device *d, const device_step *s, struct err *e);

/* Begins to copy a result of a step to pinned memory. */
void device_fetch(device *d, void *to, const void *from, size_t bytes);
int device_read_logits(device *d, const int32_t *logits_rows, size_t n, float *out,
                       struct err *e);
int device_read_best(device *d, size_t n_later, int32_t *out, struct err *e);
int device_read_candidates(device *d, device_candidates *out, struct err *e);
int device_read_hidden(device *d, size_t logits_row, float *out, struct err *e);
int device_wait(device *d, struct err *e);
int device_copy_page(device *d, int32_t to, int32_t from, struct err *e);
int device_move_token(device *d, int32_t to, size_t to_slot, int32_t from, size_t from_slot,
                      struct err *e);
int device_read_page(device *d, int32_t page, void *out, struct err *e);
int device_write_page(device *d, int32_t page, const void *in, struct err *e);

#endif
