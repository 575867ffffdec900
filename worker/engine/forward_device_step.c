/*
 * A step as a device takes it (device.h): the engine's plan and the plan of attention in arrays
 * that go over.
 *
 * Each sequence's page list goes over once, and spans and branches point into it. A branch is a
 * list of slots: what it sees is not copied together, as it is for the kernel table, but read
 * where it is.
 */
#include <string.h>

#include "base/check.h"
#include "base/limits.h"
#include "base/size.h"
#include "engine/forward_device_int.h"

/* Of a thread's share; fewer are not worth a join. */
enum { POSITIONS_PER_ITEM = 32, ROWS_PER_ITEM = 256 };
enum { POSITIONS_MORE = 256 }; /* at least, when more are needed */
/* ------------------------------------------------------------------ segments */

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
static enum wanted_of_row wanted_of(const struct forward *f, const struct step_segment *s,
                                    size_t k)
{
    if (s->is_greedy)
        return WANTS_BEST;
    if (!s->takes_candidates || f->config->n_vocab > DEVICE_CANDIDATES_VOCAB_MAX)
        return WANTS_LOGITS;
    const size_t n_drawn = s->draft && k > 0 ? s->draft->nodes[k - 1].depth : 0;
    return seq_n_output(s->seq) + n_drawn >= s->seq->req.min_tokens ? WANTS_CANDIDATES
                                                                    : WANTS_LOGITS;
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
        const enum wanted_of_row wanted = wanted_of(f, s, k);
        d->logits_rows[s->logits_row + k] = (int32_t)(first + k);
        d->begun->of_row[s->logits_row + k] = (uint8_t)wanted;
        d->temperatures[s->logits_row + k] =
            wanted == WANTS_CANDIDATES ? s->seq->req.sample.temperature : 0;
    }
}

/* ------------------------------------------------------------------ angles */

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

/* ------------------------------------------------------------------ attention */

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

/* ------------------------------------------------------------------ all of it */

void forward_device_fill(struct forward *f)
{
    struct forward_device *d = f->on_device;
    d->n_pages = d->n_slots = 0;
    forward_attention_plan(f);
    for (size_t i = 0; i < f->plan->n_segments; i++)
        fill_segment(f, &f->plan->segments[i]);
    fill_angles(f);
    fill_attention(f);
}

struct device_step forward_device_step_of(const struct forward *f)
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
                                .temperatures = d->temperatures};
}
