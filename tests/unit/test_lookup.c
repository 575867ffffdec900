/* What lookup proposes stood in the text after what matched; how sure it is, it learns. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "engine/lookup.h"

enum { TEXT = 300 };

/* Written so that NaN fails. */
static void assert_near(double x, double expected, double tolerance)
{
    assert_true(fabs(x - expected) <= tolerance);
}

static const struct draft_limits plenty = {DRAFT_NODES_MAX, 0.001};

static struct automaton *open(const int32_t *text, size_t n)
{
    struct automaton *a = NULL;
    assert_int_equal(automaton_open(text, n, SIZE_MAX, &a, NULL), 0);
    return a;
}

static struct spec_stats *fresh_stats(void)
{
    static struct spec_stats stats;
    spec_stats_init(&stats);
    lookup_set_priors(&stats);
    return &stats;
}

static struct automaton_cursor heard(const struct automaton *a, const int32_t *tokens, size_t n)
{
    struct automaton_cursor c = {0};
    for (size_t i = 0; i < n; i++)
        automaton_advance(a, &c, tokens[i]);
    return c;
}

static void assert_chain(const struct draft *d, const int32_t *tokens, size_t n, int source)
{
    assert_int_equal(d->n_nodes, n);
    for (size_t i = 0; i < n; i++) {
        assert_int_equal(d->nodes[i].token, tokens[i]);
        assert_int_equal(d->nodes[i].parent, (int)i - 1);
        assert_int_equal(d->nodes[i].sources, 1 << source);
    }
}

static void what_followed_the_match_is_proposed(void **state)
{
    (void)state;
    const int32_t text[] = {1, 2, 3, 4, 5, 6, 7, 8};
    const int32_t said[] = {9, 2, 3};
    struct automaton *a = open(text, 8);
    struct draft d = {0};
    lookup_propose(a, heard(a, said, 3), DRAFT_LOOKUP, &plenty, fresh_stats(), &d);
    assert_chain(&d, text + 3, 5, DRAFT_LOOKUP);
    /* A longer match before a node makes it surer. */
    for (size_t i = 1; i < d.n_nodes; i++)
        assert_true(d.nodes[i].p > d.nodes[i - 1].p || i == 4); /* 5 and 6 are alike */
    automaton_close(a);
}

static void nothing_is_proposed_without_a_match(void **state)
{
    (void)state;
    const int32_t text[] = {1, 2, 3};
    const int32_t said[] = {2, 9};
    struct automaton *a = open(text, 3);
    struct draft d = {0};
    lookup_propose(a, heard(a, said, 2), DRAFT_LOOKUP, &plenty, fresh_stats(), &d);
    lookup_propose(a, heard(a, text, 3), DRAFT_LOOKUP, &plenty, fresh_stats(), &d);
    assert_int_equal(d.n_nodes, 0);
    automaton_close(a);
}

static void a_text_that_goes_on_in_two_ways_gives_two_branches(void **state)
{
    (void)state;
    /* "1 2" is followed by 3 three times and by 4 twice, by 5 once and by 6 once. */
    const int32_t text[] = {1, 2, 3, 7, 1, 2, 4, 7, 1, 2, 3, 8, 1, 2,
                            4, 8, 1, 2, 3, 9, 1, 2, 5, 9, 1, 2, 6};
    struct automaton *a = open(text, sizeof text / sizeof text[0]);
    struct draft d = {0};
    lookup_propose(a, heard(a, text, 2), DRAFT_LOOKUP, &plenty, fresh_stats(), &d);
    const int three = draft_find(&d, DRAFT_ROOT, 3), four = draft_find(&d, DRAFT_ROOT, 4);
    assert_true(three >= 0 && four >= 0);
    assert_true(d.nodes[three].p > d.nodes[draft_find(&d, DRAFT_ROOT, 6)].p);
    assert_true(draft_find(&d, three, 7) >= 0 && draft_find(&d, three, 9) >= 0);
    assert_true(draft_check(&d));
    automaton_close(a);
}

static void a_short_match_is_left_sooner_than_a_long_one(void **state)
{
    (void)state;
    int32_t text[TEXT];
    for (int32_t i = 0; i < TEXT; i++)
        text[i] = i;
    struct automaton *a = open(text, TEXT);
    size_t n_before = 0;
    for (size_t length = 1; length <= 16; length *= 2) {
        struct draft d = {0};
        lookup_propose(a, heard(a, text + 50, length), DRAFT_LOOKUP,
                       &(struct draft_limits){DRAFT_NODES_MAX, 0.1}, fresh_stats(), &d);
        assert_true(d.n_nodes > n_before);
        n_before = d.n_nodes;
    }
    /* Where nothing else ends it, depth does. */
    struct draft d = {0};
    lookup_propose(a, heard(a, text + 50, 1), DRAFT_LOOKUP,
                   &(struct draft_limits){DRAFT_NODES_MAX, 0}, fresh_stats(), &d);
    assert_int_equal(d.n_nodes, LOOKUP_DEPTH_MAX);
    automaton_close(a);
}

static void no_break_is_proposed(void **state)
{
    (void)state;
    const int32_t text[] = {1, 2, 3, AUTOMATON_BREAK, 4, 5, AUTOMATON_BREAK, 1, 2, 3};
    struct automaton *a = open(text, 10);
    struct draft d = {0};
    lookup_propose(a, heard(a, text, 1), DRAFT_LOOKUP, &plenty, fresh_stats(), &d);
    assert_chain(&d, text + 1, 2, DRAFT_LOOKUP);
    automaton_close(a);
}

/* A prediction begins with a break, and so does what is compared with it. */
static void a_prediction_is_proposed_from_its_beginning(void **state)
{
    (void)state;
    const int32_t text[] = {AUTOMATON_BREAK, 11, 12, 13};
    struct automaton *a = open(text, 4);
    struct draft d = {0};
    lookup_propose(a, heard(a, text, 1), DRAFT_PREDICTION, &plenty, fresh_stats(), &d);
    assert_chain(&d, text + 1, 3, DRAFT_PREDICTION);
    automaton_close(a);
}

static void what_was_said_before_is_proposed_again(void **state)
{
    (void)state;
    struct spec_stats *stats = fresh_stats();
    struct ngram *ix = NULL;
    assert_int_equal(ngram_open(64, &ix, NULL), 0);
    const int32_t said[] = {1, 2, 3, 4, 9, 1, 2, 3, 5, 9, 8, 1, 2, 3};
    for (size_t i = 0; i < 14; i++)
        lookup_follow_self(ix, said[i], stats);
    struct draft d = {0};
    lookup_propose_self(ix, &plenty, stats, &d);
    const int four = draft_find(&d, DRAFT_ROOT, 4), five = draft_find(&d, DRAFT_ROOT, 5);
    assert_true(four >= 0 && five == 0); /* the more recent one first */
    assert_true(draft_find(&d, draft_find(&d, four, 9), 1) >= 0);
    assert_true(draft_find(&d, draft_find(&d, five, 9), 8) >= 0);
    assert_int_equal(d.nodes[0].sources, 1 << DRAFT_SELF);
    assert_true(draft_check(&d));
    ngram_close(ix);
}

static bool occurs(const int32_t *text, size_t n, const int32_t *run, size_t length)
{
    for (size_t i = length; i <= n; i++)
        if (memcmp(text + i - length, run, length * sizeof run[0]) == 0)
            return true;
    return false;
}

/* The tokens from the root to a node, behind what matched. */
static size_t spell(const struct draft *d, int node, const int32_t *match, size_t length,
                    int32_t *out)
{
    const size_t depth = d->nodes[node].depth;
    memcpy(out, match, length * sizeof out[0]);
    for (; node != DRAFT_ROOT; node = d->nodes[node].parent)
        out[length + d->nodes[node].depth - 1] = d->nodes[node].token;
    return length + depth;
}

static void assert_from(const struct draft *d, const int32_t *text, size_t n,
                        const int32_t *match, size_t length)
{
    assert_true(draft_check(d));
    for (size_t k = 0; k < d->n_nodes; k++) {
        int32_t run[TEXT + LOOKUP_DEPTH_MAX];
        const size_t n_run = spell(d, (int)k, match, length, run);
        assert_true(occurs(text, n, run, n_run));
    }
}

static void every_path_stands_in_the_text_behind_the_match(void **state)
{
    (void)state;
    uint64_t counter = 0;
    for (int episode = 0; episode < 60; episode++) {
        struct spec_stats *stats = fresh_stats();
        int32_t text[TEXT];
        const int n_letters = 2 + episode % 7;
        for (size_t i = 0; i < TEXT; i++)
            text[i] = (int32_t)(rng_uniform(8, 1, counter++) * n_letters);
        const size_t n_document = TEXT / 2;
        struct automaton *a = open(text, n_document);
        struct ngram *ix = NULL;
        assert_int_equal(ngram_open(512, &ix, NULL), 0);
        struct automaton_cursor c = {0};
        for (size_t i = n_document; i < TEXT; i++) {
            lookup_follow(a, &c, DRAFT_LOOKUP, text[i], stats);
            lookup_follow_self(ix, text[i], stats);
            const struct draft_limits limits = {(size_t)(rng_uniform(8, 2, i) * 64), 0.01};
            struct draft from_document = {0}, from_self = {0};
            lookup_propose(a, c, DRAFT_LOOKUP, &limits, stats, &from_document);
            assert_true(from_document.n_nodes <= limits.n_nodes);
            assert_from(&from_document, text, n_document, text + i + 1 - c.length, c.length);
            lookup_propose_self(ix, &limits, stats, &from_self);
            struct ngram_match m;
            ngram_find(ix, &m);
            assert_true(from_self.n_nodes <= limits.n_nodes);
            assert_from(&from_self, text + n_document, i + 1 - n_document,
                        text + i + 1 - m.length, m.length);
        }
        ngram_close(ix);
        automaton_close(a);
    }
}

/* A limit of nodes leaves out the least likely paths, whatever branch they are on. */
static void a_limit_cuts_the_least_likely(void **state)
{
    (void)state;
    int32_t text[TEXT];
    for (size_t i = 0; i < TEXT; i++)
        text[i] = (int32_t)(rng_uniform(10, 1, i) * 4);
    struct automaton *a = open(text, TEXT);
    struct spec_stats *stats = fresh_stats();
    struct draft all = {0};
    lookup_propose(a, heard(a, text + 40, 3), DRAFT_LOOKUP, &plenty, stats, &all);
    assert_true(all.n_nodes > 10);
    double path[DRAFT_NODES_MAX];
    for (size_t i = 0; i < all.n_nodes; i++) {
        const struct draft_node *node = &all.nodes[i];
        path[i] = (node->parent == DRAFT_ROOT ? 1 : path[node->parent]) * (double)node->p;
        assert_true(i == 0 || path[i] <= path[i - 1] * 1.00001);
        struct draft some = {0};
        lookup_propose(a, heard(a, text + 40, 3), DRAFT_LOOKUP,
                       &(struct draft_limits){i, plenty.p_min}, stats, &some);
        assert_int_equal(some.n_nodes, i);
        assert_memory_equal(some.nodes, all.nodes, i * sizeof all.nodes[0]);
    }
    automaton_close(a);
}

/* The text says "1 2" always; who follows it says 3 behind 1 in a third of cases. */
static void following_teaches_how_often_a_copy_goes_on(void **state)
{
    (void)state;
    const int32_t text[] = {1, 2};
    struct automaton *a = open(text, 2);
    struct spec_stats *stats = fresh_stats();
    struct automaton_cursor c = {0};
    for (uint64_t i = 0; i < 20000; i++) {
        lookup_follow(a, &c, DRAFT_LOOKUP, 1, stats);
        lookup_follow(a, &c, DRAFT_LOOKUP, rng_uniform(2, 2, i) < 1.0 / 3 ? 3 : 2, stats);
    }
    lookup_follow(a, &c, DRAFT_LOOKUP, 1, stats);
    struct draft d = {0};
    lookup_propose(a, c, DRAFT_LOOKUP, &plenty, stats, &d);
    assert_int_equal(d.nodes[0].token, 2);
    assert_near((double)d.nodes[0].p, 2.0 / 3, 0.05);
    /* Another source has learned nothing of it. */
    struct draft other = {0};
    struct spec_stats *fresh = fresh_stats();
    lookup_propose(a, c, DRAFT_PREDICTION, &plenty, fresh, &other);
    assert_true(other.nodes[0].p < d.nodes[0].p);
    automaton_close(a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_followed_the_match_is_proposed),
        cmocka_unit_test(nothing_is_proposed_without_a_match),
        cmocka_unit_test(a_text_that_goes_on_in_two_ways_gives_two_branches),
        cmocka_unit_test(a_short_match_is_left_sooner_than_a_long_one),
        cmocka_unit_test(no_break_is_proposed),
        cmocka_unit_test(a_prediction_is_proposed_from_its_beginning),
        cmocka_unit_test(what_was_said_before_is_proposed_again),
        cmocka_unit_test(every_path_stands_in_the_text_behind_the_match),
        cmocka_unit_test(a_limit_cuts_the_least_likely),
        cmocka_unit_test(following_teaches_how_often_a_copy_goes_on),
    };
    return cmocka_run_group_tests_name("lookup", tests, NULL, NULL);
}
