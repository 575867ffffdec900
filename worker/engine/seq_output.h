/* A drawn token joins its sequence: the text grows, and it may be the end. */
#ifndef SHEAF_SEQ_OUTPUT_H
#define SHEAF_SEQ_OUTPUT_H

#include "engine/seq.h"
#include "model/tokenizer.h"

/* True when the sequence ends with this token; *reason says why. FINISH_CANCELLED with
 * !buf_ok(&seq->text): there was no memory for its text. */
bool seq_accept_token(struct seq *seq, const struct tokenizer *tok, int32_t token,
                      int64_t now_us, enum finish_reason *reason);

#endif
