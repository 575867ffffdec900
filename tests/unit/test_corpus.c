/* Texts in order: who owns which position, who is held out, who is left out. The reference
 * compares every position of every text with all of those before it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "train/corpus.h"

enum { PROMPT = 12, ANSWER = 5, TEXTS = 200 };

/* Prompts over few documents, some of them twice with other answers. */
static void fill(struct corpus *c, size_t n, bool backwards)
{
    for (size_t k = 0; k < n; k++) {
        const size_t i = backwards ? n - 1 - k : k;
        int32_t prompt[PROMPT], answer[ANSWER];
        const uint64_t document = rng_bits(1, 0, i) % 9, question = rng_bits(1, 1, i) % 40;
        for (size_t t = 0; t < PROMPT; t++)
            prompt[t] =
                (int32_t)(t < 8 ? rng_bits(document, 2, t) % 3 : rng_bits(question, 3, t) % 5);
        for (size_t t = 0; t < ANSWER; t++)
            answer[t] = (int32_t)(rng_bits(i, 4, t) % 3);
        assert_int_equal(corpus_add(c, prompt, PROMPT, answer, i % 3 ? ANSWER : 0, 100, NULL),
                         0);
    }
}

static bool begins_alike(const struct corpus_text *a, const struct corpus_text *b, size_t n)
{
    return a->n_tokens >= n && b->n_tokens >= n &&
           memcmp(a->tokens, b->tokens, n * sizeof a->tokens[0]) == 0;
}

static void every_position_belongs_to_the_first_text_that_has_it(void **state)
{
    (void)state;
    struct corpus c = {0};
    fill(&c, TEXTS, false);
    assert_int_equal(corpus_prepare(&c, 100000, NULL), 0);
    assert_int_equal(c.n_texts, TEXTS);
    size_t n = 0;
    for (size_t i = 0; i < c.n_texts; i++)
        for (size_t t = 0; t < c.texts[i].n_tokens; t++) {
            bool is_known = false;
            for (size_t before = 0; before < i; before++)
                is_known = is_known || begins_alike(&c.texts[before], &c.texts[i], t + 1);
            assert_int_equal(is_known, t < c.texts[i].n_shared);
            n += !is_known;
        }
    assert_int_equal(c.n_positions, n);
    corpus_fini(&c);
}

static void equal_prompts_are_on_one_side(void **state)
{
    (void)state;
    struct corpus c = {0};
    fill(&c, TEXTS, false);
    assert_int_equal(corpus_prepare(&c, 100000, NULL), 0);
    size_t n_held_out = 0, n_pairs = 0;
    for (size_t i = 0; i < c.n_texts; i++) {
        n_held_out += c.texts[i].is_held_out;
        for (size_t k = 0; k < i; k++)
            if (begins_alike(&c.texts[i], &c.texts[k], PROMPT)) {
                n_pairs++;
                assert_int_equal(c.texts[i].is_held_out, c.texts[k].is_held_out);
            }
    }
    assert_true(n_pairs > 20);
    assert_true(n_held_out > 0 && n_held_out < TEXTS / 4);
    corpus_fini(&c);
}

/* By what they are, whatever the order they came in. */
static void order_of_adding_changes_nothing(void **state)
{
    (void)state;
    char hex[3][SHA256_HEX_BYTES];
    for (int way = 0; way < 3; way++) {
        struct corpus c = {0};
        fill(&c, TEXTS - (way == 2), way == 1);
        assert_int_equal(corpus_prepare(&c, 500, NULL), 0);
        assert_int_equal(corpus_sha256(&c, hex[way], NULL), 0);
        corpus_fini(&c);
    }
    assert_string_equal(hex[0], hex[1]);
    struct corpus whole = {0};
    char all[SHA256_HEX_BYTES];
    fill(&whole, TEXTS, false);
    assert_int_equal(corpus_prepare(&whole, 100000, NULL), 0);
    assert_int_equal(corpus_sha256(&whole, all, NULL), 0);
    assert_string_not_equal(hex[0], all);
    corpus_fini(&whole);
}

static void texts_are_left_out_until_the_bound_is_kept(void **state)
{
    (void)state;
    struct corpus c = {0};
    fill(&c, TEXTS, false);
    assert_int_equal(corpus_prepare(&c, 500, NULL), 0);
    assert_true(c.n_positions <= 500 && c.n_positions > 250);
    assert_int_equal(c.n_texts + c.n_left_out, TEXTS);
    corpus_fini(&c);
}

static void one_prompt_is_not_enough(void **state)
{
    (void)state;
    struct corpus c = {0};
    struct err e = {0};
    const int32_t prompt[] = {1, 2, 3}, answers[][1] = {{4}, {5}};
    for (int i = 0; i < 2; i++)
        assert_int_equal(corpus_add(&c, prompt, 3, answers[i], 1, 100, NULL), 0);
    assert_int_equal(corpus_prepare(&c, 100, &e), ERR_INVALID);
    assert_non_null(strstr(e.text, "two different texts"));
    corpus_fini(&c);
    const int32_t other[] = {1, 2, 4};
    assert_int_equal(corpus_add(&c, prompt, 3, NULL, 0, 100, NULL), 0);
    assert_int_equal(corpus_add(&c, other, 3, NULL, 0, 100, NULL), 0);
    assert_int_equal(corpus_prepare(&c, 100, NULL), 0);
    assert_int_equal(c.texts[0].is_held_out + c.texts[1].is_held_out, 1);
    corpus_fini(&c);
}

static void long_texts_are_cut(void **state)
{
    (void)state;
    struct corpus c = {0};
    const int32_t prompt[] = {1, 2, 3}, answer[] = {4, 5, 6};
    assert_int_equal(corpus_add(&c, prompt, 3, answer, 3, 5, NULL), 0);
    assert_int_equal(corpus_add(&c, prompt, 3, answer, 3, 2, NULL), 0);
    assert_int_equal(c.texts[0].n_tokens, 5);
    assert_int_equal(c.texts[0].n_prompt, 3);
    assert_int_equal(c.texts[1].n_tokens, 2);
    assert_int_equal(c.texts[1].n_prompt, 2);
    corpus_fini(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_position_belongs_to_the_first_text_that_has_it),
        cmocka_unit_test(equal_prompts_are_on_one_side),
        cmocka_unit_test(order_of_adding_changes_nothing),
        cmocka_unit_test(texts_are_left_out_until_the_bound_is_kept),
        cmocka_unit_test(one_prompt_is_not_enough),
        cmocka_unit_test(long_texts_are_cut),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
