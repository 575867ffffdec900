/*
 * What memory there is for what. All of it is planned before any is taken, so that a model that
 * does not fit is said at once and with numbers; the KV pool gets what is left, up to what is
 * wanted. Host code, pure.
 */
#include <string.h>

#include "device_int.cuh"

extern "C" {
#include "base/check.h"
#include "base/limits.h"
}

/* Each allocation is rounded up, to 2 MiB at worst; the runtime and cuBLASLt take their own. */
static const size_t RESERVE = (size_t)256 << 20, RESERVE_SHARE = 64;
static const size_t SCRATCH_MAX = (size_t)256 << 20; /* larger matrices go over in slices */
static const size_t PRODUCTS_WORKSPACE = (size_t)64 << 20;

bool keeps_blocks(enum quant_type type)
{
    return type == QUANT_Q4_0 || type == QUANT_Q4_1 || type == QUANT_Q8_0;
}

static size_t stored_bytes(const device_tensor *t)
{
    return t->n_rows * quant_row_bytes(t->type, t->n_cols);
}

static size_t rows_bytes(const device_tensor *t)
{
    return t->n_rows * t->n_cols * sizeof(bf16);
}

static size_t kept_bytes(const device_tensor *t)
{
    return keeps_blocks(t->type) ? stored_bytes(t) : rows_bytes(t);
}

/* Adds a matrix that products read. */
static void add_matrix(memory_plan *p, const device_tensor *t)
{
    p->weights += kept_bytes(t);
    if (keeps_blocks(t->type) && rows_bytes(t) > p->scratch)
        p->scratch = rows_bytes(t);
}

static void plan_weights(const device_model *m, memory_plan *p)
{
    const size_t n_qkv = (m->n_heads + 2 * m->n_kv_heads) * m->head_dim;
    for (size_t i = 0; i < m->n_layers; i++) {
        const device_layer *l = &m->layers[i];
        const device_tensor *const all[] = {&l->q,    &l->k,  &l->v,   &l->out,
                                            &l->gate, &l->up, &l->down};
        for (const device_tensor *t : all)
            add_matrix(p, t);
        p->weights += (2 * m->dim + 2 * m->head_dim + n_qkv + m->dim) * sizeof(float);
    }
    add_matrix(p, &m->output);
    if (m->embedding.data != m->output.data || !keeps_blocks(m->embedding.type))
        p->weights += stored_bytes(&m->embedding);
    p->weights += m->dim * sizeof(float);
}

/* Of attention whose keys are cut over thread blocks, as the fast mode does. */
size_t device_splits_bytes(const device_options *o, const device_model *m, int n_processors)
{
    return o->exact ? 0 : attend_scratch_bytes((int)m->head_dim, n_processors);
}

static void plan_activations(const device_options *o, const device_model *m, int n_processors,
                             memory_plan *p)
{
    const size_t heads = m->n_heads * m->head_dim;
    const size_t row = m->dim * (sizeof(float) + sizeof(bf16)) +
                       (heads + 2 * m->n_kv_heads * m->head_dim) * sizeof(float) +
                       2 * heads * sizeof(bf16) + 3 * m->ffn_dim * sizeof(bf16);
    const size_t logits_row =
        m->dim * (sizeof(float) + sizeof(bf16)) + m->n_vocab * sizeof(float) + sizeof(int32_t);
    p->activations = o->n_rows_max * row + o->n_logits_max * logits_row +
                     argmax_scratch_bytes() + device_splits_bytes(o, m, n_processors);
}

static int refuse(const memory_plan *p, size_t needed, const device_options *o,
                  const device_info *info, struct err *e)
{
    return ERR_SET(
        e, ERR_NOMEM,
        "%s has %zu of %zu MiB free, and %zu are needed: weights %zu, activations %zu, %zu KV "
        "pages %zu, a reserve of %zu; take a smaller model, lower kv.mb, batch or step_tokens, "
        "or end what else uses the device",
        info->name, info->free_bytes >> 20, info->memory_bytes >> 20, needed >> 20,
        p->weights >> 20, (p->activations + p->step + p->products) >> 20, o->n_pages_min,
        (o->n_pages_min * p->page) >> 20, p->reserve >> 20);
}

int device_plan_memory(const device_options *o, const device_model *m, const device_info *info,
                       int n_processors, memory_plan *out, struct err *e)
{
    memory_plan p = {};
    ASSERT(o->n_pages <= KV_PAGES_MAX && o->n_pages_min <= o->n_pages);
    plan_weights(m, &p);
    plan_activations(o, m, n_processors, &p);
    p.scratch = o->exact ? 0 : p.scratch < SCRATCH_MAX ? p.scratch : SCRATCH_MAX;
    p.products = p.scratch + PRODUCTS_WORKSPACE;
    p.step = STAGES * device_step_bytes(o, m);
    p.reserve = RESERVE + info->memory_bytes / RESERVE_SHARE;
    p.page = m->n_layers * m->n_kv_heads * 2 * KV_PAGE_TOKENS * m->head_dim *
             (o->kv_type == KV_F32 ? sizeof(float) : sizeof(bf16));
    const size_t fixed = p.weights + p.activations + p.step + p.products + p.reserve;
    const size_t needed = fixed + o->n_pages_min * p.page;
    if (needed > info->free_bytes)
        return refuse(&p, needed, o, info, e);
    const size_t n_affordable = (info->free_bytes - fixed) / p.page;
    p.n_pages = o->n_pages < n_affordable ? o->n_pages : n_affordable;
    *out = p;
    return 0;
}
