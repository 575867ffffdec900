/* Advice on pieces that break a shared prefix; the savings are worked out by hand. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "advice.h"
#include "base/rng.h"
#include "group_ideal.h"

enum { PROMPTS_MAX = 600 };

/* Prompts under construction; each in a block of its own, so that reading over its end shows.
 */
struct bulk {
    struct group_prompt prompts[PROMPTS_MAX];
    int32_t *tokens[PROMPTS_MAX];
    size_t n;
};

static void begin(struct bulk *bulk)
{
    assert_true(bulk->n < PROMPTS_MAX);
    bulk->n++;
}

static void put(struct bulk *bulk, const int32_t *tokens, size_t n)
{
    struct group_prompt *prompt = &bulk->prompts[bulk->n - 1];
    int32_t *grown = realloc(bulk->tokens[bulk->n - 1], (prompt->n_tokens + n) * sizeof *grown);
    assert_non_null(grown);
    memcpy(grown + prompt->n_tokens, tokens, n * sizeof *grown);
    bulk->tokens[bulk->n - 1] = grown;
    prompt->tokens = grown;
    prompt->n_tokens += n;
}

static void put_one(struct bulk *bulk, int32_t token)
{
    put(bulk, &token, 1);
}

/* n tokens of a text that is told from others by its number; no two texts share a token run. */
static void put_text(struct bulk *bulk, uint64_t text, size_t n)
{
    for (size_t i = 0; i < n; i++)
        put_one(bulk, (int32_t)(1000 + rng_bits(text, i, 0) % 40000));
}

static void clear(struct bulk *bulk)
{
    for (size_t i = 0; i < bulk->n; i++)
        free(bulk->tokens[i]);
    *bulk = (struct bulk){0};
}

static struct advice find_with(const struct bulk *bulk, size_t tokens_min, uint64_t saved_min)
{
    const struct advice_options o = {.tokens_min = tokens_min, .saved_min = saved_min};
    struct advice out;
    struct err e = {0};
    assert_int_equal(advice_find(bulk->prompts, bulk->n, &o, &out, &e), 0);
    uint64_t ideal = 0;
    assert_int_equal(group_ideal_cached(bulk->prompts, bulk->n, tokens_min, &ideal, &e), 0);
    assert_int_equal(out.cached_tokens, ideal);
    return out;
}

static struct advice find(const struct bulk *bulk)
{
    return find_with(bulk, 1, 1);
}

static void piece_is(const struct advice_piece *piece, size_t start, size_t end)
{
    assert_int_equal(piece->start, start);
    assert_int_equal(piece->end, end);
}

/* Head of 5 tokens, time of 3, rest of the system text, document, question of 10, end of 4. */
static void put_timed_job(struct bulk *bulk, int32_t hour, size_t rest, uint64_t document,
                          uint64_t question)
{
    begin(bulk);
    put_text(bulk, 1, 5);
    put(bulk, (const int32_t[]){hour, 10, hour + 1}, 3);
    put_text(bulk, 2, rest);
    put_text(bulk, 100 + document, 200);
    put_text(bulk, 5000 + question, 10);
    put_text(bulk, 3, 4);
}

static void time_at_the_head_of_the_system_text(void **state)
{
    (void)state;
    struct bulk bulk = {0};
    for (int i = 0; i < 10; i++)
        put_timed_job(&bulk, 20 + 2 * i, 100, (uint64_t)i % 2, (uint64_t)i);
    const struct advice advice = find(&bulk);
    assert_int_equal(advice.cached_tokens, 9 * 5);
    assert_int_equal(advice.n_findings, 1);
    const struct advice_finding *f = &advice.findings[0];
    assert_int_equal(f->position, 5);
    assert_int_equal(f->n_jobs, 10);
    piece_is(&f->example[0], 5, 8);
    piece_is(&f->example[1], 5, 8);
    assert_int_not_equal(f->example[0].prompt, f->example[1].prompt);
    /* Head and rest of nine jobs, and the document of four jobs for each of two documents. */
    assert_int_equal(f->saved_tokens, 9 * 105 + 8 * 200 - 9 * 5);
    assert_int_equal(f->shared_tokens, 305);
    clear(&bulk);
}

/* 30 tokens are too few to be a run: only jobs over the same document can be compared, and
 * these are far from each other in the order of their times. */
static void time_before_many_documents(void **state)
{
    (void)state;
    struct bulk bulk = {0};
    for (int i = 0; i < 300; i++)
        put_timed_job(&bulk, 20 + 2 * i, 30, (uint64_t)i % 100, (uint64_t)i);
    const struct advice advice = find_with(&bulk, 16, 1);
    assert_int_equal(advice.cached_tokens, 0);
    assert_int_equal(advice.n_findings, 1);
    assert_int_equal(advice.findings[0].n_jobs, 300);
    assert_int_equal(advice.findings[0].saved_tokens, 299 * 35 + 200 * 200);
    clear(&bulk);
}

/* hh:mm:ss as one token a digit: two jobs may differ in any of its digits, or agree. */
static void times_that_agree_in_some_digits_are_one_piece(void **state)
{
    (void)state;
    struct bulk bulk = {0};
    for (uint64_t i = 0; i < 60; i++) {
        const int32_t second = (int32_t)(rng_bits(7, i, 0) % 86400);
        const int32_t clock[8] = {second / 36000,      second / 3600 % 10, 99,
                                  second % 3600 / 600, second / 60 % 10,   99,
                                  second % 60 / 10,    second % 10};
        begin(&bulk);
        put_text(&bulk, 1, 40);
        put(&bulk, clock, 8);
        put_text(&bulk, 2, 500);
        put_text(&bulk, 5000 + i, 10);
    }
    const struct advice advice = find_with(&bulk, 1, 60 * 100);
    assert_int_equal(advice.n_findings, 1);
    const struct advice_finding *f = &advice.findings[0];
    assert_int_equal(f->n_jobs, 60);
    assert_int_equal(f->position, 40);
    piece_is(&f->example[0], 40, 48);
    assert_int_equal(f->saved_tokens, 59 * 540 - advice.cached_tokens);
    clear(&bulk);
}

/* The first two agree in the second token of the piece; the third shows that it changes too. */
static void a_later_job_shows_that_the_piece_is_longer(void **state)
{
    (void)state;
    struct bulk bulk = {0};
    const int32_t pieces[3][2] = {{1, 5}, {2, 5}, {3, 6}};
    for (uint64_t i = 0; i < 3; i++) {
        begin(&bulk);
        put_text(&bulk, 1, 10);
        put(&bulk, pieces[i], 2);
        put_text(&bulk, 2, 200);
        put_text(&bulk, 5000 + i, 4);
    }
    const struct advice advice = find(&bulk);
    assert_int_equal(advice.n_findings, 1);
    piece_is(&advice.findings[0].example[0], 10, 12);
    piece_is(&advice.findings[0].example[1], 10, 12);
    assert_int_equal(advice.findings[0].saved_tokens, 2 * 200);
    clear(&bulk);
}

static void one_space_more(void **state)
{
    (void)state;
    struct bulk bulk = {0};
    for (uint64_t i = 0; i < 20; i++) {
        begin(&bulk);
        put_text(&bulk, 1, 12);
        if (i % 4 == 0)
            put_one(&bulk, 220);
        put_text(&bulk, 2, 188);
        put_text(&bulk, 5000 + i, 10);
    }
    const struct advice advice = find(&bulk);
    /* Five jobs with the space, fifteen without: the second kind shares 12 with the first. */
    assert_int_equal(advice.cached_tokens, 4 * 201 + 12 + 14 * 200);
    assert_int_equal(advice.n_findings, 1);
    const struct advice_finding *f = &advice.findings[0];
    assert_int_equal(f->position, 12);
    assert_int_equal(f->n_jobs, 20);
    assert_int_equal(f->example[0].end + f->example[1].end, 12 + 13);
    assert_int_equal(f->saved_tokens, 19 * 200 - (4 * 201 + 12 + 14 * 200));
    clear(&bulk);
}

static void names_of_different_lengths_in_the_second_line(void **state)
{
    (void)state;
    struct bulk bulk = {0};
    for (uint64_t i = 0; i < 24; i++) {
        begin(&bulk);
        put_text(&bulk, 1, 30);
        put_one(&bulk, 11);
        put_text(&bulk, 900 + i, 1 + i % 6);
        put_text(&bulk, 2, 300);
        put_text(&bulk, 5000 + i, 10);
    }
    const struct advice advice = find(&bulk);
    assert_int_equal(advice.cached_tokens, 23 * 31);
    assert_int_equal(advice.n_findings, 1);
    const struct advice_finding *f = &advice.findings[0];
    assert_int_equal(f->position, 31);
    for (int k = 0; k < 2; k++)
        piece_is(&f->example[k], 31, 32 + f->example[k].prompt % 6);
    assert_int_equal(f->saved_tokens, 23 * 300);
    assert_int_equal(f->shared_tokens, 331);
    clear(&bulk);
}

static void an_id_of_each_job(void **state)
{
    (void)state;
    struct bulk bulk = {0};
    for (uint64_t i = 0; i < 16; i++) {
        begin(&bulk);
        put_text(&bulk, 900 + i, 12); /* at the very start: nothing is shared today */
        put_text(&bulk, 2, 64);
        put_text(&bulk, 5000 + i, 10);
    }
    const struct advice advice = find(&bulk);
    assert_int_equal(advice.cached_tokens, 0);
    assert_int_equal(advice.n_findings, 1);
    assert_int_equal(advice.findings[0].position, 0);
    assert_int_equal(advice.findings[0].saved_tokens, 15 * 64);
    clear(&bulk);
}

/* The same with one token less is no run. */
static void a_run_below_the_limit_is_no_advice(void **state)
{
    (void)state;
    struct bulk bulk = {0};
    for (uint64_t i = 0; i < 16; i++) {
        begin(&bulk);
        put_text(&bulk, 900 + i, 12);
        put_text(&bulk, 2, ADVICE_RUN_TOKENS - 1);
        put_text(&bulk, 5000 + i, 10);
    }
    assert_int_equal(find(&bulk).n_findings, 0);
    clear(&bulk);
}

static void a_piece_above_the_limit_is_no_advice(void **state)
{
    (void)state;
    for (size_t length = ADVICE_PIECE_TOKENS; length <= ADVICE_PIECE_TOKENS + 1; length++) {
        struct bulk bulk = {0};
        for (uint64_t i = 0; i < 4; i++) {
            begin(&bulk);
            put_text(&bulk, 900 + i, length);
            put_text(&bulk, 2, 200);
        }
        assert_int_equal(find(&bulk).n_findings, length == ADVICE_PIECE_TOKENS);
        clear(&bulk);
    }
}

static void honest_documents_need_no_advice(void **state)
{
    (void)state;
    struct bulk bulk = {0};
    for (uint64_t i = 0; i < 200; i++) {
        begin(&bulk);
        put_text(&bulk, 1, 90);
        put_text(&bulk, 100 + i / 4, 300);
        put_text(&bulk, 5000 + i, 12);
        put_text(&bulk, 3, 8);
    }
    const struct advice advice = find(&bulk);
    assert_int_equal(advice.n_findings, 0);
    assert_int_equal(advice.cached_tokens, 199 * 90 + 150 * 300);
    clear(&bulk);
}

/* The end of the prompt says what to do, after the question: it could stand before it. */
static void a_question_before_long_instructions(void **state)
{
    (void)state;
    struct bulk bulk = {0};
    for (uint64_t i = 0; i < 8; i++) {
        begin(&bulk);
        put_text(&bulk, 1, 400);
        put_text(&bulk, 5000 + i, 15);
        put_text(&bulk, 2, 100);
    }
    const struct advice advice = find(&bulk);
    assert_int_equal(advice.n_findings, 1);
    assert_int_equal(advice.findings[0].position, 400);
    assert_int_equal(advice.findings[0].saved_tokens, 7 * 100);
    clear(&bulk);
}

static void tenants_share_nothing_and_get_no_advice_to(void **state)
{
    (void)state;
    static const char *const salts[] = {"a", "b", "c", "d"};
    for (int own = 0; own < 2; own++) {
        struct bulk bulk = {0};
        for (int i = 0; i < 4; i++) {
            put_timed_job(&bulk, 20 + 2 * i, 100, 0, (uint64_t)i);
            bulk.prompts[bulk.n - 1].salt = own ? salts[i] : salts[i / 2];
        }
        const struct advice advice = find(&bulk);
        if (own) {
            assert_int_equal(advice.n_findings, 0);
        } else { /* one piece of advice, counted for two tenants of two jobs each */
            assert_int_equal(advice.n_findings, 1);
            assert_int_equal(advice.findings[0].saved_tokens, 2 * 300);
            assert_int_equal(advice.findings[0].n_jobs, 4);
        }
        clear(&bulk);
    }
}

static void savings_below_the_wish_are_left_out(void **state)
{
    (void)state;
    struct bulk bulk = {0};
    for (int i = 0; i < 10; i++)
        put_timed_job(&bulk, 20 + 2 * i, 100, 0, (uint64_t)i);
    assert_int_equal(find_with(&bulk, 1, 9 * 300).n_findings, 1);
    assert_int_equal(find_with(&bulk, 1, 9 * 300 + 1).n_findings, 0);
    clear(&bulk);
}

static void the_ten_best_of_twelve_places_best_first(void **state)
{
    (void)state;
    struct bulk bulk = {0};
    for (uint64_t place = 0; place < 12; place++)
        for (uint64_t i = 0; i < 3 + (place * 5) % 12; i++) {
            begin(&bulk);
            put_text(&bulk, 10 + place, 20);
            put_text(&bulk, 5000 + 100 * place + i, 2);
            put_text(&bulk, 30 + place, 100);
        }
    const struct advice advice = find(&bulk);
    assert_int_equal(advice.n_findings, ADVICE_FINDINGS_MAX);
    for (size_t i = 0; i < advice.n_findings; i++) {
        assert_int_equal(advice.findings[i].n_jobs, 14 - i);
        /* Without the piece the prompts are equal: each but the first finds 120 tokens. */
        assert_int_equal(advice.findings[i].saved_tokens, (13 - i) * 100);
    }
    clear(&bulk);
}

/* ------------------------------------------------------------------ hostile input */

static void equal_tokens_without_end(void **state)
{
    (void)state;
    struct bulk bulk = {0};
    int32_t *same = calloc(3000, sizeof *same);
    for (size_t i = 0; i < 300; i++) {
        begin(&bulk);
        put(&bulk, same, 2000 + i % 7 * 100);
    }
    assert_int_equal(find(&bulk).n_findings, 0);
    free(same);
    clear(&bulk);
}

static void short_periods_with_a_piece(void **state)
{
    (void)state;
    struct bulk bulk = {0};
    for (size_t i = 0; i < 100; i++) {
        begin(&bulk);
        for (size_t k = 0; k < 3000; k++)
            put_one(&bulk, k == 10 ? (int32_t)(50 + i) : (int32_t)(k % 3));
    }
    const struct advice advice = find(&bulk);
    for (size_t i = 0; i < advice.n_findings; i++)
        assert_true(advice.findings[i].saved_tokens <= 99 * 2990);
    clear(&bulk);
}

static void a_giant_and_an_empty_prompt(void **state)
{
    (void)state;
    enum { GIANT = 4000000 };
    int32_t *tokens = malloc(GIANT * sizeof *tokens);
    assert_non_null(tokens);
    for (size_t i = 0; i < GIANT; i++)
        tokens[i] = (int32_t)(rng_bits(9, i, 0) % 50000);
    const struct group_prompt prompts[] = {
        {tokens, GIANT, NULL}, {NULL, 0, NULL}, {tokens, 1, NULL}, {tokens + 8, GIANT - 8, ""}};
    const struct advice_options o = {.tokens_min = 1, .saved_min = 1};
    struct advice advice;
    struct err e = {0};
    assert_int_equal(advice_find(prompts, 1, &o, &advice, &e), 0);
    assert_int_equal(advice.n_findings, 0);
    /* The last one lacks eight tokens at the start. */
    assert_int_equal(advice_find(prompts, 4, &o, &advice, &e), 0);
    assert_int_equal(advice.n_findings, 1);
    assert_int_equal(advice.findings[0].saved_tokens, GIANT - 9);
    assert_int_equal(advice_find(prompts, 0, &o, &advice, &e), 0);
    free(tokens);
}

static void a_hundred_thousand_tiny_prompts(void **state)
{
    (void)state;
    enum { N = 100000 };
    int32_t(*tokens)[4] = malloc(N * sizeof *tokens);
    struct group_prompt *prompts = calloc(N, sizeof *prompts);
    assert_true(tokens && prompts);
    for (size_t i = 0; i < N; i++) {
        for (size_t k = 0; k < 4; k++)
            tokens[i][k] = (int32_t)(i >> (4 * k) & 15);
        prompts[i] = (struct group_prompt){tokens[i], 4, NULL};
    }
    const struct advice_options o = {.tokens_min = 1, .saved_min = 1};
    struct advice advice;
    struct err e = {0};
    uint64_t ideal;
    assert_int_equal(advice_find(prompts, N, &o, &advice, &e), 0);
    assert_int_equal(advice.n_findings, 0);
    assert_int_equal(group_ideal_cached(prompts, N, 1, &ideal, &e), 0);
    assert_int_equal(advice.cached_tokens, ideal);
    free(prompts);
    free(tokens);
}

static void too_many_prompts_are_refused(void **state)
{
    (void)state;
    const struct advice_options o = {0};
    struct advice advice;
    struct err e = {0};
    assert_int_equal(advice_find(NULL, ADVICE_PROMPTS_MAX + 1, &o, &advice, &e), ERR_LIMIT);
    const struct group_prompt long_one = {NULL, (size_t)1 << 31, NULL};
    err_clear(&e);
    assert_int_equal(advice_find(&long_one, 1, &o, &advice, &e), ERR_LIMIT);
}

/* Few different tokens make long common prefixes, equal prompts and prefixes of others; find()
 * holds the count against group_ideal_cached, which sorts in another way. */
static void today_is_counted_as_the_ideal(void **state)
{
    (void)state;
    static const char *const salts[] = {NULL, "", "x", "y"};
    for (uint64_t round = 0; round < 60; round++) {
        struct bulk bulk = {0};
        const uint64_t n = rng_bits(round, 0, 1) % 90;
        for (uint64_t i = 0; i < n; i++) {
            begin(&bulk);
            bulk.prompts[i].salt = salts[rng_bits(round, i, 2) % (1 + round % 4)];
            const uint64_t length = rng_bits(round, i, 3) % 300;
            for (uint64_t k = 0; k < length; k++)
                put_one(&bulk, rng_bits(round * 1000 + i, k, 4) % 100 < round % 5);
        }
        const struct advice advice = find_with(&bulk, round % 40, 0);
        for (size_t i = 0; i < advice.n_findings; i++)
            for (int k = 0; k < 2; k++) {
                const struct advice_piece *piece = &advice.findings[i].example[k];
                assert_true(piece->prompt < bulk.n && piece->start <= piece->end &&
                            piece->end <= bulk.prompts[piece->prompt].n_tokens);
            }
        clear(&bulk);
    }
}

int main(int argc, char **argv)
{
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(time_at_the_head_of_the_system_text),
        cmocka_unit_test(time_before_many_documents),
        cmocka_unit_test(times_that_agree_in_some_digits_are_one_piece),
        cmocka_unit_test(a_later_job_shows_that_the_piece_is_longer),
        cmocka_unit_test(one_space_more),
        cmocka_unit_test(names_of_different_lengths_in_the_second_line),
        cmocka_unit_test(an_id_of_each_job),
        cmocka_unit_test(a_run_below_the_limit_is_no_advice),
        cmocka_unit_test(a_piece_above_the_limit_is_no_advice),
        cmocka_unit_test(honest_documents_need_no_advice),
        cmocka_unit_test(a_question_before_long_instructions),
        cmocka_unit_test(tenants_share_nothing_and_get_no_advice_to),
        cmocka_unit_test(savings_below_the_wish_are_left_out),
        cmocka_unit_test(the_ten_best_of_twelve_places_best_first),
        cmocka_unit_test(equal_tokens_without_end),
        cmocka_unit_test(short_periods_with_a_piece),
        cmocka_unit_test(a_giant_and_an_empty_prompt),
        cmocka_unit_test(a_hundred_thousand_tiny_prompts),
        cmocka_unit_test(too_many_prompts_are_refused),
        cmocka_unit_test(today_is_counted_as_the_ideal),
    };
    return cmocka_run_group_tests_name("advice", tests, NULL, NULL);
}
