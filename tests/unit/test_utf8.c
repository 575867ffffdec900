/*
 * UTF-8 validity as the Unicode standard's table 3-7 has it, against arithmetic written another
 * way: a sequence is valid when its bits make a code point that encodes to those very bytes.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "model/utf8.h"

static size_t encode(uint32_t c, char out[4])
{
    if (c < 0x80) {
        out[0] = (char)c;
        return 1;
    }
    const size_t n = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    for (size_t i = n - 1; i > 0; i--, c /= 64)
        out[i] = (char)(128 + c % 64);
    out[0] = (char)((0xF00u >> n & 0xFFu) | c);
    return n;
}

static bool is_scalar(uint32_t c)
{
    return c <= 0x10FFFF && !(c >= 0xD800 && c <= 0xDFFF);
}

static void every_code_point_is_one_valid_sequence_and_no_cut_of_it_is(void **state)
{
    (void)state;
    for (uint32_t c = 0; c < 0x110000; c++) {
        char text[5];
        const size_t n = encode(c, text);
        text[n] = 'x';
        assert_int_equal(utf8_sequence(text, n + 1), is_scalar(c) ? n : 0);
        for (size_t cut = 0; cut < n; cut++)
            assert_int_equal(utf8_sequence(text, cut), 0);
    }
}

/* Of all 4-byte strings over bytes at the borders of the table's ranges. */
static void a_sequence_is_valid_only_if_its_code_point_encodes_to_it(void **state)
{
    (void)state;
    static const unsigned char bytes[] = {0x00, 0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF,
                                          0xC0, 0xC1, 0xC2, 0xDF, 0xE0, 0xE1, 0xEC, 0xED,
                                          0xEE, 0xEF, 0xF0, 0xF1, 0xF3, 0xF4, 0xF5, 0xFF};
    const size_t n = sizeof bytes;
    for (size_t i = 0; i < n * n * n * n; i++) {
        const unsigned char b[4] = {bytes[i / n / n / n], bytes[i / n / n % n],
                                    bytes[i / n % n], bytes[i % n]};
        size_t want = 0;
        for (size_t length = 1; length <= 4; length++) {
            uint32_t c = length == 1 ? b[0] : b[0] & (0x7Fu >> length);
            for (size_t k = 1; k < length; k++)
                c = c << 6 | (b[k] & 0x3Fu);
            char again[4];
            if (is_scalar(c) && encode(c, again) == length && memcmp(again, b, length) == 0)
                want = length;
        }
        assert_int_equal(utf8_sequence((const char *)b, 4), want);
    }
}

static void the_valid_prefix_ends_where_the_first_invalid_byte_is(void **state)
{
    (void)state;
    /* 1, 2, 3 and 4 bytes long: sequences end at 1, 3, 6, 10. */
    static const char text[] = "a\xc3\xa9\xe4\xb8\xad\xf0\x9f\x98\x80";
    static const size_t ends[] = {0, 1, 1, 3, 3, 3, 6, 6, 6, 6, 10};
    for (size_t cut = 0; cut < sizeof text; cut++) {
        assert_int_equal(utf8_valid_prefix(text, cut), ends[cut]);
        char broken[sizeof text + 1];
        memcpy(broken, text, cut);
        broken[cut] = '\xff';
        memcpy(broken + cut + 1, text + cut, sizeof text - cut);
        assert_int_equal(utf8_valid_prefix(broken, sizeof broken), ends[cut]);
    }
    assert_int_equal(utf8_valid_prefix("a\0\xed\xa0\x80", 5), 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_code_point_is_one_valid_sequence_and_no_cut_of_it_is),
        cmocka_unit_test(a_sequence_is_valid_only_if_its_code_point_encodes_to_it),
        cmocka_unit_test(the_valid_prefix_ends_where_the_first_invalid_byte_is),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
