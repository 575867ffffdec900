/*
 * Models with one thing changed: what would change the answers in a way that the engine does
 * not know is refused with a sentence that names it; what says only the usual changes nothing.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "model/gguf.h"
#include "model/model.h"
#include "model_edit.h"

static struct model *open_whole(const char *path)
{
    struct model *m = NULL;
    struct err e = {0};
    if (model_open(path, &m, &e) != 0)
        fail_msg("%s", e.text);
    return m;
}

static struct model *open_edited(const struct model_edit *x)
{
    struct gguf_bytes file = model_edit_apply(x);
    struct model *m = NULL;
    struct err e = {0};
    if (model_edit_open(&file, false, &m, &e) != 0)
        fail_msg("%s: %s", x->key, e.text);
    free(file.data);
    return m;
}

static const struct {
    struct model_edit edit;
    int code;
    const char *text;
} refusals[] = {
    /* What the file is. */
    {{LLAMA, "general.architecture", EDIT_NONE, 0, NULL},
     ERR_NOTFOUND,
     "general.architecture is"},
    {{LLAMA, "general.architecture", EDIT_U32, 1, NULL}, ERR_FORMAT, "not a string"},
    {{LLAMA, "general.architecture", EDIT_TEXT, 0, "llamab"}, ERR_UNSUPPORTED, "llamab is not"},
    {{LLAMA, "general.architecture", EDIT_TEXT, 0, ""}, ERR_UNSUPPORTED, "llama, qwen2 and"},
    {{LLAMA, "general.architecture", EDIT_TEXT, 0, "x\x1b[31m\n"}, ERR_UNSUPPORTED, "x?[31m?"},
    {{LLAMA, "general.architecture", EDIT_TEXT, 0, "qwen2"}, ERR_NOTFOUND, "qwen2.block_count"},
    {{LLAMA, "general.type", EDIT_TEXT, 0, "adapter"}, ERR_UNSUPPORTED, "type is adapter"},
    {{LLAMA, "split.count", EDIT_U32, 3, NULL}, ERR_UNSUPPORTED, "one of 3 shards"},
    {{LLAMA, "general.quantization_version", EDIT_U32, 1, NULL},
     ERR_UNSUPPORTED,
     "is 1; only 2"},
    {{LLAMA, "llama.vocab_size", EDIT_U32, 321, NULL}, ERR_FORMAT, "is 321, but"},
    {{LLAMA, "tokenizer.chat_template", EDIT_U32, 1, NULL}, ERR_FORMAT, "chat_template is"},

    /* Counts out of range. */
    {{LLAMA, "llama.block_count", EDIT_NONE, 0, NULL}, ERR_NOTFOUND, "block_count is missing"},
    {{LLAMA, "llama.block_count", EDIT_U32, 0, NULL}, ERR_INVALID, "block_count is 0"},
    {{LLAMA, "llama.block_count", EDIT_U32, 513, NULL}, ERR_INVALID, "between 1 and 512"},
    {{LLAMA, "llama.block_count", EDIT_U32, 2147483648.0, NULL}, ERR_INVALID, "2147483648"},
    {{LLAMA, "llama.block_count", EDIT_F32, 2, NULL}, ERR_FORMAT, "not a whole number"},
    {{LLAMA, "llama.block_count", EDIT_U32, 3, NULL}, ERR_FORMAT, "blk.2.attn_norm.weight is"},
    {{LLAMA, "llama.block_count", EDIT_U32, 1, NULL}, ERR_UNSUPPORTED, "blk.1."},
    {{LLAMA, "llama.context_length", EDIT_U32, 0, NULL}, ERR_INVALID, "context_length is 0"},
    {{LLAMA, "llama.context_length", EDIT_U32, 16777217, NULL}, ERR_INVALID, "16777217"},
    {{LLAMA, "llama.embedding_length", EDIT_U32, 0, NULL},
     ERR_INVALID,
     "embedding_length is 0"},
    {{LLAMA, "llama.embedding_length", EDIT_U32, 32, NULL}, ERR_FORMAT, "not [32, 320]"},
    {{LLAMA, "llama.feed_forward_length", EDIT_U32, 0, NULL},
     ERR_INVALID,
     "forward_length is 0"},
    {{LLAMA, "llama.feed_forward_length", EDIT_U32, 64, NULL}, ERR_FORMAT, "blk.0.ffn_gate"},
    {{LLAMA, "llama.attention.head_count", EDIT_U32, 0, NULL}, ERR_INVALID, "head_count is 0"},
    {{LLAMA, "llama.attention.head_count", EDIT_U32, 5, NULL}, ERR_INVALID, "5 heads cannot"},
    {{LLAMA, "llama.attention.head_count", EDIT_I32S, 0, "42"}, ERR_UNSUPPORTED, "differs"},
    {{LLAMA, "llama.attention.head_count", EDIT_I32S, 0, "444"}, ERR_FORMAT, "3 items, not 2"},
    {{LLAMA, "llama.attention.head_count", EDIT_I32S, 0, ""}, ERR_FORMAT, "0 items, not 2"},
    {{LLAMA, "llama.attention.head_count", EDIT_I32S, 0, "00"}, ERR_INVALID, "head_count is 0"},
    {{LLAMA, "llama.attention.head_count", EDIT_I32S, 0, "//"},
     ERR_INVALID,
     "head_count is -1"},
    {{LLAMA, "llama.attention.head_count_kv", EDIT_U32, 0, NULL}, ERR_INVALID, "count_kv is 0"},
    {{LLAMA, "llama.attention.head_count_kv", EDIT_U32, 3, NULL}, ERR_INVALID, "3 key-value"},
    {{LLAMA, "llama.attention.head_count_kv", EDIT_NONE, 0, NULL}, ERR_FORMAT, "attn_k.weight"},
    {{LLAMA, "llama.attention.key_length", EDIT_U32, 0, NULL}, ERR_INVALID, "key_length is 0"},
    {{LLAMA, "llama.attention.key_length", EDIT_U32, 32, NULL},
     ERR_UNSUPPORTED,
     "values of 16"},
    {{LLAMA, "llama.attention.value_length", EDIT_U32, 8, NULL},
     ERR_UNSUPPORTED,
     "values of 8"},

    /* Floats that are no use. */
    {{LLAMA, "llama.attention.layer_norm_rms_epsilon", EDIT_NONE, 0, NULL},
     ERR_NOTFOUND,
     "epsilon is missing"},
    {{LLAMA, "llama.attention.layer_norm_rms_epsilon", EDIT_F32, 0, NULL}, ERR_INVALID, "is 0"},
    {{LLAMA, "llama.attention.layer_norm_rms_epsilon", EDIT_F32, -1, NULL},
     ERR_INVALID,
     "is -1"},
    {{LLAMA, "llama.attention.layer_norm_rms_epsilon", EDIT_F32, 1e60, NULL},
     ERR_INVALID,
     "inf"},
    {{LLAMA, "llama.attention.layer_norm_rms_epsilon", EDIT_U32, 1, NULL},
     ERR_FORMAT,
     "a float"},
    {{LLAMA, "llama.rope.freq_base", EDIT_F32, 0, NULL}, ERR_INVALID, "freq_base is 0"},
    {{LLAMA, "llama.rope.freq_base", EDIT_F32, -10000, NULL},
     ERR_INVALID,
     "freq_base is -10000"},
    {{LLAMA, "llama.rope.freq_base", EDIT_F32, 1e60, NULL}, ERR_INVALID, "freq_base is inf"},

    /* Rotation. */
    {{LLAMA, "llama.rope.dimension_count", EDIT_U32, 8, NULL}, ERR_UNSUPPORTED, "rotate all"},
    {{QWEN2, "qwen2.rope.dimension_count", EDIT_U32, 15, NULL}, ERR_INVALID, "an odd number"},
    {{QWEN2, "qwen2.rope.dimension_count", EDIT_U32, 0, NULL}, ERR_INVALID, "between 2 and 16"},
    {{QWEN2, "qwen2.rope.dimension_count", EDIT_U32, 18, NULL},
     ERR_INVALID,
     "between 2 and 16"},
    {{LLAMA, "llama.rope.scaling.type", EDIT_TEXT, 0, "yarn"}, ERR_UNSUPPORTED, "is yarn"},
    {{LLAMA, "llama.rope.scaling.type", EDIT_TEXT, 0, "longrope"}, ERR_UNSUPPORTED, "longrope"},
    {{LLAMA, "llama.rope.scaling.type", EDIT_U32, 1, NULL}, ERR_FORMAT, "not a string"},
    {{LLAMA, "llama.rope.scaling.factor", EDIT_F32, 0, NULL}, ERR_INVALID, "factor is 0"},
    {{LLAMA, "llama.rope.scaling.factor", EDIT_F32, -4, NULL}, ERR_INVALID, "factor is -4"},
    {{LLAMA, "llama.rope.scaling.attn_factor", EDIT_F32, 2, NULL},
     ERR_UNSUPPORTED,
     "attn_factor"},
    {{LLAMA, "llama.rope.dimension_sections", EDIT_I32S, 0, "4400"},
     ERR_UNSUPPORTED,
     "sections"},

    /* Other arithmetic. */
    {{LLAMA, "llama.attention.scale", EDIT_F32, 0.5, NULL}, ERR_UNSUPPORTED, "attention.scale"},
    {{LLAMA, "llama.attention.sliding_window", EDIT_U32, 256, NULL}, ERR_UNSUPPORTED, "window"},
    {{LLAMA, "llama.attention.sliding_window", EDIT_I32S, 0, "11"}, ERR_UNSUPPORTED, "window"},
    {{LLAMA, "llama.attn_logit_softcapping", EDIT_F32, 50, NULL},
     ERR_UNSUPPORTED,
     "softcapping"},
    {{LLAMA, "llama.final_logit_softcapping", EDIT_F32, 30, NULL},
     ERR_UNSUPPORTED,
     "softcapping"},
    {{LLAMA, "llama.logit_scale", EDIT_F32, 0.0625, NULL}, ERR_UNSUPPORTED, "logit_scale"},
    {{LLAMA, "llama.embedding_scale", EDIT_F32, 12, NULL}, ERR_UNSUPPORTED, "embedding_scale"},
    {{LLAMA, "llama.residual_scale", EDIT_F32, 0.2, NULL}, ERR_UNSUPPORTED, "residual_scale"},
    {{LLAMA, "llama.expert_count", EDIT_U32, 8, NULL}, ERR_UNSUPPORTED, "expert_count"},
    {{LLAMA, "llama.expert_count", EDIT_TEXT, 0, "two"}, ERR_UNSUPPORTED, "expert_count"},
    {{LLAMA, "llama.attention.causal", EDIT_BOOL, 0, NULL}, ERR_UNSUPPORTED, "causal"},
    {{LLAMA, "llama.attention.clamp_kqv", EDIT_F32, 8, NULL}, ERR_UNSUPPORTED, "clamp_kqv"},

    /* Tensors. */
    {{LLAMA, "token_embd.weight", EDIT_NONE, 0, NULL},
     ERR_FORMAT,
     "token_embd.weight is missing"},
    {{LLAMA, "output_norm.weight", EDIT_NONE, 0, NULL},
     ERR_FORMAT,
     "output_norm.weight is miss"},
    {{LLAMA, "blk.1.ffn_up.weight", EDIT_NONE, 0, NULL}, ERR_FORMAT, "blk.1.ffn_up.weight is"},
    {{QWEN2, "blk.0.attn_q.bias", EDIT_NONE, 0, NULL},
     ERR_FORMAT,
     "blk.0.attn_q.bias is missing"},
    {{QWEN3, "blk.1.attn_k_norm.weight", EDIT_NONE, 0, NULL},
     ERR_FORMAT,
     "attn_k_norm.weight is"},
    {{LLAMA, "token_embd.weight", EDIT_TENSOR, 0, "64x319"}, ERR_FORMAT, "[64, 319, 1, 1]"},
    {{LLAMA, "token_embd.weight", EDIT_TENSOR, 0, "64x320x2"}, ERR_FORMAT, "[64, 320, 2, 1]"},
    {{LLAMA, "blk.0.ffn_down.weight", EDIT_TENSOR, 0, "64x128"}, ERR_FORMAT, "not [128, 64]"},
    {{LLAMA, "blk.0.attn_norm.weight", EDIT_TENSOR, 0, "32x2"}, ERR_FORMAT, "not [64, 1]"},
    {{LLAMA, "blk.0.attn_norm.weight", EDIT_TENSOR, 8, "64"}, ERR_UNSUPPORTED, "is quantised"},
    {{LLAMA, "blk.0.attn_q.bias", EDIT_TENSOR, 0, "32"}, ERR_FORMAT, "not [64, 1]"},
    {{LLAMA, "blk.0.ffn_up.bias", EDIT_TENSOR, 0, "128"}, ERR_UNSUPPORTED, "blk.0.ffn_up.bias"},
    {{LLAMA, "blk.0.attn_q_norm.weight", EDIT_TENSOR, 0, "16"}, ERR_UNSUPPORTED, "attn_q_norm"},
    {{LLAMA, "blk.2.attn_norm.weight", EDIT_TENSOR, 0, "64"}, ERR_UNSUPPORTED, "of 2 layers"},
    {{LLAMA, "output.bias", EDIT_TENSOR, 0, "320"}, ERR_UNSUPPORTED, "output.bias"},
    {{QWEN2, "rope_freqs.weight", EDIT_TENSOR, 0, "8"}, ERR_UNSUPPORTED, "rope_freqs.weight"},
    {{LLAMA, "rope_freqs.weight", EDIT_TENSOR, 0, "16"}, ERR_FORMAT, "not [8, 1]"},
    {{LLAMA, "rope_factors_long.weight", EDIT_TENSOR, 0, "8"}, ERR_UNSUPPORTED, "factors_long"},
    {{LLAMA, ".attn_rot_embd", EDIT_TENSOR, 0, "8"}, ERR_UNSUPPORTED, ".attn_rot_embd"},
};

static void what_changes_the_answers_is_refused_by_name(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++) {
        struct gguf_bytes file = model_edit_apply(&refusals[i].edit);
        struct model *m = NULL;
        struct err e = {0};
        const int code = model_edit_open(&file, false, &m, &e);
        if (code != refusals[i].code || e.code != code || m ||
            !strstr(e.text, refusals[i].text))
            fail_msg("case %zu, %s: code %d, text \"%s\"", i, refusals[i].edit.key, code,
                     e.text);
        assert_memory_equal(e.text, "/tmp/sheaf-model-", 17);
        free(file.data);
    }
}

static void keys_with_their_usual_value_change_nothing(void **state)
{
    (void)state;
    static const struct model_edit edits[] = {
        {LLAMA, "llama.attention.scale", EDIT_F32, 0.25, NULL}, /* 1 / sqrt(16) */
        {LLAMA, "llama.attention.sliding_window", EDIT_U32, 512, NULL},
        {LLAMA, "llama.attn_logit_softcapping", EDIT_F32, 0, NULL},
        {LLAMA, "llama.logit_scale", EDIT_F32, 1, NULL},
        {LLAMA, "llama.expert_count", EDIT_U32, 0, NULL},
        {LLAMA, "llama.attention.causal", EDIT_BOOL, 1, NULL},
        {LLAMA, "llama.attention.head_count", EDIT_I32S, 0, "44"},
        {LLAMA, "llama.attention.key_length", EDIT_NONE, 0, NULL},
        {LLAMA, "llama.rope.dimension_count", EDIT_NONE, 0, NULL},
        {LLAMA, "llama.rope.freq_base", EDIT_NONE, 0, NULL},
        {LLAMA, "llama.vocab_size", EDIT_NONE, 0, NULL},
        {LLAMA, "general.type", EDIT_TEXT, 0, "model"},
        {LLAMA, "general.quantization_version", EDIT_U32, 2, NULL},
        {LLAMA, "split.count", EDIT_U32, 1, NULL},
        {LLAMA, "blk.0.attn_rot_embd.weight", EDIT_TENSOR, 0, "8"},
        {LLAMA, "blk.0.attn_norm.weight", EDIT_TENSOR, 0, "64x1"},
    };
    struct model *usual = open_whole(LLAMA);
    for (size_t i = 0; i < sizeof edits / sizeof *edits; i++) {
        struct model *m = open_edited(&edits[i]);
        if (memcmp(&m->config, &usual->config, sizeof m->config) != 0)
            fail_msg("%s changed the configuration", edits[i].key);
        model_close(m);
    }
    model_close(usual);
}

static void rope_scaling_divides_positions(void **state)
{
    (void)state;
    static const struct {
        struct model_edit edit;
        double scale;
    } cases[] = {
        {{LLAMA, "llama.rope.scaling.factor", EDIT_F32, 4, NULL}, 0.25},
        {{LLAMA, "llama.rope.scale_linear", EDIT_F32, 8, NULL}, 0.125},
        {{LLAMA, "llama.rope.scaling.type", EDIT_TEXT, 0, "linear"}, 1},
        {{LLAMA, "llama.rope.scaling.type", EDIT_TEXT, 0, "none"}, 1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct model *m = open_edited(&cases[i].edit);
        assert_true(m->config.rope_scale == cases[i].scale);
        model_close(m);
    }
}

static void no_rope_scaling_wins_over_a_factor(void **state)
{
    (void)state;
    struct gguf_bytes whole = model_edit_apply(
        &(struct model_edit){LLAMA, "llama.rope.scaling.factor", EDIT_F32, 4, NULL});
    struct gguf_builder b;
    gguf_edit_begin(&whole, NULL, NULL, &b);
    builder_string(&b, "llama.rope.scaling.type", "none");
    struct gguf_bytes file = builder_take(&b);
    struct model *m = NULL;
    assert_int_equal(model_edit_open(&file, false, &m, NULL), 0);
    assert_true(m->config.rope_scale == 1);
    model_close(m);
    free(file.data);
    free(whole.data);
}

static void rope_freqs_are_read_and_must_be_positive(void **state)
{
    (void)state;
    static const float lists[][8] = {
        {1, 1, 1, 2.5f, 3, 4, 8, 8}, {1, 1, 1, 1, 0, 1, 1, 1}, {1, 1, 1, 1, 1, -2, 1, 1}};
    struct gguf_bytes whole = gguf_bytes_read(LLAMA);
    const uint64_t dims[1] = {8};
    for (size_t i = 0; i < 4; i++) {
        float list[8];
        memcpy(list, lists[i % 3], sizeof list);
        if (i == 3)
            memset(&list[2], 0xff, sizeof list[2]); /* NaN */
        struct gguf_builder b;
        gguf_edit_begin(&whole, NULL, NULL, &b);
        builder_tensor_data(&b, "rope_freqs.weight", 0, 1, dims, list, sizeof list);
        struct gguf_bytes file = builder_take(&b);
        struct model *m = NULL;
        struct err e = {0};
        const int code = model_edit_open(&file, false, &m, &e);
        assert_int_equal(code, i == 0 ? 0 : ERR_INVALID);
        if (i == 0)
            assert_memory_equal(m->rope_freqs, lists[0], sizeof lists[0]);
        else
            assert_non_null(strstr(e.text, "of rope_freqs.weight is"));
        model_close(m);
        free(file.data);
    }
    free(whole.data);
}

static void a_llama_model_may_have_biases(void **state)
{
    (void)state;
    static const struct {
        const char *key, *dims;
        size_t place;
    } cases[] = {
        {"blk.1.attn_q.bias", "64", offsetof(struct model_layer, bq)},
        {"blk.1.attn_k.bias", "32", offsetof(struct model_layer, bk)},
        {"blk.1.attn_v.bias", "32", offsetof(struct model_layer, bv)},
        {"blk.1.attn_output.bias", "64", offsetof(struct model_layer, bo)},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct model *m = open_edited(
            &(struct model_edit){LLAMA, cases[i].key, EDIT_TENSOR, 0, cases[i].dims});
        const struct tensor *t =
            (const struct tensor *)((const char *)&m->layers[1] + cases[i].place);
        assert_non_null(t->data);
        assert_true(((const float *)t->data)[0] == 1);
        assert_null(m->layers[0].bq.data);
        model_close(m);
    }
}

static void a_model_without_output_matrix_is_tied(void **state)
{
    (void)state;
    struct model *m =
        open_edited(&(struct model_edit){LLAMA, "output.weight", EDIT_NONE, 0, NULL});
    assert_true(m->tied);
    assert_ptr_equal(m->output.data, m->token_embd.data);
    model_close(m);
}

static void fused_qkv_is_refused_by_name(void **state)
{
    (void)state;
    struct gguf_bytes whole = model_edit_apply(
        &(struct model_edit){LLAMA, "blk.0.attn_q.weight", EDIT_NONE, 0, NULL});
    struct gguf_builder b;
    gguf_edit_begin(&whole, "blk.0.attn_k.weight", "blk.0.attn_k.weight", &b);
    builder_tensor(&b, "blk.0.attn_qkv.weight", 8, 2, (const uint64_t[]){64, 128}, 8704);
    struct gguf_bytes file = builder_take(&b);
    struct model *m = NULL;
    struct err e = {0};
    assert_int_equal(model_edit_open(&file, false, &m, &e), ERR_UNSUPPORTED);
    assert_non_null(strstr(e.text, "blk.0.attn_qkv.weight joins q, k and v"));
    free(file.data);
    free(whole.data);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_changes_the_answers_is_refused_by_name),
        cmocka_unit_test(keys_with_their_usual_value_change_nothing),
        cmocka_unit_test(rope_scaling_divides_positions),
        cmocka_unit_test(no_rope_scaling_wins_over_a_factor),
        cmocka_unit_test(rope_freqs_are_read_and_must_be_positive),
        cmocka_unit_test(a_llama_model_may_have_biases),
        cmocka_unit_test(a_model_without_output_matrix_is_tied),
        cmocka_unit_test(fused_qkv_is_refused_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
