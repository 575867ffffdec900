#include "train/trainer_int.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/rng.h"
#include "base/size.h"
#include "train/adamw.h"

enum { PARAMS_BLOCK = 16384, NO_EPOCH = -1 };

static const double WARM_UP_SHARE = 0.1;

struct trainer_options trainer_defaults(void)
{
    return (struct trainer_options){.n_heads = 3,
                                    .n_epochs = 3,
                                    .n_rows = 512,
                                    .rate = 1e-3,
                                    .decay = 0.05,
                                    .share_falloff = 0.8};
}

/* ------------------------------------------------------------------ opening */

static bool has_label(const struct trainer *t, size_t row)
{
    for (size_t i = 0; i < t->o.n_heads; i++)
        if (draft_vocab_label(t->vocab, t->set, row, i) != HEADS_NO_LABEL)
            return true;
    return false;
}

static int choose_rows(struct trainer *t, struct err *e)
{
    t->order = malloc((t->set->n_rows + 1) * sizeof t->order[0]);
    if (!t->order)
        return ERR_SET(e, ERR_NOMEM, "no memory for the order of %zu rows", t->set->n_rows);
    for (size_t row = 0; row < t->set->n_rows; row++)
        if (!t->set->is_held_out[row] && has_label(t, row))
            t->order[t->n_order++] = row;
    if (t->n_order == 0)
        return ERR_SET(e, ERR_INVALID, "the texts are too short to learn anything from");
    t->o.n_rows = size_min(t->o.n_rows, t->n_order);
    t->n_steps = t->o.n_epochs * (t->n_order / t->o.n_rows);
    t->epoch = (uint64_t)NO_EPOCH;
    return 0;
}

static int take_memory(struct trainer *t, struct err *e)
{
    const size_t n_rows = t->o.n_rows;
    t->n_params = t->o.n_heads * heads_math_stride(t->set->dim);
    t->params = calloc(4 * t->n_params, sizeof t->params[0]);
    t->rows = calloc(n_rows * t->set->dim, sizeof t->rows[0]);
    t->labels = calloc(t->o.n_heads * n_rows, sizeof t->labels[0]);
    t->ranks = calloc(t->o.n_heads * n_rows, sizeof t->ranks[0]);
    t->measured = calloc(n_rows, sizeof t->measured[0]);
    if (!t->params || !t->rows || !t->labels || !t->ranks || !t->measured)
        return ERR_SET(e, ERR_NOMEM, "no memory for %zu parameters", t->n_params);
    t->first = t->params + t->n_params;
    t->second = t->first + t->n_params;
    t->gradient = t->second + t->n_params;
    return 0;
}

int trainer_open(const struct trainer_options *o, const struct hidden_set *set,
                 const struct draft_vocab *vocab, const float *output, const struct kernels *k,
                 struct pool *threads, struct trainer **out, struct err *e)
{
    ASSERT(o->n_heads >= 1 && o->n_heads <= HEADS_MAX && o->n_rows >= 1);
    struct trainer *t = calloc(1, sizeof *t);
    if (!t)
        return ERR_SET(e, ERR_NOMEM, "no memory for training");
    *t = (struct trainer){.o = *o, .set = set, .vocab = vocab, .threads = threads};
    double shares[HEADS_MAX];
    for (size_t i = 0; i < o->n_heads; i++)
        shares[i] = pow(o->share_falloff, (double)i);
    int rc = choose_rows(t, e);
    if (rc == 0)
        rc = take_memory(t, e);
    const struct heads_math_options math = {.n_heads = o->n_heads,
                                            .dim = set->dim,
                                            .n_draft = vocab->n,
                                            .n_rows_max = t->o.n_rows,
                                            .output = output,
                                            .shares = shares,
                                            .kernels = k,
                                            .threads = threads};
    if (rc == 0)
        rc = heads_math_open(&math, &t->math, e);
    if (rc != 0) {
        trainer_close(t);
        return rc;
    }
    *out = t;
    return 0;
}

void trainer_close(struct trainer *t)
{
    if (!t)
        return;
    heads_math_close(t->math);
    free(t->order);
    free(t->params);
    free(t->rows);
    free(t->labels);
    free(t->ranks);
    free(t->measured);
    free(t);
}

/* ------------------------------------------------------------------ steps */

uint64_t trainer_steps(const struct trainer *t)
{
    return t->n_steps;
}

uint64_t trainer_steps_done(const struct trainer *t)
{
    return t->n_done;
}

static int compare_rows(const void *a, const void *b)
{
    const size_t x = *(const size_t *)a, y = *(const size_t *)b;
    return (x > y) - (x < y);
}

/* Fisher and Yates, always from the same start, so that an epoch's order is its own. */
static void shuffle(struct trainer *t, uint64_t epoch)
{
    if (t->epoch == epoch)
        return;
    qsort(t->order, t->n_order, sizeof t->order[0], compare_rows);
    for (size_t i = t->n_order - 1; i > 0; i--) {
        const size_t j = rng_bits(t->o.seed, epoch, i) % (i + 1);
        const size_t row = t->order[i];
        t->order[i] = t->order[j];
        t->order[j] = row;
    }
    t->epoch = epoch;
}

static double rate_at(const struct trainer *t, uint64_t step)
{
    const double n = (double)t->n_steps, warm = fmax(1, floor(n * WARM_UP_SHARE));
    if ((double)step <= warm)
        return t->o.rate * (double)step / warm;
    return t->o.rate / 2 * (1 + cos(M_PI * ((double)step - warm) / (n - warm + 1)));
}

static void load_rows(struct trainer *t, const size_t *rows, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        hidden_set_row(t->set, rows[i], t->rows + i * t->set->dim);
        for (size_t head = 0; head < t->o.n_heads; head++)
            t->labels[head * n + i] = draft_vocab_label(t->vocab, t->set, rows[i], head);
    }
}

struct update {
    struct trainer *t;
    struct adamw adamw;
};

static void update_item(void *ctx, size_t item, size_t thread)
{
    (void)thread;
    const struct update *u = ctx;
    const struct trainer *t = u->t;
    const size_t begin = item * PARAMS_BLOCK;
    adamw_step(&u->adamw, t->gradient + begin, size_min(PARAMS_BLOCK, t->n_params - begin),
               t->params + begin, t->first + begin, t->second + begin);
}

void trainer_step(struct trainer *t, double losses[HEADS_MAX])
{
    ASSERT(t->n_done < t->n_steps);
    const uint64_t steps_of_epoch = t->n_order / t->o.n_rows;
    shuffle(t, t->n_done / steps_of_epoch);
    load_rows(t, t->order + t->n_done % steps_of_epoch * t->o.n_rows, t->o.n_rows);
    heads_math_set(t->math, t->params);
    heads_math_gradient(t->math, t->rows, t->o.n_rows, t->labels, t->gradient, losses);
    t->n_done++;
    struct update u = {
        .t = t,
        .adamw = {.rate = rate_at(t, t->n_done), .decay = t->o.decay, .step = t->n_done}};
    pool_run(t->threads, update_item, &u, size_divide_up(t->n_params, PARAMS_BLOCK));
}

/* ------------------------------------------------------------------ measuring */

static void measure_batch(struct trainer *t, size_t n, struct heads_score *out)
{
    load_rows(t, t->measured, n);
    heads_math_ranks(t->math, t->rows, n, t->labels, t->ranks);
    for (size_t i = 0; i < n; i++) {
        int32_t ranks[HEADS_MAX];
        for (size_t head = 0; head < t->o.n_heads; head++)
            ranks[head] = t->labels[head * n + i] == HEADS_NO_LABEL ? HEADS_RANKS
                                                                    : t->ranks[head * n + i];
        heads_score_add(out, ranks, (size_t)t->set->n_after[t->measured[i]]);
    }
}

void trainer_measure(struct trainer *t, bool held_out, struct heads_score *out)
{
    *out = (struct heads_score){.n_heads = t->o.n_heads};
    heads_math_set(t->math, t->params);
    size_t n = 0;
    for (size_t row = 0; row < t->set->n_rows; row++) {
        if (t->set->is_held_out[row] != held_out || t->set->n_after[row] == 0)
            continue;
        t->measured[n++] = row;
        if (n < t->o.n_rows)
            continue;
        measure_batch(t, n, out);
        n = 0;
    }
    if (n > 0)
        measure_batch(t, n, out);
}

void trainer_heads(const struct trainer *t, const struct heads_score *accuracies,
                   struct heads *out)
{
    const size_t dim = t->set->dim;
    *out = (struct heads){.n_heads = t->o.n_heads,
                          .n_blocks = 1,
                          .dim = dim,
                          .draft_vocab = t->vocab->tokens,
                          .n_draft = t->vocab->n};
    for (size_t i = 0; i < t->o.n_heads; i++) {
        float *weight = t->params + i * heads_math_stride(dim);
        out->heads[i].blocks[0] =
            (struct heads_block){.weight = weight, .bias = weight + dim * dim};
        for (size_t rank = 0; rank < HEADS_RANKS; rank++)
            out->heads[i].accuracies[rank] = heads_score_accuracy(accuracies, i, rank);
    }
}
