#include "engine/engine_device.h"

#include <stdlib.h>

#include "base/check.h"

static struct device_tensor tensor_of(const struct tensor *t)
{
    return (struct device_tensor){
        .type = t->type, .n_rows = t->n_rows, .n_cols = t->n_cols, .data = t->data};
}

static struct device_layer layer_of(const struct model_layer *l, const struct layer_weights *w)
{
    return (struct device_layer){.attn_norm = w->attn_norm,
                                 .ffn_norm = w->ffn_norm,
                                 .q_norm = w->q_norm,
                                 .k_norm = w->k_norm,
                                 .qkv_bias = w->qkv.bias,
                                 .out_bias = w->out.bias,
                                 .q = tensor_of(&l->wq),
                                 .k = tensor_of(&l->wk),
                                 .v = tensor_of(&l->wv),
                                 .out = tensor_of(&l->wo),
                                 .gate = tensor_of(&l->gate),
                                 .up = tensor_of(&l->up),
                                 .down = tensor_of(&l->down)};
}

static struct device_model model_of(const struct model *m, const struct weights *vectors,
                                    const struct device_layer *layers,
                                    const struct device_heads *heads)
{
    const struct model_config *c = &m->config;
    return (struct device_model){.n_layers = c->n_layers,
                                 .dim = c->dim,
                                 .n_heads = c->n_heads,
                                 .n_kv_heads = c->n_kv_heads,
                                 .head_dim = c->head_dim,
                                 .ffn_dim = c->ffn_dim,
                                 .n_vocab = c->n_vocab,
                                 .n_rot = c->n_rot,
                                 .rms_eps = c->rms_eps,
                                 .rope_pairing = c->rope_pairing,
                                 .layers = layers,
                                 .output_norm = vectors->output_norm,
                                 .embedding = tensor_of(&m->token_embd),
                                 .output = tensor_of(&m->output),
                                 .heads = heads};
}

static int open_backend(struct engine_device *d, const struct model *m,
                        const struct weights *vectors, const struct device_heads *heads,
                        const struct device_options *o, struct err *e)
{
    struct device_layer *layers = calloc(m->config.n_layers, sizeof layers[0]);
    if (!layers)
        return ERR_SET(e, ERR_NOMEM, "no memory for %zu layers", m->config.n_layers);
    for (size_t i = 0; i < m->config.n_layers; i++)
        layers[i] = layer_of(&m->layers[i], &vectors->layers[i]);
    const struct device_model model = model_of(m, vectors, layers, heads);
    const int rc = d->backend->open(o, &model, &d->device, e);
    free(layers);
    return rc;
}

int engine_device_open(const char *name, const struct model *m, const struct weights *vectors,
                       const struct device_heads *heads, const struct device_options *o,
                       struct engine_device **out, struct err *e)
{
    *out = NULL;
    struct engine_device *d = calloc(1, sizeof *d);
    if (!d)
        return ERR_SET(e, ERR_NOMEM, "no memory for a device");
    int rc = 0;
    TRY_OUT(rc, device_load(name, &d->backend, e));
    TRY_OUT(rc, open_backend(d, m, vectors, heads, o, e));
    d->backend->info(d->device, &d->info);
    *out = d;
out:
    if (rc != 0)
        engine_device_close(d);
    return rc;
}

void engine_device_close(struct engine_device *d)
{
    if (!d)
        return;
    if (d->device)
        d->backend->close(d->device);
    free(d);
}

int engine_device_check(const struct engine_device *d, struct err *e)
{
    if (d->failure.code == 0)
        return 0;
    return ERR_SET(
        e, ERR_IO,
        "the device %s failed: %s; no answer of what it was computing is kept, start "
        "again to have it computed anew",
        d->info.name, d->failure.text);
}

/* ------------------------------------------------------------------ calls */

static bool is_well(const struct engine_device *d)
{
    return d->failure.code == 0;
}

/* A failure without a sentence is one all the same. */
static bool note(struct engine_device *d, int rc)
{
    if (rc != 0)
        ERR_SET(&d->failure, rc, "it does not say why");
    return rc == 0;
}

void engine_device_step(struct engine_device *d, const struct device_step *s)
{
    if (is_well(d))
        note(d, d->backend->step(d->device, s, &d->failure));
}

void engine_device_read_logits(struct engine_device *d, const int32_t *logits_rows, size_t n,
                               float *out)
{
    if (is_well(d))
        note(d, d->backend->read_logits(d->device, logits_rows, n, out, &d->failure));
}

void engine_device_read_best(struct engine_device *d, size_t n_later, int32_t *out)
{
    if (is_well(d))
        note(d, d->backend->read_best(d->device, n_later, out, &d->failure));
}

void engine_device_read_candidates(struct engine_device *d, struct device_candidates *out)
{
    if (is_well(d))
        note(d, d->backend->read_candidates(d->device, out, &d->failure));
}

void engine_device_read_hidden(struct engine_device *d, size_t logits_row, float *out)
{
    if (is_well(d))
        note(d, d->backend->read_hidden(d->device, logits_row, out, &d->failure));
}

void engine_device_wait(struct engine_device *d)
{
    if (is_well(d))
        note(d, d->backend->wait(d->device, &d->failure));
}

void engine_device_copy_page(struct engine_device *d, int32_t to, int32_t from)
{
    if (is_well(d))
        note(d, d->backend->copy_page(d->device, to, from, &d->failure));
}

void engine_device_move_token(struct engine_device *d, int32_t to, size_t to_slot, int32_t from,
                              size_t from_slot)
{
    if (is_well(d))
        note(d, d->backend->move_token(d->device, to, to_slot, from, from_slot, &d->failure));
}

bool engine_device_read_page(struct engine_device *d, int32_t page, void *out)
{
    return is_well(d) && note(d, d->backend->read_page(d->device, page, out, &d->failure));
}

bool engine_device_write_page(struct engine_device *d, int32_t page, const void *in)
{
    return is_well(d) && note(d, d->backend->write_page(d->device, page, in, &d->failure));
}

void engine_device_keep_hidden(struct engine_device *d, size_t n, const int32_t *logits_rows,
                               const int32_t *places)
{
    if (is_well(d))
        note(d, d->backend->keep_hidden(d->device, n, logits_rows, places, &d->failure));
}

bool engine_device_guess(struct engine_device *d, size_t n, const int32_t *places,
                         struct device_guess *out)
{
    return is_well(d) && note(d, d->backend->guess(d->device, n, places, out, &d->failure));
}
