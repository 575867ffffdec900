/*
 * The suffix automaton against a search that knows nothing of states: counts, first places and
 * the longest match at every token, on random texts of few letters and on a real text's ids.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "engine/automaton.h"
#include "golden.h"

enum { TEXT_MAX = 80 };

static const size_t PLENTY = SIZE_MAX;

static uint64_t seed;

static size_t draw(uint64_t *counter, size_t n)
{
    return (size_t)(rng_uniform(seed, 17, (*counter)++) * (double)n);
}

static void draw_text(uint64_t *counter, int32_t *text, size_t n, size_t n_letters)
{
    for (size_t i = 0; i < n; i++)
        text[i] = (int32_t)draw(counter, n_letters) * 1000003 % 49152;
}

static struct automaton *open(const int32_t *text, size_t n)
{
    struct automaton *a = NULL;
    assert_int_equal(automaton_open(text, n, PLENTY, &a, NULL), 0);
    return a;
}

/* Places where the run ends in the text; *first is the first of them. */
static size_t search(const int32_t *text, size_t n, const int32_t *run, size_t length,
                     size_t *first)
{
    size_t count = 0;
    for (size_t i = length; i <= n; i++)
        if (memcmp(text + i - length, run, length * sizeof run[0]) == 0 && count++ == 0)
            *first = i - 1;
    return count;
}

static uint32_t walk(const struct automaton *a, const int32_t *run, size_t length)
{
    uint32_t state = AUTOMATON_ROOT;
    for (size_t i = 0; i < length; i++) {
        state = automaton_step(a, state, run[i]);
        if (state == AUTOMATON_NONE)
            break;
    }
    return state;
}

static void every_run_is_counted_where_it_occurs(void **state)
{
    (void)state;
    for (uint64_t episode = 0, counter = 0; episode < 300; episode++) {
        int32_t text[TEXT_MAX];
        const size_t n = 1 + draw(&counter, TEXT_MAX), n_letters = 1 + draw(&counter, 5);
        draw_text(&counter, text, n, n_letters);
        struct automaton *a = open(text, n);
        assert_true(automaton_n_states(a) <= 2 * n + 1);
        assert_true(automaton_bytes(a) <= automaton_bytes_max(n) / 2);
        size_t n_distinct = 0;
        for (size_t begin = 0; begin < n; begin++)
            for (size_t length = 1; length <= n - begin; length++) {
                const uint32_t at = walk(a, text + begin, length);
                size_t first = 0;
                const size_t count = search(text, n, text + begin, length, &first);
                assert_int_not_equal(at, AUTOMATON_NONE);
                assert_int_equal(automaton_state_at(a, at)->count, count);
                assert_int_equal(automaton_state_at(a, at)->first_end, first);
                n_distinct += first == begin + length - 1;
            }
        /* Every run is in one state: the states' runs are as many as differ. */
        size_t n_runs = 0;
        for (uint32_t s = 1; s < automaton_n_states(a); s++) {
            const struct automaton_state *own = automaton_state_at(a, s);
            const struct automaton_state *link = automaton_state_at(a, own->link);
            assert_true(link->length < own->length && link->count >= own->count);
            n_runs += own->length - link->length;
        }
        assert_int_equal(n_runs, n_distinct);
        automaton_close(a);
    }
}

static void a_run_that_does_not_occur_leads_nowhere(void **state)
{
    (void)state;
    for (uint64_t episode = 0, counter = 1 << 20; episode < 2000; episode++) {
        int32_t text[TEXT_MAX], run[8];
        const size_t n = draw(&counter, TEXT_MAX), length = 1 + draw(&counter, 8);
        draw_text(&counter, text, n, 3);
        draw_text(&counter, run, length, 4);
        struct automaton *a = open(text, n);
        size_t first;
        const size_t count = search(text, n, run, length, &first);
        assert_true((walk(a, run, length) != AUTOMATON_NONE) == (count > 0));
        automaton_close(a);
    }
}

/* What the cursor should say after heard[0..n_heard). */
static void check_cursor(const struct automaton *a, const int32_t *text, size_t n,
                         const int32_t *heard, size_t n_heard, struct automaton_cursor c)
{
    size_t length = n_heard < n ? n_heard : n, first;
    while (length > 0 && search(text, n, heard + n_heard - length, length, &first) == 0)
        length--;
    assert_int_equal(c.length, length);
    if (length == 0) {
        assert_int_equal(c.state, AUTOMATON_ROOT);
        return;
    }
    const struct automaton_state *s = automaton_state_at(a, c.state);
    assert_int_equal(s->count, search(text, n, heard + n_heard - length, length, &first));
    assert_true(length <= s->length && length > automaton_state_at(a, s->link)->length);
}

static void the_cursor_holds_the_longest_match_after_each_token(void **state)
{
    (void)state;
    for (uint64_t episode = 0, counter = 1 << 21; episode < 300; episode++) {
        int32_t text[TEXT_MAX], heard[TEXT_MAX];
        const size_t n = draw(&counter, TEXT_MAX), n_letters = 1 + draw(&counter, 4);
        draw_text(&counter, text, n, n_letters);
        /* One letter more than the text has; some episodes repeat the text itself. */
        draw_text(&counter, heard, TEXT_MAX, n_letters + 1);
        if (episode % 3 == 0)
            memcpy(heard + 3, text, (n < 70 ? n : 70) * sizeof text[0]);
        struct automaton *a = open(text, n);
        struct automaton_cursor c = {0};
        for (size_t i = 0; i < TEXT_MAX; i++) {
            automaton_advance(a, &c, heard[i]);
            check_cursor(a, text, n, heard, i + 1, c);
        }
        automaton_close(a);
    }
}

static void edges_stand_by_frequency_then_by_token(void **state)
{
    (void)state;
    uint64_t counter = 1 << 22;
    int32_t text[2000];
    for (size_t i = 0; i < 2000; i++) /* small numbers are more frequent */
        text[i] = (int32_t)(draw(&counter, 60) * draw(&counter, 60) / 60);
    struct automaton *a = open(text, 2000);
    for (uint32_t s = 0; s < automaton_n_states(a); s++) {
        size_t n;
        const struct automaton_edge *edges = automaton_edges(a, s, &n);
        uint32_t least = UINT32_MAX;
        for (size_t i = 0; i < n; i++) {
            const struct automaton_state *t = automaton_state_at(a, edges[i].target);
            assert_int_equal(automaton_step(a, s, edges[i].token), edges[i].target);
            if (i < AUTOMATON_BEST_EDGES) {
                assert_true(t->count <= least);
                if (i > 0 && t->count == least)
                    assert_true(automaton_state_at(a, edges[i - 1].target)->first_end <
                                t->first_end);
                least = t->count;
            } else {
                assert_true(t->count <= least);
                assert_true(i == AUTOMATON_BEST_EDGES || edges[i - 1].token < edges[i].token);
            }
        }
    }
    automaton_close(a);
}

static void a_real_text_is_matched_as_a_search_does(void **state)
{
    (void)state;
    json_t *file = golden_json("golden/xquad/demo_text.json");
    size_t n;
    int32_t *ids = golden_ids(json_object_get(file, "ids"), &n);
    assert_true(n > 2000);
    const size_t n_text = n - 400;
    struct automaton *a = open(ids, n_text);
    struct automaton_cursor c = {0};
    for (size_t i = n_text; i < n; i++) {
        automaton_advance(a, &c, ids[i]);
        check_cursor(a, ids, n_text, ids + n_text, i + 1 - n_text, c);
    }
    automaton_close(a);
    free(ids);
    json_decref(file);
}

static void an_empty_text_matches_nothing(void **state)
{
    (void)state;
    struct automaton *a = open(NULL, 0);
    struct automaton_cursor c = {0};
    automaton_advance(a, &c, 7);
    assert_int_equal(c.length, 0);
    assert_int_equal(automaton_n_states(a), 1);
    automaton_close(a);
    automaton_close(NULL);
}

static void more_memory_than_allowed_is_not_taken(void **state)
{
    (void)state;
    const int32_t text[3] = {1, 2, 1};
    struct automaton *a = NULL;
    struct err e = {0};
    const size_t enough = automaton_bytes_max(3);
    assert_int_equal(automaton_open(text, 3, enough - 1, &a, &e), ERR_LIMIT);
    assert_null(a);
    assert_int_equal(automaton_open(text, 3, enough, &a, NULL), 0);
    automaton_close(a);
}

static void it_lives_until_its_last_reference_goes(void **state)
{
    (void)state;
    const int32_t text[3] = {1, 2, 1};
    struct automaton *a = open(text, 3);
    assert_ptr_equal(automaton_share(a), a);
    automaton_close(a);
    assert_int_equal(automaton_state_at(a, automaton_step(a, 0, 1))->count, 2);
    automaton_close(a);
}

int main(int argc, char **argv)
{
    seed = argc > 1 ? strtoull(argv[1], NULL, 10) : 20261130;
    print_message("seed %llu\n", (unsigned long long)seed);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_run_is_counted_where_it_occurs),
        cmocka_unit_test(a_run_that_does_not_occur_leads_nowhere),
        cmocka_unit_test(the_cursor_holds_the_longest_match_after_each_token),
        cmocka_unit_test(edges_stand_by_frequency_then_by_token),
        cmocka_unit_test(a_real_text_is_matched_as_a_search_does),
        cmocka_unit_test(an_empty_text_matches_nothing),
        cmocka_unit_test(more_memory_than_allowed_is_not_taken),
        cmocka_unit_test(it_lives_until_its_last_reference_goes),
    };
    return cmocka_run_group_tests_name("automaton", tests, NULL, NULL);
}
