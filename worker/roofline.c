#include "roofline.h"

#include "model/model.h"

static void count_tensor(const struct tensor *t, bool quantises, double *bytes, double *floats)
{
    const bool is_float = t->type == QUANT_F32 || t->type == QUANT_F16 || t->type == QUANT_BF16;
    /* A width that fills no block is multiplied in floats. */
    const bool is_byte = quantises && !is_float && t->n_cols % ACT_BLOCK == 0;
    *(is_byte ? bytes : floats) += (double)t->n_rows * (double)t->n_cols;
}

struct roofline_model roofline_count(const struct model *m, bool quantises)
{
    const struct model_config *c = &m->config;
    struct roofline_model out = {.attention_ops =
                                     4.0 * (double)(c->n_heads * c->head_dim * c->n_layers)};
    for (size_t i = 0; i < c->n_layers; i++) {
        const struct model_layer *l = &m->layers[i];
        const struct tensor *const tensors[] = {&l->wq,   &l->wk, &l->wv,  &l->wo,
                                                &l->gate, &l->up, &l->down};
        for (size_t j = 0; j < sizeof tensors / sizeof tensors[0]; j++)
            count_tensor(tensors[j], quantises, &out.layer_byte_weights,
                         &out.layer_float_weights);
    }
    count_tensor(&m->output, quantises, &out.head_byte_weights, &out.head_float_weights);
    return out;
}

double roofline_compute_s(const struct roofline_model *m, const struct roofline_step *step,
                          const struct roofline_peaks *peaks)
{
    const double byte_ops =
        2 * (step->rows * m->layer_byte_weights + step->logits_rows * m->head_byte_weights);
    const double float_ops =
        2 * (step->rows * m->layer_float_weights + step->logits_rows * m->head_float_weights);
    return byte_ops / peaks->int8 + float_ops / peaks->f32 +
           step->row_keys * m->attention_ops / peaks->attention;
}

double roofline_read_s(const struct roofline_model *m, const struct roofline_step *step,
                       const struct roofline_peaks *peaks)
{
    return (m->weights_bytes + step->kv_tokens * m->kv_token_bytes) / peaks->read;
}

double roofline_s(const struct roofline_model *m, const struct roofline_step *step,
                  const struct roofline_peaks *peaks)
{
    const double compute_s = roofline_compute_s(m, step, peaks);
    const double read_s = roofline_read_s(m, step, peaks);
    return compute_s > read_s ? compute_s : read_s;
}

struct roofline_step roofline_prefill(double n)
{
    return (struct roofline_step){
        .rows = n, .logits_rows = 1, .row_keys = n * (n + 1) / 2, .kv_tokens = n};
}

struct roofline_step roofline_decode(double n, double row_keys, double shared_tokens)
{
    return (struct roofline_step){.rows = n,
                                  .logits_rows = n,
                                  .row_keys = row_keys,
                                  .kv_tokens = row_keys - (n - 1) * shared_tokens};
}
