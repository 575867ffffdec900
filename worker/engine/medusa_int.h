/* What medusa*.c share. */
#ifndef SHEAF_MEDUSA_INT_H
#define SHEAF_MEDUSA_INT_H

#include "device.h"
#include "engine/medusa.h"

enum {
    MEDUSA_PANELS = 6, /* of a product that one item computes */
    MEDUSA_COLS = MEDUSA_PANELS * PANEL_COLS,
    MEDUSA_TILE_ROWS = 64, /* of them at once */
    MEDUSA_NO_BEST = -1,
};

/* One product over the rows of neighbouring heads. */
struct medusa_output {
    struct weight weight; /* [n_draft, D] */
    size_t first_head, n_heads;
};

/* A logit and its place in the draft vocabulary, or MEDUSA_NO_BEST. */
struct medusa_best {
    float value;
    int32_t index;
};

struct medusa {
    const struct kernels *kernels;
    struct pool *threads;
    size_t n_rows_max;
    struct engine_device *device; /* or NULL */
    size_t n_heads, n_blocks, dim, n_draft;

    struct weight blocks[HEADS_MAX][HEADS_BLOCKS_MAX];
    float *biases[HEADS_MAX][HEADS_BLOCKS_MAX]; /* [D] */
    struct medusa_output outputs[HEADS_MAX];
    size_t n_outputs;
    int32_t *vocab; /* [n_draft] ids, or NULL: an index is its id */

    /* Buffers of a run of n rows; rows of head h are h * n, h * n + 1, ... */
    struct act states[2];      /* [heads * n_rows_max, D] before and behind a block, by turns */
    float *ones;               /* [MEDUSA_COLS] */
    float *tiles;              /* [threads, MEDUSA_TILE_ROWS, MEDUSA_COLS] */
    struct medusa_best *bests; /* [threads, heads * n_rows_max, MEDUSA_RANKS] */

    /* Of a device, which has all of the above but the vocabulary itself. */
    struct device_guess *guesses; /* [heads * n_rows_max, MEDUSA_RANKS] */

    void *block; /* of all of the above */
    size_t block_bytes;
};

/* The tokens of a row's bests, and their shares. */
void medusa_guess(const struct medusa *md, const struct medusa_best *bests,
                  struct medusa_guess out[MEDUSA_RANKS]);

/* What the last block's rows become, which the outputs read. */
static inline struct act *medusa_last(struct medusa *md)
{
    return &md->states[md->n_blocks % 2];
}

static inline struct medusa_best *medusa_bests(const struct medusa *md, size_t thread,
                                               size_t row)
{
    return md->bests + (thread * md->n_heads * md->n_rows_max + row) * MEDUSA_RANKS;
}

#endif
