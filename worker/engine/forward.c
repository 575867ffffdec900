#include "engine/forward.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/limits.h"
#include "base/size.h"
#include "engine/forward_int.h"
#include "engine/memory.h"

enum {
    PANELS_PER_ITEM = 6, /* of a product: large enough that taking an item costs nothing */
    ROWS_PER_ITEM = 16,  /* of a row-wise stage */
};

/* ------------------------------------------------------------------ buffers */

/* Lays buffers out in one block; the first walk has no base and only adds up. */
struct layout {
    uint8_t *base;
    size_t used;
};

static void *lay(struct layout *l, size_t bytes)
{
    void *at = l->base ? l->base + l->used : NULL;
    l->used += (bytes + KERNELS_ALIGN - 1) / KERNELS_ALIGN * KERNELS_ALIGN;
    return at;
}

static void lay_act(struct layout *l, struct act *a, size_t n_rows, size_t n_cols,
                    enum act_kind kind)
{
    /* Widths that are no multiple of a block take no part in int8 products. */
    a->kind = n_cols % ACT_BLOCK == 0 ? kind : ACT_F32;
    a->n_rows = n_rows;
    a->n_cols = n_cols;
    a->f32 = lay(l, n_rows * n_cols * sizeof(float));
    if (a->kind != ACT_INT8)
        return;
    a->q = lay(l, n_rows * n_cols);
    a->scale = lay(l, n_rows * (n_cols / ACT_BLOCK) * sizeof(float));
    a->sum = lay(l, n_rows * (n_cols / ACT_BLOCK) * sizeof(int32_t));
    a->scaled_sum = lay(l, n_rows * (n_cols / ACT_BLOCK) * sizeof(float));
}

static void lay_buffers(struct layout *l, struct forward *f)
{
    const struct model_config *c = f->config;
    const size_t n_rows = f->options.n_rows_max;
    const enum act_kind kind = f->options.activations;
    const size_t q_dim = c->n_heads * c->head_dim;
    f->x = lay(l, n_rows * c->dim * sizeof(float));
    lay_act(l, &f->hidden, n_rows, c->dim, kind);
    f->qkv = lay(l, n_rows * (q_dim + 2 * c->n_kv_heads * c->head_dim) * sizeof(float));
    lay_act(l, &f->mixed, n_rows, q_dim, kind);
    f->gate_up = lay(l, n_rows * 2 * c->ffn_dim * sizeof(float));
    lay_act(l, &f->inner, n_rows, c->ffn_dim, kind);
    f->cos_sin = lay(l, n_rows * c->n_rot * sizeof(float));
    lay_act(l, &f->last, f->options.n_logits_max, c->dim, kind);
    f->logits = lay(l, f->options.n_logits_max * c->n_vocab * sizeof(float));
}

/* Radians per position of each rotated pair. */
static double *rope_frequencies(const struct model *m)
{
    const size_t n_pairs = m->config.n_rot / 2;
    double *out = calloc(n_pairs ? n_pairs : 1, sizeof out[0]);
    for (size_t i = 0; out && i < n_pairs; i++) {
        const double exponent = -2.0 * (double)i / (double)m->config.n_rot;
        out[i] = m->config.rope_scale * pow(m->config.rope_base, exponent);
        if (m->rope_freqs)
            out[i] /= (double)m->rope_freqs[i];
    }
    return out;
}

int forward_open(const struct model *m, const struct weights *w, const struct kernels *k,
                 struct kvpool *pool, struct pool *threads, const struct forward_options *o,
                 struct forward **out, struct err *e)
{
    struct forward *f = calloc(1, sizeof *f);
    if (!f)
        return ERR_SET(e, ERR_NOMEM, "no memory for the forward pass");
    *f = (struct forward){.config = &m->config,
                          .model = m,
                          .weights = w,
                          .kernels = k,
                          .kvpool = pool,
                          .threads = threads,
                          .options = *o};
    int rc = 0;
    f->frequencies = rope_frequencies(m);
    if (!f->frequencies) {
        rc = ERR_SET(e, ERR_NOMEM, "no memory for the rotary frequencies");
        goto out;
    }
    struct layout sizes = {0};
    lay_buffers(&sizes, f);
    TRY_OUT(rc, memory_take(sizes.used, "activations", &f->block, e));
    f->block_bytes = sizes.used;
    struct layout filled = {.base = f->block};
    lay_buffers(&filled, f);
    ASSERT(filled.used == sizes.used);
    TRY_OUT(rc, forward_attention_open(f, e));
    *out = f;
out:
    if (rc != 0)
        forward_close(f);
    return rc;
}

void forward_close(struct forward *f)
{
    if (!f)
        return;
    forward_attention_close(f);
    free(f->frequencies);
    memory_give_back(f->block, f->block_bytes);
    free(f);
}

size_t forward_bytes(const struct forward *f)
{
    return f->block_bytes;
}

float *forward_logits(struct forward *f, size_t logits_row)
{
    ASSERT(logits_row < f->options.n_logits_max);
    return f->logits + logits_row * f->config->n_vocab;
}

/* ------------------------------------------------------------------ products */

struct product {
    const struct forward *f;
    const struct linear *linear;
    const struct act *x;
    enum matmul_mode mode;
    float *y; /* [rows, linear->n_rows] */
};

/* Items number the panel runs of all parts one after another. */
static void product_item(void *ctx, size_t item, size_t thread)
{
    (void)thread;
    const struct product *p = ctx;
    for (size_t i = 0; i < p->linear->n_parts; i++) {
        const struct weight *w = &p->linear->parts[i];
        const size_t n_items = size_divide_up(w->n_panels, PANELS_PER_ITEM);
        if (item >= n_items) {
            item -= n_items;
            continue;
        }
        const size_t begin = item * PANELS_PER_ITEM;
        const size_t end = begin + PANELS_PER_ITEM;
        p->f->kernels->matmul(w, p->x, begin, end < w->n_panels ? end : w->n_panels, p->mode,
                              p->y + p->linear->offsets[i], p->linear->n_rows);
        return;
    }
}

static struct act first_rows(const struct act *a, size_t n_rows)
{
    struct act rows = *a;
    rows.n_rows = n_rows;
    return rows;
}

static void multiply(const struct forward *f, const struct linear *linear, const struct act *a,
                     size_t n_rows, enum matmul_mode mode, float *y)
{
    const struct act x = first_rows(a, n_rows);
    struct product p = {.f = f, .linear = linear, .x = &x, .mode = mode, .y = y};
    size_t n_items = 0;
    for (size_t i = 0; i < linear->n_parts; i++)
        n_items += size_divide_up(linear->parts[i].n_panels, PANELS_PER_ITEM);
    pool_run(f->threads, product_item, &p, n_items);
    if (linear->bias)
        f->kernels->bias_add(y, linear->n_rows, linear->bias, n_rows, linear->n_rows);
}

/* ------------------------------------------------------------------ row-wise stages */

struct rows {
    struct forward *f;
    size_t n_rows;
    const float *norm;
    void (*stage)(const struct rows *r, size_t begin, size_t end);
};

static void rows_item(void *ctx, size_t item, size_t thread)
{
    (void)thread;
    const struct rows *r = ctx;
    const size_t begin = item * ROWS_PER_ITEM;
    const size_t end = begin + ROWS_PER_ITEM;
    r->stage(r, begin, end < r->n_rows ? end : r->n_rows);
}

/* Up to ROWS_PER_ITEM rows run on the caller alone: a join would cost more. */
static void run_rows(struct forward *f, size_t n_rows, const float *norm,
                     void (*stage)(const struct rows *, size_t, size_t))
{
    struct rows r = {.f = f, .n_rows = n_rows, .norm = norm, .stage = stage};
    pool_run(f->threads, rows_item, &r, size_divide_up(n_rows, ROWS_PER_ITEM));
}

static void quantize_rows(const struct forward *f, struct act *a, size_t begin, size_t end)
{
    if (a->kind == ACT_INT8)
        f->kernels->quantize(a, begin, end);
}

static void norm_rows(const struct rows *r, size_t begin, size_t end)
{
    struct forward *f = r->f;
    const size_t dim = f->config->dim;
    f->kernels->rmsnorm(f->x + begin * dim, r->norm, f->config->rms_eps, end - begin, dim,
                        f->hidden.f32 + begin * dim);
    quantize_rows(f, &f->hidden, begin, end);
}

static void quantize_mixed(const struct rows *r, size_t begin, size_t end)
{
    quantize_rows(r->f, &r->f->mixed, begin, end);
}

static void activate_rows(const struct rows *r, size_t begin, size_t end)
{
    struct forward *f = r->f;
    const size_t n = f->config->ffn_dim;
    for (size_t i = begin; i < end; i++) {
        const float *gate = f->gate_up + i * 2 * n;
        f->kernels->silu_mul(gate, gate + n, n, f->inner.f32 + i * n);
    }
    quantize_rows(f, &f->inner, begin, end);
}

static const struct step_segment *segment_of(const struct step_plan *plan, size_t row)
{
    size_t i = 0;
    while (row >= plan->segments[i].row + plan->segments[i].n_rows)
        i++;
    return &plan->segments[i];
}

static void write_kv(const struct forward *f, const struct step_segment *segment, size_t row)
{
    const struct model_config *c = f->config;
    const size_t position = segment->position + (row - segment->row);
    const int32_t page = segment->seq->pages[position / KV_PAGE_TOKENS];
    const float *qkv = f->qkv + row * f->layer->qkv.n_rows;
    const float *keys = qkv + c->n_heads * c->head_dim;
    const float *values = keys + c->n_kv_heads * c->head_dim;
    for (size_t head = 0; head < c->n_kv_heads; head++)
        f->kernels->kv_write(f->options.kv_type, c->head_dim,
                             kvpool_block(f->kvpool, f->layer_index, page, head),
                             position % KV_PAGE_TOKENS, keys + head * c->head_dim,
                             values + head * c->head_dim);
}

/* Norms of q and k heads, rotation, and the page writes of these rows. */
static void rotate_and_write(const struct rows *r, size_t begin, size_t end)
{
    struct forward *f = r->f;
    const struct model_config *c = f->config;
    const size_t stride = f->layer->qkv.n_rows;
    const size_t q_dim = c->n_heads * c->head_dim;
    const size_t n = end - begin;
    for (size_t i = begin; i < end; i++) {
        float *q = f->qkv + i * stride;
        if (f->layer->q_norm)
            f->kernels->rmsnorm(q, f->layer->q_norm, c->rms_eps, c->n_heads, c->head_dim, q);
        if (f->layer->k_norm)
            f->kernels->rmsnorm(q + q_dim, f->layer->k_norm, c->rms_eps, c->n_kv_heads,
                                c->head_dim, q + q_dim);
    }
    const float *cos_sin = f->cos_sin + begin * c->n_rot;
    f->kernels->rope(f->qkv + begin * stride, stride, n, c->n_heads, c->head_dim, c->n_rot,
                     cos_sin, c->rope_pairing);
    f->kernels->rope(f->qkv + begin * stride + q_dim, stride, n, c->n_kv_heads, c->head_dim,
                     c->n_rot, cos_sin, c->rope_pairing);
    for (size_t i = begin; i < end; i++)
        write_kv(f, segment_of(f->plan, i), i);
}

/* Token embeddings and the angles of each row's position. */
static void embed_rows(const struct rows *r, size_t begin, size_t end)
{
    struct forward *f = r->f;
    const struct model_config *c = f->config;
    const struct tensor *embedding = &f->model->token_embd;
    const struct quant_info *info = quant_find((uint32_t)embedding->type);
    const size_t row_bytes = c->dim / info->block_elems * info->block_bytes;
    for (size_t i = begin; i < end; i++) {
        const struct step_segment *segment = segment_of(f->plan, i);
        const size_t position = segment->position + (i - segment->row);
        const size_t token = (size_t)segment->seq->tokens[position];
        ASSERT(token < c->n_vocab);
        quant_dequantize_row(embedding->type,
                             (const uint8_t *)embedding->data + token * row_bytes,
                             f->x + i * c->dim, c->dim);
        float *angles = f->cos_sin + i * c->n_rot;
        for (size_t pair = 0; pair < c->n_rot / 2; pair++) {
            const double angle = (double)position * f->frequencies[pair];
            angles[2 * pair] = (float)cos(angle);
            angles[2 * pair + 1] = (float)sin(angle);
        }
    }
}

/* ------------------------------------------------------------------ the pass */

static void run_layer(struct forward *f, size_t index)
{
    const struct layer_weights *w = &f->weights->layers[index];
    const size_t n_rows = f->plan->n_rows;
    f->layer = w;
    f->layer_index = index;

    run_rows(f, n_rows, w->attn_norm, norm_rows);
    multiply(f, &w->qkv, &f->hidden, n_rows, MATMUL_SET, f->qkv);
    run_rows(f, n_rows, NULL, rotate_and_write);
    forward_attention_run(f);
    run_rows(f, n_rows, NULL, quantize_mixed);
    multiply(f, &w->out, &f->mixed, n_rows, MATMUL_ADD, f->x);

    run_rows(f, n_rows, w->ffn_norm, norm_rows);
    multiply(f, &w->gate_up, &f->hidden, n_rows, MATMUL_SET, f->gate_up);
    run_rows(f, n_rows, NULL, activate_rows);
    multiply(f, &w->down, &f->inner, n_rows, MATMUL_ADD, f->x);
}

static void run_head(struct forward *f)
{
    const size_t dim = f->config->dim;
    for (size_t i = 0; i < f->plan->n_segments; i++) {
        const struct step_segment *segment = &f->plan->segments[i];
        const size_t first = segment->row + segment->n_rows - segment->n_logits;
        if (segment->n_logits > 0)
            f->kernels->rmsnorm(f->x + first * dim, f->weights->output_norm, f->config->rms_eps,
                                segment->n_logits, dim,
                                f->last.f32 + segment->logits_row * dim);
    }
    quantize_rows(f, &f->last, 0, f->plan->n_logits);
    multiply(f, &f->weights->output, &f->last, f->plan->n_logits, MATMUL_SET, f->logits);
}

void forward_run(struct forward *f, const struct step_plan *plan)
{
    ASSERT(plan->n_rows >= 1 && plan->n_rows <= f->options.n_rows_max);
    ASSERT(plan->n_logits <= f->options.n_logits_max);
    f->plan = plan;
    forward_attention_plan(f);
    run_rows(f, plan->n_rows, NULL, embed_rows);
    for (size_t i = 0; i < f->config->n_layers; i++)
        run_layer(f, i);
    if (plan->n_logits > 0)
        run_head(f);
}
