#include "heads_plain.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "quant.h"

/* Written so that NaN fails. */
static void assert_near(double x, double expected, double tolerance)
{
    if (!(fabs(x - expected) <= tolerance))
        fail_msg("%g is not %g within %g", x, expected, tolerance);
}

double *heads_plain_output(const struct model *m, const struct heads *h, size_t head)
{
    double *out = malloc(h->n_draft * h->dim * sizeof out[0]);
    float *row = malloc(h->dim * sizeof row[0]);
    const struct quant_info *info = quant_find((uint32_t)m->output.type);
    const size_t row_bytes = h->dim / info->block_elems * info->block_bytes;
    for (size_t i = 0; i < h->n_draft; i++) {
        const size_t id = h->draft_vocab ? (size_t)h->draft_vocab[i] : i;
        if (h->heads[head].output)
            memcpy(row, h->heads[head].output + i * h->dim, h->dim * sizeof row[0]);
        else
            quant_dequantize_row(m->output.type,
                                 (const uint8_t *)m->output.data + id * row_bytes, row, h->dim);
        for (size_t k = 0; k < h->dim; k++)
            out[i * h->dim + k] = (double)row[k];
    }
    free(row);
    return out;
}

static void apply_block(const struct heads_block *block, size_t dim, double *x)
{
    double *z = calloc(dim, sizeof z[0]);
    for (size_t k = dim; k-- > 0;)
        for (size_t j = 0; j < dim; j++)
            z[j] += (double)block->weight[j * dim + k] * x[k];
    for (size_t j = 0; j < dim; j++) {
        const double y = z[j] + (double)block->bias[j];
        x[j] += y / (1 + exp(-y));
    }
    free(z);
}

double *heads_plain_logits(const struct heads *h, size_t head, const double *output,
                           const float *hidden)
{
    double *x = malloc(h->dim * sizeof x[0]);
    double *logits = calloc(h->n_draft, sizeof logits[0]);
    for (size_t k = 0; k < h->dim; k++)
        x[k] = (double)hidden[k];
    for (size_t k = 0; k < h->n_blocks; k++)
        apply_block(&h->heads[head].blocks[k], h->dim, x);
    for (size_t i = 0; i < h->n_draft; i++)
        for (size_t k = 0; k < h->dim; k++)
            logits[i] += output[i * h->dim + k] * x[k];
    free(x);
    return logits;
}

static int fall(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x < y) - (x > y);
}

static size_t index_of(const struct heads *h, int32_t token)
{
    for (size_t i = 0; i < h->n_draft; i++)
        if ((h->draft_vocab ? h->draft_vocab[i] : (int32_t)i) == token)
            return i;
    fail_msg("token %d is not in the draft vocabulary", token);
    return 0;
}

double heads_plain_distance(const struct heads *h, const double *logits,
                            const struct medusa_guess *said)
{
    double *sorted = malloc(h->n_draft * sizeof sorted[0]);
    memcpy(sorted, logits, h->n_draft * sizeof sorted[0]);
    qsort(sorted, h->n_draft, sizeof sorted[0], fall);
    double distance = 0;
    for (size_t r = 0; r < MEDUSA_RANKS; r++) {
        distance = fmax(distance, fabs(logits[index_of(h, said[r].token)] - sorted[r]));
        for (size_t k = 0; k < r; k++)
            distance = said[k].token == said[r].token ? INFINITY : distance;
    }
    distance /= 1 + fabs(sorted[0]);
    free(sorted);
    return distance;
}

void heads_plain_check(const struct heads *h, const double *logits,
                       const struct medusa_guess *said, double tolerance)
{
    double sum = 0, own[MEDUSA_RANKS], greatest = logits[0];
    assert_near(heads_plain_distance(h, logits, said), 0, tolerance);
    for (size_t i = 0; i < h->n_draft; i++)
        greatest = fmax(greatest, logits[i]);
    for (size_t r = 0; r < MEDUSA_RANKS; r++) {
        own[r] = logits[index_of(h, said[r].token)];
        sum += exp(own[r] - own[0]);
    }
    for (size_t r = 0; r < MEDUSA_RANKS; r++)
        assert_near((double)said[r].share, exp(own[r] - own[0]) / sum,
                    2 * tolerance * (1 + fabs(greatest)));
}
