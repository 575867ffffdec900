#include "engine/weights.h"

#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/size.h"
#include "engine/memory.h"

enum { SLICE_ROWS = 16 * PANEL_COLS }; /* of a matrix that one item packs */

/* Whole panels of one matrix. */
struct slice {
    const struct tensor *tensor;
    const struct weight *weight;
    size_t first_row;
};

/*
 * Laying out runs twice over the same code: once with data NULL to add up sizes, once to fill
 * vectors and to note slices, which all threads then pack.
 */
struct packer {
    bool vectors_only;
    uint8_t *data;
    size_t used;
    float *floats;
    size_t floats_used;
    struct slice *slices;
    size_t n_slices;
    struct err *e;
};

static int pack_vector(struct packer *p, const struct tensor *t, float **out)
{
    *out = NULL;
    if (!t->data)
        return 0;
    if (p->floats) {
        *out = p->floats + p->floats_used;
        quant_dequantize_row(t->type, t->data, *out, t->n_cols);
    }
    p->floats_used += (t->n_cols + LANES - 1) / LANES * LANES;
    return 0;
}

static void note_slices(struct packer *p, const struct tensor *t, const struct weight *w)
{
    for (size_t row = 0; row < t->n_rows; row += SLICE_ROWS) {
        if (p->slices)
            p->slices[p->n_slices] = (struct slice){.tensor = t, .weight = w, .first_row = row};
        p->n_slices++;
    }
}

static int pack_matrix(struct packer *p, const struct tensor *t, struct weight *w)
{
    if (p->vectors_only) {
        *w = (struct weight){.type = t->type, .n_rows = t->n_rows, .n_cols = t->n_cols};
        return 0;
    }
    const size_t bytes = weight_packed_bytes(t->type, t->n_rows, t->n_cols);
    if (bytes == 0)
        return ERR_SET(p->e, ERR_UNSUPPORTED, "a %s matrix of %zu x %zu cannot be packed",
                       quant_find((uint32_t)t->type)->name, t->n_rows, t->n_cols);
    *w = weight_shape(t->type, t->n_rows, t->n_cols);
    w->data = p->data ? p->data + p->used : NULL;
    note_slices(p, t, w);
    p->used += (bytes + KERNELS_ALIGN - 1) / KERNELS_ALIGN * KERNELS_ALIGN;
    return 0;
}

static int pack_linear(struct packer *p, struct linear *l, const struct tensor *const *parts,
                       const struct tensor *const *biases, size_t n_parts)
{
    l->n_parts = n_parts;
    l->n_rows = 0;
    l->n_cols = parts[0]->n_cols;
    for (size_t i = 0; i < n_parts; i++) {
        ASSERT(parts[i]->n_cols == l->n_cols);
        TRY(pack_matrix(p, parts[i], &l->parts[i]));
        l->offsets[i] = l->n_rows;
        l->n_rows += parts[i]->n_rows;
    }
    l->bias = NULL;
    for (size_t i = 0; i < n_parts; i++) {
        if (!biases || !biases[i]->data)
            continue;
        if (p->floats) {
            l->bias = p->floats + p->floats_used;
            quant_dequantize_row(biases[i]->type, biases[i]->data, l->bias + l->offsets[i],
                                 biases[i]->n_cols);
        }
    }
    if (biases)
        p->floats_used += (l->n_rows + LANES - 1) / LANES * LANES;
    return 0;
}

static int pack_layer(struct packer *p, struct layer_weights *w, const struct model_layer *l)
{
    TRY(pack_vector(p, &l->attn_norm, &w->attn_norm));
    TRY(pack_vector(p, &l->ffn_norm, &w->ffn_norm));
    TRY(pack_vector(p, &l->q_norm, &w->q_norm));
    TRY(pack_vector(p, &l->k_norm, &w->k_norm));
    TRY(pack_linear(p, &w->qkv, (const struct tensor *[]){&l->wq, &l->wk, &l->wv},
                    (const struct tensor *[]){&l->bq, &l->bk, &l->bv}, 3));
    TRY(pack_linear(p, &w->out, (const struct tensor *[]){&l->wo},
                    (const struct tensor *[]){&l->bo}, 1));
    TRY(pack_linear(p, &w->gate_up, (const struct tensor *[]){&l->gate, &l->up}, NULL, 2));
    return pack_linear(p, &w->down, (const struct tensor *[]){&l->down}, NULL, 1);
}

static int pack_all(struct packer *p, struct weights *w, const struct model *m)
{
    for (size_t i = 0; i < m->config.n_layers; i++)
        TRY(pack_layer(p, &w->layers[i], &m->layers[i]));
    TRY(pack_vector(p, &m->output_norm, &w->output_norm));
    return pack_linear(p, &w->output, (const struct tensor *[]){&m->output}, NULL, 1);
}

/* Panels do not depend on each other, so a slice is packed like a matrix of its own. */
static void pack_slice(void *ctx, size_t item, size_t thread)
{
    (void)thread;
    const struct slice *slice = (const struct slice *)ctx + item;
    const struct tensor *t = slice->tensor;
    const size_t row_bytes = quant_row_bytes(t->type, t->n_cols);
    const struct weight *w = slice->weight;
    struct weight part;
    const int rc =
        weight_pack(&part, t->type, size_min(SLICE_ROWS, t->n_rows - slice->first_row),
                    t->n_cols, (const uint8_t *)t->data + slice->first_row * row_bytes,
                    w->data + slice->first_row / PANEL_COLS * w->panel_bytes, NULL);
    ASSERT(rc == 0 && part.panel_bytes == w->panel_bytes); /* the shape was looked at before */
}

static int take_memory(const struct packer *sizes, struct weights *w, struct packer *out,
                       struct err *e)
{
    if (sizes->used > 0)
        TRY(memory_take(sizes->used, "packed weights", &w->block, e));
    w->block_bytes = sizes->used;
    w->floats = aligned_alloc(KERNELS_ALIGN, sizes->floats_used * sizeof(float));
    out->slices = calloc(sizes->n_slices + 1, sizeof out->slices[0]);
    if (!w->floats || !out->slices)
        return ERR_SET(e, ERR_NOMEM, "no memory for the model's vectors");
    memset(w->floats, 0, sizes->floats_used * sizeof(float));
    out->data = w->block;
    out->floats = w->floats;
    return 0;
}

/* threads NULL: the vectors alone. */
static int open_weights(const struct model *m, struct pool *threads, struct weights *w,
                        struct err *e)
{
    *w = (struct weights){0};
    int rc = 0;
    struct packer sizes = {.vectors_only = !threads, .e = e}, filler = sizes;
    w->layers = calloc(m->config.n_layers, sizeof w->layers[0]);
    if (!w->layers)
        return ERR_SET(e, ERR_NOMEM, "no memory for %zu layers", m->config.n_layers);
    TRY_OUT(rc, pack_all(&sizes, w, m));
    TRY_OUT(rc, take_memory(&sizes, w, &filler, e));
    TRY_OUT(rc, pack_all(&filler, w, m));
    ASSERT(filler.used == sizes.used && filler.floats_used == sizes.floats_used);
    ASSERT(filler.n_slices == sizes.n_slices);
    if (filler.n_slices > 0)
        pool_run(threads, pack_slice, filler.slices, filler.n_slices);
out:
    free(filler.slices);
    if (rc != 0)
        weights_close(w);
    return rc;
}

int weights_open(const struct model *m, struct pool *threads, struct weights *w, struct err *e)
{
    ASSERT(threads);
    return open_weights(m, threads, w, e);
}

int weights_open_vectors(const struct model *m, struct weights *w, struct err *e)
{
    return open_weights(m, NULL, w, e);
}

void weights_close(struct weights *w)
{
    memory_give_back(w->block, w->block_bytes);
    free(w->floats);
    free(w->layers);
    *w = (struct weights){0};
}

struct weight weights_panels(const struct weight *w, size_t begin, size_t end)
{
    struct weight part = *w;
    part.data += begin * w->panel_bytes;
    part.n_panels = end - begin;
    part.n_rows = size_min(end * PANEL_COLS, w->n_rows) - begin * PANEL_COLS;
    return part;
}
