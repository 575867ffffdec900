/*
 * Products try their algorithms when the device is opened, for all numbers of rows that steps
 * are counted in: else a job would wait for it, a few milliseconds at a time. What there is no
 * time for is tried in its first step. A model of 8B takes some tenths of a second (by the
 * operations of the tries; there was no device to measure it on).
 */
#include "buckets.h"
#include "device_int.cuh"

extern "C" {
#include "base/clock.h"
}

static const int64_t TRIES_US_MAX = 2000000;

/* Most layers have the shapes of the first, which are known then. */
static int try_layer(device *d, const layer *l, int n_rows, struct err *e)
{
    const buffers *b = &d->b;
    product_fn *f = product_prepare;
    TRY(device_multiply(d, f, &l->qkv, b->hidden, n_rows, PRODUCT_F32, b->qkv, e));
    TRY(device_multiply(d, f, &l->out, b->mixed, n_rows, PRODUCT_F32_ADD, b->x, e));
    TRY(device_multiply(d, f, &l->gate_up, b->hidden, n_rows, PRODUCT_BF16, b->gate_up, e));
    return device_multiply(d, f, &l->down, b->inner, n_rows, PRODUCT_F32_ADD, b->x, e);
}

static int try_head(device *d, int n_rows, struct err *e)
{
    return product_prepare(d->products_of, d->stream, d->output, d->b.last, n_rows, NULL,
                           PRODUCT_F32, d->b.logits, (int)d->model.n_vocab, e);
}

static int try_rows(device *d, size_t n_rows, struct err *e)
{
    const device_options *o = &d->options;
    const size_t least = n_rows < o->n_rows_max ? n_rows : o->n_rows_max;
    for (size_t i = 0; i < d->model.n_layers; i++)
        TRY(try_layer(d, &d->layers[i], (int)least, e));
    if (n_rows <= bucket_of(o->n_logits_max))
        TRY(try_head(d, (int)(n_rows < o->n_logits_max ? n_rows : o->n_logits_max), e));
    return 0;
}

int device_try_products(device *d, struct err *e)
{
    const int64_t end_us = clock_mono_us() + TRIES_US_MAX;
    if (d->options.exact) /* one way, of our own */
        return 0;
    const uint64_t most = bucket_of(d->options.n_rows_max);
    for (uint64_t n = 1; n <= most && clock_mono_us() < end_us; n = bucket_of(n + 1))
        TRY(try_rows(d, n, e));
    return 0;
}
