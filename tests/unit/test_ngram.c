/* The index of a sequence's own tokens against a search through its window. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "engine/ngram.h"

enum { TEXT = 600 };

static uint64_t seed;

static int32_t draw(uint64_t *counter, size_t n)
{
    return (int32_t)(rng_uniform(seed, 23, (*counter)++) * (double)n);
}

static struct ngram *open(size_t window)
{
    struct ngram *ix = NULL;
    assert_int_equal(ngram_open(window, &ix, NULL), 0);
    return ix;
}

/* Of text[0..n), whose last `window` tokens count: how many tokens up to `earlier` are those up
 * to the end. */
static uint32_t common(const int32_t *text, size_t n, size_t window, size_t earlier)
{
    const size_t oldest = n > window ? n - window : 0;
    uint32_t length = 0;
    while (length < NGRAM_LENGTH_MAX && earlier >= oldest + length &&
           text[earlier - length] == text[n - 1 - length])
        length++;
    return length;
}

/* Longest match among the NGRAM_MATCHES_MAX latest places that end with the same pair. */
static void search(const int32_t *text, size_t n, size_t window, struct ngram_match *out)
{
    *out = (struct ngram_match){0};
    size_t n_places = 0;
    for (size_t i = n - 1; i-- > 1 && n_places < NGRAM_MATCHES_MAX && n - i <= window;) {
        if (text[i] != text[n - 1] || text[i - 1] != text[n - 2])
            continue;
        n_places++;
        const uint32_t length = common(text, n, window, i);
        if (length < 2 || length < out->length)
            continue;
        if (length > out->length)
            out->n_ends = 0;
        out->length = length;
        out->ends[out->n_ends++] = i;
    }
}

static void the_longest_match_is_found_in_the_window(void **state)
{
    (void)state;
    for (uint64_t episode = 0, counter = 0; episode < 40; episode++) {
        const size_t window = episode % 2 ? 128 : 1024,
                     n_letters = 1 + (size_t)draw(&counter, 3);
        struct ngram *ix = open(window);
        int32_t text[TEXT];
        for (size_t i = 0; i < TEXT; i++) {
            text[i] = draw(&counter, n_letters);
            ngram_add(ix, text[i]);
            struct ngram_match found, expected;
            ngram_find(ix, &found);
            if (i == 0) {
                assert_int_equal(found.length, 0);
                continue;
            }
            search(text, i + 1, window, &expected);
            assert_int_equal(found.length, expected.length);
            assert_int_equal(found.n_ends, expected.n_ends);
            for (size_t k = 0; k < found.n_ends; k++)
                assert_int_equal(found.ends[k], expected.ends[k]);
        }
        ngram_close(ix);
    }
}

/* Few slots for many pairs: places of other pairs stand in the way, and count for nothing. */
static void what_is_found_did_stand_there(void **state)
{
    (void)state;
    for (uint64_t episode = 0, counter = 1 << 20; episode < 40; episode++) {
        const size_t window = (size_t)2 << episode % 5;
        struct ngram *ix = open(window);
        int32_t text[TEXT];
        for (size_t i = 0; i < TEXT; i++) {
            text[i] = draw(&counter, 6);
            ngram_add(ix, text[i]);
            struct ngram_match found;
            ngram_find(ix, &found);
            assert_true((found.length >= 2) == (found.n_ends > 0));
            for (size_t k = 0; k < found.n_ends; k++) {
                assert_true(found.ends[k] < i && i + 1 - found.ends[k] <= window);
                assert_int_equal(common(text, i + 1, window, found.ends[k]), found.length);
                assert_int_equal(ngram_token(ix, found.ends[k]), text[found.ends[k]]);
            }
        }
        ngram_close(ix);
    }
}

static void cleared_it_knows_nothing(void **state)
{
    (void)state;
    struct ngram *ix = open(64);
    const int32_t text[] = {5, 6, 7, 5, 6};
    for (size_t i = 0; i < 5; i++)
        ngram_add(ix, text[i]);
    struct ngram_match match;
    ngram_find(ix, &match);
    assert_int_equal(match.length, 2);
    assert_int_equal(match.ends[0], 1);
    ngram_clear(ix);
    assert_int_equal(ngram_n_tokens(ix), 0);
    ngram_find(ix, &match);
    assert_int_equal(match.length, 0);
    ngram_add(ix, 5);
    ngram_add(ix, 6);
    ngram_find(ix, &match);
    assert_int_equal(match.length, 0);
    ngram_close(ix);
    ngram_close(NULL);
}

int main(int argc, char **argv)
{
    seed = argc > 1 ? strtoull(argv[1], NULL, 10) : 20261130;
    print_message("seed %llu\n", (unsigned long long)seed);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_longest_match_is_found_in_the_window),
        cmocka_unit_test(what_is_found_did_stand_there),
        cmocka_unit_test(cleared_it_knows_nothing),
    };
    return cmocka_run_group_tests_name("ngram", tests, NULL, NULL);
}
