#include "forward_rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

static void must(int rc, const struct err *e)
{
    if (rc != 0)
        fail_msg("%s", e->text);
}

void forward_rig_open(struct forward_rig *r, struct model *m, const char *isa, size_t n_threads,
                      enum kv_type kv_type, size_t n_pages)
{
    *r = (struct forward_rig){.model = m, .kv_type = kv_type};
    setenv("SHEAF_KERNELS", isa, 1);
    struct err e = {0};
    must(kernels_open(&r->kernels, &e), &e);
    must(pool_open(n_threads, &r->threads, &e), &e);
    must(weights_open(m, r->threads, &r->weights, &e), &e);
    const struct kvpool_shape shape = {.n_pages = n_pages,
                                       .n_layers = m->config.n_layers,
                                       .n_kv_heads = m->config.n_kv_heads,
                                       .head_dim = m->config.head_dim,
                                       .type = kv_type};
    must(kvpool_open(&shape, &r->kv, &e), &e);
}

void forward_rig_close(struct forward_rig *r)
{
    kvpool_close(r->kv);
    pool_close(r->threads);
    weights_close(&r->weights);
    model_close(r->model);
}

struct forward *forward_rig_pass(struct forward_rig *r, size_t n_rows_max,
                                 enum act_kind activations, bool shared_attention)
{
    const struct forward_options o = {.n_rows_max = n_rows_max,
                                      .n_logits_max = n_rows_max,
                                      .activations = activations,
                                      .kv_type = r->kv_type,
                                      .shared_attention = shared_attention,
                                      .drafts = true};
    struct forward *f = NULL;
    struct err e = {0};
    must(forward_open(r->model, &r->weights, &r->kernels, r->kv, r->threads, &o, &f, &e), &e);
    return f;
}

void forward_rig_run(struct forward *f, struct seq *seq, size_t begin, size_t end,
                     size_t n_logits)
{
    struct step_segment segment = {
        .seq = seq, .n_rows = end - begin, .position = begin, .n_logits = n_logits};
    const struct step_plan plan = {
        .segments = &segment, .n_segments = 1, .n_rows = end - begin, .n_logits = n_logits};
    if (plan.n_rows > 0)
        forward_run(f, &plan);
}

struct seq *forward_rig_seq(const int32_t *tokens, size_t n, size_t n_max)
{
    const struct seq_request req = {.prompt = tokens, .n_prompt = n, .max_tokens = n_max};
    struct seq *seq = NULL;
    struct err e = {0};
    must(seq_open(&req, n_max, &seq, &e), &e);
    return seq;
}
