/* Candidates of rows of logits, against a sort and sums in double. */
#include <algorithm>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

extern "C" {
#include <cmocka.h>

#include "kernels.h"
}

#include "arrays.h"
#include "count.cuh"
#include "emu/emu.h"
#include "ops.cuh"

static const uint64_t SEEDS[] = {0, 1, 2, 77};
enum { N = DEVICE_CANDIDATES };

/* ---- the operation */

static host_array<device_candidates> candidates_of(const host_array<float> &logits,
                                                   const host_array<float> &temperatures,
                                                   size_t offset)
{
    const int n_rows = (int)temperatures.size();
    const int n_vocab = (int)(logits.size() / temperatures.size());
    host_array<float> shifted(offset);
    shifted.insert(shifted.end(), logits.begin(), logits.end());
    const device_array<float> from(shifted), heat(temperatures);
    device_array<int32_t> best((size_t)n_rows);
    device_array<uint8_t> scratch(candidates_scratch_bytes((size_t)n_rows, (size_t)n_vocab));
    device_array<device_candidates> out(host_array<device_candidates>(temperatures.size()));
    int n_wanted = 0;
    for (float temperature : temperatures)
        n_wanted += temperature > 0.0f;
    argmax(NULL, from.at + offset, n_rows, n_vocab, best.at);
    find_candidates(NULL, from.at + offset, best.at, heat.at, n_rows, n_wanted, n_vocab,
                    scratch.at, out.at);
    return out.read();
}

/* ---- the other way */

struct expected {
    double total;       /* of doubles */
    double host_weight; /* of what the host takes for a weight */
    host_array<device_candidate> best;
};

static expected expect(const float *logits, size_t n_vocab, float temperature)
{
    expected e = {0.0, 0.0, {}};
    for (size_t i = 0; i < n_vocab; i++)
        if (logits[i] > -INFINITY) /* not NaN either */
            e.best.push_back({logits[i], (int32_t)i});
    std::stable_sort(
        e.best.begin(), e.best.end(),
        [](const device_candidate &a, const device_candidate &b) { return a.logit > b.logit; });
    for (const device_candidate &c : e.best) {
        const float max = e.best[0].logit;
        e.total += exp(((double)c.logit - (double)max) / (double)temperature);
        e.host_weight += (double)kernels_exp((c.logit - max) / temperature);
    }
    return e;
}

/* A weight is a float whose argument was rounded; the sum of the host's weights is that of
 * doubles but for their order. */
static bool is_expected(const expected &want, const device_candidates &got)
{
    const size_t n = want.best.size();
    for (size_t i = 0; i < N; i++) {
        const int32_t id = i < n ? want.best[i].id : -1;
        if (got.best[i].id != id)
            return differs("candidate %zu of %zu is %d, not %d\n", i, n, got.best[i].id, id);
        if (id >= 0 && !(got.best[i].logit == want.best[i].logit))
            return differs("candidate %zu has another logit\n", i);
    }
    if (n > 0 && want.best[0].logit == INFINITY)
        return true; /* no number */
    return is_near("total", 0, want.total, got.total, 5e-6 * want.total) &&
           is_near("total of weights", 0, want.host_weight, got.total,
                   1e-12 * want.host_weight);
}

static void check(const host_array<float> &logits, float temperature)
{
    const expected want = expect(logits.data(), logits.size(), temperature);
    for (size_t offset : {0, 1})
        assert_true(is_expected(want, candidates_of(logits, {temperature}, offset)[0]));
}

/* ---- */

static void candidates_are_the_best_of_any_number(void **)
{
    for (size_t n_vocab : {1, 2, 3, 63, 64, 65, 300, 8191, 8192, 8193, 50257, 151936})
        check(random_floats(n_vocab, 20.0f, n_vocab), 0.9f);
}

static void equal_logits_are_in_the_order_of_their_ids(void **)
{
    for (uint64_t seed : SEEDS) {
        emu_set_seed(seed);
        for (size_t n_vocab : {5, 1000, 20001}) {
            host_array<float> logits(n_vocab);
            for (size_t i = 0; i < n_vocab; i++) /* a few values only */
                logits[i] = (float)(rng_bits(seed, 9, i) % 3);
            check(logits, 1.0f);
            check(host_array<float>(n_vocab, -3.5f), 1.0f);
        }
    }
    check({-1.0f, -0.0f, 0.0f, -0.0f, 0.0f}, 1.0f);
}

static void nan_and_minus_infinity_are_no_candidates(void **)
{
    const float inf = INFINITY;
    check({NAN, -5.0f, NAN, -inf, -4.0f, NAN}, 0.5f);
    check({NAN, -inf, -NAN}, 0.5f);
    check({-inf, 7.0f}, 0.5f);
    check({1.0f, inf, NAN, inf, -inf, 2.0f}, 0.5f);
    host_array<float> logits(20001, NAN);
    check(logits, 0.5f);
    logits[17003] = -8.0f;
    logits[16] = -9.0f;
    check(logits, 0.5f);
}

static void no_temperature_is_too_high_or_too_low(void **)
{
    const host_array<float> some = random_floats(4, 20.0f, 9000);
    const host_array<float> far = {1e38f, -1e38f, 1e-40f, 0.0f, -1e-40f, 1e38f, 1.0f};
    for (float temperature : {1e-45f, 1e-38f, 1e-30f, 1e-3f, 10.0f, 1e30f, 3e38f, INFINITY}) {
        check(some, temperature);
        check(far, temperature);
    }
}

/* Of a part's 256 threads, who each have runs of four, 64 have nothing but the best; and all of
 * the best stand in one run of the row. */
static void candidates_may_stand_anywhere(void **)
{
    enum { PART = 8192, V = 3 * PART + 5 };
    host_array<float> logits = random_floats(5, 1.0f, V);
    for (size_t i = 0; i < V; i++)
        logits[i] += (float)(i / 4 % 256 < 64) * 10.0f;
    check(logits, 1.0f);
    for (size_t first : {(size_t)0, (size_t)PART - 30, (size_t)V - 70}) {
        logits = random_floats(6, 1.0f, V);
        for (size_t i = 0; i < 70; i++)
            logits[first + i] += 10.0f;
        check(logits, 1.0f);
    }
    for (size_t i = 0; i < V; i++)
        logits[i] = (float)i;
    check(logits, 1000.0f);
    for (size_t i = 0; i < V; i++)
        logits[i] = -(float)i;
    check(logits, 1000.0f);
}

/* Nor on its place, its alignment or the order in which threads run. */
static void bits_of_a_rows_candidates_do_not_depend_on_other_rows(void **)
{
    enum { ROWS = 7 };
    for (size_t n_vocab : {301, 20004}) {
        const host_array<float> logits = random_floats(3, 20.0f, ROWS * n_vocab);
        const host_array<float> heat = {0.7f, 1.0f, 0.7f, 2.0f, 0.1f, 1.3f, 0.9f};
        const host_array<device_candidates> all = candidates_of(logits, heat, 0);
        for (uint64_t seed : SEEDS) {
            emu_set_seed(seed);
            assert_true(same_bytes("a seed", all, candidates_of(logits, heat, 0)));
        }
        for (size_t t = 0; t < ROWS; t++) {
            const auto first = logits.begin() + (ptrdiff_t)(t * n_vocab);
            const host_array<float> row(first, first + (ptrdiff_t)n_vocab);
            assert_true(is_expected(expect(row.data(), n_vocab, heat[t]), all[t]));
            assert_true(same_bytes("alone", host_array<device_candidates>{all[t]},
                                   candidates_of(row, {heat[t]}, t % 4)));
        }
    }
}

static void rows_that_want_none_are_left_alone(void **)
{
    const host_array<float> logits = random_floats(3, 20.0f, 3 * 1000);
    const host_array<device_candidates> got = candidates_of(logits, {0.0f, 0.5f, 0.0f}, 0);
    assert_true(is_expected(expect(&logits[1000], 1000, 0.5f), got[1]));
    for (size_t t : {0, 2}) {
        const device_candidates untouched = {}; /* as it was written */
        assert_memory_equal(&got[t], &untouched, sizeof untouched);
    }
    const emu_counts before = emu_count();
    find_candidates(NULL, NULL, NULL, NULL, 3, 0, 1000, NULL, NULL);
    assert_int_equal(emu_count().launches, before.launches);
}

static void wrong_candidates_are_seen(void **)
{
    const host_array<float> logits = random_floats(3, 20.0f, 1000);
    const expected want = expect(logits.data(), logits.size(), 0.5f);
    const device_candidates right = candidates_of(logits, {0.5f}, 0)[0];
    assert_true(is_expected(want, right));
    device_candidates wrong = right;
    wrong.total *= 1.0 + 1e-10;
    ASSERT_DIFFERS(is_expected(want, wrong));
    wrong = right;
    std::swap(wrong.best[62], wrong.best[63]);
    ASSERT_DIFFERS(is_expected(want, wrong));
    ASSERT_DIFFERS(is_expected(want, candidates_of(logits, {0.50001f}, 0)[0]));
}

static void candidates_count_what_they_cost(void **)
{
    device_counters counters = {};
    count_into(&counters);
    candidates_of(random_floats(3, 20.0f, 3 * 1000), {0.0f, 0.5f, 1.0f}, 0);
    count_into(NULL);
    const device_cost cost = counters.of[DEVICE_SAMPLE];
    assert_int_equal(cost.launches, 2);
    assert_int_equal(cost.bytes_read, 2 * (1000 * 4 + 4 + 4));
    assert_int_equal(cost.bytes_written, 2 * (8 + N * 8));
}

int main()
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(candidates_are_the_best_of_any_number),
        cmocka_unit_test(equal_logits_are_in_the_order_of_their_ids),
        cmocka_unit_test(nan_and_minus_infinity_are_no_candidates),
        cmocka_unit_test(no_temperature_is_too_high_or_too_low),
        cmocka_unit_test(candidates_may_stand_anywhere),
        cmocka_unit_test(bits_of_a_rows_candidates_do_not_depend_on_other_rows),
        cmocka_unit_test(rows_that_want_none_are_left_alone),
        cmocka_unit_test(wrong_candidates_are_seen),
        cmocka_unit_test(candidates_count_what_they_cost),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
