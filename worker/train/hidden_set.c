#include "train/hidden_set.h"

#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/size.h"
#include "engine/engine_hidden.h"
#include "kernels.h"

static int take_memory(struct hidden_set *set, size_t n_rows, struct err *e)
{
    set->rows = malloc(size_max(1, n_rows * set->dim) * sizeof set->rows[0]);
    set->best = malloc(size_max(1, n_rows) * sizeof set->best[0]);
    set->n_after = malloc(size_max(1, n_rows) * sizeof set->n_after[0]);
    set->is_held_out = malloc(size_max(1, n_rows) * sizeof set->is_held_out[0]);
    set->is_answer = malloc(size_max(1, n_rows) * sizeof set->is_answer[0]);
    if (!set->rows || !set->best || !set->n_after || !set->is_held_out || !set->is_answer)
        return ERR_SET(e, ERR_NOMEM,
                       "no memory for the hidden states of %zu positions (%zu MiB); lower "
                       "--positions",
                       n_rows, n_rows * set->dim * sizeof set->rows[0] >> 20);
    return 0;
}

static void append(struct hidden_set *set, const struct corpus_text *text, size_t first,
                   const float *hidden, const int32_t *best)
{
    const size_t n = text->n_tokens - first;
    for (size_t i = 0; i < n * set->dim; i++)
        set->rows[set->n_rows * set->dim + i] = quant_f32_to_bf16(hidden[i]);
    for (size_t i = 0; i < n; i++) {
        const size_t row = set->n_rows + i;
        set->best[row] = best[i];
        set->n_after[row] = (int32_t)(n - 1 - i);
        set->is_held_out[row] = text->is_held_out;
        set->is_answer[row] = first + i + 1 >= text->n_prompt;
    }
    set->n_rows += n;
}

static int run_texts(struct hidden_set *set, struct engine_hidden *h, const struct corpus *c,
                     const struct hidden_progress *progress, struct err *e)
{
    int rc = 0;
    const size_t n_max = corpus_longest(c);
    float *hidden = malloc(n_max * set->dim * sizeof hidden[0]);
    int32_t *best = malloc(n_max * sizeof best[0]);
    if (!hidden || !best)
        rc = ERR_SET(e, ERR_NOMEM, "no memory for a text's hidden states");
    for (size_t i = 0; rc == 0 && i < c->n_texts; i++) {
        const struct corpus_text *text = &c->texts[i];
        size_t first = 0;
        rc = engine_hidden_run(h, text->tokens, text->n_tokens, &first, hidden, best, e);
        if (rc != 0)
            break;
        ASSERT(first == text->n_shared);
        append(set, text, first, hidden, best);
        if (progress && !progress->told(progress->ctx, set->n_rows, c->n_positions))
            rc = ERR_SET(e, ERR_CANCELLED, "stopped; the same command begins again");
    }
    free(hidden);
    free(best);
    return rc;
}

int hidden_set_fill(struct hidden_set *set, struct engine *eng, size_t dim,
                    const struct corpus *c, const struct hidden_progress *progress,
                    struct err *e)
{
    *set = (struct hidden_set){.dim = dim};
    struct engine_hidden *h = NULL;
    int rc = take_memory(set, c->n_positions, e);
    if (rc == 0)
        rc = engine_hidden_open(eng, &h, e);
    if (rc == 0)
        rc = run_texts(set, h, c, progress, e);
    engine_hidden_close(h);
    if (rc != 0)
        hidden_set_fini(set);
    return rc;
}

void hidden_set_fini(struct hidden_set *set)
{
    free(set->rows);
    free(set->best);
    free(set->n_after);
    free(set->is_held_out);
    free(set->is_answer);
    *set = (struct hidden_set){0};
}

int32_t hidden_set_label(const struct hidden_set *set, size_t row, size_t head)
{
    return set->n_after[row] > (int32_t)head ? set->best[row + 1 + head] : TOKEN_NONE;
}

void hidden_set_row(const struct hidden_set *set, size_t row, float *out)
{
    for (size_t i = 0; i < set->dim; i++)
        out[i] = quant_bf16_to_f32(set->rows[row * set->dim + i]);
}
