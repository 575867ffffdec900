/*
 * Tensors that do not belong: what is missing, unknown, twice there, misshapen or not finite is
 * refused by its name, in every layout.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "heads_rig.h"
#include "model_edit.h"

struct added {
    const char *name;
    const char *dtype;
    size_t n_rows, n_cols;
};

#define INSTEAD(layout, dropped, name, dtype, n_rows, n_cols, code, text)                      \
    {                                                                                          \
        SMALL_##layout, dropped, {name, dtype, n_rows, n_cols}, code, text                     \
    }
#define WITHOUT(layout, name, code, text) INSTEAD(layout, name, NULL, NULL, 0, 0, code, text)
#define WITH(layout, name, dtype, n_rows, n_cols, code, text)                                  \
    INSTEAD(layout, NULL, name, dtype, n_rows, n_cols, code, text)
#define WRONG(layout, name, dtype, n_rows, n_cols, code, text)                                 \
    INSTEAD(layout, name, name, dtype, n_rows, n_cols, code, text)

/* Heads of two blocks and outputs, with one tensor dropped and one added. */
static const struct {
    enum small_layout layout;
    const char *dropped;
    struct added added;
    int code;
    const char *text;
} refusals[] = {
    WITHOUT(PLAIN, "0.0.linear.weight", ERR_FORMAT, "tensor 0.0.linear.weight is missing"),
    WITHOUT(PLAIN, "1.1.linear.bias", ERR_FORMAT, "tensor 1.1.linear.bias is missing"),
    WITHOUT(PLAIN, "1.1.linear.weight", ERR_FORMAT, "tensor 1.1.linear.weight is missing"),
    WITHOUT(PLAIN, "1.2.weight", ERR_FORMAT, "tensor 1.2.weight is missing"),
    WITH(PLAIN, "3.0.linear.bias", "F32", 0, 64, ERR_FORMAT,
         "tensor 2.0.linear.weight is missing: the file's other tensors tell of 4 heads of 2"),
    WITH(PLAIN, "0.2.linear.bias", "F32", 0, 64, ERR_FORMAT,
         "tensor 0.2.linear.weight is missing"),
    INSTEAD(PLAIN, "0.2.weight", "0.1.weight", "F32", 320, 64, ERR_FORMAT,
            "tensor 0.1.weight is not the output behind 2 blocks"),
    WITH(PLAIN, "0.1.weight", "F32", 320, 64, ERR_FORMAT,
         "tensors 0.2.weight and 0.1.weight stand for the same"),
    WITH(PLAIN, "0.0.linear.scale", "F32", 0, 64, ERR_UNSUPPORTED,
         "tensor 0.0.linear.scale is unknown"),
    WITH(PLAIN, "00.0.linear.weight", "F32", 64, 64, ERR_UNSUPPORTED,
         "tensor 00.0.linear.weight is unknown"),
    WITH(PLAIN, "lm_head.weight", "F32", 320, 64, ERR_UNSUPPORTED,
         "tensor lm_head.weight is unknown"),
    WITH(PLAIN, "blocks.0.layers.0.weight", "F32", 64, 64, ERR_UNSUPPORTED,
         "tensor blocks.0.layers.0.weight is unknown among heads in FasterDecoding's layout"),
    WITH(PLAIN, "medusa.0.blk.0.weight", "F32", 64, 64, ERR_UNSUPPORTED,
         "tensor medusa.0.blk.0.weight is unknown"),
    WITH(PLAIN, "8.0.linear.weight", "F32", 64, 64, ERR_LIMIT,
         "tensor 8.0.linear.weight is of head 8"),
    WITH(PLAIN, "0.4.linear.weight", "F32", 64, 64, ERR_LIMIT,
         "tensor 0.4.linear.weight is of block 4"),
    WITH(PLAIN, "99999999999999999999.0.linear.weight", "F32", 64, 64, ERR_UNSUPPORTED,
         "tensor 99999999999999999999.0.linear.weight is unknown"),
    WRONG(PLAIN, "1.0.linear.weight", "F32", 64, 63, ERR_FORMAT,
          "tensor 1.0.linear.weight has the shape [64, 63] (2 dimensions), not [64, 64]"),
    WRONG(PLAIN, "1.0.linear.weight", "F32", 0, 4096, ERR_FORMAT,
          "tensor 1.0.linear.weight has the shape [1, 4096] (1 dimensions)"),
    WRONG(PLAIN, "1.0.linear.bias", "F32", 0, 63, ERR_FORMAT,
          "tensor 1.0.linear.bias has 1 dimensions, the last of 63; it must be one of 64"),
    WRONG(PLAIN, "1.0.linear.bias", "F32", 1, 64, ERR_FORMAT,
          "tensor 1.0.linear.bias has 2 dimensions"),
    WRONG(PLAIN, "1.2.weight", "F32", 319, 64, ERR_FORMAT,
          "tensor 1.2.weight has the shape [319, 64]"),
    WRONG(PLAIN, "0.2.weight", "F32", 321, 64, ERR_CONFIG,
          "of 321 tokens, and this model has 320"),
    WRONG(
        PLAIN, "0.0.linear.weight", "F32", 128, 128, ERR_CONFIG,
        "tensor 0.0.linear.weight belongs to a model of 128 dimensions, and this model has 64"),
    WRONG(PLAIN, "0.0.linear.bias", "I32", 0, 64, ERR_UNSUPPORTED,
          "tensor 0.0.linear.bias has type I32"),
    WRONG(PLAIN, "0.0.linear.bias", "F64", 0, 64, ERR_UNSUPPORTED,
          "tensor 0.0.linear.bias has type F64"),
    WITHOUT(MERGED, "medusa_head.0.2.weight", ERR_FORMAT,
            "tensor medusa_head.0.2.weight is missing"),
    WITH(MERGED, "medusa_head.0.norm.weight", "F32", 0, 64, ERR_UNSUPPORTED,
         "tensor medusa_head.0.norm.weight is unknown"),
    WITH(TENSORRT, "medusa_heads.0.lm_head.weights_scaling_factor", "F32", 0, 1,
         ERR_UNSUPPORTED, "weights_scaling_factor is unknown among heads in TensorRT-LLM's"),
    WITHOUT(TENSORRT, "medusa_heads.1.lm_head.weight", ERR_FORMAT,
            "tensor medusa_heads.1.lm_head.weight is missing"),
    WITHOUT(TENSORRT, "medusa_heads.1.medusa_layers.0.linear.bias", ERR_FORMAT,
            "tensor medusa_heads.1.medusa_layers.0.linear.bias is missing"),
    WITH(TENSORRT, "medusa_heads.blocks.0.layers.0.weight", "F32", 64, 64, ERR_UNSUPPORTED,
         "tensor medusa_heads.blocks.0.layers.0.weight is unknown"),
    WITHOUT(VLLM, "blocks.1.layers.0.bias", ERR_FORMAT,
            "tensor blocks.1.layers.0.bias is missing"),
    WITHOUT(VLLM, "lm_heads.0.weight", ERR_FORMAT, "tensor lm_heads.0.weight is missing"),
    WITH(VLLM, "lm_head.weight", "F32", 320, 64, ERR_FORMAT,
         "tensors lm_head.weight and lm_heads.0.weight: there is one output for all"),
    WITH(VLLM, "medusa_heads.lm_heads.0.weight", "F32", 320, 64, ERR_FORMAT,
         "stand for the same"),
    WITH(VLLM, "norm.weight", "F32", 0, 64, ERR_UNSUPPORTED,
         "tensor norm.weight is unknown among heads in vLLM's layout"),
    WITH(VLLM, "token_map", "F32", 0, 4, ERR_UNSUPPORTED, "tensor token_map has type"),
    WITH(VLLM, "token_map", "I32", 2, 2, ERR_FORMAT, "tensor token_map has 2 dimensions"),
    WITH(VLLM, "token_map", "I32", 0, 320, ERR_FORMAT, "of fewer tokens than the 320"),
    WITHOUT(VLLM_PREFIXED, "medusa_heads.blocks.0.layers.0.weight", ERR_FORMAT,
            "tensor blocks.0.layers.0.weight is missing"),
};

static void add_all_but(struct st_builder *b, enum small_layout layout, const char *dropped)
{
    size_t n_dropped = 0;
    for (size_t i = 0; i < 2; i++) {
        for (size_t l = 0; l <= 2; l++) {
            for (int part = l < 2 ? SMALL_WEIGHT : SMALL_OUTPUT;
                 part <= (l < 2 ? SMALL_BIAS : SMALL_OUTPUT); part++) {
                char name[96];
                small_name(layout, (enum small_part)part, i, l, name);
                if (dropped && strcmp(name, dropped) == 0)
                    n_dropped++;
                else
                    st_tensor(b, name, "F32",
                              part == SMALL_BIAS     ? 0
                              : part == SMALL_OUTPUT ? SMALL_V
                                                     : SMALL_D,
                              SMALL_D, 1);
            }
        }
    }
    assert_int_equal(n_dropped, dropped ? 1 : 0);
}

static void what_does_not_fit_is_refused_by_name(void **state)
{
    (void)state;
    for (size_t k = 0; k < sizeof refusals / sizeof *refusals; k++) {
        const struct added *added = &refusals[k].added;
        struct st_builder b;
        st_init(&b);
        if (refusals[k].layout == SMALL_MERGED || refusals[k].layout == SMALL_TENSORRT)
            small_base(&b, 1);
        add_all_but(&b, refusals[k].layout, refusals[k].dropped);
        if (added->name)
            st_tensor(&b, added->name, added->dtype, added->n_rows, added->n_cols, 1);
        heads_rig_put(st_take(&b));
        check_refused(refusals[k].code, refusals[k].text);
    }
}

static const struct small_heads tied = {SMALL_VLLM, "F32", 1, 1, false, true};

static void a_token_map_holds_tokens_of_the_model_once(void **state)
{
    (void)state;
    static const struct {
        int64_t ids[3];
        int code;
        const char *text;
    } maps[] = {
        {{1, 2, 320}, ERR_CONFIG, "token_map names the token 320, and the model has 320"},
        {{1, -2, 3}, ERR_CONFIG, "token_map names the token -2"},
        {{1, INT64_MAX, 3}, ERR_CONFIG, "token_map names the token 9223372036854775807"},
        {{7, 2, 7}, ERR_FORMAT, "token_map names the token 7 twice"},
    };
    for (size_t k = 0; k < sizeof maps / sizeof *maps; k++) {
        struct st_builder b;
        st_init(&b);
        small_head(&b, &tied, 0);
        st_tensor(&b, "lm_heads.0.weight", "F32", 3, SMALL_D, 1);
        st_tensor_bytes(&b, "token_map", "I64", 0, 3, maps[k].ids, sizeof maps[k].ids);
        heads_rig_put(st_take(&b));
        check_refused(maps[k].code, maps[k].text);
    }
}

static void values_that_are_not_finite_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *dtype;
        uint32_t bits;
    } bad[] = {{"F32", 0x7fc00000}, {"F32", 0xff800000}, {"F16", 0x7c00},
               {"F16", 0x7e01},     {"BF16", 0x7f80},    {"BF16", 0xffc0}};
    for (size_t k = 0; k < sizeof bad / sizeof *bad; k++) {
        const size_t n = strcmp(bad[k].dtype, "F32") == 0 ? 4 : 2;
        uint8_t bias[4 * SMALL_D] = {0};
        memcpy(bias + 63 * n, &bad[k].bits, n);
        struct st_builder b;
        st_init(&b);
        st_tensor(&b, "0.0.linear.weight", "F32", SMALL_D, SMALL_D, 1);
        st_tensor_bytes(&b, "0.0.linear.bias", bad[k].dtype, 0, SMALL_D, bias, n * SMALL_D);
        heads_rig_put(st_take(&b));
        check_refused(ERR_FORMAT,
                      "element 63 of tensor 0.0.linear.bias is not a finite number");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_does_not_fit_is_refused_by_name),
        cmocka_unit_test(a_token_map_holds_tokens_of_the_model_once),
        cmocka_unit_test(values_that_are_not_finite_are_refused),
    };
    return cmocka_run_group_tests(tests, heads_rig_set_up, heads_rig_tear_down);
}
