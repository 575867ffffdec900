/*
 * Keys split over thread blocks (mode fast): what each leaves behind, and how it comes
 * together.
 *
 * partial: o [splits, attend rows, H, HD], not divided by its sum, then (top, sum)
 * [splits, attend rows, H, 2]: the greatest score in powers of two, and the sum of the weights
 * 2^(score - top). A split whose positions all come after a row's has nothing of it.
 */
#ifndef SHEAF_CUDA_ATTEND_MERGE_CUH
#define SHEAF_CUDA_ATTEND_MERGE_CUH

#include "attend_walk.cuh"
#include "lines.cuh"

enum { ATTEND_SPLITS_MAX = 32 }; /* a lane of the merging warp for each */

DEVICE size_t attend_partial_row(const attend_launch &l, int row, int head, int split)
{
    return ((size_t)split * (size_t)l.a.n_attend_rows + (size_t)row) * (size_t)l.a.n_heads +
           (size_t)head;
}

DEVICE size_t attend_partial_of(const attend_launch &l, const attend_tile &t, int query,
                                int split)
{
    return attend_partial_row(l, attend_row_of(l, t, query), attend_head_of(l, t, query),
                              split);
}

DEVICE float *attend_partial_sums(const attend_launch &l, int n_splits)
{
    return l.partial + attend_partial_row(l, 0, 0, n_splits) * (size_t)l.a.head_dim;
}

/* Has a split something of a row? */
DEVICE bool attend_is_in_split(const attend_tile &t, int position)
{
    return position / KV_PAGE_TOKENS >= t.page_begin;
}

DEVICE void attend_put_partial_sums(const attend_launch &l, size_t at, float top, float sum)
{
    float *sums = attend_partial_sums(l, (int)gridDim.z) + at * 2;
    sums[0] = top;
    sums[1] = sum;
}

/* Splits whose parts are on their way to a lane at once. */
enum { ATTEND_MERGE_AHEAD = 8 };

/* The dims of a quad of all splits, weighed; lane i has split i's weight. Parts of weight 0 may
 * be no numbers. */
DEVICE quad_f32 attend_merge_quad(const float *part, size_t apart, bool is_there, int n_splits,
                                  float weight)
{
    quad_f32 sum = {{0, 0, 0, 0}};
    for (int first = 0; first < n_splits; first += ATTEND_MERGE_AHEAD) {
        quad_f32 o[ATTEND_MERGE_AHEAD];
#pragma unroll
        for (int i = 0; i < ATTEND_MERGE_AHEAD; i++) {
            o[i] = {{0, 0, 0, 0}};
            if (is_there && first + i < n_splits)
                o[i] = *reinterpret_cast<const quad_f32 *>(part);
            part += apart;
        }
#pragma unroll
        for (int i = 0; i < ATTEND_MERGE_AHEAD; i++) {
            const float w = shuffle(weight, first + i);
            for (int e = 0; e < 4; e++)
                sum.v[e] = w != 0 ? fmaf(w, o[i].v[e], sum.v[e]) : sum.v[e];
        }
    }
    return sum;
}

/*
 * mixed = the splits of a row and head, weighed by their sums. A warp for each, a lane for four
 * dims; grid: x attend rows, y heads. Reads n_splits * (HD + 2) floats and writes HD bfloat16:
 * bandwidth, and where rows are few the time that a read takes to arrive: one after the other
 * they would take longer than attention itself.
 */
KERNEL void __launch_bounds__(32) attend_merge(const attend_launch l, int n_splits_max)
{
    const int lane = (int)threadIdx.x, row = (int)blockIdx.x, head = (int)blockIdx.y;
    if (l.a.rows[row].row < 0)
        return;
    const int head_dim = l.a.head_dim;
    const float *sums = attend_partial_sums(l, n_splits_max);
    const int n_splits = l.a.rows[row].position / KV_PAGE_TOKENS / l.split_pages + 1;
    float top = -INFINITY, sum = 0;
    if (lane < n_splits) {
        const size_t at = attend_partial_row(l, row, head, lane) * 2;
        top = sums[at];
        sum = sums[at + 1];
    }
    float base = top;
    for (int mask = 16; mask > 0; mask /= 2)
        base = fmaxf(base, shuffle_xor(base, mask));
    const float weight = top == -INFINITY ? 0.0f : fast_exp2(top - base);
    float total = weight * sum;
    for (int mask = 16; mask > 0; mask /= 2)
        total = total + shuffle_xor(total, mask);
    const float *part =
        l.partial + attend_partial_row(l, row, head, 0) * (size_t)head_dim + 4 * lane;
    const size_t apart = attend_partial_row(l, 0, 0, 1) * (size_t)head_dim;
    bf16 *out =
        l.a.mixed + ((size_t)l.a.rows[row].row * (size_t)l.a.n_heads + (size_t)head) * head_dim;
    for (int d = 0; d < head_dim; d += 4 * 32) {
        const bool is_there = d + 4 * lane < head_dim;
        quad_f32 o = attend_merge_quad(part + d, apart, is_there, n_splits, weight);
        for (int e = 0; e < 4; e++)
            o.v[e] = o.v[e] / total;
        if (is_there)
            store_quad_bf16(out, d / 4 + lane, head_dim, true, o);
    }
}

#endif
