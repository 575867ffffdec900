/* A sequence's twin in the draft model: following, guessing, and how sure guesses are. */
#include <math.h>
#include <stdlib.h>

#include "base/check.h"
#include "base/limits.h"
#include "base/size.h"
#include "engine/draft_model_int.h"
#include "engine/seq_output.h"

/* ------------------------------------------------------------------ how sure */

/*
 * A guess counts in a cell of how deep it lies and how sure the draft model is of it: of its
 * best token, by the share that it and the second best have together; of any other that was
 * drawn, by how likely it is beside the best.
 */
enum { BEST_BINS = 8, OTHER_BINS = 4, BINS = BEST_BINS + OTHER_BINS, DEPTH_BUCKETS = 4 };
static_assert(DEPTH_BUCKETS * BINS <= STATS_CELLS, "a cell for each");

static unsigned depth_bucket(size_t depth)
{
    if (depth <= 2)
        return (unsigned)depth - 1;
    return depth <= 4 ? 2 : 3;
}

static unsigned bin_of(double x, const double *begins, unsigned n)
{
    unsigned bin = 0;
    while (bin + 1 < n && x >= begins[bin + 1])
        bin++;
    return bin;
}

static unsigned cell_of(size_t depth, double best, double second, double drawn)
{
    static const double shares[BEST_BINS] = {0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 0.995};
    static const double ratios[OTHER_BINS] = {0, 0.1, 0.3, 0.6};
    const unsigned bin = drawn < best
                             ? BEST_BINS + bin_of(exp(drawn - best), ratios, OTHER_BINS)
                             : bin_of(1 / (1 + exp(second - best)), shares, BEST_BINS);
    return depth_bucket(depth) * BINS + bin;
}

/* A smaller model of the same family is right about as often as it thinks. */
void draft_twin_set_priors(struct spec_stats *stats)
{
    static const double priors[BINS] = {0.45, 0.55, 0.63, 0.72, 0.8, 0.86,
                                        0.91, 0.95, 0.2,  0.3,  0.4, 0.45};
    for (unsigned depth = 0; depth < DEPTH_BUCKETS; depth++)
        for (unsigned bin = 0; bin < BINS; bin++)
            spec_stats_set_prior(stats, DRAFT_MODEL, depth * BINS + bin, priors[bin]);
}

/* ------------------------------------------------------------------ a twin's life */

static bool knows(const struct draft_model *dm, int32_t token)
{
    return (size_t)token < dm->options.model->config.n_vocab;
}

static bool can_follow(const struct draft_model *dm, const struct seq *seq)
{
    if (seq->n_prompt >= dm->options.context || seq->capacity - seq->n_prompt < 2)
        return false;
    for (size_t i = 0; i < seq->n_prompt; i++)
        if (!knows(dm, seq->tokens[i]))
            return false;
    for (size_t i = 0; i < seq->req.sample.n_bias; i++)
        if (!knows(dm, seq->bias[i].id))
            return false;
    return true;
}

int draft_model_begin(struct draft_model *dm, struct seq *seq, struct err *e)
{
    if (!can_follow(dm, seq))
        return 0;
    struct draft_twin *twin = calloc(1, sizeof *twin);
    if (!twin)
        return ERR_SET(e, ERR_NOMEM, "no memory for a sequence's drafts");
    twin->dm = dm;
    struct seq_request req = seq->req;
    req.prompt = seq->tokens;
    req.max_tokens = seq->capacity - seq->n_prompt;
    req.n_stops = req.n_stop_tokens = 0;
    req.salt = seq->salt;
    int rc = seq_open(&req, dm->options.context, &twin->own, e);
    if (rc == 0)
        rc = prefix_want(dm->prefixes, seq->salt, seq->tokens, seq->n_prompt, PREFIX_NEXT,
                         &twin->own->path, e);
    if (rc != 0) {
        seq_close(twin->own);
        free(twin);
        return rc;
    }
    seq->twin = twin;
    return 0;
}

void draft_model_end(struct seq *seq)
{
    struct draft_twin *twin = seq->twin;
    if (!twin)
        return;
    draft_twin_follow(twin, seq);
    draft_twin_stop(twin);
    prefix_unwant(twin->dm->prefixes, twin->own->path);
    twin->own->path = NULL;
    seq_close(twin->own);
    free(twin);
    seq->twin = NULL;
}

bool draft_twin_start(struct draft_twin *twin)
{
    struct draft_model *dm = twin->dm;
    struct seq *own = twin->own;
    struct prefix_hit hit;
    ASSERT(!twin->is_held && dm->n_held < dm->options.n_seqs_max);
    prefix_find(dm->prefixes, own->path, own->tokens, own->n_tokens, &hit);
    if (hit.n_coming > 0 || !prefix_start(dm->prefixes, own->path, own->tokens, own->n_tokens,
                                          dm->n_held, own->pages, &hit))
        return false;
    own->n_pages = seq_pages_for(own->n_tokens);
    own->n_computed = hit.n_tokens;
    twin->is_held = true;
    dm->held[dm->n_held++] = twin;
    return true;
}

void draft_twin_stop(struct draft_twin *twin)
{
    if (!twin->is_held)
        return;
    struct draft_model *dm = twin->dm;
    struct seq *own = twin->own;
    const size_t n_final = size_min(own->n_computed, own->n_tokens);
    prefix_stop(dm->prefixes, own->path, own->tokens, n_final, own->pages, own->n_pages, true);
    own->n_pages = own->n_computed = 0;
    twin->n_guesses = 0;
    twin->is_held = false;
    size_t i = 0;
    while (dm->held[i] != twin)
        i++;
    for (dm->n_held--; i < dm->n_held; i++)
        dm->held[i] = dm->held[i + 1];
}

/* ------------------------------------------------------------------ following */

/* A guess is judged where all before it came true, drafted by that step or not. */
static void learn(const struct draft_twin *twin, const struct seq *seq)
{
    const size_t first = twin->own->n_tokens;
    for (size_t i = 0; i < twin->n_guesses && first + i < seq->n_tokens; i++) {
        const struct draft_guess *guess = &twin->guesses[i];
        const bool is_hit = guess->token == seq->tokens[first + i];
        spec_stats_offer(&twin->dm->stats, DRAFT_MODEL, guess->cell, is_hit);
        if (!is_hit)
            return;
    }
}

/* Keys behind the first guess that was wrong are of another text; and the last token is always
 * computed, for its logits. */
void draft_twin_follow(struct draft_twin *twin, const struct seq *seq)
{
    struct seq *own = twin->own;
    learn(twin, seq);
    twin->n_guesses = 0;
    twin->path = 1;
    const size_t n_tokens = size_min(seq->n_tokens, own->capacity);
    twin->is_lost = twin->is_lost || n_tokens == own->capacity;
    for (size_t i = own->n_tokens; i < n_tokens; i++) {
        if (i < own->n_computed && own->tokens[i] != seq->tokens[i])
            own->n_computed = i;
        own->tokens[i] = seq->tokens[i];
        twin->is_lost = twin->is_lost || !knows(twin->dm, seq->tokens[i]);
    }
    own->n_tokens = n_tokens;
    own->n_computed = size_min(own->n_computed, n_tokens - 1);
}

/* ------------------------------------------------------------------ guessing */

void draft_twin_guess(struct draft_twin *twin, struct sampler *sampler, float *logits)
{
    const struct draft_model *dm = twin->dm;
    const size_t n_vocab = dm->options.model->config.n_vocab;
    struct seq *own = twin->own;
    const size_t n = twin->n_guesses;
    ASSERT(n < DRAFT_MODEL_DEPTH_MAX && own->n_tokens + n <= own->capacity);
    const int32_t token = seq_draw_token(own, dm->options.model->tokenizer, sampler, logits, n);
    const double t = own->req.sample.temperature > 0 ? (double)own->req.sample.temperature : 1;
    const double drawn = (double)logits[token];
    const size_t at = dm->options.kernels->argmax(logits, n_vocab);
    const double best = (double)logits[at];
    logits[at] = -INFINITY;
    const double second = (double)logits[dm->options.kernels->argmax(logits, n_vocab)];
    const unsigned cell = cell_of(n + 1, best / t, second / t, drawn / t);
    const double p = spec_stats_p(&dm->stats, DRAFT_MODEL, cell);
    twin->guesses[n] =
        (struct draft_guess){.token = token, .cell = (uint8_t)cell, .p = (float)p};
    twin->n_guesses++;
    twin->path *= p;
    if (own->n_tokens + n < own->capacity)
        own->tokens[own->n_tokens + n] = token;
}

/* A guess at the end of the sequence's room could not be used: the target draws a token more
 * than is drafted. */
bool draft_twin_may_deepen(struct draft_twin *twin)
{
    const struct draft_model *dm = twin->dm;
    struct seq *own = twin->own;
    const size_t n = twin->n_guesses;
    const int32_t last = twin->guesses[n - 1].token;
    if (n == DRAFT_MODEL_DEPTH_MAX || own->n_tokens + n + 1 >= own->capacity ||
        twin->path < dm->options.p_min)
        return false;
    if (!own->req.ignore_eos && tokenizer_is_end(dm->options.model->tokenizer, last))
        return false;
    return seq_reserve(own, dm->prefixes, own->n_tokens + n);
}
