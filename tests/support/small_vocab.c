#include "small_vocab.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int32_t small_vocab_add(struct small_vocab *v, const char *text, int32_t type, float score)
{
    if (v->n == sizeof v->texts / sizeof *v->texts)
        abort();
    v->texts[v->n] = strdup(text);
    v->types[v->n] = type;
    v->scores[v->n] = score;
    return (int32_t)v->n++;
}

void small_vocab_add_bpe_bytes(struct small_vocab *v)
{
    unsigned next = 256;
    for (unsigned byte = 0; byte < 256; byte++) {
        const bool printable = (byte > ' ' && byte < 127) || (byte > 160 && byte != 173);
        const unsigned c = printable ? byte : next++;
        char text[3] = {(char)c, 0, 0};
        if (c >= 128) {
            text[0] = (char)(192 + c / 64);
            text[1] = (char)(128 + c % 64);
        }
        small_vocab_add(v, text, SMALL_NORMAL, 0);
    }
}

void small_vocab_add_spm_start(struct small_vocab *v)
{
    small_vocab_add(v, "<unk>", SMALL_UNKNOWN, 0);
    small_vocab_add(v, "<s>", SMALL_CONTROL, 0);
    small_vocab_add(v, "</s>", SMALL_CONTROL, 0);
    for (unsigned byte = 0; byte < 256; byte++) {
        char text[8];
        snprintf(text, sizeof text, "<0x%02X>", byte);
        small_vocab_add(v, text, SMALL_BYTE, 0);
    }
}

void small_vocab_write(const struct small_vocab *v, const char *model, struct gguf_builder *b)
{
    builder_init(b);
    builder_string(b, "general.architecture", "llama");
    builder_string(b, "tokenizer.ggml.model", model);
    builder_strings(b, "tokenizer.ggml.tokens", (const char *const *)v->texts, v->n);
    builder_i32s(b, "tokenizer.ggml.token_type", v->types, v->n);
    if (strcmp(model, "llama") == 0)
        builder_f32s(b, "tokenizer.ggml.scores", v->scores, v->n);
}

void small_vocab_fini(struct small_vocab *v)
{
    for (size_t i = 0; i < v->n; i++)
        free(v->texts[i]);
    v->n = 0;
}

int small_vocab_open(struct gguf_builder *b, struct tokenizer **out, struct err *e)
{
    struct gguf_bytes file = builder_take(b);
    struct gguf *g = NULL;
    int code = gguf_parse(file.data, file.size, &g, e);
    if (code == 0)
        code = tokenizer_open(g, out, e);
    gguf_close(g);
    free(file.data);
    return code;
}
