/*
 * Where one sequence's drafts come from without a model: a document that others may share, a
 * text the user expects, its own tokens, and what followed each token anywhere.
 *
 *     prompt: [ document, indexed once ][ question ] output ...
 *                                       ^ own tokens from here on
 *
 * It follows the sequence's tokens; those of the output teach how sure proposals are. Memory is
 * taken in drafter_open only. Thread: the engine's.
 */
#ifndef SHEAF_DRAFTER_H
#define SHEAF_DRAFTER_H

#include "engine/automaton.h"
#include "engine/draft_grow.h"
#include "engine/recycle.h"
#include "engine/spec_stats.h"

struct drafter;

struct drafter_options {
    struct automaton *document; /* one reference more is taken; NULL: none */
    size_t n_document;          /* first tokens of the sequence that it was built over */
    const int32_t *prediction;  /* read in drafter_open only; any numbers */
    size_t n_prediction;        /* so many that there is room for, from the first on, count */
    size_t *prediction_bytes;   /* left for indexes of predictions; borrowed, may be NULL
                                   without one. What this one takes comes back at its close. */
    size_t window;              /* own tokens that are indexed, a power of two; 0: none */
    struct recycle *recycle;    /* borrowed; NULL: none */
    struct spec_stats *stats;   /* borrowed */
};

/* Sets the priors of every source that a drafter uses. */
void drafter_set_priors(struct spec_stats *stats);

/* ERR_NOMEM only. */
int drafter_open(const struct drafter_options *options, struct drafter **out, struct err *e);
void drafter_close(struct drafter *d); /* accepts NULL */

/* The sequence's tokens are now these; those it has followed already have not changed. */
void drafter_follow(struct drafter *d, const int32_t *tokens, size_t n_prompt, size_t n_tokens);
/* What may come behind the last token followed; limits hold for each source. */
void drafter_propose(const struct drafter *d, const struct draft_limits *limits,
                     struct draft *out);

#endif
