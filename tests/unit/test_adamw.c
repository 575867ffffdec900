/* AdamW against two steps worked out by hand with the formulas of the paper. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "train/adamw.h"

static void check(float got, double want)
{
    if (!(fabs((double)got - want) <= 2e-6 * fabs(want)))
        fail_msg("%.9g, not %.9g", (double)got, want);
}

/*
 * w 1, rate 0.1, decay 0.01.
 * g 0.5: m 0.05, v 0.00025; m / 0.1 = 0.5, sqrt(v / 0.001) = 0.5; w = 0.999 - 0.1 * 1 = 0.899
 * g -1: m 0.045 - 0.1 = -0.055, v 0.00024975 + 0.001 = 0.00124975;
 *       m / 0.19 = -0.2894736842, sqrt(v / 0.001999) = 0.7906880594, ratio -0.3661035246;
 *       w = 0.899 * 0.999 + 0.03661035246 = 0.93471135246
 */
static void steps_are_those_of_the_paper(void **state)
{
    (void)state;
    float w = 1, m = 0, v = 0;
    struct adamw a = {.rate = 0.1, .decay = 0.01, .step = 1};
    adamw_step(&a, (const float[]){0.5f}, 1, &w, &m, &v);
    check(m, 0.05);
    check(v, 0.00025);
    check(w, 0.899);
    a.step = 2;
    adamw_step(&a, (const float[]){-1}, 1, &w, &m, &v);
    check(m, -0.055);
    check(v, 0.00124975);
    check(w, 0.93471135246);
}

/* The decay is not part of what the moments see. */
static void decay_alone_shrinks_a_weight(void **state)
{
    (void)state;
    float w[2] = {2, -4}, m[2] = {0}, v[2] = {0};
    const struct adamw a = {.rate = 0.5, .decay = 0.1, .step = 1};
    adamw_step(&a, (const float[]){0, 0}, 2, w, m, v);
    check(w[0], 1.9);
    check(w[1], -3.8);
    assert_true(m[0] == 0 && v[1] == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(steps_are_those_of_the_paper),
        cmocka_unit_test(decay_alone_shrinks_a_weight),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
