/* What trainer.c and trainer_state.c share. */
#ifndef SHEAF_TRAINER_INT_H
#define SHEAF_TRAINER_INT_H

#include "train/heads_math.h"
#include "train/trainer.h"

struct trainer {
    struct trainer_options o;
    const struct hidden_set *set;
    const struct draft_vocab *vocab;
    struct pool *threads;
    struct heads_math *math;

    size_t *order; /* [n_order] rows to learn from, as the epoch goes over them */
    size_t n_order;
    uint64_t epoch; /* that the order is of */
    uint64_t n_steps, n_done;

    /* n_params floats each, in one block. */
    size_t n_params;
    float *params, *first, *second, *gradient;

    float *rows;      /* [n_rows, dim] of a batch */
    int32_t *labels;  /* [n_heads, n_rows] */
    int32_t *ranks;   /* likewise */
    size_t *measured; /* [n_rows] */
};

#endif
