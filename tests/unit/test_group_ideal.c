/*
 * The ideal of a set of prompts against a trie that is written naively: one node for each
 * token, prompts put in one after the other, in every order where the set is small.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "group_ideal.h"

enum { NODES_MAX = 4096, PROMPTS_MAX = 24, TOKENS_MAX = 12 };

static uint64_t seed = 4;

/* Node 0 of the trie is not used: 0 is "none". A salt is a root of its own. */
struct trie {
    struct {
        const char *salt; /* of a root */
        int32_t token;
        size_t parent;
    } nodes[NODES_MAX];
    size_t n_nodes;
};

static size_t trie_find(const struct trie *t, size_t parent, int32_t token, const char *salt)
{
    for (size_t i = 1; i <= t->n_nodes; i++) {
        const bool is_root = t->nodes[i].salt != NULL;
        if (parent == 0
                ? is_root && strcmp(t->nodes[i].salt, salt) == 0
                : !is_root && t->nodes[i].parent == parent && t->nodes[i].token == token)
            return i;
    }
    return 0;
}

static size_t trie_add(struct trie *t, size_t parent, int32_t token, const char *salt)
{
    assert_true(t->n_nodes + 1 < NODES_MAX);
    t->n_nodes++;
    t->nodes[t->n_nodes].salt = parent == 0 ? salt : NULL;
    t->nodes[t->n_nodes].parent = parent;
    t->nodes[t->n_nodes].token = token;
    return t->n_nodes;
}

/* -> tokens that were there, before the prompt was put in. */
static size_t trie_put(struct trie *t, const struct group_prompt *prompt)
{
    const char *salt = prompt->salt ? prompt->salt : "";
    size_t found = 0;
    size_t at = trie_find(t, 0, 0, salt);
    if (at == 0)
        at = trie_add(t, 0, 0, salt);
    for (size_t i = 0; i < prompt->n_tokens; i++) {
        size_t child = trie_find(t, at, prompt->tokens[i], salt);
        if (child != 0)
            found++;
        else
            child = trie_add(t, at, prompt->tokens[i], salt);
        at = child;
    }
    return found;
}

/* What a cache finds when the prompts come in this order. */
static uint64_t naive_cached(const struct group_prompt *prompts, const size_t *order, size_t n,
                             size_t tokens_min)
{
    static struct trie t;
    t.n_nodes = 0;
    uint64_t sum = 0;
    for (size_t i = 0; i < n; i++) {
        const struct group_prompt *prompt = &prompts[order[i]];
        size_t found = trie_put(&t, prompt);
        if (found == prompt->n_tokens && found > 0)
            found--;
        if (found >= tokens_min)
            sum += found;
    }
    return sum;
}

static uint64_t ideal(const struct group_prompt *prompts, size_t n, size_t tokens_min)
{
    uint64_t cached = UINT64_MAX;
    struct err e = {0};
    assert_int_equal(group_ideal_cached(prompts, n, tokens_min, &cached, &e), 0);
    return cached;
}

/* A prompt from a text: each character is a token. */
static struct group_prompt of(const char *text, const char *salt)
{
    static int32_t store[64][32];
    static size_t used;
    int32_t *tokens = store[used++ % 64];
    for (size_t i = 0; text[i]; i++)
        tokens[i] = text[i];
    return (struct group_prompt){tokens, strlen(text), salt};
}

static void each_token_is_computed_once(void **state)
{
    (void)state;
    const struct group_prompt prompts[] = {of("systemdocAq1", NULL), of("systemdocBq1", NULL),
                                           of("systemdocAq2", NULL), of("other", NULL)};
    /* One of the A questions finds the other's 11, B finds "systemdoc". */
    assert_int_equal(ideal(prompts, 4, 0), 11 + 9);
}

static void the_last_token_of_a_prompt_is_always_computed(void **state)
{
    (void)state;
    const struct group_prompt same[] = {of("abcd", NULL), of("abcd", NULL), of("abcd", NULL)};
    assert_int_equal(ideal(same, 3, 0), 3 + 3);
    const struct group_prompt one_token[] = {of("a", NULL), of("a", NULL)};
    assert_int_equal(ideal(one_token, 2, 0), 0);
}

static void a_prompt_that_another_goes_on_from_comes_first(void **state)
{
    (void)state;
    const struct group_prompt longer_first[] = {of("abcdef", NULL), of("abcd", NULL)};
    const struct group_prompt shorter_first[] = {of("abcd", NULL), of("abcdef", NULL)};
    assert_int_equal(ideal(longer_first, 2, 0), 4);
    assert_int_equal(ideal(shorter_first, 2, 0), 4);
}

static void prefixes_below_the_minimum_do_not_count(void **state)
{
    (void)state;
    const struct group_prompt prompts[] = {of("abcx", NULL), of("abcy", NULL), of("az", NULL)};
    assert_int_equal(ideal(prompts, 3, 0), 3 + 1);
    assert_int_equal(ideal(prompts, 3, 2), 3);
    assert_int_equal(ideal(prompts, 3, 3), 3);
    assert_int_equal(ideal(prompts, 3, 4), 0);
    /* Of "abc" twice, two tokens are found: fewer than three. */
    const struct group_prompt same[] = {of("abc", NULL), of("abc", NULL)};
    assert_int_equal(ideal(same, 2, 3), 0);
}

static void salts_share_nothing_and_no_salt_is_the_empty_one(void **state)
{
    (void)state;
    const struct group_prompt prompts[] = {of("abcx", "t"), of("abcy", "u"), of("abcz", "t"),
                                           of("abcv", NULL), of("abcw", "")};
    assert_int_equal(ideal(prompts, 5, 0), 3 + 3);
}

static void no_prompts_and_empty_prompts_find_nothing(void **state)
{
    (void)state;
    const struct group_prompt empty[] = {{NULL, 0, NULL}, {NULL, 0, NULL}, of("a", NULL)};
    assert_int_equal(ideal(NULL, 0, 0), 0);
    assert_int_equal(ideal(empty, 1, 0), 0);
    assert_int_equal(ideal(empty, 3, 0), 0);
}

static void tokens_are_compared_with_all_their_bits(void **state)
{
    (void)state;
    const int32_t a[] = {0x01000000, 7, 1}, b[] = {0x02000000, 7, 1}, c[] = {-1, 7, 1};
    const struct group_prompt prompts[] = {{a, 3, NULL}, {b, 3, NULL}, {c, 3, NULL}};
    assert_int_equal(ideal(prompts, 3, 0), 0);
}

/* ---- random sets ---- */

static uint64_t draws;

static size_t draw(size_t below)
{
    return (size_t)(rng_bits(seed, 1, draws++) % below);
}

struct set {
    int32_t tokens[PROMPTS_MAX][TOKENS_MAX];
    struct group_prompt prompts[PROMPTS_MAX];
    size_t order[PROMPTS_MAX];
    size_t n;
};

/* Few different tokens and salts, and some prompts that repeat the start of another. */
static void fill_set(struct set *set, size_t n)
{
    static const char *const salts[] = {NULL, "", "x", "y"};
    set->n = n;
    for (size_t i = 0; i < n; i++) {
        const size_t n_tokens = draw(TOKENS_MAX + 1);
        const size_t twin = draw(2) ? draw(i + 1) : i;
        for (size_t k = 0; k < TOKENS_MAX; k++)
            set->tokens[i][k] = twin != i && draw(16) ? set->tokens[twin][k] : (int32_t)draw(3);
        set->prompts[i] =
            (struct group_prompt){set->tokens[i], n_tokens, salts[draw(8) ? 0 : draw(4)]};
        set->order[i] = i;
    }
}

static void swap(size_t *a, size_t *b)
{
    const size_t held = *a;
    *a = *b;
    *b = held;
}

/* The best over every order, by Heap's method. */
static uint64_t best_of_all_orders(struct set *set, size_t k, size_t tokens_min)
{
    if (k <= 1)
        return naive_cached(set->prompts, set->order, set->n, tokens_min);
    uint64_t best = 0;
    for (size_t i = 0; i < k; i++) {
        const uint64_t cached = best_of_all_orders(set, k - 1, tokens_min);
        if (cached > best)
            best = cached;
        swap(&set->order[k % 2 ? 0 : i], &set->order[k - 1]);
    }
    return best;
}

static void it_is_the_best_of_all_orders(void **state)
{
    (void)state;
    static struct set set;
    for (size_t round = 0; round < 60; round++) {
        fill_set(&set, 1 + draw(6));
        const size_t tokens_min = draw(2) ? 0 : draw(6);
        assert_int_equal(ideal(set.prompts, set.n, tokens_min),
                         best_of_all_orders(&set, set.n, tokens_min));
    }
}

/* The twin: an order that puts long prompts first is worse somewhere, so the comparison above
 * can tell orders apart. */
static void some_order_is_worse(void **state)
{
    (void)state;
    const struct group_prompt prompts[] = {of("abcdef", NULL), of("abcd", NULL)};
    const size_t longer_first[] = {0, 1}, shorter_first[] = {1, 0};
    assert_int_equal(naive_cached(prompts, longer_first, 2, 0), 3);
    assert_int_equal(naive_cached(prompts, shorter_first, 2, 0), 4);
}

static int compare_lengths(const void *left, const void *right)
{
    const struct group_prompt *a = left;
    const struct group_prompt *b = right;
    return (a->n_tokens > b->n_tokens) - (a->n_tokens < b->n_tokens);
}

/* Shortest first is another best order: what goes on from a prompt comes after it. */
static void larger_sets_agree_with_the_naive_trie_in_any_input_order(void **state)
{
    (void)state;
    static struct set set;
    for (size_t round = 0; round < 200; round++) {
        fill_set(&set, 1 + draw(PROMPTS_MAX));
        const size_t tokens_min = draw(2) ? 0 : draw(6);
        const uint64_t as_made = ideal(set.prompts, set.n, tokens_min);
        qsort(set.prompts, set.n, sizeof set.prompts[0], compare_lengths);
        assert_int_equal(as_made, naive_cached(set.prompts, set.order, set.n, tokens_min));
        assert_int_equal(as_made, ideal(set.prompts, set.n, tokens_min));
    }
}

int main(int argc, char **argv)
{
    if (argc > 1)
        seed = strtoull(argv[1], NULL, 0);
    print_message("seed %llu\n", (unsigned long long)seed);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_token_is_computed_once),
        cmocka_unit_test(the_last_token_of_a_prompt_is_always_computed),
        cmocka_unit_test(a_prompt_that_another_goes_on_from_comes_first),
        cmocka_unit_test(prefixes_below_the_minimum_do_not_count),
        cmocka_unit_test(salts_share_nothing_and_no_salt_is_the_empty_one),
        cmocka_unit_test(no_prompts_and_empty_prompts_find_nothing),
        cmocka_unit_test(tokens_are_compared_with_all_their_bits),
        cmocka_unit_test(it_is_the_best_of_all_orders),
        cmocka_unit_test(some_order_is_worse),
        cmocka_unit_test(larger_sets_agree_with_the_naive_trie_in_any_input_order),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
