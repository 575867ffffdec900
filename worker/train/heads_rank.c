#include "train/heads_rank.h"

#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/size.h"
#include "engine/layout.h"
#include "engine/memory.h"
#include "train/activation.h"
#include "train/dense.h"

enum { ROW_BLOCK = 32 };

struct ranking {
    const struct heads *heads;
    const struct kernels *kernels;
    const struct hidden_set *set;
    const struct draft_vocab *vocab;
    const size_t *rows;
    size_t n;
    int32_t *ranks;

    size_t head; /* of which these are */
    struct weight blocks[HEADS_BLOCKS_MAX];
    struct weight output;
    float *scratch; /* [threads, scratch_floats] */
    size_t scratch_floats;
    size_t width, n_padded; /* of D and the vocabulary */
};

static void lay_weight(struct layout *l, struct weight *w, size_t n_rows, size_t n_cols)
{
    *w = weight_shape(QUANT_F32, n_rows, n_cols);
    w->data = layout_take(l, weight_packed_bytes(QUANT_F32, n_rows, n_cols));
}

static void lay_all(struct layout *l, struct ranking *r, size_t n_threads)
{
    const size_t dim = r->heads->dim, n_draft = r->heads->n_draft;
    for (size_t i = 0; i < r->heads->n_blocks; i++)
        lay_weight(l, &r->blocks[i], dim, dim);
    lay_weight(l, &r->output, n_draft, dim);
    r->width = size_divide_up(dim, LANES) * LANES;
    r->n_padded = size_divide_up(n_draft, LANES) * LANES;
    /* x, a, its sigmoid, logits */
    r->scratch_floats = ROW_BLOCK * (3 * r->width + r->n_padded);
    r->scratch = layout_take(l, n_threads * r->scratch_floats * sizeof(float));
}

static int pack(struct weight *w, const float *rows, struct err *e)
{
    return weight_pack(w, QUANT_F32, w->n_rows, w->n_cols, rows, w->data, e);
}

static int pack_head(struct ranking *r, const float *tied, struct err *e)
{
    const struct head *head = &r->heads->heads[r->head];
    for (size_t i = 0; i < r->heads->n_blocks; i++)
        TRY(pack(&r->blocks[i], head->blocks[i].weight, e));
    return head->output || r->head == 0
               ? pack(&r->output, head->output ? head->output : tied, e)
               : 0;
}

static void run_blocks(const struct ranking *r, size_t n, float *x, float *a, float *sigmoid)
{
    const size_t dim = r->heads->dim;
    for (size_t i = 0; i < r->heads->n_blocks; i++) {
        const float *bias = r->heads->heads[r->head].blocks[i].bias;
        dense_multiply(r->kernels, &r->blocks[i], x, n, a, dim);
        if (bias)
            r->kernels->bias_add(a, dim, bias, n, dim);
        activation_sigmoid(a, n * dim, sigmoid);
        for (size_t k = 0; k < n * dim; k++)
            x[k] += a[k] * sigmoid[k];
    }
}

static void rank_item(void *ctx, size_t item, size_t thread)
{
    const struct ranking *r = ctx;
    const size_t dim = r->heads->dim, begin = item * ROW_BLOCK;
    const size_t n = size_min(ROW_BLOCK, r->n - begin);
    float *x = r->scratch + thread * r->scratch_floats;
    float *a = x + ROW_BLOCK * r->width, *sigmoid = a + ROW_BLOCK * r->width;
    float *logits = sigmoid + ROW_BLOCK * r->width;
    for (size_t i = 0; i < n; i++)
        hidden_set_row(r->set, r->rows[begin + i], x + i * dim);
    run_blocks(r, n, x, a, sigmoid);
    dense_multiply(r->kernels, &r->output, x, n, logits, r->n_padded);
    for (size_t i = 0; i < n; i++) {
        const int32_t label = draft_vocab_label(r->vocab, r->set, r->rows[begin + i], r->head);
        int32_t rank = HEADS_RANKS;
        if (label != HEADS_NO_LABEL)
            rank = dense_rank(logits + i * r->n_padded, r->heads->n_draft, (size_t)label);
        r->ranks[r->head * r->n + begin + i] = rank < HEADS_RANKS ? rank : HEADS_RANKS;
    }
}

int heads_rank(const struct heads *heads, const struct model *m, const struct kernels *k,
               struct pool *threads, const struct hidden_set *set,
               const struct draft_vocab *vocab, const size_t *rows, size_t n, int32_t *ranks,
               struct err *e)
{
    ASSERT(vocab->n == heads->n_draft && set->dim == heads->dim);
    struct ranking r = {.heads = heads,
                        .kernels = k,
                        .set = set,
                        .vocab = vocab,
                        .rows = rows,
                        .n = n,
                        .ranks = ranks};
    struct layout sizes = {0}, filled = {0};
    float *tied = NULL;
    void *block = NULL;
    lay_all(&sizes, &r, pool_threads(threads));
    int rc = memory_take(sizes.used, "heads", &block, e);
    filled.base = block;
    if (rc == 0)
        lay_all(&filled, &r, pool_threads(threads));
    if (rc == 0 && !heads->heads[0].output)
        rc = draft_vocab_output(vocab, m, &tied, e);
    for (r.head = 0; rc == 0 && r.head < heads->n_heads; r.head++) {
        rc = pack_head(&r, tied, e);
        if (rc == 0)
            pool_run(threads, rank_item, &r, size_divide_up(n, ROW_BLOCK));
    }
    free(tied);
    memory_give_back(block, sizes.used);
    return rc;
}
