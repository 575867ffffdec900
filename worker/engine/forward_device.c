/*
 * The forward pass on a device: steps are begun, a second one while the first is computed, and
 * end in their order with what was asked of their logits.
 */
#include <stdlib.h>

#include "base/check.h"
#include "base/limits.h"
#include "engine/forward_device_int.h"
#include "engine/layout.h"
#include "engine/memory.h"

/* ------------------------------------------------------------------ opening */

size_t forward_device_slots_max(size_t n_rows_max)
{
    return n_rows_max * DRAFT_NODES_MAX;
}

static bool take_arrays(struct forward_device *d, size_t n_rows, size_t n_logits)
{
    d->tokens = calloc(n_rows, sizeof d->tokens[0]);
    d->kv_slots = calloc(n_rows, sizeof d->kv_slots[0]);
    d->positions = calloc(n_rows, sizeof d->positions[0]);
    d->lists = calloc(n_rows, sizeof d->lists[0]);
    d->rows = calloc(n_rows, sizeof d->rows[0]);
    d->spans = calloc(2 * n_rows, sizeof d->spans[0]);
    d->blocks = calloc(n_rows, sizeof d->blocks[0]);
    d->branches = calloc(n_rows, sizeof d->branches[0]);
    d->pages = calloc(d->n_page_refs_max, sizeof d->pages[0]);
    d->slots = calloc(d->n_slots_max + 1, sizeof d->slots[0]);
    d->logits_rows = calloc(n_logits, sizeof d->logits_rows[0]);
    d->best = calloc(n_logits, sizeof d->best[0]);
    d->candidates = calloc(n_logits, sizeof d->candidates[0]);
    d->temperatures = calloc(n_logits, sizeof d->temperatures[0]);
    d->logits_state = calloc(n_logits, sizeof d->logits_state[0]);
    d->rows_to_read = calloc(n_logits, sizeof d->rows_to_read[0]);
    bool has_steps = true;
    for (size_t i = 0; i < STEPS_BEGUN_MAX; i++) {
        d->steps[i].of_row = calloc(n_logits, sizeof d->steps[i].of_row[0]);
        has_steps = has_steps && d->steps[i].of_row;
    }
    d->begun = d->ended = &d->steps[0];
    return has_steps && d->tokens && d->kv_slots && d->positions && d->lists && d->rows &&
           d->spans && d->blocks && d->branches && d->pages && d->slots && d->logits_rows &&
           d->best && d->candidates && d->temperatures && d->logits_state && d->rows_to_read;
}

/* Returns where the angles of all positions are. */
static float *lay_buffers(struct layout *l, struct forward *f)
{
    const struct model_config *c = f->config;
    f->cos_sin = layout_take(l, f->options.n_rows_max * c->n_rot * sizeof(float));
    f->logits = layout_take(l, f->options.n_logits_max * c->n_vocab * sizeof(float));
    f->hidden_rows = layout_take(l, f->options.n_logits_max * c->dim * sizeof(float));
    return layout_take(l, f->options.n_positions_max * c->n_rot * sizeof(float));
}

int forward_device_open(struct forward *f, struct err *e)
{
    const struct forward_options *o = &f->options;
    struct layout sizes = {0};
    lay_buffers(&sizes, f);
    TRY(memory_take(sizes.used, "the results of a device", &f->block, e));
    f->block_bytes = sizes.used;
    struct forward_device *d = f->on_device = calloc(1, sizeof *d);
    if (!d)
        return ERR_SET(e, ERR_NOMEM, "no memory for the steps of a device");
    struct layout filled = {.base = f->block};
    d->angles = lay_buffers(&filled, f);
    d->n_page_refs_max = o->n_page_refs_max;
    d->n_slots_max = o->drafts ? forward_device_slots_max(o->n_rows_max) : 0;
    if (!take_arrays(d, o->n_rows_max, o->n_logits_max))
        return ERR_SET(e, ERR_NOMEM, "no memory for the steps of a device");
    return attention_plan_open(&f->attention, o->n_rows_max, o->drafts ? o->n_rows_max : 0, e);
}

void forward_device_close(struct forward *f)
{
    struct forward_device *d = f->on_device;
    if (!d)
        return;
    attention_plan_close(&f->attention);
    free(d->tokens);
    free(d->kv_slots);
    free(d->positions);
    free(d->lists);
    free(d->rows);
    free(d->spans);
    free(d->blocks);
    free(d->branches);
    free(d->pages);
    free(d->slots);
    free(d->logits_rows);
    free(d->best);
    free(d->temperatures);
    free(d->candidates);
    free(d->logits_state);
    free(d->rows_to_read);
    for (size_t i = 0; i < STEPS_BEGUN_MAX; i++)
        free(d->steps[i].of_row);
    free(d);
}

/* ------------------------------------------------------------------ steps */

static struct wanted *other_step(struct forward_device *d, const struct wanted *step)
{
    return &d->steps[step == &d->steps[0]];
}

/* Fetched here, by the engine's thread: the samplers of all threads read it. */
bool forward_device_fetch_wanted(struct forward *f)
{
    struct forward_device *d = f->on_device;
    size_t n = 0;
    for (size_t i = 0; i < d->ended->n_logits; i++)
        if (d->logits_state[i] == LOGITS_WANTED) {
            d->logits_state[i] = LOGITS_HERE;
            d->rows_to_read[n++] = (int32_t)i;
        }
    ASSERT(n == 0 || d->n_begun == 0); /* a later step's logits are in their place */
    if (n > 0)
        engine_device_read_logits(f->options.device, d->rows_to_read, n, f->logits);
    return n > 0;
}

/* Of a step before the last, only the bests are still there. */
static void fetch_results(struct forward *f, size_t n_later)
{
    struct forward_device *d = f->on_device;
    bool has_best = false, has_candidates = false;
    for (size_t i = 0; i < d->ended->n_logits; i++) {
        const enum wanted_of_row wanted = d->ended->of_row[i];
        ASSERT(wanted == WANTS_BEST || n_later == 0);
        has_best = has_best || wanted == WANTS_BEST;
        has_candidates = has_candidates || wanted == WANTS_CANDIDATES;
        d->logits_state[i] = wanted == WANTS_LOGITS ? LOGITS_WANTED : LOGITS_AWAY;
    }
    forward_device_fetch_wanted(f);
    if (has_best)
        engine_device_read_best(f->options.device, n_later, d->best);
    if (has_candidates)
        engine_device_read_candidates(f->options.device, d->candidates);
}

void forward_device_begin(struct forward *f, size_t first, size_t n_layers, bool has_head)
{
    struct forward_device *d = f->on_device;
    ASSERT(d->n_begun < STEPS_BEGUN_MAX);
    d->begun = other_step(d, d->begun);
    d->begun->n_logits = has_head ? f->plan->n_logits : 0;
    d->n_begun++;
    d->has_hidden = false;
    forward_device_fill(f);
    struct device_step step = forward_device_step_of(f);
    step.first_layer = first;
    step.n_layers = n_layers;
    step.has_head = has_head;
    engine_device_step(f->options.device, &step);
}

void forward_device_end(struct forward *f)
{
    struct forward_device *d = f->on_device;
    ASSERT(d->n_begun > 0);
    d->n_begun--;
    d->ended = d->n_begun > 0 ? other_step(d, d->begun) : d->begun;
    fetch_results(f, d->n_begun);
}

void forward_device_abandon(struct forward *f)
{
    ASSERT(f->on_device->n_begun == 1);
    f->on_device->n_begun = 0;
}

void forward_device_run_head(struct forward *f)
{
    struct forward_device *d = f->on_device;
    struct device_step step = forward_device_step_of(f);
    ASSERT(d->n_begun == 0);
    step.has_head = true;
    d->ended->n_logits = step.n_logits;
    engine_device_step(f->options.device, &step);
    fetch_results(f, 0);
}

/* ------------------------------------------------------------------ results */

bool forward_device_is_greedy(const struct forward *f, size_t logits_row)
{
    return f->on_device->ended->of_row[logits_row] == WANTS_BEST;
}

int32_t forward_device_best(const struct forward *f, size_t logits_row)
{
    const int32_t best = f->on_device->best[logits_row];
    return best >= 0 && (size_t)best < f->config->n_vocab ? best : 0; /* of nothing but NaN */
}

const struct device_candidates *forward_device_candidates(const struct forward *f,
                                                          size_t logits_row)
{
    const struct forward_device *d = f->on_device;
    return d->ended->of_row[logits_row] == WANTS_CANDIDATES ? &d->candidates[logits_row] : NULL;
}

/* Each thread has rows of its own. */
void forward_device_want_logits(struct forward *f, size_t logits_row)
{
    f->on_device->logits_state[logits_row] = LOGITS_WANTED;
}

bool forward_device_has_logits(const struct forward *f, size_t logits_row)
{
    return f->on_device->logits_state[logits_row] == LOGITS_HERE;
}

const float *forward_device_hidden(const struct forward *f, size_t logits_row)
{
    struct forward_device *d = f->on_device;
    const size_t dim = f->config->dim;
    ASSERT(d->n_begun == 0);
    for (size_t i = 0; !d->has_hidden && i < d->ended->n_logits; i++)
        engine_device_read_hidden(f->options.device, i, f->hidden_rows + i * dim);
    d->has_hidden = true;
    return f->hidden_rows + logits_row * dim;
}
