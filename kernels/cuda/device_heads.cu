/*
 * Heads beside the model. Hidden rows stay on the device: those behind tokens that were drawn
 * are kept, each in a place that the host names, and all that comes back later is the best few
 * tokens of each head.
 *
 *     kept rows [n, D]  -- a product for all heads, x + silu() -->  [heads * n, D]
 *                       -- further blocks, a product each head --> [heads * n, D]
 *                       -- a product each output -->  logits  -->  the best few
 *
 * Logits take the memory of a step's, which nobody reads any more; as many rows at once as that
 * holds. In exact mode what a head says does not depend on the places beside it.
 */
#include <stdlib.h>
#include <string.h>

#include "device_int.cuh"

extern "C" {
#include "base/check.h"
}

static const char *const HEADS_FAILED = "the heads cannot be run";

/* ------------------------------------------------------------------ opening */

/* Of a place, for all heads. */
static size_t place_bytes(size_t dim, size_t n_heads)
{
    return dim * (2 * sizeof(float) + sizeof(bf16)) +
           n_heads * (dim * (2 * sizeof(float) + sizeof(bf16)) +
                      DEVICE_GUESSES * sizeof(device_guess));
}

size_t device_heads_bytes(const device_options *o, const device_model *m)
{
    if (!m->heads)
        return 0;
    return o->n_kept_max * place_bytes(m->dim, m->heads->n_heads) + best_few_scratch_bytes();
}

static int take_buffers(device *d, struct err *e)
{
    guessing *h = &d->heads;
    const size_t n = d->options.n_kept_max, dim = d->model.dim;
    const size_t n_rows = n * (size_t)h->n_heads;
    const char *what = "what heads compute";
    TRY(device_take_array(d, n * dim, what, &h->kept, e));
    TRY(device_take_array(d, n * dim, what, &h->x, e));
    TRY(device_take_array(d, n * dim, what, &h->x_rounded, e));
    TRY(device_take_array(d, n_rows * dim, what, &h->products, e));
    TRY(device_take_array(d, n_rows * dim, what, &h->states, e));
    TRY(device_take_array(d, n_rows * dim, what, &h->states_rounded, e));
    TRY(device_take_array(d, n_rows, what, &h->best, e));
    TRY(device_take(d, best_few_scratch_bytes(), what, &h->best_scratch, e));
    TRY(device_take_pinned_array(d, n_rows, "guesses of heads", &h->pinned, e));
    h->from_rows = (int32_t *)calloc(n_rows, sizeof h->from_rows[0]);
    h->to_rows = (int32_t *)calloc(n_rows, sizeof h->to_rows[0]);
    if (!h->from_rows || !h->to_rows)
        return ERR_SET(e, ERR_NOMEM, "no memory for rows of heads");
    return 0;
}

int device_heads_open(device *d, struct err *e)
{
    if (d->heads.n_heads == 0)
        return 0;
    ASSERT(d->options.n_kept_max >= 1 && d->options.n_kept_max <= d->options.n_rows_max);
    return take_buffers(d, e);
}

/* ------------------------------------------------------------------ rows that are kept */

static bool are_below(const int32_t *numbers, size_t n, size_t limit)
{
    for (size_t i = 0; i < n; i++)
        if (numbers[i] < 0 || (size_t)numbers[i] >= limit)
            return false;
    return true;
}

int device_keep_hidden(device *d, size_t n, const int32_t *logits_rows, const int32_t *places,
                       struct err *e)
{
    ASSERT(d->heads.n_heads > 0 && are_below(logits_rows, n, d->n_logits) &&
           are_below(places, n, d->options.n_kept_max));
    count_into(&d->counters);
    move_rows(d->stream, d->b.last_f32, logits_rows, places, (int)n, (int)d->model.dim,
              d->heads.kept, NULL);
    count_into(NULL);
    return device_failure("hidden rows cannot be kept", e);
}

/* ------------------------------------------------------------------ a run */

/* Every head's rows begin with the same; without blocks they are all there is to multiply. */
static void gather(device *d, const int32_t *places, int n)
{
    guessing *h = &d->heads;
    const int n_copies = h->n_blocks == 0 ? h->n_heads : 1;
    for (int i = 0; i < n_copies * n; i++) {
        h->from_rows[i] = places[i % n];
        h->to_rows[i] = i;
    }
    const bool has_blocks = h->n_blocks > 0;
    move_rows(d->stream, h->kept, h->from_rows, h->to_rows, n_copies * n, (int)d->model.dim,
              has_blocks ? h->x : NULL, has_blocks ? h->x_rounded : h->states_rounded);
}

/* Rows first .. first + n - 1. */
static matrix rows_of(const matrix &w, int first, int n)
{
    matrix part = w;
    part.n_rows = n;
    if (w.blocks)
        part.blocks += (size_t)first * quant_row_bytes(w.type, (size_t)w.n_cols);
    if (w.rows)
        part.rows += (size_t)first * (size_t)w.n_cols;
    return part;
}

/* The first block's input is the same for all heads: one product. */
static int multiply_block(device *d, int block, int n, struct err *e)
{
    guessing *h = &d->heads;
    const int dim = (int)d->model.dim, stride = h->n_heads * dim;
    const matrix &w = h->blocks[block];
    if (block == 0)
        return product(d->products_of, d->stream, w, h->x_rounded, n, h->biases[block],
                       PRODUCT_F32, h->products, stride, e);
    for (int i = 0; i < h->n_heads; i++)
        TRY(product(d->products_of, d->stream, rows_of(w, i * dim, dim),
                    h->states_rounded + (size_t)i * (size_t)n * (size_t)dim, n,
                    h->biases[block] + (size_t)i * (size_t)dim, PRODUCT_F32,
                    h->products + (size_t)i * (size_t)dim, stride, e));
    return 0;
}

static int run_blocks(device *d, int n, struct err *e)
{
    guessing *h = &d->heads;
    for (int i = 0; i < h->n_blocks; i++) {
        TRY(multiply_block(d, i, n, e));
        head_block_args a = {};
        a.n_heads = h->n_heads;
        a.n_rows = n;
        a.dim = (int)d->model.dim;
        a.x = i == 0 ? h->x : h->states;
        a.shared = i == 0;
        a.products = h->products;
        a.states = h->states;
        a.rounded = h->states_rounded;
        add_silu(d->stream, a);
    }
    return 0;
}

static int min_of(int a, int b)
{
    return a < b ? a : b;
}

/* Rows of logits lie on 16 bytes where the vocabulary leaves room for it. */
static int logits_stride(const device *d)
{
    return min_of((d->heads.n_draft + 3) / 4 * 4, (int)d->model.n_vocab);
}

static int run_output(device *d, const matrix &w, int first, int n, struct err *e)
{
    guessing *h = &d->heads;
    const int stride = logits_stride(d);
    const size_t room = d->options.n_logits_max * d->model.n_vocab / (size_t)stride;
    const int most = room < d->options.n_rows_max ? (int)room : (int)d->options.n_rows_max;
    for (int end = first + n, rows; first < end; first += rows) {
        rows = min_of(most, end - first);
        TRY(product(d->products_of, d->stream, w,
                    h->states_rounded + (size_t)first * d->model.dim, rows, NULL, PRODUCT_F32,
                    d->b.logits, stride, e));
        best_few(d->stream, d->b.logits, rows, h->n_draft, stride, h->best + first,
                 h->best_scratch);
    }
    return 0;
}

static int run(device *d, const int32_t *places, int n, struct err *e)
{
    guessing *h = &d->heads;
    gather(d, places, n);
    TRY(run_blocks(d, n, e));
    for (int i = 0; i < h->n_outputs; i++)
        TRY(run_output(d, h->outputs[i].weight, h->outputs[i].first_head * n,
                       h->outputs[i].n_heads * n, e));
    copy_to_host(d->stream, h->pinned, h->best,
                 (size_t)h->n_heads * (size_t)n * sizeof h->pinned[0]);
    d->counters.copies++;
    return 0;
}

int device_run_heads(device *d, size_t n, const int32_t *places, device_guess *out,
                     struct err *e)
{
    const guessing *h = &d->heads;
    ASSERT(h->n_heads > 0 && n <= d->options.n_kept_max &&
           are_below(places, n, d->options.n_kept_max));
    if (n == 0)
        return 0;
    d->n_logits = 0;
    count_into(&d->counters);
    const int rc = run(d, places, (int)n, e);
    count_into(NULL);
    if (rc != 0)
        return rc;
    TRY(device_settle(d, HEADS_FAILED, e));
    memcpy(out, h->pinned, (size_t)h->n_heads * n * sizeof h->pinned[0]);
    return 0;
}
