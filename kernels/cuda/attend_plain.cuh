/*
 * Attention without matrix units: a warp for each query, a lane for each key of a page, then a
 * lane for each dim. For float32 keys and for head dims that have no tile (attend_tile.cuh).
 */
#ifndef SHEAF_CUDA_ATTEND_PLAIN_CUH
#define SHEAF_CUDA_ATTEND_PLAIN_CUH

#include "attend_merge.cuh"
#include "attend_walk.cuh"

DEVICE float attend_to_float(float x)
{
    return x;
}

DEVICE float attend_to_float(bf16 x)
{
    return to_float(x);
}

/* A warp's softmax over all lanes; a query has DIMS dims in each. */
template <int DIMS> struct attend_plain_state {
    float top, sum, o[DIMS];
};

DEVICE float attend_warp_max(float x)
{
    for (int mask = 16; mask > 0; mask /= 2)
        x = fmaxf(x, shuffle_xor(x, mask));
    return x;
}

DEVICE float attend_warp_sum(float x)
{
    for (int mask = 16; mask > 0; mask /= 2)
        x = x + shuffle_xor(x, mask);
    return x;
}

/* The first n_keys keys of a page. */
template <class T, int DIMS>
DEVICE void attend_plain_page(const attend_launch &l, const attend_tile &t,
                              const attend_source<T> &source, int n_keys, const bf16 *q,
                              attend_plain_state<DIMS> *s)
{
    const int lane = (int)threadIdx.x, head_dim = l.a.head_dim;
    float score = -INFINITY;
    if (lane < n_keys) {
        const T *key = attend_token_of(l, t, source, head_dim, lane);
        score = 0;
        for (int i = 0; i < head_dim; i++)
            score = fmaf(to_float(q[i]), attend_to_float(key[i]), score);
        score *= l.scale_log2;
    }
    const float top = fmaxf(s->top, attend_warp_max(score));
    const float base = top == -INFINITY ? 0.0f : top;
    const float faded = fast_exp2(s->top - base), weight = fast_exp2(score - base);
    s->top = top;
    s->sum = fmaf(s->sum, faded, attend_warp_sum(weight));
    for (int d = 0; d < DIMS; d++)
        s->o[d] *= faded;
    for (int j = 0; j < n_keys; j++) {
        const float w = shuffle(weight, j);
        const T *value = attend_token_of(l, t, source, head_dim, j) + KV_PAGE_TOKENS * head_dim;
        for (int d = 0; d < DIMS; d++)
            if (d * 32 + lane < head_dim)
                s->o[d] = fmaf(w, attend_to_float(value[d * 32 + lane]), s->o[d]);
    }
}

template <int DIMS>
DEVICE void attend_plain_put(const attend_launch &l, const attend_tile &t, int position,
                             const attend_plain_state<DIMS> &s)
{
    const int lane = (int)threadIdx.x;
    if (l.partial) {
        if (!attend_is_in_split(t, position))
            return;
        const size_t at = attend_partial_of(l, t, 0, (int)blockIdx.z);
        if (lane == 0)
            attend_put_partial_sums(l, at, s.top, s.sum);
        for (int d = 0; d < DIMS; d++)
            if (d * 32 + lane < l.a.head_dim)
                l.partial[at * (size_t)l.a.head_dim + (size_t)(d * 32 + lane)] = s.o[d];
        return;
    }
    const float share = 1.0f / s.sum;
    bf16 *out = l.a.mixed + attend_place_of(l, t, 0);
    for (int d = 0; d < DIMS; d++)
        if (d * 32 + lane < l.a.head_dim)
            out[d * 32 + lane] = to_bf16(s.o[d] * share + 0.0f);
}

/* Tiles of one query; DIMS = head dim / 32, rounded up. */
template <class T, int DIMS>
KERNEL void __launch_bounds__(32) attend_plain(const attend_launch l)
{
    attend_tile t;
    if (!attend_tile_open(l, &t))
        return;
    const bf16 *q = l.a.q + attend_place_of(l, t, 0);
    const int position = l.a.rows[attend_row_of(l, t, 0)].position;
    attend_plain_state<DIMS> s;
    s.top = -INFINITY;
    s.sum = 0;
    for (int d = 0; d < DIMS; d++)
        s.o[d] = 0;
    attend_walk w = attend_walk_open(t, 0);
    while (attend_walk_next(l, t, &w)) {
        const attend_page page = attend_page_of(l, t, w);
        const int n_seen = position + 1 - page.first_position;
        const int n_keys = n_seen < page.n_keys ? n_seen : page.n_keys;
        if (n_keys > 0)
            attend_plain_page(l, t, attend_source_of<T>(l, t, w, l.a.head_dim), n_keys, q, &s);
    }
    attend_plain_put(l, t, position, s);
}

#endif
