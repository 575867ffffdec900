/*
 * What one step computes.
 *
 * Running sequences decode first, one row each, so that no long prompt holds them up; what is
 * left of the step's rows goes to prefill chunks in order of admission. Waiting sequences are
 * admitted in order of submission while the batch has a place and the pool has the pages of
 * their tokens. When a decoding sequence finds no page, the one admitted last gives its
 * pages back and waits at the head of the queue; the sequence admitted first is never
 * preempted, so something always finishes.
 *
 * A pure state machine over sequences and the KV pool: no clock, no threads.
 */
#ifndef SHEAF_SCHED_H
#define SHEAF_SCHED_H

#include <stddef.h>
#include <stdint.h>

#include "engine/kvpool.h"
#include "engine/seq.h"

/* Consecutive positions of one sequence; in a plan they stand side by side. */
struct step_segment {
    struct seq *seq;
    size_t row; /* of the step */
    size_t n_rows;
    size_t position;   /* of the first row */
    size_t n_logits;   /* of its last rows want logits */
    size_t logits_row; /* first of them among the step's logits */
};

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
};

struct sched;

int sched_open(const struct sched_limits *limits, struct kvpool *pool, struct sched **out,
               struct err *e);
void sched_close(struct sched *s); /* every sequence has left */

/* Takes the sequence to the end of the queue. ERR_NOMEM only. */
int sched_add(struct sched *s, struct seq *seq, struct err *e);
/* A running or waiting sequence leaves; its pages go back to the pool. */
void sched_remove(struct sched *s, struct seq *seq);

/* Fills plan; no rows when nothing can run. */
void sched_plan_step(struct sched *s, struct step_plan *plan);

size_t sched_n_running(const struct sched *s);
size_t sched_n_waiting(const struct sched *s);
/* The running, then the waiting sequences in order; NULL past the end. */
struct seq *sched_at(const struct sched *s, size_t index);

#endif
