/*
 * Values that are no numbers.
 *
 * A weight of zero does not keep an infinity or a NaN out of a product on matrix units, and a
 * value that one row sees may be another row's future or another job's. Rows that come out as
 * no numbers are therefore computed once more with care: keys whose values are not finite are
 * taken out of the page, and the rows that see them become NaN altogether.
 */
#ifndef SHEAF_CUDA_ATTEND_CAREFUL_CUH
#define SHEAF_CUDA_ATTEND_CAREFUL_CUH

#include "attend_fragment.cuh"

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

#endif
