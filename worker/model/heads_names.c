#include "model/heads_names.h"

#include <stdio.h>
#include <string.h>

/* In a pattern %i stands for the head and %l for the block. */
static const struct {
    enum heads_layout layout;
    enum heads_part part;
    const char *pattern;
} PATTERNS[] = {
    {HEADS_PLAIN, HEADS_WEIGHT, "%i.%l.linear.weight"},
    {HEADS_PLAIN, HEADS_BIAS, "%i.%l.linear.bias"},
    {HEADS_PLAIN, HEADS_OUTPUT, "%i.%l.weight"},
    {HEADS_MERGED, HEADS_WEIGHT, "medusa_head.%i.%l.linear.weight"},
    {HEADS_MERGED, HEADS_BIAS, "medusa_head.%i.%l.linear.bias"},
    {HEADS_MERGED, HEADS_OUTPUT, "medusa_head.%i.%l.weight"},
    {HEADS_VLLM, HEADS_WEIGHT, "blocks.%i.layers.%l.weight"},
    {HEADS_VLLM, HEADS_BIAS, "blocks.%i.layers.%l.bias"},
    {HEADS_VLLM, HEADS_OUTPUT, "lm_heads.%i.weight"},
    {HEADS_VLLM, HEADS_OUTPUT_OF_ALL, "lm_head.weight"},
    {HEADS_VLLM, HEADS_TOKEN_MAP, "token_map"},
    {HEADS_TENSORRT, HEADS_WEIGHT, "medusa_heads.%i.medusa_layers.%l.linear.weight"},
    {HEADS_TENSORRT, HEADS_BIAS, "medusa_heads.%i.medusa_layers.%l.linear.bias"},
    {HEADS_TENSORRT, HEADS_OUTPUT, "medusa_heads.%i.lm_head.weight"},
    {HEADS_GGUF, HEADS_WEIGHT, "medusa.%i.blk.%l.weight"},
    {HEADS_GGUF, HEADS_BIAS, "medusa.%i.blk.%l.bias"},
    {HEADS_GGUF, HEADS_OUTPUT, "medusa.%i.output.weight"},
};

/* prefix: what a file that holds the base too puts before all names of heads. */
static const struct {
    const char *name;
    const char *prefix;
    bool may_be_tied;
    bool may_lack_bias;
} LAYOUTS[HEADS_LAYOUTS] = {
    [HEADS_PLAIN] = {"FasterDecoding's", NULL, true, false},
    [HEADS_MERGED] = {"FasterDecoding's, merged", "medusa_head.", true, false},
    [HEADS_VLLM] = {"vLLM's", NULL, false, true},
    [HEADS_TENSORRT] = {"TensorRT-LLM's", "medusa_heads.", false, false},
    [HEADS_GGUF] = {"Sheaf's", NULL, true, false},
};

static const char vllm_prefix[] = "medusa_heads.";

/* A number as it is printed: no sign, no leading zero. NULL: none here, or beyond the limit. */
static const char *read_index(const char *text, size_t *out)
{
    if (*text < '0' || *text > '9' || (*text == '0' && text[1] >= '0' && text[1] <= '9'))
        return NULL;
    size_t value = 0;
    for (; *text >= '0' && *text <= '9'; text++) {
        value = value * 10 + (size_t)(*text - '0');
        if (value > HEADS_INDEX_MAX)
            return NULL;
    }
    *out = value;
    return text;
}

static bool match(const char *pattern, const char *name, struct heads_name *out)
{
    for (; *pattern; pattern++) {
        if (*pattern != '%') {
            if (*name++ != *pattern)
                return false;
            continue;
        }
        name = read_index(name, *++pattern == 'i' ? &out->head : &out->block);
        if (!name)
            return false;
    }
    return *name == '\0';
}

static bool has_prefix(const char *name, const char *prefix)
{
    return strncmp(name, prefix, strlen(prefix)) == 0;
}

bool heads_name_parse(const char *name, struct heads_name *out)
{
    for (size_t i = 0; i < sizeof PATTERNS / sizeof *PATTERNS; i++) {
        struct heads_name found = {.layout = PATTERNS[i].layout, .part = PATTERNS[i].part};
        const bool strip = found.layout == HEADS_VLLM && has_prefix(name, vllm_prefix);
        if (match(PATTERNS[i].pattern, strip ? name + sizeof vllm_prefix - 1 : name, &found)) {
            *out = found;
            return true;
        }
    }
    return false;
}

void heads_name_print(const struct heads_name *name, char out[HEADS_NAME_BYTES])
{
    const char *pattern = "?";
    for (size_t i = 0; i < sizeof PATTERNS / sizeof *PATTERNS; i++) {
        if (PATTERNS[i].layout == name->layout && PATTERNS[i].part == name->part)
            pattern = PATTERNS[i].pattern;
    }
    size_t n = 0;
    for (; *pattern && n + 1 < HEADS_NAME_BYTES; pattern++) {
        if (*pattern != '%') {
            out[n++] = *pattern;
            continue;
        }
        const size_t index = *++pattern == 'i' ? name->head : name->block;
        const int written = snprintf(out + n, HEADS_NAME_BYTES - n, "%zu", index);
        n += written > 0 ? (size_t)written : 0;
    }
    out[n < HEADS_NAME_BYTES ? n : HEADS_NAME_BYTES - 1] = '\0';
}

bool heads_layout_has_base(enum heads_layout layout)
{
    return LAYOUTS[layout].prefix != NULL;
}

bool heads_layout_owns(enum heads_layout layout, const char *name)
{
    return !LAYOUTS[layout].prefix || has_prefix(name, LAYOUTS[layout].prefix);
}

bool heads_layout_may_be_tied(enum heads_layout layout)
{
    return LAYOUTS[layout].may_be_tied;
}

bool heads_layout_may_lack_bias(enum heads_layout layout)
{
    return LAYOUTS[layout].may_lack_bias;
}

const char *heads_layout_name(enum heads_layout layout)
{
    return LAYOUTS[layout].name;
}
