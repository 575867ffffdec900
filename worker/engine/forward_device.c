/*
 * The forward pass on a device: the step's plan and the plan of attention as a device takes
 * them (device.h), and what comes back of it.
 *
 * Each sequence's page list goes over once, and spans and branches point into it. A branch is a
 * list of slots: what it sees is not copied together, as it is for the kernel table, but read
 * where it is.
 */
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/limits.h"
#include "base/size.h"
#include "engine/engine_device.h"
#include "engine/forward_int.h"
#include "engine/layout.h"
#include "engine/memory.h"

/* Of a thread's share; fewer are not worth a join. */
enum { POSITIONS_PER_ITEM = 32, ROWS_PER_ITEM = 256 };
enum { POSITIONS_MORE = 256 }; /* at least, when more are needed */
enum { STEPS_BEGUN_MAX = 2 };

/* What is asked of a step's logits. */
struct wanted {
    size_t n_logits; /* 0 also when there is no head */
    uint8_t *of_row; /* [n_logits_max] enum device_wanted */
};

enum logits_state { LOGITS_AWAY, LOGITS_WANTED, LOGITS_HERE };

struct forward_device {
    int32_t *tokens, *kv_slots;     /* [T] */
    int32_t *positions;             /* [T] */
    int32_t *lists;                 /* [T] where the pages of a row's sequence begin */
    struct device_attend_row *rows; /* [T] */
    struct device_span *spans;      /* [2 T] */
    struct device_block *blocks;    /* [T] */
    struct device_branch *branches; /* [T] */
    int32_t *pages, *slots;         /* [n_page_refs_max], [n_slots_max] */
    int32_t *logits_rows;           /* [n_logits_max] */
    struct wanted steps[STEPS_BEGUN_MAX];
    struct wanted *begun;                 /* the step that was begun last */
    struct wanted *ended;                 /* the one whose results these are */
    size_t n_begun;                       /* and have not ended */
    float *temperatures;                  /* [n_logits_max] */
    int32_t *best;                        /* [n_logits_max] found by the device, as are: */
    struct device_candidates *candidates; /* [n_logits_max] */
    uint8_t *logits_state;                /* [n_logits_max] enum logits_state */
    int32_t *rows_to_read;                /* [n_logits_max] scratch */
    float *angles;                        /* [n_positions_max, n_rot / 2, 2] */
    size_t n_angles;                      /* positions whose they are */
    size_t n_pages, n_slots;
    size_t n_page_refs_max, n_slots_max;
    bool has_hidden; /* the step's hidden rows are here */
};

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

/* ------------------------------------------------------------------ the step */

/* Of all slots that the segment's rows see or fill; returns where they begin. */
static int32_t add_pages(struct forward_device *d, const struct step_segment *s)
{
    const size_t n = seq_pages_for(s->position + s->n_rows);
    const size_t first = d->n_pages;
    ASSERT(n <= s->seq->n_pages && first + n <= d->n_page_refs_max);
    memcpy(d->pages + first, s->seq->pages, n * sizeof d->pages[0]);
    d->n_pages += n;
    return (int32_t)first;
}

/* Of the segment's k-th logits row, which is k - 1's node's of its draft. Tokens of one place
 * are drawn in one way however a step came to it, so that min_tokens is asked for each row. */
static enum device_wanted wanted_of(const struct forward *f, const struct step_segment *s,
                                    size_t k)
{
    if (s->is_greedy)
        return DEVICE_WANTS_BEST;
    if (!s->takes_candidates || f->config->n_vocab > DEVICE_CANDIDATES_VOCAB_MAX)
        return DEVICE_WANTS_LOGITS;
    const size_t n_drawn = s->draft && k > 0 ? s->draft->nodes[k - 1].depth : 0;
    return seq_n_output(s->seq) + n_drawn >= s->seq->req.min_tokens ? DEVICE_WANTS_CANDIDATES
                                                                    : DEVICE_WANTS_LOGITS;
}

static void fill_segment(struct forward *f, const struct step_segment *s)
{
    struct forward_device *d = f->on_device;
    const int32_t list = add_pages(d, s);
    for (size_t i = 0; i < s->n_rows; i++) {
        const size_t row = s->row + i, slot = s->position + i;
        d->tokens[row] = s->is_behind ? device_best_of(s->token_of) : segment_token(s, i);
        d->lists[row] = list;
        d->kv_slots[row] = s->seq->pages[slot / KV_PAGE_TOKENS] * KV_PAGE_TOKENS +
                           (int32_t)(slot % KV_PAGE_TOKENS);
        d->positions[row] = (int32_t)segment_position(s, i);
        ASSERT(s->is_behind || (size_t)d->tokens[row] < f->config->n_vocab);
    }
    const size_t first = s->row + s->n_rows - s->n_logits;
    for (size_t k = 0; k < s->n_logits; k++) {
        const enum device_wanted wanted = wanted_of(f, s, k);
        d->logits_rows[s->logits_row + k] = (int32_t)(first + k);
        d->begun->of_row[s->logits_row + k] = (uint8_t)wanted;
        d->temperatures[s->logits_row + k] =
            wanted == DEVICE_WANTS_CANDIDATES ? s->seq->req.sample.temperature : 0;
    }
}

static void angles_item(void *ctx, size_t item, size_t thread)
{
    (void)thread;
    struct forward *f = ctx;
    struct forward_device *d = f->on_device;
    const size_t begin = d->n_angles + item * POSITIONS_PER_ITEM;
    const size_t end = size_min(begin + POSITIONS_PER_ITEM, f->options.n_positions_max);
    for (size_t position = begin; position < end; position++)
        forward_angles(f, position, d->angles + position * f->config->n_rot);
}

/* Each position's once, for it comes again with every sequence: sines are most of what the host
 * would do for a step. */
static void make_angles(struct forward *f, size_t n_positions)
{
    struct forward_device *d = f->on_device;
    ASSERT(n_positions <= f->options.n_positions_max);
    if (n_positions <= d->n_angles)
        return;
    const size_t n_more = size_max(n_positions - d->n_angles, POSITIONS_MORE);
    const size_t n_items = size_divide_up(n_more, POSITIONS_PER_ITEM);
    pool_run(f->threads, angles_item, f, n_items);
    d->n_angles =
        size_min(d->n_angles + n_items * POSITIONS_PER_ITEM, f->options.n_positions_max);
}

static void rows_item(void *ctx, size_t item, size_t thread)
{
    (void)thread;
    struct forward *f = ctx;
    const struct forward_device *d = f->on_device;
    const size_t n_rot = f->config->n_rot;
    const size_t begin = item * ROWS_PER_ITEM;
    const size_t end = size_min(begin + ROWS_PER_ITEM, f->plan->n_rows);
    for (size_t row = begin; row < end; row++)
        memcpy(f->cos_sin + row * n_rot, d->angles + (size_t)d->positions[row] * n_rot,
               n_rot * sizeof f->cos_sin[0]);
}

static void fill_angles(struct forward *f)
{
    const struct forward_device *d = f->on_device;
    int32_t last = 0;
    for (size_t row = 0; row < f->plan->n_rows; row++)
        last = d->positions[row] > last ? d->positions[row] : last;
    make_angles(f, (size_t)last + 1);
    pool_run(f->threads, rows_item, f, size_divide_up(f->plan->n_rows, ROWS_PER_ITEM));
}

/* The slots of a path from its first node that is not in its place to its last. */
static void fill_branch(struct forward_device *d, const struct attention_branch *b,
                        struct device_branch *out)
{
    const struct step_segment *s = b->segment;
    const size_t first_node = segment_root(s) + 1; /* its row */
    size_t n = 0;
    int32_t *slots = d->slots + d->n_slots;
    int node = (int)b->last_node;
    for (; node != DRAFT_ROOT && !attention_is_in_place(s->draft, (size_t)node);
         node = s->draft->nodes[node].parent) {
        ASSERT(d->n_slots + n < d->n_slots_max);
        slots[n++] = (int32_t)(s->position + first_node + (size_t)node);
    }
    for (size_t i = 0; i < n / 2; i++) { /* they were found from the end */
        const int32_t slot = slots[i];
        slots[i] = slots[n - 1 - i];
        slots[n - 1 - i] = slot;
    }
    const size_t last = segment_position(s, first_node + b->last_node);
    *out = (struct device_branch){.first_position = (int32_t)(last + 1 - n),
                                  .n_positions = (int32_t)n,
                                  .first_slot = (int32_t)d->n_slots,
                                  .pages = d->lists[s->row]};
    d->n_slots += n;
}

static void fill_attention(struct forward *f)
{
    struct forward_device *d = f->on_device;
    const struct attention_plan *p = &f->attention;
    for (size_t i = 0; i < p->n_branches; i++)
        fill_branch(d, &p->branches[i], &d->branches[i]);
    for (size_t i = 0; i < p->n_rows; i++) {
        const struct attention_row *r = &p->rows[i];
        d->rows[i] = (struct device_attend_row){
            .row = (int32_t)r->row,
            .position = r->position,
            .branch = r->branch ? (int32_t)(r->branch - p->branches) : -1};
    }
    for (size_t i = 0; i < p->n_blocks; i++) {
        const struct attention_block *b = &p->blocks[i];
        d->blocks[i] = (struct device_block){.first_row = (int32_t)b->first_row,
                                             .n_rows = (int32_t)b->n_rows,
                                             .first_span = (int32_t)b->first_span,
                                             .n_spans = (int32_t)b->n_spans};
        for (size_t k = b->first_span; k < b->first_span + b->n_spans; k++) {
            const struct attention_span *s = &p->spans[k];
            const size_t row = p->rows[b->first_row + s->first_row].row;
            d->spans[k] = (struct device_span){.first_row = (int32_t)s->first_row,
                                               .n_rows = (int32_t)s->n_rows,
                                               .first_page = (int32_t)s->first_page,
                                               .n_keys = (int32_t)s->n_keys,
                                               .pages = d->lists[row] + (int32_t)s->first_page};
        }
    }
}

static struct device_step step_of(const struct forward *f)
{
    const struct forward_device *d = f->on_device;
    const struct attention_plan *p = &f->attention;
    return (struct device_step){.n_rows = f->plan->n_rows,
                                .tokens = d->tokens,
                                .cos_sin = f->cos_sin,
                                .kv_slots = d->kv_slots,
                                .n_attend_rows = p->n_rows,
                                .n_spans = p->n_spans,
                                .n_blocks = p->n_blocks,
                                .n_branches = p->n_branches,
                                .n_pages = d->n_pages,
                                .n_slots = d->n_slots,
                                .attend_rows = d->rows,
                                .spans = d->spans,
                                .blocks = d->blocks,
                                .branches = d->branches,
                                .pages = d->pages,
                                .slots = d->slots,
                                .n_logits = f->plan->n_logits,
                                .logits_rows = d->logits_rows,
                                .wanted = d->begun->of_row,
                                .temperatures = d->temperatures};
}

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
        const enum device_wanted wanted = d->ended->of_row[i];
        ASSERT(wanted == DEVICE_WANTS_BEST || n_later == 0);
        has_best = has_best || wanted == DEVICE_WANTS_BEST;
        has_candidates = has_candidates || wanted == DEVICE_WANTS_CANDIDATES;
        d->logits_state[i] = wanted == DEVICE_WANTS_LOGITS ? LOGITS_WANTED : LOGITS_AWAY;
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
    d->n_pages = d->n_slots = 0;
    d->has_hidden = false;
    forward_attention_plan(f);
    for (size_t i = 0; i < f->plan->n_segments; i++)
        fill_segment(f, &f->plan->segments[i]);
    fill_angles(f);
    fill_attention(f);
    struct device_step step = step_of(f);
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
    struct device_step step = step_of(f);
    ASSERT(d->n_begun == 0);
    step.has_head = true;
    d->ended->n_logits = step.n_logits;
    engine_device_step(f->options.device, &step);
    fetch_results(f, 0);
}

/* ------------------------------------------------------------------ results */

bool forward_device_is_greedy(const struct forward *f, size_t logits_row)
{
    return f->on_device->ended->of_row[logits_row] == DEVICE_WANTS_BEST;
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
    return d->ended->of_row[logits_row] == DEVICE_WANTS_CANDIDATES ? &d->candidates[logits_row]
                                                                   : NULL;
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
