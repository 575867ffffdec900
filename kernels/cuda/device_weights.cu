/* The model's weights in the device's memory. */
#include <stdlib.h>
#include <string.h>

#include "device_int.cuh"

extern "C" {
#include "base/check.h"
}

/* Stored rows on their way to rows in bfloat16. */
static const size_t SLICE_BYTES = (size_t)32 << 20;

struct copier {
    device *d;
    uint8_t *slice; /* of the device, for the time of copying; or NULL: not wanted yet */
    struct err *e;
};

static int copy_floats(copier *c, const float *from, size_t n, const float **out)
{
    *out = NULL;
    if (!from)
        return 0;
    float *to = NULL;
    TRY(device_take_array(c->d, n, "a vector", &to, c->e));
    copy_to_device(c->d->stream, to, from, n * sizeof(float));
    *out = to;
    return 0;
}

/* Stored rows of neighbours of one type, side by side. */
static int copy_blocks(copier *c, const device_tensor *const *tensors, int n, uint8_t **out)
{
    size_t bytes = 0, used = 0;
    for (int i = 0; i < n; i++)
        bytes += tensors[i]->n_rows * quant_row_bytes(tensors[i]->type, tensors[i]->n_cols);
    TRY(device_take_array(c->d, bytes, "weights", out, c->e));
    for (int i = 0; i < n; i++) {
        const device_tensor *t = tensors[i];
        const size_t part = t->n_rows * quant_row_bytes(t->type, t->n_cols);
        copy_to_device(c->d->stream, *out + used, t->data, part);
        used += part;
    }
    return 0;
}

static int take_slice(copier *c)
{
    if (!c->slice)
        c->slice = (uint8_t *)device_alloc(SLICE_BYTES);
    if (!c->slice)
        return ERR_SET(c->e, ERR_NOMEM, "%s: no memory to convert weights in, %zu MiB",
                       c->d->info.name, SLICE_BYTES >> 20);
    return 0;
}

/* Where rows go to that are not kept as they are: to bfloat16, or to codes and scales. */
struct converted {
    bf16 *rows;
    uint8_t *codes;
    float *scales;
};

/* A slice is used again as soon as the stream has got past it: copies and kernels are in
 * order. */
static int convert_rows(copier *c, const device_tensor *t, const converted &to)
{
    const size_t row_bytes = quant_row_bytes(t->type, t->n_cols);
    const size_t n_max = SLICE_BYTES / row_bytes;
    if (t->type == QUANT_BF16 && to.rows) {
        copy_to_device(c->d->stream, to.rows, t->data, t->n_rows * row_bytes);
        return 0;
    }
    TRY(take_slice(c));
    if (n_max == 0)
        return ERR_SET(c->e, ERR_UNSUPPORTED, "a row of %zu weights is longer than %zu MiB",
                       t->n_cols, SLICE_BYTES >> 20);
    for (size_t row = 0; row < t->n_rows; row += n_max) {
        const size_t n = t->n_rows - row < n_max ? t->n_rows - row : n_max;
        copy_to_device(c->d->stream, c->slice, (const uint8_t *)t->data + row * row_bytes,
                       n * row_bytes);
        const matrix stored = {t->type, (int)n, (int)t->n_cols, c->slice, NULL};
        if (to.rows)
            dequantize(c->d->stream, stored, to.rows + row * t->n_cols);
        else
            quantize_fp8(c->d->stream, stored, to.codes + row * t->n_cols, to.scales + row);
    }
    return 0;
}

static int copy_rows(copier *c, const device_tensor *const *tensors, int n, bf16 **out)
{
    size_t n_elements = 0, used = 0;
    for (int i = 0; i < n; i++)
        n_elements += tensors[i]->n_rows * tensors[i]->n_cols;
    TRY(device_take_array(c->d, n_elements, "weights", out, c->e));
    for (int i = 0; i < n; i++) {
        TRY(convert_rows(c, tensors[i], {*out + used, NULL, NULL}));
        used += tensors[i]->n_rows * tensors[i]->n_cols;
    }
    return 0;
}

static int copy_fp8(copier *c, const device_tensor *const *tensors, int n, matrix *out)
{
    const size_t n_rows = (size_t)out->n_rows, n_cols = (size_t)out->n_cols;
    converted to = {};
    TRY(device_take_array(c->d, n_rows * n_cols, "weights", &to.codes, c->e));
    TRY(device_take_array(c->d, n_rows, "scales of weights", &to.scales, c->e));
    out->codes = to.codes;
    out->scales = to.scales;
    for (int i = 0; i < n; i++) {
        TRY(convert_rows(c, tensors[i], to));
        to.codes += tensors[i]->n_rows * n_cols;
        to.scales += tensors[i]->n_rows;
    }
    return 0;
}

/* Neighbours that are kept alike as one matrix. */
static int copy_matrix(copier *c, const device_tensor *const *tensors, int n, kept_form form,
                       matrix *out)
{
    size_t n_rows = 0;
    for (int i = 0; i < n; i++)
        n_rows += tensors[i]->n_rows;
    *out = {tensors[0]->type, (int)n_rows, (int)tensors[0]->n_cols, NULL, NULL};
    if (form == KEPT_FP8)
        return copy_fp8(c, tensors, n, out);
    if (form == KEPT_BLOCKS) {
        uint8_t *blocks = NULL;
        TRY(copy_blocks(c, tensors, n, &blocks));
        out->blocks = blocks;
        return 0;
    }
    bf16 *rows = NULL;
    TRY(copy_rows(c, tensors, n, &rows));
    out->rows = rows;
    return 0;
}

static bool is_kept_like(const device_tensor *a, const device_tensor *b,
                         const device_options *o)
{
    const kept_form form = form_in_layer(a, o);
    return form == form_in_layer(b, o) && (form == KEPT_FP8 || a->type == b->type);
}

static int copy_fused(copier *c, const device_tensor *const *tensors, int n, const float *bias,
                      fused *out)
{
    const device_options *o = &c->d->options;
    *out = {};
    for (int i = 0, end; i < n; i = end) {
        for (end = i + 1; end < n && is_kept_like(tensors[i], tensors[end], o); end++)
            ;
        matrix *part = &out->parts[out->n_parts];
        TRY(copy_matrix(c, tensors + i, end - i, form_in_layer(tensors[i], o), part));
        out->columns[out->n_parts++] = out->n_rows;
        out->n_rows += part->n_rows;
    }
    return copy_floats(c, bias, (size_t)out->n_rows, &out->bias);
}

static int copy_layer(copier *c, const device_layer *l, layer *out)
{
    const device_model *m = &c->d->model;
    TRY(copy_floats(c, l->attn_norm, m->dim, &out->attn_norm));
    TRY(copy_floats(c, l->ffn_norm, m->dim, &out->ffn_norm));
    TRY(copy_floats(c, l->q_norm, m->head_dim, &out->q_norm));
    TRY(copy_floats(c, l->k_norm, m->head_dim, &out->k_norm));
    const device_tensor *const qkv[] = {&l->q, &l->k, &l->v};
    const device_tensor *const gate_up[] = {&l->gate, &l->up};
    const device_tensor *const attention_out[] = {&l->out};
    const device_tensor *const down[] = {&l->down};
    TRY(copy_fused(c, qkv, 3, l->qkv_bias, &out->qkv));
    TRY(copy_fused(c, attention_out, 1, l->out_bias, &out->out));
    TRY(copy_fused(c, gate_up, 2, NULL, &out->gate_up));
    return copy_fused(c, down, 1, NULL, &out->down);
}

/* The embedding keeps its stored rows whatever their type: they are looked up exactly. Tied, it
 * is the output's matrix too, with rows in bfloat16 beside the blocks where products need them.
 */
static int copy_embedding(copier *c, const device_model *m)
{
    device *d = c->d;
    const device_tensor *const embedding[] = {&m->embedding};
    const device_tensor *const output[] = {&m->output};
    const bool is_tied = m->embedding.data == m->output.data;
    TRY(copy_matrix(c, output, 1, form_of(&m->output), &d->output));
    d->embedding = {m->embedding.type, (int)m->embedding.n_rows, (int)m->embedding.n_cols,
                    is_tied ? d->output.blocks : NULL, NULL};
    if (d->embedding.blocks)
        return 0;
    uint8_t *blocks = NULL;
    TRY(copy_blocks(c, embedding, 1, &blocks));
    d->embedding.blocks = blocks;
    return 0;
}

/* Biases of all heads one after another, as the rows of their matrices are. */
static int copy_head_block(copier *c, const device_heads *h, size_t block, guessing *out)
{
    const device_tensor *tensors[DEVICE_HEADS_MAX] = {};
    const size_t dim = c->d->model.dim;
    float *biases = NULL;
    TRY(device_take_array(c->d, h->n_heads * dim, "biases of heads", &biases, c->e));
    for (size_t i = 0; i < h->n_heads; i++) {
        tensors[i] = &h->weights[block][i];
        ASSERT(tensors[i]->type == tensors[0]->type);
        copy_to_device(c->d->stream, biases + i * dim, h->biases[block][i],
                       dim * sizeof(float));
    }
    out->biases[block] = biases;
    return copy_matrix(c, tensors, (int)h->n_heads, form_of(&h->weights[block][0]),
                       &out->blocks[block]);
}

/* Behind the model's own weights. */
static int copy_heads(copier *c, const device_model *m)
{
    const device_heads *h = m->heads;
    guessing *out = &c->d->heads;
    if (!h)
        return 0;
    ASSERT(h->n_heads >= 1 && h->n_heads <= DEVICE_HEADS_MAX);
    ASSERT(h->n_blocks <= DEVICE_HEAD_BLOCKS_MAX && h->n_draft <= m->n_vocab);
    for (size_t i = 0; i < h->n_blocks; i++)
        TRY(copy_head_block(c, h, i, out));
    for (size_t i = 0; i < h->n_outputs; i++) {
        const device_tensor *const weight[] = {&h->outputs[i].weight};
        out->outputs[i].first_head = (int)h->outputs[i].first_head;
        out->outputs[i].n_heads = (int)h->outputs[i].n_heads;
        if (weight[0]->data == m->output.data)
            out->outputs[i].weight = c->d->output;
        else
            TRY(copy_matrix(c, weight, 1, form_of(weight[0]), &out->outputs[i].weight));
    }
    out->n_heads = (int)h->n_heads;
    out->n_blocks = (int)h->n_blocks;
    out->n_draft = (int)h->n_draft;
    out->n_outputs = (int)h->n_outputs;
    return 0;
}

static int copy_all(copier *c, const device_model *m)
{
    device *d = c->d;
    d->layers = (layer *)calloc(m->n_layers, sizeof d->layers[0]);
    if (!d->layers)
        return ERR_SET(c->e, ERR_NOMEM, "no memory for %zu layers", m->n_layers);
    for (size_t i = 0; i < m->n_layers; i++)
        TRY(copy_layer(c, &m->layers[i], &d->layers[i]));
    const float *norm = NULL;
    TRY(copy_floats(c, m->output_norm, m->dim, &norm));
    d->output_norm = norm;
    TRY(copy_embedding(c, m));
    return copy_heads(c, m);
}

int device_copy_weights(device *d, const device_model *m, struct err *e)
{
    copier c = {d, NULL, e};
    int rc = copy_all(&c, m);
    const int settled = device_settle(d, "the weights cannot be copied", e);
    if (c.slice)
        device_free(c.slice);
    return rc != 0 ? rc : settled;
}
