/*
 * Growing one source's part of a trie, surest path first: what all sources have in common that
 * can tell what may follow at a place of theirs.
 */
#ifndef SHEAF_DRAFT_GROW_H
#define SHEAF_DRAFT_GROW_H

#include "engine/draft.h"

enum { DRAFT_CHILDREN_MAX = 4 }; /* of one place */

struct draft_limits {
    size_t n_nodes; /* added at most */
    double p_min;   /* less likely nodes, all before them included, are not added */
};

/* Of any one source: what more it has to say is seldom worth a row. */
struct draft_limits draft_limits_of_source(size_t n_max);

/* What may follow at a place. The place of a child is the source's own affair. */
struct draft_child {
    int32_t token;
    double p;
    uint64_t place;
};

struct draft_grower {
    enum draft_source source;
    /* depth is that of the children, 1 behind the last committed token. */
    size_t (*children)(const void *context, uint64_t place, unsigned depth,
                       struct draft_child out[DRAFT_CHILDREN_MAX]);
    const void *context;
};

/* Adds at most limits->n_nodes nodes in falling order of the probability of their whole path,
 * so that a limit cuts the least likely; stops early when the trie is full. */
void draft_grow(struct draft *d, const struct draft_grower *g, uint64_t place,
                const struct draft_limits *limits);

/* Of siblings one comes true at most, whatever their sources say each for itself: where their
 * probabilities sum to more than DRAFT_SIBLINGS_SUM_MAX, they are scaled to that. */
#define DRAFT_SIBLINGS_SUM_MAX 0.95f
void draft_bound_siblings(struct draft *d);

#endif
