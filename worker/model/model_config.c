/*
 * Metadata -> struct model_config. A missing key has the default that llama.cpp gives it; a
 * value outside its range, or one that asks for other arithmetic, is refused.
 */
#include "model_int.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/limits.h"

enum {
    KEY_BYTES = 128,
    DIM_MAX = 1 << 20, /* embedding and feed-forward width */
    HEADS_MAX = 4096,
    QUANTIZATION_VERSION = 2, /* of the block layouts of kernels/quant.h */
};

static const struct arch_traits arches[] = {
    {.arch = MODEL_LLAMA,
     .name = "llama",
     .rope_pairing = ROPE_NORM, /* the converter permuted the rows of q and k */
     .qkv_bias = BIAS_OPTIONAL,
     .out_bias = BIAS_OPTIONAL,
     .has_rope_freqs = true,
     .rotates_whole_head = true},
    {.arch = MODEL_QWEN2,
     .name = "qwen2",
     .rope_pairing = ROPE_NEOX,
     .qkv_bias = BIAS_REQUIRED},
    {.arch = MODEL_QWEN3, .name = "qwen3", .rope_pairing = ROPE_NEOX, .has_qk_norm = true},
};

const struct arch_traits *model_arch_traits(enum model_arch arch)
{
    return &arches[arch];
}

const char *model_arch_name(enum model_arch arch)
{
    return arches[arch].name;
}

int model_find_arch(const struct gguf *g, const struct arch_traits **out, struct err *e)
{
    struct gguf_str name;
    TRY(gguf_string(g, "general.architecture", &name, e));
    *out = NULL;
    for (size_t i = 0; i < sizeof arches / sizeof *arches; i++) {
        if (name.length == strlen(arches[i].name) &&
            memcmp(name.data, arches[i].name, name.length) == 0)
            *out = &arches[i];
    }
    return 0;
}

int model_refuse_arch(const struct gguf *g, struct err *e)
{
    struct gguf_str name = {"", 0};
    TRY(gguf_string(g, "general.architecture", &name, e));
    char text[64];
    gguf_str_print(name, text, sizeof text);
    return ERR_SET(e, ERR_UNSUPPORTED,
                   "the architecture %s is not supported; llama, qwen2 and qwen3 are", text);
}

/* ------------------------------------------------------------------ reading one key */

struct reader {
    const struct gguf *g;
    const char *arch;
    struct err *e;
    char key[KEY_BYTES]; /* the last one asked for, with its prefix */
};

static bool has(struct reader *r, const char *suffix)
{
    snprintf(r->key, sizeof r->key, "%s.%s", r->arch, suffix);
    return gguf_has(r->g, r->key);
}

static int check_range(struct reader *r, uint64_t value, uint64_t min, uint64_t max)
{
    if (value >= min && value <= max)
        return 0;
    return ERR_SET(r->e, ERR_INVALID, "%s is %llu, not between %llu and %llu", r->key,
                   (unsigned long long)value, (unsigned long long)min, (unsigned long long)max);
}

static int read_count(struct reader *r, const char *suffix, uint64_t min, uint64_t max,
                      size_t *out)
{
    has(r, suffix);
    uint64_t value = 0;
    TRY(gguf_u64(r->g, r->key, &value, r->e));
    TRY(check_range(r, value, min, max));
    *out = (size_t)value;
    return 0;
}

/* The key's value, or *out as it is when the key is missing. */
static int read_count_or_default(struct reader *r, const char *suffix, uint64_t min,
                                 uint64_t max, size_t *out)
{
    return has(r, suffix) ? read_count(r, suffix, min, max, out) : 0;
}

/* One value for all layers, written as a scalar or as an array of equal values. */
static int read_layer_count(struct reader *r, const char *suffix, uint64_t max, size_t n_layers,
                            size_t *out)
{
    enum gguf_kind kind;
    size_t n_items;
    has(r, suffix);
    if (gguf_array(r->g, r->key, &kind, &n_items, NULL) != 0)
        return read_count(r, suffix, 1, max, out);
    double values[MODEL_LAYERS_MAX];
    if (kind == GGUF_F32 || kind == GGUF_F64)
        return ERR_SET(r->e, ERR_FORMAT, "the items of %s are not whole numbers", r->key);
    TRY(gguf_array_numbers(r->g, r->key, values, n_layers, r->e));
    for (size_t i = 1; i < n_layers; i++) {
        if (values[i] != values[0])
            return ERR_SET(r->e, ERR_UNSUPPORTED,
                           "%s differs between layers; only models whose layers are all alike "
                           "are supported",
                           r->key);
    }
    if (!(values[0] >= 1 && values[0] <= (double)max))
        return ERR_SET(r->e, ERR_INVALID, "%s is %.0f, not between 1 and %llu", r->key,
                       values[0], (unsigned long long)max);
    *out = (size_t)values[0];
    return 0;
}

/* A float of (0, max], or *out as it is when the key is missing. */
static int read_positive_or_default(struct reader *r, const char *suffix, double max,
                                    double *out)
{
    if (!has(r, suffix))
        return 0;
    double value = 0;
    TRY(gguf_f64(r->g, r->key, &value, r->e));
    if (!(value > 0 && value <= max))
        return ERR_SET(r->e, ERR_INVALID, "%s is %g, not above 0 and at most %g", r->key, value,
                       max);
    *out = value;
    return 0;
}

/* ------------------------------------------------------------------ other arithmetic */

/* Keys of other models' arithmetic, with the values that mean "as usual". */
static const struct {
    const char *suffix;
    double usual, also_usual;
} foreign_keys[] = {
    {"attn_logit_softcapping", 0, 0},
    {"final_logit_softcapping", 0, 0},
    {"logit_scale", 0, 1},
    {"embedding_scale", 0, 1},
    {"residual_scale", 0, 1},
    {"expert_count", 0, 0},
    {"expert_used_count", 0, 0},
    {"attention.clamp_kqv", 0, 0},
    {"attention.max_alibi_bias", 0, 0},
    {"attention.causal", 1, 1},
    {"attention.temperature_scale", 0, 0},
    {"use_parallel_residual", 0, 0},
    {"rope.scaling.attn_factor", 0, 1},
    {"rope.scaling.alpha", 0, 0},
    {"rope.scaling.yarn_log_multiplier", 0, 0},
    {"nextn_predict_layers", 0, 0},
};

/* A number of any kind; NaN when the key holds none. */
static double read_any_number(const struct gguf *g, const char *key)
{
    double number = NAN;
    uint64_t count;
    bool truth;
    if (gguf_u64(g, key, &count, NULL) == 0)
        return (double)count;
    if (gguf_bool(g, key, &truth, NULL) == 0)
        return truth ? 1 : 0;
    gguf_f64(g, key, &number, NULL);
    return number;
}

static int refuse_key(struct reader *r)
{
    return ERR_SET(r->e, ERR_UNSUPPORTED,
                   "%s asks for arithmetic that is not supported for %s models", r->key,
                   r->arch);
}

static int check_foreign_keys(struct reader *r)
{
    for (size_t i = 0; i < sizeof foreign_keys / sizeof *foreign_keys; i++) {
        if (!has(r, foreign_keys[i].suffix))
            continue;
        const double value = read_any_number(r->g, r->key);
        if (value != foreign_keys[i].usual && value != foreign_keys[i].also_usual)
            return refuse_key(r);
    }
    return has(r, "rope.dimension_sections") ? refuse_key(r) : 0;
}

static int check_attention(struct reader *r, const struct model_config *config)
{
    const double usual_scale = 1 / sqrt((double)config->head_dim);
    if (has(r, "attention.scale")) {
        const double scale = read_any_number(r->g, r->key);
        if (scale != 0 && !(fabs(scale / usual_scale - 1) <= 1e-5))
            return refuse_key(r);
    }
    if (has(r, "attention.sliding_window")) {
        const double window = read_any_number(r->g, r->key);
        if (window != 0 && !(window >= (double)config->context))
            return refuse_key(r);
    }
    return 0;
}

/* ------------------------------------------------------------------ rotation */

static int read_rope_scale(struct reader *r, double *out)
{
    double factor = 1;
    TRY(read_positive_or_default(r, "rope.scale_linear", 1e6, &factor));
    TRY(read_positive_or_default(r, "rope.scaling.factor", 1e6, &factor));
    *out = 1 / factor;
    if (!has(r, "rope.scaling.type"))
        return 0;
    struct gguf_str type = {"", 0};
    TRY(gguf_string(r->g, r->key, &type, r->e));
    char name[32];
    gguf_str_print(type, name, sizeof name);
    if (strcmp(name, "none") == 0)
        *out = 1;
    else if (strcmp(name, "linear") != 0)
        return ERR_SET(r->e, ERR_UNSUPPORTED,
                       "%s is %s, which is not supported; none and linear are", r->key, name);
    return 0;
}

static int read_rope(struct reader *r, const struct arch_traits *traits,
                     struct model_config *config)
{
    config->rope_pairing = traits->rope_pairing;
    config->rope_base = 10000;
    config->n_rot = config->head_dim;
    TRY(read_positive_or_default(r, "rope.freq_base", 1e12, &config->rope_base));
    TRY(read_rope_scale(r, &config->rope_scale));
    TRY(read_count_or_default(r, "rope.dimension_count", 2, config->head_dim, &config->n_rot));
    if (config->n_rot % 2 != 0)
        return ERR_SET(r->e, ERR_INVALID, "%s is %zu, an odd number", r->key, config->n_rot);
    if (traits->rotates_whole_head && config->n_rot != config->head_dim)
        return ERR_SET(r->e, ERR_UNSUPPORTED,
                       "%s is %zu, but a head has %zu dimensions; %s models rotate all of them",
                       r->key, config->n_rot, config->head_dim, r->arch);
    return 0;
}

/* ------------------------------------------------------------------ the whole */

static int read_heads(struct reader *r, struct model_config *config)
{
    TRY(read_layer_count(r, "attention.head_count", HEADS_MAX, config->n_layers,
                         &config->n_heads));
    config->n_kv_heads = config->n_heads;
    if (has(r, "attention.head_count_kv"))
        TRY(read_layer_count(r, "attention.head_count_kv", HEADS_MAX, config->n_layers,
                             &config->n_kv_heads));
    if (config->n_heads % config->n_kv_heads != 0)
        return ERR_SET(r->e, ERR_INVALID, "%zu heads cannot share %zu key-value heads evenly",
                       config->n_heads, config->n_kv_heads);
    return 0;
}

static int read_head_dim(struct reader *r, struct model_config *config)
{
    config->head_dim = config->dim / config->n_heads;
    if (!has(r, "attention.key_length") && config->dim % config->n_heads != 0)
        return ERR_SET(r->e, ERR_INVALID, "%zu dimensions cannot be cut into %zu heads evenly",
                       config->dim, config->n_heads);
    TRY(read_count_or_default(r, "attention.key_length", 1, UINT32_MAX, &config->head_dim));
    size_t value_dim = config->dim / config->n_heads;
    TRY(read_count_or_default(r, "attention.value_length", 1, UINT32_MAX, &value_dim));
    if (value_dim != config->head_dim)
        return ERR_SET(
            r->e, ERR_UNSUPPORTED,
            "keys of %zu and values of %zu dimensions: only equal ones are supported",
            config->head_dim, value_dim);
    if (config->head_dim > MODEL_HEAD_DIM_MAX ||
        (config->head_dim != 16 && config->head_dim % 32 != 0) || config->head_dim == 0)
        return ERR_SET(
            r->e, ERR_UNSUPPORTED,
            "a head has %zu dimensions; 16 and multiples of 32 up to %d are supported",
            config->head_dim, MODEL_HEAD_DIM_MAX);
    return 0;
}

static int read_eps(struct reader *r, struct model_config *config)
{
    double eps = 0;
    TRY(read_positive_or_default(r, "attention.layer_norm_rms_epsilon", 1, &eps));
    if (eps == 0)
        return ERR_SET(r->e, ERR_NOTFOUND, "the key %s is missing", r->key);
    config->rms_eps = (float)eps;
    if (config->rms_eps == 0)
        return ERR_SET(r->e, ERR_INVALID, "%s is %g, too small", r->key, eps);
    return 0;
}

/* What makes a file something other than one whole model. */
static int check_general(const struct gguf *g, struct err *e)
{
    uint64_t n_shards = 1, version = QUANTIZATION_VERSION;
    struct gguf_str type = {"model", 5};
    if (gguf_has(g, "general.type"))
        TRY(gguf_string(g, "general.type", &type, e));
    if (type.length != 5 || memcmp(type.data, "model", 5) != 0) {
        char name[32];
        gguf_str_print(type, name, sizeof name);
        return ERR_SET(e, ERR_UNSUPPORTED, "the file's general.type is %s, not model", name);
    }
    if (gguf_has(g, "split.count"))
        TRY(gguf_u64(g, "split.count", &n_shards, e));
    if (n_shards > 1)
        return ERR_SET(
            e, ERR_UNSUPPORTED,
            "the file is one of %llu shards; join them with llama-gguf-split --merge",
            (unsigned long long)n_shards);
    if (gguf_has(g, "general.quantization_version"))
        TRY(gguf_u64(g, "general.quantization_version", &version, e));
    if (version != QUANTIZATION_VERSION)
        return ERR_SET(e, ERR_UNSUPPORTED,
                       "general.quantization_version is %llu; only %d is read",
                       (unsigned long long)version, QUANTIZATION_VERSION);
    return 0;
}

int model_read_config(const struct gguf *g, const struct arch_traits *traits,
                      struct model_config *config, struct err *e)
{
    struct reader r = {.g = g, .arch = traits->name, .e = e};
    *config = (struct model_config){.arch = traits->arch};
    TRY(check_general(g, e));
    TRY(read_count(&r, "block_count", 1, MODEL_LAYERS_MAX, &config->n_layers));
    TRY(read_count(&r, "context_length", 1, MODEL_CONTEXT_MAX, &config->context));
    TRY(read_count(&r, "embedding_length", 1, DIM_MAX, &config->dim));
    TRY(check_foreign_keys(&r));
    TRY(read_layer_count(&r, "feed_forward_length", DIM_MAX, config->n_layers,
                         &config->ffn_dim));
    TRY(read_heads(&r, config));
    TRY(read_head_dim(&r, config));
    TRY(read_rope(&r, traits, config));
    TRY(read_eps(&r, config));
    return check_attention(&r, config);
}
