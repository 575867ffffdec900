/* Drafts as tries: adding, merging, ordering, cutting. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "engine/draft.h"

static void siblings_with_one_token_are_one_node(void **state)
{
    (void)state;
    struct draft d = {.n_nodes = 0};
    const int a = draft_add(&d, DRAFT_ROOT, 7, DRAFT_LOOKUP, 0.5f);
    const int below = draft_add(&d, a, 7, DRAFT_LOOKUP, 0.25f);
    assert_int_equal(a, 0);
    assert_int_equal(below, 1);
    assert_int_equal(draft_add(&d, DRAFT_ROOT, 7, DRAFT_RECYCLE, 0.5f), a);
    assert_int_equal(d.n_nodes, 2);
    assert_int_equal(d.nodes[a].sources, 1 << DRAFT_LOOKUP | 1 << DRAFT_RECYCLE);
    assert_true(d.nodes[a].p == 0.75f); /* either of two halves */
    draft_add(&d, DRAFT_ROOT, 7, DRAFT_LOOKUP, 0.5f);
    assert_true(d.nodes[a].p == 0.75f);
    draft_add(&d, DRAFT_ROOT, 7, DRAFT_LOOKUP, 0.875f);
    assert_true(d.nodes[a].p == 0.875f);
    assert_int_equal(d.nodes[a].depth, 1);
    assert_int_equal(d.nodes[below].depth, 2);
    assert_true(draft_check(&d));
}

static void a_full_draft_takes_no_more_but_still_merges(void **state)
{
    (void)state;
    struct draft d = {.n_nodes = 0};
    for (int i = 0; i < DRAFT_NODES_MAX; i++)
        assert_int_equal(draft_add(&d, i - 1, 5, DRAFT_SELF, 1), i);
    assert_int_equal(d.nodes[DRAFT_NODES_MAX - 1].depth, DRAFT_NODES_MAX);
    assert_int_equal(draft_add(&d, DRAFT_ROOT, 6, DRAFT_SELF, 1), DRAFT_NONE);
    assert_int_equal(draft_add(&d, 0, 5, DRAFT_MODEL, 1), 1);
    assert_int_equal(d.n_nodes, DRAFT_NODES_MAX);
    assert_true(draft_check(&d));
}

/* The picture of draft.h, its nodes added in another order. */
static void the_likeliest_path_comes_first(void **state)
{
    (void)state;
    enum { CAT, SAT, ON, RAN, DOG };
    struct draft d = {.n_nodes = 0};
    draft_add(&d, DRAFT_ROOT, DOG, DRAFT_LOOKUP, 0.25f);
    const int cat = draft_add(&d, DRAFT_ROOT, CAT, DRAFT_LOOKUP, 0.5f);
    draft_add(&d, cat, RAN, DRAFT_LOOKUP, 0.125f);
    const int sat = draft_add(&d, cat, SAT, DRAFT_LOOKUP, 0.75f);
    draft_add(&d, sat, ON, DRAFT_LOOKUP, 0.0625f);
    draft_order(&d);
    static const int8_t parents[] = {-1, 0, 1, 0, -1};
    assert_int_equal(d.n_nodes, 5);
    for (int i = 0; i < 5; i++) {
        assert_int_equal(d.nodes[i].token, i);
        assert_int_equal(d.nodes[i].parent, parents[i]);
    }
    assert_true(draft_check(&d));
    assert_int_equal(draft_find(&d, CAT, RAN), RAN);
    assert_int_equal(draft_find(&d, DRAFT_ROOT, RAN), DRAFT_NONE);
}

static void what_is_refused_goes_with_all_below_it(void **state)
{
    (void)state;
    struct draft d = {.n_nodes = 0};
    const int good = draft_add(&d, DRAFT_ROOT, 9, DRAFT_LOOKUP, 0.5f);
    const int outside = draft_add(&d, DRAFT_ROOT, 10, DRAFT_LOOKUP, 0.9f);
    draft_add(&d, outside, 1, DRAFT_LOOKUP, 0.9f);
    draft_add(&d, good, -1, DRAFT_LOOKUP, 0.9f);
    const int second = draft_add(&d, good, 2, DRAFT_LOOKUP, 0.5f);
    draft_add(&d, second, 3, DRAFT_LOOKUP, 0.5f); /* too deep */
    draft_refuse(&d, 10, 2);
    draft_order(&d);
    assert_int_equal(d.n_nodes, 2);
    assert_int_equal(d.nodes[0].token, 9);
    assert_int_equal(d.nodes[1].token, 2);
    assert_true(draft_check(&d));
}

/* The tokens on the way to a node, and how often each node is there: kept by ordering. */
static uint64_t path_sum(const struct draft *d)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < d->n_nodes; i++) {
        uint64_t path = 0;
        for (int node = (int)i; node != DRAFT_ROOT; node = d->nodes[node].parent)
            path = rng_bits(path, (uint64_t)d->nodes[node].token, d->nodes[node].depth);
        sum += path;
    }
    return sum;
}

static void random_drafts_keep_their_paths_when_ordered(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 2000; seed++) {
        struct draft d = {.n_nodes = 0};
        const size_t n = rng_bits(1, seed, 0) % 100;
        for (uint64_t i = 0; i < n; i++) {
            const int parent = (int)(rng_bits(2, seed, i) % (d.n_nodes + 1)) - 1;
            draft_add(&d, parent, (int32_t)(rng_bits(3, seed, i) % 6), DRAFT_LOOKUP,
                      (float)(1 + rng_bits(4, seed, i) % 8) / 8);
        }
        assert_true(draft_check(&d));
        const struct draft before = d;
        draft_order(&d);
        assert_true(draft_check(&d));
        assert_int_equal(d.n_nodes, before.n_nodes);
        assert_true(path_sum(&d) == path_sum(&before));
        for (size_t i = 1; i < d.n_nodes; i++) { /* depth first: below the one before, or up */
            int node = (int)i - 1;
            while (node != DRAFT_ROOT && node != d.nodes[i].parent)
                node = d.nodes[node].parent;
            assert_int_equal(node, d.nodes[i].parent);
        }
        for (size_t i = 0; i < d.n_nodes; i++)
            for (size_t k = i + 1; k < d.n_nodes; k++)
                if (d.nodes[i].parent == d.nodes[k].parent)
                    assert_true(d.nodes[i].p >= d.nodes[k].p);
    }
}

static void a_broken_trie_is_told(void **state)
{
    (void)state;
    struct draft d = {.n_nodes = 0};
    draft_add(&d, DRAFT_ROOT, 1, DRAFT_LOOKUP, 0.5f);
    draft_add(&d, DRAFT_ROOT, 2, DRAFT_LOOKUP, 0.5f);
    draft_add(&d, 0, 3, DRAFT_LOOKUP, 0.5f);
    assert_true(draft_check(&d));
    struct draft broken = d;
    broken.nodes[1].token = 1;
    assert_false(draft_check(&broken));
    broken = d;
    broken.nodes[0].parent = 2;
    assert_false(draft_check(&broken));
    broken = d;
    broken.nodes[2].depth = 1;
    assert_false(draft_check(&broken));
    broken = d;
    broken.nodes[2].p = 0;
    assert_false(draft_check(&broken));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(siblings_with_one_token_are_one_node),
        cmocka_unit_test(a_full_draft_takes_no_more_but_still_merges),
        cmocka_unit_test(the_likeliest_path_comes_first),
        cmocka_unit_test(what_is_refused_goes_with_all_below_it),
        cmocka_unit_test(random_drafts_keep_their_paths_when_ordered),
        cmocka_unit_test(a_broken_trie_is_told),
    };
    return cmocka_run_group_tests_name("draft", tests, NULL, NULL);
}
