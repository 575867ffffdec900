/*
 * Stored blocks to bfloat16 rows: each value is that of quant_dequantize_row, rounded to
 * nearest even.
 *
 * Bound by bytes: reads the blocks once, writes 2 bytes an element, both in order. A thread
 * writes eight elements, so a warp's stores are 512 bytes in a run.
 */
#include "blocks.cuh"
#include "count.cuh"
#include "products_int.h"

extern "C" {
#include "base/check.h"
}

enum { THREADS_MAX = 256, ELEMS_OF_THREAD = 2 * QUAD_ELEMS };

struct alignas(16) eight_bf16 {
    bf16 at[ELEMS_OF_THREAD];
};

/* Grid: x = row of the matrix. */
template <quant_type T>
KERNEL void dequantize_row(const uint8_t *w, int64_t row_bytes, int n_cols, bf16 *rows)
{
    const uint8_t *row = w + (int64_t)blockIdx.x * row_bytes;
    eight_bf16 *out = (eight_bf16 *)(rows + (int64_t)blockIdx.x * n_cols);
    for (int i = (int)threadIdx.x; i < n_cols / ELEMS_OF_THREAD; i += (int)blockDim.x) {
        float value[ELEMS_OF_THREAD];
        decode_quad<T>(row, 2 * i, value);
        decode_quad<T>(row, 2 * i + 1, value + QUAD_ELEMS);
        eight_bf16 rounded;
        for (int j = 0; j < ELEMS_OF_THREAD; j++)
            rounded.at[j] = to_bf16(value[j]);
        out[i] = rounded;
    }
}

/* The same an element at a time, for rows that are no whole number of a thread's share: only
 * float types have them, and theirs are one run. */
template <quant_type T> KERNEL void round_floats(const uint8_t *w, int64_t n, bf16 *rows)
{
    const int64_t i = (int64_t)blockIdx.x * THREADS_MAX + threadIdx.x;
    if (i < n)
        rows[i] = to_bf16(read_float<T>(w + i * block_of<T>::BYTES, 0));
}

static void launch_floats(stream_t s, quant_type type, const uint8_t *w, int64_t n, bf16 *rows)
{
    const dim3 grid((unsigned)((n + THREADS_MAX - 1) / THREADS_MAX));
    switch (type) {
    case QUANT_F32: LAUNCH(round_floats<QUANT_F32>, grid, THREADS_MAX, 0, s, w, n, rows); break;
    case QUANT_F16: LAUNCH(round_floats<QUANT_F16>, grid, THREADS_MAX, 0, s, w, n, rows); break;
    default: LAUNCH(round_floats<QUANT_BF16>, grid, THREADS_MAX, 0, s, w, n, rows); break;
    }
}

static void launch_rows(stream_t s, quant_type type, const uint8_t *w, int n_rows, int n_cols,
                        bf16 *rows)
{
    const int64_t row_bytes = (int64_t)quant_row_bytes(type, (size_t)n_cols);
    const int wanted = (n_cols / ELEMS_OF_THREAD + 31) / 32 * 32;
    const int threads = wanted < THREADS_MAX ? wanted : THREADS_MAX;
    WITH_QUANT_TYPE(type, LAUNCH(dequantize_row<T>, dim3((unsigned)n_rows),
                                 dim3((unsigned)threads), 0, s, w, row_bytes, n_cols, rows));
}

void dequantize_rows(stream_t s, quant_type type, const uint8_t *w, int n_rows, int n_cols,
                     bf16 *rows)
{
    const int64_t n = (int64_t)n_rows * n_cols;
    if (n == 0)
        return;
    if (n_cols % ELEMS_OF_THREAD == 0)
        launch_rows(s, type, w, n_rows, n_cols, rows);
    else
        launch_floats(s, type, w, n, rows);
    const uint64_t bytes = (uint64_t)n_rows * quant_row_bytes(type, (size_t)n_cols);
    count_op(DEVICE_DEQUANTIZE, 1, bytes, (uint64_t)n * sizeof(bf16), (uint64_t)n);
}

void dequantize(stream_t s, const matrix &w, bf16 *rows)
{
    ASSERT(w.blocks);
    dequantize_rows(s, w.type, w.blocks, w.n_rows, w.n_cols, rows);
}
