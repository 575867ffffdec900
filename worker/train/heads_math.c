#include "train/heads_math.h"

#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/size.h"
#include "engine/layout.h"
#include "engine/memory.h"
#include "model/heads.h"
#include "train/activation.h"
#include "train/dense.h"

enum {
    ROW_BLOCK = 64, /* rows of a batch that one item takes through a head */
    OUT_BLOCK = 64, /* outputs of W that one item sums; whole panels */
};

struct heads_math {
    struct heads_math_options o;
    double shares[HEADS_MAX];
    size_t n_draft_padded; /* to whole panels */
    uint8_t *block;        /* all that follows */
    size_t block_bytes;

    struct weight output;             /* E   [n_draft, D] */
    struct weight output_back;        /* E^T [D, n_draft_padded] */
    struct weight weights[HEADS_MAX]; /* W of each head [D, D] */
    const float *params;
    struct weight batch; /* the batch's rows as H^T [D, n] */

    float *columns; /* H^T [D, n] as floats */
    float *da;      /* [heads, D, n] */
    float *scratch; /* [threads, scratch_floats] */
    size_t scratch_floats;
    double *losses;   /* [heads, row blocks] */
    size_t *n_labels; /* [heads, row blocks] */

    /* The call being computed. */
    const float *rows;
    size_t n;
    const int32_t *labels;
    float *gradient;
    int32_t *ranks;
};

/* ------------------------------------------------------------------ memory */

static void lay_weight(struct layout *l, struct weight *w, size_t n_rows, size_t n_cols)
{
    *w = weight_shape(QUANT_F32, n_rows, n_cols);
    w->data = layout_take(l, weight_packed_bytes(QUANT_F32, n_rows, n_cols));
}

static size_t row_blocks(size_t n)
{
    return size_divide_up(n, ROW_BLOCK);
}

static void lay_all(struct layout *l, struct heads_math *m)
{
    const struct heads_math_options *o = &m->o;
    lay_weight(l, &m->output, o->n_draft, o->dim);
    lay_weight(l, &m->output_back, o->dim, m->n_draft_padded);
    for (size_t i = 0; i < o->n_heads; i++)
        lay_weight(l, &m->weights[i], o->dim, o->dim);
    lay_weight(l, &m->batch, o->dim, o->n_rows_max);
    m->columns = layout_take(l, o->dim * o->n_rows_max * sizeof(float));
    m->da = layout_take(l, o->n_heads * o->dim * o->n_rows_max * sizeof(float));
    /* Of a block: a, its sigmoid, x, dx, logits. */
    m->scratch_floats =
        ROW_BLOCK * (4 * size_divide_up(o->dim, LANES) * LANES + m->n_draft_padded);
    m->scratch = layout_take(l, pool_threads(o->threads) * m->scratch_floats * sizeof(float));
    m->losses = layout_take(l, o->n_heads * row_blocks(o->n_rows_max) * sizeof(double));
    m->n_labels = layout_take(l, o->n_heads * row_blocks(o->n_rows_max) * sizeof(size_t));
}

static int pack(const struct weight *shape, const float *rows, struct err *e)
{
    struct weight packed;
    return weight_pack(&packed, QUANT_F32, shape->n_rows, shape->n_cols, rows, shape->data, e);
}

static int pack_outputs(struct heads_math *m, struct err *e)
{
    const size_t dim = m->o.dim, n_draft = m->o.n_draft, padded = m->n_draft_padded;
    TRY(pack(&m->output, m->o.output, e));
    float *turned = calloc(dim * padded, sizeof turned[0]);
    if (!turned)
        return ERR_SET(e, ERR_NOMEM, "no memory for the output rows of %zu tokens", n_draft);
    for (size_t j = 0; j < n_draft; j++)
        for (size_t k = 0; k < dim; k++)
            turned[k * padded + j] = m->o.output[j * dim + k];
    const int rc = pack(&m->output_back, turned, e);
    free(turned);
    return rc;
}

int heads_math_open(const struct heads_math_options *o, struct heads_math **out, struct err *e)
{
    ASSERT(o->n_heads >= 1 && o->n_heads <= HEADS_MAX);
    ASSERT(o->dim >= 1 && o->n_draft >= 1 && o->n_rows_max >= 1);
    struct heads_math *m = calloc(1, sizeof *m);
    if (!m)
        return ERR_SET(e, ERR_NOMEM, "no memory for training");
    m->o = *o;
    m->o.shares = m->shares;
    memcpy(m->shares, o->shares, o->n_heads * sizeof m->shares[0]);
    m->n_draft_padded = size_divide_up(o->n_draft, LANES) * LANES;
    struct layout sizes = {0};
    lay_all(&sizes, m);
    void *block = NULL;
    int rc = memory_take(sizes.used, "training", &block, e);
    if (rc == 0) {
        m->block = block;
        m->block_bytes = sizes.used;
        struct layout filled = {.base = block};
        lay_all(&filled, m);
        rc = pack_outputs(m, e);
    }
    m->o.output = NULL;
    if (rc != 0) {
        heads_math_close(m);
        return rc;
    }
    *out = m;
    return 0;
}

void heads_math_close(struct heads_math *m)
{
    if (!m)
        return;
    memory_give_back(m->block, m->block_bytes);
    free(m);
}

static const float *weight_of(const struct heads_math *m, size_t head)
{
    return m->params + head * heads_math_stride(m->o.dim);
}

static const float *bias_of(const struct heads_math *m, size_t head)
{
    return weight_of(m, head) + m->o.dim * m->o.dim;
}

static size_t out_blocks(const struct heads_math *m)
{
    return size_divide_up(m->o.dim, OUT_BLOCK);
}

/* Panels do not depend on each other: a block of rows is packed like a matrix of its own. */
static void pack_block(const struct weight *w, const float *rows, size_t begin)
{
    struct weight part;
    const int rc = weight_pack(&part, QUANT_F32, size_min(OUT_BLOCK, w->n_rows - begin),
                               w->n_cols, rows + begin * w->n_cols,
                               w->data + begin / PANEL_COLS * w->panel_bytes, NULL);
    ASSERT(rc == 0 && part.panel_bytes == w->panel_bytes);
}

static void set_item(void *ctx, size_t item, size_t thread)
{
    (void)thread;
    const struct heads_math *m = ctx;
    const size_t head = item / out_blocks(m);
    pack_block(&m->weights[head], weight_of(m, head), item % out_blocks(m) * OUT_BLOCK);
}

void heads_math_set(struct heads_math *m, const float *params)
{
    m->params = params;
    pool_run(m->o.threads, set_item, m, m->o.n_heads * out_blocks(m));
}

/* ------------------------------------------------------------------ through a head */

/* A block of rows on its way. */
struct pass {
    size_t head, begin, n;
    float *a, *sigmoid, *x, *dx; /* [n, D] */
    float *logits;               /* [n, n_draft_padded] */
};

static struct pass begin_pass(const struct heads_math *m, size_t item, size_t thread)
{
    const size_t n_blocks = row_blocks(m->n);
    const size_t width = size_divide_up(m->o.dim, LANES) * LANES;
    struct pass p = {.head = item / n_blocks, .begin = item % n_blocks * ROW_BLOCK};
    p.n = size_min(ROW_BLOCK, m->n - p.begin);
    p.a = m->scratch + thread * m->scratch_floats;
    p.sigmoid = p.a + ROW_BLOCK * width;
    p.x = p.sigmoid + ROW_BLOCK * width;
    p.dx = p.x + ROW_BLOCK * width;
    p.logits = p.dx + ROW_BLOCK * width;
    return p;
}

static void run_forward(const struct heads_math *m, const struct pass *p)
{
    const size_t dim = m->o.dim;
    const float *h = m->rows + p->begin * dim;
    dense_multiply(m->o.kernels, &m->weights[p->head], h, p->n, p->a, dim);
    m->o.kernels->bias_add(p->a, dim, bias_of(m, p->head), p->n, dim);
    activation_sigmoid(p->a, p->n * dim, p->sigmoid);
    for (size_t k = 0; k < p->n * dim; k++)
        p->x[k] = h[k] + p->a[k] * p->sigmoid[k];
    dense_multiply(m->o.kernels, &m->output, p->x, p->n, p->logits, m->n_draft_padded);
}

static int32_t label_of(const struct heads_math *m, const struct pass *p, size_t i)
{
    return m->labels[p->head * m->n + p->begin + i];
}

/* logits become d loss / d logits. */
static void run_loss(const struct heads_math *m, const struct pass *p, double *loss, size_t *n)
{
    const size_t n_draft = m->o.n_draft, padded = m->n_draft_padded;
    const float share = (float)(m->shares[p->head] / (double)m->n);
    *loss = 0;
    *n = 0;
    for (size_t i = 0; i < p->n; i++) {
        float *logits = p->logits + i * padded;
        const int32_t label = label_of(m, p, i);
        if (label == HEADS_NO_LABEL) {
            memset(logits, 0, padded * sizeof logits[0]);
            continue;
        }
        const double of_label = (double)logits[label];
        *loss += activation_softmax(logits, n_draft) - of_label;
        ++*n;
        logits[label] -= 1;
        for (size_t j = 0; j < n_draft; j++)
            logits[j] *= share;
        memset(logits + n_draft, 0, (padded - n_draft) * sizeof logits[0]);
    }
}

/* d silu / d a = s (1 + a (1 - s)), s being the sigmoid. Turned, as the sums over rows read
 * it. */
static void run_backward(const struct heads_math *m, const struct pass *p)
{
    const size_t dim = m->o.dim;
    dense_multiply(m->o.kernels, &m->output_back, p->logits, p->n, p->dx, dim);
    for (size_t k = 0; k < p->n * dim; k++) {
        const float a = p->a[k], sigmoid = p->sigmoid[k];
        p->dx[k] *= sigmoid * (1 + a * (1 - sigmoid));
    }
    float *da = m->da + p->head * dim * m->n + p->begin;
    for (size_t k = 0; k < dim; k++)
        for (size_t i = 0; i < p->n; i++)
            da[k * m->n + i] = p->dx[i * dim + k];
}

static void pass_item(void *ctx, size_t item, size_t thread)
{
    struct heads_math *m = ctx;
    const struct pass p = begin_pass(m, item, thread);
    run_forward(m, &p);
    run_loss(m, &p, &m->losses[item], &m->n_labels[item]);
    run_backward(m, &p);
}

/* ------------------------------------------------------------------ sums over rows */

static void turn_item(void *ctx, size_t item, size_t thread)
{
    (void)thread;
    struct heads_math *m = ctx;
    const size_t dim = m->o.dim, begin = item * OUT_BLOCK;
    const size_t end = size_min(begin + OUT_BLOCK, dim);
    for (size_t k = begin; k < end; k++)
        for (size_t i = 0; i < m->n; i++)
            m->columns[k * m->n + i] = m->rows[i * dim + k];
    pack_block(&m->batch, m->columns, begin);
}

static void sum_item(void *ctx, size_t item, size_t thread)
{
    (void)thread;
    struct heads_math *m = ctx;
    const size_t dim = m->o.dim, head = item / out_blocks(m);
    const size_t begin = item % out_blocks(m) * OUT_BLOCK;
    const size_t n = size_min(OUT_BLOCK, dim - begin);
    const float *da = m->da + (head * dim + begin) * m->n;
    float *gradient = m->gradient + head * heads_math_stride(dim);
    dense_multiply(m->o.kernels, &m->batch, da, n, gradient + begin * dim, dim);
    for (size_t k = 0; k < n; k++) {
        float sum = 0;
        for (size_t i = 0; i < m->n; i++)
            sum += da[k * m->n + i];
        gradient[dim * dim + begin + k] = sum;
    }
}

static void sum_losses(const struct heads_math *m, double *losses)
{
    for (size_t head = 0; head < m->o.n_heads; head++) {
        double sum = 0;
        size_t n = 0;
        for (size_t i = 0; i < row_blocks(m->n); i++) {
            sum += m->losses[head * row_blocks(m->n) + i];
            n += m->n_labels[head * row_blocks(m->n) + i];
        }
        losses[head] = n > 0 ? sum / (double)n : 0;
    }
}

void heads_math_gradient(struct heads_math *m, const float *rows, size_t n,
                         const int32_t *labels, float *gradient, double *losses)
{
    ASSERT(m->params && n >= 1 && n <= m->o.n_rows_max);
    m->rows = rows;
    m->n = n;
    m->labels = labels;
    m->gradient = gradient;
    m->batch.n_cols = n;
    m->batch.panel_bytes = weight_packed_bytes(QUANT_F32, PANEL_COLS, n);
    pool_run(m->o.threads, turn_item, m, out_blocks(m));
    pool_run(m->o.threads, pass_item, m, m->o.n_heads * row_blocks(n));
    pool_run(m->o.threads, sum_item, m, m->o.n_heads * out_blocks(m));
    sum_losses(m, losses);
}

/* ------------------------------------------------------------------ ranks */

static void rank_item(void *ctx, size_t item, size_t thread)
{
    struct heads_math *m = ctx;
    const struct pass p = begin_pass(m, item, thread);
    run_forward(m, &p);
    for (size_t i = 0; i < p.n; i++) {
        const int32_t label = label_of(m, &p, i);
        m->ranks[p.head * m->n + p.begin + i] =
            label == HEADS_NO_LABEL
                ? (int32_t)m->o.n_draft
                : dense_rank(p.logits + i * m->n_draft_padded, m->o.n_draft, (size_t)label);
    }
}

void heads_math_ranks(struct heads_math *m, const float *rows, size_t n, const int32_t *labels,
                      int32_t *ranks)
{
    ASSERT(m->params && n >= 1 && n <= m->o.n_rows_max);
    m->rows = rows;
    m->n = n;
    m->labels = labels;
    m->ranks = ranks;
    pool_run(m->o.threads, rank_item, m, m->o.n_heads * row_blocks(n));
}
