/*
 * Attention on matrix units: tiles of stacked queries over pages in shared memory. The plan is
 * at the top of attend.cu.
 */
#ifndef SHEAF_CUDA_ATTEND_TILE_CUH
#define SHEAF_CUDA_ATTEND_TILE_CUH

#include "attend_merge.cuh"
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

/* Which fragments of the warp have a row that the page is for: a bit each. */
template <int STACK>
DEVICE int attend_concerned(const attend_launch &l, const attend_page &page)
{
    const int first = attend_warp() * l.warp_queries;
    int concerned = 0;
#pragma unroll
    for (int m = 0; m < STACK; m++) {
        const int begin = first + m * ROWS;
        const int rest = l.warp_queries - m * ROWS;
        const int end = begin + (rest < ROWS ? rest : ROWS);
        if (page.begin < end && page.end > begin)
            concerned |= 1 << m;
    }
    return concerned;
}

/* ------------------------------------------------------------------ values that are no numbers
 */

/*
 * A weight of zero does not keep an infinity or a NaN out of a product on matrix units, and a
 * value that one row sees may be another row's future or another job's. Rows that come out as
 * no numbers are therefore computed once more with care: keys whose values are not finite are
 * taken out of the page, and the rows that see them become NaN altogether.
 */
template <int HD, int STACK> DEVICE bool attend_is_spoiled(const attend_state<HD, STACK> &s)
{
    bool is_finite = true;
#pragma unroll
    for (int m = 0; m < STACK; m++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            if (s.position[m][h] == INT32_MAX)
                continue;
            is_finite = is_finite && fabsf(s.sum[m][h]) < INFINITY;
#pragma unroll
            for (int n = 0; n < HD / 8; n++)
                is_finite = is_finite && fabsf(s.o[m][n][2 * h]) < INFINITY &&
                            fabsf(s.o[m][n][2 * h + 1]) < INFINITY;
        }
    return vote(!is_finite) != 0;
}

/* A bit for each key of the page whose value is not finite. */
template <int HD> DEVICE uint32_t attend_find_bad(const attend_chunk *values)
{
    constexpr int ROW_CHUNKS = HD / CHUNK;
    const attend_chunk *row = values + attend_lane() * (ROW_CHUNKS + 1);
    bool is_bad = false;
#pragma unroll 1
    for (int i = 0; i < ROW_CHUNKS; i++) {
        const attend_chunk chunk = row[i];
#pragma unroll
        for (int k = 0; k < 4; k++)
            is_bad = is_bad || (chunk.words[k] & 0x7f80u) == 0x7f80u ||
                     (chunk.words[k] & 0x7f800000u) == 0x7f800000u;
    }
    return vote(is_bad);
}

template <int HD> DEVICE void attend_clear_bad(uint32_t bad, attend_chunk *values)
{
    constexpr int ROW_CHUNKS = HD / CHUNK;
    attend_chunk *row = values + attend_lane() * (ROW_CHUNKS + 1);
    if (bad >> attend_lane() & 1)
#pragma unroll 1
        for (int i = 0; i < ROW_CHUNKS; i++)
            row[i] = {{0, 0, 0, 0}};
}

template <int HD, int STACK>
DEVICE void attend_spoil_rows(const attend_launch &l, const attend_page &page, uint32_t bad,
                              attend_state<HD, STACK> *s)
{
#pragma unroll
    for (int m = 0; m < STACK; m++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int limit =
                attend_limit(l, page, s->position[m][h], m * ROWS + h * 8 + attend_lane() / 4);
#pragma unroll 1
            for (int key = 0; key < KV_PAGE_TOKENS; key++)
                if ((bad >> key & 1) && page.first_position + key <= limit)
                    s->sum[m][h] = NAN;
        }
}

/* ------------------------------------------------------------------ pages that warps share */

template <int HD, int WARPS, int STACK>
DEVICE void attend_fetch_page(const attend_launch &l, const attend_tile &t, attend_walk *w,
                              attend_chunk *slot, attend_page *page)
{
    using shape = attend_shape<HD, WARPS, STACK>;
    const int thread = (int)threadIdx.x;
    attend_page p = {0, 0, 0, 0};
    if (attend_walk_next(l, t, w)) {
        p = attend_page_of(l, t, *w);
        const attend_source<bf16> source = attend_source_of<bf16>(l, t, *w, HD);
        attend_copy_unit<HD, shape::THREADS>(l, t, source, false, slot, thread);
        attend_copy_unit<HD, shape::THREADS>(l, t, source, true, slot + shape::UNIT, thread);
    }
    if (thread == 0)
        *page = p;
    copy_async_commit();
}

/* All warps over the same pages, SLOTS - 1 of them on their way ahead of the one in use. */
template <int HD, int WARPS, int STACK>
DEVICE void attend_shared_pages(const attend_launch &l, const attend_tile &t,
                                const attend_chunk *queries, attend_chunk *slots,
                                attend_page *pages, bool is_careful, attend_state<HD, STACK> *s)
{
    using shape = attend_shape<HD, WARPS, STACK>;
    constexpr int SLOTS = shape::SLOTS;
    attend_walk w = attend_walk_open(t, WALK_SHARED);
    for (int i = 0; i < SLOTS - 1; i++)
        attend_fetch_page<HD, WARPS, STACK>(l, t, &w, slots + i * 2 * shape::UNIT, &pages[i]);
    for (int slot = 0;; slot = (slot + 1) % SLOTS) {
        copy_async_wait<SLOTS - 2>();
        sync_block(); /* the page is there, and all have left the one before */
        const int free_slot = (slot + SLOTS - 1) % SLOTS;
        attend_fetch_page<HD, WARPS, STACK>(l, t, &w, slots + free_slot * 2 * shape::UNIT,
                                            &pages[free_slot]);
        const attend_page page = pages[slot];
        if (page.n_keys == 0)
            break;
        attend_chunk *keys = slots + slot * 2 * shape::UNIT;
        if (is_careful) {
            const uint32_t bad = attend_find_bad<HD>(keys + shape::UNIT);
            sync_block(); /* all have looked */
            if (attend_warp() == 0)
                attend_clear_bad<HD>(bad, keys + shape::UNIT);
            sync_block();
            attend_spoil_rows(l, page, bad, s);
        }
        if (attend_concerned<STACK>(l, page) == 0)
            continue;
        attend_scores scores[STACK];
        attend_score<HD, STACK, 0, STACK>(*s, queries, keys, scores);
        attend_weigh_rows<HD, STACK, 0, STACK>(l, page, s, scores);
        attend_add_values<HD, STACK, 0, STACK>(s, scores, keys + shape::UNIT);
    }
}

/* ------------------------------------------------------------------ pages of one warp */

template <int HD, int STACK>
DEVICE void attend_own_scores(int concerned, const attend_state<HD, STACK> &s,
                              const attend_chunk *queries, const attend_chunk *keys,
                              attend_scores *scores)
{
    if (STACK == 1 || concerned == (1 << STACK) - 1)
        attend_score<HD, STACK, 0, STACK>(s, queries, keys, scores);
    else if (concerned == 1)
        attend_score<HD, STACK, 0, 1>(s, queries, keys, scores);
    else
        attend_score<HD, STACK, STACK - 1, 1>(s, queries, keys, scores);
}

template <int HD, int STACK>
DEVICE void attend_own_weights(const attend_launch &l, const attend_page &page, int concerned,
                               attend_state<HD, STACK> *s, attend_scores *scores)
{
    if (STACK == 1 || concerned == (1 << STACK) - 1)
        attend_weigh_rows<HD, STACK, 0, STACK>(l, page, s, scores);
    else if (concerned == 1)
        attend_weigh_rows<HD, STACK, 0, 1>(l, page, s, scores);
    else
        attend_weigh_rows<HD, STACK, STACK - 1, 1>(l, page, s, scores);
}

template <int HD, int STACK>
DEVICE void attend_own_values(int concerned, attend_state<HD, STACK> *s,
                              const attend_scores *scores, const attend_chunk *values)
{
    if (STACK == 1 || concerned == (1 << STACK) - 1)
        attend_add_values<HD, STACK, 0, STACK>(s, scores, values);
    else if (concerned == 1)
        attend_add_values<HD, STACK, 0, 1>(s, scores, values);
    else
        attend_add_values<HD, STACK, STACK - 1, 1>(s, scores, values);
}

/* A warp alone over the spans of its own queries, in a slot of its own: the next page's keys
 * are on their way while values are added, the values while scores are computed. */
template <int HD, int STACK>
DEVICE void attend_own_pages(const attend_launch &l, const attend_tile &t,
                             const attend_chunk *queries, attend_chunk *keys, bool is_careful,
                             attend_state<HD, STACK> *s)
{
    using shape = attend_shape<HD, 1, STACK>;
    attend_chunk *values = keys + shape::UNIT;
    const int lane = attend_lane();
    attend_walk w = attend_walk_open(t, attend_warp());
    bool is_more = attend_walk_next(l, t, &w);
    if (!is_more)
        return;
    attend_source<bf16> source = attend_source_of<bf16>(l, t, w, HD);
    attend_copy_unit<HD, 32>(l, t, source, false, keys, lane);
    copy_async_commit();
    attend_copy_unit<HD, 32>(l, t, source, true, values, lane);
    copy_async_commit();
    while (is_more) {
        const attend_page page = attend_page_of(l, t, w);
        const int concerned = attend_concerned<STACK>(l, page);
        attend_scores scores[STACK];
        copy_async_wait<1>();
        sync_warp(); /* the keys are there */
        attend_own_scores(concerned, *s, queries, keys, scores);
        sync_warp(); /* all have left them */
        is_more = attend_walk_next(l, t, &w);
        if (is_more) {
            source = attend_source_of<bf16>(l, t, w, HD);
            attend_copy_unit<HD, 32>(l, t, source, false, keys, lane);
        }
        copy_async_commit();
        attend_own_weights(l, page, concerned, s, scores);
        copy_async_wait<1>();
        sync_warp(); /* the values are there */
        if (is_careful) {
            const uint32_t bad = attend_find_bad<HD>(values);
            attend_clear_bad<HD>(bad, values);
            sync_warp();
            attend_spoil_rows(l, page, bad, s);
        }
        attend_own_values(concerned, s, scores, values);
        sync_warp(); /* all have left them */
        if (is_more)
            attend_copy_unit<HD, 32>(l, t, source, true, values, lane);
        copy_async_commit();
    }
}

/* ------------------------------------------------------------------ answers */

/* Of all four threads of a row. */
template <int HD, int STACK> DEVICE void attend_sum_rows(attend_state<HD, STACK> *s)
{
#pragma unroll
    for (int m = 0; m < STACK; m++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            s->sum[m][h] = s->sum[m][h] + shuffle_xor(s->sum[m][h], 1);
            s->sum[m][h] = s->sum[m][h] + shuffle_xor(s->sum[m][h], 2);
        }
}

/* Through the warp's rows of shared memory, so that 16 bytes go out at a time. A zero is
 * positive: its sign would tell of pages that the row has not seen. */
template <int HD, int STACK>
DEVICE void attend_put_rows(const attend_launch &l, const attend_tile &t,
                            const attend_state<HD, STACK> &s, attend_chunk *rows)
{
    using shape = attend_shape<HD, 1, STACK>;
    const int lane = attend_lane(), first = attend_warp() * l.warp_queries;
    sync_warp(); /* all have left the queries */
#pragma unroll
    for (int m = 0; m < STACK; m++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const float share = 1.0f / s.sum[m][h];
            attend_chunk *row = rows + (m * ROWS + h * 8 + lane / 4) * shape::STRIDE;
#pragma unroll
            for (int n = 0; n < HD / 8; n++)
                row[n].words[lane % 4] = attend_pack(fmaf(s.o[m][n][2 * h], share, 0.0f),
                                                     fmaf(s.o[m][n][2 * h + 1], share, 0.0f));
        }
    sync_warp();
    for (int i = lane; i < shape::WARP_ROWS * shape::ROW_CHUNKS; i += 32) {
        const int row = i / shape::ROW_CHUNKS, chunk = i % shape::ROW_CHUNKS;
        if (row < l.warp_queries && first + row < t.n_queries)
            *reinterpret_cast<attend_chunk *>(l.a.mixed + attend_place_of(l, t, first + row) +
                                              chunk * CHUNK) =
                rows[row * shape::STRIDE + chunk];
    }
}

template <int HD, int STACK>
DEVICE void attend_put_partial(const attend_launch &l, const attend_tile &t,
                               const attend_state<HD, STACK> &s)
{
    const int lane = attend_lane(), first = attend_warp() * l.warp_queries;
#pragma unroll
    for (int m = 0; m < STACK; m++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            if (s.position[m][h] == INT32_MAX)
                continue;
            const int row = m * ROWS + h * 8 + lane / 4;
            const size_t at = attend_partial_of(l, t, first + row, (int)blockIdx.z);
            float *o = l.partial + at * HD + lane % 4 * 2;
#pragma unroll
            for (int n = 0; n < HD / 8; n++) {
                o[n * 8] = s.o[m][n][2 * h];
                o[n * 8 + 1] = s.o[m][n][2 * h + 1];
            }
            if (lane % 4 == 0)
                attend_put_partial_sums(l, at, s.top[m][h], s.sum[m][h]);
        }
}

/* Is some row of the tile spoiled? */
template <int HD, int WARPS, int STACK>
DEVICE bool attend_is_tile_spoiled(const attend_state<HD, STACK> &s, int32_t *is_spoiled)
{
    const bool is_mine = attend_is_spoiled(s);
    if (WARPS == 1)
        return is_mine;
    if (attend_lane() == 0)
        is_spoiled[attend_warp()] = is_mine;
    sync_block();
    bool is_any = false;
#pragma unroll
    for (int i = 0; i < WARPS; i++)
        is_any = is_any || is_spoiled[i];
    return is_any;
}

/* WARPS warps of STACK fragments of 16 queries. */
template <int HD, int WARPS, int STACK>
KERNEL void __launch_bounds__(32 * WARPS, 1) attend_tiles(const attend_launch l)
{
    using shape = attend_shape<HD, WARPS, STACK>;
    DYNAMIC_SHARED(attend_chunk, slots);
    SHARED(attend_page, pages, WARPS);
    SHARED(int32_t, is_spoiled, WARPS);
    attend_tile t;
    if (!attend_tile_open(l, &t))
        return;
    attend_chunk *queries = slots + shape::SLOTS * 2 * shape::UNIT +
                            attend_warp() * shape::WARP_ROWS * shape::STRIDE;
    attend_state<HD, STACK> s;
    attend_load_queries<HD, shape::STRIDE, shape::WARP_ROWS>(l, t, queries);
    sync_warp();
    for (bool is_careful = false;; is_careful = true) {
        attend_open_state(l, t, queries, &s);
        if constexpr (WARPS > 1)
            attend_shared_pages<HD, WARPS, STACK>(l, t, queries, slots, pages, is_careful, &s);
        attend_own_pages(l, t, queries, slots + attend_warp() * 2 * shape::UNIT, is_careful,
                         &s);
        attend_sum_rows(&s);
        if (is_careful || !attend_is_tile_spoiled<HD, WARPS>(s, is_spoiled))
            break;
    }
    if (l.partial)
        attend_put_partial(l, t, s);
    else
        attend_put_rows(l, t, s, queries);
}

#endif
