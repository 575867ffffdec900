/*
 * SentencePiece BPE: code points as symbols, the pair whose joined text is the token with the
 * highest score merges first, ties leftmost; what is no token at the end is written as byte
 * tokens. A space is U+2581 in the vocabulary. No normalisation.
 *
 * A text that begins at the start or after a special token gets a space in front when the
 * model's add_space_prefix says so. Each invalid byte is a symbol that merges with nothing.
 */
#include "model/tokenizer_int.h"

#include <stdlib.h>
#include <string.h>

#include "model/utf8.h"

int spm_load(struct tokenizer *tok, const struct gguf *g, struct err *e)
{
    for (size_t byte = 0; byte < 256; byte++)
        if (tok->byte_ids[byte] == TOKEN_NONE)
            return ERR_SET(e, ERR_UNSUPPORTED,
                           "a SentencePiece vocabulary without the byte token <0x%02zX>", byte);
    tok->add_space_prefix = true;
    if (gguf_has(g, "tokenizer.ggml.add_space_prefix"))
        TRY(gguf_bool(g, "tokenizer.ggml.add_space_prefix", &tok->add_space_prefix, e));
    return 0;
}

/* The text with U+2581 for spaces; one space in front more if asked for. */
static char *escape_spaces(const char *text, size_t length, bool prefix, size_t *escaped_length)
{
    size_t spaces = prefix;
    for (size_t i = 0; i < length; i++)
        spaces += text[i] == ' ';
    char *escaped = malloc(length + 3 * spaces + 1);
    if (!escaped)
        return NULL;
    size_t n = 0;
    if (prefix) {
        memcpy(escaped, "\xe2\x96\x81", 3);
        n = 3;
    }
    for (size_t i = 0; i < length; i++) {
        if (text[i] == ' ') {
            memcpy(escaped + n, "\xe2\x96\x81", 3);
            n += 3;
        } else {
            escaped[n++] = text[i];
        }
    }
    *escaped_length = n;
    return escaped;
}

struct spm_text {
    const struct tokenizer *tok;
    const char *text;
};

/* Orders floats as unsigned integers: the highest score has the lowest rank. */
static uint32_t rank_of_score(float score)
{
    const float value = score == 0 ? 0 : score; /* -0 is 0 */
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    const uint32_t ascending = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
    return ~ascending;
}

enum { SYMBOL_INVALID = -2 }; /* an invalid byte, never part of a merge */

static bool spm_pair(const void *context, const struct merge_symbol *left,
                     const struct merge_symbol *right, uint32_t *rank, int32_t *id)
{
    const struct spm_text *t = context;
    if (left->id == SYMBOL_INVALID || right->id == SYMBOL_INVALID)
        return false;
    *id = vocab_find_ordinary(t->tok, t->text + left->start,
                              (size_t)left->length + right->length);
    if (*id == TOKEN_NONE || t->tok->types[*id] == TOKEN_BYTE) /* the text "<0x41>" is no A */
        return false;
    *rank = rank_of_score(t->tok->scores[*id]);
    return true;
}

static void add_symbols(const struct spm_text *t, size_t length, struct merge *m)
{
    size_t at = 0;
    while (at < length) {
        const size_t n = utf8_sequence(t->text + at, length - at);
        if (n == 0)
            merge_add_symbol(m, at, 1, SYMBOL_INVALID);
        else
            merge_add_symbol(m, at, n, vocab_find_ordinary(t->tok, t->text + at, n));
        at += n ? n : 1;
    }
}

static int emit_symbol(const struct spm_text *t, const struct merge_symbol *symbol,
                       struct token_list *out, struct err *e)
{
    if (symbol->id >= 0)
        return token_list_append(out, symbol->id, e);
    for (size_t i = 0; i < symbol->length; i++) {
        const unsigned char byte = (unsigned char)t->text[symbol->start + i];
        TRY(token_list_append(out, t->tok->byte_ids[byte], e));
    }
    return 0;
}

int spm_encode(const struct tokenizer *tok, const char *text, size_t length, bool text_start,
               struct merge *m, struct token_list *out, struct err *e)
{
    size_t n;
    char *escaped = escape_spaces(text, length, text_start && tok->add_space_prefix, &n);
    if (!escaped)
        return ERR_SET(e, ERR_NOMEM, "no memory to encode %zu bytes", length);
    const struct spm_text t = {tok, escaped};
    int code = merge_reserve(m, n, e);
    if (code == 0) {
        add_symbols(&t, n, m);
        merge_run(m, spm_pair, &t);
    }
    for (size_t i = 0; code == 0 && i < m->n_symbols; i++)
        if (m->symbols[i].length > 0)
            code = emit_symbol(&t, &m->symbols[i], out, e);
    free(escaped);
    return code;
}
