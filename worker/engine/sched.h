/*
 * What one step computes.
 *
 * Running sequences decode first, one row each, so that no long prompt holds them up. What is
 * left of the step's rows goes to prompts, at most a chunk each: a quarter is for the prompt
 * admitted first, so that it always gets on, the rest goes to the shortest remainder first, so
 * that a short prompt never waits for a long one. Tokens whose keys and values came from the
 * prefix tree are not computed and cost nothing here. With whole_prompts a prompt is computed
 * to its end, in steps of its own, while everything else waits; then what decodes gets one
 * step before the next prompt, so that no stream of prompts stops it for ever.
 *
 * Waiting sequences are admitted in order of submission while the batch has a place and the
 * pool has the pages of their tokens. Three kinds let later ones pass: one whose prefix a
 * running sequence is just computing waits for that, DEFERRALS_MAX steps in all at most, and
 * then takes what is there; one that waits_for_disk waits until that is cleared; one that lacks
 * pages lets at most PASSES_MAX others by. When a decoding sequence finds no page, the one
 * admitted last gives its pages back (computed ones stay in the tree while there is room) and
 * waits at the head of the queue; the sequence admitted first is never preempted, so something
 * always finishes.
 *
 * A pure state machine over sequences, the prefix tree and its KV pool: no clock, no threads.
 */
#ifndef SHEAF_SCHED_H
#define SHEAF_SCHED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/draft.h"
#include "engine/prefix.h"
#include "engine/seq.h"

/*
 * Consecutive positions of one sequence, and behind them perhaps a draft, a row a node; in a
 * plan they stand side by side. Row i's keys and values go to slot position + i. The planner
 * leaves zero what begins with is_greedy.
 */
struct step_segment {
    struct seq *seq;
    size_t row; /* of the step */
    size_t n_rows;
    size_t position;       /* of the first row */
    size_t n_logits;       /* of its last rows want logits */
    size_t logits_row;     /* first of them among the step's logits */
    bool is_greedy;        /* they want the greatest logit's place only */
    bool takes_candidates; /* a device may find them in place of logits */
    bool is_drawn;         /* what the step draws of it is */
    /* Of a plan behind another one: its row's token is what that one draws from its logits row
     * token_of. */
    bool is_behind;
    size_t token_of;
    bool ends;                 /* the sequence does, with what the step drew */
    const struct draft *draft; /* borrowed; or NULL */
    size_t n_refused;          /* of its last rows: nodes that were not drawn */
};

static inline size_t segment_n_nodes(const struct step_segment *s)
{
    return s->draft ? s->draft->n_nodes : 0;
}

/* Its row of the draft's root: the sequence's last token. */
static inline size_t segment_root(const struct step_segment *s)
{
    return s->n_rows - segment_n_nodes(s) - 1;
}

size_t segment_position(const struct step_segment *s, size_t row);
int32_t segment_token(const struct step_segment *s, size_t row);

struct step_plan {
    struct step_segment *segments; /* [batch] */
    size_t n_segments;
    size_t n_rows;
    size_t n_logits;
};

struct sched_limits {
    size_t batch;
    size_t step_tokens;
    size_t chunk_tokens;
    bool whole_prompts;
};

struct sched;

int sched_open(const struct sched_limits *limits, struct prefix_tree *prefixes,
               struct sched **out, struct err *e);
void sched_close(struct sched *s); /* every sequence has left */

/* Takes the sequence to the end of the queue. ERR_NOMEM only. */
int sched_add(struct sched *s, struct seq *seq, struct err *e);
/* A running or waiting sequence leaves; its pages go back, computed ones to the tree. */
void sched_remove(struct sched *s, struct seq *seq);

/* Fills plan; no rows when nothing can run. */
void sched_plan_step(struct sched *s, struct step_plan *plan);
/*
 * The plan of the step behind `now`, which is still being computed: a row each of all sequences
 * that run, but for those that end with `now` because their length is reached. False: something
 * else is to be done next, or it is not known yet; then nothing is planned, though sequences
 * may have got the pages of their next tokens. Every row of `now` that draws is greedy and all
 * sequences are at their ends; nobody waits for a place that is free, or will be.
 */
bool sched_plan_behind(struct sched *s, const struct step_plan *now, struct step_plan *out);
/* The plan's rows are computed, and those of n_refused stand last: their sequences stand behind
 * the others, full pages are published. */
void sched_commit_step(struct sched *s, const struct step_plan *plan);

size_t sched_n_running(const struct sched *s);
size_t sched_n_waiting(const struct sched *s);
/* The running, then the waiting sequences in order; NULL past the end. */
struct seq *sched_at(const struct sched *s, size_t index);

#endif
