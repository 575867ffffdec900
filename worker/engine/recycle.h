/*
 * Token recycling: for every token of the vocabulary, what was drawn behind it last, whatever
 * the text, and a small tree of proposals from chains of such pairs.
 *
 * A row holds up to RECYCLE_WIDTH successors; the one that is drawn moves to the front. How
 * often in a row the first one was drawn is remembered beside it. Proposals count in cells of
 * (rank, that number), taught by every committed token as those of lookup.h are.
 *
 * Memory is V * (4 * RECYCLE_WIDTH + 1) bytes, taken at once. Thread: the engine's.
 */
#ifndef SHEAF_RECYCLE_H
#define SHEAF_RECYCLE_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "engine/draft_grow.h"
#include "engine/spec_stats.h"

struct recycle;

enum {
    RECYCLE_WIDTH = 8,
    RECYCLE_DEPTH_MAX = 4,
    RECYCLE_NONE = -1, /* the end of a row */
};

size_t recycle_bytes(size_t n_vocab);
int recycle_open(size_t n_vocab, struct recycle **out, struct err *e);
void recycle_close(struct recycle *r);
void recycle_set_priors(struct spec_stats *stats);

/* next was drawn behind token: counts what would have been proposed, unless stats is NULL, and
 * moves next to the front of the row. Ids outside the vocabulary are an error of the caller. */
void recycle_follow(struct recycle *r, int32_t token, int32_t next, struct spec_stats *stats);
/* The row of a token: RECYCLE_WIDTH ids, RECYCLE_NONE behind the last. */
const int32_t *recycle_row(const struct recycle *r, int32_t token);

/* Adds what may follow the last committed token, DRAFT_CHILDREN_MAX of a row at most. */
void recycle_propose(const struct recycle *r, int32_t token, const struct draft_limits *limits,
                     const struct spec_stats *stats, struct draft *d);

#endif
