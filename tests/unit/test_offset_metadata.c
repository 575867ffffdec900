/*
 * Settled offsets as commit metadata: texts that an independent program wrote
 * (tests/fixtures/offsets/make_metadata.py) are written and read; everything else is refused
 * and leaves nothing behind.
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
#include "io/offset_metadata.h"

enum { LINE_MAX_BYTES = 65536 };

static void set_bit(struct offset_bits *b, int64_t offset)
{
    const size_t i = (size_t)(offset - b->base);
    assert_in_range(i, 1, INFLIGHT_SPAN_MAX - 1);
    b->bits[i / 8] |= (uint8_t)(1u << i % 8);
    if (i >= b->n_bits)
        b->n_bits = i + 1;
}

/* FROM-TO/STEP,... */
static void read_series(const char *at, struct offset_bits *out)
{
    while (*at != '\t') {
        char *end;
        const int64_t from = strtoll(at, &end, 10);
        const int64_t to = strtoll(end + 1, &end, 10);
        const int64_t step = strtoll(end + 1, &end, 10);
        for (int64_t offset = from; offset <= to; offset += step)
            set_bit(out, offset);
        at = *end == ',' ? end + 1 : end;
    }
}

/* The next vector of the file; false at its end. */
static bool read_vector(FILE *file, struct offset_bits *bits, char text[LINE_MAX_BYTES])
{
    static char line[LINE_MAX_BYTES];
    if (!fgets(line, sizeof line, file))
        return false;
    char *series;
    *bits = (struct offset_bits){.base = strtoll(line, &series, 10)};
    read_series(series + 1, bits);
    const char *encoded = strrchr(line, '\t') + 1;
    const size_t length = strcspn(encoded, "\n");
    memcpy(text, encoded, length);
    text[length] = '\0';
    return true;
}

static FILE *open_vectors(void)
{
    FILE *file = fopen(SHEAF_TEST_DATA "/fixtures/offsets/metadata.tsv", "r");
    assert_non_null(file);
    return file;
}

static void expect_nothing(const struct offset_bits *b, int64_t base)
{
    static const struct offset_bits none;
    assert_true(b->base == base);
    assert_int_equal(b->n_bits, 0);
    assert_memory_equal(b->bits, none.bits, sizeof none.bits);
}

static void test_texts_of_an_independent_writer_are_written_and_read(void **state)
{
    (void)state;
    FILE *file = open_vectors();
    static struct offset_bits want, got;
    static char text[LINE_MAX_BYTES];
    size_t n = 0, longest = 0;
    for (; read_vector(file, &want, text); n++) {
        char written[OFFSET_METADATA_MAX + 1];
        assert_int_equal(offset_metadata_encode(&want, written), strlen(text));
        assert_string_equal(written, text);
        assert_null(offset_metadata_decode(text, strlen(text), want.base, &got));
        assert_true(got.base == want.base);
        assert_int_equal(got.n_bits, want.n_bits);
        assert_memory_equal(got.bits, want.bits, sizeof want.bits);
        longest = strlen(text) > longest ? strlen(text) : longest;
    }
    fclose(file);
    assert_int_equal(n, 51);
    assert_int_equal(longest, OFFSET_METADATA_MAX); /* the worst case is among them */
}

/* Offsets that the tracker has beyond the last settled one say nothing. */
static void test_clear_bits_at_the_end_are_left_out(void **state)
{
    (void)state;
    struct offset_bits b = {.base = 7, .n_bits = INFLIGHT_SPAN_MAX, .bits = {2}};
    const struct offset_bits short_one = {.base = 7, .n_bits = 2, .bits = {2}};
    char a_text[OFFSET_METADATA_MAX + 1], b_text[OFFSET_METADATA_MAX + 1];
    assert_int_equal(offset_metadata_encode(&b, a_text),
                     offset_metadata_encode(&short_one, b_text));
    assert_string_equal(a_text, b_text);
    b.bits[0] = 0;
    assert_int_equal(offset_metadata_encode(&b, a_text), 0);
    assert_string_equal(a_text, "");
}

static void test_every_damaged_character_is_noticed(void **state)
{
    (void)state;
    FILE *file = open_vectors();
    static struct offset_bits bits, got;
    static char text[LINE_MAX_BYTES];
    uint64_t n_drawn = 0;
    while (read_vector(file, &bits, text)) {
        const size_t length = strlen(text);
        for (size_t i = 0; i < length; i += 1 + length / 200) {
            const char was = text[i];
            do
                text[i] = (char)(rng_bits(9, 0, n_drawn++) & 127);
            while (text[i] == was);
            assert_non_null(offset_metadata_decode(text, length, bits.base, &got));
            expect_nothing(&got, bits.base);
            text[i] = was;
        }
        for (size_t n = 1; n < length; n += 1 + length / 200)
            assert_non_null(offset_metadata_decode(text, n, bits.base, &got));
        if (length > 0)
            assert_non_null(offset_metadata_decode(text, length, bits.base + 1, &got));
    }
    fclose(file);
}

/* Texts with a right checksum that no writer makes; from make_metadata.py's functions. */
static void test_what_no_writer_makes_is_refused(void **state)
{
    (void)state;
    static const struct {
        const char *text, *why;
    } cases[] = {
        {"shf1.", "cut short"},
        {"shf2.AAAA", "not Sheaf's"},
        {"consumer-group-metadata", "not Sheaf's"},
        {"shf1.A", "base64url"},
        {"shf1.A=", "base64url"},
        {"shf1.AKdtvEEHAAAAAAAAAA", "cut short"},
        {"shf1.Agvg2zwHAAAAAAAAAAIC", "unknown kind"},
        {"shf1.ABUiYzAHAAAAAAAAAAEB", "out of range"},
        {"shf1.AHE-vSQHAAAAAAAAAAA", "out of range"},
        {"shf1.ALC8cuQHAAAAAAAAAIIAAg", "out of range"},
        {"shf1.AOqLK6kHAAAAAAAAAAICAA", "another length"},
        {"shf1.AFkSJ74HAAAAAAAAAAkC", "another length"},
        {"shf1.AGfuTtAHAAAAAAAAAAIG", "bits follow"},
        {"shf1.AIyKhAQHAAAAAAAAAAIB", "first or last"},
        {"shf1.AA_hdgQHAAAAAAAAAAMC", "first or last"},
        {"shf1.AHv6v-UHAAAAAAAAAAID", "first or last"},
        {"shf1.AfkuAYMHAAAAAAAAACgAKA", "no length"},
        {"shf1.AS8EM1AHAAAAAAAAACgn", "no length"},
        {"shf1.AViiuM0HAAAAAAAAACgnAg", "no length"},
        {"shf1.AXVCwE8HAAAAAAAAACgnAQE", "more follows"},
        {"shf1.AQs4IA4HAAAAAAAAACgo", "first or last"},
        {"shf1.AWnxbDAHAAAAAAAAACj_____AQ", "no length"},
    };
    static struct offset_bits got;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const char *why = offset_metadata_decode(cases[i].text, strlen(cases[i].text), 7, &got);
        assert_non_null(why);
        if (!strstr(why, cases[i].why))
            fail_msg("%s: %s", cases[i].text, why);
        expect_nothing(&got, 7);
    }
}

static void test_random_bytes_do_no_harm(void **state)
{
    (void)state;
    uint64_t n_drawn = 0;
    static struct offset_bits got;
    static char text[OFFSET_METADATA_BROKER_MAX];
    for (int i = 0; i < 20000; i++) {
        const size_t n = (size_t)(rng_bits(3, 0, n_drawn++) % (i % 100 ? 64 : sizeof text));
        memcpy(text, "shf1.", 5);
        for (size_t k = i % 2 ? 5 : 0; k < n; k++)
            text[k] = (char)rng_bits(3, 0, n_drawn++);
        if (n > 0)
            assert_non_null(offset_metadata_decode(text, n, 0, &got));
        expect_nothing(&got, 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_texts_of_an_independent_writer_are_written_and_read),
        cmocka_unit_test(test_clear_bits_at_the_end_are_left_out),
        cmocka_unit_test(test_every_damaged_character_is_noticed),
        cmocka_unit_test(test_what_no_writer_makes_is_refused),
        cmocka_unit_test(test_random_bytes_do_no_harm),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
