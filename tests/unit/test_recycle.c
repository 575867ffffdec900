/* The table of successors: rows by a list kept by hand, trees by what the rows say. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "engine/recycle.h"

enum { V = 40 };

/* Written so that NaN fails. */
static void assert_near(double x, double expected, double tolerance)
{
    assert_true(fabs(x - expected) <= tolerance);
}

static struct recycle *open(void)
{
    struct recycle *r = NULL;
    assert_int_equal(recycle_open(V, &r, NULL), 0);
    return r;
}

static void assert_row(const struct recycle *r, int32_t token, const int32_t *ids, size_t n)
{
    for (size_t i = 0; i < RECYCLE_WIDTH; i++)
        assert_int_equal(recycle_row(r, token)[i], i < n ? ids[i] : RECYCLE_NONE);
}

static void a_drawn_token_moves_to_the_front(void **state)
{
    (void)state;
    struct recycle *r = open();
    static int32_t latest[2000];
    assert_row(r, 3, latest, 0);
    for (size_t n = 0; n < 2000; n++) {
        const int32_t next = (int32_t)(rng_uniform(5, 1, n) * 14);
        recycle_follow(r, 3, next, NULL);
        latest[n] = next;
        int32_t expected[RECYCLE_WIDTH]; /* the latest different ones */
        size_t n_expected = 0;
        for (size_t i = n + 1; i-- > 0 && n_expected < RECYCLE_WIDTH;) {
            size_t k = 0;
            while (k < n_expected && expected[k] != latest[i])
                k++;
            if (k == n_expected)
                expected[n_expected++] = latest[i];
        }
        assert_row(r, 3, expected, n_expected);
    }
    assert_row(r, 4, latest, 0);
    recycle_close(r);
    recycle_close(NULL);
}

static void a_chain_that_came_true_is_proposed_again(void **state)
{
    (void)state;
    struct recycle *r = open();
    struct spec_stats stats;
    spec_stats_init(&stats);
    recycle_set_priors(&stats);
    for (int round = 0; round < 50; round++)
        for (int32_t t = 0; t < 5; t++)
            recycle_follow(r, t, (t + 1) % 5, &stats);
    struct draft d = {0};
    recycle_propose(r, 2, &(struct draft_limits){8, 0.01}, &stats, &d);
    assert_int_equal(d.n_nodes, RECYCLE_DEPTH_MAX);
    for (size_t i = 0; i < d.n_nodes; i++) {
        assert_int_equal(d.nodes[i].token, (3 + i) % 5);
        assert_int_equal(d.nodes[i].parent, (int)i - 1);
        assert_int_equal(d.nodes[i].sources, 1 << DRAFT_RECYCLE);
        assert_true((double)d.nodes[i].p > 0.9);
    }
    /* Once something else has come, its row is less sure. */
    recycle_follow(r, 2, 30, NULL);
    recycle_follow(r, 2, 3, NULL);
    struct draft less = {0};
    recycle_propose(r, 2, &(struct draft_limits){8, 0.01}, &stats, &less);
    assert_int_equal(less.nodes[draft_find(&less, DRAFT_ROOT, 3)].token, 3);
    assert_true(less.nodes[draft_find(&less, DRAFT_ROOT, 3)].p < d.nodes[0].p);
    recycle_close(r);
}

static void a_tree_says_what_the_rows_say(void **state)
{
    (void)state;
    struct recycle *r = open();
    struct spec_stats stats;
    spec_stats_init(&stats);
    recycle_set_priors(&stats);
    int32_t token = 0;
    for (uint64_t i = 0; i < 3000; i++) {
        const double u = rng_uniform(9, 2, i);
        const int32_t next = (int32_t)(u * u * u * V);
        recycle_follow(r, token, next, &stats);
        token = next;
        struct draft d = {0};
        const size_t n = i % 40;
        recycle_propose(r, token, &(struct draft_limits){n, 0.001}, &stats, &d);
        assert_true(d.n_nodes <= n);
        assert_true(draft_check(&d));
        double path[DRAFT_NODES_MAX];
        for (size_t k = 0; k < d.n_nodes; k++) {
            const struct draft_node *node = &d.nodes[k];
            const bool is_top = node->parent == DRAFT_ROOT;
            const int32_t *row = recycle_row(r, is_top ? token : d.nodes[node->parent].token);
            size_t rank = 0;
            while (rank < DRAFT_CHILDREN_MAX && row[rank] != node->token)
                rank++;
            assert_true(rank < DRAFT_CHILDREN_MAX);
            path[k] = (is_top ? 1 : path[node->parent]) * (double)node->p;
            assert_true(path[k] >= 0.00099 && (k == 0 || path[k] <= path[k - 1] * 1.00001));
        }
    }
    recycle_close(r);
}

/* The row's first n are these; none was drawn before in a row. */
static void make_row(struct recycle *r, int32_t token, const int32_t *ids, size_t n)
{
    for (size_t i = n; i-- > 0;)
        recycle_follow(r, token, ids[i], NULL);
}

/* Drawn are the first successor seven times of ten, any other else. */
static void offers_teach_how_sure_a_rank_is(void **state)
{
    (void)state;
    struct recycle *r = open();
    struct spec_stats stats;
    spec_stats_init(&stats);
    recycle_set_priors(&stats);
    const int32_t row[4] = {10, 11, 12, 13};
    for (uint64_t i = 0; i < 20000; i++) {
        make_row(r, 1, row, 4);
        const double u = rng_uniform(4, 4, i);
        recycle_follow(r, 1, u < 0.7 ? 10 : u < 0.9 ? 11 : 20, &stats);
    }
    make_row(r, 1, row, 4);
    struct draft d = {0};
    recycle_propose(r, 1, &(struct draft_limits){8, 0.001}, &stats, &d);
    assert_int_equal(d.nodes[0].token, 10);
    assert_near((double)d.nodes[0].p, 0.7, 0.06);
    assert_int_equal(d.nodes[1].token, 11);
    assert_near((double)d.nodes[1].p, 0.2, 0.06);
    recycle_close(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_drawn_token_moves_to_the_front),
        cmocka_unit_test(a_chain_that_came_true_is_proposed_again),
        cmocka_unit_test(a_tree_says_what_the_rows_say),
        cmocka_unit_test(offers_teach_how_sure_a_rank_is),
    };
    return cmocka_run_group_tests_name("recycle", tests, NULL, NULL);
}
