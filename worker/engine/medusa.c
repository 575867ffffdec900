#include "engine/medusa.h"

#include <math.h>
#include <string.h>

#include "base/check.h"
#include "base/size.h"
#include "engine/medusa_int.h"
#include "engine/weights.h"

enum { ROWS_PER_ITEM = 16 };

/* One run, or one stage of it. */
struct pass {
    struct medusa *md;
    size_t n;      /* rows of a head */
    size_t block;  /* the stage's */
    size_t n_runs; /* runs of panels of one product */
};

static float *tile_of(const struct medusa *md, size_t thread)
{
    return md->tiles + thread * MEDUSA_TILE_ROWS * MEDUSA_COLS;
}

static struct act rows_of(const struct act *a, size_t first, size_t n)
{
    struct act rows = *a;
    rows.n_rows = n;
    rows.f32 += first * a->n_cols;
    if (a->kind == ACT_INT8) {
        const size_t n_blocks = a->n_cols / ACT_BLOCK;
        rows.q += first * a->n_cols;
        rows.scale += first * n_blocks;
        rows.sum += first * n_blocks;
        rows.scaled_sum += first * n_blocks;
    }
    return rows;
}

static struct weight run_of(const struct weight *w, size_t run)
{
    const size_t begin = run * MEDUSA_PANELS;
    return weights_panels(w, begin, size_min(begin + MEDUSA_PANELS, w->n_panels));
}

/* ------------------------------------------------------------------ blocks */

/* Each head begins with the same rows. */
static void gather(struct medusa *md, const float *const *hidden, size_t n)
{
    for (size_t i = 0; i < md->n_heads; i++)
        for (size_t k = 0; k < n; k++)
            memcpy(md->states[0].f32 + (i * n + k) * md->dim, hidden[k],
                   md->dim * sizeof(float));
}

/* Some columns of one head: x + silu(W x + b). */
static void block_item(void *ctx, size_t item, size_t thread)
{
    const struct pass *p = ctx;
    struct medusa *md = p->md;
    const size_t head = item / p->n_runs, run = item % p->n_runs;
    const struct weight w = run_of(&md->blocks[head][p->block], run);
    const struct act *from = &md->states[p->block % 2];
    const struct act *to = &md->states[(p->block + 1) % 2];
    const size_t column = run * MEDUSA_COLS;
    float *tile = tile_of(md, thread);
    for (size_t begin = 0; begin < p->n; begin += MEDUSA_TILE_ROWS) {
        const size_t n = size_min(MEDUSA_TILE_ROWS, p->n - begin);
        const size_t first = head * p->n + begin;
        const struct act x = rows_of(from, first, n);
        md->kernels->matmul(&w, &x, 0, w.n_panels, MATMUL_SET, tile, MEDUSA_COLS);
        md->kernels->bias_add(tile, MEDUSA_COLS, md->biases[head][p->block] + column, n,
                              w.n_rows);
        for (size_t i = 0; i < n; i++) {
            float *y = tile + i * MEDUSA_COLS;
            const size_t at = (first + i) * md->dim + column;
            md->kernels->silu_mul(y, md->ones, w.n_rows, y);
            for (size_t k = 0; k < w.n_rows; k++)
                to->f32[at + k] = from->f32[at + k] + y[k];
        }
    }
}

static void quantize_item(void *ctx, size_t item, size_t thread)
{
    (void)thread;
    const struct pass *p = ctx;
    const size_t begin = item * ROWS_PER_ITEM;
    const size_t end = size_min(begin + ROWS_PER_ITEM, p->md->n_heads * p->n);
    p->md->kernels->quantize(medusa_last(p->md), begin, end, 0, p->md->dim);
}

static void run_blocks(struct medusa *md, size_t n)
{
    struct pass p = {.md = md, .n = n};
    if (md->n_blocks > 0)
        p.n_runs = size_divide_up(md->blocks[0][0].n_panels, MEDUSA_PANELS);
    for (p.block = 0; p.block < md->n_blocks; p.block++)
        pool_run(md->threads, block_item, &p, md->n_heads * p.n_runs);
    if (medusa_last(md)->kind == ACT_INT8)
        pool_run(md->threads, quantize_item, &p,
                 size_divide_up(md->n_heads * n, ROWS_PER_ITEM));
}

/* ------------------------------------------------------------------ outputs */

static bool beats(float value, int32_t index, const struct medusa_best *other)
{
    return other->index == MEDUSA_NO_BEST || value > other->value ||
           (value == other->value && index < other->index);
}

/* bests: the best MEDUSA_RANKS so far. What is no number is never among them. */
static void keep(struct medusa_best *bests, float value, int32_t index)
{
    size_t i = MEDUSA_RANKS;
    if (isnan(value) || index == MEDUSA_NO_BEST)
        return;
    while (i > 0 && beats(value, index, &bests[i - 1]))
        i--;
    if (i == MEDUSA_RANKS)
        return;
    memmove(&bests[i + 1], &bests[i], (MEDUSA_RANKS - 1 - i) * sizeof bests[0]);
    bests[i] = (struct medusa_best){.value = value, .index = index};
}

/* Most runs of logits have nothing to offer, which their greatest tells. */
static void keep_best(const struct medusa *md, const float *logits, size_t n, size_t first,
                      struct medusa_best *bests)
{
    const struct medusa_best *last = &bests[MEDUSA_RANKS - 1];
    if (last->index != MEDUSA_NO_BEST && logits[md->kernels->argmax(logits, n)] < last->value)
        return;
    for (size_t i = 0; i < n; i++)
        if (last->index == MEDUSA_NO_BEST || logits[i] >= last->value)
            keep(bests, logits[i], (int32_t)(first + i));
}

static void output_item(void *ctx, size_t item, size_t thread)
{
    const struct pass *p = ctx;
    struct medusa *md = p->md;
    const struct medusa_output *output = &md->outputs[item / p->n_runs];
    const size_t run = item % p->n_runs;
    const struct weight w = run_of(&output->weight, run);
    const size_t end = (output->first_head + output->n_heads) * p->n;
    float *tile = tile_of(md, thread);
    for (size_t row = output->first_head * p->n; row < end; row += MEDUSA_TILE_ROWS) {
        const size_t n = size_min(MEDUSA_TILE_ROWS, end - row);
        const struct act x = rows_of(medusa_last(md), row, n);
        md->kernels->matmul(&w, &x, 0, w.n_panels, MATMUL_SET, tile, MEDUSA_COLS);
        for (size_t i = 0; i < n; i++)
            keep_best(md, tile + i * MEDUSA_COLS, w.n_rows, run * MEDUSA_COLS,
                      medusa_bests(md, thread, row + i));
    }
}

/* Of all threads, whoever took which items. */
static void merge_bests(struct medusa *md, size_t n_rows)
{
    for (size_t thread = 1; thread < pool_threads(md->threads); thread++)
        for (size_t i = 0; i < n_rows * MEDUSA_RANKS; i++) {
            const struct medusa_best *other = medusa_bests(md, thread, 0) + i;
            keep(medusa_bests(md, 0, i / MEDUSA_RANKS), other->value, other->index);
        }
}

static void run_outputs(struct medusa *md, size_t n)
{
    struct pass p = {.md = md, .n = n};
    p.n_runs = size_divide_up(md->outputs[0].weight.n_panels, MEDUSA_PANELS);
    for (size_t thread = 0; thread < pool_threads(md->threads); thread++)
        for (size_t i = 0; i < md->n_heads * n * MEDUSA_RANKS; i++)
            medusa_bests(md, thread, 0)[i].index = MEDUSA_NO_BEST;
    pool_run(md->threads, output_item, &p, md->n_outputs * p.n_runs);
    merge_bests(md, md->n_heads * n);
}

/* ------------------------------------------------------------------ guesses */

void medusa_guess(const struct medusa *md, const struct medusa_best *bests,
                  struct medusa_guess out[MEDUSA_RANKS])
{
    float sum = 0;
    for (size_t r = 0; r < MEDUSA_RANKS; r++) {
        const int32_t index = bests[r].index;
        out[r] = (struct medusa_guess){.token = DRAFT_NONE};
        if (index == MEDUSA_NO_BEST)
            continue;
        out[r].token = md->vocab ? md->vocab[index] : index;
        out[r].share = kernels_exp(bests[r].value - bests[0].value);
        sum += out[r].share;
    }
    for (size_t r = 0; r < MEDUSA_RANKS && out[r].token != DRAFT_NONE; r++)
        out[r].share /= sum;
}

void medusa_run(struct medusa *md, const float *const *hidden, size_t n,
                struct medusa_guesses *out)
{
    ASSERT(!md->device && n <= md->n_rows_max);
    if (n == 0)
        return;
    gather(md, hidden, n);
    run_blocks(md, n);
    run_outputs(md, n);
    for (size_t k = 0; k < n; k++) {
        out[k].n_heads = md->n_heads;
        for (size_t i = 0; i < md->n_heads; i++)
            medusa_guess(md, medusa_bests(md, 0, i * n + k), out[k].guesses[i]);
    }
}
