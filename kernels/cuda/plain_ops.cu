/* Operations whose files are not there yet, slow and plain, for the host alone. */
#ifndef __CUDACC__
#define PLAIN_ATTEND
#define PLAIN_PRODUCTS
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "ops.cuh"

extern "C" {
#include "quant.h"
}

#ifdef PLAIN_ATTEND
static float kv_at(const attend_args &a, int page, int kv_head, int part, int slot, int i)
{
    const size_t at =
        ((((size_t)a.layer * a.kv.n_pages + page) * a.kv.n_kv_heads + kv_head) * 2 + part) *
            32 * a.head_dim +
        (size_t)slot * a.head_dim + i;
    return a.kv.type == KV_F32 ? ((const float *)a.kv.data)[at]
                               : to_float(((const bf16 *)a.kv.data)[at]);
}

void attend(stream_t, const attend_args &a)
{
    for (int b = 0; b < a.n_blocks; b++) {
        const device_block &block = a.blocks[b];
        for (int r = 0; r < block.n_rows; r++) {
            const device_attend_row &row = a.rows[block.first_row + r];
            for (int h = 0; h < a.n_heads; h++) {
                const int kv_head = h / (a.n_heads / a.n_kv_heads);
                const bf16 *q = a.q + ((size_t)row.row * a.n_heads + h) * a.head_dim;
                double *score = (double *)malloc((row.position + 1) * sizeof(double));
                int *pages = (int *)malloc((row.position + 1) * sizeof(int));
                int *slots = (int *)malloc((row.position + 1) * sizeof(int));
                int n = 0;
                for (int k = 0; k < block.n_spans; k++) {
                    const device_span &span = a.spans[block.first_span + k];
                    if (r < span.first_row || r >= span.first_row + span.n_rows)
                        continue;
                    for (int j = 0; j < span.n_keys; j++) {
                        const int position = span.first_page * 32 + j;
                        if (position > row.position)
                            continue;
                        pages[n] = a.pages[span.pages + j / 32];
                        slots[n] = j % 32;
                        if (row.branch >= 0) {
                            const device_branch &br = a.branches[row.branch];
                            const int at = position - br.first_position;
                            if (at >= 0 && at < br.n_positions) {
                                const int slot = a.slots[br.first_slot + at];
                                pages[n] = a.pages[br.pages + slot / 32];
                                slots[n] = slot % 32;
                            }
                        }
                        n++;
                    }
                }
                if (n != row.position + 1)
                    abort();
                double max = -INFINITY, sum = 0;
                for (int j = 0; j < n; j++) {
                    score[j] = 0;
                    for (int i = 0; i < a.head_dim; i++)
                        score[j] += (double)to_float(q[i]) *
                                    kv_at(a, pages[j], kv_head, 0, slots[j], i);
                    score[j] *= a.scale;
                    max = score[j] > max ? score[j] : max;
                }
                for (int j = 0; j < n; j++)
                    sum += score[j] = exp(score[j] - max);
                for (int i = 0; i < a.head_dim; i++) {
                    double o = 0;
                    for (int j = 0; j < n; j++)
                        o += score[j] * kv_at(a, pages[j], kv_head, 1, slots[j], i);
                    a.mixed[((size_t)row.row * a.n_heads + h) * a.head_dim + i] =
                        to_bf16((float)(o / sum));
                }
                free(score);
                free(pages);
                free(slots);
            }
        }
    }
}
#endif

#ifdef PLAIN_PRODUCTS
struct products {
    int unused;
};
int products_open(const products_options &, products **out, struct err *)
{
    *out = (products *)calloc(1, sizeof(products));
    return 0;
}
void products_close(products *p)
{
    free(p);
}
void dequantize(stream_t, const matrix &w, bf16 *rows)
{
    float *row = (float *)malloc(w.n_cols * sizeof(float));
    for (int i = 0; i < w.n_rows; i++) {
        quant_dequantize_row(w.type, w.blocks + i * quant_row_bytes(w.type, w.n_cols), row,
                             w.n_cols);
        for (int k = 0; k < w.n_cols; k++)
            rows[(size_t)i * w.n_cols + k] = to_bf16(row[k]);
    }
    free(row);
}
int product(products *, stream_t, const matrix &w, const bf16 *x, int n_rows, const float *bias,
            product_out kind, void *y, int y_stride, struct err *)
{
    float *row = (float *)malloc(w.n_cols * sizeof(float));
    for (int n = 0; n < w.n_rows; n++) {
        if (w.blocks)
            quant_dequantize_row(w.type, w.blocks + n * quant_row_bytes(w.type, w.n_cols), row,
                                 w.n_cols);
        else
            for (int k = 0; k < w.n_cols; k++)
                row[k] = to_float(w.rows[(size_t)n * w.n_cols + k]);
        for (int t = 0; t < n_rows; t++) {
            float sum = 0;
            for (int k = 0; k < w.n_cols; k++)
                sum += to_float(x[(size_t)t * w.n_cols + k]) * row[k];
            if (bias)
                sum += bias[n];
            const size_t at = (size_t)t * y_stride + n;
            if (kind == PRODUCT_BF16)
                ((bf16 *)y)[at] = to_bf16(sum);
            else if (kind == PRODUCT_F32)
                ((float *)y)[at] = sum;
            else
                ((float *)y)[at] += sum;
        }
    }
    free(row);
    return 0;
}
#endif
#endif
