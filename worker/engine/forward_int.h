/* What forward*.c share. */
#ifndef SHEAF_FORWARD_INT_H
#define SHEAF_FORWARD_INT_H

#include "engine/forward.h"

struct attention_scratch;
struct forward_device;
struct attention_piece;

/*
 * Rows of a draft that stand one below another, off the path whose slots are their positions.
 *
 * A page's keys take part in a sum by their places in it, so a verified row has the bits of the
 * plain one only if every key it sees stands at its position's place. For a branch each thread
 * makes itself images of its last pages, from first_page on: what the sequence's page holds,
 * and over it the branch's ancestors and its own rows, from wherever their slots are. They are
 * made where they are read, for a layer and head, and are never in the pool: a branch costs a
 * page's copy in the cache, no KV page, no mask and no kernel of its own.
 */
struct attention_branch {
    const struct step_segment *segment;
    size_t last_node; /* of its rows */
    size_t first_page;
};

/* A row of the step; it sees the keys of n_pages pages of its sequence, or of its branch. */
struct attention_row {
    size_t row; /* of the step */
    int32_t position;
    const int32_t *pages;
    size_t n_pages;
    const struct attention_branch *branch; /* or NULL */
};

/* Consecutive rows of a block over pages that all of them have in common. */
struct attention_span {
    size_t first_row; /* of the block */
    size_t n_rows;
    size_t first_page; /* of any row's pages */
    size_t n_keys;     /* from there on that some row sees */
};

/* Rows that one thread takes through all their pages. */
struct attention_block {
    size_t first_row; /* of the plan's rows */
    size_t n_rows;
    size_t first_span;
    size_t n_spans;
};

/*
 * How a step's rows go over their pages: the same for every layer and KV head.
 *
 * Rows are ordered by their page lists, so that rows with the same pages at their heads stand
 * side by side: a walk of the trie of page lists. A block's spans are the edges of its part of
 * the trie, parents first. Example, five rows of three sequences in one block:
 *
 *     row 0  pages a b           span  rows 0..4  pages a b
 *     row 1  pages a b c               rows 1..2  page  c
 *     row 2  pages a b c               rows 3..4  page  d
 *     row 3  pages a b d e             row  3     page  e
 *     row 4  pages a b d f             row  4     page  f
 */
struct attention_plan {
    struct attention_piece *pieces;    /* [T] scratch of the ordering */
    struct attention_piece **order;    /* [T] */
    struct attention_branch *branches; /* [n_branches_max] */
    size_t *tree_rows;                 /* [T] rows of each tree of the trie's forest */
    struct attention_row *rows;        /* [T] */
    struct attention_block *blocks;    /* [T] */
    struct attention_span *spans;      /* [2 T] */
    size_t n_branches_max;             /* T, or 0: there are no drafts */
    size_t n_pieces, n_branches, n_trees, n_rows, n_blocks, n_spans;
};

/* The greatest of some logits. */
struct best {
    float value;
    int32_t index; /* or -1: none */
};

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
    struct act inner;  /* [T, F] */
    float *cos_sin;    /* [T, n_rot / 2, 2] */
    struct act last;   /* [n_logits_max, D] normed rows that want logits */
    float *logits;     /* [n_logits_max, V]; rows of greedy ones are never touched */
    float *tiles;      /* [threads, tile_floats] a product's columns on their way */
    size_t tile_floats;

    struct best *bests; /* [threads, n_logits_max]; of the first thread: of all after a run */
    bool *is_greedy;    /* [n_logits_max] */

    struct attention_scratch *scratch; /* [threads] */
    struct forward_device *on_device;  /* or NULL. With it nothing of the above has memory but
                                          cos_sin and logits, and there are: */
    float *hidden_rows;                /* [n_logits_max, D] as last, fetched */
    struct attention_plan attention;

    /* The step being computed. */
    const struct step_plan *plan;
    const struct layer_weights *layer;
    size_t layer_index;
};

/*
 * Products of the step's rows with what follows them column by column (forward_products.c). A
 * product's columns may be on their way in the thread's tile.
 */
size_t forward_products_tile_floats(const struct forward *f);
float *forward_tile(const struct forward *f, size_t thread);
struct act forward_first_rows(const struct act *a, size_t n_rows);
/* Makes columns of a ready for int8 products, where it takes part in them. */
void forward_quantize(const struct forward *f, struct act *a, size_t row_begin, size_t row_end,
                      size_t col_begin, size_t col_end);
/* qkv = hidden * Wqkv, rotated; keys and values are in the pages. */
void forward_project_heads(struct forward *f);
/* inner = silu(hidden * Wgate) . (hidden * Wup) */
void forward_gate_up(struct forward *f);
/* x += a * W, W being one matrix. */
void forward_add_product(struct forward *f, const struct linear *linear, const struct act *a);

/* Logits and bests (forward_head.c). */
int forward_head_open(struct forward *f, struct err *e);
void forward_head_close(struct forward *f);
size_t forward_head_tile_floats(const struct forward *f);
/* The greater of the two; the lower index among equals; NaN never. */
void forward_keep_best(struct best *best, float value, int32_t index);

/* Cosine and sine of each rotated pair at a position: [n_rot / 2, 2]. */
void forward_angles(const struct forward *f, size_t position, float *out);

/* With a device (forward_device.c, forward_device_step.c). */
size_t forward_device_slots_max(size_t n_rows_max);
int forward_device_open(struct forward *f, struct err *e);
void forward_device_close(struct forward *f);
void forward_device_begin(struct forward *f, size_t first, size_t n_layers, bool has_head);
void forward_device_end(struct forward *f);
void forward_device_abandon(struct forward *f);
void forward_device_run_head(struct forward *f);
bool forward_device_is_greedy(const struct forward *f, size_t logits_row);
const struct device_candidates *forward_device_candidates(const struct forward *f,
                                                          size_t logits_row);
void forward_device_want_logits(struct forward *f, size_t logits_row);
bool forward_device_fetch_wanted(struct forward *f);
bool forward_device_has_logits(const struct forward *f, size_t logits_row);
int32_t forward_device_best(const struct forward *f, size_t logits_row);
const float *forward_device_hidden(const struct forward *f, size_t logits_row);

int forward_attention_open(struct forward *f, struct err *e);
void forward_attention_close(struct forward *f);
/* Orders and cuts the plan's rows, once a step. */
void forward_attention_plan(struct forward *f);
/* mixed = attention of the layer's qkv rows over the pages. */
void forward_attention_run(struct forward *f);
/* Pages of one layer and KV head that attention went over since forward_open, for tests: a page
 * counts once for all rows that went over it together. No step is running. */
uint64_t forward_attention_pages(const struct forward *f);

/* A node whose slot is that of its position: it and all above it stand in one line. */
static inline bool attention_is_in_place(const struct draft *d, size_t node)
{
    return d->nodes[node].depth == node + 1;
}

static inline bool attention_is_image(const struct attention_row *row, size_t page)
{
    return row->branch && page >= row->branch->first_page;
}

/* Query heads of a KV head, and rows of a block at most. */
size_t attention_heads(const struct forward *f);
size_t attention_rows_max(const struct forward *f);
int attention_plan_open(struct attention_plan *p, size_t n_rows_max, size_t n_branches_max,
                        struct err *e);
void attention_plan_close(struct attention_plan *p);

#endif
