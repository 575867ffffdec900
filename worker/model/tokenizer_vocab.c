/*
 * The vocabulary tables of a GGUF file, copied so that the file may be closed.
 *
 * A token is reserved when text from a job must never become it: control and unknown tokens,
 * the tokens that the file names as BOS, EOS, EOT, EOM or unknown, tokens whose text is one of
 * the known end-of-turn texts, and user-defined tokens that look like markup of a chat template
 * ("<|...|>" and the markers listed below). Some files type such tokens user-defined, which
 * other engines then find in any text; here it needs a span of template text. All other
 * user-defined tokens (runs of spaces, HTML tags) are found everywhere.
 */
#include "model/tokenizer_int.h"

#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/limits.h"

static const char *const end_texts[] = {
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "</s>",
    "<|eom_id|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<|end_of_text|>",
    "<end_of_utterance>",
    "<eos>",
    "<\357\275\234end\342\226\201of\342\226\201sentence\357\275\234>", /* DeepSeek; octal: e is
                                                                          hex */
};

static const char *const marker_texts[] = {
    "<s>",
    "<unk>",
    "<pad>",
    "<bos>",
    "<start_of_turn>",
    "[INST]",
    "[/INST]",
    "[SYSTEM_PROMPT]",
    "[/SYSTEM_PROMPT]",
    "[AVAILABLE_TOOLS]",
    "[/AVAILABLE_TOOLS]",
    "[TOOL_RESULTS]",
    "[/TOOL_RESULTS]",
    "[TOOL_CALLS]",
    "<<SYS>>",
    "<</SYS>>",
    "[gMASK]",
    "<sop>",
};

/* FNV-1a with a last mix, because slots are taken from the low bits. */
static uint64_t hash_bytes(const char *text, size_t length)
{
    uint64_t h = 0xcbf29ce484222325u;
    for (size_t i = 0; i < length; i++)
        h = (h ^ (unsigned char)text[i]) * 0x100000001b3u;
    return h ^ (h >> 32);
}

static struct gguf_str table_at(const struct string_table *table, size_t id)
{
    return (struct gguf_str){table->bytes + table->starts[id],
                             table->starts[id + 1] - table->starts[id]};
}

static bool is_text(struct gguf_str text, const char *known)
{
    return text.length == strlen(known) && memcmp(text.data, known, text.length) == 0;
}

static bool is_any_of(struct gguf_str text, const char *const *known, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (is_text(text, known[i]))
            return true;
    return false;
}

static bool is_end_text(struct gguf_str text)
{
    return is_any_of(text, end_texts, sizeof end_texts / sizeof *end_texts);
}

static bool is_markup(struct gguf_str text)
{
    if (text.length > 4 && memcmp(text.data, "<|", 2) == 0 &&
        memcmp(text.data + text.length - 2, "|>", 2) == 0)
        return true;
    return is_any_of(text, marker_texts, sizeof marker_texts / sizeof *marker_texts);
}

int32_t vocab_find(const struct tokenizer *tok, const char *text, size_t length)
{
    if (length == 0 || length > tok->text_bytes_max)
        return TOKEN_NONE;
    size_t slot = hash_bytes(text, length) & tok->by_text_mask;
    for (; tok->by_text[slot] != TOKEN_NONE; slot = (slot + 1) & tok->by_text_mask) {
        const struct gguf_str known = table_at(&tok->texts, (size_t)tok->by_text[slot]);
        if (known.length == length && memcmp(known.data, text, length) == 0)
            return tok->by_text[slot];
    }
    return TOKEN_NONE;
}

int32_t vocab_find_ordinary(const struct tokenizer *tok, const char *text, size_t length)
{
    const int32_t id = vocab_find(tok, text, length);
    return id != TOKEN_NONE && tok->reserved[id] ? TOKEN_NONE : id;
}

static int table_alloc(struct string_table *table, size_t n, size_t bytes, struct err *e)
{
    table->starts = calloc(n + 1, sizeof *table->starts);
    table->bytes = malloc(bytes + 1);
    if (!table->starts || !table->bytes)
        return ERR_SET(e, ERR_NOMEM, "no memory for %zu tokens", n);
    return 0;
}

static int copy_texts(struct tokenizer *tok, const struct gguf_str *strings, struct err *e)
{
    size_t bytes = 0;
    for (size_t id = 0; id < tok->n_vocab; id++) {
        if (strings[id].length > TOKEN_BYTES_MAX)
            return ERR_SET(e, ERR_FORMAT, "token %zu is %zu bytes long, the limit is %u", id,
                           strings[id].length, TOKEN_BYTES_MAX);
        if (strings[id].length > tok->text_bytes_max)
            tok->text_bytes_max = strings[id].length;
        bytes += strings[id].length;
    }
    TRY(table_alloc(&tok->texts, tok->n_vocab, bytes, e));
    size_t at = 0;
    for (size_t id = 0; id < tok->n_vocab; id++) {
        if (strings[id].length > 0)
            memcpy(tok->texts.bytes + at, strings[id].data, strings[id].length);
        at += strings[id].length;
        tok->texts.starts[id + 1] = at;
    }
    return 0;
}

static int load_texts(struct tokenizer *tok, const struct gguf *g, struct err *e)
{
    enum gguf_kind kind;
    TRY(gguf_array(g, "tokenizer.ggml.tokens", &kind, &tok->n_vocab, e));
    if (kind != GGUF_STRING)
        return ERR_SET(e, ERR_FORMAT, "tokenizer.ggml.tokens is not an array of strings");
    if (tok->n_vocab == 0 || tok->n_vocab > GGUF_ARRAY_ITEMS_MAX)
        return ERR_SET(e, ERR_FORMAT, "a vocabulary of %zu tokens", tok->n_vocab);
    struct gguf_str *strings = calloc(tok->n_vocab, sizeof *strings);
    if (!strings)
        return ERR_SET(e, ERR_NOMEM, "no memory for %zu tokens", tok->n_vocab);
    int code = gguf_array_strings(g, "tokenizer.ggml.tokens", strings, tok->n_vocab, e);
    if (code == 0)
        code = copy_texts(tok, strings, e);
    free(strings);
    return code;
}

/* Of tokens with one text the first counts; the others can only be decoded. */
static int index_texts(struct tokenizer *tok, struct err *e)
{
    size_t capacity = 16;
    while (capacity < 2 * tok->n_vocab)
        capacity *= 2;
    tok->by_text = malloc(capacity * sizeof *tok->by_text);
    if (!tok->by_text)
        return ERR_SET(e, ERR_NOMEM, "no memory for the index of %zu tokens", tok->n_vocab);
    for (size_t i = 0; i < capacity; i++)
        tok->by_text[i] = TOKEN_NONE;
    tok->by_text_mask = capacity - 1;
    for (size_t id = 0; id < tok->n_vocab; id++) {
        const struct gguf_str text = table_at(&tok->texts, id);
        if (text.length == 0 || vocab_find(tok, text.data, text.length) != TOKEN_NONE)
            continue;
        size_t slot = hash_bytes(text.data, text.length) & tok->by_text_mask;
        while (tok->by_text[slot] != TOKEN_NONE)
            slot = (slot + 1) & tok->by_text_mask;
        tok->by_text[slot] = (int32_t)id;
    }
    return 0;
}

/* The numbers of an optional array of one number a token; *out NULL when it is missing. */
static int load_numbers(const struct tokenizer *tok, const struct gguf *g, const char *key,
                        double **out, struct err *e)
{
    *out = NULL;
    if (!gguf_has(g, key))
        return 0;
    enum gguf_kind kind;
    size_t count;
    TRY(gguf_array(g, key, &kind, &count, e));
    if (count != tok->n_vocab)
        return ERR_SET(e, ERR_FORMAT, "%s has %zu items for %zu tokens", key, count,
                       tok->n_vocab);
    double *numbers = calloc(count, sizeof *numbers);
    if (!numbers)
        return ERR_SET(e, ERR_NOMEM, "no memory for %s", key);
    const int code = gguf_array_numbers(g, key, numbers, count, e);
    if (code != 0) {
        free(numbers);
        return code;
    }
    *out = numbers;
    return 0;
}

static int load_types(struct tokenizer *tok, const struct gguf *g, struct err *e)
{
    tok->types = malloc(tok->n_vocab);
    if (!tok->types)
        return ERR_SET(e, ERR_NOMEM, "no memory for %zu tokens", tok->n_vocab);
    memset(tok->types, TOKEN_NORMAL, tok->n_vocab);
    double *numbers;
    TRY(load_numbers(tok, g, "tokenizer.ggml.token_type", &numbers, e));
    int code = 0;
    for (size_t id = 0; numbers && id < tok->n_vocab; id++) {
        if (!(numbers[id] >= TOKEN_NORMAL && numbers[id] <= TOKEN_BYTE)) {
            code = ERR_SET(e, ERR_FORMAT, "token %zu has the unknown type %g", id, numbers[id]);
            break;
        }
        tok->types[id] = (uint8_t)numbers[id];
    }
    free(numbers);
    return code;
}

static int load_scores(struct tokenizer *tok, const struct gguf *g, struct err *e)
{
    double *numbers;
    TRY(load_numbers(tok, g, "tokenizer.ggml.scores", &numbers, e));
    if (!numbers)
        return ERR_SET(e, ERR_FORMAT, "tokenizer.ggml.scores is missing");
    int code = 0;
    tok->scores = calloc(tok->n_vocab, sizeof *tok->scores);
    if (!tok->scores)
        code = ERR_SET(e, ERR_NOMEM, "no memory for %zu tokens", tok->n_vocab);
    for (size_t id = 0; code == 0 && id < tok->n_vocab; id++) {
        if (isnan(numbers[id]))
            code = ERR_SET(e, ERR_FORMAT, "the score of token %zu is not a number", id);
        tok->scores[id] = (float)numbers[id];
    }
    free(numbers);
    return code;
}

/* A special token's id, by key; without the key the default, TOKEN_NONE for no such token. */
static int load_id(const struct tokenizer *tok, const struct gguf *g, const char *key,
                   int32_t missing, int32_t *out, struct err *e)
{
    *out = missing >= 0 && (size_t)missing < tok->n_vocab ? missing : TOKEN_NONE;
    if (!gguf_has(g, key))
        return 0;
    uint64_t id;
    TRY(gguf_u64(g, key, &id, e));
    if (id >= tok->n_vocab)
        return ERR_SET(e, ERR_FORMAT, "%s is %llu, the vocabulary has %zu tokens", key,
                       (unsigned long long)id, tok->n_vocab);
    *out = (int32_t)id;
    return 0;
}

static int load_ids(struct tokenizer *tok, const struct gguf *g, struct err *e)
{
    const bool spm = tok->model == TOKENIZER_SPM;
    TRY(load_id(tok, g, "tokenizer.ggml.bos_token_id", spm ? 1 : TOKEN_NONE, &tok->bos, e));
    TRY(load_id(tok, g, "tokenizer.ggml.eos_token_id", spm ? 2 : TOKEN_NONE, &tok->eos, e));
    TRY(load_id(tok, g, "tokenizer.ggml.unknown_token_id", spm ? 0 : TOKEN_NONE, &tok->unk, e));
    TRY(load_id(tok, g, "tokenizer.ggml.eot_token_id", TOKEN_NONE, &tok->eot, e));
    return load_id(tok, g, "tokenizer.ggml.eom_token_id", TOKEN_NONE, &tok->eom, e);
}

static int mark_reserved(struct tokenizer *tok, struct err *e)
{
    tok->reserved = calloc(tok->n_vocab, sizeof *tok->reserved);
    tok->end = calloc(tok->n_vocab, sizeof *tok->end);
    if (!tok->reserved || !tok->end)
        return ERR_SET(e, ERR_NOMEM, "no memory for %zu tokens", tok->n_vocab);
    for (size_t id = 0; id < tok->n_vocab; id++) {
        const struct gguf_str text = table_at(&tok->texts, id);
        const uint8_t type = tok->types[id];
        tok->end[id] = is_end_text(text);
        tok->reserved[id] = tok->end[id] || type == TOKEN_CONTROL || type == TOKEN_UNKNOWN ||
                            (type == TOKEN_USER && is_markup(text));
    }
    const int32_t named[] = {tok->bos, tok->eos, tok->eot, tok->eom, tok->unk};
    for (size_t i = 0; i < sizeof named / sizeof *named; i++)
        if (named[i] != TOKEN_NONE)
            tok->reserved[named[i]] = true;
    const int32_t ends[] = {tok->eos, tok->eot, tok->eom};
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        if (ends[i] != TOKEN_NONE)
            tok->end[ends[i]] = true;
    /* In harmony vocabularies <|end|> closes a message, not the generation. */
    const int32_t end = vocab_find(tok, "<|end|>", 7);
    if (end != TOKEN_NONE && end != tok->eos && vocab_find(tok, "<|return|>", 10) >= 0 &&
        vocab_find(tok, "<|call|>", 8) >= 0)
        tok->end[end] = false;
    return 0;
}

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'A' && c <= 'F')
        return c - 'A' + 10;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* "<0x41>" and nothing else. */
static bool parse_byte_token(struct gguf_str text, unsigned char *byte)
{
    if (text.length != 6 || memcmp(text.data, "<0x", 3) != 0 || text.data[5] != '>')
        return false;
    const int high = hex_digit(text.data[3]), low = hex_digit(text.data[4]);
    if (high < 0 || low < 0)
        return false;
    *byte = (unsigned char)(high * 16 + low);
    return true;
}

/* Bytes of a byte-level BPE token; a text outside the byte table stands for itself. */
static size_t write_bpe_piece(struct gguf_str text, char *out)
{
    size_t at = 0, written = 0;
    while (at < text.length) {
        const unsigned char first = (unsigned char)text.data[at];
        uint32_t code_point = first;
        size_t n = 1;
        if ((first & 0xE0) == 0xC0 && at + 1 < text.length) {
            code_point = (first & 0x1Fu) << 6 | ((unsigned char)text.data[at + 1] & 0x3Fu);
            n = 2;
        }
        unsigned char byte;
        if ((n == 1 && first >= 0x80) || !bpe_byte_of(code_point, &byte)) {
            memcpy(out, text.data, text.length);
            return text.length;
        }
        out[written++] = (char)byte;
        at += n;
    }
    return written;
}

static const char spm_space[3] = {'\xe2', '\x96', '\x81'}; /* U+2581 */

static size_t write_spm_piece(struct gguf_str text, char *out)
{
    size_t at = 0, written = 0;
    while (at < text.length) {
        if (text.length - at >= 3 && memcmp(text.data + at, spm_space, 3) == 0) {
            out[written++] = ' ';
            at += 3;
        } else {
            out[written++] = text.data[at++];
        }
    }
    return written;
}

static int write_piece(struct tokenizer *tok, size_t id, char *out, size_t *written,
                       struct err *e)
{
    const struct gguf_str text = table_at(&tok->texts, id);
    *written = 0;
    if (tok->types[id] == TOKEN_BYTE) {
        unsigned char byte;
        if (!parse_byte_token(text, &byte))
            return ERR_SET(e, ERR_FORMAT, "token %zu is typed byte, but is not <0x..>", id);
        if (tok->reserved[id])
            return 0;
        out[0] = (char)byte;
        *written = 1;
        if (tok->byte_ids[byte] == TOKEN_NONE)
            tok->byte_ids[byte] = (int32_t)id;
    } else if (tok->reserved[id]) {
        return 0;
    } else if (tok->types[id] == TOKEN_USER) {
        memcpy(out, text.data, text.length);
        *written = text.length;
    } else {
        *written = tok->model == TOKENIZER_SPM ? write_spm_piece(text, out)
                                               : write_bpe_piece(text, out);
    }
    return 0;
}

/* No piece is longer than its text, so the texts' size is enough for all. */
static int load_pieces(struct tokenizer *tok, struct err *e)
{
    TRY(table_alloc(&tok->pieces, tok->n_vocab, tok->texts.starts[tok->n_vocab], e));
    for (size_t i = 0; i < 256; i++)
        tok->byte_ids[i] = TOKEN_NONE;
    size_t at = 0;
    for (size_t id = 0; id < tok->n_vocab; id++) {
        size_t written;
        TRY(write_piece(tok, id, tok->pieces.bytes + at, &written, e));
        at += written;
        tok->pieces.starts[id + 1] = at;
    }
    return 0;
}

int vocab_load(struct tokenizer *tok, const struct gguf *g, struct err *e)
{
    TRY(load_texts(tok, g, e));
    TRY(index_texts(tok, e));
    TRY(load_types(tok, g, e));
    if (tok->model == TOKENIZER_SPM)
        TRY(load_scores(tok, g, e));
    TRY(load_ids(tok, g, e));
    TRY(mark_reserved(tok, e));
    return load_pieces(tok, e);
}

void vocab_free(struct tokenizer *tok)
{
    free(tok->texts.bytes);
    free(tok->texts.starts);
    free(tok->pieces.bytes);
    free(tok->pieces.starts);
    free(tok->types);
    free(tok->reserved);
    free(tok->end);
    free(tok->by_text);
    free(tok->scores);
}
