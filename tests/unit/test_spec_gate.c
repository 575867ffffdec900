/* The account of a source that costs time: played by hand, step by step. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/rng.h"
#include "engine/spec_gate.h"

static const double STEP_US = 1000, SHARE = 0.01;

struct tally {
    size_t n_asked, n_steps;
    double lost_us;
};

/* Each ask saves so much once in so many steps, by dice; step after step of one length. */
static struct tally play(struct spec_gate *g, size_t n_steps, double ask_us, double saved_us,
                         uint64_t once_in, uint64_t seed)
{
    struct tally t = {.n_steps = n_steps};
    for (size_t i = 0; i < n_steps; i++) {
        double saved = 0;
        if (spec_gate_asks(g)) {
            t.n_asked++;
            spec_gate_pay(g, ask_us);
            saved = rng_bits(seed, 0, i) % once_in == 0 ? saved_us : 0;
            t.lost_us += ask_us - saved;
        }
        spec_gate_earn(g, STEP_US, saved);
    }
    return t;
}

static void one_that_pays_is_asked_in_nearly_every_step(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 20; seed++) {
        struct spec_gate g = spec_gate_open(SHARE);
        play(&g, 1000, 100, 500, 3, seed); /* a tenth of a step for a sixth of one */
        const struct tally t = play(&g, 10000, 100, 500, 3, seed + 100);
        assert_true(t.n_asked > 9900);
    }
}

static void one_that_does_not_pay_loses_its_share_and_no_more(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 20; seed++) {
        struct spec_gate g = spec_gate_open(SHARE);
        const struct tally t = play(&g, 10000, 100, 500, 10, seed); /* half of what it takes */
        assert_true(t.lost_us <= SHARE * STEP_US * 10000 + 100);
        assert_true(t.n_asked > 1000 && t.n_asked < 4000);
    }
}

static void one_that_brings_nothing_is_asked_as_often_as_the_share_allows(void **state)
{
    (void)state;
    struct spec_gate g = spec_gate_open(SHARE);
    const struct tally dear = play(&g, 10000, 20000, 0, 1, 1);
    assert_in_range(dear.n_asked, 5, 6); /* 10000 steps earn the time of five */
    g = spec_gate_open(SHARE);
    const struct tally cheap = play(&g, 10000, 5, 0, 1, 1);
    assert_int_equal(cheap.n_asked, 10000); /* half of the share */
    g = spec_gate_open(0);
    const struct tally none = play(&g, 10000, 5, 0, 1, 1);
    assert_int_equal(none.n_asked, 1);
}

static void one_that_begins_to_pay_comes_back(void **state)
{
    (void)state;
    struct spec_gate g = spec_gate_open(SHARE);
    play(&g, 5000, 100, 0, 1, 1);
    assert_true(play(&g, 1000, 100, 0, 1, 1).n_asked < 120);
    play(&g, 500, 100, 500, 3, 2);
    assert_true(play(&g, 1000, 100, 500, 3, 3).n_asked > 950);
}

static void one_that_ceases_to_pay_loses_what_was_kept(void **state)
{
    (void)state;
    struct spec_gate g = spec_gate_open(SHARE);
    play(&g, 100000, 100, 500, 1, 1); /* however long it paid */
    const struct tally t = play(&g, 1000, 100, 0, 1, 1);
    assert_true(t.lost_us <= (SPEC_GATE_STEPS_KEPT + SHARE * 1000) * STEP_US + 100);
}

static void a_thread_that_was_kept_waiting_shuts_it_for_a_little_while(void **state)
{
    (void)state;
    struct spec_gate g = spec_gate_open(SHARE);
    for (size_t i = 0; i < 100; i++) {
        spec_gate_pay(&g, 5);
        spec_gate_earn(&g, STEP_US, 0);
    }
    spec_gate_pay(&g, 1e6); /* a second */
    size_t n = 0;
    for (; !spec_gate_asks(&g); n++)
        spec_gate_earn(&g, STEP_US, 0);
    assert_true(n < 10);
}

/* The first asking is forgiven, whatever it took, and what follows has the full account. */
static void one_that_invests_first_has_time_to(void **state)
{
    (void)state;
    struct spec_gate g = spec_gate_open(0);
    g.begins_full = true;
    spec_gate_pay(&g, 1e6);
    spec_gate_earn(&g, STEP_US, 0);
    size_t n = 0;
    for (; spec_gate_asks(&g); n++) {
        spec_gate_pay(&g, 100);
        spec_gate_earn(&g, STEP_US, 0);
    }
    assert_int_equal(n, SPEC_GATE_STEPS_KEPT * 10 + 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_that_pays_is_asked_in_nearly_every_step),
        cmocka_unit_test(one_that_does_not_pay_loses_its_share_and_no_more),
        cmocka_unit_test(one_that_brings_nothing_is_asked_as_often_as_the_share_allows),
        cmocka_unit_test(one_that_begins_to_pay_comes_back),
        cmocka_unit_test(one_that_ceases_to_pay_loses_what_was_kept),
        cmocka_unit_test(one_that_invests_first_has_time_to),
        cmocka_unit_test(a_thread_that_was_kept_waiting_shuts_it_for_a_little_while),
    };
    return cmocka_run_group_tests_name("spec_gate", tests, NULL, NULL);
}
