#include "engine/automaton_int.h"

#include <stdlib.h>

#include "base/check.h"
#include "base/size.h"

struct automaton *automaton_share(struct automaton *a)
{
    a->n_references++;
    return a;
}

void automaton_close(struct automaton *a)
{
    if (!a || --a->n_references > 0)
        return;
    free(a->states);
    free(a->edges);
    free(a);
}

bool automaton_is_shared(const struct automaton *a)
{
    return a->n_references > 1;
}

size_t automaton_bytes(const struct automaton *a)
{
    return a->bytes;
}

size_t automaton_n_states(const struct automaton *a)
{
    return a->n_states;
}

const struct automaton_state *automaton_state_at(const struct automaton *a, uint32_t state)
{
    ASSERT(state < a->n_states);
    return &a->states[state];
}

const struct automaton_edge *automaton_edges(const struct automaton *a, uint32_t state,
                                             size_t *n)
{
    ASSERT(state < a->n_states);
    const uint32_t begin = a->states[state].edges_begin;
    *n = a->states[state + 1].edges_begin - begin;
    return a->edges + begin;
}

uint32_t automaton_step(const struct automaton *a, uint32_t state, int32_t token)
{
    size_t n;
    const struct automaton_edge *edges = automaton_edges(a, state, &n);
    const size_t n_best = size_min(n, AUTOMATON_BEST_EDGES);
    for (size_t i = 0; i < n_best; i++)
        if (edges[i].token == token)
            return edges[i].target;
    size_t low = n_best, high = n;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        if (edges[middle].token < token)
            low = middle + 1;
        else
            high = middle;
    }
    return low < n && edges[low].token == token ? edges[low].target : AUTOMATON_NONE;
}

void automaton_advance(const struct automaton *a, struct automaton_cursor *c, int32_t token)
{
    for (;;) {
        const uint32_t target = automaton_step(a, c->state, token);
        if (target != AUTOMATON_NONE) {
            c->state = target;
            c->length++;
            return;
        }
        if (c->state == AUTOMATON_ROOT)
            return;
        c->state = a->states[c->state].link;
        c->length = a->states[c->state].length;
    }
}
