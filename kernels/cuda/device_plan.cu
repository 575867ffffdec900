/*
 * What memory there is for what. All of it is planned before any is taken, so that a model that
 * does not fit is said at once and with numbers; the KV pool gets what is left, up to what is
 * wanted. Host code, pure.
 */
#include <stdio.h>
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

enum { FP8_CAPABILITY_MIN = 89 };

kept_form form_of(const device_tensor *t)
{
    const bool has_kernel =
        t->type == QUANT_Q4_0 || t->type == QUANT_Q4_1 || t->type == QUANT_Q8_0;
    return has_kernel ? KEPT_BLOCKS : KEPT_ROWS;
}

/*
 * What would be rows in bfloat16 is half as much in FP8, so a step of few rows, bound by bytes,
 * takes half as long. Q8_0 is 1.06 bytes a weight: that gains 6 %, but in picoseconds a weight
 * (product_way.cu) 2,048 rows take 6.6 dequantised and 2.9 in FP8, and long prompts are what
 * somebody asks for FP8 for. Q4_0 and Q4_1 at 0.56 and 0.63 are read in less time than FP8 and
 * stay.
 *
 * The output's matrix is not asked: it is multiplied with the rows that want logits alone, so
 * FP8 would gain 7 % of a step of few rows (an 8B model's) and nothing for long prompts, and
 * what it rounds goes straight into the logits. The embedding is looked up, not multiplied.
 */
kept_form form_in_layer(const device_tensor *t, const device_options *o)
{
    const bool is_small = t->type == QUANT_Q4_0 || t->type == QUANT_Q4_1;
    if (o->fp8 && !is_small && t->n_rows % FP8_OUTPUTS_MULTIPLE == 0)
        return KEPT_FP8;
    return form_of(t);
}

static size_t stored_bytes(const device_tensor *t)
{
    return t->n_rows * quant_row_bytes(t->type, t->n_cols);
}

static size_t rows_bytes(const device_tensor *t)
{
    return t->n_rows * t->n_cols * sizeof(bf16);
}

static size_t kept_bytes(const device_tensor *t, kept_form form)
{
    if (form == KEPT_FP8)
        return t->n_rows * (t->n_cols + sizeof(float));
    return form == KEPT_BLOCKS ? stored_bytes(t) : rows_bytes(t);
}

static size_t larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

/* Adds a matrix that products read; n_outputs: with its neighbours. */
static void add_matrix(memory_plan *p, const device_tensor *t, kept_form form, size_t n_outputs)
{
    p->weights += kept_bytes(t, form);
    if (form == KEPT_BLOCKS)
        p->scratch = larger(p->scratch, rows_bytes(t));
    if (form == KEPT_FP8) {
        p->fp8_inputs_max = larger(p->fp8_inputs_max, t->n_cols);
        p->fp8_outputs_max = larger(p->fp8_outputs_max, n_outputs);
    }
}

static void add_head_matrix(memory_plan *p, const device_tensor *t)
{
    add_matrix(p, t, form_of(t), t->n_rows);
}

static void plan_head_weights(const device_model *m, memory_plan *p)
{
    const device_heads *h = m->heads;
    const size_t before = p->weights;
    if (!h)
        return;
    for (size_t i = 0; i < h->n_blocks; i++)
        for (size_t k = 0; k < h->n_heads; k++) {
            add_head_matrix(p, &h->weights[i][k]);
            p->weights += m->dim * sizeof(float);
        }
    for (size_t i = 0; i < h->n_outputs; i++)
        if (h->outputs[i].weight.data != m->output.data)
            add_head_matrix(p, &h->outputs[i].weight);
    p->heads += p->weights - before;
}

static void plan_weights(const device_options *o, const device_model *m, memory_plan *p)
{
    const size_t n_qkv = (m->n_heads + 2 * m->n_kv_heads) * m->head_dim;
    for (size_t i = 0; i < m->n_layers; i++) {
        const device_layer *l = &m->layers[i];
        const struct {
            const device_tensor *t;
            size_t n_outputs;
        } all[] = {{&l->q, n_qkv},
                   {&l->k, n_qkv},
                   {&l->v, n_qkv},
                   {&l->out, m->dim},
                   {&l->gate, 2 * m->ffn_dim},
                   {&l->up, 2 * m->ffn_dim},
                   {&l->down, m->dim}};
        for (const auto &one : all)
            add_matrix(p, one.t, form_in_layer(one.t, o), one.n_outputs);
        p->weights += (2 * m->dim + 2 * m->head_dim + n_qkv + m->dim) * sizeof(float);
    }
    add_matrix(p, &m->output, form_of(&m->output), m->n_vocab);
    if (m->embedding.data != m->output.data || form_of(&m->embedding) != KEPT_BLOCKS)
        p->weights += stored_bytes(&m->embedding);
    p->weights += m->dim * sizeof(float);
}

/* Scratch and results. */
size_t device_candidates_bytes(const device_options *o, const device_model *m)
{
    if (m->n_vocab > DEVICE_CANDIDATES_VOCAB_MAX)
        return 0;
    return candidates_scratch_bytes(o->n_logits_max, m->n_vocab) +
           o->n_logits_max * sizeof(device_candidates);
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
                     argmax_scratch_bytes() + device_candidates_bytes(o, m) +
                     device_splits_bytes(o, m, n_processors);
}

static int refuse(const memory_plan *p, size_t needed, const device_options *o,
                  const device_info *info, struct err *e)
{
    char heads[64] = "";
    if (p->heads > 0)
        snprintf(heads, sizeof heads, "leave out the heads, which take %zu, ", p->heads >> 20);
    return ERR_SET(
        e, ERR_NOMEM,
        "%s has %zu of %zu MiB free, and %zu are needed: weights %zu, activations %zu, %zu KV "
        "pages %zu, a reserve of %zu; %stake a smaller model, lower kv.mb, batch or "
        "step_tokens, or end what else uses the device",
        info->name, info->free_bytes >> 20, info->memory_bytes >> 20, needed >> 20,
        p->weights >> 20, (p->activations + p->step + p->products) >> 20, o->n_pages_min,
        (o->n_pages_min * p->page) >> 20, p->reserve >> 20, heads);
}

int device_check_fp8(const device_options *o, const device_info *info, struct err *e)
{
    if (!o->fp8 || info->compute_capability >= FP8_CAPABILITY_MIN)
        return 0;
    return ERR_SET(
        e, ERR_UNSUPPORTED,
        "%s has compute capability %d.%d, and products in FP8 need %d.%d or more (Ada, "
        "Hopper or later): take device.weights=stored",
        info->name, info->compute_capability / 10, info->compute_capability % 10,
        FP8_CAPABILITY_MIN / 10, FP8_CAPABILITY_MIN % 10);
}

/* The own kernel takes E4M3 rows without scratch. */
products_options device_products_options(const device_options *o, const memory_plan *p)
{
    products_options out = {};
    out.exact = o->exact;
    out.n_rows_max = (int)o->n_rows_max;
    out.scratch_bytes = p->scratch;
    if (!o->exact) {
        out.fp8_inputs_max = (int)p->fp8_inputs_max;
        out.fp8_outputs_max = (int)p->fp8_outputs_max;
    }
    return out;
}

int device_plan_memory(const device_options *o, const device_model *m, const device_info *info,
                       int n_processors, memory_plan *out, struct err *e)
{
    memory_plan p = {};
    ASSERT(o->n_pages <= KV_PAGES_MAX && o->n_pages_min <= o->n_pages);
    plan_weights(o, m, &p);
    plan_head_weights(m, &p);
    plan_activations(o, m, n_processors, &p);
    p.activations += device_heads_bytes(o, m);
    p.heads += device_heads_bytes(o, m);
    p.scratch = o->exact ? 0 : p.scratch < SCRATCH_MAX ? p.scratch : SCRATCH_MAX;
    p.products =
        p.scratch + fp8_scratch_bytes(device_products_options(o, &p)) + PRODUCTS_WORKSPACE;
    p.step = device_step_bytes(o, m);
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
