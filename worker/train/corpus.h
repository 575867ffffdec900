/*
 * The texts that heads are trained on, as tokens: each a prompt and, where one is known, the
 * answer behind it.
 *
 *     corpus_add ...   in any order
 *     corpus_prepare   the same texts in one order, that of their tokens, so that texts over
 *                      one document stand together and share its positions
 *
 * A position belongs to the first text that has it. Some texts are held out: what is measured
 * on them, the heads have not seen. Which ones is said by a hash of the prompt, so that equal
 * prompts are never on both sides, whatever they are called and whatever stands beside them.
 */
#ifndef SHEAF_CORPUS_H
#define SHEAF_CORPUS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/sha256.h"

struct corpus_text {
    int32_t *tokens;
    size_t n_tokens;
    size_t n_prompt;
    size_t n_shared; /* positions that belong to texts before it */
    uint64_t hash;   /* of the prompt */
    bool is_held_out;
};

/* Zeroed is empty. */
struct corpus {
    struct corpus_text *texts;
    size_t n_texts;
    size_t capacity;
    size_t n_positions; /* after corpus_prepare: of all texts, shared ones once */
    size_t n_left_out;  /* texts, by positions_max */
};

/* Copies; tokens beyond n_max are cut off. */
int corpus_add(struct corpus *c, const int32_t *prompt, size_t n_prompt, const int32_t *answer,
               size_t n_answer, size_t n_max, struct err *e);

/* Leaves texts out, by their hash, until no more than positions_max positions remain.
 * ERR_INVALID when fewer than two different prompts do. */
int corpus_prepare(struct corpus *c, size_t positions_max, struct err *e);

/* Tokens of the longest text, at least 1. */
size_t corpus_longest(const struct corpus *c);

/* Of the prepared texts and which are held out. */
int corpus_sha256(const struct corpus *c, char hex[SHA256_HEX_BYTES], struct err *e);

void corpus_fini(struct corpus *c);

#endif
