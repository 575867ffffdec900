#include "train/draft_vocab.h"

#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/size.h"

struct count {
    int32_t token;
    uint32_t n;
};

static int compare_counts(const void *a, const void *b)
{
    const struct count *x = a, *y = b;
    if (x->n != y->n)
        return x->n > y->n ? -1 : 1;
    return (x->token > y->token) - (x->token < y->token);
}

static int compare_tokens(const void *a, const void *b)
{
    const int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return (x > y) - (x < y);
}

int draft_vocab_of(const int32_t *tokens, size_t n, size_t n_vocab, struct draft_vocab *out,
                   struct err *e)
{
    *out = (struct draft_vocab){.n = tokens ? n : n_vocab, .n_vocab = n_vocab};
    out->tokens = malloc(size_max(1, out->n) * sizeof out->tokens[0]);
    out->places = malloc(size_max(1, n_vocab) * sizeof out->places[0]);
    if (!out->tokens || !out->places) {
        draft_vocab_fini(out);
        return ERR_SET(e, ERR_NOMEM, "no memory for a vocabulary of %zu tokens", n_vocab);
    }
    for (size_t id = 0; id < n_vocab; id++)
        out->places[id] = HEADS_NO_LABEL;
    for (size_t i = 0; i < out->n; i++) {
        out->tokens[i] = tokens ? tokens[i] : (int32_t)i;
        ASSERT(out->tokens[i] >= 0 && (size_t)out->tokens[i] < n_vocab);
        out->places[out->tokens[i]] = (int32_t)i;
    }
    return 0;
}

/* Every label is some row's best token, and a text's first token is nobody's label. */
static void count_labels(const struct hidden_set *set, struct count *counts)
{
    for (size_t row = 0; row < set->n_rows; row++)
        if (!set->is_held_out[row] && set->n_after[row] > 0)
            counts[set->best[row + 1]].n++;
}

int draft_vocab_choose(const struct hidden_set *set, size_t n_vocab, size_t n_max,
                       struct draft_vocab *out, struct err *e)
{
    int rc = 0;
    *out = (struct draft_vocab){0};
    struct count *counts = calloc(n_vocab + 1, sizeof counts[0]);
    int32_t *tokens = malloc((n_vocab + 1) * sizeof tokens[0]);
    if (!counts || !tokens) {
        rc = ERR_SET(e, ERR_NOMEM, "no memory for the counts of %zu tokens", n_vocab);
        goto out;
    }
    for (size_t id = 0; id < n_vocab; id++)
        counts[id].token = (int32_t)id;
    count_labels(set, counts);
    qsort(counts, n_vocab, sizeof counts[0], compare_counts);
    size_t n = 0;
    while (n < n_max && n < n_vocab && counts[n].n > 0) {
        tokens[n] = counts[n].token;
        n++;
    }
    if (n == 0) {
        rc = ERR_SET(e, ERR_INVALID, "the texts are too short to learn anything from");
        goto out;
    }
    qsort(tokens, n, sizeof tokens[0], compare_tokens);
    rc = draft_vocab_of(tokens, n, n_vocab, out, e);
out:
    free(counts);
    free(tokens);
    return rc;
}

void draft_vocab_fini(struct draft_vocab *v)
{
    free(v->tokens);
    free(v->places);
    *v = (struct draft_vocab){0};
}

int32_t draft_vocab_label(const struct draft_vocab *v, const struct hidden_set *set, size_t row,
                          size_t head)
{
    const int32_t token = hidden_set_label(set, row, head);
    return token == TOKEN_NONE ? HEADS_NO_LABEL : v->places[token];
}

int draft_vocab_output(const struct draft_vocab *v, const struct model *m, float **out,
                       struct err *e)
{
    const struct tensor *t = &m->output;
    ASSERT(t->data && t->n_rows == v->n_vocab);
    const size_t row_bytes = quant_row_bytes(t->type, t->n_cols);
    float *rows = malloc(v->n * t->n_cols * sizeof rows[0]);
    if (!rows)
        return ERR_SET(e, ERR_NOMEM, "no memory for the output rows of %zu tokens", v->n);
    for (size_t i = 0; i < v->n; i++)
        quant_dequantize_row(t->type,
                             (const uint8_t *)t->data + (size_t)v->tokens[i] * row_bytes,
                             rows + i * t->n_cols, t->n_cols);
    *out = rows;
    return 0;
}
