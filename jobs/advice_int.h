/*
 * What the files of the advice share. Prompts are views here, and after advice_order_views a
 * prompt's number is its rank in the sorted order.
 */
#ifndef SHEAF_ADVICE_INT_H
#define SHEAF_ADVICE_INT_H

#include <stdbool.h>

#include "advice.h"

/* A prompt in which [cut_start, cut_end) is read after everything else. */
struct advice_view {
    const int32_t *tokens;
    uint32_t n;
    uint32_t cut_start, cut_end;
    uint32_t salt;   /* equal numbers: equal salts */
    uint32_t prompt; /* in the caller's array */
};

/* advice_sort.c */
struct advice_order {
    uint32_t *index; /* [n] views, sorted: salt, then tokens, an end before any token */
    uint32_t *lcp;   /* [n] tokens shared with the view before; 0 for the first */
    uint32_t *spare_index, *spare_lcp;
    size_t n;
};
int advice_order_init(struct advice_order *order, size_t n, struct err *e);
void advice_order_fini(struct advice_order *order);
void advice_order_sort(struct advice_order *order, const struct advice_view *views);
/* Tokens that need no computing in this order. */
uint64_t advice_order_cached(const struct advice_order *order, const struct advice_view *views,
                             size_t tokens_min);
/* Tokens from position `from` on that two views have in common. */
size_t advice_common(const struct advice_view *a, const struct advice_view *b, size_t from);

/* advice_grams.c: samples of a prompt, the same wherever they stand in it */
enum { GRAM_TOKENS = 32, GRAM_WINDOW = ADVICE_RUN_TOKENS - GRAM_TOKENS + 1 };
struct gram_scan {
    const int32_t *tokens;
    size_t n;
    size_t first, at; /* grams hashed: [first, at) */
    size_t best;      /* the sample of the current window */
    bool has_best;
    uint64_t seed;
    uint64_t rolling;
    uint64_t ring[GRAM_WINDOW];
};
void gram_scan_begin(struct gram_scan *scan, const struct advice_view *view, size_t from);
/* The next sample's first token and hash; every GRAM_WINDOW grams in a row have one. */
bool gram_scan_next(struct gram_scan *scan, size_t *position, uint64_t *hash);

struct gram_slot {
    uint64_t hash; /* 0: free */
    uint32_t prompt, position;
};
struct gram_table {
    struct gram_slot *slots;
    size_t capacity, length; /* a power of two */
    uint64_t mask;           /* samples with any of these bits are left out */
};
int gram_table_init(struct gram_table *table, uint64_t n_tokens, struct err *e);
void gram_table_fini(struct gram_table *table);
/* Who had the sample first; NULL: nobody, and the table has it now if there was room. */
const struct gram_slot *gram_table_add(struct gram_table *table, uint64_t hash, uint32_t prompt,
                                       uint32_t position);

/* advice_groups.c */
enum { ADVICE_NONE = -1 };
struct advice_group {
    uint32_t leader, example; /* example: a member whose piece differs */
    uint32_t start, end;      /* of the piece in the leader */
    uint64_t gain;            /* runs that broke; only to choose what is counted */
    int32_t pattern;
};
struct advice_member {
    int32_t group; /* or ADVICE_NONE */
    int32_t shift; /* of what follows the piece, against the leader */
    int32_t leads; /* the group it leads, or ADVICE_NONE */
};
struct advice_groups {
    struct advice_group *groups;
    struct advice_member *members; /* [n] */
    size_t n_groups, capacity;
};
/* Views in sorted order; lcp as of their order. */
int advice_groups_find(struct advice_groups *g, const struct advice_view *views,
                       const uint32_t *lcp, size_t n, struct err *e);
void advice_groups_fini(struct advice_groups *g);
/* Where the piece ends in a view that is shifted against the group's leader. */
uint32_t advice_piece_end(const struct advice_group *group, const struct advice_view *view,
                          int32_t shift);

#endif
