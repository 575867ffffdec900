/*
 * Where special tokens are in a text: longer tokens first, tokens of one length from left to
 * right, none over a place that is taken. This is the order of llama.cpp (which leaves equal
 * lengths open), found without asking for each token: a byte that begins no special token is
 * looked at once, and a place is tried only with the lengths that its byte can begin.
 */
#include "model/tokenizer_int.h"

#include <stdlib.h>
#include <string.h>

static bool is_special(const struct tokenizer *tok, int32_t id)
{
    return tok->reserved[id] || tok->types[id] == TOKEN_USER;
}

static size_t text_length(const struct tokenizer *tok, size_t id)
{
    return tok->texts.starts[id + 1] - tok->texts.starts[id];
}

static int descending(const void *a, const void *b)
{
    const size_t x = *(const size_t *)a, y = *(const size_t *)b;
    return (x < y) - (x > y);
}

/* The distinct lengths of special tokens, longest first; *count may be 0. */
static int collect_lengths(const struct tokenizer *tok, size_t **out, size_t *count,
                           struct err *e)
{
    size_t *lengths = malloc((tok->n_vocab + 1) * sizeof *lengths);
    if (!lengths)
        return ERR_SET(e, ERR_NOMEM, "no memory for the special tokens");
    size_t n = 0;
    for (size_t id = 0; id < tok->n_vocab; id++)
        if (is_special(tok, (int32_t)id) && text_length(tok, id) > 0)
            lengths[n++] = text_length(tok, id);
    qsort(lengths, n, sizeof *lengths, descending);
    size_t distinct = 0;
    for (size_t i = 0; i < n; i++)
        if (distinct == 0 || lengths[distinct - 1] != lengths[i])
            lengths[distinct++] = lengths[i];
    *out = lengths;
    *count = distinct;
    return 0;
}

static struct special_length *find_length(const struct tokenizer *tok, size_t length)
{
    size_t low = 0, high = tok->n_special_lengths;
    while (low + 1 < high) {
        const size_t middle = low + (high - low) / 2;
        if (tok->special_lengths[middle].length >= length)
            low = middle;
        else
            high = middle;
    }
    return &tok->special_lengths[low];
}

int special_index(struct tokenizer *tok, struct err *e)
{
    size_t *lengths = NULL, n = 0;
    TRY(collect_lengths(tok, &lengths, &n, e));
    tok->special_lengths = calloc(n + 1, sizeof *tok->special_lengths);
    if (!tok->special_lengths) {
        free(lengths);
        return ERR_SET(e, ERR_NOMEM, "no memory for the special tokens");
    }
    tok->n_special_lengths = n;
    for (size_t i = 0; i < n; i++)
        tok->special_lengths[i].length = lengths[i];
    free(lengths);
    for (size_t id = 0; id < tok->n_vocab; id++) {
        if (!is_special(tok, (int32_t)id) || text_length(tok, id) == 0)
            continue;
        const unsigned char first = (unsigned char)tok->texts.bytes[tok->texts.starts[id]];
        find_length(tok, text_length(tok, id))->first[first] = true;
        tok->special_first[first] = true;
    }
    return 0;
}

/* One search: which places can begin a token, and which bytes are taken already. */
struct search {
    const struct tokenizer *tok;
    const char *text;
    const bool *mask;
    size_t length;
    size_t *candidates;
    size_t n_candidates;
    bool *taken;
};

static bool all(const bool *flags, size_t n, bool value)
{
    return memchr(flags, !value, n) == NULL;
}

static int32_t token_at(const struct search *s, size_t start, size_t length)
{
    if (length > s->length - start || !all(s->taken + start, length, false))
        return TOKEN_NONE;
    const int32_t id = vocab_find(s->tok, s->text + start, length);
    if (id == TOKEN_NONE || !is_special(s->tok, id))
        return TOKEN_NONE;
    if (s->tok->reserved[id] && !all(s->mask + start, length, true))
        return TOKEN_NONE;
    return id;
}

static int add_hit(struct special_hits *hits, size_t start, int32_t id, struct err *e)
{
    if (hits->length == hits->capacity) {
        const size_t capacity = hits->capacity ? 2 * hits->capacity : 64;
        struct special_hit *items = realloc(hits->items, capacity * sizeof *items);
        if (!items)
            return ERR_SET(e, ERR_NOMEM, "no memory for %zu special tokens", capacity);
        hits->items = items;
        hits->capacity = capacity;
    }
    hits->items[hits->length++] = (struct special_hit){start, id};
    return 0;
}

static int search_length(struct search *s, const struct special_length *length,
                         struct special_hits *out, struct err *e)
{
    for (size_t i = 0; i < s->n_candidates; i++) {
        const size_t start = s->candidates[i];
        if (s->taken[start] || !length->first[(unsigned char)s->text[start]])
            continue;
        const int32_t id = token_at(s, start, length->length);
        if (id == TOKEN_NONE)
            continue;
        memset(s->taken + start, true, length->length);
        TRY(add_hit(out, start, id, e));
    }
    return 0;
}

static int by_start(const void *a, const void *b)
{
    const struct special_hit *x = a, *y = b;
    return (x->start > y->start) - (x->start < y->start);
}

static size_t count_candidates(const struct tokenizer *tok, const char *text, size_t length)
{
    size_t n = 0;
    for (size_t i = 0; i < length; i++)
        n += tok->special_first[(unsigned char)text[i]];
    return n;
}

int special_search(const struct tokenizer *tok, const char *text, const bool *mask,
                   size_t length, struct special_hits *out, struct err *e)
{
    out->length = 0;
    const size_t n = count_candidates(tok, text, length);
    if (n == 0)
        return 0;
    struct search s = {.tok = tok, .text = text, .mask = mask, .length = length};
    s.candidates = malloc(n * sizeof *s.candidates);
    s.taken = calloc(length, sizeof *s.taken);
    int code = 0;
    if (!s.candidates || !s.taken) {
        code = ERR_SET(e, ERR_NOMEM, "no memory to search a text of %zu bytes", length);
        goto out;
    }
    for (size_t i = 0; i < length; i++)
        if (tok->special_first[(unsigned char)text[i]])
            s.candidates[s.n_candidates++] = i;
    for (size_t i = 0; i < tok->n_special_lengths; i++)
        TRY_OUT(code, search_length(&s, &tok->special_lengths[i], out, e));
    if (out->length > 1)
        qsort(out->items, out->length, sizeof *out->items, by_start);
out:
    free(s.candidates);
    free(s.taken);
    return code;
}
