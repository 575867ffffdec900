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

#include "gguf_edit.h"
#include "model/gguf.h"
#include "model/model.h"

#define TINY SHEAF_TEST_DATA "/golden/tiny/"

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

/* ------------------------------------------------------------------ edited models */

enum edit_kind { EDIT_NONE, EDIT_U32, EDIT_F32, EDIT_BOOL, EDIT_TEXT, EDIT_I32S, EDIT_TENSOR };

/* One change to a tiny model. */
struct edit {
    const char *model;
    const char *key; /* or tensor: left out, then added again as the rest says */
    enum edit_kind kind;
    double number;     /* U32, F32, BOOL; type of a TENSOR */
    const char *value; /* TEXT; I32S: one digit an item; TENSOR: dims, see read_dims */
};

/* "64x320" as dims[0] 64, dims[1] 320. */
static size_t read_dims(const char *text, uint64_t dims[4])
{
    size_t n = 0;
    while (*text && n < 4) {
        char *end;
        dims[n++] = strtoull(text, &end, 10);
        text = *end ? end + 1 : end;
    }
    return n;
}

static void add_tensor(struct gguf_builder *b, const struct edit *x)
{
    uint64_t dims[4];
    const size_t n_dims = read_dims(x->value, dims);
    uint64_t n_elems = 1;
    for (size_t i = 0; i < n_dims; i++)
        n_elems *= dims[i];
    /* All floats 1: a valid value of norms, biases, weights and rotation factors alike. */
    float *ones = malloc(n_elems * sizeof *ones);
    assert_non_null(ones);
    for (uint64_t i = 0; i < n_elems; i++)
        ones[i] = 1;
    builder_tensor_data(b, x->key, (uint32_t)x->number, n_dims, dims, ones,
                        n_elems * sizeof *ones);
    free(ones);
}

static struct gguf_bytes apply(const struct edit *x)
{
    char path[512];
    snprintf(path, sizeof path, TINY "%s.gguf", x->model);
    struct gguf_bytes file = gguf_bytes_read(path);
    struct gguf_builder b;
    gguf_edit_begin(&file, x->key, x->key, &b);
    free(file.data);
    int32_t items[16] = {0};
    size_t n_items = 0;
    for (const char *c = x->kind == EDIT_I32S ? x->value : ""; *c; c++)
        items[n_items++] = *c - '0';
    switch (x->kind) {
    case EDIT_NONE: break;
    case EDIT_U32: builder_u32(&b, x->key, (uint32_t)x->number); break;
    case EDIT_F32: builder_f32(&b, x->key, (float)x->number); break;
    case EDIT_BOOL: builder_bool(&b, x->key, x->number != 0); break;
    case EDIT_TEXT: builder_string(&b, x->key, x->value); break;
    case EDIT_I32S: builder_i32s(&b, x->key, items, n_items); break;
    case EDIT_TENSOR: add_tensor(&b, x); break;
    }
    return builder_take(&b);
}

static int open_bytes(const struct gguf_bytes *file, bool is_vocab_only, struct model **m,
                      struct err *e)
{
    char path[] = "/tmp/sheaf-model-XXXXXX";
    FILE *f = fdopen(mkstemp(path), "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(file->data, 1, file->size, f), file->size);
    assert_int_equal(fclose(f), 0);
    const int code = is_vocab_only ? model_open_vocab(path, m, e) : model_open(path, m, e);
    unlink(path);
    return code;
}

static struct model *open_edited(const struct edit *x)
{
    struct gguf_bytes file = apply(x);
    struct model *m = NULL;
    struct err e = {0};
    if (open_bytes(&file, false, &m, &e) != 0)
        fail_msg("%s: %s", x->key, e.text);
    free(file.data);
    return m;
}

#define LLAMA "tiny-llama-q8_0"
#define QWEN2 "tiny-qwen2-q8_0"
#define QWEN3 "tiny-qwen3-q8_0"

static const struct {
    struct edit edit;
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
        struct gguf_bytes file = apply(&refusals[i].edit);
        struct model *m = NULL;
        struct err e = {0};
        const int code = open_bytes(&file, false, &m, &e);
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
    static const struct edit edits[] = {
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
    struct model *usual = open_tiny(LLAMA);
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
        struct edit edit;
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
    struct gguf_bytes whole =
        apply(&(struct edit){LLAMA, "llama.rope.scaling.factor", EDIT_F32, 4, NULL});
    struct gguf_builder b;
    gguf_edit_begin(&whole, NULL, NULL, &b);
    builder_string(&b, "llama.rope.scaling.type", "none");
    struct gguf_bytes file = builder_take(&b);
    struct model *m = NULL;
    assert_int_equal(open_bytes(&file, false, &m, NULL), 0);
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
    struct gguf_bytes whole = gguf_bytes_read(TINY LLAMA ".gguf");
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
        const int code = open_bytes(&file, false, &m, &e);
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
        struct model *m =
            open_edited(&(struct edit){LLAMA, cases[i].key, EDIT_TENSOR, 0, cases[i].dims});
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
    struct model *m = open_edited(&(struct edit){LLAMA, "output.weight", EDIT_NONE, 0, NULL});
    assert_true(m->tied);
    assert_ptr_equal(m->output.data, m->token_embd.data);
    model_close(m);
}

static void fused_qkv_is_refused_by_name(void **state)
{
    (void)state;
    struct gguf_bytes whole =
        apply(&(struct edit){LLAMA, "blk.0.attn_q.weight", EDIT_NONE, 0, NULL});
    struct gguf_builder b;
    gguf_edit_begin(&whole, "blk.0.attn_k.weight", "blk.0.attn_k.weight", &b);
    builder_tensor(&b, "blk.0.attn_qkv.weight", 8, 2, (const uint64_t[]){64, 128}, 8704);
    struct gguf_bytes file = builder_take(&b);
    struct model *m = NULL;
    struct err e = {0};
    assert_int_equal(open_bytes(&file, false, &m, &e), ERR_UNSUPPORTED);
    assert_non_null(strstr(e.text, "blk.0.attn_qkv.weight joins q, k and v"));
    free(file.data);
    free(whole.data);
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
    struct model *m =
        open_edited(&(struct edit){LLAMA, "general.name", EDIT_TEXT, 0, "Caf\xc3\xa9\x1b[2J"});
    assert_string_equal(m->name, "Caf??[2J");
    model_close(m);
    m = open_edited(&(struct edit){LLAMA, "general.name", EDIT_NONE, 0, NULL});
    assert_memory_equal(m->name, "sheaf-model-", 12);
    model_close(m);
}

static void a_vocabulary_opens_without_tensors(void **state)
{
    (void)state;
    struct gguf_bytes whole = gguf_bytes_read(TINY LLAMA ".gguf");
    struct gguf_builder b;
    gguf_edit_begin(&whole, NULL, NULL, &b);
    free(b.infos.data);
    b.infos = (struct gguf_bytes){0};
    b.n_tensors = 0;
    struct gguf_bytes file = builder_take(&b);
    struct model *m = NULL;
    struct err e = {0};
    assert_int_equal(open_bytes(&file, true, &m, &e), 0);
    assert_int_equal(m->config.n_vocab, 320);
    assert_int_equal(m->config.n_layers, 2);
    assert_non_null(m->tokenizer);
    assert_null(m->layers);
    model_drop_weights(m);
    model_close(m);
    m = NULL;
    assert_int_equal(open_bytes(&file, false, &m, &e), ERR_FORMAT);
    assert_non_null(strstr(e.text, "it is a vocabulary, not a model"));
    free(file.data);
    free(whole.data);
}

static void a_vocabulary_of_an_unsupported_architecture_opens(void **state)
{
    (void)state;
    struct gguf_bytes file =
        apply(&(struct edit){LLAMA, "general.architecture", EDIT_TEXT, 0, "gpt2"});
    struct model *m = NULL;
    struct err e = {0};
    assert_int_equal(open_bytes(&file, true, &m, &e), 0);
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
        cmocka_unit_test(what_changes_the_answers_is_refused_by_name),
        cmocka_unit_test(keys_with_their_usual_value_change_nothing),
        cmocka_unit_test(rope_scaling_divides_positions),
        cmocka_unit_test(no_rope_scaling_wins_over_a_factor),
        cmocka_unit_test(rope_freqs_are_read_and_must_be_positive),
        cmocka_unit_test(a_llama_model_may_have_biases),
        cmocka_unit_test(a_model_without_output_matrix_is_tied),
        cmocka_unit_test(fused_qkv_is_refused_by_name),
        cmocka_unit_test(gemma_is_refused_by_name_with_what_is_supported),
        cmocka_unit_test(a_name_is_printable_or_the_file_s),
        cmocka_unit_test(a_vocabulary_opens_without_tensors),
        cmocka_unit_test(a_vocabulary_of_an_unsupported_architecture_opens),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
