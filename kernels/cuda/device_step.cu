/*
 * A step: its metadata goes over in one copy, then kernels follow each other on the stream.
 *
 *     x = embedding rows
 *     per layer:  hidden = norm(x);  qkv = hidden * Wqkv;  q rotated, keys and values written;
 *                 mixed = attention(q);  x += mixed * Wout;
 *                 hidden = norm(x);  gate|up;  inner = silu(gate) . up;  x += inner * Wdown
 *     head:       last = norm(x) of the rows that want logits;  logits = last * Woutput;
 *                 the greatest of each, and the best candidates of those that want some
 *
 * Launches depend on a step by its shape (device_int.cuh) alone, and read the rest of it from
 * the metadata: so that they can be captured (device_graph.cu).
 */
#include <math.h>

#include "device_int.cuh"

extern "C" {
#include "base/check.h"
#include "base/limits.h"
}

/* ------------------------------------------------------------------ the layers */

/* One step's work, as it is handed from part to part. */
struct pass {
    device *d;
    const device_step *s;
    step_shape as;
    step_on_device on;
    attend_args attend; /* of any layer */
    struct err *e;
};

int device_multiply(device *d, product_fn *f, const fused *w, const bf16 *x, int n_rows,
                    product_out kind, void *y, struct err *e)
{
    const size_t element = product_out_bytes(kind);
    for (int i = 0; i < w->n_parts; i++) {
        const int column = w->columns[i];
        const float *bias = w->bias ? w->bias + column : NULL;
        TRY(f(d->products_of, d->stream, w->parts[i], x, n_rows, bias, kind,
              (uint8_t *)y + (size_t)column * element, w->n_rows, e));
    }
    return 0;
}

static int multiply(const pass *p, const fused *w, const bf16 *x, product_out kind, void *y)
{
    return device_multiply(p->d, product, w, x, p->as.n_rows, kind, y, p->e);
}

static void norm(const pass *p, const float *w)
{
    device *d = p->d;
    rmsnorm(d->stream, d->b.x, NULL, w, d->model.rms_eps, p->as.n_rows, (int)d->model.dim,
            d->b.hidden, NULL);
}

static void rotate_heads(const pass *p, const layer *l, int index)
{
    device *d = p->d;
    split_heads_args a = {};
    a.qkv = d->b.qkv;
    a.n_rows = p->as.n_rows;
    a.n_heads = (int)d->model.n_heads;
    a.n_kv_heads = (int)d->model.n_kv_heads;
    a.head_dim = (int)d->model.head_dim;
    a.n_rot = (int)d->model.n_rot;
    a.pairing = d->model.rope_pairing;
    a.cos_sin = p->on.cos_sin;
    a.q_norm = l->q_norm;
    a.k_norm = l->k_norm;
    a.eps = d->model.rms_eps;
    a.kv_slots = p->on.kv_slots;
    a.layer = index;
    a.kv = d->kv;
    a.q = d->b.q;
    split_heads(d->stream, a);
}

static void mix(const pass *p, int index)
{
    attend_args a = p->attend;
    a.layer = index;
    attend(p->d->stream, a);
}

static int run_layer(const pass *p, int index)
{
    device *d = p->d;
    const layer *l = &d->layers[index];
    norm(p, l->attn_norm);
    TRY(multiply(p, &l->qkv, d->b.hidden, PRODUCT_F32, d->b.qkv));
    rotate_heads(p, l, index);
    mix(p, index);
    TRY(multiply(p, &l->out, d->b.mixed, PRODUCT_F32_ADD, d->b.x));
    norm(p, l->ffn_norm);
    TRY(multiply(p, &l->gate_up, d->b.hidden, PRODUCT_BF16, d->b.gate_up));
    silu_mul(d->stream, d->b.gate_up, p->as.n_rows, (int)d->model.ffn_dim, d->b.inner);
    return multiply(p, &l->down, d->b.inner, PRODUCT_F32_ADD, d->b.x);
}

static int run_layers(const pass *p)
{
    device *d = p->d;
    if (p->s->n_layers == 0)
        return 0;
    embed(d->stream, d->embedding, p->on.tokens, p->as.n_rows, d->b.x, d->b.best);
    for (size_t i = 0; i < p->s->n_layers; i++)
        TRY(run_layer(p, (int)((p->s->first_layer + i) % d->model.n_layers)));
    return 0;
}

/* The rows' bests are there. */
static void sample(const pass *p)
{
    device *d = p->d;
    if (p->as.n_candidates > 0)
        find_candidates(d->stream, d->b.logits, d->b.best, p->on.temperatures, p->as.n_logits,
                        p->as.n_candidates, (int)d->model.n_vocab, d->b.candidates_scratch,
                        d->b.candidates);
}

static int run_head(const pass *p)
{
    device *d = p->d;
    const int n = p->as.n_logits, n_vocab = (int)d->model.n_vocab;
    if (!p->s->has_head || n == 0)
        return 0;
    rmsnorm(d->stream, d->b.x, p->on.logits_rows, d->output_norm, d->model.rms_eps, n,
            (int)d->model.dim, d->b.last, d->b.last_f32);
    TRY(product(d->products_of, d->stream, d->output, d->b.last, n, NULL, PRODUCT_F32,
                d->b.logits, n_vocab, p->e));
    argmax(d->stream, d->b.logits, n, n_vocab, d->b.best, d->b.best_scratch);
    sample(p);
    return 0;
}

/* All launches of the step; a device_work. */
static int run_pass(const void *context, struct err *e)
{
    pass p = *(const pass *)context;
    p.e = e;
    TRY(run_layers(&p));
    return run_head(&p);
}

static int n_wanting_candidates(const device_step *s)
{
    int n = 0;
    for (size_t i = 0; i < s->n_logits; i++)
        n += s->temperatures[i] > 0.0f;
    return n;
}

/* For the host; behind a graph rather than in it: where it goes to is for each step to say. */
static void send_result(device *d, const device_step *s)
{
    d->n_logits = s->has_head ? s->n_logits : 0;
    if (d->n_logits == 0)
        return;
    d->last_result = (d->last_result + 1) % RESULTS;
    result *r = &d->results[d->last_result];
    r->n_logits = s->n_logits;
    r->step = d->counters.steps;
    device_fetch(d, r->best, d->b.best, s->n_logits * sizeof r->best[0]);
    event_record(r->is_there, d->stream);
    if (n_wanting_candidates(s) > 0)
        device_fetch(d, d->candidates, d->b.candidates, s->n_logits * sizeof d->candidates[0]);
}

/* ------------------------------------------------------------------ the step */

static int block_queries_max(const device *d, const device_step *s)
{
    int32_t n_rows = 0;
    for (size_t i = 0; i < s->n_blocks; i++)
        n_rows = s->blocks[i].n_rows > n_rows ? s->blocks[i].n_rows : n_rows;
    return n_rows * (int)(d->model.n_heads / d->model.n_kv_heads);
}

/* That any row sees keys of. */
static int n_pages_max(const device_step *s)
{
    int32_t position = 0;
    for (size_t i = 0; i < s->n_attend_rows; i++)
        position =
            s->attend_rows[i].position > position ? s->attend_rows[i].position : position;
    return position / KV_PAGE_TOKENS + 1;
}

static void check_step(const device *d, const device_step *s)
{
    const device_options *o = &d->options;
    ASSERT(s->n_rows >= 1 && s->n_rows <= o->n_rows_max && s->n_attend_rows == s->n_rows);
    ASSERT(s->n_logits <= o->n_logits_max && s->n_pages <= o->n_page_refs_max);
    ASSERT(s->n_slots <= o->n_slots_max && s->n_spans <= SPANS_OF_ROW * s->n_rows);
    for (size_t i = 0; i < s->n_rows; i++)
        ASSERT(s->tokens[i] >= device_best_of(d->n_logits) + 1);
}

/* Nothing rounded: the step as it is. */
static step_shape shape_of(const device_step *s)
{
    step_shape as = {};
    as.n_rows = (int)s->n_rows;
    as.n_logits = (int)s->n_logits;
    as.n_candidates = n_wanting_candidates(s);
    as.n_blocks = (int)s->n_blocks;
    as.n_spans = (int)s->n_spans;
    as.n_branches = (int)s->n_branches;
    as.n_slots = (int)s->n_slots;
    return as;
}

/* All but the places of the metadata. */
static attend_args attention_of(const device *d, const device_step *s, const attend_keys &keys)
{
    attend_args a = {};
    a.q = d->b.q;
    a.n_heads = (int)d->model.n_heads;
    a.n_kv_heads = (int)d->model.n_kv_heads;
    a.head_dim = (int)d->model.head_dim;
    a.scale = (float)(1.0 / sqrt((double)d->model.head_dim));
    a.kv = d->kv;
    a.n_blocks = (int)s->n_blocks;
    a.n_attend_rows = (int)s->n_attend_rows;
    a.block_queries_max = block_queries_max(d, s);
    a.n_pages_max = n_pages_max(s);
    a.split_keys = keys.read;
    a.shared_bytes_max = d->shared_bytes_max;
    a.n_processors = d->n_processors;
    a.scratch = d->b.splits;
    a.scratch_bytes = device_splits_bytes(&d->options, &d->model, d->n_processors);
    a.exact = d->options.exact;
    a.mixed = d->b.mixed;
    return a;
}

static void place_attention(pass *p)
{
    p->attend.rows = p->on.rows;
    p->attend.spans = p->on.spans;
    p->attend.blocks = p->on.blocks;
    p->attend.branches = p->on.branches;
    p->attend.pages = p->on.pages;
    p->attend.slots = p->on.slots;
}

static int run_step(device *d, const device_step *s, struct err *e)
{
    const attend_keys keys = attend_keys_of(*s);
    const bool by_graph = device_is_for_graph(d, s);
    pass p = {};
    p.d = d;
    p.s = s;
    p.as = shape_of(s);
    p.attend = attention_of(d, s, keys);
    if (by_graph)
        device_round_shape(d, &p.as, &p.attend);
    TRY(device_copy_metadata(d, s, &p.as, &p.on, e));
    place_attention(&p);
    TRY(by_graph ? device_run_by_graph(d, &p.as, run_pass, &p, e) : run_pass(&p, e));
    attend_count_keys(d->kv, (int)d->model.n_heads, keys, s->n_layers);
    return 0;
}

int device_run_step(device *d, const device_step *s, struct err *e)
{
    check_step(d, s);
    count_into(&d->counters);
    const int rc = run_step(d, s, e);
    count_into(NULL);
    d->counters.steps++;
    if (rc != 0)
        return rc;
    send_result(d, s);
    return device_failure("a kernel cannot be launched", e);
}
