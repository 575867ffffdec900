/* The table of step times: between points, at jumps, and corrected by steps. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/rng.h"
#include "engine/spec_time.h"

/* Written so that NaN fails. */
static void assert_near(double x, double expected, double tolerance)
{
    assert_true(fabs(x - expected) <= tolerance);
}

static void times_lie_on_lines_between_the_points(void **state)
{
    (void)state;
    const struct spec_time_point points[] = {
        {1, 100}, {8, 107}, {9, 150}, {16, 150}, {32, 310}};
    struct spec_time t;
    spec_time_init(&t, points, 5);
    const struct {
        size_t n_rows;
        double us;
    } cases[] = {{0, 100},  {1, 100},  {2, 101},  {8, 107},  {9, 150},
                 {12, 150}, {16, 150}, {24, 230}, {32, 310}, {64, 630}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        assert_near(spec_time_us(&t, cases[i].n_rows), cases[i].us, 1e-9);
}

static void one_point_says_the_same_of_all(void **state)
{
    (void)state;
    struct spec_time t;
    spec_time_init(&t, &(struct spec_time_point){4, 50}, 1);
    assert_near(spec_time_us(&t, 1), 50, 1e-9);
    assert_near(spec_time_us(&t, 400), 50, 1e-9);
    spec_time_observe(&t, 7, 60);
    assert_true(spec_time_us(&t, 7) > 50);
}

static void more_rows_are_never_faster(void **state)
{
    (void)state;
    const struct spec_time_point points[] = {{1, 100}, {2, 90}, {4, 95}, {8, 120}};
    struct spec_time t;
    spec_time_init(&t, points, 4);
    assert_near(spec_time_us(&t, 3), 100, 1e-9);
    assert_near(spec_time_us(&t, 8), 120, 1e-9);
}

static void steps_correct_the_pace_and_the_point(void **state)
{
    (void)state;
    const struct spec_time_point points[] = {{1, 100}, {8, 200}, {16, 300}};
    struct spec_time t;
    spec_time_init(&t, points, 3);
    /* A machine that is slower by half, whatever is asked of it, within a tenth of noise. */
    for (uint64_t i = 0; i < 4000; i++) {
        const size_t n_rows = i % 3 == 0 ? 1 : i % 3 == 1 ? 8 : 16;
        const double us = n_rows == 1 ? 150 : n_rows == 8 ? 300 : 450;
        spec_time_observe(&t, n_rows, us * (0.9 + 0.2 * rng_uniform(1, 1, i)));
    }
    assert_near(spec_time_us(&t, 1), 150, 6);
    assert_near(spec_time_us(&t, 8), 300, 12);
    assert_near(spec_time_us(&t, 16), 450, 18);
    /* Eight rows turn out worse than the others. */
    for (uint64_t i = 0; i < 4000; i++) {
        const size_t n_rows = i % 3 == 0 ? 1 : i % 3 == 1 ? 8 : 16;
        spec_time_observe(&t, n_rows, n_rows == 1 ? 150 : n_rows == 8 ? 400 : 450);
    }
    assert_near(spec_time_us(&t, 1), 150, 12);
    assert_near(spec_time_us(&t, 8), 400, 32);
}

static void only_the_pace_follows_when_one_point_is_seen(void **state)
{
    (void)state;
    const struct spec_time_point points[] = {{1, 100}, {8, 200}};
    struct spec_time t;
    spec_time_init(&t, points, 2);
    for (int i = 0; i < 10000; i++)
        spec_time_observe(&t, 1, 70);
    assert_near(spec_time_us(&t, 1), 70, 1);
    assert_near(spec_time_us(&t, 8), 140, 4);
}

static void a_step_that_was_held_up_says_little(void **state)
{
    (void)state;
    const struct spec_time_point points[] = {{1, 100}, {8, 200}};
    struct spec_time t;
    spec_time_init(&t, points, 2);
    spec_time_observe(&t, 1, 20000);
    spec_time_observe(&t, 1, 0);
    assert_true(spec_time_us(&t, 1) < 110);
}

static void the_best_rate_is_the_best_of_all_counts(void **state)
{
    (void)state;
    for (uint64_t episode = 0, counter = 0; episode < 2000; episode++) {
        struct spec_time_point points[6];
        size_t n_rows = 0;
        double us = 50;
        for (size_t i = 0; i < 6; i++) {
            n_rows += 1 + (size_t)(rng_uniform(6, 1, counter++) * 9);
            us += rng_uniform(6, 1, counter++) * 60;
            points[i] = (struct spec_time_point){n_rows, us};
        }
        struct spec_time t;
        spec_time_init(&t, points, 6);
        const double p = rng_uniform(6, 1, counter++),
                     tokens = 1 + 9 * rng_uniform(6, 1, counter++);
        const double us_more = 100 * rng_uniform(6, 1, counter++);
        const size_t from = 1 + (size_t)(rng_uniform(6, 1, counter++) * 50);
        const size_t k_max = (size_t)(rng_uniform(6, 1, counter++) * 40);
        double best = 0;
        for (size_t k = 0; k <= k_max; k++) {
            const double rate =
                (tokens + p * (double)k) / (us_more + spec_time_us(&t, from + k));
            best = rate > best ? rate : best;
        }
        assert_near(spec_time_best_rate(&t, us_more, tokens, from, p, k_max), best,
                    best * 1e-9);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(times_lie_on_lines_between_the_points),
        cmocka_unit_test(one_point_says_the_same_of_all),
        cmocka_unit_test(more_rows_are_never_faster),
        cmocka_unit_test(steps_correct_the_pace_and_the_point),
        cmocka_unit_test(only_the_pace_follows_when_one_point_is_seen),
        cmocka_unit_test(a_step_that_was_held_up_says_little),
        cmocka_unit_test(the_best_rate_is_the_best_of_all_counts),
    };
    return cmocka_run_group_tests_name("spec_time", tests, NULL, NULL);
}
