/* What heads do beside products: rows that are kept, what a block adds, the best few logits;
 * against their formulas, and the choice against a sort of everything. */
#include <algorithm>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

extern "C" {
#include <cmocka.h>
}

#include "arrays.h"
#include "costs.h"
#include "count.cuh"
#include "emu/emu.h"
#include "ops.cuh"

static const uint64_t SEEDS[] = {0, 1, 77};

/* ---- rows that are kept */

/* Row to[i] of the result is row from[i]; all others keep what they had. */
static bool moves_rows(int n_rows, int dim, int flaw)
{
    const size_t n_all = (size_t)n_rows + 5, width = (size_t)dim;
    const host_array<float> stored = random_floats(1, 3.0f, n_all * width);
    host_array<float> want(n_all * width, 0.5f);
    host_array<bf16> want_rounded(n_all * width, to_bf16(0.25f));
    host_array<int32_t> from, to;
    for (int i = 0; i < n_rows; i++) {
        from.push_back((int32_t)(rng_bits(1, 2, (uint64_t)i) % n_all));
        to.push_back((int32_t)n_all - 1 - i);
        for (size_t k = 0; k < width; k++) {
            const float x = stored[(size_t)from.back() * width + k];
            want[(size_t)to.back() * width + k] = x;
            want_rounded[(size_t)to.back() * width + k] = to_bf16(x);
        }
    }
    const device_array<float> x(stored);
    const device_array<float> y(host_array<float>(n_all * width, 0.5f));
    const device_array<float> alone(host_array<float>(n_all * width, 0.5f));
    const device_array<bf16> rounded(host_array<bf16>(n_all * width, to_bf16(0.25f)));
    move_rows(NULL, x.at, from.data(), to.data(), n_rows, dim, y.at, rounded.at);
    move_rows(NULL, x.at, from.data(), to.data(), n_rows, dim, alone.at, NULL);
    std::fill(from.begin(), from.end(), -1); /* nobody reads them any more */
    if (flaw >= 0)
        want[(size_t)flaw] += 0.25f;
    return same_bytes("rows", want, y.read()) && same_bytes("alone", want, alone.read()) &&
           same_bytes("rounded", want_rounded, rounded.read());
}

static void rows_go_where_they_are_wanted_and_nowhere_else(void **)
{
    for (int dim : {4, 32, 576, 4096})
        for (int n_rows : {1, 2, 127, 128, 129, 300})
            if (dim < 4096 || n_rows < 3)
                assert_true(moves_rows(n_rows, dim, -1));
    ASSERT_DIFFERS(moves_rows(3, 32, 100));
}

/* ---- what a block adds */

static bool adds_silu(int n_heads, int n_rows, int dim, bool shared, bool in_place, int flaw)
{
    const size_t rows = (size_t)(n_heads * n_rows), width = (size_t)dim;
    const size_t n_x = (shared ? (size_t)n_rows : rows) * width;
    host_array<float> x = random_floats(2, 2.0f, n_x);
    host_array<float> z = random_floats(3, 12.0f, rows * width);
    const device_array<float> from(x), products(z), other(rows * width);
    const device_array<bf16> rounded(rows * width);
    head_block_args a = {};
    a.n_heads = n_heads;
    a.n_rows = n_rows;
    a.dim = dim;
    a.x = from.at;
    a.shared = shared;
    a.products = products.at;
    a.states = in_place ? from.at : other.at;
    a.rounded = rounded.at;
    add_silu(NULL, a);
    const host_array<float> got = in_place ? from.read() : other.read();
    const host_array<bf16> got_rounded = rounded.read();
    if (flaw >= 0)
        z[(size_t)flaw] += 0.01f;
    for (size_t h = 0; h < (size_t)n_heads; h++)
        for (size_t t = 0; t < (size_t)n_rows; t++)
            for (size_t k = 0; k < width; k++) {
                const double y = (double)z[(t * (size_t)n_heads + h) * width + k];
                const size_t row = h * (size_t)n_rows + t, at = row * width + k;
                const double want =
                    (double)x[(shared ? t : row) * width + k] + y / (1.0 + exp(-y));
                if (!is_near("state", at, want, (double)got[at], 8e-6) ||
                    to_bf16(got[at]).bits != got_rounded[at].bits)
                    return false;
            }
    return true;
}

static void a_block_adds_silu_of_its_product(void **)
{
    for (int dim : {4, 64, 2048})
        for (int n_heads : {1, 3, 8})
            for (int n_rows : {1, 2, 33}) {
                if (dim == 2048 && n_heads * n_rows > 24)
                    continue;
                assert_true(adds_silu(n_heads, n_rows, dim, true, false, -1));
                assert_true(adds_silu(n_heads, n_rows, dim, false, false, -1));
                assert_true(adds_silu(n_heads, n_rows, dim, false, true, -1));
            }
    ASSERT_DIFFERS(adds_silu(3, 2, 64, true, false, 200));
}

/* ---- the best few logits */

enum { FEW = DEVICE_GUESSES };

struct best_row {
    device_guess at[FEW];
};

static host_array<best_row> best_of(const host_array<float> &logits, int n_rows, int n_cols,
                                    int stride, bool has_scratch, size_t offset)
{
    host_array<float> shifted(offset);
    shifted.insert(shifted.end(), logits.begin(), logits.end());
    const device_array<float> from(shifted);
    const device_array<best_row> best((size_t)n_rows);
    const device_array<uint8_t> scratch(best_few_scratch_bytes());
    best_few(NULL, from.at + offset, n_rows, n_cols, stride,
             (device_guess(*)[DEVICE_GUESSES])best.at, has_scratch ? scratch.at : NULL);
    return best.read();
}

/* All that are numbers, sorted: the greater first, then the lower index. */
static best_row plainly(const float *x, int n)
{
    host_array<int32_t> order;
    for (int32_t i = 0; i < n; i++)
        if (!isnan(x[i]))
            order.push_back(i);
    std::stable_sort(order.begin(), order.end(),
                     [x](int32_t a, int32_t b) { return (double)x[a] > (double)x[b]; });
    best_row best;
    for (size_t r = 0; r < FEW; r++)
        best.at[r] =
            r < order.size() ? device_guess{x[order[r]], order[r]} : device_guess{NAN, -1};
    return best;
}

static bool chooses(const host_array<float> &logits, int n_rows, int n_cols, bool has_scratch,
                    size_t offset, int flaw = -1)
{
    const int stride = (int)logits.size() / n_rows;
    host_array<best_row> got = best_of(logits, n_rows, n_cols, stride, has_scratch, offset);
    if (flaw >= 0)
        got[0].at[flaw].index++;
    for (size_t t = 0; t < (size_t)n_rows; t++) {
        const best_row want = plainly(&logits[t * (size_t)stride], n_cols);
        for (size_t r = 0; r < FEW; r++)
            if (got[t].at[r].index != want.at[r].index ||
                (want.at[r].index >= 0 && !(got[t].at[r].value == want.at[r].value)))
                return differs("row %zu of %d columns, rank %zu: %d (%g), not %d (%g)\n", t,
                               n_cols, r, got[t].at[r].index, (double)got[t].at[r].value,
                               want.at[r].index, (double)want.at[r].value);
    }
    return true;
}

static void check(const host_array<float> &logits, int n_rows, int n_cols)
{
    for (bool has_scratch : {false, true})
        for (size_t offset : {0, 1})
            assert_true(chooses(logits, n_rows, n_cols, has_scratch, offset));
}

static void the_best_few_are_those_of_a_sort(void **)
{
    for (int n : {1, 2, 3, 4, 5, 31, 33, 512, 2049, 8192, 8193, 32000, 50257})
        for (int n_rows : {1, 3})
            check(random_floats((uint64_t)n, 20.0f, (size_t)(n * n_rows)), n_rows, n);
    check(random_floats(1, 20.0f, 300 * 1001), 300, 1001);
    ASSERT_DIFFERS(chooses(random_floats(1, 1.0f, 99), 1, 99, true, 0, 3));
}

/* Rows that begin further apart than they are long; what stands between is never among them. */
static void what_stands_behind_a_row_is_none_of_its(void **)
{
    for (int n_cols : {1, 3, 4, 17, 99, 8199})
        for (int gap : {1, 3, 5}) {
            const size_t stride = (size_t)(n_cols + gap);
            host_array<float> logits = random_floats(1, 1.0f, 3 * stride);
            for (size_t i = 0; i < logits.size(); i++)
                if (i % stride >= (size_t)n_cols)
                    logits[i] = 1e9f;
            check(logits, 3, n_cols);
        }
}

static void of_equals_the_lower_index_comes_first(void **)
{
    for (uint64_t seed : SEEDS) {
        emu_set_seed(seed);
        for (int n : {6, 1000, 20001}) {
            host_array<float> logits((size_t)n * 2);
            for (size_t i = 0; i < logits.size(); i++) /* a few values only */
                logits[i] = (float)(rng_bits(seed, 9, i) % 3);
            check(logits, 2, n);
            check(host_array<float>((size_t)n * 2, -3.5f), 2, n);
        }
    }
    check({-0.0f, 0.0f, -0.0f, 0.0f, -1.0f, 0.0f}, 1, 6);
}

static void nan_is_never_among_them(void **)
{
    const float inf = INFINITY;
    check({NAN, -5.0f, NAN, -4.0f, NAN}, 1, 5);
    check({NAN, -inf, NAN, -inf, inf}, 1, 5);
    check({-NAN, NAN}, 1, 2);
    host_array<float> logits(20001, NAN);
    check(logits, 1, 20001);
    logits[17003] = -inf;
    logits[3] = -inf;
    check(logits, 1, 20001);
}

/* All of them wherever they stand: neighbours, of one thread, warps or blocks apart. */
static void they_are_found_wherever_they_stand(void **)
{
    enum { N = 8198 };
    for (int step : {1, 4, 128, 1024, 2048})
        for (size_t at = 0; at + 3 * (size_t)step < N; at += 997) {
            host_array<float> logits = random_floats(1, 1.0f, N);
            for (size_t i = 0; i < FEW; i++)
                logits[at + i * (size_t)step] = (float)(7 + (i ^ at % 4));
            assert_true(chooses(logits, 1, N, true, 0));
        }
}

/* ---- launches and costs */

/* Three rows of 96; a float is 4 bytes, a bfloat16 2, four guesses 32. */
static void operations_count_what_they_cost(void **)
{
    const device_array<float> x(host_array<float>(6 * 96)), y(host_array<float>(6 * 96));
    const device_array<float> states(6 * 96);
    const device_array<bf16> rounded(6 * 96);
    const device_array<best_row> best(3);
    const int32_t rows[] = {0, 1, 2};
    const head_block_args a = {2, 3, 96, x.at, true, y.at, states.at, rounded.at};
    device_counters counters = {};
    count_into(&counters);
    move_rows(NULL, x.at, rows, rows, 3, 96, y.at, rounded.at);
    assert_cost(counters.of[DEVICE_GUESS], 1, 3 * 96 * 4, 3 * 96 * (4 + 2), 0);
    counters = {};
    add_silu(NULL, a);
    assert_cost(counters.of[DEVICE_GUESS], 1, (6 + 3) * 96 * 4, 6 * 96 * (4 + 2), 6 * 96 * 5);
    counters = {};
    best_few(NULL, x.at, 3, 96, 96, (device_guess(*)[DEVICE_GUESSES])best.at);
    assert_cost(counters.of[DEVICE_GUESS], 1, 3 * 96 * 4, 3 * 32, 0);
    count_into(NULL);
}

static void no_rows_are_no_launch(void **)
{
    const emu_counts before = emu_count();
    const device_array<float> x(16), y(16);
    const device_array<bf16> rounded(16);
    const device_array<best_row> best(1);
    const head_block_args a = {2, 0, 4, x.at, true, y.at, y.at, rounded.at};
    move_rows(NULL, x.at, NULL, NULL, 0, 4, y.at, NULL);
    add_silu(NULL, a);
    best_few(NULL, x.at, 0, 4, 4, (device_guess(*)[DEVICE_GUESSES])best.at);
    assert_int_equal(emu_count().launches, before.launches);
    assert_null(last_error());
}

int main()
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_go_where_they_are_wanted_and_nowhere_else),
        cmocka_unit_test(a_block_adds_silu_of_its_product),
        cmocka_unit_test(the_best_few_are_those_of_a_sort),
        cmocka_unit_test(what_stands_behind_a_row_is_none_of_its),
        cmocka_unit_test(of_equals_the_lower_index_comes_first),
        cmocka_unit_test(nan_is_never_among_them),
        cmocka_unit_test(they_are_found_wherever_they_stand),
        cmocka_unit_test(operations_count_what_they_cost),
        cmocka_unit_test(no_rows_are_no_launch),
    };
    return cmocka_run_group_tests_name("heads beside the model", tests, NULL, NULL);
}
