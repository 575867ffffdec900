/*
 * Speculation: drafts join a step's plan, and what was drawn of them stays.
 *
 *     sched_plan_step   who computes what
 *     spec_add_drafts   sequences that decode get a draft each: rows of the same segment;
 *                       with a table of step times only as many as are worth their time, from
 *                       those proposers that are worth theirs
 *     (forward pass, drawing: from the root down, as long as the token drawn is a child)
 *     spec_keep         the path that was drawn moves to the slots of its positions, the
 *                       others' slots are free again
 *     sched_commit_step the sequence stands behind the path; full pages are published
 *     spec_end_step     what the drafts brought, and what the step took, is learned
 *
 * A draft never costs another sequence anything but time: it takes pages that are free, or idle
 * in the prefix tree, once everybody has their own, gives back what it did not fill, and is cut
 * where there are none. It lives for one step, so that a preemption finds none.
 *
 * Thread: the engine's. Takes no memory after spec_open.
 */
#ifndef SHEAF_SPEC_H
#define SHEAF_SPEC_H

#include "engine/draft.h"
#include "engine/sched.h"
#include "engine/spec_gate.h"
#include "engine/spec_time.h"

struct spec;

struct spec_options {
    struct draft_proposer proposers[DRAFT_PROPOSERS_MAX];
    size_t n_proposers;
    size_t batch;
    size_t nodes_max; /* of a step, over all sequences */
    size_t n_vocab;
    /* How long steps take whose rows all want logits; copied. NULL: all that is proposed is
     * computed, as far as there is room. */
    const struct spec_time *time;
    /* With a table: of the time at most, that a proposer may lose which does not pay. */
    double vain_share;
};

/* The tree and its pool are borrowed. */
int spec_open(const struct spec_options *o, struct prefix_tree *prefixes, struct kvpool *pool,
              struct spec **out, struct err *e);
void spec_close(struct spec *s); /* accepts NULL */

/* The drafts are the plan's until the next call. */
void spec_add_drafts(struct spec *s, struct step_plan *plan);

/* The segment, which has a draft, drew n_drawn tokens that its sequence took. */
void spec_keep(struct spec *s, struct step_segment *segment, size_t n_drawn);

/* us: from the end of spec_add_drafts to the tokens drawn. */
void spec_end_step(struct spec *s, const struct step_plan *plan, int64_t us);

struct draft_counters spec_counters(const struct spec *s);

#endif
