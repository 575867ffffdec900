/* SHA-256 against the examples that FIPS 180-2 prints, and over streams. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/sha256.h"

static const struct {
    const char *text;
    const char *hex;
} cases[] = {
    {"", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
    {"abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"},
    {"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
     "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"},
};

static void buffers_have_the_published_digests(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char hex[SHA256_HEX_BYTES];
        struct err e = {0};
        assert_int_equal(sha256_hex(cases[i].text, strlen(cases[i].text), hex, &e), 0);
        assert_string_equal(hex, cases[i].hex);
    }
}

/* A million times the letter a: longer than the stream is read at once. */
static void streams_have_the_published_digest(void **state)
{
    (void)state;
    FILE *stream = tmpfile();
    assert_non_null(stream);
    for (int i = 0; i < 1000000; i++)
        fputc('a', stream);
    rewind(stream);
    char hex[SHA256_HEX_BYTES];
    struct err e = {0};
    assert_int_equal(sha256_hex_stream(stream, hex, &e), 0);
    assert_string_equal(hex,
                        "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
    fclose(stream);
}

static void a_stream_that_cannot_be_read_is_an_error(void **state)
{
    (void)state;
    FILE *stream = fopen("/", "r");
    assert_non_null(stream);
    char hex[SHA256_HEX_BYTES];
    struct err e = {0};
    assert_int_equal(sha256_hex_stream(stream, hex, &e), ERR_IO);
    fclose(stream);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(buffers_have_the_published_digests),
        cmocka_unit_test(streams_have_the_published_digest),
        cmocka_unit_test(a_stream_that_cannot_be_read_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
