/* Suspects run alone, first, and starve nobody; against an engine that is a number. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "alone.h"
#include "base/rng.h"

enum { BATCH = 4 };

static struct job *make_job(int64_t offset)
{
    struct job *job = calloc(1, sizeof *job);
    job->source.offset = offset;
    return job;
}

static void the_first_has_its_turn_at_once_and_nothing_is_added_meanwhile(void **state)
{
    (void)state;
    struct alone a;
    alone_init(&a, BATCH);
    assert_false(alone_has_turn(&a, true));
    alone_add(&a, make_job(1));
    assert_true(alone_has_turn(&a, true)); /* others in the engine run to their end */
    struct job *job = alone_next(&a, true);
    assert_int_equal(job->source.offset, 1);
    assert_true(alone_has_turn(&a, true)); /* it runs */
    assert_null(alone_next(&a, true));     /* it has ended */
    assert_false(alone_has_turn(&a, true));
    job_free(job);
}

static void others_come_between_two_when_they_wait(void **state)
{
    (void)state;
    struct alone a;
    alone_init(&a, BATCH);
    alone_add(&a, make_job(1));
    alone_add(&a, make_job(2));
    job_free(alone_next(&a, true));
    for (int i = 0; i < BATCH; i++) {
        assert_null(alone_next(&a, true));
        assert_false(alone_has_turn(&a, true));
        alone_note_other(&a);
    }
    assert_true(alone_has_turn(&a, true));
    job_free(alone_next(&a, true));
    assert_int_equal(a.n, 0);
}

static void suspects_follow_each_other_when_nobody_else_waits(void **state)
{
    (void)state;
    struct alone a;
    alone_init(&a, BATCH);
    for (int i = 0; i < 3; i++)
        alone_add(&a, make_job(i));
    for (int i = 0; i < 3; i++) {
        struct job *job = alone_next(&a, false);
        assert_int_equal(job->source.offset, i);
        job_free(job);
    }
    assert_null(alone_next(&a, false));
}

/* As the pipeline does it: an engine of BATCH places, random arrivals and endings. */
static void whatever_comes_nobody_shares_with_a_suspect_and_all_end(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 200; seed++) {
        struct alone a;
        alone_init(&a, BATCH);
        size_t n_running = 0, n_waiting = 0, n_left = 60, n_suspects_left = 20;
        bool suspect_runs = false;
        for (uint64_t t = 0; n_left + n_suspects_left + a.n + n_waiting + n_running > 0; t++) {
            assert_true(t < 10000);
            if (n_left > 0 && rng_uniform(seed, 0, t) < 0.5) {
                n_left--;
                n_waiting++;
            }
            if (n_suspects_left > 0 && rng_uniform(seed, 1, t) < 0.2) {
                n_suspects_left--;
                alone_add(&a, make_job(0));
            }
            if (n_running > 0 && rng_uniform(seed, 2, t) < 0.5) {
                n_running--;
                suspect_runs = false;
            }
            struct job *job = n_running == 0 ? alone_next(&a, n_waiting > 0) : NULL;
            if (job) {
                n_running = 1;
                suspect_runs = true;
                job_free(job);
            }
            while (n_running < BATCH && n_waiting > 0 && !alone_has_turn(&a, n_waiting > 0)) {
                assert_false(suspect_runs);
                n_running++;
                n_waiting--;
                alone_note_other(&a);
            }
        }
    }
}

static void dropping_frees_those_that_wait(void **state)
{
    (void)state;
    struct alone a;
    alone_init(&a, BATCH);
    alone_add(&a, make_job(1));
    alone_add(&a, make_job(2));
    alone_drop(&a);
    assert_false(alone_has_turn(&a, true));
    alone_add(&a, make_job(3));
    job_free(alone_next(&a, true));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_first_has_its_turn_at_once_and_nothing_is_added_meanwhile),
        cmocka_unit_test(others_come_between_two_when_they_wait),
        cmocka_unit_test(suspects_follow_each_other_when_nobody_else_waits),
        cmocka_unit_test(whatever_comes_nobody_shares_with_a_suspect_and_all_end),
        cmocka_unit_test(dropping_frees_those_that_wait),
    };
    return cmocka_run_group_tests_name("alone", tests, NULL, NULL);
}
