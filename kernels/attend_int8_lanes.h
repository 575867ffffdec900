/*
 * What attention over int8 pages does otherwise than over floats: the query becomes codes,
 * scores are integer dot products, and the weights of values take the values' scales. Only for
 * attend_lanes.h, whose types it works on.
 *
 * A key's bytes are code + 128, which is widened to words by a mask or a shift; sum(c * (code +
 * 128)) starts from -128 * sum(c) and ends as sum(c * code). Words, not bytes, because AVX2 has
 * no exact product of bytes that is faster, and because a query in bytes would cost accuracy.
 * Per page and row HD / 2 products of pairs in place of HD multiply-adds.
 */
#ifndef SHEAF_ATTEND_INT8_LANES_H
#define SHEAF_ATTEND_INT8_LANES_H

enum { QUAD_ROW_BYTES = KV_PAGE_TOKENS * 4 }; /* the same four dims of all keys of a page */

static_assert(MODEL_HEAD_DIM_MAX / 2 <= ATTEND_Q_STRIDE, "a query fits");

/* Two dims of a query as lanes_dot_words takes them. */
static inline int32_t pair_codes(int16_t first, int16_t second)
{
    return (int32_t)((uint16_t)first | (uint32_t)(uint16_t)second << 16);
}

/* The query of row r of the tile. */
static __attribute__((noinline)) void take_query(const struct attend *a, size_t r,
                                                 struct attend_tile *tile)
{
    int16_t codes[MODEL_HEAD_DIM_MAX];
    int32_t *pairs = tile->q_pairs[r];
    tile->q_factor[r] =
        kv_quantize_query(a->head_dim, a->q[tile->first_row + r], codes) * a->scale;
    int32_t sum = 0;
    for (size_t i = 0; i < a->head_dim; i++)
        sum += codes[i];
    tile->q_start[r] = -KV_CODE_ZERO * sum;
    for (size_t i = 0; i < a->head_dim; i += 4) {
        *pairs++ = pair_codes(codes[i], codes[i + 2]);
        *pairs++ = pair_codes(codes[i + 1], codes[i + 3]);
    }
}

/* The same four dims of page, of keys and of values. */
static inline void prefetch_quad_row(const char *page, size_t quad)
{
    for (size_t line = 0; line < 2 * QUAD_ROW_BYTES; line += 64)
        __builtin_prefetch(page + quad * 2 * QUAD_ROW_BYTES + line);
}

/* score_keys over bytes: see there. */
ATTEND_INLINE void score_codes(size_t n_rows, size_t n_pages, size_t half, size_t n_halves,
                               const struct attend *a, size_t page, size_t next_page,
                               struct attend_tile *tile)
{
    lanes_int acc[ATTEND_TILE_ROWS][8];
    const size_t n_vecs = n_pages * n_halves;
    const size_t n_quads = a->head_dim / 4;
    const uint8_t *k[4];
    for (size_t i = 0; i < n_pages; i++)
        k[i] = (const uint8_t *)a->pages[page + i] + half * 4 * LANES;
    for (size_t r = 0; r < n_rows; r++)
        for (size_t v = 0; v < n_vecs; v++)
            acc[r][v] = lanes_int_set1(tile->q_start[r]);
    const int32_t *q = tile->q_pairs[0];
    for (size_t i = 0; i < n_quads; i++) {
        prefetch_quad_row(a->pages[next_page], i);
        for (size_t pair = 0; pair < 2; pair++, q++) {
            lanes_int words[8];
            for (size_t v = 0; v < n_vecs; v++)
                words[v] = lanes_load_words(k[v / n_halves] + v % n_halves * 4 * LANES, pair);
            for (size_t r = 0; r < n_rows; r++) {
                const lanes_int x = lanes_int_set1(q[r * ATTEND_Q_STRIDE]);
                for (size_t v = 0; v < n_vecs; v++)
                    acc[r][v] = lanes_dot_words(acc[r][v], words[v], x);
            }
        }
        for (size_t n = 0; n < n_pages; n++)
            k[n] += QUAD_ROW_BYTES;
    }
    prefetch_quad_row(a->pages[next_page], n_quads); /* the scales */
    for (size_t v = 0; v < n_vecs; v++) {
        const size_t key = (half + v % n_halves) * LANES;
        const lanes scale =
            lanes_load(kv_int8_key_scales(a->pages[page + v / n_halves], a->head_dim) + key);
        for (size_t r = 0; r < n_rows; r++) {
            const lanes s = lanes_mul(lanes_from_int(acc[r][v]), lanes_set1(tile->q_factor[r]));
            lanes_store(tile->s + (v / n_halves * n_rows + r) * KV_PAGE_TOKENS + key,
                        lanes_mul(s, scale));
        }
    }
}

/* The weights of unseen values become anything; nobody reads them. */
static __attribute__((noinline)) void scale_weights(size_t n_rows, const float *scales,
                                                    float *p)
{
    const lanes low = lanes_load(scales);
    const lanes high = lanes_load(scales + LANES);
    for (size_t r = 0; r < n_rows; r++, p += KV_PAGE_TOKENS) {
        lanes_store(p, lanes_mul(lanes_load(p), low));
        lanes_store(p + LANES, lanes_mul(lanes_load(p + LANES), high));
    }
}

#endif
