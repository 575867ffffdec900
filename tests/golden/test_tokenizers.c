/*
 * Text to tokens and back against independent tokenizers (tests/golden/tokenizers/README.md):
 * 46 texts for each of two vocabularies, 203 strings for the demo model's, one text for each
 * tiny model's. Equal means equal; there is no tolerance.
 *
 * With SHEAF_SHARED (a folder with data/tokenizers/) the Llama 2 vocabulary, which may not be
 * copied here, is tried as well.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "gguf_builder.h"
#include "golden.h"
#include "text.h"

static char *read_text(const char *path, const char *suffix, size_t *length)
{
    char name[4096];
    snprintf(name, sizeof name, "%s%s", path, suffix);
    struct gguf_bytes file = gguf_bytes_read(name);
    char *text = malloc(file.size + 1);
    memcpy(text, file.data, file.size);
    text[file.size] = '\0';
    *length = file.size;
    free(file.data);
    return text;
}

/* The ids of one line; *line moves to the next. */
static size_t read_ids(char **line, int32_t *out, size_t capacity)
{
    size_t n = 0;
    while (**line != '\n' && **line != '\0') {
        assert_true(n < capacity);
        out[n++] = (int32_t)strtol(*line, line, 10);
        *line += strspn(*line, " ");
    }
    *line += **line == '\n';
    return n;
}

/* Returns the number of cases, all of which were equal. */
static size_t check_cases(const char *path)
{
    static const char separator[] = "\n__ggml_vocab_test__\n";
    size_t length, out_length;
    char *inputs = read_text(path, ".inp", &length);
    char *outputs = read_text(path, ".out", &out_length);
    struct model *m = text_open_vocab(path);
    char *line = outputs, *text = inputs;
    size_t n = 0;
    for (char *end; (end = strstr(text, separator)); text = end + sizeof separator - 1, n++) {
        int32_t want[1024];
        const size_t n_want = read_ids(&line, want, 1024);
        char what[4200];
        snprintf(what, sizeof what, "%s case %zu", path, n + 1);
        struct token_list got =
            text_encode(m->tokenizer, text, (size_t)(end - text), false, false);
        text_check_ids(&got, want, n_want, what);
        token_list_fini(&got);
        text_check_round_trip(m->tokenizer, text, (size_t)(end - text), what);
    }
    assert_int_equal(text - inputs, length);
    assert_int_equal(line - outputs, out_length);
    model_close(m);
    free(inputs);
    free(outputs);
    return n;
}

static void check_vocabulary(const char *name, const char *path)
{
    const size_t n = check_cases(path);
    assert_int_equal(n, 46);
    printf("figure: %s %zu of 46 texts equal and back\n", name, n);
}

static void gpt_2_texts_become_the_ids_of_other_tokenizers_and_come_back(void **state)
{
    (void)state;
    check_vocabulary("gpt-2", SHEAF_TEST_DATA "/golden/tokenizers/ggml-vocab-gpt-2.gguf");
}

static void phi_3_texts_become_the_ids_of_other_tokenizers_and_come_back(void **state)
{
    (void)state;
    check_vocabulary("phi-3", SHEAF_TEST_DATA "/golden/tokenizers/ggml-vocab-phi-3.gguf");
}

static void llama_2_texts_too_where_that_vocabulary_is_at_hand(void **state)
{
    (void)state;
    const char *shared = getenv("SHEAF_SHARED");
    if (!shared)
        skip();
    char path[4096];
    snprintf(path, sizeof path, "%s/data/tokenizers/ggml-vocab-llama-spm.gguf", shared);
    check_vocabulary("llama-spm", path);
}

static char *unhex(const char *hex, size_t *length)
{
    *length = strlen(hex) / 2;
    char *bytes = malloc(*length + 1);
    for (size_t i = 0; i < *length; i++) {
        unsigned value;
        assert_int_equal(sscanf(hex + 2 * i, "%2x", &value), 1);
        bytes[i] = (char)value;
    }
    return bytes;
}

static void check_row_ids(const struct tokenizer *tok, const json_t *row, const char *key,
                          bool special)
{
    const char *hex = json_string_value(json_object_get(row, "hex"));
    size_t length, n_want;
    char *text = unhex(hex, &length);
    int32_t *want = golden_ids(json_object_get(row, key), &n_want);
    struct token_list got = text_encode(tok, text, length, special, false);
    char what[200];
    snprintf(what, sizeof what, "%.150s, %s", hex, key);
    text_check_ids(&got, want, n_want, what);
    token_list_fini(&got);
    free(want);
    free(text);
}

static void demo_strings_become_the_ids_of_other_tokenizers_and_come_back(void **state)
{
    (void)state;
    json_t *rows = golden_jsonl("golden/tokenizers/demo_tokens.jsonl");
    struct model *m = text_open_vocab(golden_demo_model());
    size_t n = 0, n_back = 0;
    for (size_t i = 0; i < json_array_size(rows); i++) {
        const json_t *row = json_array_get(rows, i);
        if (!json_object_get(row, "text"))
            continue;
        check_row_ids(m->tokenizer, row, "plain", false);
        check_row_ids(m->tokenizer, row, "parsed", true);
        n++;
        if (!json_is_true(json_object_get(row, "decodes_back")))
            continue;
        const char *hex = json_string_value(json_object_get(row, "hex"));
        size_t length;
        char *text = unhex(hex, &length);
        text_check_round_trip(m->tokenizer, text, length, hex);
        free(text);
        n_back++;
    }
    assert_int_equal(n, 183);
    printf("figure: demo model %zu of 183 strings equal both ways, %zu back\n", n, n_back);
    model_close(m);
    json_decref(rows);
}

/*
 * The invalid strings, and what decoding gives back. The vocabulary has no token for C0 and
 * F8-FF, which become U+FFFD. Made with Python's "surrogateescape", whose bytes are those that
 * table 3-7 does not take, and the vocabulary's own list of byte tokens.
 */
static const char *const invalid[][2] = {
    {"ff", "efbfbd"},
    {"feff", "efbfbdefbfbd"},
    {"80", "80"},
    {"61626380646566", "61626380646566"},
    {"c3", "c3"},
    {"c328", "c328"},
    {"e4b8", "e4b8"},
    {"e4b878", "e4b878"},
    {"f09f98", "f09f98"},
    {"6f6b20f09f98", "6f6b20f09f98"},
    {"c0af", "efbfbdaf"},
    {"e080af", "e080af"},
    {"eda080", "eda080"},
    {"eda0bdedb880", "eda0bdedb880"},
    {"f4908080", "f4908080"},
    {"f888808080", "efbfbd88808080"},
    {"c3a9c3", "c3a9c3"},
    {"61ff62ff63", "61efbfbd62efbfbd63"},
    {"ffffffffffffffffffffffffffffffffffffffff",
     "efbfbdefbfbdefbfbdefbfbdefbfbdefbfbdefbfbdefbfbdefbfbdefbfbd"
     "efbfbdefbfbdefbfbdefbfbdefbfbdefbfbdefbfbdefbfbdefbfbdefbfbd"},
    {"636166e9206c6174696e31", "636166e9206c6174696e31"},
};

static void check_invalid(const struct tokenizer *tok, const char *hex, const char *back_hex)
{
    size_t length, want_length;
    char *text = unhex(hex, &length), *want = unhex(back_hex, &want_length);
    for (int special = 0; special < 2; special++) {
        struct token_list ids = text_encode(tok, text, length, special != 0, false);
        struct buf got = text_decode(tok, &ids);
        if (got.length != want_length || memcmp(got.data, want, want_length) != 0)
            fail_msg("%s came back as %zu bytes, not as %s", hex, got.length, back_hex);
        buf_fini(&got);
        token_list_fini(&ids);
    }
    free(text);
    free(want);
}

static void invalid_bytes_come_back_as_they_were_or_as_replacement_characters(void **state)
{
    (void)state;
    json_t *rows = golden_jsonl("golden/tokenizers/demo_tokens.jsonl");
    struct model *demo = text_open_vocab(golden_demo_model());
    struct model *phi =
        text_open_vocab(SHEAF_TEST_DATA "/golden/tokenizers/ggml-vocab-phi-3.gguf");
    struct model *gpt =
        text_open_vocab(SHEAF_TEST_DATA "/golden/tokenizers/ggml-vocab-gpt-2.gguf");
    size_t n = 0;
    for (size_t i = 0; i < json_array_size(rows); i++) {
        const json_t *row = json_array_get(rows, i);
        if (json_object_get(row, "text"))
            continue;
        const char *hex = json_string_value(json_object_get(row, "hex"));
        assert_true(n < sizeof invalid / sizeof *invalid);
        assert_string_equal(hex, invalid[n][0]);
        check_invalid(demo->tokenizer, hex, invalid[n][1]);
        check_invalid(phi->tokenizer, hex, hex); /* these two have all 256 bytes */
        check_invalid(gpt->tokenizer, hex, hex);
        n++;
    }
    assert_int_equal(n, sizeof invalid / sizeof *invalid);
    printf("figure: %zu invalid strings by the written rule on 3 vocabularies\n", n);
    model_close(demo);
    model_close(phi);
    model_close(gpt);
    json_decref(rows);
}

static void tiny_models_give_their_text_the_ids_of_another_engine(void **state)
{
    (void)state;
    json_t *root = golden_json("golden/tiny/tiny.json");
    const json_t *models = json_object_get(root, "models");
    size_t n = 0;
    for (size_t i = 0; i < json_array_size(models); i++) {
        const json_t *row = json_array_get(models, i);
        const char *name = json_string_value(json_object_get(row, "model"));
        const char *text = json_string_value(json_object_get(row, "text"));
        char path[4096];
        snprintf(path, sizeof path, "%s/golden/tiny/%s", SHEAF_TEST_DATA, name);
        struct model *m = text_open_vocab(path);
        size_t n_want;
        int32_t *want =
            golden_ids(json_object_get(row, "text_ids_special_true_bos_as_model"), &n_want);
        struct token_list got = text_encode(m->tokenizer, text, strlen(text), true, true);
        text_check_ids(&got, want, n_want, name);
        struct buf back = text_decode(m->tokenizer, &got);
        assert_string_equal(buf_str(&back), text);
        buf_fini(&back);
        token_list_fini(&got);
        free(want);
        model_close(m);
        n++;
    }
    assert_int_equal(n, 12);
    printf("figure: %zu of 12 tiny models' texts equal and back\n", n);
    json_decref(root);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gpt_2_texts_become_the_ids_of_other_tokenizers_and_come_back),
        cmocka_unit_test(phi_3_texts_become_the_ids_of_other_tokenizers_and_come_back),
        cmocka_unit_test(llama_2_texts_too_where_that_vocabulary_is_at_hand),
        cmocka_unit_test(demo_strings_become_the_ids_of_other_tokenizers_and_come_back),
        cmocka_unit_test(invalid_bytes_come_back_as_they_were_or_as_replacement_characters),
        cmocka_unit_test(tiny_models_give_their_text_the_ids_of_another_engine),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
