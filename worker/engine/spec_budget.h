/*
 * How much to draft in a step.
 *
 * Every drafted node costs a row, and is worth the probability that it and all nodes before it
 * come true. The nodes of all sequences are taken in one order, most valuable first, whichever
 * sequence they belong to; of all numbers of nodes that one is chosen whose expected tokens per
 * time are highest, with the time from a measured table. Where rows are free, much is drafted;
 * where they are not, little or nothing is, and the draft of a sequence that copies goes before
 * that of one that does not.
 *
 * Nothing at all is drafted where that gains less than a little, so that a balance near the
 * edge does not swing with every step. Then still, seldom, a single node is: sources that learn
 * only from verified rows could not come back otherwise. What such nodes may cost is a fixed
 * small share of the time. And while drafts go on and on, a step without is put in now and
 * then, often at first: what such a step takes would be forgotten otherwise.
 *
 * What drafts bring is compared with what was expected of them, and all expectations are
 * corrected by it.
 *
 * A pure state machine; memory is taken in spec_budget_open only. Thread: the engine's.
 */
#ifndef SHEAF_SPEC_BUDGET_H
#define SHEAF_SPEC_BUDGET_H

#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"
#include "engine/draft.h"
#include "engine/spec_time.h"

struct spec_budget;

struct spec_budget_options {
    size_t n_seqs_max; /* that decode in one step */
    double gain_enter; /* tokens per time, against none drafted, that drafting begins at */
    double gain_stay;  /* and below which it ends; 1 <= gain_stay <= gain_enter */
    /* Of the time, at most, for single nodes while nothing is drafted; 0 where every source
     * learns without, as those of drafter.h do. */
    double explore_share;
    size_t explore_steps; /* of one sequence, at least, between two of them */
};
struct spec_budget_options spec_budget_defaults(size_t n_seqs_max);

/* A step as it is without drafts. */
struct spec_step {
    const struct spec_time *time; /* borrowed for the call */
    size_t n_seqs;                /* that decode, a row and a token each */
    size_t n_rows;                /* theirs, and other rows */
    double n_tokens;   /* what all these rows are worth, in tokens; n_rows when in doubt */
    double us_more;    /* what the table does not know of, whatever is drafted */
    size_t n_rows_max; /* with drafts */
};

struct spec_seq {
    struct draft *draft; /* proposed; spec_budget_choose cuts it */
    size_t n_nodes_max;  /* that the sequence may have in this step */
};

struct spec_budget_counters {
    uint64_t steps;
    uint64_t steps_on, steps_explored;     /* with nodes because they pay, to learn */
    uint64_t steps_unasked, steps_control; /* no draft made: none could pay, to compare */
    uint64_t nodes, accepted;
    double expected; /* tokens, of the nodes */
};

int spec_budget_open(const struct spec_budget_options *options, struct spec_budget **out,
                     struct err *e);
void spec_budget_close(struct spec_budget *b);

/* Once per step that decodes, first. False: no draft, however sure, would be taken, so none
 * need be made, and spec_budget_choose is not called. */
bool spec_budget_wants(struct spec_budget *b, const struct spec_step *step);
/* Cuts the drafts of step->n_seqs sequences to what is worth computing and puts them in order
 * (draft_order); returns how many nodes are left in all. */
size_t spec_budget_choose(struct spec_budget *b, const struct spec_step *step,
                          const struct spec_seq *seqs);
/* Of the nodes left by the last spec_budget_choose, n_accepted were drawn. */
void spec_budget_observe(struct spec_budget *b, size_t n_accepted);

struct spec_budget_counters spec_budget_counters(const struct spec_budget *b);

#endif
