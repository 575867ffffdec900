/* Which prompts share an automaton, and what goes when there is no room. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "engine/automaton_cache.h"

enum { N = 100, ENOUGH = 1 << 24 };

/* A document of its own for each number, then a question. */
static void make_prompt(int32_t prompt[N], uint64_t document, size_t n_document,
                        uint64_t question)
{
    for (size_t i = 0; i < N; i++)
        prompt[i] = (int32_t)(i < n_document ? rng_bits(1, document, i) % 1000
                                             : 1000 + rng_bits(2, question, i) % 1000);
}

static struct automaton_cache *open(size_t bytes_max)
{
    struct automaton_cache *c = NULL;
    assert_int_equal(automaton_cache_open(bytes_max, &c, NULL), 0);
    return c;
}

struct got {
    struct automaton *a;
    size_t n_shared;
};

static struct got get_first(struct automaton_cache *c, const char *salt, uint64_t document,
                            size_t n_document, uint64_t question, size_t n_prompt)
{
    int32_t prompt[N];
    struct got got;
    make_prompt(prompt, document, n_document, question);
    assert_int_equal(
        automaton_cache_get(c, salt, prompt, n_prompt, &got.a, &got.n_shared, NULL), 0);
    return got;
}

static struct got get(struct automaton_cache *c, const char *salt, uint64_t document,
                      size_t n_document, uint64_t question)
{
    return get_first(c, salt, document, n_document, question, N);
}

static bool has(const struct automaton *a, const int32_t *tokens, size_t n)
{
    struct automaton_cursor cursor = {0};
    for (size_t i = 0; i < n; i++)
        automaton_advance(a, &cursor, tokens[i]);
    return cursor.length == n;
}

static void prompts_that_begin_alike_share_one(void **state)
{
    (void)state;
    struct automaton_cache *c = open(ENOUGH);
    const struct got first = get(c, "", 1, 80, 1), same = get(c, "", 1, 80, 1);
    const struct got alike = get(c, "", 1, 80, 2), differs = get(c, "", 1, 70, 3);
    const struct got other = get(c, "", 2, 80, 1);
    int32_t prompt[N];
    make_prompt(prompt, 1, 80, 1);
    assert_true(has(first.a, prompt, N));
    assert_int_equal(first.n_shared, N);
    assert_ptr_equal(same.a, first.a);
    assert_int_equal(same.n_shared, N);
    assert_ptr_equal(alike.a, first.a);
    assert_int_equal(alike.n_shared, 80);
    assert_ptr_not_equal(differs.a, first.a); /* more than a fourth would be missing */
    assert_int_equal(differs.n_shared, N);
    assert_ptr_not_equal(other.a, first.a);
    const struct got got[] = {first, same, alike, differs, other};
    for (size_t i = 0; i < 5; i++)
        automaton_close(got[i].a);
    automaton_cache_close(c);
}

/* The head of a longer prompt is in its automaton; the longer one is not in the head's. */
static void a_text_that_goes_on_serves_its_head(void **state)
{
    (void)state;
    struct automaton_cache *c = open(ENOUGH);
    const struct got head = get_first(c, "", 1, N, 0, 40), whole = get(c, "", 1, N, 0);
    assert_int_equal(head.n_shared, 40);
    assert_ptr_not_equal(whole.a, head.a);
    const struct got again = get_first(c, "", 1, N, 0, 60);
    assert_ptr_equal(again.a, whole.a);
    assert_int_equal(again.n_shared, 60);
    automaton_close(head.a);
    automaton_close(whole.a);
    automaton_close(again.a);
    automaton_cache_close(c);
}

static void salts_share_nothing(void **state)
{
    (void)state;
    struct automaton_cache *c = open(ENOUGH);
    const struct got a = get(c, "", 1, 80, 1), b = get(c, "x", 1, 80, 1);
    assert_ptr_not_equal(a.a, b.a);
    const struct got again = get(c, "x", 1, 80, 2);
    assert_ptr_equal(again.a, b.a);
    automaton_close(a.a);
    automaton_close(b.a);
    automaton_close(again.a);
    automaton_cache_close(c);
}

/* Room for two at rest and one that is built; texts of one length do not take quite the same.
 */
static size_t little_room(void)
{
    struct automaton_cache *c = open(ENOUGH);
    for (uint64_t document = 1; document <= 2; document++)
        automaton_close(get(c, "", document, N, 0).a);
    const size_t kept = automaton_cache_bytes(c);
    automaton_cache_close(c);
    return kept + automaton_bytes_max(N) + N * sizeof(int32_t) + 512;
}

static void the_one_asked_for_longest_ago_goes(void **state)
{
    (void)state;
    const size_t bytes_max = little_room();
    struct automaton_cache *c = open(bytes_max);
    automaton_close(get(c, "", 1, N, 0).a);
    for (uint64_t i = 0; i < 200; i++) {
        automaton_close(get(c, "", 2 + i, N, 0).a);
        const size_t bytes = automaton_cache_bytes(c);
        assert_true(bytes <= bytes_max);
        automaton_close(get(c, "", 1, N, 0).a); /* is there: more recent than all but one */
        assert_int_equal(automaton_cache_bytes(c), bytes);
    }
    automaton_cache_close(c);
}

static void what_is_in_use_stays(void **state)
{
    (void)state;
    struct automaton_cache *c = open(little_room());
    struct got used[8];
    size_t n = 0;
    while (n < 8 && (used[n] = get(c, "", 1 + n, N, 0)).a)
        n++;
    assert_true(n >= 2 && n <= 4);
    const size_t bytes = automaton_cache_bytes(c);
    const struct got none = get(c, "", 100, N, 0);
    assert_null(none.a);
    assert_int_equal(none.n_shared, 0);
    assert_int_equal(automaton_cache_bytes(c), bytes);
    for (size_t i = 0; i < n; i++) {
        const struct got again = get(c, "", 1 + i, N, 0);
        assert_ptr_equal(again.a, used[i].a);
        automaton_close(again.a);
    }
    automaton_close(used[0].a);
    const struct got next = get(c, "", 100, N, 0); /* in the place of the first */
    assert_non_null(next.a);
    for (size_t i = 1; i < n; i++)
        automaton_close(used[i].a);
    automaton_close(next.a);
    automaton_cache_close(c);
}

static void one_too_long_drives_nothing_out(void **state)
{
    (void)state;
    enum { LONG = 4000 };
    static int32_t text[LONG];
    struct automaton_cache *c = open(automaton_bytes_max(LONG) / 2);
    automaton_close(get(c, "", 1, N, 0).a);
    const size_t bytes = automaton_cache_bytes(c);
    struct got got;
    assert_int_equal(automaton_cache_get(c, "", text, LONG, &got.a, &got.n_shared, NULL), 0);
    assert_null(got.a);
    assert_int_equal(automaton_cache_bytes(c), bytes);
    automaton_cache_close(c);
}

static void an_automaton_outlives_the_cache(void **state)
{
    (void)state;
    struct automaton_cache *c = open(ENOUGH);
    const struct got got = get(c, "", 1, N, 0);
    automaton_cache_close(c);
    int32_t prompt[N];
    make_prompt(prompt, 1, N, 0);
    assert_true(has(got.a, prompt, N));
    automaton_close(got.a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(prompts_that_begin_alike_share_one),
        cmocka_unit_test(a_text_that_goes_on_serves_its_head),
        cmocka_unit_test(salts_share_nothing),
        cmocka_unit_test(the_one_asked_for_longest_ago_goes),
        cmocka_unit_test(what_is_in_use_stays),
        cmocka_unit_test(one_too_long_drives_nothing_out),
        cmocka_unit_test(an_automaton_outlives_the_cache),
    };
    return cmocka_run_group_tests_name("automaton_cache", tests, NULL, NULL);
}
