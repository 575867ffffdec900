/* What forward.c and forward_attention.c share. */
#ifndef SHEAF_FORWARD_INT_H
#define SHEAF_FORWARD_INT_H

#include "engine/forward.h"

struct attention_scratch;

struct forward {
    const struct model_config *config;
    const struct model *model;
    const struct weights *weights;
    const struct kernels *kernels;
    struct kvpool *kvpool;
    struct pool *threads;
    struct forward_options options;

    double *frequencies; /* [n_rot / 2] */

    /* Buffers of one step, T = n_rows_max. */
    void *block;
    size_t block_bytes;
    float *x;          /* [T, D] the residual stream */
    struct act hidden; /* [T, D] normed rows */
    float *qkv;        /* [T, (H + 2 KVH) * HD] */
    struct act mixed;  /* [T, H * HD] attention's output */
    float *gate_up;    /* [T, 2 F] */
    struct act inner;  /* [T, F] */
    float *cos_sin;    /* [T, n_rot / 2, 2] */
    struct act last;   /* [n_logits_max, D] normed rows that want logits */
    float *logits;     /* [n_logits_max, V] */

    struct attention_scratch *scratch; /* [threads] */
    struct attention_tile *tiles;
    size_t tiles_max;

    /* The step being computed. */
    const struct step_plan *plan;
    const struct layer_weights *layer;
    size_t layer_index;
    size_t n_tiles;
};

int forward_attention_open(struct forward *f, struct err *e);
void forward_attention_close(struct forward *f);
/* Cuts the plan into tiles, once a step. */
void forward_attention_plan(struct forward *f);
/* mixed.f32 = attention of the layer's qkv rows over the pages. */
void forward_attention_run(struct forward *f);

#endif
