/* What building an automaton and reading it share. */
#ifndef SHEAF_AUTOMATON_INT_H
#define SHEAF_AUTOMATON_INT_H

#include "engine/automaton.h"

/* Edges of state s: edges[states[s].edges_begin, states[s + 1].edges_begin). */
struct automaton {
    size_t n_references;
    size_t n_states;
    size_t n_edges;
    size_t bytes;
    struct automaton_state *states; /* [n_states + 1] */
    struct automaton_edge *edges;   /* [n_edges] */
};

#endif
