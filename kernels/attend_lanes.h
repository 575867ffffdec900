/*
 * Attention over KV pages, over the type lanes of the twin that includes this. The includer
 * defines ATTEND_TILE_ROWS, the rows that go through a page together, and ATTEND_ACCS, the
 * accumulators of type lanes that fit its registers beside the operands.
 *
 * A tile's page takes three stages, each of them for all rows: scores (each key vector is
 * loaded and widened once, then multiplied with every row's query), softmax (state m and d),
 * values (each value vector is widened once; o is read and written once a page).
 * Per page and row 4 * 32 * HD flop against 4 * 32 * HD bytes per page and tile (bfloat16):
 * bound by the multiply-adds from about four rows on, by their latency below that.
 *
 * The order of every row's operations does not depend on the tile: an accumulator belongs to
 * one (row, key) or (row, dim) and takes its terms in the contract's order.
 */
#ifndef SHEAF_ATTEND_LANES_H
#define SHEAF_ATTEND_LANES_H

#include <math.h>
#include <stdalign.h>

#include "inline_int.h"
#include "kernels_int.h"
#include "kv_int.h"

#define ATTEND_INLINE static ALWAYS_INLINE

enum {
    /* Distance of a tile's query rows: odd in cache lines, so that they spread over the sets.
     */
    ATTEND_Q_STRIDE = MODEL_HEAD_DIM_MAX + 16,
    /* Pages that all tiles pass before the next ones are touched: they stay in the L2 cache. */
    ATTEND_GROUP_BYTES = 512 << 10,
};

/* What a tile of KV_INT8 has beside: codes are pairs of words for lanes_dot_words. */
struct attend_codes {
    alignas(KERNELS_ALIGN) int32_t w_pairs[ATTEND_TILE_ROWS][KV_PAGE_TOKENS / 2];
    float w_scale[LANES]; /* of a page's weights, per row */
    float w_inverse[LANES];
    float q_factor[ATTEND_TILE_ROWS];  /* what a dot product is times */
    int32_t q_start[ATTEND_TILE_ROWS]; /* what a dot product starts from */
};

struct attend_tile {
    union {
        float q[ATTEND_TILE_ROWS][ATTEND_Q_STRIDE];
        int32_t q_pairs[ATTEND_TILE_ROWS][ATTEND_Q_STRIDE];
    };
    struct attend_codes codes;
    /* Scores, then weights: [pages of a run][rows][32] */
    alignas(KERNELS_ALIGN) float s[ATTEND_TILE_ROWS * KV_PAGE_TOKENS];
    float m[LANES];
    float rescale[LANES];
    size_t first_row;
    size_t n_visible[ATTEND_TILE_ROWS]; /* keys of the current page; set for partial pages */
};

ATTEND_INLINE const char *kv_at(enum kv_type type, const void *page, size_t index)
{
    return (const char *)page + index * (type == KV_BF16 ? 2 : 4);
}

/* Bytes of two tokens' values. */
ATTEND_INLINE size_t value_pair_bytes(enum kv_type type, size_t head_dim)
{
    return head_dim * (type == KV_BF16 ? 4 : 8);
}

/* Token j and its odd neighbour, from dim on. */
ATTEND_INLINE const char *value_pair_at(enum kv_type type, const void *page, size_t head_dim,
                                        size_t j, size_t dim)
{
    return kv_at(type, page, kv_value_index(head_dim, j & ~(size_t)1, dim));
}

ATTEND_INLINE void load_pairs(enum kv_type type, const char *p, lanes *first, lanes *second)
{
    if (type == KV_BF16)
        lanes_load_pairs_bf16((const uint16_t *)(const void *)p, first, second);
    else
        lanes_load_pairs_f32((const float *)(const void *)p, first, second);
}

/* 16 dims, vec vectors from p on, of two neighbouring tokens. */
ATTEND_INLINE void load_value_pair(enum kv_type type, const char *p, size_t vec, lanes *even,
                                   lanes *odd)
{
    load_pairs(type, kv_at(type, p, vec * 2 * LANES), even, odd);
}

/*
 * Scores of n_rows rows against keys [16 * half, 16 * (half + n_halves)) of n_pages pages. Few
 * rows take several pages together, for a chain of multiply-adds waits for its predecessor.
 */
ATTEND_INLINE void score_keys(enum kv_type type, size_t n_rows, size_t n_pages, size_t half,
                              size_t n_halves, const struct attend *a, size_t page,
                              size_t next_page, struct attend_tile *tile)
{
    lanes acc[ATTEND_TILE_ROWS][8];
    const size_t n_vecs = n_pages * n_halves;
    const char *k[4];
    for (size_t i = 0; i < n_pages; i++)
        k[i] = kv_at(type, a->pages[page + i], half * 2 * LANES);
    for (size_t r = 0; r < n_rows; r++)
        for (size_t v = 0; v < n_vecs; v++)
            acc[r][v] = lanes_set1(0.0f);
    const size_t pair_bytes = KV_PAGE_TOKENS * (type == KV_BF16 ? 4 : 8);
    const char *next = a->pages[next_page];
    const float *q = tile->q[0];
    for (size_t i = 0; i < a->head_dim; i += 2, q += 2) {
        for (size_t line = 0; line < 2 * pair_bytes; line += 64) /* keys and values alike */
            __builtin_prefetch(next + i * pair_bytes + line);
        lanes even[8], odd[8];
        for (size_t v = 0; v < n_vecs; v++)
            load_pairs(type, kv_at(type, k[v / n_halves], v % n_halves * 2 * LANES), &even[v],
                       &odd[v]);
        for (size_t r = 0; r < n_rows; r++) {
            const lanes x = lanes_set1(q[r * ATTEND_Q_STRIDE]);
            for (size_t v = 0; v < n_vecs; v++)
                acc[r][v] = lanes_fma(x, even[v], acc[r][v]);
        }
        for (size_t r = 0; r < n_rows; r++) {
            const lanes x = lanes_set1(q[r * ATTEND_Q_STRIDE + 1]);
            for (size_t v = 0; v < n_vecs; v++)
                acc[r][v] = lanes_fma(x, odd[v], acc[r][v]);
        }
        for (size_t n = 0; n < n_pages; n++)
            k[n] += pair_bytes;
    }
    for (size_t r = 0; r < n_rows; r++)
        for (size_t v = 0; v < n_vecs; v++)
            lanes_store(tile->s + (v / n_halves * n_rows + r) * KV_PAGE_TOKENS +
                            (half + v % n_halves) * LANES,
                        lanes_mul(acc[r][v], lanes_set1(a->scale)));
}

/* For compilers that do not see that only the first n_rows are read. */
ATTEND_INLINE void clear_rows(lanes rows[ATTEND_TILE_ROWS])
{
    for (size_t r = 0; r < ATTEND_TILE_ROWS; r++)
        rows[r] = lanes_set1(0.0f);
}

/* Unseen keys score -inf, whatever their slots hold; the greatest score of each row. */
ATTEND_INLINE lanes mask_scores(size_t n_rows, bool partial, float *s,
                                const struct attend_tile *tile)
{
    lanes greatest[ATTEND_TILE_ROWS];
    clear_rows(greatest);
    for (size_t r = 0; r < n_rows; r++, s += KV_PAGE_TOKENS) {
        lanes low = lanes_load(s);
        lanes high = lanes_load(s + LANES);
        if (partial) {
            const size_t n = tile->n_visible[r];
            const lanes unseen = lanes_set1(-INFINITY);
            low = lanes_keep_first(low, n, unseen);
            high = lanes_keep_first(high, n > LANES ? n - LANES : 0, unseen);
            lanes_store(s, low);
            lanes_store(s + LANES, high);
        }
        greatest[r] = lanes_max(low, high);
    }
    return lanes_greatest_each(false, n_rows, greatest);
}

/* m, rescale = exp(m - m') for all rows at once. */
static inline void raise_max(size_t n_rows, lanes greatest, struct attend_tile *tile, float *m)
{
    const lanes old = lanes_load_first(m, n_rows);
    const lanes now = lanes_add(lanes_max(greatest, old), lanes_set1(0.0f));
    lanes_store_first(m, n_rows, now);
    lanes_store(tile->m, now);
    lanes_store(tile->rescale, lanes_exp(lanes_sub(old, now)));
}

/* p of a row's page, and its d. */
static inline void weigh_row(float m, float rescale, const float *s, float *d, lanes *low,
                             lanes *high)
{
    *low = lanes_exp(lanes_sub(lanes_load(s), lanes_set1(m)));
    *high = lanes_exp(lanes_sub(lanes_load(s + LANES), lanes_set1(m)));
    const lanes sum = lanes_add(lanes_mul(lanes_load(d), lanes_set1(rescale)), *low);
    lanes_store(d, lanes_add(sum, *high));
}

#include "attend_int8_lanes.h"

/* A row that sees no key of the page keeps its state: its o is multiplied by 1. */
static __attribute__((noinline)) void
softmax(size_t n_rows, bool partial, const struct attend *a, float *s, struct attend_tile *tile)
{
    const lanes greatest = mask_scores(n_rows, partial, s, tile);
    raise_max(n_rows, greatest, tile, a->m + tile->first_row);
    float *d = a->d + tile->first_row * LANES;
    for (size_t r = 0; r < n_rows; r++, s += KV_PAGE_TOKENS, d += LANES) {
        if (partial && tile->n_visible[r] == 0) {
            tile->rescale[r] = 1.0f;
            continue;
        }
        lanes low, high;
        weigh_row(tile->m[r], tile->rescale[r], s, d, &low, &high);
        lanes_store(s, low);
        lanes_store(s + LANES, high);
    }
}

/* o of n_rows rows and 16 * n_vecs dims from dim on: the first n_tokens values. */
ATTEND_INLINE void add_values(enum kv_type type, size_t n_rows, size_t n_vecs, size_t dim,
                              size_t n_tokens, size_t head_dim, const char *page,
                              const float *rescale, const float *p, float *o)
{
    lanes acc[ATTEND_TILE_ROWS][4];
    for (size_t r = 0; r < n_rows; r++)
        for (size_t v = 0; v < n_vecs; v++)
            acc[r][v] = lanes_mul(lanes_load(o + r * head_dim + dim + v * LANES),
                                  lanes_set1(rescale[r]));
    const size_t pair_bytes = value_pair_bytes(type, head_dim);
    const char *value = value_pair_at(type, page, head_dim, 0, dim);
    size_t j = 0;
    for (; j + 2 <= n_tokens; j += 2, value += pair_bytes, p += 2) {
        lanes even[4], odd[4];
        for (size_t v = 0; v < n_vecs; v++)
            load_value_pair(type, value, v, &even[v], &odd[v]);
        for (size_t r = 0; r < n_rows; r++) {
            const lanes x = lanes_set1(p[r * KV_PAGE_TOKENS]);
            for (size_t v = 0; v < n_vecs; v++)
                acc[r][v] = lanes_fma(x, even[v], acc[r][v]);
        }
        for (size_t r = 0; r < n_rows; r++) {
            const lanes x = lanes_set1(p[r * KV_PAGE_TOKENS + 1]);
            for (size_t v = 0; v < n_vecs; v++)
                acc[r][v] = lanes_fma(x, odd[v], acc[r][v]);
        }
    }
    for (; j < n_tokens; j++)
        for (size_t v = 0; v < n_vecs; v++) {
            lanes even, odd;
            load_value_pair(type, value, v, &even, &odd);
            for (size_t r = 0; r < n_rows; r++)
                acc[r][v] = lanes_fma(lanes_set1(p[r * KV_PAGE_TOKENS]), even, acc[r][v]);
        }
    for (size_t r = 0; r < n_rows; r++)
        for (size_t v = 0; v < n_vecs; v++)
            lanes_store(o + r * head_dim + dim + v * LANES, acc[r][v]);
}

/* The dims that are left of one row: few, so the rows do not share them. */
static __attribute__((noinline)) void
add_last_dims(enum kv_type type, size_t n_rows, size_t dim, size_t n_tokens, size_t head_dim,
              const char *page, const float *rescale, const float *p, float *o)
{
    const size_t pair_bytes = value_pair_bytes(type, head_dim);
    for (; dim < head_dim; dim += LANES)
        for (size_t r = 0; r < n_rows; r++) {
            const char *value = value_pair_at(type, page, head_dim, 0, dim);
            float *at = o + r * head_dim + dim;
            lanes acc = lanes_mul(lanes_load(at), lanes_set1(rescale[r]));
            const float *weight = p + r * KV_PAGE_TOKENS;
            for (size_t j = 0; j < n_tokens; j += 2, value += pair_bytes) {
                lanes even, odd;
                load_value_pair(type, value, 0, &even, &odd);
                acc = lanes_fma(lanes_set1(weight[j]), even, acc);
                if (j + 1 < n_tokens)
                    acc = lanes_fma(lanes_set1(weight[j + 1]), odd, acc);
            }
            lanes_store(at, acc);
        }
}

/* The steps of a causal staircase: what a row sees beyond the n_common keys of all rows. */
static __attribute__((noinline)) void add_steps(enum kv_type type, size_t n_rows,
                                                size_t n_common, size_t head_dim,
                                                const char *page, const size_t *n_visible,
                                                const float *p, float *o)
{
    for (size_t r = 0; r < n_rows; r++, o += head_dim, p += KV_PAGE_TOKENS)
        for (size_t j = n_common; j < n_visible[r]; j++) {
            const char *value = value_pair_at(type, page, head_dim, j, 0);
            const lanes weight = lanes_set1(p[j]);
            for (size_t dim = 0; dim < head_dim; dim += LANES) {
                lanes even, odd;
                load_value_pair(type, value, dim / LANES, &even, &odd);
                const lanes v = j % 2 == 0 ? even : odd;
                lanes_store(o + dim, lanes_fma(weight, v, lanes_load(o + dim)));
            }
        }
}

/* The values that all rows see together, then each row's remaining ones. */
ATTEND_INLINE void add_page_values(enum kv_type type, size_t n_rows, bool partial,
                                   const struct attend *a, const char *page, const float *p,
                                   const struct attend_tile *tile)
{
    float *o = a->o + tile->first_row * a->head_dim;
    size_t n_common = KV_PAGE_TOKENS;
    for (size_t r = 0; partial && r < n_rows; r++)
        n_common = tile->n_visible[r] < n_common ? tile->n_visible[r] : n_common;
    const size_t n_vecs = ATTEND_ACCS / n_rows >= 4 ? 4 : ATTEND_ACCS / n_rows >= 2 ? 2 : 1;
    size_t dim = 0;
    for (; dim + n_vecs * LANES <= a->head_dim; dim += n_vecs * LANES)
        add_values(type, n_rows, n_vecs, dim, n_common, a->head_dim, page, tile->rescale, p, o);
    if (dim < a->head_dim)
        add_last_dims(type, n_rows, dim, n_common, a->head_dim, page, tile->rescale, p, o);
    if (partial)
        add_steps(type, n_rows, n_common, a->head_dim, page, tile->n_visible, p, o);
}

/* Softmax and values of one page whose scores are in s. */
ATTEND_INLINE void finish_page(enum kv_type type, size_t n_rows, const struct attend *a,
                               int32_t low, size_t page, float *s, struct attend_tile *tile)
{
    const size_t end = (page + 1) * KV_PAGE_TOKENS;
    const bool partial = end > a->n_keys || (int64_t)a->first_pos + (int64_t)end - 1 > low;
    for (size_t r = 0; partial && r < n_rows; r++)
        tile->n_visible[r] = attend_visible_keys(a, tile->first_row + r, page);
    if (type == KV_INT8) {
        softmax_codes(n_rows, partial, a, a->pages[page], s, tile);
        add_page_codes(n_rows, a, a->pages[page], tile);
    } else {
        softmax(n_rows, partial, a, s, tile);
        add_page_values(type, n_rows, partial, a, a->pages[page], s, tile);
    }
}

/* n_pages pages from page on. */
ATTEND_INLINE void attend_run(enum kv_type type, size_t n_rows, size_t n_pages,
                              const struct attend *a, int32_t low, size_t page,
                              size_t next_page, struct attend_tile *tile)
{
    const size_t n_halves = ATTEND_ACCS / n_rows >= 2 ? 2 : 1;
    for (size_t half = 0; half < 2; half += n_halves)
        if (type == KV_INT8)
            score_codes(n_rows, n_pages, half, n_halves, a, page, next_page, tile);
        else
            score_keys(type, n_rows, n_pages, half, n_halves, a, page, next_page, tile);
    for (size_t i = 0; i < n_pages; i++)
        finish_page(type, n_rows, a, low, page + i, tile->s + i * n_rows * KV_PAGE_TOKENS,
                    tile);
}

static inline int64_t page_pos(const struct attend *a, size_t page)
{
    return (int64_t)a->first_pos + (int64_t)(page * KV_PAGE_TOKENS);
}

/* The lowest and the highest position that a row of the tile may see. */
ATTEND_INLINE void bound_positions(const int32_t *row_pos, size_t n_rows, int32_t *low,
                                   int32_t *high)
{
    *low = *high = row_pos[0];
    for (size_t r = 1; r < n_rows; r++) {
        *low = row_pos[r] < *low ? row_pos[r] : *low;
        *high = row_pos[r] > *high ? row_pos[r] : *high;
    }
}

/*
 * One tile over pages [begin, end). Inlined into one function for each type and number of rows,
 * which are constants there, so that the accumulators are registers.
 */
ATTEND_INLINE void attend_tile_pages(enum kv_type type, size_t n_rows, const struct attend *a,
                                     size_t begin, size_t end, struct attend_tile *tile)
{
    const size_t run = ATTEND_ACCS < 24 ? 1 : n_rows == 1 ? 4 : n_rows <= 3 ? 2 : 1;
    int32_t low, high;
    bound_positions(a->row_pos + tile->first_row, n_rows, &low, &high);
    while (end > begin && page_pos(a, end - 1) > high)
        end--;
    for (size_t r = 0; r < n_rows; r++)
        if (type == KV_INT8)
            take_query(a, r, tile);
        else
            memcpy(tile->q[r], a->q[tile->first_row + r], a->head_dim * sizeof(float));
    size_t i = begin;
    for (; i + run <= end; i += run)
        attend_run(type, n_rows, run, a, low, i, i + run < end ? i + run : begin, tile);
    for (; run > 1 && i < end; i++)
        attend_run(type, n_rows, 1, a, low, i, i + 1 < end ? i + 1 : begin, tile);
}

typedef void attend_tile_fn(const struct attend *a, size_t begin, size_t end,
                            struct attend_tile *tile);

/*
 * All tiles over one group of pages, then over the next. tiles[n] computes tiles of n rows, or
 * is NULL; first_tile[n] is the tile to take first from n rows that are left.
 */
static inline void attend_all(const struct attend *a, attend_tile_fn *const *tiles,
                              const uint8_t first_tile[ATTEND_TILE_ROWS + 2])
{
    const size_t n_pages = (a->n_keys + KV_PAGE_TOKENS - 1) / KV_PAGE_TOKENS;
    const size_t group = ATTEND_GROUP_BYTES / kv_page_bytes(a->kv_type, a->head_dim);
    struct attend_tile tile;
    for (size_t begin = 0; begin < n_pages; begin += group) {
        const size_t end = begin + group < n_pages ? begin + group : n_pages;
        size_t n_rows = 0;
        for (size_t row = 0; row < a->n_rows; row += n_rows) {
            const size_t left = a->n_rows - row;
            n_rows = left < ATTEND_TILE_ROWS + 2 ? first_tile[left] : ATTEND_TILE_ROWS;
            tile.first_row = row;
            tiles[n_rows](a, begin, end, &tile);
        }
    }
}

static inline void attend_finish_rows(const struct attend *a, float *const *out)
{
    for (size_t row = 0; row < a->n_rows; row++) {
        const float *o = a->o + row * a->head_dim;
        const lanes inv = lanes_set1(1.0f / lanes_sum(lanes_load(a->d + row * LANES)));
        for (size_t i = 0; i < a->head_dim; i += LANES)
            lanes_store(out[row] + i, lanes_mul(lanes_load(o + i), inv));
    }
}

#endif
