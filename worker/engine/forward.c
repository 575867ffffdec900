#include "engine/forward.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/limits.h"
#include "base/size.h"
#include "engine/engine_device.h"
#include "engine/forward_int.h"
#include "engine/layout.h"
#include "engine/memory.h"

enum {
    ROWS_PER_ITEM = 16, /* of a row-wise stage */
};

/* ------------------------------------------------------------------ buffers */

static void lay_buffers(struct layout *l, struct forward *f)
{
    const struct model_config *c = f->config;
    const size_t n_rows = f->options.n_rows_max;
    const enum act_kind kind = f->options.activations;
    const size_t q_dim = c->n_heads * c->head_dim;
    f->x = layout_take(l, n_rows * c->dim * sizeof(float));
    layout_act(l, &f->hidden, n_rows, c->dim, kind);
    f->qkv = layout_take(l, n_rows * (q_dim + 2 * c->n_kv_heads * c->head_dim) * sizeof(float));
    layout_act(l, &f->mixed, n_rows, q_dim, kind);
    layout_act(l, &f->inner, n_rows, c->ffn_dim, kind);
    f->cos_sin = layout_take(l, n_rows * c->n_rot * sizeof(float));
    layout_act(l, &f->last, f->options.n_logits_max, c->dim, kind);
    f->logits = layout_take(l, f->options.n_logits_max * c->n_vocab * sizeof(float));
    f->tile_floats = size_max(forward_products_tile_floats(f), forward_head_tile_floats(f));
    f->tiles = layout_take(l, pool_threads(f->threads) * f->tile_floats * sizeof(float));
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

static int open_host(struct forward *f, struct err *e)
{
    struct layout sizes = {0};
    lay_buffers(&sizes, f);
    TRY(memory_take(sizes.used, "activations", &f->block, e));
    f->block_bytes = sizes.used;
    struct layout filled = {.base = f->block};
    lay_buffers(&filled, f);
    ASSERT(filled.used == sizes.used);
    TRY(forward_attention_open(f, e));
    return forward_head_open(f, e);
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
    TRY_OUT(rc, o->device ? forward_device_open(f, e) : open_host(f, e));
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
    if (f->options.device) {
        forward_device_close(f);
    } else {
        forward_attention_close(f);
        forward_head_close(f);
    }
    free(f->frequencies);
    memory_give_back(f->block, f->block_bytes);
    free(f);
}

size_t forward_bytes(const struct forward *f)
{
    return f->block_bytes;
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

static void norm_rows(const struct rows *r, size_t begin, size_t end)
{
    struct forward *f = r->f;
    const size_t dim = f->config->dim;
    f->kernels->rmsnorm(f->x + begin * dim, r->norm, f->config->rms_eps, end - begin, dim,
                        f->hidden.f32 + begin * dim);
    forward_quantize(f, &f->hidden, begin, end, 0, dim);
}

static const struct step_segment *segment_of(const struct step_plan *plan, size_t row)
{
    size_t i = 0;
    while (row >= plan->segments[i].row + plan->segments[i].n_rows)
        i++;
    return &plan->segments[i];
}

void forward_angles(const struct forward *f, size_t position, float *out)
{
    for (size_t pair = 0; pair < f->config->n_rot / 2; pair++) {
        const double angle = (double)position * f->frequencies[pair];
        out[2 * pair] = (float)cos(angle);
        out[2 * pair + 1] = (float)sin(angle);
    }
}

/* Token embeddings and the angles of each row's position. */
static void embed_rows(const struct rows *r, size_t begin, size_t end)
{
    struct forward *f = r->f;
    const struct model_config *c = f->config;
    const struct tensor *embedding = &f->model->token_embd;
    const size_t row_bytes = quant_row_bytes(embedding->type, c->dim);
    for (size_t i = begin; i < end; i++) {
        const struct step_segment *segment = segment_of(f->plan, i);
        const size_t token = (size_t)segment_token(segment, i - segment->row);
        ASSERT(token < c->n_vocab);
        quant_dequantize_row(embedding->type,
                             (const uint8_t *)embedding->data + token * row_bytes,
                             f->x + i * c->dim, c->dim);
        forward_angles(f, segment_position(segment, i - segment->row),
                       f->cos_sin + i * c->n_rot);
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
    forward_project_heads(f);
    forward_attention_run(f);
    forward_add_product(f, &w->out, &f->mixed);

    run_rows(f, n_rows, w->ffn_norm, norm_rows);
    forward_gate_up(f);
    forward_add_product(f, &w->down, &f->inner);
}

int forward_check(const struct forward *f, struct err *e)
{
    return f->options.device ? engine_device_check(f->options.device, e) : 0;
}

static void take_plan(struct forward *f, const struct step_plan *plan)
{
    ASSERT(plan->n_rows >= 1 && plan->n_rows <= f->options.n_rows_max);
    ASSERT(plan->n_logits <= f->options.n_logits_max);
    f->plan = plan;
}

static void run_layers(struct forward *f, size_t first, size_t n_layers)
{
    forward_attention_plan(f);
    run_rows(f, f->plan->n_rows, NULL, embed_rows);
    for (size_t i = 0; i < n_layers; i++)
        run_layer(f, (first + i) % f->config->n_layers);
}

void forward_run_layers(struct forward *f, const struct step_plan *plan, size_t first,
                        size_t n_layers)
{
    take_plan(f, plan);
    if (f->on_device) {
        forward_device_begin(f, first, n_layers, false);
        forward_device_end(f);
        engine_device_wait(f->options.device);
    } else {
        run_layers(f, first, n_layers);
    }
}

void forward_begin(struct forward *f, const struct step_plan *plan)
{
    take_plan(f, plan);
    if (f->on_device) {
        forward_device_begin(f, 0, f->config->n_layers, plan->n_logits > 0);
        return;
    }
    run_layers(f, 0, f->config->n_layers);
    if (plan->n_logits > 0)
        forward_run_head(f);
}

void forward_end(struct forward *f)
{
    if (f->on_device)
        forward_device_end(f);
}

void forward_abandon(struct forward *f)
{
    if (f->on_device)
        forward_device_abandon(f);
}

void forward_run(struct forward *f, const struct step_plan *plan)
{
    forward_begin(f, plan);
    forward_end(f);
}
