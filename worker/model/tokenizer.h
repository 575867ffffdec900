/*
 * Text <-> token ids: byte-level BPE (pre-tokenisers gpt-2, smollm/starcoder, llama-bpe, qwen2,
 * default) and SentencePiece-BPE (llama). An unknown pre-tokeniser or tokenizer model is
 * refused by name, never guessed.
 *
 * Text that comes from a job can never become a special token: encoding takes spans, and only
 * a span marked `special` (the chat template's own text) is searched for special tokens. The
 * spans are joined before pre-tokenisation, so that a border between template and content
 * does not change how the text around it is cut.
 *
 * Control and unknown tokens come from template text only. User-defined tokens (runs of spaces,
 * HTML tags) are found in content too, except those that end or open a turn by their text or
 * id: they count as control tokens whatever the file types them. Tokens are searched longest
 * first, those of one length from left to right. A token's own habit of eating the white space
 * beside it (Phi-3 in the Hugging Face library) is not followed.
 *
 * Invalid UTF-8 in a span: each byte that does not start or continue a valid sequence
 * (Unicode table 3-7: no overlong forms, no surrogates, nothing above U+10FFFF) is encoded as
 * the one byte it is, and comes back as that byte on decode. Some byte-level vocabularies lack
 * tokens for bytes that their training text had not (SmolLM2: C0, C1, F1, F2, F5-FF and six
 * control characters). There an invalid byte becomes U+FFFD, and a byte of valid text is
 * dropped, as in other engines. SentencePiece writes a space as U+2581, so that a U+2581 of the
 * text comes back as a space.
 *
 * Thread: read-only after opening, any.
 */
#ifndef SHEAF_TOKENIZER_H
#define SHEAF_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "model/gguf.h"

struct tokenizer;

enum { TOKEN_NONE = -1 };

struct token_span {
    const char *text; /* any bytes; need not be NUL-terminated */
    size_t length;
    bool special; /* special tokens in it are recognised */
};

struct token_list {
    int32_t *ids; /* owned; free with token_list_fini */
    size_t length;
    size_t capacity;
};
void token_list_fini(struct token_list *list);
int token_list_append(struct token_list *list, int32_t id, struct err *e);

int tokenizer_open(const struct gguf *g, struct tokenizer **out, struct err *e);
void tokenizer_close(struct tokenizer *tok);

/* Appends the ids of the spans, read as one text; add_bos puts BOS in front if the model wants
 * one and the ids do not begin with it already. */
int tokenizer_encode(const struct tokenizer *tok, const struct token_span *spans,
                     size_t n_spans, bool add_bos, struct token_list *out, struct err *e);

/* The bytes of one token as decoding yields them (for SentencePiece with the leading space
 * still there); empty for control tokens. Borrowed. id must be < n_vocab. */
struct gguf_str tokenizer_piece(const struct tokenizer *tok, int32_t id);
/* The same for one token after the other of a text: *text_start (true before the first) tells
 * whether a leading space would be the one that SentencePiece put there, and is updated. */
struct gguf_str tokenizer_next_piece(const struct tokenizer *tok, int32_t id, bool *text_start);
/* The token's text as stored in the vocabulary ("<|im_end|>", "Ġthe"). Borrowed. */
struct gguf_str tokenizer_token_text(const struct tokenizer *tok, int32_t id);
/* Ids -> bytes, without the space that SentencePiece puts in front of a text and of what
 * follows a special token: the opposite of encoding. Control tokens yield nothing. Appends. */
struct buf;
int tokenizer_decode(const struct tokenizer *tok, const int32_t *ids, size_t n, struct buf *out,
                     struct err *e);

size_t tokenizer_vocab_size(const struct tokenizer *tok);
const char *tokenizer_kind(const struct tokenizer *tok); /* "bpe/smollm", "spm" */
int32_t tokenizer_bos(const struct tokenizer *tok);      /* or TOKEN_NONE */
int32_t tokenizer_eos(const struct tokenizer *tok);
/* Yields no text, and never comes from content. */
bool tokenizer_is_control(const struct tokenizer *tok, int32_t id);
/* Tokens that end a generation: eos, eot, eom and the well-known texts of such tokens. */
bool tokenizer_is_end(const struct tokenizer *tok, int32_t id);
/* The id whose stored text is exactly this, or TOKEN_NONE. */
int32_t tokenizer_find(const struct tokenizer *tok, const char *text, size_t length);

#endif
