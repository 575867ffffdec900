/* Embedding, norms, the gated activation and the greatest logit, against their formulas. */
#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

extern "C" {
#include <cmocka.h>
}

#include "arrays.h"
#include "blocks.cuh"
#include "costs.h"
#include "count.cuh"
#include "emu/emu.h"
#include "ops.cuh"

static const uint64_t SEEDS[] = {0, 1, 2, 77};
static const int ROWS[] = {1, 2, 7, 8, 9, 70};

/* ---- embedding */

static const quant_type TYPES[] = {QUANT_F32,  QUANT_F16,  QUANT_BF16, QUANT_Q4_0,
                                   QUANT_Q4_1, QUANT_Q5_0, QUANT_Q5_1, QUANT_Q8_0,
                                   QUANT_Q4_K, QUANT_Q5_K, QUANT_Q6_K, QUANT_IQ4_NL};
enum { VOCAB = 37 };

static host_array<int32_t> some_tokens(int n_rows)
{
    host_array<int32_t> tokens((size_t)n_rows);
    for (size_t t = 0; t < tokens.size(); t++)
        tokens[t] = t == 0 ? VOCAB - 1 : (int32_t)(rng_bits(3, 0, t) % VOCAB);
    return tokens;
}

/* Rows of any bytes: infinite and NaN scales come up too. */
static bool embeds_exactly(quant_type type, int dim, int n_rows, size_t x_offset, int flaw)
{
    const size_t row_bytes = quant_row_bytes(type, (size_t)dim);
    const host_array<uint8_t> stored = random_bytes(type + 1, VOCAB * row_bytes);
    const host_array<int32_t> tokens = some_tokens(n_rows);
    const device_array<uint8_t> blocks(stored);
    const device_array<int32_t> ids(tokens);
    device_array<float> x((size_t)n_rows * (size_t)dim + x_offset);
    embed(NULL, {type, VOCAB, dim, blocks.at, NULL}, ids.at, n_rows, x.at + x_offset);
    const host_array<float> got = x.read();
    host_array<float> want((size_t)dim);
    for (int t = 0; t < n_rows; t++) {
        host_array<uint8_t> row(row_bytes);
        memcpy(row.data(), &stored[(size_t)tokens[(size_t)t] * row_bytes], row_bytes);
        if (flaw >= 0)
            row[(size_t)flaw] ^= 1;
        quant_dequantize_row(type, row.data(), want.data(), (size_t)dim);
        if (!same_floats(quant_find(type)->name, want.data(),
                         &got[x_offset + (size_t)(t * dim)], (size_t)dim))
            return false;
    }
    return true;
}

static void embed_gives_the_bits_of_the_stored_row_of_every_type(void **)
{
    static const int widths[] = {16, 18, 31, 32, 96, 256, 576, 4096, 5120};
    for (quant_type type : TYPES)
        for (int dim : widths)
            if ((size_t)dim % quant_find(type)->block_elems == 0)
                for (int n_rows : {1, 2, 13})
                    assert_true(embeds_exactly(type, dim, n_rows, 0, -1));
}

static void embed_writes_rows_that_are_not_aligned(void **)
{
    for (quant_type type : TYPES)
        for (size_t offset = 1; offset < 4; offset++)
            assert_true(embeds_exactly(type, 256, 70, offset, -1));
}

static void embed_falls_back_to_rows_of_bfloat16(void **)
{
    const host_array<bf16> stored = rounded(random_floats(1, 2.0f, VOCAB * 96));
    const device_array<bf16> rows(stored);
    const device_array<int32_t> ids(host_array<int32_t>{36, 0, 5});
    device_array<float> x(3 * 96);
    embed(NULL, {QUANT_Q4_0, VOCAB, 96, NULL, rows.at}, ids.at, 3, x.at);
    const host_array<float> got = x.read();
    for (size_t i = 0; i < 96; i++) {
        assert_true(got[i] == to_float(stored[36 * 96 + i]));
        assert_true(got[96 + i] == to_float(stored[i]));
        assert_true(got[2 * 96 + i] == to_float(stored[5 * 96 + i]));
    }
}

/* Tokens that the step before found, and others, in any order. */
static void embed_takes_the_best_of_the_step_before_where_a_token_says_so(void **)
{
    const host_array<float> stored = random_floats(1, 2.0f, VOCAB * 96);
    const device_array<float> rows(stored);
    const device_array<int32_t> best(host_array<int32_t>{7, 0, VOCAB - 1});
    const device_array<int32_t> ids(
        host_array<int32_t>{device_best_of(2), 5, device_best_of(0), device_best_of(0)});
    static const size_t want[] = {VOCAB - 1, 5, 7, 7};
    device_array<float> x(4 * 96);
    embed(NULL, {QUANT_F32, VOCAB, 96, (const uint8_t *)rows.at, NULL}, ids.at, 4, x.at,
          best.at);
    const host_array<float> got = x.read();
    for (size_t t = 0; t < 4; t++)
        assert_memory_equal(&got[t * 96], &stored[want[t] * 96], 96 * sizeof(float));
}

template <quant_type T> KERNEL void decode_groups(const uint8_t *row, float *out)
{
    float values[GROUP_ELEMS];
    decode_group<T>(row, (int)threadIdx.x, values);
    for (int i = 0; i < GROUP_ELEMS; i++)
        out[(int)threadIdx.x * GROUP_ELEMS + i] = values[i];
}

/* A group to each thread, as products take them. */
static void groups_decode_to_the_bits_of_the_stored_row(void **)
{
    enum { DIM = 1024 };
    for (quant_type type : TYPES) {
        if (quant_find(type)->block_elems == 1)
            continue;
        const host_array<uint8_t> stored = random_bytes(type, quant_row_bytes(type, DIM));
        const device_array<uint8_t> row(stored);
        device_array<float> x(DIM);
        WITH_BLOCK_TYPE(type,
                        LAUNCH(decode_groups<T>, 1, DIM / GROUP_ELEMS, 0, NULL, row.at, x.at));
        host_array<float> want(DIM);
        quant_dequantize_row(type, stored.data(), want.data(), DIM);
        assert_true(same_floats(quant_find(type)->name, want.data(), x.read().data(), DIM));
    }
}

/* Where a scale is NaN or far below the minimum a bit of a code means nothing. */
static void wrong_bits_of_a_stored_row_are_seen(void **)
{
    for (quant_type type : TYPES) {
        int n_seen = 0;
        is_quiet = true;
        for (int i = 1; i <= 8; i++)
            n_seen +=
                !embeds_exactly(type, 256, 1, 0, (int)quant_row_bytes(type, 256) * i / 8 - 1);
        is_quiet = false;
        assert_true(n_seen >= 6);
    }
}

/* ---- norms */

struct norm_out {
    host_array<bf16> y;
    host_array<float> y32;
};

static norm_out norm_of(const host_array<float> &x, const host_array<int32_t> &rows,
                        const host_array<float> &w, int n_rows, size_t offset)
{
    const size_t n = (size_t)n_rows * w.size();
    host_array<float> shifted(offset);
    shifted.insert(shifted.end(), x.begin(), x.end());
    const device_array<float> from(shifted), weight(w);
    const device_array<int32_t> chosen(rows);
    device_array<bf16> y(n);
    device_array<float> y32(n);
    rmsnorm(NULL, from.at + offset, rows.empty() ? NULL : chosen.at, weight.at, 1e-5f, n_rows,
            (int)w.size(), y.at, y32.at);
    return {y.read(), y32.read()};
}

/* The sum in double, in rising order. */
static bool is_norm_of(const host_array<float> &x, size_t row, const host_array<float> &w,
                       double eps, const norm_out &out, size_t i_out)
{
    const size_t dim = w.size();
    double squares = 0.0;
    for (size_t i = 0; i < dim; i++)
        squares += (double)x[row * dim + i] * (double)x[row * dim + i];
    for (size_t i = 0; i < dim; i++) {
        const double want =
            (double)x[row * dim + i] * (double)w[i] / sqrt(squares / (double)dim + eps);
        const float got = out.y32[i_out * dim + i];
        if (!is_near("norm", i, want, (double)got, 2e-6 * fabs(want)) ||
            quant_f32_to_bf16(got) != out.y[i_out * dim + i].bits)
            return false;
    }
    return true;
}

static void norms_are_their_formula_at_every_width(void **)
{
    static const int widths[] = {1, 3, 16, 31, 96, 576, 1024, 1028, 1030, 4096, 5120};
    for (int dim : widths)
        for (int n_rows : {1, 9}) {
            const host_array<float> x = random_floats(1, 3.0f, (size_t)(n_rows * dim));
            const host_array<float> w = random_floats(2, 2.0f, (size_t)dim);
            const norm_out out = norm_of(x, {}, w, n_rows, 0);
            for (int t = 0; t < n_rows; t++)
                assert_true(is_norm_of(x, (size_t)t, w, 1e-5, out, (size_t)t));
        }
}

static void another_eps_is_not_taken_for_the_right_one(void **)
{
    const host_array<float> x = random_floats(1, 3.0f, 96);
    const host_array<float> w = random_floats(2, 2.0f, 96);
    ASSERT_DIFFERS(is_norm_of(x, 0, w, 3e-5, norm_of(x, {}, w, 1, 0), 0));
}

static void norms_take_the_rows_that_are_asked_for(void **)
{
    const host_array<int32_t> rows = {69, 0, 13, 13, 2};
    for (int dim : {96, 4096}) {
        const host_array<float> x = random_floats(1, 3.0f, 70 * (size_t)dim);
        const host_array<float> w = random_floats(2, 2.0f, (size_t)dim);
        const norm_out out = norm_of(x, rows, w, 5, 0);
        for (size_t i = 0; i < rows.size(); i++)
            assert_true(is_norm_of(x, (size_t)rows[i], w, 1e-5, out, i));
    }
}

/* Nor on its place, the alignment or the order in which threads run. */
static void bits_of_a_normed_row_do_not_depend_on_other_rows(void **)
{
    for (int dim : {16, 96, 576, 4096, 5120}) {
        const host_array<float> x = random_floats(1, 3.0f, 70 * (size_t)dim);
        const host_array<float> w = random_floats(2, 2.0f, (size_t)dim);
        const norm_out all = norm_of(x, {}, w, 70, 0);
        for (uint64_t seed : SEEDS) {
            emu_set_seed(seed);
            assert_true(same_bytes("norms of a seed", all.y32, norm_of(x, {}, w, 70, 0).y32));
        }
        for (int n_rows : ROWS) {
            const norm_out some = norm_of(x, {69}, w, 1, 0);
            const norm_out few = norm_of(x, {}, w, n_rows, 3);
            const size_t last = 69 * (size_t)dim;
            const size_t n = (size_t)n_rows * (size_t)dim;
            assert_true(same_floats("alone", &all.y32[last], &some.y32[0], (size_t)dim));
            assert_true(same_floats("not aligned", &all.y32[0], &few.y32[0], n));
        }
    }
}

static void norms_without_unrounded_output_have_the_same_bits(void **)
{
    const host_array<float> x = random_floats(1, 3.0f, 3 * 576);
    const host_array<float> w = random_floats(2, 2.0f, 576);
    const device_array<float> from(x), weight(w);
    device_array<bf16> y(3 * 576);
    rmsnorm(NULL, from.at, NULL, weight.at, 1e-5f, 3, 576, y.at, NULL);
    assert_true(same_bytes("rounded only", norm_of(x, {}, w, 3, 0).y, y.read()));
}

static void a_nan_stays_in_its_row(void **)
{
    for (int dim : {96, 4096}) {
        host_array<float> x = random_floats(1, 3.0f, 3 * (size_t)dim);
        const host_array<float> w = random_floats(2, 2.0f, (size_t)dim);
        x[(size_t)dim + 7] = NAN;
        const norm_out out = norm_of(x, {}, w, 3, 0);
        assert_true(is_norm_of(x, 0, w, 1e-5, out, 0));
        assert_true(is_norm_of(x, 2, w, 1e-5, out, 2));
        for (int i = 0; i < dim; i++)
            assert_true(isnan(out.y32[(size_t)(dim + i)]));
    }
}

static void a_row_of_zeros_stays_zero(void **)
{
    const host_array<float> w = random_floats(2, 2.0f, 96);
    for (float value : norm_of(host_array<float>(96), {}, w, 1, 0).y32)
        assert_true(value == 0.0f);
}

/* ---- the gated activation */

static host_array<bf16> silu_mul_of(const host_array<bf16> &gate_up, int n_rows, int ffn_dim,
                                    size_t offset)
{
    host_array<bf16> shifted(offset);
    shifted.insert(shifted.end(), gate_up.begin(), gate_up.end());
    const device_array<bf16> from(shifted);
    device_array<bf16> inner((size_t)n_rows * (size_t)ffn_dim);
    silu_mul(NULL, from.at + offset, n_rows, ffn_dim, inner.at);
    return inner.read();
}

static bool is_silu_mul_of(const host_array<bf16> &gate_up, int n_rows, int ffn_dim,
                           double slope, const host_array<bf16> &inner)
{
    const size_t f = (size_t)ffn_dim;
    for (size_t t = 0; t < (size_t)n_rows; t++)
        for (size_t i = 0; i < f; i++) {
            const double gate = (double)to_float(gate_up[t * 2 * f + i]);
            const double up = (double)to_float(gate_up[t * 2 * f + f + i]);
            const double want = gate / (1.0 + exp(-gate * slope)) * up;
            if (!is_near_bf16("silu", i, want, inner[t * f + i], 1e-6))
                return false;
        }
    return true;
}

static void silu_is_its_formula_at_every_width(void **)
{
    for (int ffn_dim : {1, 7, 16, 96, 100, 576, 1536, 5120})
        for (int n_rows : ROWS)
            for (float range : {4.0f, 80.0f}) {
                const size_t n = (size_t)n_rows * 2 * (size_t)ffn_dim;
                const host_array<bf16> gate_up = rounded(random_floats(5, range, n));
                const host_array<bf16> inner = silu_mul_of(gate_up, n_rows, ffn_dim, 0);
                assert_true(is_silu_mul_of(gate_up, n_rows, ffn_dim, 1.0, inner));
                assert_true(same_bytes("silu, not aligned", inner,
                                       silu_mul_of(gate_up, n_rows, ffn_dim, 1)));
            }
}

static void another_activation_is_not_taken_for_silu(void **)
{
    const host_array<bf16> gate_up = rounded(random_floats(5, 4.0f, 2 * 96));
    const host_array<bf16> inner = silu_mul_of(gate_up, 1, 96, 0);
    ASSERT_DIFFERS(is_silu_mul_of(gate_up, 1, 96, 1.01, inner));
}

/* From the smallest gate on, so far down that exp(-gate) is infinite, to the greatest. */
static void silu_of_extreme_gates_is_the_limit(void **)
{
    const host_array<float> values = {0.0f,   -0.0f,    1e-30f, -1e-30f,  -87.0f, -88.5f,
                                      -90.0f, -1000.0f, 90.0f,  INFINITY, NAN,    3e38f};
    host_array<bf16> gate_up = rounded(values);
    for (size_t i = 0; i < values.size(); i++)
        gate_up.push_back(to_bf16(1.0f));
    const host_array<bf16> inner = silu_mul_of(gate_up, 1, (int)values.size(), 0);
    for (size_t i = 0; i < values.size(); i++) {
        const double gate = (double)to_float(gate_up[i]);
        const double want = gate / (1.0 + exp(-gate));
        if (isinf(values[i]))
            assert_true(isinf(to_float(inner[i])));
        else
            assert_true(
                is_near("silu", i, want, (double)to_float(inner[i]), fabs(want) / 256 + 1e-36));
    }
}

/* ---- the greatest logit */

static host_array<int32_t> argmax_of(const host_array<float> &logits, int n_rows,
                                     bool has_scratch, size_t offset)
{
    host_array<float> shifted(offset);
    shifted.insert(shifted.end(), logits.begin(), logits.end());
    const device_array<float> from(shifted);
    device_array<int32_t> best((size_t)n_rows);
    device_array<uint8_t> scratch(argmax_scratch_bytes());
    argmax(NULL, from.at + offset, n_rows, (int)(logits.size() / (size_t)n_rows), best.at,
           has_scratch ? scratch.at : NULL);
    return best.read();
}

/* The greatest value first, then its place. */
static int32_t place_of_greatest(const float *x, size_t n)
{
    double greatest = -INFINITY;
    for (size_t i = 0; i < n; i++)
        greatest = fmax(greatest, (double)x[i]);
    for (size_t i = 0; i < n; i++)
        if ((double)x[i] == greatest)
            return (int32_t)i;
    return 0;
}

static void check_argmax(const host_array<float> &logits, int n_rows)
{
    const size_t n = logits.size() / (size_t)n_rows;
    for (bool has_scratch : {false, true})
        for (size_t offset : {0, 1}) {
            const host_array<int32_t> best = argmax_of(logits, n_rows, has_scratch, offset);
            for (size_t t = 0; t < (size_t)n_rows; t++)
                assert_int_equal(best[t], place_of_greatest(&logits[t * n], n));
        }
}

static void argmax_finds_the_greatest_of_any_number(void **)
{
    for (size_t n_vocab : {1, 2, 3, 4, 31, 33, 512, 2049, 8192, 8193, 49152, 50257})
        for (int n_rows : {1, 2, 7})
            check_argmax(random_floats(n_vocab, 20.0f, n_vocab * (size_t)n_rows), n_rows);
    check_argmax(random_floats(1, 20.0f, 70 * 16411), 70);
    check_argmax(random_floats(1, 20.0f, 151936), 1);
}

static void argmax_takes_the_first_of_equals(void **)
{
    for (uint64_t seed : SEEDS) {
        emu_set_seed(seed);
        for (size_t n_vocab : {5, 1000, 50257}) {
            host_array<float> logits(n_vocab * 2);
            for (size_t i = 0; i < logits.size(); i++) /* a few values only */
                logits[i] = (float)(rng_bits(seed, 9, i) % 3);
            check_argmax(logits, 2);
            check_argmax(host_array<float>(n_vocab * 2, -3.5f), 2);
        }
    }
}

/* In one of every four places, so that no border of what threads and blocks take is left out.
 */
static void argmax_finds_the_greatest_wherever_it_stands(void **)
{
    enum { N = 8198 };
    host_array<float> logits = random_floats(1, 1.0f, N);
    for (size_t at = 0; at < N; at += at < 8 || at >= N - 8 ? 1 : 4) {
        const float before = logits[at];
        logits[at] = 7.0f;
        assert_int_equal(argmax_of(logits, 1, true, 0)[0], at);
        logits[at] = before;
    }
}

static void both_zeros_are_equal(void **)
{
    check_argmax({-1.0f, -0.0f, 0.0f, -0.0f, 0.0f}, 1);
    check_argmax({-1.0f, 0.0f, -0.0f, 0.0f, -2.0f}, 1);
}

static void nan_never_wins(void **)
{
    const float inf = INFINITY;
    check_argmax({NAN, -5.0f, NAN, -4.0f, NAN}, 1);
    check_argmax({NAN, -inf, NAN, -inf}, 1);
    check_argmax({1.0f, NAN, inf, NAN, inf}, 1);
    check_argmax({-NAN, -3e38f, -NAN}, 1);
    host_array<float> logits(20001, NAN);
    check_argmax(logits, 1);
    assert_int_equal(argmax_of(logits, 1, true, 0)[0], 0);
    logits[17003] = -inf;
    check_argmax(logits, 1);
}

/* ---- launches and costs */

/* Three rows of 96: a float is 4 bytes, a bfloat16 2, a Q8_0 block of 32 elements 34. */
static void operations_count_what_they_cost(void **)
{
    device_counters counters = {};
    device_array<float> x(host_array<float>(3 * 96)), y32(3 * 96);
    device_array<uint8_t> blocks(host_array<uint8_t>(4 * 102));
    device_array<bf16> y(3 * 96), gate_up(host_array<bf16>(3 * 192));
    device_array<int32_t> ids(host_array<int32_t>(3));
    count_into(&counters);
    embed(NULL, {QUANT_Q8_0, 4, 96, blocks.at, NULL}, ids.at, 3, x.at);
    rmsnorm(NULL, x.at, ids.at, x.at, 1e-5f, 3, 96, y.at, y32.at);
    silu_mul(NULL, gate_up.at, 3, 96, y.at);
    argmax(NULL, x.at, 3, 96, ids.at);
    count_into(NULL);
    argmax(NULL, x.at, 3, 96, ids.at);
    assert_cost(counters.of[DEVICE_EMBED], 1, 3 * (102 + 4), 3 * 96 * 4, 0);
    assert_cost(counters.of[DEVICE_NORM], 1, (3 * 96 + 96 + 3) * 4, 3 * 96 * (2 + 4),
                3 * 96 * 4);
    assert_cost(counters.of[DEVICE_SILU], 1, 3 * 192 * 2, 3 * 96 * 2, 3 * 96 * 5);
    assert_cost(counters.of[DEVICE_ARGMAX], 1, 3 * 96 * 4, 3 * 4, 0);
}

static void no_rows_are_no_launch(void **)
{
    const emu_counts before = emu_count();
    device_array<float> x(16);
    device_array<bf16> y(16);
    device_array<int32_t> ids(1);
    embed(NULL, {QUANT_F32, 1, 16, (const uint8_t *)x.at, NULL}, ids.at, 0, x.at);
    rmsnorm(NULL, x.at, NULL, x.at, 1e-5f, 0, 16, y.at, NULL);
    silu_mul(NULL, y.at, 0, 8, y.at);
    argmax(NULL, x.at, 0, 16, ids.at);
    assert_int_equal(emu_count().launches, before.launches);
    assert_null(last_error());
}

int main()
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(embed_gives_the_bits_of_the_stored_row_of_every_type),
        cmocka_unit_test(embed_writes_rows_that_are_not_aligned),
        cmocka_unit_test(embed_falls_back_to_rows_of_bfloat16),
        cmocka_unit_test(embed_takes_the_best_of_the_step_before_where_a_token_says_so),
        cmocka_unit_test(groups_decode_to_the_bits_of_the_stored_row),
        cmocka_unit_test(wrong_bits_of_a_stored_row_are_seen),
        cmocka_unit_test(norms_are_their_formula_at_every_width),
        cmocka_unit_test(another_eps_is_not_taken_for_the_right_one),
        cmocka_unit_test(norms_take_the_rows_that_are_asked_for),
        cmocka_unit_test(bits_of_a_normed_row_do_not_depend_on_other_rows),
        cmocka_unit_test(norms_without_unrounded_output_have_the_same_bits),
        cmocka_unit_test(a_nan_stays_in_its_row),
        cmocka_unit_test(a_row_of_zeros_stays_zero),
        cmocka_unit_test(silu_is_its_formula_at_every_width),
        cmocka_unit_test(another_activation_is_not_taken_for_silu),
        cmocka_unit_test(silu_of_extreme_gates_is_the_limit),
        cmocka_unit_test(argmax_finds_the_greatest_of_any_number),
        cmocka_unit_test(argmax_takes_the_first_of_equals),
        cmocka_unit_test(argmax_finds_the_greatest_wherever_it_stands),
        cmocka_unit_test(both_zeros_are_equal),
        cmocka_unit_test(nan_never_wins),
        cmocka_unit_test(operations_count_what_they_cost),
        cmocka_unit_test(no_rows_are_no_launch),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
