/*
 * A model's weights in the form that the kernels read: matrices packed, vectors as float32.
 * All packed matrices lie in one block of memory.
 */
#ifndef SHEAF_WEIGHTS_H
#define SHEAF_WEIGHTS_H

#include "base/err.h"
#include "engine/pool.h"
#include "kernels.h"
#include "model/model.h"

enum { LINEAR_PARTS_MAX = 3 };

/* Up to three matrices over the same input whose outputs stand side by side: q|k|v, gate|up. */
struct linear {
    size_t n_parts;
    struct weight parts[LINEAR_PARTS_MAX];
    size_t offsets[LINEAR_PARTS_MAX]; /* first output column of each part */
    size_t n_rows;                    /* all outputs */
    size_t n_cols;
    float *bias; /* [n_rows] or NULL */
};

struct layer_weights {
    float *attn_norm, *ffn_norm; /* [D] */
    float *q_norm, *k_norm;      /* [HD] or NULL */
    struct linear qkv, out, gate_up, down;
};

struct weights {
    struct layer_weights *layers; /* [L] */
    float *output_norm;           /* [D] */
    struct linear output;         /* [V, D] */
    void *block;
    size_t block_bytes;
    float *floats; /* all vectors */
};

/* Packs on all threads. */
int weights_open(const struct model *m, struct pool *threads, struct weights *w, struct err *e);
/* The vectors alone, for a device that takes the matrices as they are stored: of those nothing
 * is here but their shapes. */
int weights_open_vectors(const struct model *m, struct weights *w, struct err *e);
void weights_close(struct weights *w);

/* Panels [begin, end) as a matrix of their own. */
struct weight weights_panels(const struct weight *w, size_t begin, size_t end);

#endif
