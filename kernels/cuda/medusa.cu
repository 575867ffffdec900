/*
 * Heads beside the model, but for their products: hidden rows that are kept, what a block adds
 * to its rows, and the best few logits of each. Bound by memory as rows.cu is.
 */
#include "best.cuh"
#include "count.cuh"
#include "lines.cuh"
#include "ops.cuh"

extern "C" {
#include "base/check.h"
}

/* ---- rows that are kept */

/* They go over with the launch: nothing has to outlive it, and no copy comes before it. */
enum { MOVES_MAX = 128 };
struct moves {
    int32_t from[MOVES_MAX], to[MOVES_MAX];
};

/* Block (i, c) has the c-th run of quads of the i-th row. */
KERNEL void move_some_rows(moves rows, const float *from, int dim, float *to, bf16 *rounded)
{
    const int q = (int)(blockIdx.y * blockDim.x + threadIdx.x);
    if (4 * q >= dim)
        return;
    const quad_f32 x =
        load_quad(from + (int64_t)rows.from[blockIdx.x] * dim, q, dim, /*is_wide=*/true);
    const int64_t at = (int64_t)rows.to[blockIdx.x] * dim;
    if (to)
        store_quad(to + at, q, dim, true, x);
    if (rounded)
        store_quad_bf16(rounded + at, q, dim, true, x);
}

void move_rows(stream_t s, const float *from, const int32_t *from_rows, const int32_t *to_rows,
               int n_rows, int dim, float *to, bf16 *rounded)
{
    ASSERT(n_rows >= 0 && dim > 0 && dim % 4 == 0);
    ASSERT(is_on(from, 16) && is_on(to, 16) && is_on(rounded, 8));
    for (int first = 0; first < n_rows; first += MOVES_MAX) {
        const int n = n_rows - first < MOVES_MAX ? n_rows - first : MOVES_MAX;
        moves rows = {};
        memcpy(rows.from, from_rows + first, (size_t)n * sizeof rows.from[0]);
        memcpy(rows.to, to_rows + first, (size_t)n * sizeof rows.to[0]);
        const dim3 grid((unsigned)n, (unsigned)divide_up(dim, 4 * FLAT_THREADS));
        LAUNCH(move_some_rows, grid, FLAT_THREADS, 0, s, rows, from, dim, to, rounded);
        const uint64_t n_elements = (uint64_t)n * (uint64_t)dim;
        count_op(DEVICE_GUESS, 1, n_elements * sizeof *from,
                 n_elements * ((to ? sizeof *to : 0) + (rounded ? sizeof *rounded : 0)), 0);
    }
}

/* ---- what a block adds */

/* A thread takes a quad; rows of head h are h * T, h * T + 1, ... */
KERNEL void add_silu_rows(head_block_args a)
{
    const uint32_t n_quads = (uint32_t)a.dim / 4;
    const uint32_t at = blockIdx.x * blockDim.x + threadIdx.x;
    const int row = (int)(at / n_quads), q = (int)(at % n_quads);
    if (row >= a.n_heads * a.n_rows)
        return;
    const int head = row / a.n_rows, t = row % a.n_rows;
    const float *product = a.products + ((int64_t)t * a.n_heads + head) * a.dim;
    const quad_f32 y = load_quad(product, q, a.dim, true);
    quad_f32 x = load_quad(a.x + (int64_t)(a.shared ? t : row) * a.dim, q, a.dim, true);
    for (int i = 0; i < 4; i++)
        x.v[i] += silu_of(y.v[i]);
    store_quad(a.states + (int64_t)row * a.dim, q, a.dim, true, x);
    store_quad_bf16(a.rounded + (int64_t)row * a.dim, q, a.dim, true, x);
}

void add_silu(stream_t s, const head_block_args &a)
{
    ASSERT(a.n_heads > 0 && a.n_rows >= 0 && a.dim > 0 && a.dim % 4 == 0);
    ASSERT(is_on(a.x, 16) && is_on(a.products, 16) && is_on(a.states, 16));
    ASSERT(is_on(a.rounded, 8) && !(a.shared && a.states == a.x));
    if (a.n_rows == 0)
        return;
    const int64_t n_rows = (int64_t)a.n_heads * a.n_rows, n_quads = n_rows * (a.dim / 4);
    ASSERT(n_quads < INT32_MAX - FLAT_THREADS);
    LAUNCH(add_silu_rows, divide_up(n_quads, FLAT_THREADS), FLAT_THREADS, 0, s, a);
    const uint64_t n = (uint64_t)n_rows * (uint64_t)a.dim;
    count_op(DEVICE_GUESS, 1,
             (n + (a.shared ? n / (uint64_t)a.n_heads : n)) * sizeof *a.products,
             n * (sizeof *a.states + sizeof *a.rounded), 5 * n);
}

/* ---- the best few logits */

/*
 * Each thread, each warp, each block and at last each row has a list of its best few, in
 * falling order. A choice is exact, so no cut of a row shows. A place of a list without a logit
 * has the key 0.
 */
enum { FEW = DEVICE_GUESSES, FEW_THREADS = 256, FEW_WARPS = FEW_THREADS / WARP_LANES };

struct few {
    found best[FEW];
};

DEVICE few none(void)
{
    few f;
    for (int i = 0; i < FEW; i++)
        f.best[i] = {0, INT32_MAX};
    return f;
}

/* Of equals the one that was met first stays in front. */
DEVICE void keep(few &f, const found &x)
{
    if (x.key <= f.best[FEW - 1].key)
        return;
    for (int i = FEW - 1; i > 0; i--) {
        const found above = f.best[i - 1];
        f.best[i] = x.key > above.key ? above : x.key > f.best[i].key ? x : f.best[i];
    }
    f.best[0] = x.key > f.best[0].key ? x : f.best[0];
}

/* Of quads first, first + step, ... before end; a thread meets its indices in rising order. */
DEVICE few few_of_quads(const float *row, int n_cols, bool is_wide, int first, int end,
                        int step)
{
    few mine = none();
    for (int q = first; q < end; q += step) {
        const quad_f32 x = load_quad(row, q, n_cols, is_wide && 4 * q + 4 <= n_cols);
        for (int i = 0; i < 4; i++)
            if (4 * q + i < n_cols)
                keep(mine, {key_of(x.v[i]), 4 * q + i});
    }
    return mine;
}

/* The best few of all lanes' lists, in every lane: again and again the best of those in front.
 */
DEVICE few few_of_warp(few mine)
{
    few all;
    for (int r = 0; r < FEW; r++) {
        const found front = best_of_warp(mine.best[0]);
        all.best[r] = front;
        if (mine.best[0].index != front.index)
            continue;
        for (int i = 1; i < FEW; i++)
            mine.best[i - 1] = mine.best[i];
        mine.best[FEW - 1] = {0, INT32_MAX};
    }
    return all;
}

DEVICE void write_few(const few &f, device_guess *out)
{
    for (int i = 0; i < FEW; i++) {
        out[i].value = value_of(f.best[i].key); /* of none a NaN */
        out[i].index = f.best[i].key == 0 ? -1 : f.best[i].index;
    }
}

struct best_few_args {
    const float *logits;
    int n_cols, stride;
    int part_quads;
    bool is_wide;
    few *parts;
    device_guess (*best)[DEVICE_GUESSES];
};

/* Block (c, t): the c-th of gridDim.x parts of row t; the only part writes the result. */
KERNEL void best_few_of_rows(best_few_args a)
{
    SHARED(few, of_warp, FEW_WARPS);
    const int thread = (int)threadIdx.x;
    const float *row = a.logits + (int64_t)blockIdx.y * a.stride;
    const int begin = (int)blockIdx.x * a.part_quads;
    const int n_quads = (a.n_cols + 3) / 4;
    const int end = begin + a.part_quads < n_quads ? begin + a.part_quads : n_quads;
    few mine =
        few_of_warp(few_of_quads(row, a.n_cols, a.is_wide, begin + thread, end, FEW_THREADS));
    if (thread % WARP_LANES == 0)
        of_warp[thread / WARP_LANES] = mine;
    sync_block();
    if (thread >= WARP_LANES) /* whole warps */
        return;
    mine = few_of_warp(thread < FEW_WARPS ? of_warp[thread] : none());
    if (thread != 0)
        return;
    if (gridDim.x == 1)
        write_few(mine, a.best[blockIdx.y]);
    else
        a.parts[blockIdx.y * gridDim.x + blockIdx.x] = mine;
}

/* A warp a row; there are no more parts than lanes. */
KERNEL void best_few_of_parts(const few *parts, int n_parts,
                              device_guess (*best)[DEVICE_GUESSES])
{
    const int lane = (int)threadIdx.x;
    const few all = few_of_warp(lane < n_parts ? parts[blockIdx.x * n_parts + lane] : none());
    if (lane == 0)
        write_few(all, best[blockIdx.x]);
}

size_t best_few_scratch_bytes(void)
{
    return ROW_PARTS_BLOCKS * sizeof(few);
}

void best_few(stream_t s, const float *logits, int n_rows, int n_cols, int stride,
              device_guess (*best)[DEVICE_GUESSES], void *scratch)
{
    ASSERT(n_rows >= 0 && n_rows <= GRID_Y_MAX && n_cols > 0 && stride >= n_cols);
    if (n_rows == 0)
        return;
    const int n_parts = scratch ? row_parts(n_rows, n_cols) : 1;
    best_few_args a = {};
    a.logits = logits;
    a.n_cols = n_cols;
    a.stride = stride;
    a.part_quads = divide_up(divide_up(n_cols, 4), n_parts);
    a.is_wide = stride % 4 == 0 && is_on(logits, 16);
    a.parts = (few *)scratch;
    a.best = best;
    LAUNCH(best_few_of_rows, dim3((unsigned)n_parts, (unsigned)n_rows), FEW_THREADS, 0, s, a);
    if (n_parts > 1)
        LAUNCH(best_few_of_parts, n_rows, WARP_LANES, 0, s, a.parts, n_parts, best);
    const uint64_t n = (uint64_t)n_rows;
    count_op(DEVICE_GUESS, n_parts > 1 ? 2 : 1, n * (uint64_t)n_cols * sizeof *logits,
             n * sizeof *best, 0);
}
