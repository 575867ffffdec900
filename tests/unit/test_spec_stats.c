/* What became of offers against sums with each offer's age written out. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/rng.h"
#include "engine/spec_stats.h"

/* Written so that NaN fails. */
static void assert_near(double x, double expected, double tolerance)
{
    assert_true(fabs(x - expected) <= tolerance);
}

static void a_cell_starts_at_its_prior(void **state)
{
    (void)state;
    struct spec_stats s;
    spec_stats_init(&s);
    assert_near(spec_stats_p(&s, DRAFT_SELF, 3), 0.25, 1e-12);
    spec_stats_set_prior(&s, DRAFT_SELF, 3, 0.8);
    assert_near(spec_stats_p(&s, DRAFT_SELF, 3), 0.8, 1e-12);
    assert_near(spec_stats_p(&s, DRAFT_SELF, 4), 0.25, 1e-12);
    assert_near(spec_stats_p(&s, DRAFT_LOOKUP, 3), 0.25, 1e-12);
}

static void an_offer_fades_by_half_in_a_half_life(void **state)
{
    (void)state;
    enum { OFFERS = 5000 };
    static bool hits[OFFERS];
    struct spec_stats s;
    spec_stats_init(&s);
    spec_stats_set_prior(&s, DRAFT_LOOKUP, 7, 0.3);
    for (int n = 1; n <= OFFERS; n++) {
        hits[n - 1] = rng_uniform(3, 1, (uint64_t)n) < (n < 2500 ? 0.9 : 0.2);
        spec_stats_offer(&s, DRAFT_LOOKUP, 7, hits[n - 1]);
        if (n % 500 != 0)
            continue;
        double sum = 0, hit_sum = 0;
        for (int i = 0; i < n; i++) {
            const double weight = pow(0.5, (n - 1 - i) / 2000.0);
            sum += weight;
            hit_sum += hits[i] ? weight : 0;
        }
        assert_near(spec_stats_p(&s, DRAFT_LOOKUP, 7), (hit_sum + 16 * 0.3) / (sum + 16), 1e-9);
    }
}

static void nothing_becomes_certain(void **state)
{
    (void)state;
    struct spec_stats s;
    spec_stats_init(&s);
    for (int i = 0; i < 100000; i++) {
        spec_stats_offer(&s, DRAFT_MEDUSA, 0, true);
        spec_stats_offer(&s, DRAFT_MEDUSA, 1, false);
    }
    assert_true(spec_stats_p(&s, DRAFT_MEDUSA, 0) < 1);
    assert_true(spec_stats_p(&s, DRAFT_MEDUSA, 0) > 0.99);
    assert_true(spec_stats_p(&s, DRAFT_MEDUSA, 1) > 0);
    assert_true(spec_stats_p(&s, DRAFT_MEDUSA, 1) < 0.01);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_cell_starts_at_its_prior),
        cmocka_unit_test(an_offer_fades_by_half_in_a_half_life),
        cmocka_unit_test(nothing_becomes_certain),
    };
    return cmocka_run_group_tests_name("spec_stats", tests, NULL, NULL);
}
