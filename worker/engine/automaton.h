/*
 * A suffix automaton over token ids: every run of tokens that occurs in a text leads from the
 * root to one state, and a state knows how often and where its runs occur and what follows
 * them. It is built once over a document or a prompt and never changes, so any number of
 * sequences may walk through it, each with a cursor that holds the longest run at the end of
 * its own tokens that the text has too.
 *
 *     text  a b a c         root --a--> 1 (2 times) --b--> 2 (once) --a--> 3 --c--> 4
 *     after x a b           root --b--> 2    root --c--> 4     1 --c--> 4
 *     the cursor is at 2, length 2: "a b" occurred once, then came "a"
 *
 * A state stands for all runs that end at the same places. They are suffixes of its longest;
 * the link leads to the state of the longest suffix that occurs at more places. A text of n
 * tokens has at most 2n states and 3n edges.
 *
 * Ids below 0 are breaks: they are matched like tokens, and whoever proposes tokens stops at
 * them.
 *
 * Thread: any may read; share and close belong to one.
 */
#ifndef SHEAF_AUTOMATON_H
#define SHEAF_AUTOMATON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

struct automaton;

enum { AUTOMATON_ROOT = 0, AUTOMATON_NONE = 0, AUTOMATON_BREAK = -1 };
/* The edges most often taken stand first. */
enum { AUTOMATON_BEST_EDGES = 4 };

/* Zeroed: nothing matched. */
struct automaton_cursor {
    uint32_t state;
    uint32_t length; /* of the match, in tokens */
};

struct automaton_edge {
    int32_t token;
    uint32_t target;
};

struct automaton_state {
    uint32_t edges_begin;
    uint32_t length; /* of the longest run */
    uint32_t link;
    uint32_t count;     /* places in the text where the runs end */
    uint32_t first_end; /* index of the last token of the first occurrence */
};

/* What building over so many tokens takes at most; what is kept is less than half of it. */
size_t automaton_bytes_max(size_t n_tokens);

/* Built with one reference. n_tokens may be 0. ERR_LIMIT when bytes_max is less than
 * automaton_bytes_max(n_tokens), ERR_NOMEM. */
int automaton_open(const int32_t *tokens, size_t n_tokens, size_t bytes_max,
                   struct automaton **out, struct err *e);
/* One reference more; returns a. */
struct automaton *automaton_share(struct automaton *a);
/* One reference less; the last frees it. Accepts NULL. */
void automaton_close(struct automaton *a);

bool automaton_is_shared(const struct automaton *a); /* has more than one reference */

size_t automaton_bytes(const struct automaton *a); /* kept */
size_t automaton_n_states(const struct automaton *a);
const struct automaton_state *automaton_state_at(const struct automaton *a, uint32_t state);
/* The AUTOMATON_BEST_EDGES most frequent first, the most frequent of them first, of equals the
 * one that occurred first; then the rest by token. */
const struct automaton_edge *automaton_edges(const struct automaton *a, uint32_t state,
                                             size_t *n);

/* The state behind an edge, or AUTOMATON_NONE: no edge leads to the root. */
uint32_t automaton_step(const struct automaton *a, uint32_t state, int32_t token);
/* The sequence got one token longer. Amortised constant, but for the search among the edges. */
void automaton_advance(const struct automaton *a, struct automaton_cursor *c, int32_t token);

#endif
