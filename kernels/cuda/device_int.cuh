/*
 * What the files of the backend share (device.h):
 *
 *     device.cu          the table; opening and closing
 *     device_plan.cu     what memory there is for what, before any is taken
 *     device_weights.cu  the model's weights, copied
 *     device_step.cu     a step: its shape, its layers, its head
 *     device_meta.cu     a step's metadata, copied
 *     device_graph.cu    steps of few rows as graphs
 *     device_tries.cu    products tried before the first step
 *     device_read.cu     what comes back: logits, hidden states, pages
 *
 * All work is on one stream, so that it is done in the order in which it was asked for.
 */
#ifndef SHEAF_CUDA_DEVICE_INT_H
#define SHEAF_CUDA_DEVICE_INT_H

#include "count.cuh"
#include "ops.cuh"

/* Matrices over the same input whose outputs stand side by side: q|k|v, gate|up. Neighbours of
 * one type are one matrix. */
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

/* How a stored tensor is kept: its blocks where kernels compute with them as they are, rows in
 * bfloat16 where they do not. */
bool keeps_blocks(enum quant_type type);

/* Bytes of the device, before any is taken. */
struct memory_plan {
    size_t weights, activations, step, products, reserve;
    size_t scratch; /* of the products, part of theirs */
    size_t page;    /* of the KV pool, each */
    size_t n_pages;
};

/* Of a step, on the device (device_plan.cu says how much). */
struct buffers {
    float *x;           /* [T, D] the residual stream */
    bf16 *hidden;       /* [T, D] normed rows */
    float *qkv;         /* [T, (H + 2 KVH) * HD] */
    bf16 *q, *mixed;    /* [T, H * HD] */
    bf16 *gate_up;      /* [T, 2 F] */
    bf16 *inner;        /* [T, F] */
    bf16 *last;         /* [n_logits_max, D] normed rows that want logits */
    float *last_f32;    /* likewise, not rounded */
    float *logits;      /* [n_logits_max, V] */
    int32_t *best;      /* [n_logits_max] */
    void *best_scratch; /* of argmax */
    float *splits;      /* of attention, or NULL; attend_scratch_bytes() */
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
    int n_blocks, n_spans, n_branches, n_slots;
    /* Of attention, where the shape is rounded up. */
    int block_queries_max;
    attend_split split;
};

enum { SPANS_OF_ROW = 2 };

/* The step's metadata on the device. */
struct step_on_device {
    const int32_t *tokens, *kv_slots, *logits_rows, *pages, *slots;
    const float *cos_sin;
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

    /* Pinned, for what is read back. */
    float *row;      /* [max(V, D)] */
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

/* ERR_NOMEM with what is needed and what there is. */
int device_plan_memory(const device_options *o, const device_model *m, const device_info *info,
                       int n_processors, memory_plan *out, struct err *e);
size_t device_step_bytes(const device_options *o, const device_model *m);
size_t device_splits_bytes(const device_options *o, const device_model *m, int n_processors);

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

int device_step_open(device *d, struct err *e);
void device_step_close(device *d);
/* Needs the weights and what device_step_open() takes. */
int device_try_products(device *d, struct err *e);
/* Parts of a matrix, each by f: product or product_prepare. */
int device_multiply(device *d, product_fn *f, const fused *w, const bf16 *x, int n_rows,
                    product_out kind, void *y, struct err *e);
int device_run_step(device *d, const device_step *s, struct err *e);

int device_read_logits(device *d, size_t logits_row, float *out, struct err *e);
int device_read_best(device *d, size_t n_later, int32_t *out, struct err *e);
int device_read_hidden(device *d, size_t logits_row, float *out, struct err *e);
int device_wait(device *d, struct err *e);
int device_copy_page(device *d, int32_t to, int32_t from, struct err *e);
int device_move_token(device *d, int32_t to, size_t to_slot, int32_t from, size_t from_slot,
                      struct err *e);
int device_read_page(device *d, int32_t page, void *out, struct err *e);
int device_write_page(device *d, int32_t page, const void *in, struct err *e);

#endif
