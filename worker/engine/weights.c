#include "engine/weights.h"

#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "engine/memory.h"

/*
 * Packing runs twice over the same code: once with data NULL to add up sizes, once to fill.
 */
struct packer {
    uint8_t *data;
    size_t used;
    float *floats;
    size_t floats_used;
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

static int pack_linear(struct packer *p, struct linear *l, const struct tensor *const *parts,
                       const struct tensor *const *biases, size_t n_parts)
{
    l->n_parts = n_parts;
    l->n_rows = 0;
    l->n_cols = parts[0]->n_cols;
    for (size_t i = 0; i < n_parts; i++) {
        const struct tensor *t = parts[i];
        ASSERT(t->n_cols == l->n_cols);
        const size_t bytes = weight_packed_bytes(t->type, t->n_rows, t->n_cols);
        if (bytes == 0)
            return ERR_SET(p->e, ERR_UNSUPPORTED, "a %s matrix of %zu x %zu cannot be packed",
                           quant_find((uint32_t)t->type)->name, t->n_rows, t->n_cols);
        if (p->data)
            TRY(weight_pack(&l->parts[i], t->type, t->n_rows, t->n_cols, t->data,
                            p->data + p->used, p->e));
        p->used += (bytes + KERNELS_ALIGN - 1) / KERNELS_ALIGN * KERNELS_ALIGN;
        l->offsets[i] = l->n_rows;
        l->n_rows += t->n_rows;
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

int weights_open(const struct model *m, struct weights *w, struct err *e)
{
    *w = (struct weights){0};
    int rc = 0;
    w->layers = calloc(m->config.n_layers, sizeof w->layers[0]);
    if (!w->layers)
        return ERR_SET(e, ERR_NOMEM, "no memory for %zu layers", m->config.n_layers);
    struct packer sizes = {.e = e};
    TRY_OUT(rc, pack_all(&sizes, w, m));
    TRY_OUT(rc, memory_take(sizes.used, "packed weights", &w->block, e));
    w->block_bytes = sizes.used;
    w->floats = aligned_alloc(KERNELS_ALIGN, sizes.floats_used * sizeof(float));
    if (!w->floats) {
        rc = ERR_SET(e, ERR_NOMEM, "no memory for the model's vectors");
        goto out;
    }
    memset(w->floats, 0, sizes.floats_used * sizeof(float));
    struct packer filler = {.data = w->block, .floats = w->floats, .e = e};
    TRY_OUT(rc, pack_all(&filler, w, m));
    ASSERT(filler.used == sizes.used && filler.floats_used == sizes.floats_used);
out:
    if (rc != 0)
        weights_close(w);
    return rc;
}

void weights_close(struct weights *w)
{
    memory_give_back(w->block, w->block_bytes);
    free(w->floats);
    free(w->layers);
    *w = (struct weights){0};
}
