/*
 * The least times of steps of an 8B model on an H200 are those that the project plans by: 4.3
 * TB/s and 790 TFLOP/s, groups of 32 on prefixes of 8,192 tokens with 96 of their own, to three
 * digits. The model is its shape alone.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "device_check/roof.h"

enum { L = 32, D = 4096, H = 32, KVH = 8, HD = 128, F = 14336, V = 128256 };
enum { PREFIX = 8192, OWN = 96 };

static const struct device_peaks h200 = {.copy = 4.3e12, .product = 790e12};

static void assert_near(double got, double want, double within)
{
    if (!(fabs(got - want) <= within))
        fail_msg("%g is not %g within %g", got, want, within);
}

static struct tensor matrix(size_t n_rows, size_t n_cols)
{
    return (struct tensor){.type = QUANT_BF16, .n_rows = n_rows, .n_cols = n_cols};
}

static struct roof roof_of_8b(enum kv_type kv_type)
{
    static struct model_layer layers[L];
    for (size_t i = 0; i < L; i++)
        layers[i] = (struct model_layer){.wq = matrix(H * HD, D),
                                         .wk = matrix(KVH * HD, D),
                                         .wv = matrix(KVH * HD, D),
                                         .wo = matrix(D, H * HD),
                                         .gate = matrix(F, D),
                                         .up = matrix(F, D),
                                         .down = matrix(D, F)};
    const struct model m = {.config = {.n_layers = L,
                                       .dim = D,
                                       .n_heads = H,
                                       .n_kv_heads = KVH,
                                       .head_dim = HD,
                                       .ffn_dim = F,
                                       .n_vocab = V},
                            .output = matrix(V, D),
                            .layers = layers};
    return roof_of(&m, kv_type);
}

static double milliseconds(double n, double n_groups, bool shares)
{
    const struct roof r = roof_of_8b(KV_BF16);
    const double keys = n * (PREFIX + OWN);
    const struct rig_sample step = {.rows = n,
                                    .logits_rows = n,
                                    .row_keys = keys,
                                    .kv_tokens = shares ? n_groups * PREFIX + n * OWN : keys};
    bool is_read_bound;
    return 1e3 * roof_seconds(&r, &step, &h200, &is_read_bound);
}

static void a_step_takes_what_was_planned(void **state)
{
    static const struct {
        double n, n_groups, grouped_ms, alone_ms;
    } planned[] = {
        {1, 1, 3.74, 3.74}, {8, 1, 3.76, 5.51}, {64, 2, 4.18, 19.7}, {256, 8, 7.61, 69.5}};
    (void)state;
    for (size_t i = 0; i < sizeof planned / sizeof planned[0]; i++) {
        const double grouped = milliseconds(planned[i].n, planned[i].n_groups, true);
        const double alone = milliseconds(planned[i].n, planned[i].n_groups, false);
        assert_near(grouped / planned[i].grouped_ms, 1, 0.003);
        assert_near(alone / planned[i].alone_ms, 1, 0.003);
    }
}

static void prompts_are_bound_by_computing_and_few_rows_by_reading(void **state)
{
    (void)state;
    const struct roof r = roof_of_8b(KV_BF16);
    const double n = 8192;
    const struct rig_sample prefill = {
        .rows = n, .logits_rows = 1, .row_keys = n * (n + 1) / 2, .kv_tokens = n};
    bool is_read_bound;
    /* A token: 17.67 us for weights, and 524,288 operations for each of 4,096.5 keys. */
    const double us = 1e6 * roof_seconds(&r, &prefill, &h200, &is_read_bound) / n;
    assert_false(is_read_bound);
    assert_near(us, 17.67 + 4096.5 * 524288 / 790e12 * 1e6, 0.05);
    const struct rig_sample one = {
        .rows = 1, .logits_rows = 1, .row_keys = PREFIX, .kv_tokens = PREFIX};
    roof_seconds(&r, &one, &h200, &is_read_bound);
    assert_true(is_read_bound);
    assert_near(roof_bytes(&r, &one) / 1e9, 15.01 + 1.074, 0.01);
}

static void float32_keys_are_twice_as_many_bytes(void **state)
{
    (void)state;
    assert_int_equal(roof_of_8b(KV_BF16).kv_token_bytes, 131072);
    assert_int_equal(roof_of_8b(KV_F32).kv_token_bytes, 2 * 131072);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_step_takes_what_was_planned),
        cmocka_unit_test(prompts_are_bound_by_computing_and_few_rows_by_reading),
        cmocka_unit_test(float32_keys_are_twice_as_many_bytes),
    };
    return cmocka_run_group_tests_name("roof", tests, NULL, NULL);
}
