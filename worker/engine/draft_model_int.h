/* What draft_model.c and draft_twin.c share. */
#ifndef SHEAF_DRAFT_MODEL_INT_H
#define SHEAF_DRAFT_MODEL_INT_H

#include "engine/draft_model.h"
#include "engine/forward.h"
#include "engine/prefix.h"
#include "engine/sample.h"
#include "engine/spec_stats.h"

struct draft_guess {
    int32_t token;
    uint8_t cell; /* of struct spec_stats */
    float p;      /* that the target draws it, given the guesses before it came true */
};

/*
 * own has the sequence's tokens [0, n_tokens), and behind them the guesses of the last run.
 * Keys of [0, n_computed) are in its pages, some guesses' among them.
 */
struct draft_twin {
    struct draft_model *dm;
    struct seq *own;
    bool is_held;    /* has pages, and a place among dm->held */
    bool is_lost;    /* its context is full, or the sequence has a token that it lacks */
    uint64_t n_asks; /* dm->n_runs when it was asked last */
    size_t n_guesses;
    struct draft_guess guesses[DRAFT_MODEL_DEPTH_MAX];
    double path; /* that all guesses come true */
};

struct draft_model {
    struct draft_model_options options;
    struct weights weights;
    struct kvpool *kvpool;
    struct prefix_tree *prefixes;
    struct forward *forward;
    struct sampler **samplers; /* [threads] */
    struct step_plan plan;
    struct draft_twin **planned; /* [n_seqs_max] twins of the plan's segments */
    struct draft_twin **held;    /* [n_seqs_max] in order of start */
    size_t n_held;
    uint64_t n_runs;
    struct spec_stats stats;
};

void draft_twin_set_priors(struct spec_stats *stats);

/* The sequence's tokens are now these: counts what became of the last guesses. */
void draft_twin_follow(struct draft_twin *twin, const struct seq *seq);

/* Takes pages for what a twin's sequence has said so far. False: it cannot start now, because
 * another one is computing its prefix, or for want of pages. */
bool draft_twin_start(struct draft_twin *twin);
void draft_twin_stop(struct draft_twin *twin); /* gives them back */

/* Draws the next guess from logits behind the last one, or behind the sequence's last token. */
void draft_twin_guess(struct draft_twin *twin, struct sampler *sampler, float *logits);
/* Another guess behind the last would be of use; its row has a slot. */
bool draft_twin_may_deepen(struct draft_twin *twin);

#endif
