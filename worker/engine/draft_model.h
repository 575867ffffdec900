/*
 * A draft model: a second, smaller model of the same vocabulary that says a few tokens ahead
 * what it would say itself.
 *
 *     target   prompt ... x y                     verifies a b c in its next step
 *     twin     prompt ... x y | a b c             the draft model's keys are its own
 *
 * It has weights, a KV pool, a prefix tree and a forward pass of its own, on the engine's
 * threads and kernels. Each sequence has a twin there, which follows its tokens lazily: when it
 * is asked for the first time the prompt is computed, in chunks over several runs, and until
 * that is done nothing is drafted; afterwards only what is new. Keys of drafts that were not
 * drawn are computed over. Twins share prefixes through the tree as sequences do, so that a
 * document is computed once for all jobs that ask about it. Where pages are short a twin waits,
 * and its sequence goes without.
 *
 * A twin draws as its sequence will: with its parameters, and with the same random numbers,
 * which are a function of seed, stream and position. So where both models think alike they
 * agree at any temperature; what is said stays the target's affair.
 *
 * Thread: the engine's, and its pool. Takes no memory but in the two functions that open.
 */
#ifndef SHEAF_DRAFT_MODEL_H
#define SHEAF_DRAFT_MODEL_H

#include "engine/draft_grow.h"
#include "engine/pool.h"
#include "engine/seq.h"
#include "engine/spec_stats.h"
#include "kernels.h"
#include "model/model.h"

struct draft_model;
struct draft_twin;

enum { DRAFT_MODEL_DEPTH_MAX = 8 };

struct draft_model_options {
    const struct model *model;     /* borrowed; may drop its weights after opening */
    const struct kernels *kernels; /* borrowed */
    struct pool *threads;          /* borrowed */
    enum act_kind activations;
    enum kv_type kv_type;
    size_t n_seqs_max;   /* asked in one run */
    size_t context;      /* of the engine; the draft model's own may be shorter */
    size_t n_pages;      /* of its pool */
    size_t prefill_rows; /* tokens of prompts computed in one run at most */
    bool prefix_cache, shared_attention;
    size_t prefix_tokens_min;
    double p_min; /* no deeper where the path so far is less likely; above 0 */
};

int draft_model_open(const struct draft_model_options *o, struct draft_model **out,
                     struct err *e);
/* Every twin is closed. Accepts NULL. */
void draft_model_close(struct draft_model *dm);
/* Weights, KV pool and activations. */
size_t draft_model_bytes(const struct draft_model *dm);
void draft_model_set_priors(struct spec_stats *stats);

/* The twin of a sequence that is not computed yet. *out is NULL where its prompt is more than
 * the draft model's context holds, or names tokens that it lacks. ERR_NOMEM only. */
int draft_twin_open(struct draft_model *dm, const struct seq *seq, struct draft_twin **out,
                    struct err *e);
void draft_twin_close(struct draft_twin *twin); /* accepts NULL */

/*
 * Drafts for these sequences, whose twins are given or NULL: brings twins up to date as far as
 * one run may, then draws token after token for all that are, all in one pass each time. Twins
 * that are not among these give their pages back: their sequences do not run.
 */
void draft_model_run(struct draft_model *dm, struct seq *const *seqs,
                     struct draft_twin *const *twins, size_t n, struct spec_stats *stats);

/* Adds what the last run drafted, if it was for this last token. */
void draft_twin_propose(const struct draft_twin *twin, const struct seq *seq,
                        const struct draft_limits *limits, struct draft *d);
/* The sequence's tokens are now these: counts what became of the last drafts. draft_model_run
 * does it for the twins it is given. */
void draft_twin_follow(struct draft_twin *twin, const struct seq *seq,
                       struct spec_stats *stats);

#endif
