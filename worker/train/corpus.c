#include "train/corpus.h"

#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/hash.h"
#include "base/rng.h"
#include "base/size.h"

/* Draws of a text's hash, so that who is held out has nothing to do with who is left out. */
enum { STREAM_HELD_OUT, STREAM_LEFT_OUT };

static const double HELD_OUT_SHARE = 0.05;

int corpus_add(struct corpus *c, const int32_t *prompt, size_t n_prompt, const int32_t *answer,
               size_t n_answer, size_t n_max, struct err *e)
{
    if (c->n_texts == c->capacity) {
        const size_t capacity = 2 * c->capacity + 64;
        struct corpus_text *texts = realloc(c->texts, capacity * sizeof texts[0]);
        if (!texts)
            return ERR_SET(e, ERR_NOMEM, "no memory for %zu texts", capacity);
        c->texts = texts;
        c->capacity = capacity;
    }
    const uint64_t hash = hash_bytes(prompt, n_prompt * sizeof prompt[0]);
    n_prompt = size_min(n_prompt, n_max);
    n_answer = size_min(n_answer, n_max - n_prompt);
    int32_t *tokens = malloc((n_prompt + n_answer + 1) * sizeof tokens[0]);
    if (!tokens)
        return ERR_SET(e, ERR_NOMEM, "no memory for a text of %zu tokens", n_prompt + n_answer);
    memcpy(tokens, prompt, n_prompt * sizeof tokens[0]);
    if (n_answer > 0)
        memcpy(tokens + n_prompt, answer, n_answer * sizeof tokens[0]);
    c->texts[c->n_texts++] = (struct corpus_text){
        .tokens = tokens, .n_tokens = n_prompt + n_answer, .n_prompt = n_prompt, .hash = hash};
    return 0;
}

/* The shorter of two, one of which begins as the other, comes first. */
static int compare(const void *a, const void *b)
{
    const struct corpus_text *x = a, *y = b;
    const size_t n = size_min(x->n_tokens, y->n_tokens);
    for (size_t i = 0; i < n; i++)
        if (x->tokens[i] != y->tokens[i])
            return x->tokens[i] < y->tokens[i] ? -1 : 1;
    if (x->n_tokens != y->n_tokens)
        return x->n_tokens < y->n_tokens ? -1 : 1;
    return (x->n_prompt > y->n_prompt) - (x->n_prompt < y->n_prompt);
}

static size_t common(const struct corpus_text *x, const struct corpus_text *y)
{
    const size_t n_max = size_min(x->n_tokens, y->n_tokens);
    size_t n = 0;
    while (n < n_max && x->tokens[n] == y->tokens[n])
        n++;
    return n;
}

static bool is_below(uint64_t hash, int stream, double share)
{
    return rng_uniform(hash, (uint64_t)stream, 0) < share;
}

/* Of the texts whose draw is below the share; in order, what a text shares with the one before
 * it is all that it shares with any. */
static size_t count_positions(const struct corpus *c, double share)
{
    size_t n = 0;
    const struct corpus_text *before = NULL;
    for (size_t i = 0; i < c->n_texts; i++) {
        const struct corpus_text *text = &c->texts[i];
        if (!is_below(text->hash, STREAM_LEFT_OUT, share))
            continue;
        n += text->n_tokens - (before ? common(before, text) : 0);
        before = text;
    }
    return n;
}

static void leave_out(struct corpus *c, double share)
{
    size_t n = 0;
    for (size_t i = 0; i < c->n_texts; i++) {
        if (is_below(c->texts[i].hash, STREAM_LEFT_OUT, share))
            c->texts[n++] = c->texts[i];
        else
            free(c->texts[i].tokens);
    }
    c->n_left_out = c->n_texts - n;
    c->n_texts = n;
}

/* The greatest share that keeps to the bound, by halving. */
static void keep_to(struct corpus *c, size_t positions_max)
{
    double low = 0, high = 1;
    if (count_positions(c, high) <= positions_max)
        return;
    for (int i = 0; i < 24; i++) {
        const double share = (low + high) / 2;
        if (count_positions(c, share) <= positions_max)
            low = share;
        else
            high = share;
    }
    leave_out(c, low);
}

/* The prompt of the lowest draw is held out in any case, and that of the highest never: there
 * is always something to measure on and something to learn from. */
static int hold_out(struct corpus *c, struct err *e)
{
    double low = 1, high = 0;
    for (size_t i = 0; i < c->n_texts; i++) {
        const double draw = rng_uniform(c->texts[i].hash, STREAM_HELD_OUT, 0);
        low = draw < low ? draw : low;
        high = draw > high ? draw : high;
    }
    if (!(low < high))
        return ERR_SET(e, ERR_INVALID,
                       "heads need at least two different texts, one to learn from and one to "
                       "be measured on");
    for (size_t i = 0; i < c->n_texts; i++) {
        const double draw = rng_uniform(c->texts[i].hash, STREAM_HELD_OUT, 0);
        c->texts[i].is_held_out = draw == low || (draw < HELD_OUT_SHARE && draw < high);
    }
    return 0;
}

int corpus_prepare(struct corpus *c, size_t positions_max, struct err *e)
{
    if (c->n_texts > 0)
        qsort(c->texts, c->n_texts, sizeof c->texts[0], compare);
    keep_to(c, positions_max);
    c->n_positions = 0;
    for (size_t i = 0; i < c->n_texts; i++) {
        c->texts[i].n_shared = i > 0 ? common(&c->texts[i - 1], &c->texts[i]) : 0;
        c->n_positions += c->texts[i].n_tokens - c->texts[i].n_shared;
    }
    return hold_out(c, e);
}

size_t corpus_longest(const struct corpus *c)
{
    size_t n = 1;
    for (size_t i = 0; i < c->n_texts; i++)
        n = size_max(n, c->texts[i].n_tokens);
    return n;
}

int corpus_sha256(const struct corpus *c, char hex[SHA256_HEX_BYTES], struct err *e)
{
    struct buf all = {0};
    for (size_t i = 0; i < c->n_texts; i++) {
        const struct corpus_text *text = &c->texts[i];
        const uint64_t head[] = {text->n_tokens, text->n_prompt, text->is_held_out};
        buf_append(&all, head, sizeof head);
        buf_append(&all, text->tokens, text->n_tokens * sizeof text->tokens[0]);
    }
    const int rc = buf_ok(&all) ? sha256_hex(buf_str(&all), all.length, hex, e)
                                : ERR_SET(e, ERR_NOMEM, "no memory for the texts' hash");
    buf_fini(&all);
    return rc;
}

void corpus_fini(struct corpus *c)
{
    for (size_t i = 0; i < c->n_texts; i++)
        free(c->texts[i].tokens);
    free(c->texts);
    *c = (struct corpus){0};
}
