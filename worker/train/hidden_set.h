/*
 * The examples that heads learn from: for every position of a corpus, shared ones once, the
 * hidden state behind it and the token that the model itself puts next. Where a text goes on,
 * the label of head i behind a position is the model's own token i + 1 positions further on.
 *
 * Hidden states are kept as bfloat16: 2 * D bytes a position.
 */
#ifndef SHEAF_HIDDEN_SET_H
#define SHEAF_HIDDEN_SET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "engine/engine.h"
#include "train/corpus.h"

struct hidden_set {
    size_t dim;
    size_t n_rows;
    uint16_t *rows; /* [n_rows, dim] */
    int32_t *best;  /* [n_rows] */
    /* Rows that follow in the same text: head i has a label where this is more than i. */
    int32_t *n_after;
    bool *is_held_out;
    bool *is_answer; /* what comes next is of an answer */
};

/* Told after every text; false: stop, which is ERR_CANCELLED. */
struct hidden_progress {
    bool (*told)(void *ctx, size_t n_done, size_t n_all);
    void *ctx;
};

/* Runs every text of a prepared corpus through the engine. */
int hidden_set_fill(struct hidden_set *set, struct engine *eng, size_t dim,
                    const struct corpus *c, const struct hidden_progress *progress,
                    struct err *e);
void hidden_set_fini(struct hidden_set *set);

/* TOKEN_NONE where the text ends before. */
int32_t hidden_set_label(const struct hidden_set *set, size_t row, size_t head);
void hidden_set_row(const struct hidden_set *set, size_t row, float *out);

#endif
