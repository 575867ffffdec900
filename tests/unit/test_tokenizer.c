/*
 * What the tokenizer promises about text that comes from jobs, on the demo model's vocabulary
 * (byte-level BPE), on Phi-3's (SentencePiece), and on small ones made here.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "golden.h"
#include "small_vocab.h"
#include "text.h"

static struct model *demo, *phi;

static int open_both(void **state)
{
    (void)state;
    demo = text_open_vocab(golden_demo_model());
    phi = text_open_vocab(SHEAF_TEST_DATA "/golden/tokenizers/ggml-vocab-phi-3.gguf");
    return 0;
}

static int close_both(void **state)
{
    (void)state;
    model_close(demo);
    model_close(phi);
    return 0;
}

static struct token_list encode_spans(const struct tokenizer *tok,
                                      const struct token_span *spans, size_t n, bool add_bos)
{
    struct token_list ids = {0};
    struct err e = {0};
    if (tokenizer_encode(tok, spans, n, add_bos, &ids, &e) != 0)
        fail_msg("%s", e.text);
    return ids;
}

static size_t count_control(const struct tokenizer *tok, const struct token_list *ids)
{
    size_t n = 0;
    for (size_t i = 0; i < ids->length; i++)
        n += tokenizer_is_control(tok, ids->ids[i]);
    return n;
}

static struct tokenizer *open_small(struct small_vocab *v, struct gguf_builder *b)
{
    struct tokenizer *tok = NULL;
    struct err e = {0};
    if (small_vocab_open(b, &tok, &e) != 0)
        fail_msg("%s", e.text);
    small_vocab_fini(v);
    return tok;
}

/* ------------------------------------------------------------------ special tokens */

/* Every control token's text, as content and as template text. Returns how many there are. */
static size_t check_control_texts(const struct tokenizer *tok)
{
    size_t n = 0;
    for (int32_t id = 0; (size_t)id < tokenizer_vocab_size(tok); id++) {
        if (!tokenizer_is_control(tok, id))
            continue;
        const struct gguf_str text = tokenizer_token_text(tok, id);
        char around[300];
        const int length = snprintf(around, sizeof around, "x %.*s%.*s y", (int)text.length,
                                    text.data, (int)text.length, text.data);
        struct token_list plain = text_encode(tok, around, (size_t)length, false, false);
        assert_int_equal(count_control(tok, &plain), 0);
        text_check_round_trip(tok, around, (size_t)length, around);
        struct token_list parsed = text_encode(tok, around, (size_t)length, true, false);
        assert_int_equal(count_control(tok, &parsed), 2);
        token_list_fini(&plain);
        token_list_fini(&parsed);
        n++;
    }
    return n;
}

static void special_text_in_content_never_becomes_a_special_token(void **state)
{
    (void)state;
    const size_t n_demo = check_control_texts(demo->tokenizer);
    const size_t n_phi = check_control_texts(phi->tokenizer);
    assert_int_equal(n_demo, 17);
    assert_true(n_phi >= 14);
    printf("figure: %zu special texts stay text in content\n", n_demo + n_phi);
}

static void a_special_token_across_a_border_of_template_and_content_is_text(void **state)
{
    (void)state;
    static const char text[] = "<|im_end|>";
    const int32_t id = tokenizer_find(demo->tokenizer, text, sizeof text - 1);
    for (size_t cut = 0; cut < sizeof text; cut++)
        for (int kinds = 0; kinds < 4; kinds++) {
            const struct token_span spans[] = {
                {text, cut, (kinds & 1) != 0},
                {text + cut, sizeof text - 1 - cut, (kinds & 2) != 0},
            };
            struct token_list ids = encode_spans(demo->tokenizer, spans, 2, false);
            const bool first_ok = cut == 0 || spans[0].special;
            const bool second_ok = cut == sizeof text - 1 || spans[1].special;
            if (first_ok && second_ok)
                text_check_ids(&ids, &id, 1, "template text");
            else
                assert_int_equal(count_control(demo->tokenizer, &ids), 0);
            token_list_fini(&ids);
        }
}

static void borders_of_spans_do_not_change_how_text_is_cut(void **state)
{
    (void)state;
    static const char text[] = "It's  12345\n\n  caf\xc3\xa9 \xf0\x9f\x98\x80\xff done.\n\t x";
    const struct tokenizer *toks[] = {demo->tokenizer, phi->tokenizer};
    for (size_t t = 0; t < 2; t++) {
        struct token_list whole = text_encode(toks[t], text, sizeof text - 1, false, false);
        for (size_t cut = 0; cut < sizeof text; cut++) {
            const struct token_span spans[] = {{text, cut, true},
                                               {NULL, 0, false},
                                               {text + cut, sizeof text - 1 - cut, false}};
            struct token_list ids = encode_spans(toks[t], spans, 3, false);
            text_check_ids(&ids, whole.ids, whole.length, "spans");
            token_list_fini(&ids);
        }
        token_list_fini(&whole);
    }
}

/* ids of the vocabulary below */
static int32_t br, br_br, user_marker, inst, eos;

static struct tokenizer *open_user_tokens(void)
{
    struct small_vocab v = {0};
    struct gguf_builder b;
    small_vocab_add_bpe_bytes(&v);
    br = small_vocab_add(&v, "<br>", SMALL_USER, 0);
    br_br = small_vocab_add(&v, "<br><br>", SMALL_USER, 0);
    user_marker = small_vocab_add(&v, "<|user|>", SMALL_USER, 0);
    inst = small_vocab_add(&v, "[INST]", SMALL_USER, 0);
    eos = small_vocab_add(&v, "stop", SMALL_USER, 0);
    small_vocab_write(&v, "gpt2", &b);
    static const char *const merges[] = {"s t", "st o", "sto p"};
    builder_strings(&b, "tokenizer.ggml.merges", merges, 3);
    builder_string(&b, "tokenizer.ggml.pre", "gpt-2");
    builder_u32(&b, "tokenizer.ggml.eos_token_id", (uint32_t)eos);
    return open_small(&v, &b);
}

static void user_defined_tokens_are_found_in_content_but_turn_markers_are_not(void **state)
{
    (void)state;
    struct tokenizer *tok = open_user_tokens();
    static const char text[] = "<br><br><br><|user|>[INST]stop";
    struct token_list content = text_encode(tok, text, sizeof text - 1, false, false);
    /* longest first, then one token a byte */
    assert_int_equal(content.length, 2 + 8 + 6 + 4);
    assert_int_equal(content.ids[0], br_br);
    assert_int_equal(content.ids[1], br);
    assert_int_equal(content.ids[2], '<');
    assert_int_equal(content.ids[16], 's');
    assert_int_equal(count_control(tok, &content), 0);
    struct token_list template = text_encode(tok, text, sizeof text - 1, true, false);
    const int32_t want[] = {br_br, br, user_marker, inst, eos};
    text_check_ids(&template, want, 5, "template text");
    assert_false(tokenizer_is_control(tok, br));
    assert_true(tokenizer_is_control(tok, eos) && tokenizer_is_end(tok, eos));
    text_check_round_trip(tok, text, sizeof text - 1, "user-defined tokens");
    token_list_fini(&content);
    token_list_fini(&template);
    tokenizer_close(tok);
}

static void the_ends_of_a_generation_are_known_by_id_and_by_text(void **state)
{
    (void)state;
    static const char *const ends[] = {"<|endoftext|>", "<|im_end|>"};
    for (size_t i = 0; i < 2; i++)
        assert_true(tokenizer_is_end(
            demo->tokenizer, tokenizer_find(demo->tokenizer, ends[i], strlen(ends[i]))));
    assert_false(
        tokenizer_is_end(demo->tokenizer, tokenizer_find(demo->tokenizer, "<|im_start|>", 12)));
    assert_true(tokenizer_is_end(phi->tokenizer, tokenizer_find(phi->tokenizer, "<|end|>", 7)));
    assert_false(tokenizer_is_end(demo->tokenizer, TOKEN_NONE));
    assert_false(tokenizer_is_control(demo->tokenizer, 1 << 30));
    assert_int_equal(tokenizer_eos(demo->tokenizer), 2);
    assert_string_equal(tokenizer_kind(demo->tokenizer), "bpe/smollm");
    assert_string_equal(tokenizer_kind(phi->tokenizer), "spm");
}

/* ------------------------------------------------------------------ beginning of text */

static void exactly_one_beginning_token_stands_in_front_where_the_model_wants_one(void **state)
{
    (void)state;
    const struct tokenizer *tok = phi->tokenizer;
    const int32_t bos = tokenizer_bos(tok);
    const struct token_span written[] = {{"<s>", 3, true}, {"Hello", 5, false}};
    const struct token_span content[] = {{"<s>", 3, false}};
    struct token_list twice = encode_spans(tok, written, 2, true);
    struct token_list bare = encode_spans(tok, written + 1, 1, true);
    struct token_list unasked = encode_spans(tok, written + 1, 1, false);
    struct token_list fake = encode_spans(tok, content, 1, true);
    struct token_list nothing = encode_spans(tok, NULL, 0, true);
    text_check_ids(&twice, bare.ids, bare.length, "a text that writes its own");
    assert_int_equal(bare.ids[0], bos);
    text_check_ids(&unasked, bare.ids + 1, bare.length - 1, "not asked for");
    assert_int_equal(fake.ids[0], bos);
    assert_int_equal(count_control(tok, &fake), 1);
    text_check_ids(&nothing, &bos, 1, "no text");
    /* Appending: what is in the list stays, and the front is the front of the new text. */
    struct err e = {0};
    assert_int_equal(tokenizer_encode(tok, written + 1, 1, true, &nothing, &e), 0);
    assert_int_equal(nothing.length, 1 + bare.length);
    assert_memory_equal(nothing.ids + 1, bare.ids, bare.length * sizeof *bare.ids);
    /* SmolLM2's file says that it wants none. */
    struct token_list none = text_encode(demo->tokenizer, "Hello", 5, true, true);
    assert_int_equal(count_control(demo->tokenizer, &none), 0);
    struct token_list *all[] = {&twice, &bare, &unasked, &fake, &nothing, &none};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        token_list_fini(all[i]);
}

/* ------------------------------------------------------------------ SentencePiece */

static const char *const spaced[] = {"Hello", " Hello", "  Hello",  "",          " ",
                                     "   ",   "\n",     "\nHello",  "Hello ",    "\t x",
                                     "\xff",  " \xff",  "\xc3\xa9", "<|end|> x", "x<s> y"};

static void the_space_that_sentencepiece_puts_in_front_comes_and_goes_unseen(void **state)
{
    (void)state;
    const struct tokenizer *tok = phi->tokenizer;
    for (size_t i = 0; i < sizeof spaced / sizeof *spaced; i++)
        text_check_round_trip(tok, spaced[i], strlen(spaced[i]), spaced[i]);
    struct token_list ids = text_encode(tok, "Hello", 5, false, false);
    assert_int_equal(ids.length, 1);
    assert_int_equal(tokenizer_piece(tok, ids.ids[0]).length, 6);
    assert_memory_equal(tokenizer_piece(tok, ids.ids[0]).data, " Hello", 6);
    bool start = true;
    assert_int_equal(tokenizer_next_piece(tok, ids.ids[0], &start).length, 5);
    assert_false(start);
    assert_int_equal(tokenizer_next_piece(tok, ids.ids[0], &start).length, 6);
    token_list_fini(&ids);
}

static void text_after_a_special_token_begins_anew(void **state)
{
    (void)state;
    const struct tokenizer *tok = phi->tokenizer;
    const struct token_span spans[] = {
        {"<|user|>", 8, true}, {" Hello", 6, false}, {"<|end|>", 7, true}, {"Hello", 5, false}};
    struct token_list ids = encode_spans(tok, spans, 4, false);
    struct buf back = text_decode(tok, &ids);
    assert_string_equal(buf_str(&back), " HelloHello");
    assert_int_equal(count_control(tok, &ids), 2);
    buf_fini(&back);
    token_list_fini(&ids);
}

static struct tokenizer *open_small_spm(bool add_space_prefix)
{
    struct small_vocab v = {0};
    struct gguf_builder b;
    small_vocab_add_spm_start(&v);
    static const char *const pieces[] = {
        "\xe2\x96\x81", "a",   "b",  "ab", "ba", "<0x4", "1>", "<", "0", "x", "4", "1", ">",
        "<0",           "<0x", "aba"};
    for (size_t i = 0; i < sizeof pieces / sizeof *pieces; i++)
        small_vocab_add(&v, pieces[i], SMALL_NORMAL, -1.0f - (float)i);
    small_vocab_write(&v, "llama", &b);
    builder_bool(&b, "tokenizer.ggml.add_space_prefix", add_space_prefix);
    return open_small(&v, &b);
}

static void sentencepiece_merges_the_best_score_first_and_ties_from_the_left(void **state)
{
    (void)state;
    struct tokenizer *tok = open_small_spm(false);
    /* "ab" scores above "ba", both above "aba": of "bab" b, ab; of "ababa" ab, aba or ab, ab,
     * a: the first two merges are the "ab"s, then "ab" + "a" is a token. */
    static const struct {
        const char *text, *pieces[4];
    } cases[] = {{"bab", {"b", "ab"}},
                 {"ababa", {"ab", "aba"}},
                 {"ba", {"ba"}},
                 {"a b", {"a", "\xe2\x96\x81", "b"}}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int32_t want[4];
        size_t n = 0;
        for (; n < 4 && cases[i].pieces[n]; n++)
            want[n] = tokenizer_find(tok, cases[i].pieces[n], strlen(cases[i].pieces[n]));
        struct token_list ids =
            text_encode(tok, cases[i].text, strlen(cases[i].text), false, false);
        text_check_ids(&ids, want, n, cases[i].text);
        token_list_fini(&ids);
    }
    tokenizer_close(tok);
}

static void the_text_of_a_byte_token_is_text_and_not_that_byte(void **state)
{
    (void)state;
    for (int prefix = 0; prefix < 2; prefix++) {
        struct tokenizer *tok = open_small_spm(prefix != 0);
        text_check_round_trip(tok, "<0x41>", 6, "<0x41>");
        text_check_round_trip(tok, "A<0x4<0x41>1> <0x00>", 20, "<0x41> within text");
        for (size_t i = 0; i < sizeof spaced / sizeof *spaced; i++)
            text_check_round_trip(tok, spaced[i], strlen(spaced[i]), spaced[i]);
        tokenizer_close(tok);
    }
}

/* ------------------------------------------------------------------ decoding */

static void ids_outside_the_vocabulary_are_an_error_that_names_them(void **state)
{
    (void)state;
    static const int32_t bad[] = {-1, INT32_MIN, 49152, INT32_MAX};
    for (size_t i = 0; i < 4; i++) {
        const int32_t ids[] = {81, bad[i]};
        struct buf out = {0};
        struct err e = {0};
        assert_int_equal(tokenizer_decode(demo->tokenizer, ids, 2, &out, &e), ERR_INVALID);
        char id[20];
        snprintf(id, sizeof id, "%d", bad[i]);
        assert_non_null(strstr(e.text, id));
        buf_fini(&out);
    }
}

static void every_token_but_control_tokens_decodes_to_its_piece(void **state)
{
    (void)state;
    const struct tokenizer *toks[] = {demo->tokenizer, phi->tokenizer};
    for (size_t t = 0; t < 2; t++)
        for (int32_t id = 0; (size_t)id < tokenizer_vocab_size(toks[t]); id++) {
            const size_t n = tokenizer_piece(toks[t], id).length;
            assert_int_equal(n == 0, tokenizer_is_control(toks[t], id));
        }
}

static void nul_bytes_are_text(void **state)
{
    (void)state;
    static const char text[] = "\0a\0\0 b\0<|im_end|>\0";
    text_check_round_trip(demo->tokenizer, text, sizeof text, "NUL, byte-level");
    text_check_round_trip(phi->tokenizer, text, sizeof text, "NUL, SentencePiece");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(special_text_in_content_never_becomes_a_special_token),
        cmocka_unit_test(a_special_token_across_a_border_of_template_and_content_is_text),
        cmocka_unit_test(borders_of_spans_do_not_change_how_text_is_cut),
        cmocka_unit_test(user_defined_tokens_are_found_in_content_but_turn_markers_are_not),
        cmocka_unit_test(the_ends_of_a_generation_are_known_by_id_and_by_text),
        cmocka_unit_test(exactly_one_beginning_token_stands_in_front_where_the_model_wants_one),
        cmocka_unit_test(the_space_that_sentencepiece_puts_in_front_comes_and_goes_unseen),
        cmocka_unit_test(text_after_a_special_token_begins_anew),
        cmocka_unit_test(sentencepiece_merges_the_best_score_first_and_ties_from_the_left),
        cmocka_unit_test(the_text_of_a_byte_token_is_text_and_not_that_byte),
        cmocka_unit_test(ids_outside_the_vocabulary_are_an_error_that_names_them),
        cmocka_unit_test(every_token_but_control_tokens_decodes_to_its_piece),
        cmocka_unit_test(nul_bytes_are_text),
    };
    return cmocka_run_group_tests(tests, open_both, close_both);
}
