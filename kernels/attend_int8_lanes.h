/*
 * What attention over int8 pages does otherwise than over floats: the query becomes codes, and
 * so do the weights of a page's values; scores and sums of values are integer dot products.
 * Only for attend_lanes.h, whose types it works on.
 *
 * A key's bytes are code + 128, which is widened to words by a mask or a shift; sum(c * (code +
 * 128)) starts from -128 * sum(c) and ends as sum(c * code). Words, not bytes, because AVX2 has
 * no exact product of bytes that is faster, and because a query or weights in bytes would cost
 * accuracy. Per page and row 2 * HD products of 16 pairs in place of 4 * HD multiply-adds.
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
    tile->codes.q_factor[r] =
        kv_quantize_words(a->head_dim, a->q[tile->first_row + r], codes) * a->scale;
    int32_t sum = 0;
    for (size_t i = 0; i < a->head_dim; i++)
        sum += codes[i];
    tile->codes.q_start[r] = -KV_CODE_ZERO * sum;
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
            acc[r][v] = lanes_int_set1(tile->codes.q_start[r]);
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
            const lanes s =
                lanes_mul(lanes_from_int(acc[r][v]), lanes_set1(tile->codes.q_factor[r]));
            lanes_store(tile->s + (v / n_halves * n_rows + r) * KV_PAGE_TOKENS + key,
                        lanes_mul(s, scale));
        }
    }
}

/* kv_scale of the weights of all rows at once. */
static inline void scale_weights(lanes greatest, struct attend_codes *codes)
{
    const lanes least = lanes_set1(KV_SCALED_MIN);
    const lanes zero = lanes_set1(0.0f);
    const lanes code_max = lanes_set1(KV_WORD_CODE_MAX);
    const lanes scale = lanes_if_less(greatest, lanes_set1(INFINITY),
                                      lanes_div(greatest, code_max), lanes_set1(NAN));
    lanes_store(codes->w_scale, lanes_if_less(greatest, least, zero, scale));
    lanes_store(codes->w_inverse,
                lanes_if_less(greatest, least, zero, lanes_div(code_max, greatest)));
}

/*
 * softmax(), and from the weights their codes and scales. Unseen keys weigh 0, whatever the
 * scales in their slots. Where a scale of weights is NaN their codes may be anything.
 */
static __attribute__((noinline)) void softmax_codes(size_t n_rows, bool partial,
                                                    const struct attend *a, const void *page,
                                                    float *s, struct attend_tile *tile)
{
    struct attend_codes *codes = &tile->codes;
    raise_max(n_rows, mask_scores(n_rows, partial, s, tile), tile, a->m + tile->first_row);
    const float *scales = kv_int8_value_scales(page, a->head_dim);
    const lanes scale_low = lanes_load(scales);
    const lanes scale_high = lanes_load(scales + LANES);
    const lanes zero = lanes_set1(0.0f);
    float *d = a->d + tile->first_row * LANES;
    lanes greatest[ATTEND_TILE_ROWS];
    clear_rows(greatest);
    for (size_t r = 0; r < n_rows; r++) {
        lanes low = zero, high = zero;
        if (!partial || tile->n_visible[r] > 0) {
            weigh_row(tile->m[r], tile->rescale[r], s + r * KV_PAGE_TOKENS, d + r * LANES, &low,
                      &high);
            low = lanes_mul(low, scale_low);
            high = lanes_mul(high, scale_high);
        }
        if (partial) {
            const size_t n = tile->n_visible[r];
            low = lanes_keep_first(low, n, zero);
            high = lanes_keep_first(high, n > LANES ? n - LANES : 0, zero);
        }
        lanes_store(s + r * KV_PAGE_TOKENS, low);
        lanes_store(s + r * KV_PAGE_TOKENS + LANES, high);
        greatest[r] = lanes_greater(true, low, high);
    }
    scale_weights(lanes_greatest_each(true, n_rows, greatest), codes);
    for (size_t r = 0; r < n_rows; r++, s += KV_PAGE_TOKENS) {
        const lanes inverse = lanes_set1(codes->w_inverse[r]);
        lanes_store_words(codes->w_pairs[r], lanes_mul(lanes_load(s), inverse),
                          lanes_mul(lanes_load(s + LANES), inverse));
        if (partial && tile->n_visible[r] == 0) {
            tile->rescale[r] = 1.0f;
            codes->w_scale[r] = -0.0f; /* adding -0 keeps even a -0 as it is */
        }
    }
}

/*
 * o of n_rows rows and 16 * n_vecs dims from dim on: all values of the page, for the codes of
 * unseen keys are 0. Few rows have several sums of each, as a product waits for the one before.
 */
ATTEND_INLINE void add_codes(size_t n_rows, size_t n_vecs, size_t dim, size_t head_dim,
                             const int8_t *page, const struct attend_tile *tile, float *o)
{
    const size_t room = ATTEND_ACCS / (n_rows * n_vecs);
    const size_t n_sums = room >= 4 ? 4 : room >= 2 ? 2 : 1;
    const struct attend_codes *codes = &tile->codes;
    lanes_int acc[ATTEND_TILE_ROWS][16];
    for (size_t r = 0; r < n_rows; r++)
        for (size_t v = 0; v < n_sums * n_vecs; v++)
            acc[r][v] = lanes_int_set1(0);
    const int8_t *value = page + kv_value_index(head_dim, 0, dim);
    for (size_t pair = 0; pair < KV_PAGE_TOKENS / 2; pair += n_sums)
        for (size_t sum = 0; sum < n_sums; sum++, value += 2 * head_dim) {
            lanes_int words[4];
            for (size_t v = 0; v < n_vecs; v++)
                words[v] = lanes_load_bytes(value + v * 2 * LANES);
            for (size_t r = 0; r < n_rows; r++) {
                const lanes_int x = lanes_int_set1(codes->w_pairs[r][pair + sum]);
                lanes_int *to = acc[r] + sum * n_vecs;
                for (size_t v = 0; v < n_vecs; v++)
                    to[v] = lanes_dot_words(to[v], words[v], x);
            }
        }
    for (size_t r = 0; r < n_rows; r++, o += head_dim)
        for (size_t v = 0; v < n_vecs; v++) {
            lanes_int total = acc[r][v];
            for (size_t sum = 1; sum < n_sums; sum++)
                total = lanes_int_add(total, acc[r][sum * n_vecs + v]);
            float *at = o + dim + v * LANES;
            lanes_store(at, lanes_fma(lanes_from_int(total), lanes_set1(codes->w_scale[r]),
                                      lanes_mul(lanes_load(at), lanes_set1(tile->rescale[r]))));
        }
}

ATTEND_INLINE void add_page_codes(size_t n_rows, const struct attend *a, const void *page,
                                  const struct attend_tile *tile)
{
    const size_t head_dim = a->head_dim;
    float *o = a->o + tile->first_row * head_dim;
    const size_t n_vecs = ATTEND_ACCS / n_rows >= 4 ? 4 : ATTEND_ACCS / n_rows >= 2 ? 2 : 1;
    size_t dim = 0;
    for (; dim + n_vecs * LANES <= head_dim; dim += n_vecs * LANES)
        add_codes(n_rows, n_vecs, dim, head_dim, page, tile, o);
    for (; n_vecs > 1 && dim < head_dim; dim += LANES)
        add_codes(n_rows, 1, dim, head_dim, page, tile, o);
}

#endif
