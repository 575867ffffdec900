/*
 * The least time of a step. Expected values are those of the tables that were worked out for a
 * model of 135M weights on a machine with 936 GOP/s, 464 GFLOP/s and 35 GB/s: per layer
 * 3,538,944 weights, 69,120 operations of attention for a token and a key, 59.7 MB of layers
 * and 30.1 MB of head, 47.2 MB of bf16 KV for 2,048 tokens.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "model/model.h"
#include "roofline.h"

static const struct roofline_peaks hardware = {936e9, 464e9, 35e9, 464e9};
/* What prototypes of the kernels reached on that machine. */
static const struct roofline_peaks prototypes = {804e9, 333e9, 35e9, 333e9};

static const struct roofline_model small = {
    .layer_byte_weights = 106168320,
    .head_byte_weights = 28311552,
    .attention_ops = 69120,
    .weights_bytes = 59.7e6 + 30.1e6,
    .kv_token_bytes = 47.2e6 / 2048,
};

/* Tables have three digits. */
static void assert_near(double got, double expected)
{
    if (!(fabs(got - expected) <= 0.005 * expected))
        fail_msg("%g is not near %g", got, expected);
}

static void a_prompt_of_2000_tokens_takes_three_quarters_of_a_second(void **state)
{
    (void)state;
    const struct roofline_step step = roofline_prefill(2000);
    assert_true(step.row_keys == 2001000); /* 1 + 2 + ... + 2000 */
    assert_near(roofline_s(&small, &step, &hardware), 0.75);
    assert_near(2000 / roofline_s(&small, &step, &hardware), 2660);
    assert_near(2000 / roofline_s(&small, &step, &prototypes), 2120);
}

static void one_sequence_is_bound_by_reading(void **state)
{
    (void)state;
    struct roofline_model m = small;
    const struct roofline_step step = roofline_decode(1, 2048 + 64, 2048);
    assert_near(roofline_s(&m, &step, &hardware), 3.96e-3);
    assert_true(roofline_s(&m, &step, &hardware) == roofline_read_s(&m, &step, &hardware));
    m.kv_token_bytes = 24.3e6 / 2048; /* int8 */
    assert_near(roofline_s(&m, &step, &hardware), 3.28e-3);
}

/* Attention alone: a row that sees 2,048 keys has 69,120 * 2,048 operations, whatever weights
 * are multiplied with. */
static void attention_takes_the_peak_of_its_own_numbers(void **state)
{
    (void)state;
    struct roofline_peaks words = hardware;
    words.attention = 936e9 / 2;
    struct roofline_model m = {.attention_ops = 69120};
    const struct roofline_step step = {.rows = 1, .row_keys = 2048};
    assert_near(roofline_s(&m, &step, &words), 69120.0 * 2048 / 468e9);
    m.layer_byte_weights = 1e9;
    m.layer_float_weights = 1e9;
    assert_near(roofline_s(&m, &step, &words),
                2e9 / 936e9 + 2e9 / 464e9 + 69120.0 * 2048 / 468e9);
}

/* Products 8.45 ms, the head 2.25, attention to the shared tokens 13.6. */
static void thirty_two_sequences_are_bound_by_computing(void **state)
{
    (void)state;
    const struct roofline_step step = roofline_decode(32, 32 * 2048, 2048);
    assert_near(roofline_s(&small, &step, &prototypes), 8.45e-3 + 2.25e-3 + 13.6e-3);
    assert_true(roofline_s(&small, &step, &prototypes) ==
                roofline_compute_s(&small, &step, &prototypes));
    struct roofline_peaks slow_memory = prototypes;
    slow_memory.read = 1e9; /* 89.8 + 47.2 MB */
    assert_near(roofline_s(&small, &step, &slow_memory), 137e-3);
}

static void a_shared_token_is_read_once_and_a_private_one_by_its_sequence(void **state)
{
    (void)state;
    const struct roofline_step shared = roofline_decode(32, 32 * (2048 + 64), 2048);
    assert_true(shared.kv_tokens == 2048 + 32 * 64);
    assert_true(shared.row_keys == 32 * 2112);
    const struct roofline_step private = roofline_decode(32, 32 * (2048 + 64), 0);
    assert_true(private.kv_tokens == 32 * 2112);
}

static struct tensor matrix(enum quant_type type, size_t n_rows, size_t n_cols)
{
    return (struct tensor){.type = type, .n_rows = n_rows, .n_cols = n_cols};
}

static struct model_layer layer_of(enum quant_type type)
{
    return (struct model_layer){
        .wq = matrix(type, 576, 576),
        .wk = matrix(type, 192, 576),
        .wv = matrix(type, 192, 576),
        .wo = matrix(type, 576, 576),
        .gate = matrix(type, 1536, 576),
        .up = matrix(type, 1536, 576),
        .down = matrix(type, 576, 1536),
    };
}

static void weights_are_counted_by_what_multiplies_them(void **state)
{
    (void)state;
    struct model_layer layers[30];
    for (size_t i = 0; i < 30; i++)
        layers[i] = layer_of(QUANT_Q4_1);
    struct model m = {.config = {.n_layers = 30, .n_heads = 9, .head_dim = 64},
                      .layers = layers,
                      .output = matrix(QUANT_Q6_K, 49152, 576)};
    struct roofline_model counts = roofline_count(&m, true);
    assert_true(counts.layer_byte_weights == 30 * 3538944.0);
    assert_true(counts.layer_float_weights == 0);
    assert_true(counts.head_byte_weights == 28311552);
    assert_true(counts.attention_ops == 69120);

    layers[7] = layer_of(QUANT_BF16);
    counts = roofline_count(&m, true);
    assert_true(counts.layer_byte_weights == 29 * 3538944.0);
    assert_true(counts.layer_float_weights == 3538944);

    counts = roofline_count(&m, false);
    assert_true(counts.layer_byte_weights == 0 && counts.head_byte_weights == 0);
    assert_true(counts.head_float_weights == 28311552);
}

/* 936 = 8 * 117: bytes are eight times as fast as floats here. */
static void float_weights_take_the_float_peak(void **state)
{
    (void)state;
    struct roofline_model floats = small;
    floats.layer_float_weights = small.layer_byte_weights;
    floats.layer_byte_weights = 0;
    floats.head_byte_weights = 0;
    struct roofline_model bytes = small;
    bytes.head_byte_weights = 0;
    const struct roofline_peaks peaks = {936e9, 117e9, 1e15, 117e9};
    const struct roofline_step step = {.rows = 100};
    assert_near(roofline_s(&floats, &step, &peaks), 8 * roofline_s(&bytes, &step, &peaks));
}

int main(int argc, char **argv)
{
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_prompt_of_2000_tokens_takes_three_quarters_of_a_second),
        cmocka_unit_test(one_sequence_is_bound_by_reading),
        cmocka_unit_test(attention_takes_the_peak_of_its_own_numbers),
        cmocka_unit_test(thirty_two_sequences_are_bound_by_computing),
        cmocka_unit_test(a_shared_token_is_read_once_and_a_private_one_by_its_sequence),
        cmocka_unit_test(weights_are_counted_by_what_multiplies_them),
        cmocka_unit_test(float_weights_take_the_float_peak),
    };
    return cmocka_run_group_tests_name("roofline", tests, NULL, NULL);
}
