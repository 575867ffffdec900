/*
 * What a device can do at most: a copy of memory, and a large square product of bfloat16
 * matrices by the way that large products take. Numbers are random, for a device that
 * multiplies zeros draws less power and runs faster.
 *
 * Each peak is the best of a few rounds: what disturbs can only make slower.
 */
#include "count.cuh"
#include "ops.cuh"
#include "probe.cuh"

extern "C" {
#include "base/clock.h"
}

enum { ROUNDS = 5, BLOCK = 256, GRID_MAX = 4096 };

/* As much as a thread can read at a time. */
struct alignas(16) vector16 {
    uint32_t words[4];
};

/* Read once, written once: bound by memory. */
KERNEL void copy_vectors(const vector16 *from, size_t n, vector16 *to)
{
    const size_t stride = (size_t)gridDim.x * blockDim.x;
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += stride)
        to[i] = from[i];
}

/* Uniform in [-1, 1); the finaliser of SplitMix64 over the place. */
KERNEL void fill_random(bf16 *out, size_t n)
{
    const size_t stride = (size_t)gridDim.x * blockDim.x;
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += stride) {
        uint64_t z = ((uint64_t)i + 1) * 0x9e3779b97f4a7c15u;
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
        out[i] = to_bf16((float)(int32_t)(z >> 32) * 0x1p-31f);
    }
}

static dim3 grid_for(size_t n)
{
    const size_t blocks = (n + BLOCK - 1) / BLOCK;
    return dim3((unsigned)(blocks < (size_t)GRID_MAX ? blocks : (size_t)GRID_MAX));
}

static int check(const char *what, struct err *e)
{
    const char *why = last_error();
    return why ? ERR_SET(e, ERR_IO, "the device failed while its %s was measured: %s", what,
                         why)
               : 0;
}

/* ------------------------------------------------------------------ the two of them */

struct measured {
    stream_t stream;
    size_t copy_bytes;
    vector16 *from, *to;
    products *plans;
    matrix weights;
    bf16 *x, *y;
};

static int copy_once(measured *m, struct err *e)
{
    const size_t n = m->copy_bytes / sizeof(vector16);
    (void)e;
    LAUNCH(copy_vectors, grid_for(n), BLOCK, 0, m->stream, m->from, n, m->to);
    return 0;
}

static int multiply_once(measured *m, struct err *e)
{
    const int n = m->weights.n_rows;
    return product(m->plans, m->stream, m->weights, m->x, n, nullptr, PRODUCT_BF16, m->y, n, e);
}

/* Units a second, where once() does so many of them. */
static int measure(measured *m, int (*once)(measured *, struct err *), double units, int64_t us,
                   const char *what, double *rate, struct err *e)
{
    *rate = 0;
    for (int round = 0; round <= ROUNDS; round++) {
        int64_t n = 0, spent_us;
        stream_wait(m->stream);
        const int64_t began_us = clock_mono_us();
        do {
            /* Enough at a time that their launches do not count. */
            for (int i = 0; i < 8; i++, n++)
                TRY(once(m, e));
            stream_wait(m->stream);
            TRY(check(what, e));
            spent_us = clock_mono_us() - began_us;
        } while (spent_us < us / ROUNDS);
        const double found = units * (double)n * 1e6 / (double)(spent_us > 0 ? spent_us : 1);
        if (round > 0 && found > *rate) /* the first one warms up */
            *rate = found;
    }
    return 0;
}

static int measure_copy(measured *m, const device_peak_sizes *sizes, double *rate,
                        struct err *e)
{
    m->copy_bytes = sizes->copy_bytes;
    m->from = (vector16 *)device_alloc(sizes->copy_bytes);
    m->to = (vector16 *)device_alloc(sizes->copy_bytes);
    if (!m->from || !m->to)
        return ERR_SET(e, ERR_NOMEM, "the device has no %zu MiB for measuring a copy",
                       2 * sizes->copy_bytes >> 20);
    const size_t n = sizes->copy_bytes / sizeof(bf16);
    LAUNCH(fill_random, grid_for(n), BLOCK, 0, m->stream, (bf16 *)m->from, n);
    return measure(m, copy_once, 2 * (double)sizes->copy_bytes, sizes->us, "copying", rate, e);
}

static int measure_product(measured *m, const device_peak_sizes *sizes, double *rate,
                           struct err *e)
{
    const int side = (int)sizes->product_side;
    const size_t n = sizes->product_side * sizes->product_side;
    products_options o = {};
    o.n_rows_max = side;
    bf16 *rows = (bf16 *)device_alloc(n * sizeof(bf16));
    m->x = (bf16 *)device_alloc(n * sizeof(bf16));
    m->y = (bf16 *)device_alloc(n * sizeof(bf16));
    m->weights = matrix{QUANT_BF16, side, side, nullptr, rows};
    if (!rows || !m->x || !m->y)
        return ERR_SET(e, ERR_NOMEM, "the device has no %zu MiB for measuring a product",
                       3 * n * sizeof(bf16) >> 20);
    LAUNCH(fill_random, grid_for(n), BLOCK, 0, m->stream, rows, n);
    LAUNCH(fill_random, grid_for(n), BLOCK, 0, m->stream, m->x, n);
    TRY(products_open(o, &m->plans, e));
    const double flops = 2.0 * (double)n * (double)side;
    return measure(m, multiply_once, flops, sizes->us, "multiplying", rate, e);
}

static void give_back(measured *m)
{
    stream_wait(m->stream);
    products_close(m->plans);
    device_free(m->from);
    device_free(m->to);
    device_free((void *)m->weights.rows);
    device_free(m->x);
    device_free(m->y);
    stream_close(m->stream);
}

int measure_peaks(size_t ordinal, const device_peak_sizes *sizes, device_peaks *out,
                  struct err *e)
{
    device_info info;
    device_facts facts;
    measured m = {};
    TRY(probe_device(ordinal, &info, e));
    if (!device_use((int)ordinal, &facts)) {
        const char *why = last_error();
        return ERR_SET(e, ERR_UNSUPPORTED, "%s cannot be used: %s", info.name,
                       why ? why : "it does not say why");
    }
    count_into(nullptr);
    m.stream = stream_open();
    int rc = measure_copy(&m, sizes, &out->copy, e);
    if (rc == 0)
        rc = measure_product(&m, sizes, &out->product, e);
    give_back(&m);
    return rc;
}
