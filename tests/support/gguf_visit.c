#include "gguf_visit.h"

#include <stdlib.h>
#include <string.h>

#include "model/gguf.h"

/* Keys of the models in tests/ and of the files that the tests build. */
static const char *const keys[] = {
    "general.architecture",
    "general.name",
    "general.alignment",
    "llama.block_count",
    "llama.context_length",
    "llama.attention.layer_norm_rms_epsilon",
    "tokenizer.ggml.tokens",
    "tokenizer.ggml.scores",
    "tokenizer.ggml.token_type",
    "tokenizer.ggml.merges",
    "tokenizer.ggml.add_bos_token",
    "tokenizer.ggml.bos_token_id",
    "tokenizer.chat_template",
    "a",
    "b",
    "c",
};

static uint64_t add_bytes(uint64_t sum, const void *bytes, size_t length)
{
    for (size_t i = 0; i < length; i++)
        sum = sum * 31 + ((const uint8_t *)bytes)[i];
    return sum;
}

static uint64_t visit_array(const struct gguf *g, const char *key, size_t count, uint64_t sum)
{
    struct gguf_str *strings = calloc(count + 1, sizeof *strings);
    double *numbers = calloc(count + 1, sizeof *numbers);
    if (!strings || !numbers)
        abort();
    if (gguf_array_strings(g, key, strings, count, NULL) == 0) {
        for (size_t i = 0; i < count; i++)
            sum = add_bytes(sum, strings[i].data, strings[i].length);
    }
    if (gguf_array_numbers(g, key, numbers, count, NULL) == 0)
        sum = add_bytes(sum, numbers, count * sizeof *numbers);
    free(strings);
    free(numbers);
    return sum;
}

static uint64_t visit_key(const struct gguf *g, const char *key, uint64_t sum)
{
    uint64_t count = 0;
    double number = 0;
    bool truth = false;
    struct gguf_str text = {"", 0};
    enum gguf_kind kind;
    size_t n_items;
    struct err e = {0};
    gguf_u64(g, key, &count, &e);
    gguf_f64(g, key, &number, &e);
    gguf_bool(g, key, &truth, &e);
    gguf_string(g, key, &text, &e);
    char shown[32];
    gguf_str_print(text, shown, sizeof shown);
    sum = add_bytes(sum + count + truth + strlen(shown), text.data, text.length);
    sum = add_bytes(sum, &number, sizeof number);
    if (gguf_array(g, key, &kind, &n_items, &e) == 0)
        sum = visit_array(g, key, n_items, sum);
    return sum;
}

static uint64_t visit_tensor(const struct gguf *g, size_t index, uint64_t sum)
{
    const struct gguf_tensor *t = gguf_tensor_at(g, index);
    char name[64] = "";
    if (t->name.length >= sizeof name)
        abort();
    memcpy(name, t->name.data, t->name.length);
    if (gguf_tensor_find(g, name) != t)
        abort();
    return add_bytes(sum + t->n_dims + t->dims[0], t->data, t->bytes);
}

int gguf_visit_bytes(const void *bytes, size_t size, uint64_t *sum)
{
    struct gguf *g = NULL;
    struct err e = {0};
    uint64_t total = 0;
    const int code = gguf_parse(bytes, size, &g, &e);
    if ((code == 0) != (g != NULL) || code != e.code || (code != 0 && e.text[0] == '\0'))
        abort();
    for (size_t i = 0; g && i < sizeof keys / sizeof *keys; i++)
        total = visit_key(g, keys[i], total);
    for (size_t i = 0; g && i < gguf_tensor_count(g); i++)
        total = visit_tensor(g, i, total);
    gguf_close(g);
    if (sum)
        *sum = total;
    return code;
}
