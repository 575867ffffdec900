/* safetensors files: what is there is read, what breaks the format is refused by name. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/limits.h"
#include "model/safetensors.h"
#include "safetensors_builder.h"

static struct gguf_bytes build_sample(void)
{
    struct st_builder b;
    st_init(&b);
    st_entry(&b, "\"__metadata__\":{\"format\":\"pt\"}");
    st_tensor(&b, "f32", "F32", 3, 5, 1);
    st_tensor(&b, "f16", "F16", 3, 5, 2);
    st_tensor(&b, "bf16", "BF16", 0, 7, 3);
    st_tensor(&b, "ids", "I64", 0, 4, 4);
    st_tensor(&b, "short ids", "I32", 0, 4, 5);
    st_tensor_bytes(&b, "other", "F8_E4M3", 0, 3, "abc", 3);
    st_tensor_bytes(&b, "empty", "F32", 0, 0, "", 0);
    return st_take(&b);
}

static struct safetensors *parse(const struct gguf_bytes *file)
{
    struct safetensors *s = NULL;
    struct err e = {0};
    if (safetensors_parse(file->data, file->size, &s, &e) != 0)
        fail_msg("%s", e.text);
    return s;
}

static const struct safetensors_tensor *find(const struct safetensors *s, const char *name)
{
    for (size_t i = 0; i < safetensors_count(s); i++) {
        if (strcmp(safetensors_at(s, i)->name, name) == 0)
            return safetensors_at(s, i);
    }
    fail_msg("no tensor %s", name);
    return NULL;
}

static void tensors_are_read_whole_and_in_part(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        size_t n_dims, n_rows, n_cols;
        unsigned seed;
    } floats[] = {{"f32", 2, 3, 5, 1}, {"f16", 2, 3, 5, 2}, {"bf16", 1, 7, 1, 3}};
    struct gguf_bytes file = build_sample();
    struct safetensors *s = parse(&file);
    assert_int_equal(safetensors_count(s), 7);
    for (size_t k = 0; k < sizeof floats / sizeof *floats; k++) {
        const struct safetensors_tensor *t = find(s, floats[k].name);
        const size_t n = floats[k].n_rows * floats[k].n_cols;
        assert_int_equal(t->n_dims, floats[k].n_dims);
        assert_int_equal(t->dims[0], floats[k].n_rows);
        assert_int_equal(t->n_elems, n);
        for (size_t first = 0; first < n; first++) {
            float got[15];
            assert_int_equal(safetensors_read_floats(s, t, first, got, n - first, NULL), 0);
            for (size_t i = first; i < n; i++)
                assert_true(got[i - first] == small_value(floats[k].seed, i));
        }
    }
    int64_t ids[4];
    assert_int_equal(safetensors_read_integers(s, find(s, "ids"), 1, ids, 3, NULL), 0);
    assert_int_equal(ids[0], 5);
    assert_int_equal(ids[2], 7);
    assert_int_equal(safetensors_read_integers(s, find(s, "short ids"), 0, ids, 4, NULL), 0);
    assert_int_equal(ids[3], 8);
    assert_int_equal(find(s, "other")->type, SAFETENSORS_OTHER);
    assert_string_equal(find(s, "other")->type_name, "F8_E4M3");
    assert_null(safetensors_at(s, 7));
    safetensors_close(s);
    free(file.data);
}

/* More than the chunk in which halves are read. */
static void a_long_tensor_is_read(void **state)
{
    (void)state;
    enum { N = 100003 };
    struct st_builder b;
    st_init(&b);
    st_tensor(&b, "long", "BF16", 0, N, 9);
    st_tensor(&b, "ids", "I32", 0, N, 9);
    struct gguf_bytes file = st_take(&b);
    struct safetensors *s = parse(&file);
    float *floats = malloc(N * sizeof *floats);
    int64_t *ids = malloc(N * sizeof *ids);
    assert_true(floats && ids);
    assert_int_equal(safetensors_read_floats(s, find(s, "long"), 0, floats, N, NULL), 0);
    assert_int_equal(safetensors_read_integers(s, find(s, "ids"), 0, ids, N, NULL), 0);
    for (size_t i = 0; i < N; i++) {
        assert_true(floats[i] == small_value(9, i));
        assert_int_equal(ids[i], (9 + i) % 320);
    }
    free(ids);
    free(floats);
    safetensors_close(s);
    free(file.data);
}

/* ------------------------------------------------------------------ what is refused */

#define T(name, dtype, shape, offsets)                                                         \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}"

/* Each with 16 bytes of data. */
static const struct {
    const char *entries;
    const char *text;
} malformed[] = {
    {"", "the last 16 bytes"},
    {"x", "of the header"},
    {T("a", "F32", "[2]", "[0,8]"), "the last 8 bytes of the file belong to no tensor"},
    {T("a", "F32", "[2]", "[8,16]"), "8 bytes before tensor a belong to none"},
    {T("a", "F32", "[4]", "[0,16]") "," T("a", "F32", "[0]", "[0,0]"), "uplicate object key"},
    {T("a", "F32", "[4]", "[0,16]") "," T("b", "F32", "[2]", "[8,16]"),
     "tensors a and b overlap"},
    {T("a", "F32", "[4]", "[0,16]") "," T("b", "F32", "[4]", "[0,16]"),
     "tensors a and b overlap"},
    {T("a", "F32", "[2]", "[0,8]") "," T("b", "F32", "[1]", "[12,16]"),
     "4 bytes before tensor b"},
    {T("a", "F32", "[4]", "[16,0]"), "tensor a ends at 0, before its begin at 16"},
    {T("a", "F32", "[4]", "[0,17]"), "tensor a ends at 17 of 16 bytes"},
    {T("a", "F32", "[5]", "[0,16]"), "tensor a has 16 bytes, which its shape does not need"},
    {T("a", "BF16", "[4]", "[0,16]"), "tensor a has 16 bytes"},
    {T("a", "F32", "[4611686018427387905]", "[0,4]"), "tensor a has 4 bytes"},
    {T("a", "F32", "[4294967296,4294967296]", "[0,16]"), "tensor a has too many elements"},
    {T("a", "F32", "[1,1,1,1,1,1,1,1,4]", "[0,16]"), "tensor a has 9 dimensions"},
    {T("a", "F32", "[-4]", "[0,16]"), "the shape of tensor a holds what is no count"},
    {T("a", "F32", "[4.0]", "[0,16]"), "the shape of tensor a holds what is no count"},
    {T("a", "F32", "[\"4\"]", "[0,16]"), "the shape of tensor a"},
    {T("a", "F32", "[4]", "[-16,0]"), "the data_offsets of tensor a holds"},
    {T("a", "F32", "[4]", "[0,-1]"), "the data_offsets of tensor a holds"},
    {T("a", "F32", "[4]", "[0,18446744073709551615]"), "too big integer"},
    {T("a", "F32", "[4]", "[0,9223372036854775807]"), "tensor a ends at 9223372036854775807"},
    {T("a", "F32", "[4]", "[0]"), "tensor a has 1 data_offsets, not 2"},
    {T("a", "F32", "[4]", "[0,8,16]"), "tensor a has 3 data_offsets, not 2"},
    {T("a", "F32", "[4]", "{}"), "tensor a does not tell just"},
    {T("a", "F32", "4", "[0,16]"), "tensor a does not tell just"},
    {T("", "F32", "[4]", "[0,16]"), "empty name"},
    {T("a\\n", "F32", "[4]", "[0,16]"), "not printable ASCII"},
    {T("a\xc3\xa9", "F32", "[4]", "[0,16]"), "not printable ASCII"},
    {T("a\xff", "F32", "[4]", "[0,16]"), "of the header"},
    {T("a\\u0000", "F32", "[4]", "[0,16]"), "of the header"},
    {"\"a\":[0,16]", "tensor a does not tell just"},
    {"\"a\":null", "tensor a does not tell just"},
    {"\"a\":{\"dtype\":\"F32\",\"shape\":[4]}", "tensor a does not tell just"},
    {"\"a\":{\"dtype\":4,\"shape\":[4],\"data_offsets\":[0,16]}",
     "tensor a does not tell just"},
    {"\"a\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0,16],\"x\":1}",
     "tensor a does not tell just"},
    {"\"a\":{\"dtype\":\"F32\",\"shape\":[[4]],\"data_offsets\":[0,16]}", "nesting deeper"},
    {"\"a\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0,000000000000000000016]}",
     "a number of more than"},
};

static void check_refused(const struct gguf_bytes *file, const char *text, const char *what)
{
    struct safetensors *s = NULL;
    struct err e = {0};
    if (safetensors_parse(file->data, file->size, &s, &e) != ERR_FORMAT)
        fail_msg("%s: not refused (%s)", what, e.text);
    assert_null(s);
    if (!strstr(e.text, text))
        fail_msg("%s: said %s", what, e.text);
}

static void what_breaks_the_format_is_refused_by_name(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof malformed / sizeof *malformed; i++) {
        struct st_builder b;
        st_init(&b);
        st_entry(&b, malformed[i].entries);
        b.data.data = calloc(1, 16);
        b.data.size = 16;
        struct gguf_bytes file = st_take(&b);
        check_refused(&file, malformed[i].text, malformed[i].entries);
        free(file.data);
    }
}

static void the_length_of_the_header_is_held_against_the_file(void **state)
{
    (void)state;
    static const uint64_t lengths[] = {0,
                                       1,
                                       1000,
                                       SAFETENSORS_HEADER_BYTES_MAX,
                                       SAFETENSORS_HEADER_BYTES_MAX + 1ull,
                                       UINT64_C(1) << 32,
                                       UINT64_C(1) << 63,
                                       UINT64_MAX - 7,
                                       UINT64_MAX};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        struct st_builder b;
        st_init(&b);
        st_tensor(&b, "a", "F32", 0, 4, 1);
        b.has_length = true;
        b.length = lengths[i];
        struct gguf_bytes file = st_take(&b);
        check_refused(&file, "", "length");
        free(file.data);
    }
}

static void nesting_to_any_depth_is_refused(void **state)
{
    (void)state;
    enum { DEPTH = 1000000 };
    char *deep = malloc(DEPTH + 8);
    assert_non_null(deep);
    memcpy(deep, "\"a\":", 4);
    for (int kind = 0; kind < 2; kind++) {
        memset(deep + 4, kind ? '[' : '{', DEPTH);
        deep[DEPTH + 4] = '\0';
        struct st_builder b;
        st_init(&b);
        st_entry(&b, deep);
        struct gguf_bytes file = st_take(&b);
        check_refused(&file, "nesting deeper than 3 levels", "deep");
        free(file.data);
    }
    free(deep);
}

static void a_name_has_a_bounded_length(void **state)
{
    (void)state;
    char name[SAFETENSORS_NAME_BYTES_MAX + 2];
    memset(name, 'n', sizeof name - 1);
    name[sizeof name - 1] = '\0';
    struct st_builder b;
    st_init(&b);
    st_tensor(&b, name, "F32", 0, 4, 1);
    struct gguf_bytes file = st_take(&b);
    check_refused(&file, "name has 256 bytes", "long name");
    free(file.data);
}

static void a_file_cut_anywhere_is_refused(void **state)
{
    (void)state;
    struct gguf_bytes file = build_sample();
    for (size_t n = 0; n < file.size; n++) {
        struct gguf_bytes cut = {malloc(n ? n : 1), n};
        assert_non_null(cut.data);
        memcpy(cut.data, file.data, n);
        check_refused(&cut, "", "cut");
        free(cut.data);
    }
    free(file.data);
}

/* Nothing is promised but that no read leaves the bytes, which sanitizers see. */
static void damage_is_survived(void **state)
{
    (void)state;
    struct gguf_bytes file = build_sample();
    uint32_t random = 12345;
    size_t accepted = 0;
    for (int round = 0; round < 20000; round++) {
        struct gguf_bytes copy = {malloc(file.size), file.size};
        assert_non_null(copy.data);
        memcpy(copy.data, file.data, file.size);
        for (int k = 0; k < 3; k++) {
            random = random * 1664525 + 1013904223;
            copy.data[(random >> 8) % 600 % file.size] = (uint8_t)random;
        }
        struct safetensors *s = NULL;
        if (safetensors_parse(copy.data, copy.size, &s, NULL) == 0) {
            accepted++;
            for (size_t i = 0; i < safetensors_count(s); i++) {
                const struct safetensors_tensor *t = safetensors_at(s, i);
                float out[64];
                if (t->type <= SAFETENSORS_BF16 && t->n_elems <= 64)
                    assert_int_equal(
                        safetensors_read_floats(s, t, 0, out, (size_t)t->n_elems, NULL), 0);
            }
        }
        safetensors_close(s);
        free(copy.data);
    }
    free(file.data);
    assert_in_range(accepted, 1, 20000);
}

/* ------------------------------------------------------------------ files */

static void write_file(const char *path, const struct gguf_bytes *file)
{
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(file->data, 1, file->size, f), file->size);
    assert_int_equal(fclose(f), 0);
}

static void a_file_that_shrinks_after_opening_is_an_error(void **state)
{
    (void)state;
    char path[] = "/tmp/sheaf-st-XXXXXX";
    close(mkstemp(path));
    struct gguf_bytes file = build_sample();
    write_file(path, &file);
    struct safetensors *s = NULL;
    assert_int_equal(safetensors_open(path, &s, NULL), 0);
    float out[15];
    assert_int_equal(safetensors_read_floats(s, find(s, "f32"), 0, out, 15, NULL), 0);
    assert_true(out[14] == small_value(1, 14));
    assert_int_equal(truncate(path, 100), 0);
    struct err e = {0};
    assert_int_equal(safetensors_read_floats(s, find(s, "f32"), 0, out, 15, &e), ERR_IO);
    assert_non_null(strstr(e.text, "became shorter"));
    safetensors_close(s);
    free(file.data);
    unlink(path);
}

static void errors_of_files_begin_with_the_path(void **state)
{
    (void)state;
    char path[] = "/tmp/sheaf-st-XXXXXX";
    close(mkstemp(path));
    const struct gguf_bytes junk = {(uint8_t *)"\2\0\0\0\0\0\0\0[]", 10};
    write_file(path, &junk);
    struct safetensors *s = NULL;
    struct err e = {0};
    assert_int_equal(safetensors_open(path, &s, &e), ERR_FORMAT);
    assert_ptr_equal(strstr(e.text, path), e.text);
    assert_non_null(strstr(e.text, "not a safetensors file"));
    unlink(path);
    err_clear(&e);
    assert_int_equal(safetensors_open(path, &s, &e), ERR_NOTFOUND);
    err_clear(&e);
    assert_int_equal(safetensors_open("/tmp", &s, &e), ERR_IO);
    assert_non_null(strstr(e.text, "is a folder"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tensors_are_read_whole_and_in_part),
        cmocka_unit_test(a_long_tensor_is_read),
        cmocka_unit_test(what_breaks_the_format_is_refused_by_name),
        cmocka_unit_test(the_length_of_the_header_is_held_against_the_file),
        cmocka_unit_test(nesting_to_any_depth_is_refused),
        cmocka_unit_test(a_name_has_a_bounded_length),
        cmocka_unit_test(a_file_cut_anywhere_is_refused),
        cmocka_unit_test(damage_is_survived),
        cmocka_unit_test(a_file_that_shrinks_after_opening_is_an_error),
        cmocka_unit_test(errors_of_files_begin_with_the_path),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
