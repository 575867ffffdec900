#include "train/heads_score.h"

#include <stdbool.h>

void heads_score_add(struct heads_score *s, const int32_t *ranks, size_t n_known)
{
    for (size_t i = 0; i < s->n_heads && i < n_known; i++) {
        s->n_labels[i]++;
        if (ranks[i] < HEADS_RANKS)
            s->hits[i][ranks[i]]++;
    }
}

double heads_score_accuracy(const struct heads_score *s, size_t head, size_t rank)
{
    return s->n_labels[head] ? (double)s->hits[head][rank] / (double)s->n_labels[head] : 0;
}

double heads_score_top(const struct heads_score *s, size_t head, size_t n_ranks)
{
    double sum = 0;
    for (size_t rank = 0; rank < n_ranks && rank < HEADS_RANKS; rank++)
        sum += heads_score_accuracy(s, head, rank);
    return sum;
}

static int find_child(const struct score_tree *tree, int parent, size_t rank)
{
    for (size_t i = 0; i < tree->n_nodes; i++)
        if (tree->nodes[i].parent == parent && tree->nodes[i].rank == rank)
            return (int)i;
    return -1;
}

static size_t count_children(const struct score_tree *tree, int parent)
{
    size_t n = 0;
    for (size_t i = 0; i < tree->n_nodes; i++)
        n += tree->nodes[i].parent == parent;
    return n;
}

/* The best node that could be added below this one: its next rank of the next head. */
static bool next_child(const struct heads_score *s, const struct score_tree *tree, int parent,
                       struct score_node *out)
{
    const size_t depth = parent < 0 ? 0 : tree->nodes[parent].depth + 1;
    const size_t rank = count_children(tree, parent);
    if (depth >= s->n_heads || rank >= HEADS_RANKS)
        return false;
    const double above = parent < 0 ? 1 : tree->nodes[parent].value;
    *out = (struct score_node){.parent = parent,
                               .depth = depth,
                               .rank = rank,
                               .value = above * heads_score_accuracy(s, depth, rank)};
    return out->value > 0;
}

void score_tree_build(const struct heads_score *s, size_t n_nodes_max, struct score_tree *out)
{
    *out = (struct score_tree){0};
    while (out->n_nodes < n_nodes_max && out->n_nodes < SCORE_TREE_NODES) {
        struct score_node best = {.value = 0}, node;
        for (int parent = -1; parent < (int)out->n_nodes; parent++)
            if (next_child(s, out, parent, &node) && node.value > best.value)
                best = node;
        if (best.value == 0)
            return;
        out->nodes[out->n_nodes++] = best;
    }
}

size_t score_tree_tokens(const struct score_tree *tree, const int32_t *ranks, size_t n_known)
{
    int node = -1;
    size_t depth = 0;
    while (depth < n_known && ranks[depth] < HEADS_RANKS) {
        node = find_child(tree, node, (size_t)ranks[depth]);
        if (node < 0)
            break;
        depth++;
    }
    return 1 + depth;
}

size_t score_chain_tokens(const int32_t *ranks, size_t n_known)
{
    size_t depth = 0;
    while (depth < n_known && ranks[depth] == 0)
        depth++;
    return 1 + depth;
}
