/*
 * The host's twin of cuBLASLt: each output is a plain sum over k in rising order, rounded to
 * float32 after every step, so its bits depend on its row of x and its row of w alone.
 *
 * Sixteen rows of w at a time are turned into float32 columns, which four rows of x then go
 * over: lanes are outputs. Written with vectors of the compiler for speed alone; products and
 * sums are not to be contracted (-ffp-contract=off).
 */
#include <stdlib.h>
#include <string.h>

#include "count.cuh"
#include "lt.h"

extern "C" {
#include "base/check.h"
}

enum { WIDTH = 16, ROWS = 4, PANEL_ALIGN = 64 };
typedef float lanes __attribute__((vector_size(WIDTH * sizeof(float))));

/* Sanitizers do not get along with functions that are chosen when the program is loaded. */
#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) &&  \
    !defined(__clang__)
#define FOR_EACH_CPU __attribute__((target_clones("avx2", "default")))
#else
#define FOR_EACH_CPU
#endif

struct lt {
    void *workspace; /* as the device's: the memory plan is the same */
};

int lt_open(lt **out, struct err *e)
{
    lt *l = (lt *)calloc(1, sizeof(lt));
    *out = l;
    if (!l)
        return ERR_SET(e, ERR_NOMEM, "no memory for the plans of large products");
    l->workspace = device_alloc(LT_WORKSPACE_BYTES);
    if (l->workspace)
        return 0;
    *out = nullptr;
    lt_close(l);
    return ERR_SET(e, ERR_NOMEM, "the device has no room for %d MiB of workspace for products",
                   LT_WORKSPACE_BYTES >> 20);
}

void lt_close(lt *l)
{
    if (!l)
        return;
    if (l->workspace)
        device_free(l->workspace);
    free(l);
}

/* panel[k][lane] = w[first + lane][k]; lanes beyond the last output are 0. */
static void fill_panel(lanes *panel, const product_args &a, int first)
{
    const bf16 *w = (const bf16 *)a.w;
    memset(panel, 0, (size_t)a.n_inputs * sizeof(lanes));
    float *to = (float *)panel;
    for (int lane = 0; lane < WIDTH && first + lane < a.n_outputs; lane++) {
        const bf16 *row = w + (int64_t)(first + lane) * a.n_inputs;
        for (int k = 0; k < a.n_inputs; k++)
            to[(int64_t)k * WIDTH + lane] = to_float(row[k]);
    }
}

/* sums[row] = the panel's products with the rows of x, each a run of floats. */
FOR_EACH_CPU
static void sum_rows(const lanes *panel, const float *const x[ROWS], int n_inputs,
                     lanes sums[ROWS])
{
    lanes s0 = {};
    lanes s1 = {};
    lanes s2 = {};
    lanes s3 = {};
    for (int k = 0; k < n_inputs; k++) {
        const lanes w = panel[k];
        s0 += w * x[0][k];
        s1 += w * x[1][k];
        s2 += w * x[2][k];
        s3 += w * x[3][k];
    }
    sums[0] = s0;
    sums[1] = s1;
    sums[2] = s2;
    sums[3] = s3;
}

static void store_lanes(const product_args &a, int row, int first, const lanes &sums)
{
    const int64_t start = row * a.y_stride + first;
    for (int i = 0; i < WIDTH && first + i < a.n_outputs; i++) {
        const float value = a.bias ? sums[i] + a.bias[first + i] : sums[i];
        if (a.kind == PRODUCT_BF16)
            ((bf16 *)a.y)[start + i] = to_bf16(value);
        else if (a.kind == PRODUCT_F32_ADD)
            ((float *)a.y)[start + i] += value;
        else
            ((float *)a.y)[start + i] = value;
    }
}

static float *floats_of_x(const product_args &a)
{
    const size_t n = (size_t)a.n_rows * (size_t)a.n_inputs;
    float *x = (float *)malloc(n * sizeof(float));
    ASSERT(x);
    for (size_t i = 0; i < n; i++)
        x[i] = to_float(a.x[i]);
    return x;
}

/* A kernel of one thread, so that it takes its turn in the stream. */
KERNEL void multiply_on_host(product_args a)
{
    float *x = floats_of_x(a);
    lanes *panel = (lanes *)aligned_alloc(PANEL_ALIGN, (size_t)a.n_inputs * sizeof(lanes));
    ASSERT(panel);
    for (int first = 0; first < a.n_outputs; first += WIDTH) {
        fill_panel(panel, a, first);
        for (int row = 0; row < a.n_rows; row += ROWS) {
            const float *rows[ROWS];
            for (int i = 0; i < ROWS; i++)
                rows[i] = x + (size_t)(row + i < a.n_rows ? row + i : row) * (size_t)a.n_inputs;
            lanes sums[ROWS];
            sum_rows(panel, rows, a.n_inputs, sums);
            for (int i = 0; i < ROWS && row + i < a.n_rows; i++)
                store_lanes(a, row + i, first, sums[i]);
        }
    }
    free(panel);
    free(x);
}

int lt_multiply(lt *l, stream_t s, const product_args &a, struct err *e)
{
    (void)l;
    (void)e;
    LAUNCH(multiply_on_host, dim3(1), dim3(1), 0, s, a);
    count_product(a, (uint64_t)a.n_inputs * sizeof(bf16));
    return 0;
}

void lt_prepare(lt *, stream_t, const product_args &)
{
}
