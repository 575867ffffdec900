#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "engine/stop.h"

struct claim {
    const char *text;
    size_t new_bytes;
    char *stops[4];
    int index; /* -1: none */
    size_t offset;
};

static const struct claim claims[] = {
    {"alpha beta", 4, {"beta"}, 0, 6},
    {"alpha beta gamma", 3, {"beta gamma"}, 0, 6}, /* over the border of pieces */
    {"alpha beta gamma", 16, {"a"}, 0, 0},         /* the first of many */
    {"alpha beta gamm", 4, {"beta gamma"}, -1, 0}, /* one byte is missing */
    {"beta gamma", 5, {"beta"}, -1, 0},            /* ended in an older piece */
    {"aaa", 1, {"aa"}, 0, 1},                      /* ends in the new byte only */
    {"xxab", 2, {"b", "ab"}, 1, 2},                /* begins first */
    {"xxab", 2, {"ab", "abc", "a"}, 0, 2},         /* the longer of two that begin there */
    {"xxab", 2, {"a", "ab"}, 1, 2},
    {"xxab", 1, {"a", "ab"}, 1, 2}, /* "a" ended before */
    {"ab", 2, {"abc"}, -1, 0},
    {"ab", 2, {"ab"}, 0, 0},
    {"ab", 0, {"ab", "b"}, -1, 0}, /* a token without text */
    {"", 0, {"a"}, -1, 0},
    {"ab", 2, {""}, -1, 0},
    {"\xf0\x9f\xa6\x99", 1, {"\xf0\x9f\xa6\x99"}, 0, 0}, /* bytes, not characters */
};

static void stop_strings_end_in_the_new_piece_and_the_earliest_wins(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof claims / sizeof claims[0]; i++) {
        const struct claim *c = &claims[i];
        size_t n = 0;
        while (n < 4 && c->stops[n])
            n++;
        struct stop_match match = {99, 99};
        const bool found =
            stop_find(c->text, strlen(c->text), c->new_bytes, c->stops, n, &match);
        if (found != (c->index >= 0))
            fail_msg("claim %zu: found %d", i, found);
        if (found && (match.index != (size_t)c->index || match.offset != c->offset))
            fail_msg("claim %zu: stop %zu at %zu", i, match.index, match.offset);
    }
}

/* However text is cut into pieces, the first stop string to be complete is the one found. */
static void cutting_the_text_elsewhere_finds_the_same_end(void **state)
{
    (void)state;
    char *stops[] = {"abab", "ba", "bbb"};
    for (uint64_t run = 0; run < 3000; run++) {
        char text[33] = {0};
        size_t first_end = 0;
        for (size_t i = 0; i < 32; i++)
            text[i] = "aabc"[rng_bits(2, run, i) % 4];
        for (size_t end = 1; end <= 32 && first_end == 0; end++)
            for (size_t k = 0; k < 3; k++) {
                const size_t n = strlen(stops[k]);
                if (end >= n && memcmp(text + end - n, stops[k], n) == 0)
                    first_end = end;
            }
        struct stop_match match;
        for (size_t length = 0, piece = 0, i = 100; length < 32; i++) {
            piece = rng_bits(2, run, i) % 4;
            if (piece > 32 - length)
                piece = 32 - length;
            length += piece;
            const bool found = stop_find(text, length, piece, stops, 3, &match);
            assert_int_equal(found, first_end != 0 && first_end <= length);
            if (found)
                break;
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stop_strings_end_in_the_new_piece_and_the_earliest_wins),
        cmocka_unit_test(cutting_the_text_elsewhere_finds_the_same_end),
    };
    return cmocka_run_group_tests_name("stop", tests, NULL, NULL);
}
