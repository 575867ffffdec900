/*
 * What happens to whole rows: embedding, norms, the gated activation, the greatest logit. All
 * are bound by memory: each byte is read and written once, in accesses of 16 bytes (bfloat16
 * rows of a norm: 8).
 */
#include "best.cuh"
#include "blocks.cuh"
#include "count.cuh"
#include "lines.cuh"
#include "ops.cuh"

extern "C" {
#include "base/check.h"
}

/* ---- embedding */

/* A thread takes a quad; block (t, c) has the c-th run of quads of row t. */
template <quant_type T>
KERNEL void embed_rows(const uint8_t *embedding, int64_t row_bytes, const int32_t *tokens,
                       const int32_t *best, int dim, bool is_wide, float *x)
{
    const int q = (int)(blockIdx.y * blockDim.x + threadIdx.x);
    if (4 * q >= dim)
        return;
    const int32_t named = tokens[blockIdx.x];
    const int32_t token = named >= 0 ? named : best[-1 - named];
    const uint8_t *stored = embedding + token * row_bytes;
    float *row = x + (int64_t)blockIdx.x * dim;
    if constexpr (is_float_type<T>())
        if (4 * q + 4 > dim) {
            for (int i = 4 * q; i < dim; i++)
                row[i] = read_float<T>(stored, i);
            return;
        }
    quad_f32 quad;
    decode_quad<T>(stored, q, quad.v);
    store_quad(row, q, dim, is_wide, quad);
}

void embed(stream_t s, const matrix &embedding, const int32_t *tokens, int n_rows, float *x,
           const int32_t *best)
{
    const int dim = embedding.n_cols;
    const quant_type type = embedding.blocks ? embedding.type : QUANT_BF16;
    const uint8_t *stored =
        embedding.blocks ? embedding.blocks : (const uint8_t *)embedding.rows;
    ASSERT(stored && n_rows >= 0 && dim > 0);
    if (n_rows == 0)
        return;
    const int64_t row_bytes = (int64_t)quant_row_bytes(type, (size_t)dim);
    const bool is_wide = dim % 4 == 0 && is_on(x, 16);
    const dim3 grid((unsigned)n_rows, (unsigned)divide_up(dim, 4 * FLAT_THREADS));
    WITH_QUANT_TYPE(type, LAUNCH(embed_rows<T>, grid, FLAT_THREADS, 0, s, stored, row_bytes,
                                 tokens, best, dim, is_wide, x));
    const uint64_t n = (uint64_t)n_rows;
    count_op(DEVICE_EMBED, 1, n * ((uint64_t)row_bytes + sizeof *tokens),
             n * (uint64_t)dim * sizeof *x, 0);
}

/* ---- norms */

/*
 * Threads per row depend on its width alone, so the order of a sum does too: thread i of n adds
 * quads i, i + n, ...; lanes add up in a tree, then warps one after the other. Narrow rows are
 * a warp each, several to a block. The second look at a row finds it in the first-level cache.
 */
enum { NORM_WARP_COLS_MAX = 1024, NORM_THREADS = 256, NORM_WARPS = NORM_THREADS / WARP_LANES };

struct norm_args {
    const float *x;
    const int32_t *rows;
    const float *w;
    float eps;
    int n_rows, dim;
    bool is_wide;
    bf16 *y;
    float *y32;
};

/* Quads that are on their way to a thread at once: few rows leave the device little else to do
 * than to wait for them. */
enum { NORM_AHEAD = 4 };

DEVICE float squares_of_row(const norm_args &a, const float *row, int first, int step)
{
    float sum = 0.0f;
    for (int from = first; 4 * from < a.dim; from += NORM_AHEAD * step) {
        quad_f32 x[NORM_AHEAD];
#pragma unroll
        for (int i = 0; i < NORM_AHEAD; i++)
            if (4 * (from + i * step) < a.dim)
                x[i] = load_quad(row, from + i * step, a.dim, a.is_wide);
#pragma unroll
        for (int i = 0; i < NORM_AHEAD; i++)
            if (4 * (from + i * step) < a.dim)
                for (int e = 0; e < 4; e++)
                    sum += x[i].v[e] * x[i].v[e];
    }
    return sum;
}

DEVICE void scale_row(const norm_args &a, const float *row, int i_out, float sum, int first,
                      int step)
{
    const float inverse = 1.0f / sqrtf(sum / (float)a.dim + a.eps);
    const int64_t at = (int64_t)i_out * a.dim;
    for (int from = first; 4 * from < a.dim; from += NORM_AHEAD * step) {
        quad_f32 y[NORM_AHEAD];
        quad_f32 w[NORM_AHEAD];
#pragma unroll
        for (int i = 0; i < NORM_AHEAD; i++)
            if (4 * (from + i * step) < a.dim) {
                y[i] = load_quad(row, from + i * step, a.dim, a.is_wide);
                w[i] = load_quad(a.w, from + i * step, a.dim, a.is_wide);
            }
#pragma unroll
        for (int i = 0; i < NORM_AHEAD; i++)
            if (4 * (from + i * step) < a.dim) {
                for (int e = 0; e < 4; e++)
                    y[i].v[e] = y[i].v[e] * inverse * w[i].v[e];
                store_quad_bf16(a.y + at, from + i * step, a.dim, a.is_wide, y[i]);
                if (a.y32)
                    store_quad(a.y32 + at, from + i * step, a.dim, a.is_wide, y[i]);
            }
    }
}

DEVICE const float *norm_input(const norm_args &a, int i_out)
{
    return a.x + (int64_t)(a.rows ? a.rows[i_out] : i_out) * a.dim;
}

KERNEL void norm_narrow_rows(norm_args a)
{
    const int lane = (int)threadIdx.x % WARP_LANES;
    const int i_out = (int)blockIdx.x * NORM_WARPS + (int)threadIdx.x / WARP_LANES;
    if (i_out >= a.n_rows) /* the whole warp */
        return;
    const float *row = norm_input(a, i_out);
    const float sum = sum_of_warp(squares_of_row(a, row, lane, WARP_LANES));
    scale_row(a, row, i_out, sum, lane, WARP_LANES);
}

KERNEL void norm_wide_row(norm_args a)
{
    SHARED(float, of_warp, NORM_WARPS);
    const int thread = (int)threadIdx.x;
    const float *row = norm_input(a, (int)blockIdx.x);
    const float mine = sum_of_warp(squares_of_row(a, row, thread, NORM_THREADS));
    if (thread % WARP_LANES == 0)
        of_warp[thread / WARP_LANES] = mine;
    sync_block();
    float sum = 0.0f;
    for (int i = 0; i < NORM_WARPS; i++)
        sum += of_warp[i];
    scale_row(a, row, (int)blockIdx.x, sum, thread, NORM_THREADS);
}

void rmsnorm(stream_t s, const float *x, const int32_t *rows, const float *w, float eps,
             int n_rows, int dim, bf16 *y, float *y32)
{
    ASSERT(n_rows >= 0 && dim > 0);
    if (n_rows == 0)
        return;
    const bool is_wide =
        dim % 4 == 0 && is_on(x, 16) && is_on(w, 16) && is_on(y, 8) && is_on(y32, 16);
    const norm_args a = {x, rows, w, eps, n_rows, dim, is_wide, y, y32};
    if (dim <= NORM_WARP_COLS_MAX)
        LAUNCH(norm_narrow_rows, divide_up(n_rows, NORM_WARPS), NORM_THREADS, 0, s, a);
    else
        LAUNCH(norm_wide_row, n_rows, NORM_THREADS, 0, s, a);
    const uint64_t n = (uint64_t)n_rows * (uint64_t)dim;
    count_op(DEVICE_NORM, 1,
             n * sizeof *x + (uint64_t)dim * sizeof *w +
                 (rows ? (uint64_t)n_rows * sizeof *rows : 0),
             n * (sizeof *y + (y32 ? sizeof *y32 : 0)), 4 * n);
}

/* ---- the gated activation */

DEVICE octet_bf16 load_octet(const bf16 *row, int o, int n_cols, bool is_wide)
{
    if (is_wide)
        return *(const octet_bf16 *)(row + 8 * o);
    octet_bf16 octet;
    for (int i = 0; i < 8; i++)
        octet.v[i] = 8 * o + i < n_cols ? row[8 * o + i] : to_bf16(0.0f);
    return octet;
}

/* A thread takes an octet of a row; rows follow each other without a gap in the threads. */
KERNEL void silu_mul_rows(const bf16 *gate_up, int n_rows, int ffn_dim, bool is_wide,
                          bf16 *inner)
{
    const uint32_t n_octets = ((uint32_t)ffn_dim + 7) / 8;
    const uint32_t at = blockIdx.x * blockDim.x + threadIdx.x;
    const int t = (int)(at / n_octets);
    const int o = (int)(at % n_octets);
    if (t >= n_rows)
        return;
    const bf16 *row = gate_up + (int64_t)t * 2 * ffn_dim;
    bf16 *out = inner + (int64_t)t * ffn_dim;
    const octet_bf16 gate = load_octet(row, o, ffn_dim, is_wide);
    const octet_bf16 up = load_octet(row + ffn_dim, o, ffn_dim, is_wide);
    octet_bf16 product;
    for (int i = 0; i < 8; i++)
        product.v[i] = to_bf16(silu_of(to_float(gate.v[i])) * to_float(up.v[i]));
    if (is_wide)
        *(octet_bf16 *)(out + 8 * o) = product;
    else
        for (int i = 0; i < 8 && 8 * o + i < ffn_dim; i++)
            out[8 * o + i] = product.v[i];
}

void silu_mul(stream_t s, const bf16 *gate_up, int n_rows, int ffn_dim, bf16 *inner)
{
    ASSERT(n_rows >= 0 && ffn_dim > 0);
    if (n_rows == 0)
        return;
    const bool is_wide = ffn_dim % 8 == 0 && is_on(gate_up, 16) && is_on(inner, 16);
    const int64_t n_octets = (int64_t)n_rows * divide_up(ffn_dim, 8);
    ASSERT(n_octets < INT32_MAX);
    LAUNCH(silu_mul_rows, divide_up(n_octets, FLAT_THREADS), FLAT_THREADS, 0, s, gate_up,
           n_rows, ffn_dim, is_wide, inner);
    const uint64_t n = (uint64_t)n_rows * (uint64_t)ffn_dim;
    count_op(DEVICE_SILU, 1, 2 * n * sizeof *gate_up, n * sizeof *inner, 5 * n);
}

/* ---- the greatest logit */

/*
 * A maximum is exact, so neither the cut of a row into blocks nor the order of comparisons
 * shows. Threads compare floats; what they have found meets as keys.
 */
enum { ARGMAX_THREADS = 512, ARGMAX_WARPS = ARGMAX_THREADS / WARP_LANES };

/* Of quads first, first + step, ... of those in [begin, end); all of an index's own are met in
 * rising order, so the first of equals stays. */
DEVICE found best_of_quads(const float *row, int n_vocab, bool is_wide, int first, int end,
                           int step)
{
    float best = NAN;
    int32_t index = INT32_MAX;
    for (int q = first; q < end; q += step) {
        const quad_f32 x = load_quad(row, q, n_vocab, is_wide);
        for (int i = 0; i < 4; i++)
            if ((x.v[i] > best || best != best) && 4 * q + i < n_vocab) {
                best = x.v[i];
                index = 4 * q + i;
            }
    }
    return {key_of(best), index};
}

/* A row of nothing but NaN gives 0. */
DEVICE int32_t index_of(const found &f)
{
    return f.key == 0 ? 0 : f.index;
}

/* Block (c, t): the c-th of gridDim.x parts of row t; the only part writes the result. */
KERNEL void argmax_parts(const float *logits, int n_vocab, int part_quads, bool is_wide,
                         found *parts, int32_t *best)
{
    SHARED(found, of_warp, ARGMAX_WARPS);
    const int thread = (int)threadIdx.x;
    const float *row = logits + (int64_t)blockIdx.y * n_vocab;
    const int begin = (int)blockIdx.x * part_quads;
    const int n_quads = (n_vocab + 3) / 4;
    const int end = begin + part_quads < n_quads ? begin + part_quads : n_quads;
    const found mine =
        best_of_warp(best_of_quads(row, n_vocab, is_wide, begin + thread, end, ARGMAX_THREADS));
    if (thread % WARP_LANES == 0)
        of_warp[thread / WARP_LANES] = mine;
    sync_block();
    if (thread != 0)
        return;
    found all = of_warp[0];
    for (int i = 1; i < ARGMAX_WARPS; i++)
        all = better_of(all, of_warp[i]);
    if (gridDim.x == 1)
        best[blockIdx.y] = index_of(all);
    else
        parts[blockIdx.y * gridDim.x + blockIdx.x] = all;
}

/* A warp a row; there are no more parts than lanes. */
KERNEL void argmax_of_parts(const found *parts, int n_parts, int32_t *best)
{
    const int lane = (int)threadIdx.x;
    found mine = {0, INT32_MAX};
    if (lane < n_parts)
        mine = parts[blockIdx.x * n_parts + lane];
    const found all = best_of_warp(mine);
    if (lane == 0)
        best[blockIdx.x] = index_of(all);
}

size_t argmax_scratch_bytes(void)
{
    return ROW_PARTS_BLOCKS * sizeof(found);
}

void argmax(stream_t s, const float *logits, int n_rows, int n_vocab, int32_t *best,
            void *scratch)
{
    ASSERT(n_rows >= 0 && n_rows <= GRID_Y_MAX && n_vocab > 0);
    if (n_rows == 0)
        return;
    const bool is_wide = n_vocab % 4 == 0 && is_on(logits, 16);
    const int n_parts = scratch ? row_parts(n_rows, n_vocab) : 1;
    const int part_quads = divide_up(divide_up(n_vocab, 4), n_parts);
    found *parts = (found *)scratch;
    const dim3 grid((unsigned)n_parts, (unsigned)n_rows);
    LAUNCH(argmax_parts, grid, ARGMAX_THREADS, 0, s, logits, n_vocab, part_quads, is_wide,
           parts, best);
    if (n_parts > 1)
        LAUNCH(argmax_of_parts, n_rows, WARP_LANES, 0, s, parts, n_parts, best);
    const uint64_t n = (uint64_t)n_rows;
    count_op(DEVICE_ARGMAX, n_parts > 1 ? 2 : 1, n * (uint64_t)n_vocab * sizeof *logits,
             n * sizeof *best, 0);
}
