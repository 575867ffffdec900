#include <math.h>

#include "exp.h"
#include "kernels_int.h"
#include "kv_int.h"
#include "lanes_int.h"

static float score_float(const struct attend *a, const float *q, const void *page, size_t j)
{
    float sum = 0.0f;
    for (size_t i = 0; i < a->head_dim; i++)
        sum = fmaf(q[i], kv_load(a->kv_type, page, kv_key_index(j, i)), sum);
    return sum * a->scale;
}

static float score_int8(const struct attend *a, const float *q, const void *page, size_t j)
{
    int16_t codes[MODEL_HEAD_DIM_MAX];
    const float q_scale = kv_quantize_words(a->head_dim, q, codes);
    const uint8_t *key = page;
    int32_t dot = 0;
    for (size_t i = 0; i < a->head_dim; i++)
        dot += codes[i] * (key[kv_int8_key_at(j, i)] - KV_CODE_ZERO);
    return (float)dot * (q_scale * a->scale) * kv_int8_key_scales(page, a->head_dim)[j];
}

/* s[j] of the visible keys, -inf for the others. */
static void score_page(const struct attend *a, const float *q, const void *page,
                       size_t n_visible, float s[KV_PAGE_TOKENS])
{
    for (size_t j = 0; j < KV_PAGE_TOKENS; j++) {
        if (j >= n_visible)
            s[j] = -INFINITY;
        else if (a->kv_type == KV_INT8)
            s[j] = score_int8(a, q, page, j);
        else
            s[j] = score_float(a, q, page, j);
    }
}

/* Adding +0 makes a maximum of zeros +0 whichever sign of zero was met first. */
static float raise_max(float m, const float s[KV_PAGE_TOKENS])
{
    for (size_t j = 0; j < KV_PAGE_TOKENS; j++)
        m = s[j] > m ? s[j] : m;
    return m + 0.0f;
}

static void add_values_int8(const struct attend *a, const void *page, size_t n_visible,
                            const float p[KV_PAGE_TOKENS], float rescale, float *o)
{
    const float *scales = kv_int8_value_scales(page, a->head_dim);
    const int8_t *value = page;
    float weight[KV_PAGE_TOKENS];
    int16_t codes[KV_PAGE_TOKENS];
    for (size_t j = 0; j < n_visible; j++)
        weight[j] = p[j] * scales[j];
    const float scale = kv_quantize_words(n_visible, weight, codes);
    for (size_t i = 0; i < a->head_dim; i++) {
        int32_t sum = 0;
        for (size_t j = 0; j < n_visible; j++)
            sum += codes[j] * value[kv_value_index(a->head_dim, j, i)];
        o[i] = fmaf((float)sum, scale, o[i] * rescale);
    }
}

static void add_values_float(const struct attend *a, const void *page, size_t n_visible,
                             const float p[KV_PAGE_TOKENS], float rescale, float *o)
{
    for (size_t i = 0; i < a->head_dim; i++)
        o[i] = o[i] * rescale;
    for (size_t j = 0; j < n_visible; j++)
        for (size_t i = 0; i < a->head_dim; i++)
            o[i] =
                fmaf(p[j], kv_load(a->kv_type, page, kv_value_index(a->head_dim, j, i)), o[i]);
}

static void attend_page(const struct attend *a, size_t row, const void *page, size_t n_visible)
{
    float s[KV_PAGE_TOKENS];
    score_page(a, a->q[row], page, n_visible, s);
    const float m = raise_max(a->m[row], s);
    const float rescale = exp_scalar(a->m[row] - m);
    float p[KV_PAGE_TOKENS];
    for (size_t j = 0; j < KV_PAGE_TOKENS; j++)
        p[j] = exp_scalar(s[j] - m);
    float *d = a->d + row * LANES;
    for (size_t l = 0; l < LANES; l++)
        d[l] = (d[l] * rescale + p[l]) + p[l + LANES];
    float *o = a->o + row * a->head_dim;
    if (a->kv_type == KV_INT8)
        add_values_int8(a, page, n_visible, p, rescale, o);
    else
        add_values_float(a, page, n_visible, p, rescale, o);
    a->m[row] = m;
}

void attend_ref(const struct attend *a)
{
    const size_t n_pages = (a->n_keys + KV_PAGE_TOKENS - 1) / KV_PAGE_TOKENS;
    for (size_t row = 0; row < a->n_rows; row++)
        for (size_t page = 0; page < n_pages; page++) {
            const size_t n_visible = attend_visible_keys(a, row, page);
            if (n_visible > 0)
                attend_page(a, row, a->pages[page], n_visible);
        }
}

void attend_finish_ref(const struct attend *a, float *const *out)
{
    for (size_t row = 0; row < a->n_rows; row++) {
        const float inv = 1.0f / lanes_sum_tree(a->d + row * LANES);
        const float *o = a->o + row * a->head_dim;
        for (size_t i = 0; i < a->head_dim; i++)
            out[row][i] = o[i] * inv;
    }
}
