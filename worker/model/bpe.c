/*
 * Byte-level BPE. A vocabulary writes bytes as code points of the GPT-2 table: 33-126, 161-172
 * and 174-255 stand for themselves, the other 68 bytes for U+0100 onward in order. Encoding
 * never makes that text: bytes become token ids at once, and merges are keyed by two ids.
 *
 * A merge whose parts or whose result are not in the vocabulary, or are reserved tokens, is
 * dead. Between valid UTF-8 stretches each invalid byte is a piece of its own.
 *
 * A byte for which the vocabulary has no token is dropped where it is part of valid UTF-8 (so
 * do llama.cpp and the Hugging Face library, and so did the model's training); an invalid one
 * becomes U+FFFD, so that it leaves a trace.
 */
#include "model/tokenizer_int.h"

#include <stdlib.h>
#include <string.h>

#include "model/utf8.h"

static bool stands_for_itself(uint32_t code_point)
{
    return (code_point >= 33 && code_point <= 126) ||
           (code_point >= 161 && code_point <= 172) || (code_point >= 174 && code_point <= 255);
}

/* The 68 others: 0-32 are the first 33, 127-160 the next 34, 173 the last. */
static uint32_t code_point_of(unsigned char byte)
{
    if (stands_for_itself(byte))
        return byte;
    if (byte <= 32)
        return 256u + byte;
    return byte == 173 ? 256u + 67 : 256u + 33 + (byte - 127u);
}

bool bpe_byte_of(uint32_t code_point, unsigned char *byte)
{
    if (stands_for_itself(code_point)) {
        *byte = (unsigned char)code_point;
        return true;
    }
    if (code_point < 256 || code_point > 256 + 67)
        return false;
    const uint32_t i = code_point - 256;
    *byte = (unsigned char)(i <= 32 ? i : i == 67 ? 173 : i - 33 + 127);
    return true;
}

size_t bpe_text_of(unsigned char byte, char out[2])
{
    const uint32_t code_point = code_point_of(byte);
    if (code_point < 0x80) {
        out[0] = (char)code_point;
        return 1;
    }
    out[0] = (char)(0xC0 | code_point >> 6);
    out[1] = (char)(0x80 | (code_point & 0x3F));
    return 2;
}

static size_t merge_hash(const struct tokenizer *tok, int32_t left, int32_t right)
{
    uint64_t h = ((uint64_t)(uint32_t)left << 32 | (uint32_t)right) * 0x9e3779b97f4a7c15u;
    h ^= h >> 32;
    return (size_t)(h * 0xd6e8feb86659fd93u >> 20) & tok->merges_mask;
}

/* The slot of a pair, or the free one where it would stand. */
static struct merge_slot *merge_slot_of(const struct tokenizer *tok, int32_t left,
                                        int32_t right)
{
    size_t slot = merge_hash(tok, left, right);
    while (tok->merges[slot].left != TOKEN_NONE &&
           (tok->merges[slot].left != left || tok->merges[slot].right != right))
        slot = (slot + 1) & tok->merges_mask;
    return &tok->merges[slot];
}

/* "A B": cut at the first space after the first byte. The first of two equal merges counts. */
static void add_merge(struct tokenizer *tok, struct gguf_str text, uint32_t rank, char *joined)
{
    const char *space = text.length > 2 ? memchr(text.data + 1, ' ', text.length - 1) : NULL;
    if (!space || text.length - 1 > tok->text_bytes_max)
        return;
    const size_t a = (size_t)(space - text.data), b = text.length - a - 1;
    memcpy(joined, text.data, a);
    memcpy(joined + a, space + 1, b);
    const int32_t left = vocab_find_ordinary(tok, joined, a);
    const int32_t right = vocab_find_ordinary(tok, joined + a, b);
    const int32_t merged = vocab_find_ordinary(tok, joined, a + b);
    if (left == TOKEN_NONE || right == TOKEN_NONE || merged == TOKEN_NONE)
        return;
    struct merge_slot *slot = merge_slot_of(tok, left, right);
    if (slot->left == TOKEN_NONE)
        *slot = (struct merge_slot){left, right, merged, rank};
}

static int alloc_merges(struct tokenizer *tok, size_t count, struct err *e)
{
    size_t capacity = 16;
    while (capacity < 2 * count)
        capacity *= 2;
    tok->merges = malloc(capacity * sizeof *tok->merges);
    if (!tok->merges)
        return ERR_SET(e, ERR_NOMEM, "no memory for %zu merges", count);
    for (size_t i = 0; i < capacity; i++)
        tok->merges[i].left = TOKEN_NONE;
    tok->merges_mask = capacity - 1;
    return 0;
}

static int load_merges(struct tokenizer *tok, const struct gguf *g, struct err *e)
{
    enum gguf_kind kind;
    size_t count;
    TRY(gguf_array(g, "tokenizer.ggml.merges", &kind, &count, e));
    if (kind != GGUF_STRING)
        return ERR_SET(e, ERR_FORMAT, "tokenizer.ggml.merges is not an array of strings");
    TRY(alloc_merges(tok, count, e));
    struct gguf_str *texts = calloc(count + 1, sizeof *texts);
    char *joined = malloc(tok->text_bytes_max + 1);
    int code = 0;
    if (!texts || !joined)
        code = ERR_SET(e, ERR_NOMEM, "no memory for %zu merges", count);
    else
        code = gguf_array_strings(g, "tokenizer.ggml.merges", texts, count, e);
    for (size_t rank = 0; code == 0 && rank < count; rank++)
        add_merge(tok, texts[rank], (uint32_t)rank, joined);
    free(texts);
    free(joined);
    return code;
}

int bpe_load(struct tokenizer *tok, const struct gguf *g, struct err *e)
{
    for (size_t byte = 0; byte < 256; byte++) {
        char text[2];
        const size_t n = bpe_text_of((unsigned char)byte, text);
        const int32_t id = vocab_find_ordinary(tok, text, n);
        if (id != TOKEN_NONE)
            tok->byte_ids[byte] = id;
    }
    return load_merges(tok, g, e);
}

static bool bpe_pair(const void *context, const struct merge_symbol *left,
                     const struct merge_symbol *right, uint32_t *rank, int32_t *id)
{
    if (left->id == TOKEN_NONE || right->id == TOKEN_NONE)
        return false;
    const struct merge_slot *slot = merge_slot_of(context, left->id, right->id);
    *rank = slot->rank;
    *id = slot->merged;
    return slot->left != TOKEN_NONE;
}

struct bpe_run {
    const struct tokenizer *tok;
    struct merge *merge;
    struct token_list *out;
};

/* The token whose text is the whole piece, for vocabularies that prefer it to merging. */
static int32_t find_whole(const struct tokenizer *tok, const char *text, size_t length)
{
    char mapped[512];
    if (length > sizeof mapped / 2)
        return TOKEN_NONE;
    size_t n = 0;
    for (size_t i = 0; i < length; i++)
        n += bpe_text_of((unsigned char)text[i], mapped + n);
    return vocab_find_ordinary(tok, mapped, n);
}

static int encode_piece(void *context, const char *text, size_t length, struct err *e)
{
    const struct bpe_run *run = context;
    const struct tokenizer *tok = run->tok;
    struct merge *m = run->merge;
    if (tok->ignore_merges) {
        const int32_t whole = find_whole(tok, text, length);
        if (whole != TOKEN_NONE)
            return token_list_append(run->out, whole, e);
    }
    TRY(merge_reserve(m, length, e));
    for (size_t i = 0; i < length; i++)
        merge_add_symbol(m, i, 1, tok->byte_ids[(unsigned char)text[i]]);
    merge_run(m, bpe_pair, tok);
    for (size_t i = 0; i < m->n_symbols; i++)
        if (m->symbols[i].length > 0 && m->symbols[i].id != TOKEN_NONE)
            TRY(token_list_append(run->out, m->symbols[i].id, e));
    return 0;
}

static int encode_invalid_byte(struct bpe_run *run, char byte, struct err *e)
{
    const int32_t id = run->tok->byte_ids[(unsigned char)byte];
    if (id != TOKEN_NONE)
        return token_list_append(run->out, id, e);
    return encode_piece(run, "\xef\xbf\xbd", 3, e);
}

int bpe_encode(const struct tokenizer *tok, const char *text, size_t length, struct merge *m,
               struct token_list *out, struct err *e)
{
    struct bpe_run run = {tok, m, out};
    size_t at = 0;
    while (at < length) {
        const size_t valid = utf8_valid_prefix(text + at, length - at);
        if (valid > 0)
            TRY(pretok_split(&tok->pretok, text + at, valid, encode_piece, &run, e));
        at += valid;
        if (at < length)
            TRY(encode_invalid_byte(&run, text[at++], e));
    }
    return 0;
}
