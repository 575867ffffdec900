/*
 * Products of E4M3 rows (e4m3.cuh). A row has a scale, the largest of its values by size over
 * 448, and codes, its values over the scale to the nearest; so a row's codes depend on nothing
 * beside it. Weights are rounded once, rows of x for each large product:
 *
 *     codes, scale of each row of x            reads 2 bytes a value, writes 1
 *     sums = codes of x * codes of w           cuBLASLt, float32
 *     y (=|+=) sums * scales of both + bias    reads 4 bytes an output, and y's own
 *
 * cuBLASLt applies scales of rows by itself on some devices only, and from CUDA 12.9 on. The
 * sums take 4 bytes an output twice, which would be a fourth of the time that an 8B model's
 * products take on an H200, were they to go through its memory. So outputs are taken in slices
 * whose sums stay in the cache. Where slices end depends on the numbers of rows and outputs
 * alone.
 */
#include "blocks.cuh"
#include "buckets.h"
#include "count.cuh"
#include "e4m3.cuh"
#include "lines.cuh"
#include "lt.h"

extern "C" {
#include "base/check.h"
}

enum {
    ROW_THREADS_MAX = 256,
    ROW_WARPS_MAX = ROW_THREADS_MAX / WARP_LANES,
    ELEMS_OF_THREAD = 2 * QUAD_ELEMS,
    ROWS_MULTIPLE = 16,         /* of cuBLASLt */
    SLICE_OUTPUTS_MIN = 256,    /* a tile of it, and a multiple of what 16 bytes hold */
    SLICE_SUMS_BYTES = 32 << 20 /* of the 50 MB of cache of an H100 or H200 */
};

/* ------------------------------------------------------------------ values to codes */

struct alignas(8) eight_codes {
    uint32_t of_quad[2];
};

/* The larger; NaN stays. */
DEVICE float larger_of(float a, float b)
{
    return b > a || b != b ? b : a;
}

template <quant_type T> DEVICE float largest_of_thread(const uint8_t *row, int n_cols)
{
    float largest = 0.0f;
    for (int i = (int)threadIdx.x; i < n_cols / QUAD_ELEMS; i += (int)blockDim.x) {
        float value[QUAD_ELEMS];
        decode_quad<T>(row, i, value);
        for (int j = 0; j < QUAD_ELEMS; j++)
            largest = larger_of(largest, fabsf(value[j]));
    }
    return largest;
}

/* Of what all threads of the block have, for all of them. */
DEVICE float largest_of_block(float *of_warp, float mine)
{
    for (int mask = WARP_LANES / 2; mask > 0; mask /= 2)
        mine = larger_of(mine, shuffle_xor(mine, mask));
    if (threadIdx.x % WARP_LANES == 0)
        of_warp[threadIdx.x / WARP_LANES] = mine;
    sync_block();
    float largest = 0.0f;
    for (int i = 0; i < (int)blockDim.x / WARP_LANES; i++)
        largest = larger_of(largest, of_warp[i]);
    return largest;
}

/* Of a row of zeros, or of numbers that are as good as zero: 1. */
DEVICE float scale_of(float largest)
{
    const float scale = largest / E4M3_MAX;
    return scale == 0.0f ? 1.0f : scale;
}

DEVICE uint32_t codes_of(const float value[QUAD_ELEMS], float scale)
{
    return to_e4m3_pair(value[0] / scale, value[1] / scale) |
           to_e4m3_pair(value[2] / scale, value[3] / scale) << 16;
}

template <quant_type T>
DEVICE void write_codes(const uint8_t *row, int n_cols, float scale, eight_codes *out)
{
    for (int i = (int)threadIdx.x; i < n_cols / ELEMS_OF_THREAD; i += (int)blockDim.x) {
        eight_codes eight;
        for (int j = 0; j < 2; j++) {
            float value[QUAD_ELEMS];
            decode_quad<T>(row, 2 * i + j, value);
            eight.of_quad[j] = codes_of(value, scale);
        }
        out[i] = eight;
    }
}

/* Grid: x = row; those from n_rows on are zeros. The second look at a row finds it in a cache.
 */
template <quant_type T>
KERNEL void quantize_row(const uint8_t *rows, int64_t row_bytes, int n_rows, int n_cols,
                         uint8_t *codes, float *scales)
{
    SHARED(float, of_warp, ROW_WARPS_MAX);
    const int64_t at = blockIdx.x;
    eight_codes *out = (eight_codes *)(codes + at * n_cols);
    if (at >= n_rows) {
        for (int i = (int)threadIdx.x; i < n_cols / ELEMS_OF_THREAD; i += (int)blockDim.x)
            out[i] = {{0, 0}};
        return;
    }
    const uint8_t *row = rows + at * row_bytes;
    const float scale = scale_of(largest_of_block(of_warp, largest_of_thread<T>(row, n_cols)));
    write_codes<T>(row, n_cols, scale, out);
    if (threadIdx.x == 0)
        scales[at] = scale;
}

static void quantize_rows(stream_t s, quant_type type, const uint8_t *rows, int n_rows,
                          int n_padded, int n_cols, uint8_t *codes, float *scales)
{
    const int64_t row_bytes = (int64_t)quant_row_bytes(type, (size_t)n_cols);
    const int wanted = divide_up(n_cols / ELEMS_OF_THREAD, WARP_LANES) * WARP_LANES;
    const int threads = wanted < ROW_THREADS_MAX ? wanted : (int)ROW_THREADS_MAX;
    ASSERT(n_cols % PRODUCT_INPUTS_MULTIPLE == 0 && is_on(codes, 16));
    WITH_QUANT_TYPE(type, LAUNCH(quantize_row<T>, n_padded, threads, 0, s, rows, row_bytes,
                                 n_rows, n_cols, codes, scales));
}

void quantize_fp8(stream_t s, const matrix &w, uint8_t *codes, float *scales)
{
    ASSERT(w.blocks);
    if (w.n_rows == 0)
        return;
    quantize_rows(s, w.type, w.blocks, w.n_rows, w.n_rows, w.n_cols, codes, scales);
}

/* ------------------------------------------------------------------ sums to results */

struct finish_args {
    const float *sums; /* [T, n_outputs] */
    int n_outputs;     /* of the slice */
    const float *x_scales, *w_scales;
    const float *bias; /* or NULL */
    product_out kind;
    void *y;
    int64_t y_stride;
    bool is_wide;
};

DEVICE quad_f32 finished_quad(const finish_args &a, int row, int q)
{
    const float x_scale = a.x_scales[row];
    const quad_f32 w_scale = load_quad(a.w_scales, q, a.n_outputs, true);
    quad_f32 y = load_quad(a.sums + (int64_t)row * a.n_outputs, q, a.n_outputs, true);
    for (int i = 0; i < 4; i++)
        y.v[i] *= w_scale.v[i] * x_scale;
    if (a.bias) {
        const quad_f32 bias = load_quad(a.bias, q, a.n_outputs, a.is_wide);
        for (int i = 0; i < 4; i++)
            y.v[i] += bias.v[i];
    }
    return y;
}

/* Grid: x = quads of outputs, y = rows. */
KERNEL void finish_row(finish_args a)
{
    const int q = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    const int row = (int)blockIdx.y;
    if (4 * q >= a.n_outputs)
        return;
    quad_f32 y = finished_quad(a, row, q);
    const int64_t at = row * a.y_stride;
    if (a.kind == PRODUCT_BF16) {
        store_quad_bf16((bf16 *)a.y + at, q, a.n_outputs, a.is_wide, y);
        return;
    }
    float *out = (float *)a.y + at;
    if (a.kind == PRODUCT_F32_ADD) {
        const quad_f32 before = load_quad(out, q, a.n_outputs, a.is_wide);
        for (int i = 0; i < 4; i++)
            y.v[i] += before.v[i];
    }
    store_quad(out, q, a.n_outputs, a.is_wide, y);
}

static void finish(stream_t s, finish_args a, int n_rows)
{
    const size_t element = product_out_bytes(a.kind);
    a.is_wide = a.y_stride % 4 == 0 && is_on(a.y, 4 * element) && is_on(a.bias, 16);
    const dim3 grid((unsigned)divide_up(a.n_outputs, 4 * FLAT_THREADS), (unsigned)n_rows);
    LAUNCH(finish_row, grid, FLAT_THREADS, 0, s, a);
    const uint64_t n = (uint64_t)a.n_outputs;
    const uint64_t t = (uint64_t)n_rows;
    const uint64_t written = t * n * element;
    count_op(DEVICE_PRODUCT, 1,
             (t * n + n + t + (a.bias ? n : 0)) * sizeof(float) +
                 (a.kind == PRODUCT_F32_ADD ? written : 0),
             written, 0);
}

/* ------------------------------------------------------------------ products */

static size_t round_up(size_t n, size_t multiple)
{
    return (n + multiple - 1) / multiple * multiple;
}

static size_t rows_of(const products_options &o)
{
    return round_up((size_t)o.n_rows_max, ROWS_MULTIPLE);
}

/* Slices are as wide as the next power of two of rows leaves room for, so that few widths of
 * them have plans. */
static size_t rows_of_slice(size_t n_rows)
{
    return power_of_two_from(n_rows < ROWS_MULTIPLE ? (size_t)ROWS_MULTIPLE : n_rows);
}

static size_t sums_bytes_of(const products_options &o)
{
    const size_t all = rows_of_slice(rows_of(o)) * (size_t)o.fp8_outputs_max * sizeof(float);
    const size_t least = rows_of(o) * SLICE_OUTPUTS_MIN * sizeof(float);
    const size_t most = least > (size_t)SLICE_SUMS_BYTES ? least : (size_t)SLICE_SUMS_BYTES;
    return all < most ? all : most;
}

static size_t codes_bytes_of(const products_options &o)
{
    return rows_of(o) * (size_t)o.fp8_inputs_max;
}

size_t fp8_scratch_bytes(const products_options &o)
{
    if (o.fp8_inputs_max == 0)
        return 0;
    return codes_bytes_of(o) + rows_of(o) * sizeof(float) + sums_bytes_of(o);
}

fp8_scratch fp8_lay_out(const products_options &o, void *memory)
{
    fp8_scratch f;
    f.sums_bytes = sums_bytes_of(o);
    f.x_codes = (uint8_t *)memory;
    f.x_scales = (float *)(f.x_codes + codes_bytes_of(o));
    f.sums = f.x_scales + rows_of(o);
    return f;
}

int fp8_slice_outputs(size_t sums_bytes, int n_rows, int n_outputs)
{
    const size_t fit = sums_bytes / (rows_of_slice((size_t)n_rows) * sizeof(float));
    if (fit >= (size_t)n_outputs)
        return n_outputs;
    return fit < SLICE_OUTPUTS_MIN ? (int)SLICE_OUTPUTS_MIN
                                   : (int)(fit / SLICE_OUTPUTS_MIN * SLICE_OUTPUTS_MIN);
}

static void quantize_x(stream_t s, const fp8_scratch &scratch, const product_args &a,
                       int n_padded)
{
    quantize_rows(s, QUANT_BF16, (const uint8_t *)a.x, a.n_rows, n_padded, a.n_inputs,
                  scratch.x_codes, scratch.x_scales);
    const uint64_t n = (uint64_t)a.n_rows * (uint64_t)a.n_inputs;
    count_op(DEVICE_PRODUCT, 1, n * sizeof(bf16), n + (uint64_t)a.n_rows * sizeof(float), 0);
}

/* What the codes are does not matter. */
int fp8_try(lt *large, const fp8_scratch &scratch, int n_inputs, stream_t s, struct err *e)
{
    product_args a = {};
    a.w = scratch.x_codes;
    a.x_codes = scratch.x_codes;
    a.n_outputs = FP8_OUTPUTS_MULTIPLE;
    a.n_inputs = n_inputs;
    a.n_rows = ROWS_MULTIPLE;
    a.kind = PRODUCT_F32;
    a.y = scratch.sums;
    a.y_stride = a.n_outputs;
    return lt_multiply(large, s, a, e);
}

static int padded(int n_rows)
{
    return divide_up(n_rows, ROWS_MULTIPLE) * ROWS_MULTIPLE;
}

/* Of the outputs from `first` on, as many as the sums have room for. */
static product_args slice_of(const fp8_scratch &scratch, const matrix &w, int n_rows, int first)
{
    const int most = fp8_slice_outputs(scratch.sums_bytes, n_rows, w.n_rows);
    product_args part = {};
    part.w = w.codes + (int64_t)first * w.n_cols;
    part.n_outputs = w.n_rows - first < most ? w.n_rows - first : most;
    part.n_inputs = w.n_cols;
    part.x_codes = scratch.x_codes;
    part.n_rows = n_rows;
    part.kind = PRODUCT_F32;
    part.y = scratch.sums;
    part.y_stride = part.n_outputs;
    ASSERT((size_t)n_rows * (size_t)part.n_outputs * sizeof(float) <= scratch.sums_bytes);
    return part;
}

static void finish_slice(stream_t s, const fp8_scratch &scratch, const matrix &w,
                         const product_args &a, int first, int n_outputs)
{
    finish_args f = {};
    f.sums = scratch.sums;
    f.n_outputs = n_outputs;
    f.x_scales = scratch.x_scales;
    f.w_scales = w.scales + first;
    f.bias = a.bias ? a.bias + first : nullptr;
    f.kind = a.kind;
    f.y = (uint8_t *)a.y + (size_t)first * product_out_bytes(a.kind);
    f.y_stride = a.y_stride;
    finish(s, f, a.n_rows);
}

int fp8_multiply(lt *large, const fp8_scratch &scratch, stream_t s, const matrix &w,
                 const product_args &a, struct err *e)
{
    const int n_rows = padded(a.n_rows);
    ASSERT(w.n_rows % FP8_OUTPUTS_MULTIPLE == 0 && a.n_rows <= GRID_Y_MAX);
    quantize_x(s, scratch, a, n_rows);
    for (int first = 0, n; first < w.n_rows; first += n) {
        const product_args part = slice_of(scratch, w, n_rows, first);
        n = part.n_outputs;
        TRY(lt_multiply(large, s, part, e));
        finish_slice(s, scratch, w, a, first, n);
    }
    return 0;
}

void fp8_prepare(lt *large, const fp8_scratch &scratch, stream_t s, const matrix &w, int n_rows)
{
    for (int first = 0, n; first < w.n_rows; first += n) {
        const product_args part = slice_of(scratch, w, padded(n_rows), first);
        n = part.n_outputs;
        lt_prepare(large, s, part);
    }
}
