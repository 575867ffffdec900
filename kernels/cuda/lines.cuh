/*
 * Rows read and written in wide accesses, and sums over lanes: what the small operations share.
 *
 * A quad is four neighbouring elements, an octet eight. Rows that do not lie on the boundary of
 * a wide access (is_on), and the end of a row whose width is no multiple, go element by
 * element; the values and the order in which they are added are the same.
 */
#ifndef SHEAF_CUDA_LINES_CUH
#define SHEAF_CUDA_LINES_CUH

#include "port.cuh"

enum { WARP_LANES = 32, GRID_Y_MAX = 65535 };
enum { FLAT_THREADS = 128 }; /* of kernels whose threads know nothing of each other */

struct alignas(16) quad_f32 {
    float v[4];
};
struct alignas(8) quad_bf16 {
    bf16 v[4];
};
struct alignas(16) octet_bf16 {
    bf16 v[8];
};
struct alignas(16) line_16 {
    uint32_t word[4];
};

inline int divide_up(int64_t n, int by)
{
    return (int)((n + by - 1) / by);
}

inline bool is_on(const void *at, size_t bytes)
{
    return (uintptr_t)at % bytes == 0;
}

/* Elements 4 q .. of a row, zeros behind its end. */
DEVICE quad_f32 load_quad(const float *row, int q, int n_cols, bool is_wide)
{
    if (is_wide)
        return *(const quad_f32 *)(row + 4 * q);
    quad_f32 quad;
    for (int i = 0; i < 4; i++)
        quad.v[i] = 4 * q + i < n_cols ? row[4 * q + i] : 0.0f;
    return quad;
}

DEVICE void store_quad(float *row, int q, int n_cols, bool is_wide, const quad_f32 &quad)
{
    if (is_wide) {
        *(quad_f32 *)(row + 4 * q) = quad;
        return;
    }
    for (int i = 0; i < 4 && 4 * q + i < n_cols; i++)
        row[4 * q + i] = quad.v[i];
}

DEVICE void store_quad_bf16(bf16 *row, int q, int n_cols, bool is_wide, const quad_f32 &quad)
{
    quad_bf16 rounded;
    for (int i = 0; i < 4; i++)
        rounded.v[i] = to_bf16(quad.v[i]);
    if (is_wide) {
        *(quad_bf16 *)(row + 4 * q) = rounded;
        return;
    }
    for (int i = 0; i < 4 && 4 * q + i < n_cols; i++)
        row[4 * q + i] = rounded.v[i];
}

DEVICE float silu_of(float x)
{
    return fast_divide(x, 1.0f + expf(-x));
}

/* The sum of a warp's values in every lane, always in the same order. */
DEVICE float sum_of_warp(float value)
{
    for (int mask = WARP_LANES / 2; mask > 0; mask /= 2)
        value += shuffle_xor(value, mask);
    return value;
}

#endif
