#include "engine/ngram.h"

#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/hash.h"
#include "base/size.h"

/* Places are stored one higher, so that 0 is none. */
struct ngram {
    size_t window;
    size_t n_tokens;
    unsigned shift;   /* of a hash, to an index of latest */
    int32_t *tokens;  /* [window] by index modulo window */
    uint32_t *before; /* [window] the place before with the same hash */
    uint32_t *latest; /* [window] by hash of the pair that ends there */
};

size_t ngram_bytes(size_t window)
{
    return sizeof(struct ngram) + window * (sizeof(int32_t) + 2 * sizeof(uint32_t));
}

int ngram_open(size_t window, struct ngram **out, struct err *e)
{
    ASSERT(window >= 2 && (window & (window - 1)) == 0);
    *out = NULL;
    struct ngram *ix = calloc(1, sizeof *ix);
    if (!ix)
        return ERR_SET(e, ERR_NOMEM, "no memory for an index of answers");
    ix->window = window;
    ix->shift = 64;
    for (size_t n = window; n > 1; n /= 2)
        ix->shift--;
    ix->tokens = calloc(window, sizeof ix->tokens[0]);
    ix->before = calloc(window, sizeof ix->before[0]);
    ix->latest = calloc(window, sizeof ix->latest[0]);
    if (!ix->tokens || !ix->before || !ix->latest) {
        ngram_close(ix);
        return ERR_SET(e, ERR_NOMEM, "no memory for an index of %zu tokens", window);
    }
    *out = ix;
    return 0;
}

void ngram_close(struct ngram *ix)
{
    if (!ix)
        return;
    free(ix->tokens);
    free(ix->before);
    free(ix->latest);
    free(ix);
}

void ngram_clear(struct ngram *ix)
{
    ix->n_tokens = 0;
    memset(ix->latest, 0, ix->window * sizeof ix->latest[0]);
}

size_t ngram_n_tokens(const struct ngram *ix)
{
    return ix->n_tokens;
}

static int32_t token_at(const struct ngram *ix, size_t index)
{
    return ix->tokens[index & (ix->window - 1)];
}

int32_t ngram_token(const struct ngram *ix, size_t index)
{
    ASSERT(index < ix->n_tokens && ix->n_tokens - index <= ix->window);
    return token_at(ix, index);
}

static uint32_t *latest_of(const struct ngram *ix, int32_t first, int32_t second)
{
    return &ix->latest[hash_pair((uint32_t)first, (uint32_t)second) >> ix->shift];
}

void ngram_add(struct ngram *ix, int32_t token)
{
    ASSERT(ix->n_tokens < UINT32_MAX);
    const size_t index = ix->n_tokens++;
    ix->tokens[index & (ix->window - 1)] = token;
    if (index == 0)
        return;
    uint32_t *latest = latest_of(ix, token_at(ix, index - 1), token);
    ix->before[index & (ix->window - 1)] = *latest;
    *latest = (uint32_t)index + 1;
}

/* Tokens that are the same before and at both indices, in the window, NGRAM_LENGTH_MAX at most.
 */
static uint32_t match_length(const struct ngram *ix, size_t earlier, size_t later)
{
    const size_t oldest = ix->n_tokens > ix->window ? ix->n_tokens - ix->window : 0;
    const size_t n_max = size_min(earlier - oldest + 1, NGRAM_LENGTH_MAX);
    uint32_t n = 0;
    while (n < n_max && token_at(ix, earlier - n) == token_at(ix, later - n))
        n++;
    return n;
}

void ngram_find(const struct ngram *ix, struct ngram_match *out)
{
    out->length = 0;
    out->n_ends = 0;
    if (ix->n_tokens < 2)
        return;
    const size_t last = ix->n_tokens - 1;
    const size_t oldest = ix->n_tokens > ix->window ? ix->n_tokens - ix->window : 0;
    size_t place = ix->before[last & (ix->window - 1)];
    for (int i = 0; i < NGRAM_MATCHES_MAX && place > oldest; i++) {
        const size_t index = place - 1;
        const uint32_t length = match_length(ix, index, last);
        if (length >= 2 && length > out->length) {
            out->length = length;
            out->n_ends = 0;
        }
        if (length >= 2 && length == out->length)
            out->ends[out->n_ends++] = index;
        place = ix->before[index & (ix->window - 1)];
    }
}
