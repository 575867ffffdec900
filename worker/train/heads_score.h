/*
 * How good heads are, counted over positions whose true continuation is known: how often the
 * label of each rank was right, and how many tokens a step would have yielded.
 *
 * A step yields the token that the model draws itself and what heads guessed behind it as far
 * as it comes true: with a chain, the first ranks one after the other; with a tree, as far as a
 * path of the tree follows the labels. What heads have in common is thereby counted, which
 * multiplying their accuracies would miss.
 */
#ifndef SHEAF_HEADS_SCORE_H
#define SHEAF_HEADS_SCORE_H

#include <stddef.h>
#include <stdint.h>

#include "model/heads.h"

enum { SCORE_TREE_NODES = 8, SCORE_TOP = 5 };

/* Zeroed is empty but for n_heads. */
struct heads_score {
    size_t n_heads;
    uint64_t n_labels[HEADS_MAX];
    uint64_t hits[HEADS_MAX][HEADS_RANKS]; /* label had this rank */
};

/* ranks[i]: of head i's label; HEADS_RANKS or more: too low, or outside the draft vocabulary.
 * The first n_known heads have a label. */
void heads_score_add(struct heads_score *s, const int32_t *ranks, size_t n_known);
double heads_score_accuracy(const struct heads_score *s, size_t head, size_t rank);
double heads_score_top(const struct heads_score *s, size_t head, size_t n_ranks);

/* The paths of ranks whose guesses come true most often by the heads' accuracies, best first: a
 * node is a rank below another node, or below the root (-1). */
struct score_tree {
    size_t n_nodes;
    struct score_node {
        int parent;
        size_t depth; /* the head, from 0 */
        size_t rank;
        double value;
    } nodes[SCORE_TREE_NODES];
};
void score_tree_build(const struct heads_score *s, size_t n_nodes_max, struct score_tree *out);
/* Tokens that a step yields at a position where the labels have these ranks. */
size_t score_tree_tokens(const struct score_tree *tree, const int32_t *ranks, size_t n_known);
size_t score_chain_tokens(const int32_t *ranks, size_t n_known);

#endif
