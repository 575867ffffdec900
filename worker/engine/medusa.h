/*
 * Medusa heads at work: one batched pass for the sequences of a step, guesses for each, and
 * how sure they are.
 *
 *     hidden rows [n, D]  -- blocks of each head -->  [heads * n, D]  -- output -->  logits
 * over the draft vocabulary  -->  the best MEDUSA_RANKS tokens of each row and head
 *
 * The outputs of tied heads are the model's own output rows of the draft vocabulary, packed a
 * second time in their own type, and so must be opened before the model's weights are dropped.
 * Works on all threads of the pool; what comes out does not depend on them, nor on which rows
 * are run together.
 *
 * With a device all of it is done there (medusa_device.h), from rows that it keeps itself; in
 * bfloat16, so that guesses may differ from the CPU's where two logits are nearly the same.
 *
 * Thread: the engine's. Takes no memory after medusa_open.
 */
#ifndef SHEAF_MEDUSA_H
#define SHEAF_MEDUSA_H

#include "base/err.h"
#include "engine/draft_grow.h"
#include "engine/pool.h"
#include "engine/spec_stats.h"
#include "kernels.h"
#include "model/heads.h"

struct engine_device;
struct medusa;

enum { MEDUSA_RANKS = DRAFT_CHILDREN_MAX };

struct medusa_options {
    const struct heads *heads; /* read in medusa_open only */
    const struct model *model; /* likewise */
    const struct kernels *kernels;
    struct pool *threads;
    enum act_kind activations;
    size_t n_rows_max;            /* of a run */
    struct engine_device *device; /* borrowed; it was opened with the same heads. Or NULL */
};

/* What the heads say behind one position t: guesses[i][r] is for token t + 2 + i, the surest
 * first, of equals the lower id. Where there are fewer, token is DRAFT_NONE. */
struct medusa_guesses {
    size_t n_heads;
    struct medusa_guess {
        int32_t token;
        float share; /* of the probability that the best few have together */
    } guesses[HEADS_MAX][MEDUSA_RANKS];
};

size_t medusa_bytes(const struct medusa_options *o); /* that medusa_open will take */
int medusa_open(const struct medusa_options *o, struct medusa **out, struct err *e);
void medusa_close(struct medusa *md); /* accepts NULL */
/* hidden[k] -> [D] for n rows; out[k] is filled. Without a device. */
void medusa_run(struct medusa *md, const float *const *hidden, size_t n,
                struct medusa_guesses *out);
/* The same of rows in n places of the device; without guesses when it has failed. */
void medusa_run_kept(struct medusa *md, const int32_t *places, size_t n,
                     struct medusa_guesses *out);

/* By the accuracies that the file states (medusa_guess.c). */
void medusa_set_priors(const struct heads *h, struct spec_stats *stats);
/* Adds what the guesses say; depth 1 stands for token t + 2. */
void medusa_propose(const struct medusa_guesses *g, const struct draft_limits *limits,
                    const struct spec_stats *stats, struct draft *d);
/* The n tokens that did follow, from t + 2 on: each head is judged as far as its guess would
 * have been below guesses that came true. */
void medusa_learn(const struct medusa_guesses *g, const int32_t *tokens, size_t n,
                  struct spec_stats *stats);

#endif
