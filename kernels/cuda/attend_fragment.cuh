/*
 * A warp's part of a tile: queries, keys and values as fragments of matrix units, and what is
 * done to them for one page. The plan is at the top of attend.cu.
 */
#ifndef SHEAF_CUDA_ATTEND_FRAGMENT_CUH
#define SHEAF_CUDA_ATTEND_FRAGMENT_CUH

#include "attend_walk.cuh"

/* 16 bytes, as they are copied. */
struct alignas(16) attend_chunk {
    uint32_t words[4];
};

enum { ROWS = 16, CHUNK = 8 }; /* queries of a fragment, bfloat16 of a chunk */

/* A tile's geometry. Rows in shared memory are an odd number of chunks apart, so that eight
 * rows of a matrix lie in different banks. */
template <int HD, int WARPS, int STACK> struct attend_shape {
    static constexpr int ROW_CHUNKS = HD / CHUNK;
    static constexpr int STRIDE = ROW_CHUNKS + 1;
    static constexpr int UNIT = KV_PAGE_TOKENS * STRIDE; /* a page's keys, or its values */
    static constexpr int SLOTS = WARPS;                  /* pages in shared memory */
    static constexpr int WARP_ROWS = ROWS * STACK;
    static constexpr int THREADS = 32 * WARPS;
    static constexpr size_t BYTES =
        sizeof(attend_chunk) * (size_t)(SLOTS * 2 * UNIT + WARPS * WARP_ROWS * STRIDE);
    /* Queries stay in registers where accumulators leave room. */
    static constexpr bool HOLDS_QUERIES = STACK * HD <= 128;
};

/* A thread's part of its warp's rows: row g and g + 8 of each fragment, g = lane / 4. */
template <int HD, int STACK> struct attend_state {
    float o[STACK][HD / 8][4];
    float top[STACK][2], sum[STACK][2];
    int position[STACK][2]; /* INT32_MAX: no query, the row is all zeros */
    uint32_t q[STACK * HD <= 128 ? STACK : 1][STACK * HD <= 128 ? HD / 16 : 1][4];
};

struct attend_scores {
    float s[4][4]; /* [8 keys each][row g: two keys, row g + 8: two keys] */
};

DEVICE uint32_t attend_pack(float low, float high)
{
    return (uint32_t)to_bf16(low).bits | (uint32_t)to_bf16(high).bits << 16;
}

DEVICE int attend_lane()
{
    return (int)(threadIdx.x % 32);
}

DEVICE int attend_warp()
{
    return (int)(threadIdx.x / 32);
}

/* ------------------------------------------------------------------ to shared memory */

/* Keys, or values, of tokens that stand anywhere; zeros stand for what no row sees, since a
 * slot that was never written may hold NaN. */
template <int HD, int THREADS>
DEVICE void attend_copy_tokens(const attend_launch &l, const attend_tile &t,
                               const attend_source<bf16> &source, int offset, attend_chunk *to,
                               int thread)
{
    constexpr int ROW_CHUNKS = HD / CHUNK, N = KV_PAGE_TOKENS * ROW_CHUNKS;
#pragma unroll 1
    for (int i = thread; i < N; i += THREADS) {
        const int token = i / ROW_CHUNKS, chunk = i % ROW_CHUNKS;
        attend_chunk *shared = to + token * (ROW_CHUNKS + 1) + chunk;
        if (token < source.n_keys)
            copy_async_16(shared,
                          attend_token_of(l, t, source, HD, token) + offset + chunk * CHUNK);
        else
            *shared = {{0, 0, 0, 0}};
    }
}

/* Keys, or values, of a page. A whole page is one run of memory. */
template <int HD, int THREADS>
DEVICE void attend_copy_unit(const attend_launch &l, const attend_tile &t,
                             const attend_source<bf16> &source, bool is_values,
                             attend_chunk *to, int thread)
{
    constexpr int ROW_CHUNKS = HD / CHUNK, N = KV_PAGE_TOKENS * ROW_CHUNKS;
    const int offset = is_values ? KV_PAGE_TOKENS * HD : 0;
    if (source.branch || source.n_keys < KV_PAGE_TOKENS) {
        attend_copy_tokens<HD, THREADS>(l, t, source, offset, to, thread);
        return;
    }
    const bf16 *from = source.page + offset + thread * CHUNK;
#pragma unroll
    for (int first = 0; first < N; first += THREADS) {
        const int token = THREADS % ROW_CHUNKS == 0 ? first / ROW_CHUNKS + thread / ROW_CHUNKS
                                                    : (first + thread) / ROW_CHUNKS;
        if (N % THREADS == 0 || first + thread < N)
            copy_async_16(to + first + thread + token, from + first * CHUNK);
    }
}

/* Rows of queries of the warp, zeros behind the last. */
template <int HD, int STRIDE, int WARP_ROWS>
DEVICE void attend_load_queries(const attend_launch &l, const attend_tile &t, attend_chunk *to)
{
    constexpr int ROW_CHUNKS = HD / CHUNK, N = WARP_ROWS * ROW_CHUNKS;
    const int first = attend_warp() * l.warp_queries;
    for (int i = attend_lane(); i < N; i += 32) {
        const int row = i / ROW_CHUNKS, chunk = i % ROW_CHUNKS;
        attend_chunk *shared = to + row * STRIDE + chunk;
        if (row < l.warp_queries && first + row < t.n_queries)
            *shared = *reinterpret_cast<const attend_chunk *>(
                l.a.q + attend_place_of(l, t, first + row) + chunk * CHUNK);
        else
            *shared = {{0, 0, 0, 0}};
    }
}

/* ------------------------------------------------------------------ arithmetic */

/* Rows 0..15 of a fragment, dims 16 k to 16 k + 15. */
template <int STRIDE>
DEVICE void attend_load_rows(uint32_t a[4], const attend_chunk *rows, int k)
{
    const int lane = attend_lane();
    load_matrix_x4(a, rows + lane % 16 * STRIDE + 2 * k + lane / 16);
}

template <int HD, int STACK>
DEVICE void attend_open_state(const attend_launch &l, const attend_tile &t,
                              const attend_chunk *queries, attend_state<HD, STACK> *s)
{
    using shape = attend_shape<HD, 1, STACK>;
    const int first = attend_warp() * l.warp_queries;
#pragma unroll
    for (int m = 0; m < STACK; m++) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int row = m * ROWS + h * 8 + attend_lane() / 4;
            const bool is_there = row < l.warp_queries && first + row < t.n_queries;
            s->position[m][h] =
                is_there ? l.a.rows[attend_row_of(l, t, first + row)].position : INT32_MAX;
            s->top[m][h] = -INFINITY;
            s->sum[m][h] = 0;
        }
#pragma unroll
        for (int n = 0; n < HD / 8; n++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                s->o[m][n][e] = 0;
        if constexpr (shape::HOLDS_QUERIES)
#pragma unroll
            for (int k = 0; k < HD / 16; k++)
                attend_load_rows<shape::STRIDE>(s->q[m][k], queries + m * ROWS * shape::STRIDE,
                                                k);
    }
}

/* Fragments FIRST .. FIRST + COUNT - 1 of the warp against the 32 keys of a page. */
template <int HD, int STACK, int FIRST, int COUNT>
DEVICE void attend_score(const attend_state<HD, STACK> &s, const attend_chunk *queries,
                         const attend_chunk *keys, attend_scores *scores)
{
    using shape = attend_shape<HD, 1, STACK>;
    const int lane = attend_lane();
    const attend_chunk *key = keys + (lane / 16 * 8 + lane % 8) * shape::STRIDE + lane / 8 % 2;
#pragma unroll
    for (int m = FIRST; m < FIRST + COUNT; m++)
#pragma unroll
        for (int n = 0; n < 4; n++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                scores[m].s[n][e] = 0;
#pragma unroll
    for (int k = 0; k < HD / 16; k++) {
        uint32_t q[COUNT][4];
#pragma unroll
        for (int m = 0; m < COUNT; m++)
            if constexpr (shape::HOLDS_QUERIES)
#pragma unroll
                for (int e = 0; e < 4; e++)
                    q[m][e] = s.q[FIRST + m][k][e];
            else
                attend_load_rows<shape::STRIDE>(
                    q[m], queries + (FIRST + m) * ROWS * shape::STRIDE, k);
#pragma unroll
        for (int n = 0; n < 2; n++) {
            uint32_t b[4];
            load_matrix_x4(b, key + n * 16 * shape::STRIDE + 2 * k);
#pragma unroll
            for (int m = 0; m < COUNT; m++) {
                mma_16816(scores[FIRST + m].s[2 * n], q[m], b);
                mma_16816(scores[FIRST + m].s[2 * n + 1], q[m], b + 2);
            }
        }
    }
}

/* The last position of a row that goes over the page; -1: the row does not. */
DEVICE int attend_limit(const attend_launch &l, const attend_page &page, int position, int row)
{
    const int query = attend_warp() * l.warp_queries + row;
    if (position == INT32_MAX || (query >= page.begin && query < page.end))
        return position;
    return -1;
}

/* Scores that the fragment's rows do not see become -inf. */
DEVICE void attend_mask(const attend_launch &l, const attend_page &page, int m,
                        const int position[2], attend_scores *scores)
{
    const int lane = attend_lane();
    int limit[2];
#pragma unroll
    for (int h = 0; h < 2; h++)
        limit[h] = attend_limit(l, page, position[h], m * ROWS + h * 8 + lane / 4);
    const int last = page.first_position + KV_PAGE_TOKENS - 1;
    if (!vote(limit[0] < last || limit[1] < last))
        return;
#pragma unroll
    for (int n = 0; n < 4; n++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            if (page.first_position + n * 8 + lane % 4 * 2 + e % 2 > limit[e / 2])
                scores->s[n][e] = -INFINITY;
}

/*
 * Scores become weights, and the state fades where a row's greatest score has grown. Every
 * operation on a row is the same whatever stands in the other rows: to fade by 1 changes
 * nothing.
 */
template <int HD>
DEVICE void attend_weigh(float scale_log2, attend_scores *scores, float top[2], float sum[2],
                         float (*o)[4])
{
    float faded[2];
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float best = -INFINITY;
#pragma unroll
        for (int n = 0; n < 4; n++)
            best = fmaxf(best, fmaxf(scores->s[n][2 * h], scores->s[n][2 * h + 1]));
        best = fmaxf(best, shuffle_xor(best, 1));
        best = fmaxf(best, shuffle_xor(best, 2));
        best = fmaxf(top[h], best * scale_log2);
        const float base = best == -INFINITY ? 0.0f : best;
        faded[h] = fast_exp2(top[h] - base);
        top[h] = best;
        float added = 0;
#pragma unroll
        for (int n = 0; n < 4; n++)
#pragma unroll
            for (int e = 2 * h; e < 2 * h + 2; e++) {
                scores->s[n][e] = fast_exp2(fmaf(scores->s[n][e], scale_log2, -base));
                added = added + scores->s[n][e];
            }
        sum[h] = fmaf(sum[h], faded[h], added);
    }
    if (vote(faded[0] != 1.0f || faded[1] != 1.0f))
#pragma unroll
        for (int n = 0; n < HD / 8; n++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                o[n][e] *= faded[e / 2];
}

template <int HD, int STACK, int FIRST, int COUNT>
DEVICE void attend_weigh_rows(const attend_launch &l, const attend_page &page,
                              attend_state<HD, STACK> *s, attend_scores *scores)
{
#pragma unroll
    for (int m = FIRST; m < FIRST + COUNT; m++) {
        attend_mask(l, page, m, s->position[m], &scores[m]);
        attend_weigh<HD>(l.scale_log2, &scores[m], s->top[m], s->sum[m], s->o[m]);
    }
}

/* o += weights * values, 16 keys at a time. */
template <int HD, int STACK, int FIRST, int COUNT>
DEVICE void attend_add_values(attend_state<HD, STACK> *s, const attend_scores *scores,
                              const attend_chunk *values)
{
    using shape = attend_shape<HD, 1, STACK>;
    const int lane = attend_lane();
    const attend_chunk *value = values + lane % 16 * shape::STRIDE + lane / 16;
#pragma unroll
    for (int k = 0; k < 2; k++) {
        uint32_t p[COUNT][4];
#pragma unroll
        for (int m = 0; m < COUNT; m++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const float *pair = &scores[FIRST + m].s[2 * k + e / 2][e % 2 * 2];
                p[m][e] = attend_pack(pair[0], pair[1]);
            }
#pragma unroll
        for (int n = 0; n < HD / 16; n++) {
            uint32_t b[4];
            load_matrix_x4_transposed(b, value + k * 16 * shape::STRIDE + 2 * n);
#pragma unroll
            for (int m = 0; m < COUNT; m++) {
                mma_16816(s->o[FIRST + m][2 * n], p[m], b);
                mma_16816(s->o[FIRST + m][2 * n + 1], p[m], b + 2);
            }
        }
    }
}

#endif
