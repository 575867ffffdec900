/*
 * The ranks of labels among what heads say, for heads of any layout that files have. In
 * float32 throughout, one head after the other, so that a large model's heads take no more
 * memory than one of them; speed does not matter here.
 */
#ifndef SHEAF_HEADS_RANK_H
#define SHEAF_HEADS_RANK_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "engine/pool.h"
#include "kernels.h"
#include "model/heads.h"
#include "model/model.h"
#include "train/draft_vocab.h"
#include "train/hidden_set.h"

/*
 * ranks [n_heads, n] of the set's rows rows[0..n): how many tokens of the draft vocabulary
 * have a greater logit than the label, or an equal one and a lower id; HEADS_RANKS at most,
 * and without a label in the vocabulary. The model still has its weights.
 */
int heads_rank(const struct heads *heads, const struct model *m, const struct kernels *k,
               struct pool *threads, const struct hidden_set *set,
               const struct draft_vocab *vocab, const size_t *rows, size_t n, int32_t *ranks,
               struct err *e);

#endif
