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

/*
 * mixed = the splits of a row and head, weighed by their sums. A warp for each; grid: x attend
 * rows, y heads. Reads n_splits * (HD + 2) floats and writes HD bfloat16: bandwidth.
 */
KERNEL void __launch_bounds__(32) attend_merge(const attend_launch l, int n_splits_max)
{
    const int lane = (int)threadIdx.x, row = (int)blockIdx.x, head = (int)blockIdx.y;
    if (l.a.rows[row].row < 0)
        return;
    const size_t head_dim = (size_t)l.a.head_dim;
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
    bf16 *out =
        l.a.mixed + ((size_t)l.a.rows[row].row * (size_t)l.a.n_heads + (size_t)head) * head_dim;
    for (size_t d = 0; d < head_dim; d += 32) {
        float o = 0;
        for (int i = 0; i < n_splits; i++) {
            const float w = shuffle(weight, i);
            const size_t at = attend_partial_row(l, row, head, i) * head_dim + d + (size_t)lane;
            if (d + (size_t)lane < head_dim && w != 0)
                o = fmaf(w, l.partial[at], o);
        }
        if (d + (size_t)lane < head_dim)
            out[d + (size_t)lane] = to_bf16(o / total);
    }
}

#endif
