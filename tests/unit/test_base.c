/* The base room: errors, buffers, queues, random numbers. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <errno.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/queue.h"
#include "base/rng.h"

static void first_error_wins(void **state)
{
    (void)state;
    struct err e = {0};
    assert_int_equal(ERR_SET(&e, ERR_IO, "first %d", 1), ERR_IO);
    assert_int_equal(ERR_SET(&e, ERR_NOMEM, "second"), ERR_NOMEM);
    assert_int_equal(e.code, ERR_IO);
    assert_string_equal(e.text, "first 1");
    err_prefix(&e, "line %d", 7);
    assert_string_equal(e.text, "line 7: first 1");
    assert_int_equal(ERR_SET(NULL, ERR_IO, "nobody listens"), ERR_IO);
}

/* What a bad disk answers with, and a path that is wrong. */
static void a_bad_place_gets_its_own_advice(void **state)
{
    static const int errors[] = {ENOENT, ENOSPC, EDQUOT, EFBIG, EIO, EROFS, EACCES, EMFILE};
    enum { N = sizeof errors / sizeof errors[0] };
    (void)state;
    for (size_t i = 0; i < N; i++) {
        const char *advice = err_advice(errors[i]);
        assert_int_equal(strncmp(advice, "; ", 2), 0);
        for (size_t j = 0; j < i; j++)
            assert_string_not_equal(advice, err_advice(errors[j]));
    }
    assert_string_equal(err_advice(EPERM), err_advice(EACCES));
    assert_string_equal(err_advice(0), "");
}

static void buffer_grows_and_hands_over(void **state)
{
    (void)state;
    struct buf b = {0};
    assert_string_equal(buf_str(&b), "");
    for (int i = 0; i < 1000; i++)
        buf_printf(&b, "%d,", i % 10);
    assert_int_equal(b.length, 2000);
    buf_truncate(&b, 4);
    assert_string_equal(buf_str(&b), "0,1,");
    buf_append(&b, "a\0b", 3);
    assert_int_equal(b.length, 7);
    char *bytes = buf_take(&b);
    assert_memory_equal(bytes, "0,1,a\0b", 8);
    free(bytes);
    assert_int_equal(b.length, 0);
}

static void queue_is_bounded_and_ordered(void **state)
{
    (void)state;
    struct queue *q = queue_open(2);
    int items[3];
    assert_true(queue_try_push(q, &items[0]));
    assert_true(queue_push(q, &items[1]));
    assert_false(queue_try_push(q, &items[2]));
    assert_ptr_equal(queue_pop(q, 0), &items[0]);
    queue_shut(q);
    assert_false(queue_push(q, &items[2]));
    assert_false(queue_is_drained(q));
    assert_ptr_equal(queue_pop(q, -1), &items[1]);
    assert_null(queue_pop(q, -1));
    assert_true(queue_is_drained(q));
    queue_close(q);
}

static void draws_depend_on_every_word(void **state)
{
    (void)state;
    assert_int_not_equal(rng_bits(1, 2, 3), rng_bits(2, 1, 3));
    assert_int_not_equal(rng_bits(1, 2, 3), rng_bits(1, 2, 4));
    double sum = 0;
    for (uint64_t i = 0; i < 10000; i++) {
        const double u = rng_uniform(7, 0, i);
        assert_true(u >= 0 && u < 1);
        sum += u;
    }
    assert_true(sum > 4900 && sum < 5100);
}

/* The date as date(1) tells it. */
static void times_are_written_as_rfc_3339_has_them(void **state)
{
    (void)state;
    char out[CLOCK_UTC_BYTES];
    assert_string_equal(clock_format_utc(INT64_C(1700000000070999), out),
                        "2023-11-14T22:13:20Z");
    assert_string_equal(clock_format_utc_ms(INT64_C(1700000000070999), out),
                        "2023-11-14T22:13:20.070Z");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(first_error_wins),
        cmocka_unit_test(times_are_written_as_rfc_3339_has_them),
        cmocka_unit_test(a_bad_place_gets_its_own_advice),
        cmocka_unit_test(buffer_grows_and_hands_over),
        cmocka_unit_test(queue_is_bounded_and_ordered),
        cmocka_unit_test(draws_depend_on_every_word),
    };
    return cmocka_run_group_tests_name("base", tests, NULL, NULL);
}
