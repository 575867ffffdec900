/*
 * Training of tied heads of one block on a set of hidden states.
 *
 * W and b begin at 0, where a head says what the model itself says next. Each epoch goes over
 * the rows that are not held out, in an order drawn from the seed; a step is a batch of them:
 * gradient (heads_math.h), then AdamW at a rate that rises over the first tenth of the steps
 * and falls along a cosine to 0. What comes out is a function of the set, the model's output
 * rows and the options, whatever the number of threads and however often it was stopped.
 *
 * The state, in a file of its own, is all that later steps hang on (trainer_state.c).
 */
#ifndef SHEAF_TRAINER_H
#define SHEAF_TRAINER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "engine/pool.h"
#include "kernels.h"
#include "model/heads.h"
#include "train/draft_vocab.h"
#include "train/heads_score.h"
#include "train/hidden_set.h"

struct trainer_options {
    size_t n_heads;
    size_t n_epochs;
    size_t n_rows; /* of a batch */
    uint64_t seed;
    double rate, decay;
    double share_falloff; /* head i counts share_falloff^i */
};
/* 3 heads, batches of 512, rate 1e-3, decay 0.05, falloff 0.8. */
struct trainer_options trainer_defaults(void);

struct trainer;

/* All but the options and the output rows [vocab->n, dim] is borrowed. */
int trainer_open(const struct trainer_options *o, const struct hidden_set *set,
                 const struct draft_vocab *vocab, const float *output, const struct kernels *k,
                 struct pool *threads, struct trainer **out, struct err *e);
void trainer_close(struct trainer *t); /* accepts NULL */

uint64_t trainer_steps(const struct trainer *t); /* in all */
uint64_t trainer_steps_done(const struct trainer *t);
/* The mean loss of its labels, by head. Some are left to do. */
void trainer_step(struct trainer *t, double losses[HEADS_MAX]);

/* Over the rows that are held out, or over those that are not. */
void trainer_measure(struct trainer *t, bool held_out, struct heads_score *out);

/* Heads that borrow from trainer and vocab, with these accuracies. */
void trainer_heads(const struct trainer *t, const struct heads_score *accuracies,
                   struct heads *out);

/* identity: of everything the training hangs on, 64 hex digits. Complete or not at all; for its
 * owner's eyes only. */
int trainer_save(const struct trainer *t, const char *path, const char *identity,
                 struct err *e);
/* *found false: there is no such file. ERR_STATE when it is of another training, ERR_FORMAT
 * when it is none; then the trainer is as it was. */
int trainer_load(struct trainer *t, const char *path, const char *identity, bool *found,
                 struct err *e);

/* Before there is a trainer: no state, or one of this training; ERR_STATE, ERR_FORMAT. */
int trainer_check_state(const char *path, const char *identity, struct err *e);

#endif
