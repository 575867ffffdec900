/* When a failed job is tried again: how long it waits, in which order, how often, until when.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "retry.h"

enum { DRAWS = 20000 };
#define SECOND INT64_C(1000000)

static struct job *make_job(int64_t offset)
{
    struct job *job = calloc(1, sizeof *job);
    job->source.offset = offset;
    return job;
}

/* A uniform draw from [0, most) has its mean at the half, and tenths that are alike. */
static void check_jitter(int64_t n_failed, int64_t most_us)
{
    int64_t sum_us = 0;
    size_t tenths[10] = {0};
    for (uint64_t i = 0; i < DRAWS; i++) {
        const int64_t us = retry_delay_us(7, i, n_failed);
        assert_true(us >= 0 && us < most_us);
        sum_us += us / DRAWS;
        tenths[us / (most_us / 10)]++;
    }
    assert_true(sum_us > most_us * 48 / 100 && sum_us < most_us * 52 / 100);
    for (size_t i = 0; i < 10; i++)
        assert_true(tenths[i] > DRAWS / 10 * 9 / 10 && tenths[i] < DRAWS / 10 * 11 / 10);
}

static void the_wait_is_a_random_part_of_1_2_4_seconds_up_to_5_minutes(void **state)
{
    (void)state;
    static const int64_t seconds[] = {1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300};
    for (size_t i = 0; i < sizeof seconds / sizeof seconds[0]; i++)
        check_jitter((int64_t)i + 1, seconds[i] * SECOND);
    check_jitter(1000000, 300 * SECOND);
}

static void equal_seeds_wait_equally_and_others_do_not(void **state)
{
    (void)state;
    size_t n_same = 0;
    for (uint64_t i = 0; i < 100; i++) {
        assert_int_equal(retry_delay_us(3, i, 4), retry_delay_us(3, i, 4));
        n_same += retry_delay_us(3, i, 4) == retry_delay_us(4, i, 4);
    }
    assert_true(n_same < 5);
}

static void jobs_come_back_when_they_are_due_and_not_before(void **state)
{
    (void)state;
    enum { N = 50 };
    struct retry r = {.seed = 11};
    int64_t due_us[N];
    for (int64_t i = 0; i < N; i++) {
        due_us[i] = 5 * SECOND + retry_delay_us(11, (uint64_t)i, 1);
        assert_true(retry_add(&r, make_job(i), 5 * SECOND, 0));
    }
    assert_int_equal(r.n, N);
    size_t n = 0;
    for (int64_t now_us = 5 * SECOND; now_us <= 6 * SECOND; now_us += 1000) {
        struct job *job;
        while ((job = retry_next(&r, now_us))) {
            const int64_t at_us = due_us[job->source.offset];
            assert_true(at_us <= now_us && at_us > now_us - 1000);
            assert_int_equal(job->attempts, 1);
            job_free(job);
            n++;
        }
    }
    assert_int_equal(n, N);
    assert_int_equal(r.n, 0);
}

static void the_fifth_failure_is_the_last(void **state)
{
    (void)state;
    struct retry r = {0};
    struct job *job = make_job(1);
    for (int i = 1; i <= 4; i++) {
        assert_true(retry_add(&r, job, 0, 0));
        assert_ptr_equal(retry_next(&r, 300 * SECOND), job);
    }
    assert_false(retry_add(&r, job, 0, 0));
    assert_int_equal(job->attempts, 5);
    assert_int_equal(r.n, 0);
    job_free(job);
}

static void nobody_waits_beyond_its_deadline(void **state)
{
    (void)state;
    struct retry r = {.seed = 2};
    struct job *job = make_job(1);
    job->attempts = 3; /* would wait 8 s at most */
    assert_true(retry_delay_us(2, 0, 4) > 1000);
    assert_true(retry_add(&r, job, 0, 1000));
    assert_null(retry_next(&r, 999));
    assert_ptr_equal(retry_next(&r, 1000), job);
    job_free(job);
}

static void dropping_frees_all(void **state)
{
    (void)state;
    struct retry r = {0};
    for (int i = 0; i < 10; i++)
        assert_true(retry_add(&r, make_job(i), 0, 0));
    retry_drop(&r);
    assert_int_equal(r.n, 0);
    assert_null(retry_next(&r, INT64_MAX));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_wait_is_a_random_part_of_1_2_4_seconds_up_to_5_minutes),
        cmocka_unit_test(equal_seeds_wait_equally_and_others_do_not),
        cmocka_unit_test(jobs_come_back_when_they_are_due_and_not_before),
        cmocka_unit_test(the_fifth_failure_is_the_last),
        cmocka_unit_test(nobody_waits_beyond_its_deadline),
        cmocka_unit_test(dropping_frees_all),
    };
    return cmocka_run_group_tests_name("retry", tests, NULL, NULL);
}
