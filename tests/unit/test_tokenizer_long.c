/*
 * Long, random and simultaneous: a megabyte of anything comes back byte for byte in time that
 * grows with its length and not with its square (a test that hangs is the assertion), random
 * bytes too, and two threads share one tokenizer.
 */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "small_vocab.h"
#include "text.h"

#define VOCAB SHEAF_TEST_DATA "/golden/tokenizers/ggml-vocab-"

static struct model *gpt, *phi;

static int open_both(void **state)
{
    (void)state;
    gpt = text_open_vocab(VOCAB "gpt-2.gguf");
    phi = text_open_vocab(VOCAB "phi-3.gguf");
    return 0;
}

static int close_both(void **state)
{
    (void)state;
    model_close(gpt);
    model_close(phi);
    return 0;
}

/* All 256 bytes and a few merges, cut by the named pre-tokenizer. */
static struct tokenizer *open_cut_by(const char *pre)
{
    static const char *const texts[] = {"aa", "aaaa", "\xc4\xa0\xc4\xa0", "00"};
    static const char *const merges[] = {"a a", "aa aa", "\xc4\xa0 \xc4\xa0", "0 0"};
    struct small_vocab v = {0};
    struct gguf_builder b;
    small_vocab_add_bpe_bytes(&v);
    for (size_t i = 0; i < 4; i++)
        small_vocab_add(&v, texts[i], SMALL_NORMAL, 0);
    small_vocab_write(&v, "gpt2", &b);
    builder_strings(&b, "tokenizer.ggml.merges", merges, 4);
    builder_string(&b, "tokenizer.ggml.pre", pre);
    struct tokenizer *tok = NULL;
    struct err e = {0};
    if (small_vocab_open(&b, &tok, &e) != 0)
        fail_msg("%s", e.text);
    small_vocab_fini(&v);
    return tok;
}

/* ------------------------------------------------------------------ long */

static const struct {
    const char *repeated;
    const char *last; /* ends the run */
} long_texts[] = {
    {"a", ""},
    {" ", ""},
    {" ", "x"},
    {"\n", ""},
    {"\n", "x"},
    {"\xe4\xb8\xad", ""},
    {"\xff", ""},
    {"<|im_end|>", ""},
    /* from here on an eighth as long */
    {"\t \n", "x"},
    {"\r\n", ""},
    {"0", ""},
    {"'", "s"},
    {"a b ", ""},
    {"a\xff", ""},
    {"\xf0\x9f\x98\x80", ""},
    {"\xc2\xa0", "x"},
    {"=-", ""},
    {"ab", "\xe4"},
    {"\xcc\x81", ""},
    {"<", "|"},
};

enum { LONGEST = 8 }; /* these at full length */

static void check_long_texts(const struct tokenizer *tok, size_t bytes, const char *name)
{
    char *text = malloc(bytes + 16);
    for (size_t i = 0; i < sizeof long_texts / sizeof *long_texts; i++) {
        const size_t n = strlen(long_texts[i].repeated);
        size_t length = 0;
        const size_t limit = i < LONGEST ? bytes : bytes / 8;
        for (; length + n <= limit; length += n)
            memcpy(text + length, long_texts[i].repeated, n);
        memcpy(text + length, long_texts[i].last, strlen(long_texts[i].last));
        length += strlen(long_texts[i].last);
        char what[100];
        snprintf(what, sizeof what, "%s, long text %zu", name, i);
        text_check_round_trip(tok, text, length, what);
    }
    free(text);
}

static void a_megabyte_of_one_thing_comes_back_by_byte_level_bpe(void **state)
{
    (void)state;
    check_long_texts(gpt->tokenizer, 1 << 20, "gpt-2");
}

static void a_megabyte_of_one_thing_comes_back_by_sentencepiece(void **state)
{
    (void)state;
    check_long_texts(phi->tokenizer, 1 << 20, "phi-3");
}

static void long_runs_of_one_thing_come_back_through_every_pre_tokenizer(void **state)
{
    (void)state;
    static const char *const names[] = {"smollm", "llama-bpe", "dbrx", "qwen2", "default"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        struct tokenizer *tok = open_cut_by(names[i]);
        check_long_texts(tok, 1 << 17, names[i]);
        tokenizer_close(tok);
    }
}

/* ------------------------------------------------------------------ random */

static uint64_t random_state;

static uint32_t draw(uint32_t below)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((random_state >> 33) % below);
}

static void seed(void)
{
    const char *given = getenv("SHEAF_SEED");
    random_state = given ? strtoull(given, NULL, 10) : 20260914;
    printf("seed %llu (SHEAF_SEED)\n", (unsigned long long)random_state);
}

static size_t random_bytes(char *out, size_t length)
{
    for (size_t i = 0; i < length; i++)
        out[i] = (char)draw(256);
    return length;
}

/* Text of parts that tokenizers treat in ways of their own. */
static size_t random_parts(char *out, size_t length)
{
    static const char *const parts[] = {" ",
                                        "  ",
                                        "\n",
                                        "\r\n",
                                        "\t",
                                        "a",
                                        "The",
                                        "'s",
                                        "'LL",
                                        "12",
                                        "3",
                                        "\xff",
                                        "\xc3\xa9",
                                        "\xe4\xb8\xad",
                                        "\xe3\x80\x80",
                                        "<|end|>",
                                        "<s>",
                                        "<0x0A>",
                                        "\xc3",
                                        "\xf0\x9f\x91\xa9",
                                        "\xe2\x80\x8d",
                                        "\xc2\xa0",
                                        "\xe1\xa0\x8e",
                                        "...",
                                        "_",
                                        "</s>",
                                        "\xed\xa0\x80",
                                        "\xcc\x81",
                                        "\x01",
                                        "\x85"};
    size_t at = 0;
    while (at + 16 < length) {
        const char *part = parts[draw(sizeof parts / sizeof *parts)];
        memcpy(out + at, part, strlen(part));
        at += strlen(part);
    }
    return at;
}

/* SentencePiece writes a space as U+2581 and cannot tell the two apart. */
static void drop_2581(char *text, size_t length)
{
    for (size_t i = 0; i + 2 < length; i++)
        if (memcmp(text + i, "\xe2\x96\x81", 3) == 0)
            text[i] = '?';
}

static void random_bytes_and_random_text_come_back(void **state)
{
    (void)state;
    seed();
    struct tokenizer *llama = open_cut_by("llama-bpe"), *plain = open_cut_by("default");
    const struct tokenizer *toks[] = {gpt->tokenizer, phi->tokenizer, llama, plain};
    size_t n = 0;
    for (size_t round = 0; round < 400; round++) {
        char text[600];
        const size_t length = 1 + draw(sizeof text - 1);
        const size_t used = round % 2 ? random_bytes(text, length) : random_parts(text, length);
        drop_2581(text, used);
        char what[60];
        snprintf(what, sizeof what, "round %zu", round);
        for (size_t t = 0; t < 4; t++, n++)
            text_check_round_trip(toks[t], text, used, what);
    }
    tokenizer_close(llama);
    tokenizer_close(plain);
    printf("figure: %zu random texts back byte for byte\n", n);
}

/* ------------------------------------------------------------------ threads */

enum { TEXTS = 150 };

struct reader {
    const struct tokenizer *tok;
    char (*texts)[300];
    size_t *lengths;
    struct token_list ids[TEXTS];
    bool failed;
};

static void *encode_all(void *argument)
{
    struct reader *r = argument;
    for (size_t i = 0; i < TEXTS; i++) {
        const struct token_span span = {r->texts[i], r->lengths[i], i % 3 == 0};
        struct buf back = {0};
        r->failed |= tokenizer_encode(r->tok, &span, 1, true, &r->ids[i], NULL) != 0;
        r->failed |=
            tokenizer_decode(r->tok, r->ids[i].ids, r->ids[i].length, &back, NULL) != 0;
        buf_fini(&back);
    }
    return NULL;
}

static void two_threads_encode_at_once_what_one_encodes_alone(void **state)
{
    (void)state;
    seed();
    static char texts[TEXTS][300];
    size_t lengths[TEXTS];
    for (size_t i = 0; i < TEXTS; i++)
        lengths[i] = random_parts(texts[i], sizeof texts[i]);
    const struct tokenizer *toks[] = {gpt->tokenizer, phi->tokenizer};
    for (size_t t = 0; t < 2; t++) {
        static struct reader readers[3];
        pthread_t threads[2];
        for (size_t i = 0; i < 3; i++)
            readers[i] = (struct reader){.tok = toks[t], .texts = texts, .lengths = lengths};
        for (size_t i = 0; i < 2; i++)
            assert_int_equal(pthread_create(&threads[i], NULL, encode_all, &readers[i]), 0);
        for (size_t i = 0; i < 2; i++)
            pthread_join(threads[i], NULL);
        encode_all(&readers[2]);
        for (size_t i = 0; i < 3; i++)
            for (size_t k = 0; k < TEXTS; k++) {
                assert_false(readers[i].failed);
                text_check_ids(&readers[i].ids[k], readers[2].ids[k].ids,
                               readers[2].ids[k].length, "a thread");
            }
        for (size_t i = 0; i < 3; i++)
            for (size_t k = 0; k < TEXTS; k++)
                token_list_fini(&readers[i].ids[k]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_megabyte_of_one_thing_comes_back_by_byte_level_bpe),
        cmocka_unit_test(a_megabyte_of_one_thing_comes_back_by_sentencepiece),
        cmocka_unit_test(long_runs_of_one_thing_come_back_through_every_pre_tokenizer),
        cmocka_unit_test(random_bytes_and_random_text_come_back),
        cmocka_unit_test(two_threads_encode_at_once_what_one_encodes_alone),
    };
    return cmocka_run_group_tests(tests, open_both, close_both);
}
