/*
 * Models: what the tiny ones are, that every tensor is bound to its place, and that nothing
 * which would change the answers is overlooked. The expected values were read from the files
 * with a Python script that shares no code with Sheaf, and with sha256sum.
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

/* ------------------------------------------------------------------ the tiny models */

struct expected {
    const char *name, *sha256, *quant;
    enum model_arch arch;
    bool tied;
    size_t dim, head_dim, ffn_dim, file_bytes;
    double rope_base;
    float rms_eps;
};

static const struct expected models[] = {
    {"tiny-llama-f16", "1b71edb477533a3f7408f4f68c20d84fc4ee93398287e811b7942d596bca3f26",
     "F16", MODEL_LLAMA, false, 64, 16, 128, 238432, 1e4, 1e-5f},
    {"tiny-llama-f32", "b9380fadd115bf22c9eea6bbb6c47f841f94b5a162d0a68d25843d1724f37d26",
     "F32", MODEL_LLAMA, false, 64, 16, 128, 467808, 1e4, 1e-5f},
    {"tiny-llama-mix", "333af6021b8ab9a7b2a3a2ba30a0b4d097475aca97172d183b24746242dbfe2f",
     "Q8_0", MODEL_LLAMA, true, 256, 64, 256, 800800, 1e5, 1e-5f},
    {"tiny-llama-q4_0", "5d819d26dacdf5a1073ba4c2dffc3cdd322e7b78ca77dc0e4d7ec2f6d3a33973",
     "Q4_0", MODEL_LLAMA, false, 64, 16, 128, 73568, 1e4, 1e-5f},
    {"tiny-llama-q4_1", "465fa1dba83ebc8fb18df192b9e6439569a53357bee4949bd4ec7bf0f6344244",
     "Q4_1", MODEL_LLAMA, false, 64, 16, 128, 80736, 1e4, 1e-5f},
    {"tiny-llama-q8_0", "906d1d564881ab19f8fe20bc69bbef00dbc6a5f096e08bf5eeda03ebcb8c9bca",
     "Q8_0", MODEL_LLAMA, false, 64, 16, 128, 130912, 1e4, 1e-5f},
    {"tiny-qwen2-f32", "8de47712ee69bdc6ef22496f8fe50e8451e211ba1f2727fd7a875cd4aae9d4c5",
     "F32", MODEL_QWEN2, true, 64, 16, 128, 387104, 1e6, 1e-6f},
    {"tiny-qwen2-q8_0", "19cc8933a184bf8e30b858e8541e3211b7541efaf82fba4e2d6015630261de6c",
     "Q8_0", MODEL_QWEN2, true, 64, 16, 128, 110368, 1e6, 1e-6f},
    {"tiny-qwen3-f32", "622651c14b8fdf3544b9385c656f5eaab6d04db4744dea55c059207d5b99a3fc",
     "F32", MODEL_QWEN3, true, 64, 32, 128, 484832, 1e6, 1e-6f},
    {"tiny-qwen3-q8_0", "cd8244c5a941e391bf497552bad07a8d8bd7f7be782430988246b354b971dd0f",
     "Q8_0", MODEL_QWEN3, true, 64, 32, 128, 135904, 1e6, 1e-6f},
};

enum { N_MODELS = sizeof models / sizeof *models };

static struct model *open_tiny(const char *name)
{
    char path[512];
    snprintf(path, sizeof path, TINY "%s.gguf", name);
    struct model *m = NULL;
    struct err e = {0};
    if (model_open(path, &m, &e) != 0)
        fail_msg("%s", e.text);
    return m;
}

static void tiny_models_have_the_right_configuration(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_MODELS; i++) {
        const struct expected *x = &models[i];
        struct model *m = open_tiny(x->name);
        const struct model_config *c = &m->config;
        assert_string_equal(m->name, x->name);
        assert_string_equal(m->quant, x->quant);
        assert_string_equal(m->sha256, x->sha256);
        assert_int_equal(m->file_bytes, x->file_bytes);
        assert_int_equal(m->tied, x->tied);
        assert_null(m->rope_freqs);
        assert_int_equal(c->arch, x->arch);
        assert_int_equal(c->n_layers, 2);
        assert_int_equal(c->dim, x->dim);
        assert_int_equal(c->n_heads, 4);
        assert_int_equal(c->n_kv_heads, 2);
        assert_int_equal(c->head_dim, x->head_dim);
        assert_int_equal(c->n_rot, x->head_dim);
        assert_int_equal(c->ffn_dim, x->ffn_dim);
        assert_int_equal(c->n_vocab, 320);
        assert_int_equal(c->context, 512);
        assert_int_equal(c->rope_pairing, x->arch == MODEL_LLAMA ? ROPE_NORM : ROPE_NEOX);
        assert_true(c->rope_base == x->rope_base);
        assert_true(c->rope_scale == 1);
        assert_true(c->rms_eps == x->rms_eps);
        assert_int_equal(m->template_family, TEMPLATE_CHATML);
        model_close(m);
    }
}

static void check_place(const struct gguf_bytes *file, const struct model *m,
                        const struct tensor *t, const char *name, bool is_there)
{
    const uint8_t *bytes = gguf_edit_find(file, name);
    if ((t->data != NULL) != is_there || (bytes != NULL) != is_there)
        fail_msg("%s %s is there or not, unlike expected", m->name, name);
    if (!is_there)
        return;
    const struct quant_info *info = quant_find(t->type);
    const size_t n_bytes = t->n_rows * (t->n_cols / info->block_elems) * info->block_bytes;
    if (memcmp(t->data, bytes, n_bytes) != 0)
        fail_msg("%s %s does not have the file's bytes", m->name, name);
}

static void check_layer(const struct gguf_bytes *file, const struct model *m, size_t index)
{
    const struct model_layer *l = &m->layers[index];
    const bool has_bias = m->config.arch == MODEL_QWEN2,
               has_norm = m->config.arch == MODEL_QWEN3;
    const struct {
        const struct tensor *tensor;
        const char *name;
        bool is_there;
    } parts[] = {
        {&l->attn_norm, "attn_norm.weight", true},
        {&l->wq, "attn_q.weight", true},
        {&l->wk, "attn_k.weight", true},
        {&l->wv, "attn_v.weight", true},
        {&l->wo, "attn_output.weight", true},
        {&l->bq, "attn_q.bias", has_bias},
        {&l->bk, "attn_k.bias", has_bias},
        {&l->bv, "attn_v.bias", has_bias},
        {&l->bo, "attn_output.bias", false},
        {&l->q_norm, "attn_q_norm.weight", has_norm},
        {&l->k_norm, "attn_k_norm.weight", has_norm},
        {&l->ffn_norm, "ffn_norm.weight", true},
        {&l->gate, "ffn_gate.weight", true},
        {&l->up, "ffn_up.weight", true},
        {&l->down, "ffn_down.weight", true},
    };
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        char name[64];
        snprintf(name, sizeof name, "blk.%zu.%s", index, parts[i].name);
        check_place(file, m, parts[i].tensor, name, parts[i].is_there);
    }
}

static void every_tensor_is_bound_to_its_place(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_MODELS; i++) {
        char path[512];
        snprintf(path, sizeof path, TINY "%s.gguf", models[i].name);
        struct gguf_bytes file = gguf_bytes_read(path);
        struct model *m = open_tiny(models[i].name);
        check_place(&file, m, &m->token_embd, "token_embd.weight", true);
        check_place(&file, m, &m->output_norm, "output_norm.weight", true);
        if (m->tied)
            assert_ptr_equal(m->output.data, m->token_embd.data);
        else
            check_place(&file, m, &m->output, "output.weight", true);
        check_layer(&file, m, 0);
        check_layer(&file, m, 1);
        model_close(m);
        free(file.data);
    }
}

static void shapes_are_rows_of_outputs(void **state)
{
    (void)state;
    struct model *m = open_tiny("tiny-qwen3-f32");
    const struct model_layer *l = &m->layers[1];
    const struct {
        const struct tensor *tensor;
        size_t n_rows, n_cols;
    } shapes[] = {
        {&m->token_embd, 320, 64}, {&m->output_norm, 1, 64}, {&l->attn_norm, 1, 64},
        {&l->wq, 128, 64},         {&l->wk, 64, 64},         {&l->wv, 64, 64},
        {&l->wo, 64, 128},         {&l->q_norm, 1, 32},      {&l->k_norm, 1, 32},
        {&l->ffn_norm, 1, 64},     {&l->gate, 128, 64},      {&l->up, 128, 64},
        {&l->down, 64, 128},
    };
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        assert_int_equal(shapes[i].tensor->n_rows, shapes[i].n_rows);
        assert_int_equal(shapes[i].tensor->n_cols, shapes[i].n_cols);
    }
    model_close(m);
}

static void the_types_of_a_mixed_file_are_kept(void **state)
{
    (void)state;
    struct model *m = open_tiny("tiny-llama-mix");
    const struct model_layer *a = &m->layers[0], *b = &m->layers[1];
    const enum quant_type got[] = {
        a->wq.type, a->wk.type, a->wv.type, a->wo.type, a->gate.type, a->up.type, a->down.type,
        b->wq.type, b->wk.type, b->wv.type, b->wo.type, b->gate.type, b->up.type, b->down.type};
    const enum quant_type expected[] = {
        QUANT_Q8_0, QUANT_Q4_K, QUANT_Q5_K, QUANT_Q6_K, QUANT_IQ4_NL, QUANT_Q5_0, QUANT_Q5_1,
        QUANT_Q4_0, QUANT_Q4_1, QUANT_F16,  QUANT_BF16, QUANT_Q8_0,   QUANT_Q4_K, QUANT_Q5_K};
    assert_memory_equal(got, expected, sizeof expected);
    model_close(m);
}

static void dropped_weights_leave_the_embedding(void **state)
{
    (void)state;
    static const char *const names[] = {"tiny-llama-f32", "tiny-qwen2-f32"};
    for (size_t i = 0; i < 2; i++) {
        struct model *m = open_tiny(names[i]);
        const size_t n_bytes = 320 * 64 * sizeof(float);
        void *before = malloc(n_bytes);
        memcpy(before, m->token_embd.data, n_bytes);
        model_drop_weights(m);
        assert_memory_equal(m->token_embd.data, before, n_bytes);
        assert_null(m->layers[0].wq.data);
        assert_null(m->layers[1].down.data);
        assert_null(m->output_norm.data);
        assert_ptr_equal(m->output.data, m->tied ? m->token_embd.data : NULL);
        free(before);
        model_close(m);
    }
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

/* ------------------------------------------------------------------ names and vocabularies */

static void gemma_is_refused_by_name_with_what_is_supported(void **state)
{
    (void)state;
    static const char *const paths[] = {TINY "tiny-gemma3-f32.gguf",
                                        TINY "tiny-gemma3-q8_0.gguf"};
    for (size_t i = 0; i < 2; i++) {
        struct model *m = NULL;
        struct err e = {0};
        assert_int_equal(model_open(paths[i], &m, &e), ERR_UNSUPPORTED);
        assert_null(m);
        assert_non_null(strstr(
            e.text, "the architecture gemma3 is not supported; llama, qwen2 and qwen3 are"));
    }
}

static void a_name_is_printable_or_the_file_s(void **state)
{
    (void)state;
    struct model *m = open_edited(
        &(struct model_edit){LLAMA, "general.name", EDIT_TEXT, 0, "Caf\xc3\xa9\x1b[2J"});
    assert_string_equal(m->name, "Caf??[2J");
    model_close(m);
    m = open_edited(&(struct model_edit){LLAMA, "general.name", EDIT_NONE, 0, NULL});
    assert_memory_equal(m->name, "sheaf-model-", 12);
    model_close(m);
}

static void a_vocabulary_opens_without_tensors(void **state)
{
    (void)state;
    struct gguf_bytes whole = gguf_bytes_read(LLAMA);
    struct gguf_builder b;
    gguf_edit_begin(&whole, NULL, NULL, &b);
    free(b.infos.data);
    b.infos = (struct gguf_bytes){0};
    b.n_tensors = 0;
    struct gguf_bytes file = builder_take(&b);
    struct model *m = NULL;
    struct err e = {0};
    assert_int_equal(model_edit_open(&file, true, &m, &e), 0);
    assert_int_equal(m->config.n_vocab, 320);
    assert_int_equal(m->config.n_layers, 2);
    assert_non_null(m->tokenizer);
    assert_null(m->layers);
    model_drop_weights(m);
    model_close(m);
    m = NULL;
    assert_int_equal(model_edit_open(&file, false, &m, &e), ERR_FORMAT);
    assert_non_null(strstr(e.text, "it is a vocabulary, not a model"));
    free(file.data);
    free(whole.data);
}

static void a_vocabulary_of_an_unsupported_architecture_opens(void **state)
{
    (void)state;
    struct gguf_bytes file = model_edit_apply(
        &(struct model_edit){LLAMA, "general.architecture", EDIT_TEXT, 0, "gpt2"});
    struct model *m = NULL;
    struct err e = {0};
    assert_int_equal(model_edit_open(&file, true, &m, &e), 0);
    assert_int_equal(m->config.n_vocab, 320);
    assert_int_equal(m->config.n_layers, 0);
    model_close(m);
    model_close(NULL);
    free(file.data);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tiny_models_have_the_right_configuration),
        cmocka_unit_test(every_tensor_is_bound_to_its_place),
        cmocka_unit_test(shapes_are_rows_of_outputs),
        cmocka_unit_test(the_types_of_a_mixed_file_are_kept),
        cmocka_unit_test(dropped_weights_leave_the_embedding),
        cmocka_unit_test(gemma_is_refused_by_name_with_what_is_supported),
        cmocka_unit_test(a_name_is_printable_or_the_file_s),
        cmocka_unit_test(a_vocabulary_opens_without_tensors),
        cmocka_unit_test(a_vocabulary_of_an_unsupported_architecture_opens),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
