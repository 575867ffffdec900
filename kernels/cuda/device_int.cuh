/*
 * What the files of the backend share (device.h):
 *
 *     device.cu          the table; opening and closing
 *     device_plan.cu     what memory there is for what, before any is taken
 *     device_weights.cu  the model's weights, copied
 *     device_step.cu     a step: its metadata, its layers, its head
 *     device_read.cu     what comes back: logits, hidden states, pages
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
    size_t page;                            /* of the KV pool, each */
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

/* The step's metadata: gathered in pinned memory, copied in one go. There are two of them, so
 * that a step may be filled in while the copy of the one before is under way. */
struct stage {
    uint8_t *pinned[STAGES];
    uint8_t *on_device[STAGES];
    size_t bytes;    /* of each */
    size_t used;     /* of the current one */
    int current;     /* which */
    int n_in_flight; /* copies that nobody has waited for since */
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

    /* Pinned, for what is read back. */
    int32_t *best;   /* [n_logits_max] */
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

/* ERR_UNSUPPORTED with a sentence, when its weights are wanted in FP8 and it has no products of
 * those. */
int device_check_fp8(const device_options *o, const device_info *info, struct err *e);
/* What its products are opened with. */
products_options device_products_options(const device_options *o, const memory_plan *p);
/* ERR_NOMEM with what is needed and what there is. */
int device_plan_memory(const device_options *o, const device_model *m, const device_info *info,
                       int n_processors, memory_plan *out, struct err *e);
size_t device_step_bytes(const device_options *o, const device_model *m);
size_t device_splits_bytes(const device_options *o, const device_model *m, int n_processors);

int device_copy_weights(device *d, const device_model *m, struct err *e);

int device_step_open(device *d, struct err *e);
int device_run_step(device *d, const device_step *s, struct err *e);

int device_read_logits(device *d, size_t logits_row, float *out, struct err *e);
int device_read_best(device *d, int32_t *out, struct err *e);
int device_read_hidden(device *d, size_t logits_row, float *out, struct err *e);
int device_wait(device *d, struct err *e);
int device_copy_page(device *d, int32_t to, int32_t from, struct err *e);
int device_move_token(device *d, int32_t to, size_t to_slot, int32_t from, size_t from_slot,
                      struct err *e);
int device_read_page(device *d, int32_t page, void *out, struct err *e);
int device_write_page(device *d, int32_t page, const void *in, struct err *e);

#endif
