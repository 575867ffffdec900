/*
 * Building a suffix automaton: the online construction of Blumer et al. (1985), then one pass
 * that counts occurrences and lays states and edges out for reading.
 *
 * While building, all edges live in one hash table of (state, token), whose size is known
 * beforehand, so that a slot never moves; the slots of a state are also a list, which cloning
 * a state copies.
 */
#include "engine/automaton_int.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/hash.h"
#include "base/limits.h"
#include "base/size.h"

static const uint32_t NO_SLOT = UINT32_MAX;
static const uint32_t NO_STATE = UINT32_MAX;

/* target AUTOMATON_NONE: free. */
struct slot {
    uint32_t state;
    int32_t token;
    uint32_t target;
    uint32_t next; /* of the same state, or NO_SLOT */
};

struct node {
    uint32_t length;
    uint32_t link;
    uint32_t slots; /* the state's first, or NO_SLOT */
    uint32_t count;
    uint32_t first_end;
};

struct builder {
    struct node *nodes; /* [states_max] */
    size_t n_nodes;
    struct slot *slots; /* [1 << n_slot_bits] */
    unsigned n_slot_bits;
    size_t n_edges;
    uint32_t last;       /* state of the whole text so far */
    uint32_t *by_length; /* [states_max] */
    uint32_t *ends;      /* [n_tokens + 2] */
};

static size_t states_max(size_t n_tokens)
{
    return 2 * n_tokens + 1;
}

/* At most three quarters full: 3n edges. */
static unsigned slot_bits_for(size_t n_tokens)
{
    unsigned bits = 3;
    while ((size_t)1 << bits < 4 * n_tokens)
        bits++;
    return bits;
}

static size_t bytes_kept(size_t n_states, size_t n_edges)
{
    return sizeof(struct automaton) + (n_states + 1) * sizeof(struct automaton_state) +
           n_edges * sizeof(struct automaton_edge);
}

size_t automaton_bytes_max(size_t n_tokens)
{
    const size_t n_states = states_max(n_tokens);
    return sizeof(struct slot) * ((size_t)1 << slot_bits_for(n_tokens)) +
           (sizeof(struct node) + sizeof(uint32_t)) * n_states +
           sizeof(uint32_t) * (n_tokens + 2) + bytes_kept(n_states, 3 * n_tokens);
}

/* -> the slot of the edge, or the free one where it belongs */
static struct slot *find(const struct builder *b, uint32_t state, int32_t token)
{
    const size_t mask = ((size_t)1 << b->n_slot_bits) - 1;
    size_t i = (size_t)(hash_pair(state, (uint32_t)token) >> (64 - b->n_slot_bits));
    while (b->slots[i].target != AUTOMATON_NONE &&
           (b->slots[i].state != state || b->slots[i].token != token))
        i = (i + 1) & mask;
    return &b->slots[i];
}

static void fill(struct builder *b, struct slot *slot, uint32_t state, int32_t token,
                 uint32_t target)
{
    *slot = (struct slot){state, token, target, b->nodes[state].slots};
    b->nodes[state].slots = (uint32_t)(slot - b->slots);
    b->n_edges++;
}

static uint32_t add_node(struct builder *b, uint32_t length, uint32_t link, uint32_t first_end)
{
    const uint32_t state = (uint32_t)b->n_nodes++;
    b->nodes[state] =
        (struct node){.length = length, .link = link, .slots = NO_SLOT, .first_end = first_end};
    return state;
}

/* A state for those runs of q that are no longer than the edge into it from p allows. */
static uint32_t clone(struct builder *b, uint32_t p, uint32_t q, int32_t token)
{
    const struct node *old = &b->nodes[q];
    const uint32_t new = add_node(b, b->nodes[p].length + 1, old->link, old->first_end);
    for (uint32_t i = old->slots; i != NO_SLOT; i = b->slots[i].next) {
        const int32_t other = b->slots[i].token;
        fill(b, find(b, new, other), new, other, b->slots[i].target);
    }
    for (; p != NO_STATE; p = b->nodes[p].link) {
        struct slot *slot = find(b, p, token);
        if (slot->target != q)
            break;
        slot->target = new;
    }
    b->nodes[q].link = new;
    return new;
}

static void append(struct builder *b, int32_t token, uint32_t position)
{
    const uint32_t new = add_node(b, position + 1, AUTOMATON_ROOT, position);
    b->nodes[new].count = 1;
    uint32_t p = b->last;
    uint32_t q = AUTOMATON_NONE;
    while (p != NO_STATE) {
        struct slot *slot = find(b, p, token);
        if (slot->target != AUTOMATON_NONE) {
            q = slot->target;
            break;
        }
        fill(b, slot, p, token, new);
        p = b->nodes[p].link;
    }
    if (p != NO_STATE) {
        const bool is_longest = b->nodes[p].length + 1 == b->nodes[q].length;
        b->nodes[new].link = is_longest ? q : clone(b, p, q, token);
    }
    b->last = new;
}

/* Longer states first: what occurs, its suffixes do at the same places too. */
static void count_occurrences(struct builder *b, size_t n_tokens)
{
    memset(b->ends, 0, (n_tokens + 2) * sizeof b->ends[0]);
    for (size_t i = 0; i < b->n_nodes; i++)
        b->ends[b->nodes[i].length + 1]++;
    for (size_t i = 0; i <= n_tokens; i++)
        b->ends[i + 1] += b->ends[i];
    for (size_t i = 0; i < b->n_nodes; i++)
        b->by_length[b->ends[b->nodes[i].length]++] = (uint32_t)i;
    for (size_t i = b->n_nodes; i-- > 1;) { /* by_length[0] is the root, which has no link */
        const struct node *node = &b->nodes[b->by_length[i]];
        b->nodes[node->link].count += node->count;
    }
}

static bool is_better(const struct automaton *a, const struct automaton_edge *x,
                      const struct automaton_edge *y)
{
    const struct automaton_state *sx = &a->states[x->target], *sy = &a->states[y->target];
    if (sx->count != sy->count)
        return sx->count > sy->count;
    return sx->first_end < sy->first_end;
}

static int compare_tokens(const void *a, const void *b)
{
    const int32_t x = ((const struct automaton_edge *)a)->token;
    const int32_t y = ((const struct automaton_edge *)b)->token;
    return (x > y) - (x < y);
}

static void sort_edges(const struct automaton *a, struct automaton_edge *edges, size_t n)
{
    const size_t n_best = size_min(n, AUTOMATON_BEST_EDGES);
    for (size_t i = 0; i < n_best; i++) {
        size_t best = i;
        for (size_t k = i + 1; k < n; k++)
            if (is_better(a, &edges[k], &edges[best]))
                best = k;
        const struct automaton_edge swapped = edges[i];
        edges[i] = edges[best];
        edges[best] = swapped;
    }
    if (n - n_best > 1)
        qsort(edges + n_best, n - n_best, sizeof edges[0], compare_tokens);
}

static void lay_out(const struct builder *b, struct automaton *a)
{
    uint32_t n_edges = 0;
    for (size_t i = 0; i < b->n_nodes; i++) {
        const struct node *node = &b->nodes[i];
        a->states[i] = (struct automaton_state){
            n_edges, node->length, node->link == NO_STATE ? AUTOMATON_ROOT : node->link,
            node->count, node->first_end};
        for (uint32_t k = node->slots; k != NO_SLOT; k = b->slots[k].next)
            a->edges[n_edges++] =
                (struct automaton_edge){b->slots[k].token, b->slots[k].target};
    }
    a->states[b->n_nodes].edges_begin = n_edges;
    for (size_t i = 0; i < b->n_nodes; i++) {
        const uint32_t begin = a->states[i].edges_begin;
        sort_edges(a, a->edges + begin, a->states[i + 1].edges_begin - begin);
    }
}

static struct automaton *freeze(const struct builder *b)
{
    struct automaton *a = calloc(1, sizeof *a);
    if (!a)
        return NULL;
    a->n_references = 1;
    a->n_states = b->n_nodes;
    a->n_edges = b->n_edges;
    a->bytes = bytes_kept(b->n_nodes, b->n_edges);
    a->states = calloc(b->n_nodes + 1, sizeof a->states[0]);
    a->edges = calloc(b->n_edges + 1, sizeof a->edges[0]);
    if (!a->states || !a->edges) {
        automaton_close(a);
        return NULL;
    }
    lay_out(b, a);
    return a;
}

static struct automaton *build(struct builder *b, const int32_t *tokens, size_t n_tokens)
{
    b->n_slot_bits = slot_bits_for(n_tokens);
    b->nodes = malloc(states_max(n_tokens) * sizeof b->nodes[0]);
    b->slots = calloc((size_t)1 << b->n_slot_bits, sizeof b->slots[0]);
    b->by_length = malloc(states_max(n_tokens) * sizeof b->by_length[0]);
    b->ends = malloc((n_tokens + 2) * sizeof b->ends[0]);
    if (!b->nodes || !b->slots || !b->by_length || !b->ends)
        return NULL;
    b->last = add_node(b, 0, NO_STATE, 0);
    for (size_t i = 0; i < n_tokens; i++)
        append(b, tokens[i], (uint32_t)i);
    ASSERT(b->n_nodes <= states_max(n_tokens) && b->n_edges <= 3 * n_tokens);
    count_occurrences(b, n_tokens);
    return freeze(b);
}

int automaton_open(const int32_t *tokens, size_t n_tokens, size_t bytes_max,
                   struct automaton **out, struct err *e)
{
    *out = NULL;
    if (n_tokens > MODEL_CONTEXT_MAX || automaton_bytes_max(n_tokens) > bytes_max)
        return ERR_SET(e, ERR_LIMIT, "an index over %zu tokens takes more than %zu bytes",
                       n_tokens, bytes_max);
    struct builder b = {0};
    *out = build(&b, tokens, n_tokens);
    free(b.nodes);
    free(b.slots);
    free(b.by_length);
    free(b.ends);
    if (!*out)
        return ERR_SET(e, ERR_NOMEM, "no memory for an index over %zu tokens", n_tokens);
    return 0;
}
