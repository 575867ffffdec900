/*
 * The last product: logits of the rows that want them.
 *
 * A row that is taken greedily needs only the place of its greatest logit. An item is a run of
 * the vocabulary: its logits are computed into a tile; rows that want all of them have them
 * copied out, of the others the thread keeps the best so far. The best of the threads' bests is
 * the row's token, whoever took which items: the greatest, the lowest index among equals, and
 * NaN never.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/size.h"
#include "engine/forward_int.h"

enum {
    NO_BEST = -1, /* nothing but NaN so far */
    HEAD_PANELS = 6,
    HEAD_COLS = HEAD_PANELS * PANEL_COLS,
};

size_t forward_head_tile_floats(const struct forward *f)
{
    return f->options.n_logits_max * HEAD_COLS;
}

int forward_head_open(struct forward *f, struct err *e)
{
    const size_t n = f->options.n_logits_max;
    f->bests = calloc(pool_threads(f->threads) * n, sizeof f->bests[0]);
    f->is_greedy = calloc(n, sizeof f->is_greedy[0]);
    if (!f->bests || !f->is_greedy)
        return ERR_SET(e, ERR_NOMEM, "no memory for the bests of %zu rows", n);
    return 0;
}

void forward_head_close(struct forward *f)
{
    free(f->bests);
    free(f->is_greedy);
}

static struct best *bests_of(const struct forward *f, size_t thread)
{
    return f->bests + thread * f->options.n_logits_max;
}

void forward_keep_best(struct best *best, float value, int32_t index)
{
    if (isnan(value) || index == NO_BEST)
        return;
    if (best->index == NO_BEST || value > best->value ||
        (value == best->value && index < best->index))
        *best = (struct best){.value = value, .index = index};
}

static void head_item(void *ctx, size_t item, size_t thread)
{
    struct forward *f = ctx;
    const struct weight *all = &f->weights->output.parts[0];
    const size_t begin = item * HEAD_PANELS;
    const size_t first = begin * PANEL_COLS;
    const struct weight part =
        weights_panels(all, begin, size_min(begin + HEAD_PANELS, all->n_panels));
    const struct act x = forward_first_rows(&f->last, f->plan->n_logits);
    float *tile = forward_tile(f, thread);
    f->kernels->matmul(&part, &x, 0, part.n_panels, MATMUL_SET, tile, HEAD_COLS);
    for (size_t i = 0; i < x.n_rows; i++) {
        const float *logits = tile + i * HEAD_COLS;
        if (f->is_greedy[i]) {
            const size_t at = f->kernels->argmax(logits, part.n_rows);
            forward_keep_best(&bests_of(f, thread)[i], logits[at], (int32_t)(first + at));
        } else {
            memcpy(f->logits + i * all->n_rows + first, logits, part.n_rows * sizeof logits[0]);
        }
    }
}

/* Norms of the rows that want logits, and how they want them. */
static void gather_rows(struct forward *f)
{
    const size_t dim = f->config->dim;
    for (size_t i = 0; i < f->plan->n_segments; i++) {
        const struct step_segment *s = &f->plan->segments[i];
        if (s->n_logits == 0)
            continue;
        const size_t first = s->row + s->n_rows - s->n_logits;
        f->kernels->rmsnorm(f->x + first * dim, f->weights->output_norm, f->config->rms_eps,
                            s->n_logits, dim, f->last.f32 + s->logits_row * dim);
        for (size_t k = 0; k < s->n_logits; k++)
            f->is_greedy[s->logits_row + k] = s->is_greedy;
    }
    forward_quantize(f, &f->last, 0, f->plan->n_logits, 0, dim);
}

void forward_run_head(struct forward *f)
{
    if (f->on_device) {
        forward_device_run_head(f);
        return;
    }
    const size_t n_threads = pool_threads(f->threads);
    gather_rows(f);
    for (size_t i = 0; i < n_threads * f->options.n_logits_max; i++)
        f->bests[i].index = NO_BEST;
    pool_run(f->threads, head_item, f,
             size_divide_up(f->weights->output.parts[0].n_panels, HEAD_PANELS));
    for (size_t thread = 1; thread < n_threads; thread++)
        for (size_t i = 0; i < f->plan->n_logits; i++) {
            const struct best other = bests_of(f, thread)[i];
            forward_keep_best(&f->bests[i], other.value, other.index);
        }
}

static bool is_greedy(const struct forward *f, size_t logits_row)
{
    ASSERT(logits_row < f->options.n_logits_max);
    return f->on_device ? forward_device_is_greedy(f, logits_row) : f->is_greedy[logits_row];
}

const struct device_candidates *forward_candidates(const struct forward *f, size_t logits_row)
{
    ASSERT(logits_row < f->options.n_logits_max);
    return f->on_device ? forward_device_candidates(f, logits_row) : NULL;
}

void forward_want_logits(struct forward *f, size_t logits_row)
{
    ASSERT(forward_candidates(f, logits_row));
    forward_device_want_logits(f, logits_row);
}

bool forward_fetch_wanted(struct forward *f)
{
    return f->on_device && forward_device_fetch_wanted(f);
}

const float *forward_fetched(const struct forward *f, size_t logits_row)
{
    ASSERT(forward_candidates(f, logits_row));
    return forward_device_has_logits(f, logits_row)
               ? f->logits + logits_row * f->config->n_vocab
               : NULL;
}

float *forward_logits(struct forward *f, size_t logits_row)
{
    ASSERT(!is_greedy(f, logits_row) && !forward_candidates(f, logits_row));
    return f->logits + logits_row * f->config->n_vocab;
}

int32_t forward_best(const struct forward *f, size_t logits_row)
{
    ASSERT(is_greedy(f, logits_row));
    if (f->on_device)
        return forward_device_best(f, logits_row);
    const struct best best = f->bests[logits_row];
    return best.index == NO_BEST ? 0 : best.index;
}

const float *forward_hidden(const struct forward *f, size_t logits_row)
{
    ASSERT(logits_row < f->options.n_logits_max);
    if (f->on_device)
        return forward_device_hidden(f, logits_row);
    return f->last.f32 + logits_row * f->config->dim;
}
