/*
 * Tensors by name, each with its exact shape. A tensor of the file that nobody asked for is an
 * error unless it is known to carry nothing: a model computed without one of its weights gives
 * wrong answers that look like answers.
 */
#include "model_int.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct binder {
    struct model *m;
    struct err *e;
    bool *used; /* [n_tensors] of the file, in its order */
};

enum presence { REQUIRED, OPTIONAL };

static bool has_shape(const struct gguf_tensor *t, size_t n_rows, size_t n_cols)
{
    return t->dims[0] == n_cols && t->dims[1] == n_rows && t->dims[2] == 1 && t->dims[3] == 1;
}

static int refuse_missing(struct binder *b, const char *name)
{
    const char *const attn_q = strstr(name, ".attn_q.weight");
    if (attn_q) {
        char fused[64];
        snprintf(fused, sizeof fused, "%.*s.attn_qkv.weight", (int)(attn_q - name), name);
        if (gguf_tensor_find(b->m->gguf, fused))
            return ERR_SET(b->e, ERR_UNSUPPORTED,
                           "%s joins q, k and v in one tensor, which is not supported; convert "
                           "the model with separate ones",
                           fused);
    }
    return ERR_SET(b->e, ERR_FORMAT, "the tensor %s is missing", name);
}

static int bind(struct binder *b, struct tensor *out, const char *name, size_t n_rows,
                size_t n_cols, enum presence presence)
{
    const struct gguf_tensor *t = gguf_tensor_find(b->m->gguf, name);
    if (!t)
        return presence == OPTIONAL ? 0 : refuse_missing(b, name);
    if (!has_shape(t, n_rows, n_cols))
        return ERR_SET(b->e, ERR_FORMAT,
                       "the tensor %s has the shape [%llu, %llu, %llu, %llu], not [%zu, %zu]",
                       name, (unsigned long long)t->dims[0], (unsigned long long)t->dims[1],
                       (unsigned long long)t->dims[2], (unsigned long long)t->dims[3], n_cols,
                       n_rows);
    const struct quant_info *info = quant_find(t->type_id);
    if (!info)
        return ERR_SET(b->e, ERR_UNSUPPORTED, "the tensor %s has the unknown type %u", name,
                       t->type_id);
    b->used[t - gguf_tensor_at(b->m->gguf, 0)] = true;
    *out = (struct tensor){info->type, n_rows, n_cols, t->data};
    return 0;
}

static int bind_vector(struct binder *b, struct tensor *out, const char *name, size_t n_cols,
                       enum presence presence)
{
    TRY(bind(b, out, name, 1, n_cols, presence));
    if (out->data && out->type != QUANT_F32 && out->type != QUANT_F16 &&
        out->type != QUANT_BF16)
        return ERR_SET(b->e, ERR_UNSUPPORTED, "the vector %s is quantised", name);
    return 0;
}

/* ------------------------------------------------------------------ layers */

/* The tensors of a layer as rows of a table: where they go, what they are called. */
enum part_kind { MATRIX, VECTOR, QKV_BIAS, OUT_BIAS, QK_NORM };

struct part {
    size_t place; /* in struct model_layer */
    const char *name;
    enum part_kind kind;
    size_t n_rows, n_cols;
};

#define PLACE(member) offsetof(struct model_layer, member)

static bool is_wanted(const struct arch_traits *traits, enum part_kind kind,
                      enum presence *presence)
{
    enum bias_rule rule = BIAS_REQUIRED;
    if (kind == QKV_BIAS)
        rule = traits->qkv_bias;
    else if (kind == OUT_BIAS)
        rule = traits->out_bias;
    else if (kind == QK_NORM)
        rule = traits->has_qk_norm ? BIAS_REQUIRED : BIAS_NONE;
    *presence = rule == BIAS_OPTIONAL ? OPTIONAL : REQUIRED;
    return rule != BIAS_NONE;
}

static int bind_layer(struct binder *b, size_t index)
{
    const struct model_config *c = &b->m->config;
    const size_t q_dim = c->n_heads * c->head_dim, kv_dim = c->n_kv_heads * c->head_dim;
    const struct part parts[] = {
        {PLACE(attn_norm), "attn_norm.weight", VECTOR, 1, c->dim},
        {PLACE(wq), "attn_q.weight", MATRIX, q_dim, c->dim},
        {PLACE(wk), "attn_k.weight", MATRIX, kv_dim, c->dim},
        {PLACE(wv), "attn_v.weight", MATRIX, kv_dim, c->dim},
        {PLACE(wo), "attn_output.weight", MATRIX, c->dim, q_dim},
        {PLACE(bq), "attn_q.bias", QKV_BIAS, 1, q_dim},
        {PLACE(bk), "attn_k.bias", QKV_BIAS, 1, kv_dim},
        {PLACE(bv), "attn_v.bias", QKV_BIAS, 1, kv_dim},
        {PLACE(bo), "attn_output.bias", OUT_BIAS, 1, c->dim},
        {PLACE(q_norm), "attn_q_norm.weight", QK_NORM, 1, c->head_dim},
        {PLACE(k_norm), "attn_k_norm.weight", QK_NORM, 1, c->head_dim},
        {PLACE(ffn_norm), "ffn_norm.weight", VECTOR, 1, c->dim},
        {PLACE(gate), "ffn_gate.weight", MATRIX, c->ffn_dim, c->dim},
        {PLACE(up), "ffn_up.weight", MATRIX, c->ffn_dim, c->dim},
        {PLACE(down), "ffn_down.weight", MATRIX, c->dim, c->ffn_dim},
    };
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        enum presence presence;
        if (!is_wanted(model_arch_traits(c->arch), parts[i].kind, &presence))
            continue;
        char name[64];
        snprintf(name, sizeof name, "blk.%zu.%s", index, parts[i].name);
        struct tensor *out = (struct tensor *)((char *)&b->m->layers[index] + parts[i].place);
        if (parts[i].kind == MATRIX)
            TRY(bind(b, out, name, parts[i].n_rows, parts[i].n_cols, presence));
        else
            TRY(bind_vector(b, out, name, parts[i].n_cols, presence));
    }
    return 0;
}

/* ------------------------------------------------------------------ around the layers */

static int bind_ends(struct binder *b)
{
    struct model *m = b->m;
    const struct model_config *c = &m->config;
    TRY(bind(b, &m->token_embd, "token_embd.weight", c->n_vocab, c->dim, REQUIRED));
    TRY(bind_vector(b, &m->output_norm, "output_norm.weight", c->dim, REQUIRED));
    TRY(bind(b, &m->output, "output.weight", c->n_vocab, c->dim, OPTIONAL));
    m->tied = m->output.data == NULL;
    if (m->tied)
        m->output = m->token_embd;
    return 0;
}

static int read_rope_freqs(struct binder *b)
{
    const char *const name = "rope_freqs.weight";
    const size_t n = b->m->config.n_rot / 2;
    struct tensor freqs = {0};
    if (!model_arch_traits(b->m->config.arch)->has_rope_freqs)
        return 0;
    TRY(bind_vector(b, &freqs, name, n, OPTIONAL));
    if (!freqs.data)
        return 0;
    b->m->rope_freqs = calloc(n, sizeof *b->m->rope_freqs);
    if (!b->m->rope_freqs)
        return ERR_SET(b->e, ERR_NOMEM, "out of memory for %s", name);
    quant_dequantize_row(freqs.type, freqs.data, b->m->rope_freqs, n);
    for (size_t i = 0; i < n; i++) {
        if (!isfinite(b->m->rope_freqs[i]) || !(b->m->rope_freqs[i] > 0))
            return ERR_SET(b->e, ERR_INVALID, "number %zu of %s is %g, not above 0", i, name,
                           (double)b->m->rope_freqs[i]);
    }
    return 0;
}

/* Tables of rotation frequencies that old converters copied along; they follow from the
 * configuration, and llama.cpp does not read them either. */
static bool is_harmless(struct gguf_str name)
{
    static const char *const endings[] = {".attn_rot_embd.weight", ".attn_rot_embd",
                                          ".attn.rotary_emb.inv_freq",
                                          ".attention.rotary_emb.inv_freq"};
    for (size_t i = 0; i < sizeof endings / sizeof *endings; i++) {
        const size_t length = strlen(endings[i]);
        if (name.length > length &&
            memcmp(name.data + name.length - length, endings[i], length) == 0)
            return true;
    }
    return false;
}

static int check_all_used(struct binder *b)
{
    for (size_t i = 0; i < gguf_tensor_count(b->m->gguf); i++) {
        const struct gguf_str name = gguf_tensor_at(b->m->gguf, i)->name;
        if (!b->used[i] && !is_harmless(name))
            return ERR_SET(b->e, ERR_UNSUPPORTED,
                           "the tensor %.*s is not known in %s models of %zu layers; to leave "
                           "it out would change the answers",
                           (int)name.length, name.data, model_arch_name(b->m->config.arch),
                           b->m->config.n_layers);
    }
    return 0;
}

/* The type that most bytes of the used tensors have. */
static void name_quant(struct binder *b)
{
    size_t bytes[QUANT_BF16 + 1] = {0};
    size_t best = QUANT_F32;
    for (size_t i = 0; i < gguf_tensor_count(b->m->gguf); i++) {
        const struct gguf_tensor *t = gguf_tensor_at(b->m->gguf, i);
        if (!b->used[i] || t->type_id > QUANT_BF16)
            continue;
        bytes[t->type_id] += t->bytes;
        if (bytes[t->type_id] > bytes[best])
            best = t->type_id;
    }
    const struct quant_info *info = quant_find((uint32_t)best);
    snprintf(b->m->quant, sizeof b->m->quant, "%s", info ? info->name : "unknown");
}

static int bind_all(struct binder *b)
{
    TRY(bind_ends(b));
    b->m->layers = calloc(b->m->config.n_layers, sizeof *b->m->layers);
    if (!b->m->layers)
        return ERR_SET(b->e, ERR_NOMEM, "out of memory for %zu layers", b->m->config.n_layers);
    for (size_t i = 0; i < b->m->config.n_layers; i++)
        TRY(bind_layer(b, i));
    TRY(read_rope_freqs(b));
    TRY(check_all_used(b));
    name_quant(b);
    return 0;
}

int model_bind_tensors(struct model *m, struct err *e)
{
    if (gguf_tensor_count(m->gguf) == 0)
        return ERR_SET(e, ERR_FORMAT,
                       "the file has no tensors: it is a vocabulary, not a model");
    struct binder b = {.m = m, .e = e, .used = calloc(gguf_tensor_count(m->gguf), 1)};
    if (!b.used)
        return ERR_SET(e, ERR_NOMEM, "out of memory for the list of tensors");
    const int code = bind_all(&b);
    free(b.used);
    return code;
}
