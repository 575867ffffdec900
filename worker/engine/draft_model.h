/*
 * A draft model: a second, smaller model of the same vocabulary that says a few tokens ahead
 * what it would say itself.
 *
 *     target   prompt ... x y                     verifies a b c in its next step
 *     twin     prompt ... x y | a b c             the draft model's keys are its own
 *
 * It has weights, a KV pool, a prefix tree and a forward pass of its own, on the engine's
 * threads and kernels. Each sequence has a twin there, which follows its tokens lazily: when it
 * is asked for the first time the prompt is computed, in chunks over several steps, and until
 * that is done nothing is drafted; afterwards only what is new. Keys of drafts that were not
 * drawn are computed over. Twins share prefixes through the tree as sequences do, so that a
 * document is computed once for all jobs that ask about it. Where pages are short a twin waits,
 * and its sequence goes without.
 *
 * A twin draws as its sequence will: with its parameters, and with the same random numbers,
 * which are a function of seed, stream and position. So where both models think alike they
 * agree at any temperature; what is said stays the target's affair.
 *
 * Thread: the engine's, and its pool. Takes no memory but in draft_model_open and _begin.
 */
#ifndef SHEAF_DRAFT_MODEL_H
#define SHEAF_DRAFT_MODEL_H

#include "engine/draft.h"
#include "engine/pool.h"
#include "engine/seq.h"
#include "kernels.h"
#include "model/model.h"

struct draft_model;

enum { DRAFT_MODEL_DEPTH_MAX = 8 };

struct draft_model_options {
    const struct model *model;     /* borrowed; may drop its weights after opening */
    const struct kernels *kernels; /* borrowed */
    struct pool *threads;          /* borrowed */
    enum act_kind activations;
    enum kv_type kv_type;
    size_t n_seqs_max;   /* asked in one step */
    size_t context;      /* of the engine; the draft model's own may be shorter */
    size_t n_pages;      /* of its pool */
    size_t prefill_rows; /* tokens of prompts computed in one step at most */
    bool prefix_cache, shared_attention;
    size_t prefix_tokens_min;
    /* No deeper where the path so far is less likely, above 0: what a pass of the draft model
     * costs beside one of the target. */
    double p_min;
};

int draft_model_open(const struct draft_model_options *o, struct draft_model **out,
                     struct err *e);
/* Every twin is closed. Accepts NULL. */
void draft_model_close(struct draft_model *dm);
/* Weights, KV pool and activations. */
size_t draft_model_bytes(const struct draft_model *dm);

/* Gives a sequence that is submitted its twin; none where its prompt is more than the draft
 * model's context holds, or names tokens that it lacks. ERR_NOMEM only. */
int draft_model_begin(struct draft_model *dm, struct seq *seq, struct err *e);
void draft_model_end(struct seq *seq); /* one without a twin is left alone */

/*
 * Brings the twins of those that will be asked up to date as far as one step may, then draws
 * token after token for all that are, all of them in one pass each time. Twins of others give
 * their pages back: their sequences do not run.
 */
struct draft_proposer draft_model_proposer(struct draft_model *dm);

#endif
