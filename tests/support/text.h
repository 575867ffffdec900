/* Opening vocabularies, and text to tokens and back, for tests: what cannot fail in a test that
 * passes stops the program with a sentence. */
#ifndef SHEAF_TEST_TEXT_H
#define SHEAF_TEST_TEXT_H

#include <stdbool.h>
#include <stddef.h>

#include "base/buf.h"
#include "model/model.h"

/* The vocabulary of a model file; model_close() it. */
struct model *text_open_vocab(const char *path);
struct token_list text_encode(const struct tokenizer *tok, const char *text, size_t length,
                              bool special, bool add_bos);
struct buf text_decode(const struct tokenizer *tok, const struct token_list *ids);
/* Encodes as content, decodes, and fails the test with `what` unless the bytes are the same.
 * Returns the number of tokens. */
size_t text_check_round_trip(const struct tokenizer *tok, const char *text, size_t length,
                             const char *what);
/* Fails the test with `what` unless the ids are these. */
void text_check_ids(const struct token_list *got, const int32_t *want, size_t n_want,
                    const char *what);

#endif
