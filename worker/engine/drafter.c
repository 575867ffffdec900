#include "engine/drafter.h"

#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "engine/lookup.h"
#include "engine/ngram.h"

struct drafter {
    struct automaton *document, *prediction;
    struct automaton_cursor in_document, in_prediction;
    size_t *prediction_bytes;
    struct ngram *own;
    struct recycle *recycle;
    struct spec_stats *stats;
    size_t n_document;
    size_t n_followed;
    int32_t last;
};

void drafter_set_priors(struct spec_stats *stats)
{
    lookup_set_priors(stats);
    recycle_set_priors(stats);
}

/* While so many tokens and the break before them are indexed. */
static size_t bytes_to_index(size_t n)
{
    return automaton_bytes_max(n + 1) + (n + 1) * sizeof(int32_t);
}

/* The most of n tokens that can be indexed in so many bytes. */
static size_t fit(size_t n, size_t bytes)
{
    size_t low = 0, high = n;
    while (low < high) {
        const size_t middle = high - (high - low) / 2;
        if (bytes_to_index(middle) <= bytes)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

/* A break stands before the text, so that its beginning can be looked up too. */
static int open_prediction(struct drafter *d, const struct drafter_options *o, struct err *e)
{
    const size_t n = fit(o->n_prediction, *o->prediction_bytes);
    if (n == 0)
        return 0;
    int32_t *tokens = malloc((n + 1) * sizeof tokens[0]);
    if (!tokens)
        return ERR_SET(e, ERR_NOMEM, "no memory for a prediction of %zu tokens", n);
    tokens[0] = AUTOMATON_BREAK;
    memcpy(tokens + 1, o->prediction, n * sizeof tokens[0]);
    const int rc = automaton_open(tokens, n + 1, SIZE_MAX, &d->prediction, e);
    free(tokens);
    if (rc != 0)
        return rc;
    d->prediction_bytes = o->prediction_bytes;
    *d->prediction_bytes -= automaton_bytes(d->prediction);
    automaton_advance(d->prediction, &d->in_prediction, AUTOMATON_BREAK);
    return 0;
}

static int open_sources(struct drafter *d, const struct drafter_options *o, struct err *e)
{
    if (o->n_prediction > 0)
        TRY(open_prediction(d, o, e));
    if (o->window > 0)
        TRY(ngram_open(o->window, &d->own, e));
    if (o->document)
        d->document = automaton_share(o->document);
    return 0;
}

int drafter_open(const struct drafter_options *options, struct drafter **out, struct err *e)
{
    *out = NULL;
    struct drafter *d = calloc(1, sizeof *d);
    if (!d)
        return ERR_SET(e, ERR_NOMEM, "no memory for the drafts of a sequence");
    d->recycle = options->recycle;
    d->stats = options->stats;
    d->n_document = options->document ? options->n_document : 0;
    d->n_followed = d->n_document;
    const int rc = open_sources(d, options, e);
    if (rc != 0) {
        drafter_close(d);
        return rc;
    }
    *out = d;
    return 0;
}

void drafter_close(struct drafter *d)
{
    if (!d)
        return;
    if (d->prediction)
        *d->prediction_bytes += automaton_bytes(d->prediction);
    automaton_close(d->document);
    automaton_close(d->prediction);
    ngram_close(d->own);
    free(d);
}

static void follow_prompt(struct drafter *d, int32_t token)
{
    if (d->document)
        lookup_follow(d->document, &d->in_document, DRAFT_LOOKUP, token, NULL);
    if (d->own)
        lookup_follow_self(d->own, token, NULL);
}

static void follow_output(struct drafter *d, int32_t token)
{
    if (d->document)
        lookup_follow(d->document, &d->in_document, DRAFT_LOOKUP, token, d->stats);
    if (d->prediction)
        lookup_follow(d->prediction, &d->in_prediction, DRAFT_PREDICTION, token, d->stats);
    if (d->own)
        lookup_follow_self(d->own, token, d->stats);
    if (d->recycle)
        recycle_follow(d->recycle, d->last, token, d->stats);
}

void drafter_follow(struct drafter *d, const int32_t *tokens, size_t n_prompt, size_t n_tokens)
{
    ASSERT(n_prompt > 0 && n_prompt <= n_tokens);
    ASSERT(d->n_document <= n_prompt && d->n_followed <= n_tokens);
    for (; d->n_followed < n_prompt; d->n_followed++)
        follow_prompt(d, tokens[d->n_followed]);
    for (; d->n_followed < n_tokens; d->n_followed++) {
        d->last = tokens[d->n_followed - 1];
        follow_output(d, tokens[d->n_followed]);
    }
    d->last = tokens[n_tokens - 1];
}

void drafter_propose(const struct drafter *d, const struct draft_limits *limits,
                     struct draft *out)
{
    if (d->prediction)
        lookup_propose(d->prediction, d->in_prediction, DRAFT_PREDICTION, limits, d->stats,
                       out);
    if (d->document)
        lookup_propose(d->document, d->in_document, DRAFT_LOOKUP, limits, d->stats, out);
    if (d->own)
        lookup_propose_self(d->own, limits, d->stats, out);
    if (d->recycle)
        recycle_propose(d->recycle, d->last, limits, d->stats, out);
    draft_bound_siblings(out);
}
