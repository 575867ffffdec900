/* Small vocabularies made by hand, for tests. Shares no code with the tokenizer. */
#ifndef SHEAF_TEST_SMALL_VOCAB_H
#define SHEAF_TEST_SMALL_VOCAB_H

#include <stdint.h>

#include "gguf_builder.h"
#include "model/tokenizer.h"

/* Values of tokenizer.ggml.token_type. */
enum { SMALL_NORMAL = 1, SMALL_UNKNOWN, SMALL_CONTROL, SMALL_USER, SMALL_UNUSED, SMALL_BYTE };

struct small_vocab {
    char *texts[640]; /* owned */
    int32_t types[640];
    float scores[640];
    size_t n;
};

int32_t small_vocab_add(struct small_vocab *v, const char *text, int32_t type, float score);
/* The 256 bytes as byte-level BPE writes them; ids are in the order of the bytes. */
void small_vocab_add_bpe_bytes(struct small_vocab *v);
/* <unk>, <s>, </s> and <0x00> to <0xFF>: the start of every SentencePiece vocabulary. */
void small_vocab_add_spm_start(struct small_vocab *v);
/* Starts a file with the tables and "general.architecture"; more keys may follow. */
void small_vocab_write(const struct small_vocab *v, const char *model, struct gguf_builder *b);
void small_vocab_fini(struct small_vocab *v);

/* Opens what the builder holds; returns tokenizer_open's code, or the reader's. */
int small_vocab_open(struct gguf_builder *b, struct tokenizer **out, struct err *e);

#endif
