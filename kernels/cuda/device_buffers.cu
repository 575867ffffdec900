/* The memory of steps, taken when the device is opened: activations, and pinned memory for what
 * comes back. Its metadata's is device_meta.cu's. */
#include <stdlib.h>

#include "device_int.cuh"

/* Of logits on their way to the host, waited for together; a row at least. */
static const size_t STAGED_ROWS_BYTES = (size_t)16 << 20;

static int take_buffers(device *d, struct err *e)
{
    const device_model *m = &d->model;
    const size_t n_rows = d->options.n_rows_max, n_logits = d->options.n_logits_max;
    const size_t heads = m->n_heads * m->head_dim, kv = m->n_kv_heads * m->head_dim;
    const char *what = "activations";
    buffers *b = &d->b;
    TRY(device_take_array(d, n_rows * m->dim, what, &b->x, e));
    TRY(device_take_array(d, n_rows * m->dim, what, &b->hidden, e));
    TRY(device_take_array(d, n_rows * (heads + 2 * kv), what, &b->qkv, e));
    TRY(device_take_array(d, n_rows * heads, what, &b->q, e));
    TRY(device_take_array(d, n_rows * heads, what, &b->mixed, e));
    TRY(device_take_array(d, n_rows * 2 * m->ffn_dim, what, &b->gate_up, e));
    TRY(device_take_array(d, n_rows * m->ffn_dim, what, &b->inner, e));
    TRY(device_take_array(d, n_logits * m->dim, what, &b->last, e));
    TRY(device_take_array(d, n_logits * m->dim, what, &b->last_f32, e));
    TRY(device_take_array(d, n_logits * m->n_vocab, "logits", &b->logits, e));
    TRY(device_take(d, argmax_scratch_bytes(), what, &b->best_scratch, e));
    if (device_candidates_bytes(&d->options, m) > 0) {
        TRY(device_take_array(d, n_logits, "candidates", &b->candidates, e));
        TRY(device_take(d, candidates_scratch_bytes(n_logits, m->n_vocab), "candidates",
                        &b->candidates_scratch, e));
    }
    if (!d->options.exact)
        TRY(device_take_array(
            d, device_splits_bytes(&d->options, m, d->n_processors) / sizeof(float), what,
            &b->splits, e));
    return device_take_array(d, n_logits, what, &b->best, e);
}

/* Pinned, for what comes back. */
static int take_results(device *d, struct err *e)
{
    const size_t n_logits = d->options.n_logits_max;
    const size_t width = d->model.n_vocab > d->model.dim ? d->model.n_vocab : d->model.dim;
    const size_t n_fit = STAGED_ROWS_BYTES / (width * sizeof(float));
    d->n_rows_staged = n_fit < 1 ? 1 : n_fit < n_logits ? n_fit : n_logits;
    TRY(device_take_pinned_array(d, d->n_rows_staged * width, "rows of logits", &d->rows, e));
    TRY(device_take_pinned_array(d, n_logits, "candidates", &d->candidates, e));
    for (int i = 0; i < RESULTS; i++) {
        TRY(device_take_pinned_array(d, n_logits, "tokens", &d->results[i].best, e));
        d->results[i].is_there = event_open();
    }
    return device_failure("the device gives no events", e);
}

/* Of rows that fill up a shape nobody writes what attention gives. */
static int clear_mixed(device *d, struct err *e)
{
    const size_t n_max = GRAPH_ROWS_MAX;
    const size_t n_rows = d->options.n_rows_max < n_max ? d->options.n_rows_max : n_max;
    const size_t n = n_rows * d->model.n_heads * d->model.head_dim;
    void *zeros = calloc(n, sizeof(bf16));
    if (!zeros)
        return ERR_SET(e, ERR_NOMEM, "no memory to clear a device's activations");
    copy_to_device(d->stream, d->b.mixed, zeros, n * sizeof(bf16));
    free(zeros);
    return 0;
}

int device_buffers_open(device *d, struct err *e)
{
    TRY(take_buffers(d, e));
    TRY(device_meta_open(d, e));
    if (d->options.graphs)
        TRY(clear_mixed(d, e));
    return take_results(d, e);
}

void device_buffers_close(device *d)
{
    for (int i = 0; i < RESULTS; i++)
        if (d->results[i].is_there)
            event_close(d->results[i].is_there);
}
