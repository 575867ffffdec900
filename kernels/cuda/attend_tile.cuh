/*
 * Attention on matrix units: a tile of stacked queries over its pages, those that its warps
 * share and those of each. The plan is at the top of attend.cu.
 */
#ifndef SHEAF_CUDA_ATTEND_TILE_CUH
#define SHEAF_CUDA_ATTEND_TILE_CUH

#include "attend_careful.cuh"
#include "attend_fragment.cuh"
#include "attend_merge.cuh"

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
            const int position = s.position[m][h];
            if (position == INT32_MAX || !attend_is_in_split(t, position))
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
