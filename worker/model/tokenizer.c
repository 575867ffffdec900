#include "model/tokenizer_int.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/check.h"
#include "base/log.h"

void token_list_fini(struct token_list *list)
{
    free(list->ids);
    *list = (struct token_list){0};
}

int token_list_append(struct token_list *list, int32_t id, struct err *e)
{
    if (list->length == list->capacity) {
        const size_t capacity = list->capacity ? 2 * list->capacity : 256;
        int32_t *ids = realloc(list->ids, capacity * sizeof *ids);
        if (!ids)
            return ERR_SET(e, ERR_NOMEM, "no memory for %zu tokens", capacity);
        list->ids = ids;
        list->capacity = capacity;
    }
    list->ids[list->length++] = id;
    return 0;
}

static bool is_name(struct gguf_str text, const char *name)
{
    return text.length == strlen(name) && memcmp(text.data, name, text.length) == 0;
}

static int load_model(struct tokenizer *tok, const struct gguf *g, struct err *e)
{
    struct gguf_str name;
    TRY(gguf_string(g, "tokenizer.ggml.model", &name, e));
    if (is_name(name, "gpt2"))
        tok->model = TOKENIZER_BPE;
    else if (is_name(name, "llama"))
        tok->model = TOKENIZER_SPM;
    else
        return ERR_SET(e, ERR_UNSUPPORTED,
                       "tokenizer model \"%.*s\" is not supported; these are: gpt2 (byte-level "
                       "BPE), llama (SentencePiece)",
                       (int)(name.length < 64 ? name.length : 64), name.data);
    return 0;
}

static int load_pretok(struct tokenizer *tok, const struct gguf *g, struct err *e)
{
    struct gguf_str name = {"default", 7};
    if (gguf_has(g, "tokenizer.ggml.pre"))
        TRY(gguf_string(g, "tokenizer.ggml.pre", &name, e));
    else
        log_warn("the model names no pre-tokenizer; \"default\" is used, which may be wrong");
    struct pretok_traits traits;
    TRY(pretok_open(&tok->pretok, name.data, name.length, &traits, e));
    snprintf(tok->kind, sizeof tok->kind, "bpe/%.*s", (int)name.length, name.data);
    tok->ignore_merges = traits.ignore_merges;
    tok->add_bos = traits.add_bos;
    return 0;
}

static int load_algorithm(struct tokenizer *tok, const struct gguf *g, struct err *e)
{
    if (tok->model == TOKENIZER_SPM) {
        snprintf(tok->kind, sizeof tok->kind, "spm");
        tok->add_bos = true;
        TRY(spm_load(tok, g, e));
    } else {
        TRY(load_pretok(tok, g, e));
        TRY(bpe_load(tok, g, e));
    }
    if (gguf_has(g, "tokenizer.ggml.add_bos_token"))
        TRY(gguf_bool(g, "tokenizer.ggml.add_bos_token", &tok->add_bos, e));
    return 0;
}

int tokenizer_open(const struct gguf *g, struct tokenizer **out, struct err *e)
{
    struct tokenizer *tok = calloc(1, sizeof *tok);
    if (!tok)
        return ERR_SET(e, ERR_NOMEM, "no memory for a tokenizer");
    int code = load_model(tok, g, e);
    if (code == 0)
        code = vocab_load(tok, g, e);
    if (code == 0)
        code = load_algorithm(tok, g, e);
    if (code == 0)
        code = special_index(tok, e);
    if (code != 0) {
        tokenizer_close(tok);
        return code;
    }
    *out = tok;
    return 0;
}

void tokenizer_close(struct tokenizer *tok)
{
    if (!tok)
        return;
    vocab_free(tok);
    pretok_close(&tok->pretok);
    free(tok->special_lengths);
    free(tok->merges);
    free(tok);
}

/* The spans as one text, with a flag for each byte. */
struct joined {
    char *text;
    bool *special;
    size_t length;
};

static int join_spans(const struct token_span *spans, size_t n_spans, struct joined *out,
                      struct err *e)
{
    size_t length = 0;
    for (size_t i = 0; i < n_spans; i++) {
        if (spans[i].length > INT32_MAX / 8 - length)
            return ERR_SET_FLAGS(e, ERR_LIMIT, ERR_JOB, "a text of over %d bytes is too long",
                                 INT32_MAX / 8);
        length += spans[i].length;
    }
    out->text = malloc(length + 1);
    out->special = malloc(length + 1);
    if (!out->text || !out->special)
        return ERR_SET(e, ERR_NOMEM, "no memory to encode %zu bytes", length);
    for (size_t i = 0; i < n_spans; i++) {
        if (spans[i].length == 0)
            continue;
        memcpy(out->text + out->length, spans[i].text, spans[i].length);
        memset(out->special + out->length, spans[i].special, spans[i].length);
        out->length += spans[i].length;
    }
    return 0;
}

static int encode_stretch(const struct tokenizer *tok, const char *text, size_t length,
                          struct merge *m, struct token_list *out, struct err *e)
{
    if (length == 0)
        return 0;
    /* Stretches are maximal: each begins the text or follows a special token. */
    if (tok->model == TOKENIZER_SPM)
        return spm_encode(tok, text, length, true, m, out, e);
    return bpe_encode(tok, text, length, m, out, e);
}

static int encode_joined(const struct tokenizer *tok, const struct joined *j, struct merge *m,
                         struct special_hits *hits, struct token_list *out, struct err *e)
{
    TRY(special_search(tok, j->text, j->special, j->length, hits, e));
    size_t at = 0;
    for (size_t i = 0; i < hits->length; i++) {
        const struct special_hit hit = hits->items[i];
        TRY(encode_stretch(tok, j->text + at, hit.start - at, m, out, e));
        TRY(token_list_append(out, hit.id, e));
        at = hit.start + tokenizer_token_text(tok, hit.id).length;
    }
    return encode_stretch(tok, j->text + at, j->length - at, m, out, e);
}

static int put_bos_in_front(const struct tokenizer *tok, struct token_list *out, size_t first,
                            struct err *e)
{
    if (!tok->add_bos || tok->bos == TOKEN_NONE)
        return 0;
    if (out->length > first && out->ids[first] == tok->bos)
        return 0;
    TRY(token_list_append(out, tok->bos, e));
    memmove(out->ids + first + 1, out->ids + first,
            (out->length - 1 - first) * sizeof *out->ids);
    out->ids[first] = tok->bos;
    return 0;
}

int tokenizer_encode(const struct tokenizer *tok, const struct token_span *spans,
                     size_t n_spans, bool add_bos, struct token_list *out, struct err *e)
{
    const size_t first = out->length;
    struct joined j = {0};
    struct merge m = {0};
    struct special_hits hits = {0};
    int code = join_spans(spans, n_spans, &j, e);
    if (code == 0)
        code = encode_joined(tok, &j, &m, &hits, out, e);
    if (code == 0 && add_bos)
        code = put_bos_in_front(tok, out, first, e);
    if (code != 0)
        out->length = first;
    free(j.text);
    free(j.special);
    free(hits.items);
    merge_fini(&m);
    return code;
}

static struct gguf_str string_at(const struct tokenizer *tok, const struct string_table *table,
                                 int32_t id)
{
    ASSERT(id >= 0 && (size_t)id < tok->n_vocab);
    const size_t start = table->starts[id];
    return (struct gguf_str){table->bytes + start, table->starts[id + 1] - start};
}

struct gguf_str tokenizer_piece(const struct tokenizer *tok, int32_t id)
{
    return string_at(tok, &tok->pieces, id);
}

struct gguf_str tokenizer_token_text(const struct tokenizer *tok, int32_t id)
{
    return string_at(tok, &tok->texts, id);
}

struct gguf_str tokenizer_next_piece(const struct tokenizer *tok, int32_t id, bool *text_start)
{
    struct gguf_str piece = tokenizer_piece(tok, id);
    const bool special = tok->reserved[id] || tok->types[id] == TOKEN_USER;
    if (!special && *text_start && tok->add_space_prefix && piece.length > 0 &&
        piece.data[0] == ' ')
        piece = (struct gguf_str){piece.data + 1, piece.length - 1};
    *text_start = special;
    return piece;
}

int tokenizer_decode(const struct tokenizer *tok, const int32_t *ids, size_t n, struct buf *out,
                     struct err *e)
{
    bool text_start = true;
    for (size_t i = 0; i < n; i++) {
        if (ids[i] < 0 || (size_t)ids[i] >= tok->n_vocab)
            return ERR_SET(e, ERR_INVALID, "token id %d, the vocabulary has %zu tokens", ids[i],
                           tok->n_vocab);
        const struct gguf_str piece = tokenizer_next_piece(tok, ids[i], &text_start);
        buf_append(out, piece.data, piece.length);
    }
    return buf_ok(out) ? 0 : ERR_SET(e, ERR_NOMEM, "no memory to decode %zu tokens", n);
}

size_t tokenizer_vocab_size(const struct tokenizer *tok)
{
    return tok->n_vocab;
}

const char *tokenizer_kind(const struct tokenizer *tok)
{
    return tok->kind;
}

int32_t tokenizer_bos(const struct tokenizer *tok)
{
    return tok->bos;
}

int32_t tokenizer_eos(const struct tokenizer *tok)
{
    return tok->eos;
}

static bool is_id(const struct tokenizer *tok, int32_t id)
{
    return id >= 0 && (size_t)id < tok->n_vocab;
}

bool tokenizer_is_control(const struct tokenizer *tok, int32_t id)
{
    return is_id(tok, id) && tok->reserved[id];
}

bool tokenizer_is_end(const struct tokenizer *tok, int32_t id)
{
    return is_id(tok, id) && tok->end[id];
}

int32_t tokenizer_find(const struct tokenizer *tok, const char *text, size_t length)
{
    return vocab_find(tok, text, length);
}
