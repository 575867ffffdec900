/*
 * Do two vocabularies mean the same by every id? A model may draft for another only if they do.
 *
 * Ids, texts, and what each token is: control or text, the end of a turn or not. One vocabulary
 * may be longer by tokens that its file types as unused: that is how files of one family are
 * padded to different sizes.
 */
#ifndef SHEAF_VOCAB_MATCH_H
#define SHEAF_VOCAB_MATCH_H

#include "base/err.h"
#include "model/tokenizer.h"

/* ERR_CONFIG with the first difference: the id and both texts. */
int vocab_match(const struct tokenizer *target, const struct tokenizer *drafting,
                struct err *e);

#endif
