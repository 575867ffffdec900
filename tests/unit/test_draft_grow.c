/* Growing a trie from a source whose children are drawn from a seed. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/rng.h"
#include "engine/draft_grow.h"

enum { DEPTH_MAX = 6 };

/* A place is a seed of its own; children of a place are always the same. */
static size_t drawn_children(const void *context, uint64_t place, unsigned depth,
                             struct draft_child out[DRAFT_CHILDREN_MAX])
{
    const uint64_t seed = *(const uint64_t *)context;
    if (depth > DEPTH_MAX)
        return 0;
    const size_t n = (size_t)(rng_uniform(seed, place, 0) * (DRAFT_CHILDREN_MAX + 1));
    for (size_t i = 0; i < n; i++)
        out[i] = (struct draft_child){.token = (int32_t)i,
                                      .p = 0.01 + 0.3 * rng_uniform(seed, place, 1 + i),
                                      .place = place * 5 + i + 1};
    return n;
}

/* The probabilities of all paths there are, by brute force. */
static size_t all_paths(const void *context, uint64_t place, unsigned depth, double path,
                        double *out, size_t n)
{
    struct draft_child children[DRAFT_CHILDREN_MAX];
    const size_t n_children = drawn_children(context, place, depth, children);
    for (size_t i = 0; i < n_children; i++) {
        out[n++] = path * children[i].p;
        n = all_paths(context, children[i].place, depth + 1, path * children[i].p, out, n);
    }
    return n;
}

static int falling(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x < y) - (x > y);
}

static void the_likeliest_paths_are_taken(void **state)
{
    (void)state;
    static double paths[6000];
    for (uint64_t seed = 1; seed < 200; seed++) {
        const struct draft_grower g = {DRAFT_RECYCLE, drawn_children, &seed};
        const struct draft_limits limits = {seed % 70, seed % 3 ? 0.005 : 0};
        struct draft d = {0};
        draft_grow(&d, &g, 1, &limits);
        assert_true(draft_check(&d));
        size_t n = all_paths(&seed, 1, 1, 1, paths, 0);
        qsort(paths, n, sizeof paths[0], falling);
        while (n > 0 && paths[n - 1] < limits.p_min)
            n--;
        n = n < limits.n_nodes ? n : limits.n_nodes;
        n = n < DRAFT_NODES_MAX ? n : DRAFT_NODES_MAX;
        assert_int_equal(d.n_nodes, n);
        double grown[DRAFT_NODES_MAX];
        for (size_t i = 0; i < n; i++) {
            const int parent = d.nodes[i].parent;
            grown[i] = (parent == DRAFT_ROOT ? 1 : grown[parent]) * (double)d.nodes[i].p;
            assert_true(fabs(grown[i] - paths[i]) <= 1e-5 * paths[i]);
        }
    }
}

static void what_another_source_added_is_merged(void **state)
{
    (void)state;
    uint64_t seed = 5;
    const struct draft_grower g = {DRAFT_LOOKUP, drawn_children, &seed};
    const struct draft_limits limits = {20, 0};
    struct draft alone = {0}, both = {0};
    draft_grow(&alone, &g, 1, &limits);
    assert_true(alone.n_nodes > 3);
    draft_add(&both, DRAFT_ROOT, alone.nodes[0].token, DRAFT_MEDUSA, 0.5f);
    draft_grow(&both, &g, 1, &limits);
    assert_int_equal(both.n_nodes, alone.n_nodes);
    assert_int_equal(both.nodes[0].sources, 1 << DRAFT_LOOKUP | 1 << DRAFT_MEDUSA);
    assert_true(both.nodes[0].p > alone.nodes[0].p);
}

static void siblings_do_not_sum_to_more_than_they_may(void **state)
{
    (void)state;
    struct draft d = {0};
    draft_add(&d, DRAFT_ROOT, 1, DRAFT_LOOKUP, 0.9f);
    draft_add(&d, DRAFT_ROOT, 2, DRAFT_RECYCLE, 0.6f);
    draft_add(&d, 0, 3, DRAFT_LOOKUP, 0.5f);
    draft_add(&d, 0, 4, DRAFT_LOOKUP, 0.4f);
    draft_bound_siblings(&d);
    assert_true(fabs((double)d.nodes[0].p - 0.9 * 0.95 / 1.5) < 1e-6);
    assert_true(fabs((double)d.nodes[1].p - 0.6 * 0.95 / 1.5) < 1e-6);
    assert_true(d.nodes[2].p == 0.5f && d.nodes[3].p == 0.4f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_likeliest_paths_are_taken),
        cmocka_unit_test(what_another_source_added_is_merged),
        cmocka_unit_test(siblings_do_not_sum_to_more_than_they_may),
    };
    return cmocka_run_group_tests_name("draft_grow", tests, NULL, NULL);
}
