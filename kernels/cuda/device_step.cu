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
 * Everything from the embedding to the head depends on the host's counts and on pointers alone.
 */
#include <math.h>
#include <string.h>

#include "device_int.cuh"

extern "C" {
#include "base/check.h"
#include "base/limits.h"
}

enum { SECTION_ALIGN = 16, SECTIONS = 11 };

/* Of logits on their way to the host, waited for together; a row at least. */
static const size_t STAGED_ROWS_BYTES = (size_t)16 << 20;

/* The step's metadata on the device. */
struct step_on_device {
    const int32_t *tokens, *kv_slots, *logits_rows, *pages, *slots;
    const float *cos_sin, *temperatures;
    const device_attend_row *rows;
    const device_span *spans;
    const device_block *blocks;
    const device_branch *branches;
};

/* ------------------------------------------------------------------ opening */

size_t device_step_bytes(const device_options *o, const device_model *m)
{
    const size_t row = 2 * sizeof(int32_t) + m->n_rot * sizeof(float) +
                       sizeof(device_attend_row) + 2 * sizeof(device_span) +
                       sizeof(device_block) + sizeof(device_branch);
    return o->n_rows_max * row +
           (o->n_logits_max + o->n_page_refs_max + o->n_slots_max) * sizeof(int32_t) +
           o->n_logits_max * sizeof(float) + SECTIONS * SECTION_ALIGN;
}

template <class T>
static int take_array(device *d, size_t n, const char *what, T **out, struct err *e)
{
    void *memory = NULL;
    TRY(device_take(d, n * sizeof(T), what, &memory, e));
    *out = (T *)memory;
    return 0;
}

static int take_buffers(device *d, struct err *e)
{
    const device_model *m = &d->model;
    const size_t n_rows = d->options.n_rows_max, n_logits = d->options.n_logits_max;
    const size_t heads = m->n_heads * m->head_dim, kv = m->n_kv_heads * m->head_dim;
    const char *what = "activations";
    buffers *b = &d->b;
    TRY(take_array(d, n_rows * m->dim, what, &b->x, e));
    TRY(take_array(d, n_rows * m->dim, what, &b->hidden, e));
    TRY(take_array(d, n_rows * (heads + 2 * kv), what, &b->qkv, e));
    TRY(take_array(d, n_rows * heads, what, &b->q, e));
    TRY(take_array(d, n_rows * heads, what, &b->mixed, e));
    TRY(take_array(d, n_rows * 2 * m->ffn_dim, what, &b->gate_up, e));
    TRY(take_array(d, n_rows * m->ffn_dim, what, &b->inner, e));
    TRY(take_array(d, n_logits * m->dim, what, &b->last, e));
    TRY(take_array(d, n_logits * m->dim, what, &b->last_f32, e));
    TRY(take_array(d, n_logits * m->n_vocab, "logits", &b->logits, e));
    TRY(device_take(d, argmax_scratch_bytes(), what, &b->best_scratch, e));
    if (device_candidates_bytes(&d->options, m) > 0) {
        TRY(take_array(d, n_logits, "candidates", &b->candidates, e));
        TRY(device_take(d, candidates_scratch_bytes(n_logits, m->n_vocab), "candidates",
                        &b->candidates_scratch, e));
    }
    if (!d->options.exact)
        TRY(take_array(d, device_splits_bytes(&d->options, m, d->n_processors) / sizeof(float),
                       what, &b->splits, e));
    return take_array(d, n_logits, what, &b->best, e);
}

/* Pinned, for what comes back. */
static int take_results(device *d, struct err *e)
{
    const size_t n_logits = d->options.n_logits_max;
    const size_t width = d->model.n_vocab > d->model.dim ? d->model.n_vocab : d->model.dim;
    const size_t n_fit = STAGED_ROWS_BYTES / (width * sizeof(float));
    d->n_rows_staged = n_fit < 1 ? 1 : n_fit < n_logits ? n_fit : n_logits;
    void *memory = NULL;
    TRY(device_take_pinned(d, d->n_rows_staged * width * sizeof(float), "rows of logits",
                           &memory, e));
    d->rows = (float *)memory;
    TRY(device_take_pinned(d, n_logits * sizeof d->candidates[0], "candidates", &memory, e));
    d->candidates = (device_candidates *)memory;
    TRY(device_take_pinned(d, n_logits * sizeof d->best[0], "tokens", &memory, e));
    d->best = (int32_t *)memory;
    return 0;
}

int device_step_open(device *d, struct err *e)
{
    TRY(take_buffers(d, e));
    d->meta.bytes = device_step_bytes(&d->options, &d->model);
    for (int i = 0; i < STAGES; i++) {
        void *memory = NULL;
        TRY(device_take(d, d->meta.bytes, "a step's metadata", &memory, e));
        d->meta.on_device[i] = (uint8_t *)memory;
        TRY(device_take_pinned(d, d->meta.bytes, "a step's metadata", &memory, e));
        d->meta.pinned[i] = (uint8_t *)memory;
    }
    return take_results(d, e);
}

/* ------------------------------------------------------------------ metadata */

/* Puts an array behind the others and says where it will be on the device. */
template <class T> static const T *put(stage *m, const T *array, size_t n)
{
    const size_t at = m->used, bytes = n * sizeof(T);
    ASSERT(at + bytes <= m->bytes);
    if (n > 0)
        memcpy(m->pinned[m->current] + at, array, bytes);
    m->used = (at + bytes + SECTION_ALIGN - 1) / SECTION_ALIGN * SECTION_ALIGN;
    return (const T *)(m->on_device[m->current] + at);
}

/* A stage is filled again only when its last copy is known to have ended. */
static int next_stage(device *d, struct err *e)
{
    stage *m = &d->meta;
    if (m->n_in_flight == STAGES)
        TRY(device_settle(d, "a step before failed", e));
    m->current = (m->current + 1) % STAGES;
    m->n_in_flight++;
    m->used = 0;
    return 0;
}

static int copy_metadata(device *d, const device_step *s, step_on_device *out, struct err *e)
{
    TRY(next_stage(d, e));
    stage *m = &d->meta;
    out->tokens = put(m, s->tokens, s->n_rows);
    out->kv_slots = put(m, s->kv_slots, s->n_rows);
    out->cos_sin = put(m, s->cos_sin, s->n_rows * d->model.n_rot);
    out->rows = put(m, s->attend_rows, s->n_attend_rows);
    out->spans = put(m, s->spans, s->n_spans);
    out->blocks = put(m, s->blocks, s->n_blocks);
    out->branches = put(m, s->branches, s->n_branches);
    out->pages = put(m, s->pages, s->n_pages);
    out->slots = put(m, s->slots, s->n_slots);
    out->logits_rows = put(m, s->logits_rows, s->n_logits);
    out->temperatures = put(m, s->temperatures, s->n_logits);
    copy_to_device(d->stream, m->on_device[m->current], m->pinned[m->current], m->used);
    d->counters.copies++;
    return 0;
}

/* ------------------------------------------------------------------ the layers */

/* One step's work, as it is handed from part to part. */
struct pass {
    device *d;
    const device_step *s;
    step_on_device on;
    int n_rows;
    attend_keys keys;
    int block_queries_max, n_pages_max;
    struct err *e;
};

static int multiply(const pass *p, const fused *w, const bf16 *x, product_out kind, void *y)
{
    device *d = p->d;
    const size_t element = kind == PRODUCT_BF16 ? sizeof(bf16) : sizeof(float);
    for (int i = 0; i < w->n_parts; i++) {
        const int column = w->columns[i];
        const float *bias = w->bias ? w->bias + column : NULL;
        TRY(product(d->products_of, d->stream, w->parts[i], x, p->n_rows, bias, kind,
                    (uint8_t *)y + (size_t)column * element, w->n_rows, p->e));
    }
    return 0;
}

static void norm(const pass *p, const float *w)
{
    device *d = p->d;
    rmsnorm(d->stream, d->b.x, NULL, w, d->model.rms_eps, p->n_rows, (int)d->model.dim,
            d->b.hidden, NULL);
}

static void rotate_heads(const pass *p, const layer *l, int index)
{
    device *d = p->d;
    heads_args a = {};
    a.qkv = d->b.qkv;
    a.n_rows = p->n_rows;
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
    device *d = p->d;
    attend_args a = {};
    a.q = d->b.q;
    a.n_heads = (int)d->model.n_heads;
    a.n_kv_heads = (int)d->model.n_kv_heads;
    a.head_dim = (int)d->model.head_dim;
    a.scale = (float)(1.0 / sqrt((double)d->model.head_dim));
    a.kv = d->kv;
    a.layer = index;
    a.rows = p->on.rows;
    a.spans = p->on.spans;
    a.blocks = p->on.blocks;
    a.branches = p->on.branches;
    a.pages = p->on.pages;
    a.slots = p->on.slots;
    a.n_blocks = (int)p->s->n_blocks;
    a.n_attend_rows = (int)p->s->n_attend_rows;
    a.block_queries_max = p->block_queries_max;
    a.n_pages_max = p->n_pages_max;
    a.shared_bytes_max = d->shared_bytes_max;
    a.n_processors = d->n_processors;
    a.scratch = d->b.splits;
    a.scratch_bytes = device_splits_bytes(&d->options, &d->model, d->n_processors);
    a.exact = d->options.exact;
    a.mixed = d->b.mixed;
    a.keys_read = p->keys.read;
    a.row_keys = p->keys.seen;
    attend(d->stream, a);
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
    silu_mul(d->stream, d->b.gate_up, p->n_rows, (int)d->model.ffn_dim, d->b.inner);
    return multiply(p, &l->down, d->b.inner, PRODUCT_F32_ADD, d->b.x);
}

static int run_layers(const pass *p)
{
    device *d = p->d;
    if (p->s->n_layers == 0)
        return 0;
    embed(d->stream, d->embedding, p->on.tokens, p->n_rows, d->b.x);
    for (size_t i = 0; i < p->s->n_layers; i++)
        TRY(run_layer(p, (int)((p->s->first_layer + i) % d->model.n_layers)));
    return 0;
}

static int n_wanting_candidates(const device_step *s)
{
    int n = 0;
    for (size_t i = 0; i < s->n_logits; i++)
        n += s->temperatures[i] > 0.0f;
    return n;
}

/* The rows' bests are there. */
static void sample(const pass *p)
{
    device *d = p->d;
    const int n = (int)p->s->n_logits, n_wanted = n_wanting_candidates(p->s);
    if (n_wanted == 0)
        return;
    find_candidates(d->stream, d->b.logits, d->b.best, p->on.temperatures, n, n_wanted,
                    (int)d->model.n_vocab, d->b.candidates_scratch, d->b.candidates);
    device_fetch(d, d->candidates, d->b.candidates, (size_t)n * sizeof d->candidates[0]);
}

static int run_head(const pass *p)
{
    device *d = p->d;
    const int n = (int)p->s->n_logits, n_vocab = (int)d->model.n_vocab;
    if (!p->s->has_head || n == 0)
        return 0;
    rmsnorm(d->stream, d->b.x, p->on.logits_rows, d->output_norm, d->model.rms_eps, n,
            (int)d->model.dim, d->b.last, d->b.last_f32);
    TRY(product(d->products_of, d->stream, d->output, d->b.last, n, NULL, PRODUCT_F32,
                d->b.logits, n_vocab, p->e));
    argmax(d->stream, d->b.logits, n, n_vocab, d->b.best, d->b.best_scratch);
    device_fetch(d, d->best, d->b.best, (size_t)n * sizeof d->best[0]);
    sample(p);
    return 0;
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
    ASSERT(s->n_slots <= o->n_slots_max && s->n_spans <= 2 * s->n_rows);
}

int device_run_step(device *d, const device_step *s, struct err *e)
{
    check_step(d, s);
    pass p = {};
    p.d = d;
    p.s = s;
    p.n_rows = (int)s->n_rows;
    p.keys = attend_keys_of(*s);
    p.block_queries_max = block_queries_max(d, s);
    p.n_pages_max = n_pages_max(s);
    p.e = e;
    count_into(&d->counters);
    int rc = copy_metadata(d, s, &p.on, e);
    if (rc == 0)
        rc = run_layers(&p);
    if (rc == 0)
        rc = run_head(&p);
    count_into(NULL);
    d->counters.steps++;
    d->n_logits = s->has_head ? s->n_logits : 0;
    return rc != 0 ? rc : device_failure("a kernel cannot be launched", e);
}
