/* The tokens that heads know of: the labels that came most often in what they learn from. */
#ifndef SHEAF_DRAFT_VOCAB_H
#define SHEAF_DRAFT_VOCAB_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "model/model.h"
#include "train/heads_math.h"
#include "train/hidden_set.h"

struct draft_vocab {
    int32_t *tokens; /* [n] ids, rising */
    size_t n;
    int32_t *places; /* [V] of each id among tokens, or HEADS_NO_LABEL */
    size_t n_vocab;
};

/* n_max tokens at most; of two that came equally often, the lower id. Rows that are held out
 * do not count. ERR_INVALID when there is nothing to learn from. */
int draft_vocab_choose(const struct hidden_set *set, size_t n_vocab, size_t n_max,
                       struct draft_vocab *out, struct err *e);
/* Of a file's heads; tokens NULL: all n_vocab. Copies. */
int draft_vocab_of(const int32_t *tokens, size_t n, size_t n_vocab, struct draft_vocab *out,
                   struct err *e);
void draft_vocab_fini(struct draft_vocab *v);

/* HEADS_NO_LABEL where the row has none for the head, or one outside. */
int32_t draft_vocab_label(const struct draft_vocab *v, const struct hidden_set *set, size_t row,
                          size_t head);

/* The model's output rows of the tokens [n, D]; free() them. */
int draft_vocab_output(const struct draft_vocab *v, const struct model *m, float **out,
                       struct err *e);

#endif
