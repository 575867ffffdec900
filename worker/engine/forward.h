/*
 * The forward pass: a step's rows through the model, layer by layer, through the kernel table.
 *
 *     x = embedding rows
 *     per layer:  h = norm(x);  q|k|v = h * Wqkv;  rotate q, k;  write k, v to the pages;
 *                 x += attention(q, pages) * Wo;
 *                 h = norm(x);  x += (silu(h * Wgate) . (h * Wup)) * Wdown
 *     logits = norm(x) * Woutput, for the rows that want them; of greedy ones the greatest
 *
 * Work is cut over the pool by output panels, heads, rows or attention blocks; no cut changes a
 * bit. What works on the columns of a head or of gate and up follows their product at once.
 * Each stage ends in a join: what the next one reads is complete.
 *
 * With a device in its options all of it is done there (forward_device.c): layers are one call,
 * and only what is asked of the logits comes back. A device may fail; then what the functions
 * below give means nothing, and forward_check says so.
 *
 * Thread: the engine's, and its pool.
 */
#ifndef SHEAF_FORWARD_H
#define SHEAF_FORWARD_H

#include <stdbool.h>

#include "base/err.h"
#include "engine/kvpool.h"
#include "engine/pool.h"
#include "engine/sched.h"
#include "engine/weights.h"
#include "kernels.h"
#include "model/model.h"

struct device_candidates;
struct engine_device;
struct forward;

struct forward_options {
    size_t n_rows_max;   /* of a step */
    size_t n_logits_max; /* of a step */
    enum act_kind activations;
    enum kv_type kv_type;
    bool shared_attention;        /* rows of several sequences read a shared page together */
    bool drafts;                  /* segments may have some */
    struct engine_device *device; /* borrowed; NULL: the kernel table computes. Its pages are
                                     the pool's, its weights the model's */
    size_t n_page_refs_max; /* with a device: pages of a step's segments, each for itself */
    size_t n_positions_max; /* likewise: rows' positions are below it */
};

/* Everything but options is borrowed. */
int forward_open(const struct model *m, const struct weights *w, const struct kernels *k,
                 struct kvpool *pool, struct pool *threads, const struct forward_options *o,
                 struct forward **out, struct err *e);
void forward_close(struct forward *f);
size_t forward_bytes(const struct forward *f); /* activations and scratch */

/* 0, or what has gone wrong on the device since it was opened. */
int forward_check(const struct forward *f, struct err *e);

/* Computes the plan's rows: their keys and values are in the pages after. A device may still be
 * at work on a plan without logits; what is asked of it later comes after that. */
void forward_run(struct forward *f, const struct step_plan *plan);
/*
 * The same in two halves: what a plan gives is there after forward_end, which waits for a
 * device and is all that waits. A second plan may be begun in between when all rows of the
 * first that draw are greedy; its segments may be behind the first one's. They end in the order
 * in which they were begun. Plans are borrowed by forward_begin only.
 */
void forward_begin(struct forward *f, const struct step_plan *plan);
void forward_end(struct forward *f);
/* Instead of forward_end, when nobody wants what the only plan that is begun gives. */
void forward_abandon(struct forward *f);
/* Only n_layers layers of it, from the given one round to the first: how long that takes says
 * how long all of them do. What it leaves behind means nothing, and all of it is done. */
void forward_run_layers(struct forward *f, const struct step_plan *plan, size_t first,
                        size_t n_layers);
/* The rest of the plan that was run last: its logits. */
void forward_run_head(struct forward *f);

/* What a device found of the logits of the plan's logits row i, or NULL: it has logits, or the
 * greatest. They can be had all the same: wanted by any thread, a row at a time, and fetched by
 * the engine's; false: none were wanted. */
const struct device_candidates *forward_candidates(const struct forward *f, size_t logits_row);
void forward_want_logits(struct forward *f, size_t logits_row);
bool forward_fetch_wanted(struct forward *f);
/* [V] of a row that has candidates, or NULL: they have not been fetched. */
const float *forward_fetched(const struct forward *f, size_t logits_row);

/* [V] logits of the plan's logits row i, which has neither candidates nor only the greatest;
 * may be changed in place; valid until the next run. */
float *forward_logits(struct forward *f, size_t logits_row);
/* What kernels.h's argmax gives for the logits of a greedy row, which are nowhere. */
int32_t forward_best(const struct forward *f, size_t logits_row);
/* [D] hidden state behind the last norm that those logits were computed from; valid until the
 * next run. */
const float *forward_hidden(const struct forward *f, size_t logits_row);

#endif
