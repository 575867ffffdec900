#include "device_check/roof.h"

static double weights_of(const struct tensor *t)
{
    return (double)t->n_rows * (double)t->n_cols;
}

static double bytes_of(const struct tensor *t)
{
    return (double)t->n_rows * (double)quant_row_bytes(t->type, t->n_cols);
}

struct roof roof_of(const struct model *m, enum kv_type kv_type)
{
    const struct model_config *c = &m->config;
    const double element_bytes = kv_type == KV_F32 ? 4 : 2;
    struct roof out = {.head_weights = weights_of(&m->output),
                       .head_bytes = bytes_of(&m->output),
                       .attention_ops = 4.0 * (double)(c->n_heads * c->head_dim * c->n_layers),
                       .kv_token_bytes = 2.0 *
                                         (double)(c->n_kv_heads * c->head_dim * c->n_layers) *
                                         element_bytes};
    for (size_t i = 0; i < c->n_layers; i++) {
        const struct model_layer *l = &m->layers[i];
        const struct tensor *const tensors[] = {&l->wq,   &l->wk, &l->wv,  &l->wo,
                                                &l->gate, &l->up, &l->down};
        for (size_t j = 0; j < sizeof tensors / sizeof tensors[0]; j++) {
            out.layer_weights += weights_of(tensors[j]);
            out.layer_bytes += bytes_of(tensors[j]);
        }
    }
    return out;
}

/* Adds a part to both. */
static void add(double ops, double bytes, const struct device_peaks *peaks, double *seconds,
                double *reading)
{
    const double compute_s = ops / peaks->product, read_s = bytes / peaks->copy;
    *seconds += compute_s > read_s ? compute_s : read_s;
    *reading += compute_s > read_s ? 0 : read_s;
}

double roof_seconds(const struct roof *r, const struct rig_sample *step,
                    const struct device_peaks *peaks, bool *is_read_bound)
{
    double seconds = 0, reading = 0;
    add(2 * step->rows * r->layer_weights, r->layer_bytes, peaks, &seconds, &reading);
    add(2 * step->logits_rows * r->head_weights, r->head_bytes, peaks, &seconds, &reading);
    add(step->row_keys * r->attention_ops, step->kv_tokens * r->kv_token_bytes, peaks, &seconds,
        &reading);
    *is_read_bound = 2 * reading > seconds;
    return seconds;
}

double roof_bytes(const struct roof *r, const struct rig_sample *step)
{
    return r->layer_bytes + r->head_bytes + step->kv_tokens * r->kv_token_bytes;
}
