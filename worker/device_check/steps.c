/* The kinds of steps that a night of RAG jobs consists of, measured. */
#include <jansson.h>

#include "device_check/check.h"
#include "device_check/print.h"
#include "device_check/roof.h"

static const char *const families[DEVICE_N_FAMILIES] = {
    [DEVICE_EMBED] = "embed",     [DEVICE_NORM] = "norm",
    [DEVICE_SILU] = "silu",       [DEVICE_ARGMAX] = "argmax",
    [DEVICE_SAMPLE] = "sample",   [DEVICE_SPLIT_HEADS] = "heads",
    [DEVICE_ATTEND] = "attend",   [DEVICE_PAGES] = "pages",
    [DEVICE_PRODUCT] = "product", [DEVICE_DEQUANTIZE] = "dequantize",
    [DEVICE_GUESS] = "guess",
};

struct steps {
    const struct check_options *options;
    const struct model *model;
    struct roof roof;
    struct device_peaks peaks; /* 0: not known */
};

/* ------------------------------------------------------------------ lines */

static json_t *cost_json(const struct device_counters *c)
{
    json_t *of = json_object();
    for (size_t i = 0; i < DEVICE_N_FAMILIES; i++)
        json_object_set_new(
            of, families[i],
            json_pack("{s:I, s:I, s:I, s:I}", "launches", (json_int_t)c->of[i].launches,
                      "bytes_read", (json_int_t)c->of[i].bytes_read, "bytes_written",
                      (json_int_t)c->of[i].bytes_written, "flops", (json_int_t)c->of[i].flops));
    return json_pack(
        "{s:I, s:I, s:I, s:I, s:I, s:I, s:o}", "steps", (json_int_t)c->steps, "copies",
        (json_int_t)c->copies, "graphs_captured", (json_int_t)c->graphs_captured,
        "graphs_replayed", (json_int_t)c->graphs_replayed, "graph_launches",
        (json_int_t)c->graph_launches, "bytes_to_host", (json_int_t)c->bytes_to_host, "of", of);
}

static json_t *model_json(const struct model *m)
{
    const struct model_config *c = &m->config;
    return json_pack("{s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:b}", "name", m->name,
                     "quant", m->quant, "layers", (json_int_t)c->n_layers, "dim",
                     (json_int_t)c->dim, "heads", (json_int_t)c->n_heads, "kv_heads",
                     (json_int_t)c->n_kv_heads, "head_dim", (json_int_t)c->head_dim, "ffn_dim",
                     (json_int_t)c->ffn_dim, "vocabulary", (json_int_t)c->n_vocab, "tied",
                     (int)m->tied);
}

static int print_head(const struct steps *s, const struct rig *r, struct err *e)
{
    const struct engine_plan plan = engine_plan(r->engine);
    return print_line(
        json_pack("{s:s, s:s, s:s, s:I, s:I, s:I, s:f, s:f, s:o}", "what", "device", "kernels",
                  plan.kernels, "device", plan.device ? plan.device : "CPU", "weights_bytes",
                  (json_int_t)plan.weights_bytes, "kv_bytes", (json_int_t)plan.kv_bytes,
                  "activations_bytes", (json_int_t)plan.activations_bytes, "copy_peak",
                  s->peaks.copy, "product_peak", s->peaks.product, "model",
                  model_json(s->model)),
        e);
}

static int print_sample(const struct steps *s, const char *what, const struct rig *r,
                        size_t n_groups, size_t group_size, const struct rig_sample *sample,
                        struct err *e)
{
    json_t *line = json_pack(
        "{s:s, s:b, s:b, s:I, s:I, s:I, s:I, s:I, s:I, s:f, s:f, s:f, s:f, s:f, s:f}", "what",
        what, "shares", (int)r->options.shares, "graphs", (int)r->options.graphs,
        "prefix_tokens", (json_int_t)r->options.prefix_tokens, "step_tokens",
        (json_int_t)r->options.step_tokens, "groups", (json_int_t)n_groups, "group_size",
        (json_int_t)group_size, "times", (json_int_t)sample->n_times, "steps",
        (json_int_t)sample->n_steps, "seconds", sample->seconds, "rows", sample->rows,
        "logits_rows", sample->logits_rows, "row_keys", sample->row_keys, "kv_tokens",
        sample->kv_tokens, "roof_bytes", roof_bytes(&s->roof, sample));
    if (s->peaks.copy > 0) {
        bool is_read_bound;
        const double least = roof_seconds(&s->roof, sample, &s->peaks, &is_read_bound);
        json_object_set_new(line, "roof_seconds", json_real(least));
        json_object_set_new(line, "bound",
                            json_string(is_read_bound ? "reading" : "computing"));
    }
    if (sample->has_cost)
        json_object_set_new(line, "cost", cost_json(&sample->cost));
    return print_line(line, e);
}

/* ------------------------------------------------------------------ measuring */

static int prefill_all(const struct steps *s, struct rig *r, struct err *e)
{
    for (size_t i = 0; i < r->options.n_groups; i++) {
        struct rig_sample sample;
        TRY(rig_prefill(r, i, &sample, e));
        TRY(print_sample(s, "prefill", r, 1, 1, &sample, e));
    }
    return 0;
}

static int decode(const struct steps *s, struct rig *r, size_t n_groups, size_t group_size,
                  struct err *e)
{
    for (size_t i = 0; i < s->options->repeats; i++) {
        struct rig_sample sample;
        TRY(rig_decode(r, n_groups, group_size, &sample, e));
        TRY(print_sample(s, "decode", r, n_groups, group_size, &sample, e));
    }
    return 0;
}

static int run_shared(const struct steps *s, struct rig *r, struct err *e)
{
    const size_t n_groups = r->options.n_groups, size = r->options.group_size;
    TRY(print_head(s, r, e));
    TRY(prefill_all(s, r, e));
    TRY(decode(s, r, 1, 1, e));
    if (n_groups > 1)
        TRY(decode(s, r, 1, size, e));
    return decode(s, r, n_groups, size, e);
}

static int run_apart(const struct steps *s, struct rig *r, struct err *e)
{
    TRY(prefill_all(s, r, e));
    return decode(s, r, r->options.n_groups, r->options.group_size, e);
}

/* One sequence, whose launches take longest beside what they do. */
static int run_launches(const struct steps *s, struct rig *r, struct err *e)
{
    TRY(prefill_all(s, r, e));
    return decode(s, r, 1, 1, e);
}

typedef int run_fn(const struct steps *s, struct rig *r, struct err *e);

static int run(const struct steps *s, const struct rig_options *o, run_fn *measure,
               struct err *e)
{
    struct rig r;
    TRY(rig_open(&r, s->model, o, e));
    const int rc = measure(s, &r, e);
    rig_close(&r);
    return rc;
}

static int run_all(const struct steps *s, struct err *e)
{
    struct rig_options o = s->options->rig;
    o.shares = true;
    TRY(run(s, &o, run_shared, e));
    o.shares = false;
    TRY(run(s, &o, run_apart, e));
    if (!o.graphs)
        return 0;
    o.shares = true;
    o.graphs = false;
    o.n_groups = o.group_size = 1;
    return run(s, &o, run_launches, e);
}

static int measure_peaks(struct steps *s, struct err *e)
{
    const struct rig_options *o = &s->options->rig;
    const struct device_backend *backend;
    if (s->options->peaks.copy_bytes == 0)
        return 0;
    TRY(device_load(o->device, &backend, e));
    return backend->peaks(o->ordinal, &s->options->peaks, &s->peaks, e);
}

int check_steps(const struct check_options *o, struct err *e)
{
    struct steps s = {.options = o};
    struct model *m = NULL;
    int rc = 0;
    TRY_OUT(rc, measure_peaks(&s, e));
    TRY_OUT(rc, model_open(o->model, &m, e));
    s.model = m;
    s.roof = roof_of(m, KV_BF16);
    TRY_OUT(rc, run_all(&s, e));
out:
    model_close(m);
    return rc;
}
