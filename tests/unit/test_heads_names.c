/* Names of tensors of heads, as other projects write them, told apart without a model. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "model/heads_names.h"

static const struct {
    const char *text;
    struct heads_name name;
    const char *printed; /* NULL: the same */
} known[] = {
    {"0.0.linear.weight", {HEADS_PLAIN, HEADS_WEIGHT, 0, 0}, NULL},
    {"12.3.linear.bias", {HEADS_PLAIN, HEADS_BIAS, 12, 3}, NULL},
    {"4.1.weight", {HEADS_PLAIN, HEADS_OUTPUT, 4, 1}, NULL},
    {"medusa_head.2.0.linear.weight", {HEADS_MERGED, HEADS_WEIGHT, 2, 0}, NULL},
    {"medusa_head.2.0.linear.bias", {HEADS_MERGED, HEADS_BIAS, 2, 0}, NULL},
    {"medusa_head.2.1.weight", {HEADS_MERGED, HEADS_OUTPUT, 2, 1}, NULL},
    {"blocks.1.layers.0.weight", {HEADS_VLLM, HEADS_WEIGHT, 1, 0}, NULL},
    {"medusa_heads.blocks.1.layers.0.bias",
     {HEADS_VLLM, HEADS_BIAS, 1, 0},
     "blocks.1.layers.0.bias"},
    {"lm_heads.3.weight", {HEADS_VLLM, HEADS_OUTPUT, 3, 0}, NULL},
    {"lm_head.weight", {HEADS_VLLM, HEADS_OUTPUT_OF_ALL, 0, 0}, NULL},
    {"medusa_heads.token_map", {HEADS_VLLM, HEADS_TOKEN_MAP, 0, 0}, "token_map"},
    {"medusa_heads.7.medusa_layers.1.linear.weight",
     {HEADS_TENSORRT, HEADS_WEIGHT, 7, 1},
     NULL},
    {"medusa_heads.7.medusa_layers.1.linear.bias", {HEADS_TENSORRT, HEADS_BIAS, 7, 1}, NULL},
    {"medusa_heads.7.lm_head.weight", {HEADS_TENSORRT, HEADS_OUTPUT, 7, 0}, NULL},
    {"medusa.99999.blk.0.weight", {HEADS_GGUF, HEADS_WEIGHT, 99999, 0}, NULL},
    {"medusa.0.blk.3.bias", {HEADS_GGUF, HEADS_BIAS, 0, 3}, NULL},
    {"medusa.0.output.weight", {HEADS_GGUF, HEADS_OUTPUT, 0, 0}, NULL},
};

static const char *const unknown[] = {
    "",
    "0",
    "0.0",
    "0.0.linear",
    "0.0.linear.weight ",
    "0.0.linear.weights",
    "0.0.linear.weight.0",
    " 0.0.linear.weight",
    "+0.0.linear.weight",
    "-1.0.linear.weight",
    "00.0.linear.weight",
    "0.01.linear.weight",
    ".0.linear.weight",
    "100000.0.linear.weight",
    "4294967296.0.linear.weight",
    "18446744073709551616.0.linear.weight",
    "medusa_head.medusa_head.0.0.linear.weight",
    "medusa_heads.0.0.linear.weight",
    "medusa_heads.medusa_heads.token_map",
    "blocks.0.layers.0.linear.weight",
    "token_map.0",
    "medusa.0.blk.0",
    "model.layers.0.mlp.gate_proj.weight",
};

static void names_are_told_apart_and_printed_again(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        struct heads_name got = {0};
        if (!heads_name_parse(known[i].text, &got))
            fail_msg("%s is unknown", known[i].text);
        assert_int_equal(got.layout, known[i].name.layout);
        assert_int_equal(got.part, known[i].name.part);
        assert_int_equal(got.head, known[i].name.head);
        assert_int_equal(got.block, known[i].name.block);
        char text[HEADS_NAME_BYTES];
        heads_name_print(&got, text);
        assert_string_equal(text, known[i].printed ? known[i].printed : known[i].text);
    }
}

static void other_names_are_none_of_heads(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof unknown / sizeof *unknown; i++) {
        struct heads_name got;
        if (heads_name_parse(unknown[i], &got))
            fail_msg("%s is taken for a name of heads", unknown[i]);
    }
}

static void within_a_base_model_only_the_prefix_is_ours(void **state)
{
    (void)state;
    assert_true(heads_layout_owns(HEADS_MERGED, "medusa_head.0.extra"));
    assert_false(heads_layout_owns(HEADS_MERGED, "model.norm.weight"));
    assert_false(heads_layout_owns(HEADS_MERGED, "medusa_heads.0.extra"));
    assert_true(heads_layout_owns(HEADS_TENSORRT, "medusa_heads.0.extra"));
    assert_false(heads_layout_owns(HEADS_TENSORRT, "transformer.ln_f.weight"));
    assert_true(heads_layout_owns(HEADS_PLAIN, "model.norm.weight"));
    assert_true(heads_layout_owns(HEADS_VLLM, "model.norm.weight"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_are_told_apart_and_printed_again),
        cmocka_unit_test(other_names_are_none_of_heads),
        cmocka_unit_test(within_a_base_model_only_the_prefix_is_ours),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
