/* Vocabularies from hostile or unknown files: refused with a sentence that names what is wrong,
 * or read so that no text is lost. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "model_edit.h"
#include "small_vocab.h"
#include "text.h"

enum { SPM, BPE };

/* A well-formed file without the named key, which the test then writes in its own way. */
static struct gguf_builder without(int kind, const char *key)
{
    struct small_vocab v = {0};
    struct gguf_builder whole, cut;
    if (kind == SPM) {
        small_vocab_add_spm_start(&v);
        small_vocab_write(&v, "llama", &whole);
    } else {
        static const char *const merges[] = {"a b"};
        small_vocab_add_bpe_bytes(&v);
        small_vocab_add(&v, "ab", SMALL_NORMAL, 0);
        small_vocab_write(&v, "gpt2", &whole);
        builder_strings(&whole, "tokenizer.ggml.merges", merges, 1);
        builder_string(&whole, "tokenizer.ggml.pre", "gpt-2");
    }
    static const uint64_t dims[] = {8};
    builder_tensor(&whole, "t", 0, 1, dims, 32); /* the walker expects one */
    struct gguf_bytes file = builder_take(&whole);
    gguf_edit_begin(&file, key, NULL, &cut);
    free(file.data);
    small_vocab_fini(&v);
    return cut;
}

static void no_value(struct gguf_builder *b, const char *key)
{
    (void)b;
    (void)key;
}

static void number(struct gguf_builder *b, const char *key)
{
    builder_u32(b, key, 7);
}

static void last_id_and_one(struct gguf_builder *b, const char *key)
{
    builder_u32(b, key, 259);
}

static void huge_id(struct gguf_builder *b, const char *key)
{
    builder_u64(b, key, UINT64_MAX);
}

static void negative_id(struct gguf_builder *b, const char *key)
{
    builder_i32(b, key, -1);
}

static void name_bert(struct gguf_builder *b, const char *key)
{
    builder_string(b, key, "bert");
}

static void name_tekken(struct gguf_builder *b, const char *key)
{
    builder_string(b, key, "tekken");
}

static void name_prefix(struct gguf_builder *b, const char *key)
{
    builder_string(b, key, "gpt");
}

static void three_numbers(struct gguf_builder *b, const char *key)
{
    static const int32_t items[] = {1, 1, 1};
    builder_i32s(b, key, items, 3);
}

static void no_strings(struct gguf_builder *b, const char *key)
{
    builder_strings(b, key, NULL, 0);
}

static void type_seven(struct gguf_builder *b, const char *key)
{
    int32_t items[259];
    for (size_t i = 0; i < 259; i++)
        items[i] = i == 200 ? 7 : SMALL_NORMAL;
    builder_i32s(b, key, items, 259);
}

static void type_minus_one(struct gguf_builder *b, const char *key)
{
    int32_t items[259];
    for (size_t i = 0; i < 259; i++)
        items[i] = i == 200 ? -1 : SMALL_NORMAL;
    builder_i32s(b, key, items, 259);
}

static void all_normal(struct gguf_builder *b, const char *key)
{
    int32_t items[259];
    for (size_t i = 0; i < 259; i++)
        items[i] = SMALL_NORMAL;
    builder_i32s(b, key, items, 259);
}

static void all_bytes(struct gguf_builder *b, const char *key)
{
    int32_t items[259];
    for (size_t i = 0; i < 259; i++)
        items[i] = SMALL_BYTE;
    builder_i32s(b, key, items, 259);
}

static void a_score_of_nan(struct gguf_builder *b, const char *key)
{
    float items[259] = {0};
    items[200] = NAN;
    builder_f32s(b, key, items, 259);
}

static void a_long_text(struct gguf_builder *b, const char *key)
{
    static char text[65538];
    memset(text, 'a', sizeof text - 1);
    const char *const items[] = {text};
    builder_strings(b, key, items, 1);
}

static const struct {
    int kind;
    const char *key;
    void (*write)(struct gguf_builder *b, const char *key);
    int code;
    const char *text;
} refusals[] = {
    {BPE, "tokenizer.ggml.model", no_value, ERR_NOTFOUND, "tokenizer.ggml.model"},
    {BPE, "tokenizer.ggml.model", number, ERR_FORMAT, "tokenizer.ggml.model"},
    {BPE, "tokenizer.ggml.model", name_bert, ERR_UNSUPPORTED, "\"bert\" is not supported"},
    {BPE, "tokenizer.ggml.pre", name_tekken, ERR_UNSUPPORTED, "\"tekken\" is not supported"},
    {BPE, "tokenizer.ggml.pre", name_prefix, ERR_UNSUPPORTED, "\"gpt\" is not supported"},
    {BPE, "tokenizer.ggml.pre", name_tekken, ERR_UNSUPPORTED, "smollm"},
    {BPE, "tokenizer.ggml.pre", number, ERR_FORMAT, "tokenizer.ggml.pre"},
    {BPE, "tokenizer.ggml.tokens", no_value, ERR_NOTFOUND, "tokenizer.ggml.tokens"},
    {BPE, "tokenizer.ggml.tokens", three_numbers, ERR_FORMAT, "not an array of strings"},
    {BPE, "tokenizer.ggml.tokens", no_strings, ERR_FORMAT, "0 tokens"},
    {BPE, "tokenizer.ggml.tokens", a_long_text, ERR_FORMAT, "65537 bytes"},
    {BPE, "tokenizer.ggml.merges", no_value, ERR_NOTFOUND, "tokenizer.ggml.merges"},
    {BPE, "tokenizer.ggml.merges", three_numbers, ERR_FORMAT, "not an array of strings"},
    {BPE, "tokenizer.ggml.token_type", three_numbers, ERR_FORMAT, "3 items for 257 tokens"},
    {SPM, "tokenizer.ggml.token_type", type_seven, ERR_FORMAT,
     "token 200 has the unknown type"},
    {SPM, "tokenizer.ggml.token_type", type_minus_one, ERR_FORMAT, "token 200 has the unkn"},
    {SPM, "tokenizer.ggml.token_type", all_bytes, ERR_FORMAT, "token 0 is typed byte"},
    {SPM, "tokenizer.ggml.token_type", all_normal, ERR_UNSUPPORTED, "byte token <0x00>"},
    {SPM, "tokenizer.ggml.token_type", number, ERR_FORMAT, "tokenizer.ggml.token_type"},
    {SPM, "tokenizer.ggml.scores", no_value, ERR_FORMAT, "scores is missing"},
    {SPM, "tokenizer.ggml.scores", a_score_of_nan, ERR_FORMAT, "token 200 is not a number"},
    {SPM, "tokenizer.ggml.scores", three_numbers, ERR_FORMAT, "3 items for 259 tokens"},
    {SPM, "tokenizer.ggml.bos_token_id", last_id_and_one, ERR_FORMAT, "is 259, the vocab"},
    {SPM, "tokenizer.ggml.eos_token_id", huge_id, ERR_FORMAT, "eos_token_id"},
    {SPM, "tokenizer.ggml.eot_token_id", negative_id, ERR_FORMAT, "eot_token_id"},
    {SPM, "tokenizer.ggml.eom_token_id", last_id_and_one, ERR_FORMAT, "eom_token_id"},
    {SPM, "tokenizer.ggml.unknown_token_id", last_id_and_one, ERR_FORMAT, "unknown_token"},
    {SPM, "tokenizer.ggml.add_bos_token", number, ERR_FORMAT, "add_bos_token"},
    {SPM, "tokenizer.ggml.add_space_prefix", number, ERR_FORMAT, "add_space_prefix"},
};

static void malformed_and_unknown_vocabularies_are_refused_by_name(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++) {
        struct gguf_builder b = without(refusals[i].kind, refusals[i].key);
        refusals[i].write(&b, refusals[i].key);
        struct tokenizer *tok = NULL;
        struct err e = {0};
        const int code = small_vocab_open(&b, &tok, &e);
        if (code != refusals[i].code || !strstr(e.text, refusals[i].text))
            fail_msg("case %zu, %s: %s: %s", i, refusals[i].key, err_name(code), e.text);
        assert_null(tok);
    }
    printf("figure: %zu malformed or unknown vocabularies refused by name\n",
           sizeof refusals / sizeof *refusals);
}

/* Byte tokens that are nearly right: one of them made -1 an index in another engine. */
static const char *const bad_bytes[] = {"<0x-1>", "<0xG0>",  "<0x0G>",  "<0x41",
                                        "0x41>",  "<0x041>", "<0X41>",  "<0x 1>",
                                        "",       "A",       "<0x41>>", "<0x4>"};

static void a_byte_token_has_two_hexadecimal_digits_and_nothing_else(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof bad_bytes / sizeof *bad_bytes; i++) {
        struct small_vocab v = {0};
        struct gguf_builder b;
        small_vocab_add_spm_start(&v);
        small_vocab_add(&v, bad_bytes[i], SMALL_BYTE, 0);
        small_vocab_write(&v, "llama", &b);
        struct tokenizer *tok = NULL;
        struct err e = {0};
        assert_int_equal(small_vocab_open(&b, &tok, &e), ERR_FORMAT);
        assert_non_null(strstr(e.text, "token 259 is typed byte"));
        small_vocab_fini(&v);
    }
}

static void an_unknown_pre_tokenizer_is_refused_when_a_model_is_opened(void **state)
{
    (void)state;
    const struct model_edit edit = {LLAMA, "tokenizer.ggml.pre", EDIT_TEXT, 0, "qwen35"};
    struct gguf_bytes file = model_edit_apply(&edit);
    struct model *m = NULL;
    struct err e = {0};
    assert_int_equal(model_edit_open(&file, true, &m, &e), ERR_UNSUPPORTED);
    assert_non_null(strstr(e.text, "\"qwen35\" is not supported"));
    free(file.data);
}

/* ------------------------------------------------------------------ odd, but read */

static struct tokenizer *open_bpe(const char *const *texts, const int32_t *types, size_t n,
                                  const char *const *merges, size_t n_merges)
{
    struct small_vocab v = {0};
    struct gguf_builder b;
    small_vocab_add_bpe_bytes(&v);
    for (size_t i = 0; i < n; i++)
        small_vocab_add(&v, texts[i], types[i], 0);
    small_vocab_write(&v, "gpt2", &b);
    builder_strings(&b, "tokenizer.ggml.merges", merges, n_merges);
    builder_string(&b, "tokenizer.ggml.pre", "gpt-2");
    struct tokenizer *tok = NULL;
    struct err e = {0};
    if (small_vocab_open(&b, &tok, &e) != 0)
        fail_msg("%s", e.text);
    small_vocab_fini(&v);
    return tok;
}

static void dead_merges_do_nothing(void **state)
{
    (void)state;
    /* "ab" is the id 256; no other merge makes a token that content may have. */
    static const char *const texts[] = {"ab", "<|x|>", "cd"};
    static const int32_t types[] = {SMALL_NORMAL, SMALL_CONTROL, SMALL_CONTROL};
    static const char *const merges[] = {"",    " ",   "  ",    "a",      "a ",  " a",  "c d",
                                         "a c", "z q", "a b c", "< |x|>", "a b", "a b", "cd a"};
    struct tokenizer *tok = open_bpe(texts, types, 3, merges, sizeof merges / sizeof *merges);
    static const int32_t want[] = {256, 'c', 'd', 'a', '<', '|', 'x', '|', '>'};
    struct token_list ids = text_encode(tok, "abcda<|x|>", 10, false, false);
    text_check_ids(&ids, want, 9, "dead merges");
    token_list_fini(&ids);
    tokenizer_close(tok);
}

static void the_first_of_equal_merges_and_of_equal_tokens_counts(void **state)
{
    (void)state;
    static const char *const texts[] = {"ab", "bc", "ab", "abc"};
    static const int32_t types[] = {SMALL_NORMAL, SMALL_NORMAL, SMALL_NORMAL, SMALL_NORMAL};
    static const char *const merges[] = {"a b", "b c", "a b", "a bc"};
    struct tokenizer *tok = open_bpe(texts, types, 4, merges, 4);
    static const int32_t want[] = {256, 'c', 257};
    struct token_list ids = text_encode(tok, "abcbc", 5, false, false);
    text_check_ids(&ids, want, 3, "abcbc");
    token_list_fini(&ids);
    tokenizer_close(tok);
}

static void llama_3_takes_a_piece_that_is_a_token_whole_and_gpt_2_merges_it(void **state)
{
    (void)state;
    static const char *const merges[] = {"a b"};
    for (int llama = 0; llama < 2; llama++) {
        struct small_vocab v = {0};
        struct gguf_builder b;
        small_vocab_add_bpe_bytes(&v);
        small_vocab_add(&v, "ab", SMALL_NORMAL, 0);
        small_vocab_add(&v, "abc", SMALL_NORMAL, 0);
        small_vocab_add(&v, "\xc4\xa0xyz", SMALL_CONTROL, 0);
        small_vocab_write(&v, "gpt2", &b);
        builder_strings(&b, "tokenizer.ggml.merges", merges, 1);
        builder_string(&b, "tokenizer.ggml.pre", llama ? "llama-bpe" : "gpt-2");
        struct tokenizer *tok = NULL;
        struct err e = {0};
        assert_int_equal(small_vocab_open(&b, &tok, &e), 0);
        static const int32_t whole[] = {257, ' ', 'x', 'y', 'z'};
        static const int32_t merged[] = {256, 'c', ' ', 'x', 'y', 'z'};
        struct token_list ids = text_encode(tok, "abc xyz", 7, false, false);
        text_check_ids(&ids, llama ? whole : merged, llama ? 5 : 6, "abc xyz");
        token_list_fini(&ids);
        tokenizer_close(tok);
        small_vocab_fini(&v);
    }
}

/* A control token's text given again to an ordinary token, before or after it. */
static void a_second_token_with_a_control_tokens_text_opens_no_way_into_it(void **state)
{
    (void)state;
    static const char *const texts[] = {"hi", "hi"};
    static const char *const merges[] = {"h i"};
    for (int control_first = 0; control_first < 2; control_first++) {
        const int32_t types[] = {control_first ? SMALL_CONTROL : SMALL_NORMAL,
                                 control_first ? SMALL_NORMAL : SMALL_CONTROL};
        struct tokenizer *tok = open_bpe(texts, types, 2, merges, 1);
        struct token_list ids = text_encode(tok, "hi", 2, false, false);
        for (size_t i = 0; i < ids.length; i++)
            assert_false(tokenizer_is_control(tok, ids.ids[i]));
        text_check_round_trip(tok, "hi", 2, "hi");
        token_list_fini(&ids);
        tokenizer_close(tok);
    }
}

static void a_byte_without_a_token_leaves_a_trace_only_where_it_is_invalid(void **state)
{
    (void)state;
    struct small_vocab v = {0};
    struct gguf_builder b;
    static const char *const texts[] = {"a", "b", "\xc3\xaf", "\xc2\xbf", "\xc2\xbd"};
    for (size_t i = 0; i < 5; i++) /* the bytes of U+FFFD: EF BF BD */
        small_vocab_add(&v, texts[i], SMALL_NORMAL, 0);
    small_vocab_write(&v, "gpt2", &b);
    builder_strings(&b, "tokenizer.ggml.merges", texts, 0);
    builder_string(&b, "tokenizer.ggml.pre", "gpt-2");
    struct tokenizer *tok = NULL;
    struct err e = {0};
    assert_int_equal(small_vocab_open(&b, &tok, &e), 0);
    static const int32_t want[] = {0, 2, 3, 4, 1};
    struct token_list ids = text_encode(tok,
                                        "a\xff\x01z"
                                        "b",
                                        5, false, false);
    text_check_ids(&ids, want, 5, "bytes without tokens");
    token_list_fini(&ids);
    tokenizer_close(tok);
    small_vocab_fini(&v);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(malformed_and_unknown_vocabularies_are_refused_by_name),
        cmocka_unit_test(a_byte_token_has_two_hexadecimal_digits_and_nothing_else),
        cmocka_unit_test(an_unknown_pre_tokenizer_is_refused_when_a_model_is_opened),
        cmocka_unit_test(dead_merges_do_nothing),
        cmocka_unit_test(the_first_of_equal_merges_and_of_equal_tokens_counts),
        cmocka_unit_test(llama_3_takes_a_piece_that_is_a_token_whole_and_gpt_2_merges_it),
        cmocka_unit_test(a_second_token_with_a_control_tokens_text_opens_no_way_into_it),
        cmocka_unit_test(a_byte_without_a_token_leaves_a_trace_only_where_it_is_invalid),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
