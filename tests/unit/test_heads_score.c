/* Trees and yields of heads, worked out by hand. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "train/heads_score.h"

/* Of 10 positions head 1 has rank 0 six times, rank 1 twice, rank 5 once; head 2 has rank 0
 * five times, rank 1 once. */
static struct heads_score example(void)
{
    static const int32_t ranks[10][2] = {{0, 0}, {0, 0}, {0, 0}, {0, 1},           {0, 8},
                                         {0, 8}, {1, 0}, {1, 8}, {5, HEADS_RANKS}, {99, 0}};
    struct heads_score s = {.n_heads = 2};
    for (int i = 0; i < 10; i++)
        heads_score_add(&s, ranks[i], 2);
    return s;
}

static void shares_are_of_the_labels_that_are_known(void **state)
{
    (void)state;
    struct heads_score s = example();
    assert_true(fabs(heads_score_top(&s, 0, 1) - 0.6) < 1e-12);
    assert_true(fabs(heads_score_top(&s, 0, 5) - 0.8) < 1e-12);
    assert_true(fabs(heads_score_top(&s, 0, 8) - 0.9) < 1e-12);
    assert_true(fabs(heads_score_top(&s, 1, 1) - 0.5) < 1e-12);
    heads_score_add(&s, (const int32_t[]){0, 0}, 1); /* the text ends before head 2's */
    assert_int_equal(s.n_labels[0], 11);
    assert_int_equal(s.n_labels[1], 10);
}

/* Values: head 1's rank 0 0.6, below it 0.3 (rank 0) and 0.06 (rank 1); rank 1 0.2, below it
 * 0.1 and 0.02; rank 5 comes after rank 2, which is worth nothing. */
static void trees_take_the_best_paths_first(void **state)
{
    (void)state;
    const struct heads_score s = example();
    struct score_tree tree;
    score_tree_build(&s, SCORE_TREE_NODES, &tree);
    static const double values[] = {0.6, 0.3, 0.2, 0.1, 0.06, 0.02};
    assert_int_equal(tree.n_nodes, 6);
    for (size_t i = 0; i < 6; i++)
        assert_true(fabs(tree.nodes[i].value - values[i]) < 1e-12);
    assert_int_equal(tree.nodes[1].parent, 0);
    assert_int_equal(tree.nodes[3].parent, 2);
    score_tree_build(&s, 3, &tree);
    assert_int_equal(tree.n_nodes, 3);
    assert_int_equal(score_tree_tokens(&tree, (const int32_t[]){0, 0}, 2), 3);
    assert_int_equal(score_tree_tokens(&tree, (const int32_t[]){0, 1}, 2), 2);
    assert_int_equal(score_tree_tokens(&tree, (const int32_t[]){1, 0}, 2), 2);
    assert_int_equal(score_tree_tokens(&tree, (const int32_t[]){2, 0}, 2), 1);
    assert_int_equal(score_tree_tokens(&tree, (const int32_t[]){0, 0}, 1), 2);
}

static void chains_follow_first_ranks(void **state)
{
    (void)state;
    assert_int_equal(score_chain_tokens((const int32_t[]){0, 0}, 2), 3);
    assert_int_equal(score_chain_tokens((const int32_t[]){0, 1}, 2), 2);
    assert_int_equal(score_chain_tokens((const int32_t[]){1, 0}, 2), 1);
    assert_int_equal(score_chain_tokens((const int32_t[]){0, 0}, 0), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shares_are_of_the_labels_that_are_known),
        cmocka_unit_test(trees_take_the_best_paths_first),
        cmocka_unit_test(chains_follow_first_ranks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
