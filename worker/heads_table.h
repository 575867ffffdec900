/* What sheaf heads prints about heads: how sure they are, a row for each, as text or as one
 * JSON object. Heads are counted from 1. */
#ifndef SHEAF_HEADS_TABLE_H
#define SHEAF_HEADS_TABLE_H

#include <stdbool.h>

#include "base/err.h"
#include "model/heads.h"
#include "train/heads_score.h"

/* Over one kind of positions. */
struct heads_table_part {
    const char *name;             /* "held out" */
    uint64_t n_labels[HEADS_MAX]; /* 0: nobody knows */
    double accuracies[HEADS_MAX][HEADS_RANKS];
    double chain_tokens, tree_tokens; /* of a step, the model's own included; 0: not measured */
};

/* Everything but the tokens of a step. */
void heads_table_fill(struct heads_table_part *part, const char *name,
                      const struct heads_score *score);

int heads_table_print(const struct heads *h, const struct heads_table_part *parts, size_t n,
                      bool json, struct err *e);

#endif
