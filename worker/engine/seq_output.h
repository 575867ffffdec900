/* Drawing a sequence's next token; and it joins the sequence: the text grows, and it may be the
 * end. */
#ifndef SHEAF_SEQ_OUTPUT_H
#define SHEAF_SEQ_OUTPUT_H

#include "engine/sample.h"
#include "engine/seq.h"
#include "model/tokenizer.h"

/* From the logits behind its tokens and n_drawn more, which stand behind them in seq->tokens;
 * the logits are changed in place. */
int32_t seq_draw_token(const struct seq *seq, const struct tokenizer *tok,
                       struct sampler *sampler, float *logits, size_t n_drawn);

/* The same from what a device found of them; logits NULL: they are not at hand. False: they are
 * needed. The sequence may end here, and takes candidates (sample.h). */
bool seq_draw_candidate(const struct seq *seq, struct sampler *sampler,
                        const struct device_candidates *found, const float *logits,
                        size_t n_drawn, int32_t *token);

/* True when the sequence ends with this token; *reason says why. */
bool seq_accept_token(struct seq *seq, const struct tokenizer *tok, int32_t token,
                      int64_t now_us, enum finish_reason *reason);

#endif
