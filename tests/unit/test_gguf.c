/* GGUF files that are well formed, what the look-ups say of them, and damage to them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "gguf_builder.h"
#include "gguf_visit.h"
#include "model/gguf.h"

static const uint64_t dims_8[1] = {8}, dims_32_2[2] = {32, 2}, dims_2_2_2_2[4] = {2, 2, 2, 2};

/* One of everything that the format has. */
static struct gguf_bytes build_sample(void)
{
    static const char *const tokens[] = {"<s>", "", "Ġthe"};
    static const int32_t types[] = {3, -1, INT32_MIN};
    static const float scores[] = {0.5f, -1e30f, 0};
    struct gguf_builder b;
    builder_init(&b);
    builder_string(&b, "general.architecture", "llama");
    builder_u32(&b, "llama.block_count", 30);
    builder_u64(&b, "llama.context_length", UINT64_C(1) << 40);
    builder_f32(&b, "llama.attention.layer_norm_rms_epsilon", 0.25f);
    builder_strings(&b, "tokenizer.ggml.tokens", tokens, 3);
    builder_i32s(&b, "tokenizer.ggml.token_type", types, 3);
    builder_f32s(&b, "tokenizer.ggml.scores", scores, 3);
    builder_bool(&b, "tokenizer.ggml.add_bos_token", true);
    builder_i32(&b, "tokenizer.ggml.bos_token_id", -7);
    builder_strings(&b, "tokenizer.ggml.merges", NULL, 0);
    builder_raw(&b, "a", BUILD_I8, "\x80", 1);
    builder_raw(&b, "b", BUILD_U16, "\xfe\xff", 2);
    builder_raw(&b, "c", BUILD_F64, "\0\0\0\0\0\0\xf0\x3f", 8);
    builder_tensor(&b, "vector", 0, 1, dims_8, 32);
    builder_tensor(&b, "matrix", 3, 2, dims_32_2, 40);
    builder_tensor(&b, "cube", 1, 4, dims_2_2_2_2, 32);
    return builder_take(&b);
}

static struct gguf *parse(const struct gguf_bytes *file)
{
    struct gguf *g = NULL;
    struct err e = {0};
    if (gguf_parse(file->data, file->size, &g, &e) != 0)
        fail_msg("%s", e.text);
    return g;
}

/* ------------------------------------------------------------------ what is there is found */

static void scalars_are_found_by_key(void **state)
{
    (void)state;
    struct gguf_bytes file = build_sample();
    struct gguf *g = parse(&file);
    uint64_t count = 0;
    double number = 0;
    bool truth = false;
    struct gguf_str text;
    assert_int_equal(gguf_kv_count(g), 13);
    assert_int_equal(gguf_file_bytes(g), file.size);
    assert_ptr_equal(gguf_file_data(g), file.data);
    assert_int_equal(gguf_u64(g, "llama.block_count", &count, NULL), 0);
    assert_int_equal(count, 30);
    assert_int_equal(gguf_u64(g, "llama.context_length", &count, NULL), 0);
    assert_true(count == UINT64_C(1099511627776));
    assert_int_equal(gguf_u64(g, "b", &count, NULL), 0);
    assert_int_equal(count, 65534);
    assert_int_equal(gguf_f64(g, "llama.attention.layer_norm_rms_epsilon", &number, NULL), 0);
    assert_true(number == 0.25);
    assert_int_equal(gguf_f64(g, "c", &number, NULL), 0);
    assert_true(number == 1.0);
    assert_int_equal(gguf_bool(g, "tokenizer.ggml.add_bos_token", &truth, NULL), 0);
    assert_true(truth);
    assert_int_equal(gguf_string(g, "general.architecture", &text, NULL), 0);
    assert_int_equal(text.length, 5);
    assert_memory_equal(text.data, "llama", 5);
    gguf_close(g);
    free(file.data);
}

static void arrays_are_read_item_by_item(void **state)
{
    (void)state;
    struct gguf_bytes file = build_sample();
    struct gguf *g = parse(&file);
    enum gguf_kind kind;
    size_t count;
    struct gguf_str tokens[3];
    double numbers[3];
    assert_int_equal(gguf_array(g, "tokenizer.ggml.tokens", &kind, &count, NULL), 0);
    assert_int_equal(kind, GGUF_STRING);
    assert_int_equal(count, 3);
    assert_int_equal(gguf_array_strings(g, "tokenizer.ggml.tokens", tokens, 3, NULL), 0);
    assert_int_equal(tokens[0].length, 3);
    assert_int_equal(tokens[1].length, 0);
    assert_int_equal(tokens[2].length, 5);
    assert_memory_equal(tokens[2].data, "\xc4\xa0the", 5);
    assert_int_equal(gguf_array_numbers(g, "tokenizer.ggml.token_type", numbers, 3, NULL), 0);
    assert_true(numbers[0] == 3 && numbers[1] == -1 && numbers[2] == -2147483648.0);
    assert_int_equal(gguf_array_numbers(g, "tokenizer.ggml.scores", numbers, 3, NULL), 0);
    assert_true(numbers[0] == 0.5 && numbers[1] == (double)-1e30f && numbers[2] == 0);
    assert_int_equal(gguf_array(g, "tokenizer.ggml.merges", &kind, &count, NULL), 0);
    assert_int_equal(count, 0);
    gguf_close(g);
    free(file.data);
}

static void tensors_are_found_by_name_and_in_file_order(void **state)
{
    (void)state;
    struct gguf_bytes file = build_sample();
    struct gguf *g = parse(&file);
    assert_int_equal(gguf_tensor_count(g), 3);
    assert_null(gguf_tensor_at(g, 3));
    assert_null(gguf_tensor_find(g, "matri"));
    assert_null(gguf_tensor_find(g, "matrix2"));
    const struct gguf_tensor *t = gguf_tensor_find(g, "matrix");
    assert_ptr_equal(t, gguf_tensor_at(g, 1));
    assert_int_equal(t->type_id, 3);
    assert_int_equal(t->n_dims, 2);
    assert_true(t->dims[0] == 32 && t->dims[1] == 2 && t->dims[2] == 1 && t->dims[3] == 1);
    assert_int_equal(t->bytes, 40); /* two Q4_1 blocks of 20 bytes */
    /* The sections end the file: 32 of the vector, 40 of the matrix and 24 of padding, 32. */
    assert_ptr_equal(t->data, file.data + file.size - 32 - 24 - 40);
    for (size_t i = 0; i < 40; i++)
        assert_int_equal(((const uint8_t *)t->data)[i], (uint8_t)(i * 7 + 1));
    assert_int_equal(gguf_tensor_find(g, "cube")->bytes, 32);
    gguf_close(g);
    free(file.data);
}

static void a_look_up_of_another_type_says_what_is_there(void **state)
{
    (void)state;
    struct gguf_bytes file = build_sample();
    struct gguf *g = parse(&file);
    uint64_t count = 77;
    double number = 77, numbers[4];
    bool truth = false;
    struct gguf_str text = {"kept", 4}, strings[3];
    const struct {
        int got, expected;
    } results[] = {
        {gguf_u64(g, "missing", &count, NULL), ERR_NOTFOUND},
        {gguf_u64(g, "general.architecture", &count, NULL), ERR_FORMAT},
        {gguf_u64(g, "tokenizer.ggml.bos_token_id", &count, NULL), ERR_FORMAT},
        {gguf_u64(g, "a", &count, NULL), ERR_FORMAT},
        {gguf_u64(g, "tokenizer.ggml.add_bos_token", &count, NULL), ERR_FORMAT},
        {gguf_u64(g, "c", &count, NULL), ERR_FORMAT},
        {gguf_f64(g, "llama.block_count", &number, NULL), ERR_FORMAT},
        {gguf_bool(g, "llama.block_count", &truth, NULL), ERR_FORMAT},
        {gguf_string(g, "llama.block_count", &text, NULL), ERR_FORMAT},
        {gguf_string(g, "tokenizer.ggml.tokens", &text, NULL), ERR_FORMAT},
        {gguf_array_strings(g, "tokenizer.ggml.scores", strings, 3, NULL), ERR_FORMAT},
        {gguf_array_strings(g, "tokenizer.ggml.tokens", strings, 2, NULL), ERR_FORMAT},
        {gguf_array_numbers(g, "tokenizer.ggml.tokens", numbers, 3, NULL), ERR_FORMAT},
        {gguf_array_numbers(g, "tokenizer.ggml.scores", numbers, 4, NULL), ERR_FORMAT},
        {gguf_array_numbers(g, "llama.block_count", numbers, 1, NULL), ERR_FORMAT},
        {gguf_array_numbers(g, "missing", numbers, 1, NULL), ERR_NOTFOUND},
    };
    for (size_t i = 0; i < sizeof results / sizeof *results; i++) {
        if (results[i].got != results[i].expected)
            fail_msg("look-up %zu gave %d", i, results[i].got);
    }
    assert_int_equal(count, 77);
    assert_true(number == 77);
    assert_string_equal(text.data, "kept");
    struct err e = {0};
    gguf_u64(g, "general.architecture", &count, &e);
    assert_string_equal(e.text, "the key general.architecture is a string, not a whole number");
    gguf_close(g);
    free(file.data);
}

static void printed_text_is_printable_and_fits(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        size_t length, out_bytes;
        const char *printed;
    } cases[] = {
        {"SmolLM2", 7, 16, "SmolLM2"},
        {"a\0b\n\x1b[2J", 8, 16, "a?b??[2J"},
        {"caf\xc3\xa9!", 6, 16, "caf?!"},
        {"twelve bytes", 12, 7, "twelve"},
        {"", 0, 1, ""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char out[16];
        gguf_str_print((struct gguf_str){cases[i].text, cases[i].length}, out,
                       cases[i].out_bytes);
        assert_string_equal(out, cases[i].printed);
    }
}

/* ------------------------------------------------------------------ what is allowed */

static void a_file_of_nothing_but_a_header_is_valid(void **state)
{
    (void)state;
    for (uint32_t version = 2; version <= 3; version++) {
        struct gguf_builder b;
        builder_init(&b);
        b.version = version;
        struct gguf_bytes file = builder_take(&b);
        struct gguf *g = parse(&file);
        assert_int_equal(file.size, 24);
        assert_int_equal(gguf_kv_count(g) + gguf_tensor_count(g), 0);
        assert_false(gguf_has(g, "general.architecture"));
        assert_null(gguf_tensor_find(g, "t"));
        gguf_close(g);
        free(file.data);
    }
}

static void alignment_moves_the_data_section(void **state)
{
    (void)state;
    for (size_t alignment = 8; alignment <= 65536; alignment *= 2) {
        struct gguf_builder b;
        builder_init(&b);
        b.alignment = alignment;
        builder_u32(&b, "general.alignment", (uint32_t)alignment);
        builder_tensor(&b, "t", 0, 1, dims_8, 32);
        struct gguf_bytes file = builder_take(&b);
        struct gguf *g = parse(&file);
        assert_int_equal(file.size % alignment, 32 % alignment);
        assert_ptr_equal(gguf_tensor_find(g, "t")->data, file.data + file.size - 32);
        gguf_close(g);
        free(file.data);
    }
}

static void tensors_may_lie_in_any_order_with_gaps(void **state)
{
    (void)state;
    struct gguf_builder b;
    builder_init(&b);
    builder_tensor_info(&b, "first", 0, 1, dims_8, 1, 96);
    builder_tensor_info(&b, "second", 0, 1, dims_8, 1, 0);
    b.data = (struct gguf_bytes){calloc(200, 1), 200};
    struct gguf_bytes file = builder_take(&b);
    struct gguf *g = parse(&file);
    assert_ptr_equal(gguf_tensor_find(g, "first")->data, file.data + file.size - 200 + 96);
    assert_ptr_equal(gguf_tensor_find(g, "second")->data, file.data + file.size - 200);
    gguf_close(g);
    free(file.data);
}

static void a_file_at_the_limit_of_counts_opens(void **state)
{
    (void)state;
    const size_t n = 65536;
    struct gguf_builder b;
    builder_init(&b);
    b.kv.data = malloc(n * 21);
    assert_non_null(b.kv.data);
    /* length 8, "k" and 7 digits, type u8, value */
    for (size_t i = 0; i < n; i++) {
        char key[9];
        snprintf(key, sizeof key, "k%07zu", i);
        uint8_t *at = b.kv.data + i * 21;
        memset(at, 0, 21);
        at[0] = 8;
        memcpy(at + 8, key, 8);
        at[20] = (uint8_t)i;
    }
    b.kv.size = n * 21;
    b.n_kv = n;
    struct gguf_bytes file = builder_take(&b);
    struct gguf *g = parse(&file);
    uint64_t value = 0;
    assert_int_equal(gguf_u64(g, "k0065535", &value, NULL), 0);
    assert_int_equal(value, 255);
    gguf_close(g);
    free(file.data);
}

/* ------------------------------------------------------------------ damage */

/* The copy is as long as what is parsed, so that ASan sees a read of one byte more. */
static int visit_copy(const uint8_t *bytes, size_t size)
{
    uint8_t *copy = malloc(size + (size == 0));
    assert_non_null(copy);
    memcpy(copy, bytes, size);
    const int code = gguf_visit_bytes(copy, size, NULL);
    free(copy);
    return code;
}

static void a_file_cut_at_any_byte_is_an_error(void **state)
{
    (void)state;
    struct gguf_bytes file = build_sample();
    assert_int_equal(visit_copy(file.data, file.size), 0);
    for (size_t size = 0; size < file.size; size++) {
        if (visit_copy(file.data, size) == 0)
            fail_msg("%zu of %zu bytes were taken for a whole file", size, file.size);
    }
    free(file.data);
}

static void no_single_changed_byte_crashes(void **state)
{
    (void)state;
    static const uint8_t masks[] = {0x01, 0x02, 0x04, 0x08, 0x10, 0x20, 0x40, 0x80, 0xff, 0x7f};
    struct gguf_bytes file = build_sample();
    size_t n_refused = 0;
    for (size_t i = 0; i < file.size; i++) {
        const uint8_t good = file.data[i];
        for (size_t j = 0; j < sizeof masks; j++) {
            file.data[i] = good ^ masks[j];
            n_refused += visit_copy(file.data, file.size) != 0;
        }
        file.data[i] = good;
    }
    assert_true(n_refused > file.size); /* the damage was looked at */
    free(file.data);
}

/* ------------------------------------------------------------------ files on disk */

static void write_file(const char *path, const void *bytes, size_t size)
{
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, size, f), size);
    assert_int_equal(fclose(f), 0);
}

static void opening_reads_the_same_as_parsing(void **state)
{
    (void)state;
    char path[] = "/tmp/sheaf-gguf-XXXXXX";
    close(mkstemp(path));
    struct gguf_bytes file = build_sample();
    write_file(path, file.data, file.size);
    struct gguf *g = NULL;
    struct err e = {0};
    assert_int_equal(gguf_open(path, &g, &e), 0);
    /* The file may become shorter while it is open. */
    assert_int_equal(truncate(path, 10), 0);
    const struct gguf_tensor *t = gguf_tensor_find(g, "matrix");
    assert_int_equal((uintptr_t)t->data % 32, 0);
    assert_memory_equal(gguf_file_data(g), file.data, file.size);
    gguf_release_data(g, t->data, t->bytes);
    gguf_close(g);
    gguf_close(NULL);
    unlink(path);
    free(file.data);
}

static void a_path_that_is_no_model_file_says_why(void **state)
{
    (void)state;
    char empty[] = "/tmp/sheaf-gguf-XXXXXX", text[] = "/tmp/sheaf-gguf-XXXXXX";
    char fifo[] = "/tmp/sheaf-gguf-XXXXXX";
    close(mkstemp(empty));
    close(mkstemp(text));
    close(mkstemp(fifo));
    unlink(fifo);
    assert_int_equal(mkfifo(fifo, 0600), 0);
    write_file(text, "hello world", 11);
    const struct {
        const char *path;
        int code;
        const char *text;
    } cases[] = {
        {"/no/such/model.gguf", ERR_NOTFOUND, "cannot be opened: No such file"},
        {"/tmp", ERR_IO, "is a folder; name the .gguf file in it"},
        {"/dev/null", ERR_IO, "is not an ordinary file"},
        {fifo, ERR_IO, "is not an ordinary file"},
        {empty, ERR_FORMAT, "is empty; fetch the .gguf file again"},
        {text, ERR_FORMAT, "not a GGUF model file"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct gguf *g = NULL;
        struct err e = {0};
        const int code = gguf_open(cases[i].path, &g, &e);
        if (code != cases[i].code || !strstr(e.text, cases[i].text) ||
            strncmp(e.text, cases[i].path, strlen(cases[i].path)) != 0)
            fail_msg("%s: code %d, text \"%s\"", cases[i].path, code, e.text);
    }
    unlink(empty);
    unlink(text);
    unlink(fifo);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(scalars_are_found_by_key),
        cmocka_unit_test(arrays_are_read_item_by_item),
        cmocka_unit_test(tensors_are_found_by_name_and_in_file_order),
        cmocka_unit_test(a_look_up_of_another_type_says_what_is_there),
        cmocka_unit_test(printed_text_is_printable_and_fits),
        cmocka_unit_test(a_file_of_nothing_but_a_header_is_valid),
        cmocka_unit_test(alignment_moves_the_data_section),
        cmocka_unit_test(tensors_may_lie_in_any_order_with_gaps),
        cmocka_unit_test(a_file_at_the_limit_of_counts_opens),
        cmocka_unit_test(a_file_cut_at_any_byte_is_an_error),
        cmocka_unit_test(no_single_changed_byte_crashes),
        cmocka_unit_test(opening_reads_the_same_as_parsing),
        cmocka_unit_test(a_path_that_is_no_model_file_says_why),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
