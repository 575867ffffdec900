/*
 * Queries, keys and values of a step's rows: norms of heads, rotation, keys and values to their
 * pages. A warp takes a head of a row and its lanes pairs of elements, so that a pair is read
 * and written by the lane that turns it. Bound by memory: [T, (H + 2 KVH) * HD] floats in, as
 * many elements of bfloat16 and of the pages' type out.
 */
#include "count.cuh"
#include "lines.cuh"
#include "ops.cuh"

extern "C" {
#include "base/check.h"
}

enum { HEADS_WARPS = 4, HEADS_THREADS = HEADS_WARPS * WARP_LANES, PAGE_TOKENS = 32 };

struct alignas(8) pair_f32 {
    float a, b;
};
struct alignas(4) pair_bf16 {
    bf16 a, b;
};

/* One head of one row: where it comes from, and what happens to it. */
struct head_item {
    const float *x;
    const float *norm;    /* [HD] or NULL */
    const float *cos_sin; /* of the row */
    int n_pairs;          /* that turn; 0 of a value */
};

/* 1 / sqrt(mean + eps) of a head that has a norm. */
DEVICE float head_scale(const split_heads_args &a, const head_item &h, int lane)
{
    if (!h.norm)
        return 1.0f;
    float sum = 0.0f;
    for (int i = lane; i < a.head_dim; i += WARP_LANES)
        sum += h.x[i] * h.x[i];
    return 1.0f / sqrtf(sum_of_warp(sum) / (float)a.head_dim + a.eps);
}

DEVICE void store_pair(float *at, const pair_f32 &x)
{
    *(pair_f32 *)at = x;
}

DEVICE void store_pair(bf16 *at, const pair_f32 &x)
{
    *(pair_bf16 *)at = {to_bf16(x.a), to_bf16(x.b)};
}

DEVICE void store_one(float *at, float x)
{
    *at = x;
}

DEVICE void store_one(bf16 *at, float x)
{
    *at = to_bf16(x);
}

DEVICE pair_f32 load_elements(const head_item &h, float scale, int i, int j)
{
    pair_f32 x = j == i + 1 ? *(const pair_f32 *)(h.x + i) : pair_f32{h.x[i], h.x[j]};
    if (h.norm) {
        x.a = x.a * scale * h.norm[i];
        x.b = x.b * scale * h.norm[j];
    }
    return x;
}

/* Pair p of those that turn is (2 p, 2 p + 1) or (p, p + n_pairs); behind them, from n_rot on,
 * neighbours are pairs that stay as they are. */
template <typename OUT>
DEVICE void write_head(const split_heads_args &a, const head_item &h, int lane, OUT *out)
{
    const float scale = head_scale(a, h, lane);
    for (int p = lane; p < a.head_dim / 2; p += WARP_LANES) {
        const bool turns = p < h.n_pairs;
        const bool is_apart = turns && a.pairing == ROPE_NEOX && h.n_pairs > 1;
        const int i = is_apart ? p : 2 * p;
        const int j = is_apart ? p + h.n_pairs : 2 * p + 1;
        pair_f32 x = load_elements(h, scale, i, j);
        if (turns) {
            const pair_f32 turn = *(const pair_f32 *)(h.cos_sin + 2 * p);
            x = {x.a * turn.a - x.b * turn.b, x.a * turn.b + x.b * turn.a};
        }
        if (is_apart) {
            store_one(out + i, x.a);
            store_one(out + j, x.b);
        } else {
            store_pair(out + i, x);
        }
    }
}

/* Where the key (0) or value (1) of a row's KV head goes, in elements. */
DEVICE int64_t kv_place(const split_heads_args &a, int row, int kv_head, int which)
{
    const int page = a.kv_slots[row] / PAGE_TOKENS;
    const int slot = a.kv_slots[row] % PAGE_TOKENS;
    const int64_t of_page = (int64_t)a.layer * a.kv.n_pages + page;
    const int64_t half = (of_page * a.kv.n_kv_heads + kv_head) * 2 + which;
    return (half * PAGE_TOKENS + slot) * a.head_dim;
}

DEVICE void write_kv(const split_heads_args &a, const head_item &h, int lane, int64_t at)
{
    if (a.kv.type == KV_BF16)
        write_head(a, h, lane, (bf16 *)a.kv.data + at);
    else
        write_head(a, h, lane, (float *)a.kv.data + at);
}

/* Items are rows times heads: of a row its query heads, its key heads, its value heads. */
KERNEL void split_head_items(split_heads_args a)
{
    const int lane = (int)threadIdx.x % WARP_LANES;
    const int item = (int)blockIdx.x * HEADS_WARPS + (int)threadIdx.x / WARP_LANES;
    const int n_all = a.n_heads + 2 * a.n_kv_heads;
    const int row = item / n_all;
    if (row >= a.n_rows) /* the whole warp */
        return;
    const int head = item % n_all;
    head_item h = {a.qkv + (int64_t)item * a.head_dim, a.q_norm,
                   a.cos_sin + (int64_t)row * a.n_rot, a.n_rot / 2};
    if (head < a.n_heads) {
        write_head(a, h, lane, a.q + ((int64_t)row * a.n_heads + head) * a.head_dim);
    } else if (a.kv_slots[row] < 0) { /* again the whole warp */
        return;
    } else if (head < a.n_heads + a.n_kv_heads) {
        h.norm = a.k_norm;
        write_kv(a, h, lane, kv_place(a, row, head - a.n_heads, 0));
    } else {
        h.norm = NULL;
        h.n_pairs = 0;
        write_kv(a, h, lane, kv_place(a, row, head - a.n_heads - a.n_kv_heads, 1));
    }
}

static void count_heads(const split_heads_args &a)
{
    const uint64_t rows = (uint64_t)a.n_rows;
    const uint64_t q = rows * (uint64_t)a.n_heads;
    const uint64_t kv = rows * (uint64_t)a.n_kv_heads;
    const uint64_t head_dim = (uint64_t)a.head_dim;
    const uint64_t kv_bytes = a.kv.type == KV_BF16 ? sizeof(bf16) : sizeof(float);
    const uint64_t norms = (a.q_norm ? q : 0) + (a.k_norm ? kv : 0);
    const uint64_t n_norms = (a.q_norm ? 1 : 0) + (a.k_norm ? 1 : 0);
    const uint64_t read =
        ((q + 2 * kv) * head_dim + rows * (uint64_t)a.n_rot + n_norms * head_dim) *
            sizeof(float) +
        rows * sizeof *a.kv_slots;
    count_op(DEVICE_SPLIT_HEADS, 1, read, (q * sizeof(bf16) + 2 * kv * kv_bytes) * head_dim,
             (q + kv) * 3 * (uint64_t)a.n_rot + norms * 4 * head_dim);
}

void split_heads(stream_t s, const split_heads_args &a)
{
    ASSERT(a.n_rows >= 0);
    ASSERT(a.head_dim > 0 && a.head_dim % 2 == 0 && a.head_dim == a.kv.head_dim);
    ASSERT(a.n_rot >= 0 && a.n_rot <= a.head_dim && a.n_rot % 2 == 0);
    ASSERT(a.n_kv_heads == a.kv.n_kv_heads && a.layer >= 0 && a.layer < a.kv.n_layers);
    ASSERT(a.kv.type == KV_F32 || a.kv.type == KV_BF16);
    ASSERT(is_on(a.qkv, 8) && is_on(a.cos_sin, 8) && is_on(a.q, 4) && is_on(a.kv.data, 8));
    if (a.n_rows == 0)
        return;
    const int64_t n_items = (int64_t)a.n_rows * (a.n_heads + 2 * a.n_kv_heads);
    ASSERT(n_items < INT32_MAX - HEADS_WARPS);
    LAUNCH(split_head_items, divide_up(n_items, HEADS_WARPS), HEADS_THREADS, 0, s, a);
    count_heads(a);
}
