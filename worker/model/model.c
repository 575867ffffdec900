/* Opening a model: file, architecture, configuration, tokenizer, tensors, in this order. */
#include "model_int.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/sha256.h"

static void name_model(struct model *m, const char *path)
{
    struct gguf_str name = {"", 0};
    if (gguf_string(m->gguf, "general.name", &name, NULL) != 0 || name.length == 0) {
        const char *slash = strrchr(path, '/');
        name.data = slash ? slash + 1 : path;
        name.length = strlen(name.data);
    }
    gguf_str_print(name, m->name, sizeof m->name);
}

static int find_template(struct model *m, struct err *e)
{
    struct gguf_str text;
    m->template_family = TEMPLATE_UNKNOWN;
    if (!gguf_has(m->gguf, "tokenizer.chat_template"))
        return 0;
    TRY(gguf_string(m->gguf, "tokenizer.chat_template", &text, e));
    m->template_family = template_detect(text.data, text.length);
    m->default_system = template_default_system(text.data, text.length);
    return 0;
}

static int check_vocab_size(const struct model *m, const struct arch_traits *traits,
                            struct err *e)
{
    char key[64];
    uint64_t n_vocab = m->config.n_vocab;
    snprintf(key, sizeof key, "%s.vocab_size", traits->name);
    if (gguf_has(m->gguf, key))
        TRY(gguf_u64(m->gguf, key, &n_vocab, e));
    if (n_vocab != m->config.n_vocab)
        return ERR_SET(e, ERR_FORMAT, "%s is %llu, but the tokenizer has %zu tokens", key,
                       (unsigned long long)n_vocab, m->config.n_vocab);
    return 0;
}

static int fill(struct model *m, const char *path, bool is_vocab_only, struct err *e)
{
    const struct arch_traits *traits = NULL;
    TRY(model_find_arch(m->gguf, &traits, e));
    if (!traits && !is_vocab_only)
        return model_refuse_arch(m->gguf, e);
    if (traits)
        TRY(model_read_config(m->gguf, traits, &m->config, e));
    name_model(m, path);
    TRY(tokenizer_open(m->gguf, &m->tokenizer, e));
    m->config.n_vocab = tokenizer_vocab_size(m->tokenizer);
    TRY(find_template(m, e));
    if (traits)
        TRY(check_vocab_size(m, traits, e));
    if (!is_vocab_only)
        TRY(model_bind_tensors(m, e));
    m->file_bytes = gguf_file_bytes(m->gguf);
    return sha256_hex(gguf_file_data(m->gguf), m->file_bytes, m->sha256, e);
}

static int open_any(const char *path, bool is_vocab_only, struct model **out, struct err *e)
{
    struct err cause = {0}; /* so that the path goes in front of our own texts only */
    struct model *m = calloc(1, sizeof *m);
    if (!m)
        return ERR_SET(e, ERR_NOMEM, "out of memory for a model");
    int code = gguf_open(path, &m->gguf, &cause);
    if (code == 0) {
        code = fill(m, path, is_vocab_only, &cause);
        err_prefix(&cause, "%s", path);
    }
    if (code != 0) {
        model_close(m);
        return err_set(e, code, cause.flags, cause.file, cause.line, "%s", cause.text);
    }
    *out = m;
    return 0;
}

int model_open(const char *path, struct model **out, struct err *e)
{
    return open_any(path, false, out, e);
}

int model_open_vocab(const char *path, struct model **out, struct err *e)
{
    return open_any(path, true, out, e);
}

void model_close(struct model *m)
{
    if (!m)
        return;
    tokenizer_close(m->tokenizer);
    free(m->layers);
    free(m->rope_freqs);
    gguf_close(m->gguf);
    free(m);
}

void model_drop_weights(struct model *m)
{
    for (size_t i = 0; i < gguf_tensor_count(m->gguf); i++) {
        const struct gguf_tensor *t = gguf_tensor_at(m->gguf, i);
        if (t->data != m->token_embd.data)
            gguf_release_data(m->gguf, t->data, t->bytes);
    }
    m->output_norm.data = NULL;
    if (!m->tied)
        m->output.data = NULL;
    for (size_t i = 0; m->layers && i < m->config.n_layers; i++) {
        struct model_layer *l = &m->layers[i];
        struct tensor *const all[] = {&l->attn_norm, &l->wq,       &l->wk,   &l->wv, &l->wo,
                                      &l->bq,        &l->bk,       &l->bv,   &l->bo, &l->q_norm,
                                      &l->k_norm,    &l->ffn_norm, &l->gate, &l->up, &l->down};
        for (size_t j = 0; j < sizeof all / sizeof *all; j++)
            all[j]->data = NULL;
    }
}
