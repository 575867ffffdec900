/*
 * libFuzzer target: the first byte chooses.
 *   0, 1  the rest is a model file: whatever tokenizer it yields reads a text and back.
 *   else  the rest is a prompt for one of four small vocabularies; each byte 1 in it ends a
 *         span, spans being content and template text by turns. Content alone must come back
 *         as it was, and no control token may come of it.
 * Build with clang and -DSHEAF_FUZZ=ON, then
 *   fuzz_tokenizer NEW_CORPUS tests/fuzz/corpus/tokenizer
 */
#include "fuzz.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/log.h"
#include "small_vocab.h"

enum { SPANS_MAX = 16, SMALL_VOCABS = 4 };

static void must(int condition, const char *what)
{
    if (condition)
        return;
    fprintf(stderr, "broken: %s\n", what);
    abort();
}

static struct tokenizer *open_small(size_t index)
{
    static const char *const pres[] = {"smollm", "llama-bpe", "default"};
    static const char *const bpe[] = {"he", "ll", "hell", "00", "aa", "aaaa", "\xc4\xa0h"};
    static const char *const merges[] = {"h e", "l l",   "he ll",     "0 0",
                                         "a a", "aa aa", "\xc4\xa0 h"};
    static const char *const spm[] = {
        "\xe2\x96\x81", "h",  "e", "l", "he", "ll", "hell", "<0x", "<0", "0x",
        "41>",          "1>", "<", "0", "x",  "4",  "1",    ">",   "41"};
    struct small_vocab v = {0};
    struct gguf_builder b;
    const bool is_spm = index == SMALL_VOCABS - 1;
    if (is_spm)
        small_vocab_add_spm_start(&v);
    else
        small_vocab_add_bpe_bytes(&v);
    for (size_t i = 0; is_spm && i < sizeof spm / sizeof *spm; i++)
        small_vocab_add(&v, spm[i], SMALL_NORMAL, -(float)i);
    for (size_t i = 0; !is_spm && i < sizeof bpe / sizeof *bpe; i++)
        small_vocab_add(&v, bpe[i], SMALL_NORMAL, 0);
    small_vocab_add(&v, "<|a|>", SMALL_CONTROL, 0);
    small_vocab_add(&v, "<|ab|>", SMALL_USER, 0);
    small_vocab_add(&v, "<br>", SMALL_USER, 0);
    small_vocab_add(&v, "  ", SMALL_USER, 0);
    small_vocab_write(&v, is_spm ? "llama" : "gpt2", &b);
    if (!is_spm) {
        builder_strings(&b, "tokenizer.ggml.merges", merges, sizeof merges / sizeof *merges);
        builder_string(&b, "tokenizer.ggml.pre", pres[index]);
    }
    struct tokenizer *tok = NULL;
    must(small_vocab_open(&b, &tok, NULL) == 0, "a small vocabulary opens");
    small_vocab_fini(&v);
    return tok;
}

/* Kept for all inputs; the program's end frees them. */
static const struct tokenizer *small(size_t index)
{
    static struct tokenizer *opened[SMALL_VOCABS];
    if (!opened[index])
        opened[index] = open_small(index);
    return opened[index];
}

static struct buf encode_and_decode(const struct tokenizer *tok, const struct token_span *spans,
                                    size_t n, bool expect_control)
{
    struct token_list ids = {0};
    struct buf back = {0};
    must(tokenizer_encode(tok, spans, n, true, &ids, NULL) == 0, "any text can be encoded");
    for (size_t i = 0; i < ids.length; i++)
        must(expect_control || !tokenizer_is_control(tok, ids.ids[i]) ||
                 (i == 0 && ids.ids[i] == tokenizer_bos(tok)),
             "no control token comes of content");
    must(tokenizer_decode(tok, ids.ids, ids.length, &back, NULL) == 0, "own ids decode");
    token_list_fini(&ids);
    return back;
}

static bool has_2581(const char *text, size_t length)
{
    return memmem(text, length, "\xe2\x96\x81", 3) != NULL;
}

static void try_prompt(const struct tokenizer *tok, const char *text, size_t length)
{
    const struct token_span whole = {text, length, false};
    struct buf back = encode_and_decode(tok, &whole, 1, false);
    must(has_2581(text, length) ||
             (back.length == length && memcmp(buf_str(&back), text, length) == 0),
         "content comes back as it was");
    buf_fini(&back);

    struct token_span spans[SPANS_MAX] = {{0}};
    size_t n = 0, start = 0;
    for (size_t i = 0; i <= length && n < SPANS_MAX; i++)
        if (i == length || text[i] == 1) {
            spans[n] = (struct token_span){text + start, i - start, n % 2 != 0};
            n++;
            start = i + 1;
        }
    back = encode_and_decode(tok, spans, n, true);
    buf_fini(&back);
}

static void try_file(const uint8_t *bytes, size_t size)
{
    static const char text[] = "<s>Hello,  it's 12345\n\n<|end|> \xe4\xb8\xad\xff\xc3 x</s>";
    struct gguf *g = NULL;
    struct tokenizer *tok = NULL;
    if (gguf_parse(bytes, size, &g, NULL) == 0 && tokenizer_open(g, &tok, NULL) == 0) {
        const struct token_span content = {text, sizeof text - 1, false};
        const struct token_span template = {text, sizeof text - 1, true};
        struct buf plain = encode_and_decode(tok, &content, 1, false);
        struct buf parsed = encode_and_decode(tok, &template, 1, true);
        buf_fini(&plain);
        buf_fini(&parsed);
        tokenizer_close(tok);
    }
    gguf_close(g);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    log_set_level(LOG_ERROR);
    if (size == 0)
        return 0;
    if (data[0] < 2)
        try_file(data + 1, size - 1);
    else
        try_prompt(small(data[0] % SMALL_VOCABS), (const char *)data + 1, size - 1);
    return 0;
}
