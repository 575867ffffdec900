/*
 * Malformed model files: each is an error whose text names what is wrong, none is a crash.
 * The cases follow the published advisories and fuzz findings about other GGUF readers and the
 * rules of the format.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "gguf_builder.h"
#include "model/gguf.h"

struct malformed {
    const char *name;
    void (*build)(struct gguf_builder *b, uint64_t value);
    uint64_t value; /* given to build */
    int code;
    const char *text; /* a part of the error's sentence */
};

static const uint64_t vector_dims[4] = {8, 1, 1, 1};

/* ------------------------------------------------------------------ header */

static void set_version(struct gguf_builder *b, uint64_t version)
{
    b->version = (uint32_t)version;
}

static void set_magic(struct gguf_builder *b, uint64_t value)
{
    (void)value;
    b->magic = "GGML";
}

static void set_n_kv(struct gguf_builder *b, uint64_t n)
{
    builder_u32(b, "a", 1);
    b->n_kv = n;
}

static void set_n_tensors(struct gguf_builder *b, uint64_t n)
{
    builder_u32(b, "a", 1);
    b->n_tensors = n;
}

/* Enough bytes behind the header for any count that would be believed. */
static void add_filler(struct gguf_builder *b)
{
    const size_t n = 2u << 20;
    char *filler = calloc(n, 1);
    assert_non_null(filler);
    builder_bytes(b, "filler", filler, n);
    free(filler);
}

static void n_kv_with_bytes(struct gguf_builder *b, uint64_t n)
{
    add_filler(b);
    b->n_kv = n;
}

static void n_tensors_with_bytes(struct gguf_builder *b, uint64_t n)
{
    add_filler(b);
    b->n_tensors = n;
}

/* ------------------------------------------------------------------ keys */

static void key_length(struct gguf_builder *b, uint64_t length)
{
    builder_kv_u64(b, length);
    builder_kv_append(b, "12345678901234567890", 20);
    b->n_kv = 1;
}

static void key_text(struct gguf_builder *b, uint64_t byte)
{
    char key[] = "general.x";
    key[7] = (char)byte;
    builder_u32(b, key, 1);
}

static void long_key(struct gguf_builder *b, uint64_t length)
{
    char key[512];
    memset(key, 'k', sizeof key);
    key[length] = '\0';
    builder_u32(b, key, 1);
}

static void same_key_twice(struct gguf_builder *b, uint64_t value)
{
    (void)value;
    builder_u32(b, "llama.block_count", 1);
    builder_string(b, "between", "them");
    builder_u64(b, "llama.block_count", 1);
}

static void key_type(struct gguf_builder *b, uint64_t type)
{
    builder_raw(b, "odd.type", (uint32_t)type, "12345678", 8);
}

static void key_value_cut(struct gguf_builder *b, uint64_t type)
{
    builder_raw(b, "cut.value", (uint32_t)type, NULL, 0);
}

static void key_without_type(struct gguf_builder *b, uint64_t value)
{
    (void)value;
    builder_kv_u64(b, 8);
    builder_kv_append(b, "no.type!..", 10);
    b->n_kv = 1;
}

static void bool_byte(struct gguf_builder *b, uint64_t byte)
{
    const uint8_t value = (uint8_t)byte;
    builder_raw(b, "truth", BUILD_BOOL, &value, 1);
}

static void bool_array(struct gguf_builder *b, uint64_t byte)
{
    const uint8_t values[3] = {0, 1, (uint8_t)byte};
    builder_raw(b, "truths", BUILD_ARRAY, NULL, 0);
    builder_kv_u32(b, BUILD_BOOL);
    builder_kv_u64(b, 3);
    builder_kv_append(b, values, 3);
}

static void string_length(struct gguf_builder *b, uint64_t length)
{
    builder_raw(b, "text", BUILD_STRING, NULL, 0);
    builder_kv_u64(b, length);
    builder_kv_append(b, "twelve bytes", 12);
}

static void array_of(struct gguf_builder *b, uint64_t type)
{
    builder_raw(b, "items", BUILD_ARRAY, NULL, 0);
    builder_kv_u32(b, (uint32_t)type);
    builder_kv_u64(b, 1);
    builder_kv_append(b, "1234567890123456", 16);
}

static void array_cut_in_type(struct gguf_builder *b, uint64_t value)
{
    (void)value;
    builder_raw(b, "items", BUILD_ARRAY, "123", 3);
}

static void add_array_count(struct gguf_builder *b, uint32_t type, uint64_t count)
{
    builder_raw(b, "items", BUILD_ARRAY, NULL, 0);
    builder_kv_u32(b, type);
    builder_kv_u64(b, count);
    builder_kv_append(b, "1234567890123456", 16);
}

static void u8_array_count(struct gguf_builder *b, uint64_t count)
{
    add_array_count(b, BUILD_U8, count);
}

static void u64_array_count(struct gguf_builder *b, uint64_t count)
{
    add_array_count(b, BUILD_U64, count);
}

static void string_array_count(struct gguf_builder *b, uint64_t count)
{
    add_array_count(b, BUILD_STRING, count);
}

static void string_array_item(struct gguf_builder *b, uint64_t length)
{
    builder_raw(b, "items", BUILD_ARRAY, NULL, 0);
    builder_kv_u32(b, BUILD_STRING);
    builder_kv_u64(b, 2);
    builder_kv_u64(b, 1);
    builder_kv_append(b, "x", 1);
    builder_kv_u64(b, length);
    builder_kv_append(b, "12345678", 8);
}

/* ------------------------------------------------------------------ alignment */

static void alignment(struct gguf_builder *b, uint64_t value)
{
    builder_u32(b, "general.alignment", (uint32_t)value);
    builder_tensor(b, "t", 0, 1, vector_dims, 32);
}

static void alignment_is_u64(struct gguf_builder *b, uint64_t value)
{
    builder_u64(b, "general.alignment", value);
}

static void alignment_is_string(struct gguf_builder *b, uint64_t value)
{
    (void)value;
    builder_string(b, "general.alignment", "32");
}

/* ------------------------------------------------------------------ tensors */

static void tensor_name_length(struct gguf_builder *b, uint64_t length)
{
    char name[128];
    memset(name, 't', sizeof name);
    name[length] = '\0';
    builder_tensor(b, name, 0, 1, vector_dims, 32);
}

static void tensor_name_text(struct gguf_builder *b, uint64_t byte)
{
    char name[] = "blk_0";
    name[3] = (char)byte;
    builder_tensor(b, name, 0, 1, vector_dims, 32);
}

static void same_tensor_twice(struct gguf_builder *b, uint64_t value)
{
    (void)value;
    builder_tensor(b, "output.weight", 0, 1, vector_dims, 32);
    builder_tensor(b, "other.weight", 0, 1, vector_dims, 32);
    builder_tensor(b, "output.weight", 0, 1, vector_dims, 32);
}

static void n_dims(struct gguf_builder *b, uint64_t n)
{
    const uint64_t dims[5] = {1, 1, 1, 1, 1};
    builder_tensor_info(b, "t", 0, (uint32_t)n, dims, n < 5 ? (size_t)n : 5, 0);
    b->data = (struct gguf_bytes){calloc(64, 1), 64};
}

static void first_dim(struct gguf_builder *b, uint64_t dim)
{
    builder_tensor(b, "t", 0, 1, &dim, 32);
}

static void second_dim(struct gguf_builder *b, uint64_t dim)
{
    const uint64_t dims[2] = {8, dim};
    builder_tensor(b, "t", 0, 2, dims, 32);
}

static void square_dims(struct gguf_builder *b, uint64_t dim)
{
    const uint64_t dims[4] = {dim, dim, dim, dim};
    builder_tensor(b, "t", 0, 4, dims, 32);
}

static void tensor_type(struct gguf_builder *b, uint64_t type)
{
    const uint64_t dims[2] = {256, 1};
    builder_tensor(b, "blk.0.ffn_up.weight", (uint32_t)type, 2, dims, 1024);
}

static void q4_0_row(struct gguf_builder *b, uint64_t n_cols)
{
    builder_tensor(b, "t", 2, 1, &n_cols, 1024);
}

static void q4_k_row(struct gguf_builder *b, uint64_t n_cols)
{
    builder_tensor(b, "t", 12, 1, &n_cols, 1024);
}

static void offset(struct gguf_builder *b, uint64_t value)
{
    builder_tensor_info(b, "t", 0, 1, vector_dims, 1, value);
    b->data = (struct gguf_bytes){calloc(64, 1), 64};
}

static void data_bytes(struct gguf_builder *b, uint64_t n)
{
    builder_tensor(b, "whole", 0, 1, vector_dims, 32);
    builder_tensor(b, "short", 0, 1, vector_dims, (size_t)n);
}

static void no_data_section(struct gguf_builder *b, uint64_t value)
{
    (void)value;
    builder_tensor(b, "t", 0, 1, vector_dims, 32);
    b->without_data = true;
}

/* Two sizes whose sum wraps to a small number. */
static void two_huge_tensors(struct gguf_builder *b, uint64_t value)
{
    (void)value;
    const uint64_t dims[2] = {UINT64_C(1) << 40, 256};
    builder_tensor_info(b, "huge.0", 0, 2, dims, 2, 0);
    builder_tensor_info(b, "huge.1", 0, 2, dims, 2, UINT64_C(0x7fffffffffffffc0));
    b->data = (struct gguf_bytes){calloc(64, 1), 64};
}

static void two_tensors_at(struct gguf_builder *b, uint64_t second)
{
    const uint64_t dims[1] = {24};
    builder_tensor_info(b, "low", 0, 1, dims, 1, 0);
    builder_tensor_info(b, "high", 0, 1, dims, 1, second);
    b->data = (struct gguf_bytes){calloc(256, 1), 256};
}

/* What follows the written dims (type 1, offset 0) is read as one more dim of 1. */
static void tensor_list_cut(struct gguf_builder *b, uint64_t n_dims_written)
{
    const uint64_t dims[4] = {1, 1, 1, 1};
    builder_tensor_info(b, "cut", 1, 4, dims, (size_t)n_dims_written, 0);
    b->without_data = true;
}

/* ------------------------------------------------------------------ the table */

#define MAX64 UINT64_MAX

static const struct malformed cases[] = {
    {"other magic", set_magic, 0, ERR_FORMAT, "not a GGUF model file"},
    {"version 0", set_version, 0, ERR_UNSUPPORTED, "version 0 is not known"},
    {"version 1", set_version, 1, ERR_UNSUPPORTED, "version 1 is too old"},
    {"version 4", set_version, 4, ERR_UNSUPPORTED, "version 4 is not known"},
    {"big-endian", set_version, 0x03000000, ERR_UNSUPPORTED, "big-endian"},
    {"all keys there are", set_n_kv, MAX64, ERR_FORMAT, "18446744073709551615 keys"},
    {"a key more than bytes", set_n_kv, 2, ERR_FORMAT, "2 keys"},
    {"a key too many", n_kv_with_bytes, 65537, ERR_FORMAT, "65537 keys"},
    {"a key that is not there", n_kv_with_bytes, 2, ERR_FORMAT, "before key 1"},
    {"all tensors there are", set_n_tensors, MAX64, ERR_FORMAT, "18446744073709551615 tensors"},
    {"a tensor without bytes", set_n_tensors, 1, ERR_FORMAT, "1 tensors"},
    {"a tensor too many", n_tensors_with_bytes, 65537, ERR_FORMAT, "65537 tensors"},
    {"a tensor that is not there", n_tensors_with_bytes, 1, ERR_FORMAT, "before tensor 0"},

    {"empty key", key_length, 0, ERR_FORMAT, "key 0 has an empty name"},
    {"key of 2^64-1 bytes", key_length, MAX64, ERR_FORMAT, "18446744073709551615 bytes"},
    {"key beyond the end", key_length, 21, ERR_FORMAT, "inside the name of key 0"},
    {"key of 257 bytes", long_key, 257, ERR_FORMAT, "257 bytes"},
    {"key with a newline", key_text, '\n', ERR_FORMAT, "not printable ASCII"},
    {"key with DEL", key_text, 0x7f, ERR_FORMAT, "not printable ASCII"},
    {"key with a high byte", key_text, 0xc3, ERR_FORMAT, "not printable ASCII"},
    {"duplicate key", same_key_twice, 0, ERR_FORMAT, "llama.block_count is there twice"},
    {"key without a type", key_without_type, 0, ERR_FORMAT, "inside key no.type!"},
    {"type 13", key_type, 13, ERR_FORMAT, "odd.type has the unknown type 13"},
    {"type 2^32-1", key_type, UINT32_MAX, ERR_FORMAT, "unknown type 4294967295"},
    {"u8 without value", key_value_cut, BUILD_U8, ERR_FORMAT, "inside key cut.value"},
    {"u32 without value", key_value_cut, BUILD_U32, ERR_FORMAT, "inside key cut.value"},
    {"f64 without value", key_value_cut, BUILD_F64, ERR_FORMAT, "inside key cut.value"},
    {"string without length", key_value_cut, BUILD_STRING, ERR_FORMAT, "inside key cut.value"},
    {"array without type", key_value_cut, BUILD_ARRAY, ERR_FORMAT, "inside key cut.value"},
    {"array type cut", array_cut_in_type, 0, ERR_FORMAT, "inside key items"},
    {"truth value 2", bool_byte, 2, ERR_FORMAT, "truth has a truth value"},
    {"truth value 255", bool_byte, 255, ERR_FORMAT, "truth has a truth value"},
    {"truth value 2 in an array", bool_array, 2, ERR_FORMAT, "truths has a truth value"},
    {"string of 2^64-1 bytes", string_length, MAX64, ERR_LIMIT, "18446744073709551615 bytes"},
    {"string over 16 MiB", string_length, (16u << 20) + 1, ERR_LIMIT, "key text"},
    {"string beyond the end", string_length, 13, ERR_FORMAT, "string of key text"},
    {"array of arrays", array_of, BUILD_ARRAY, ERR_UNSUPPORTED, "items is an array of arrays"},
    {"array of type 13", array_of, 13, ERR_FORMAT, "unknown type 13"},
    {"2^60 bytes", u8_array_count, UINT64_C(1) << 60, ERR_LIMIT, "1152921504606846976 items"},
    {"2^24+1 bytes", u8_array_count, (1u << 24) + 1, ERR_LIMIT, "16777217 items"},
    {"17 bytes of 16", u8_array_count, 17, ERR_FORMAT, "inside key items"},
    {"3 u64 of 2", u64_array_count, 3, ERR_FORMAT, "inside key items"},
    {"2^61+1 u64", u64_array_count, (UINT64_C(1) << 61) + 1, ERR_LIMIT, "key items"},
    {"2^60 strings", string_array_count, UINT64_C(1) << 60, ERR_LIMIT, "key items"},
    {"2^24 strings", string_array_count, 1u << 24, ERR_FORMAT, "16777216 strings"},
    {"string of an array too long", string_array_item, 9, ERR_FORMAT, "string of key items"},
    {"string of an array endless", string_array_item, MAX64, ERR_LIMIT, "string of key items"},

    {"alignment 0", alignment, 0, ERR_FORMAT, "general.alignment is 0"},
    {"alignment 4", alignment, 4, ERR_FORMAT, "general.alignment is 4"},
    {"alignment 13", alignment, 13, ERR_FORMAT, "general.alignment is 13"},
    {"alignment 24", alignment, 24, ERR_FORMAT, "general.alignment is 24"},
    {"alignment 2^17", alignment, 1u << 17, ERR_FORMAT, "general.alignment is 131072"},
    {"alignment 2^31", alignment, 1u << 31, ERR_FORMAT, "general.alignment is 2147483648"},
    {"alignment as u64", alignment_is_u64, 32, ERR_FORMAT, "general.alignment is not"},
    {"alignment as string", alignment_is_string, 0, ERR_FORMAT, "general.alignment is not"},

    {"tensor without name", tensor_name_length, 0, ERR_FORMAT, "tensor 0 has an empty name"},
    {"tensor name of 64", tensor_name_length, 64, ERR_FORMAT, "64 bytes, more than 63"},
    {"tensor name with a tab", tensor_name_text, '\t', ERR_FORMAT, "not printable ASCII"},
    {"duplicate tensor", same_tensor_twice, 0, ERR_FORMAT, "output.weight is there twice"},
    {"no dimensions", n_dims, 0, ERR_FORMAT, "tensor t has 0 dimensions"},
    {"five dimensions", n_dims, 5, ERR_FORMAT, "tensor t has 5 dimensions"},
    {"2^32-1 dimensions", n_dims, UINT32_MAX, ERR_FORMAT, "4294967295 dimensions"},
    {"empty dimension", first_dim, 0, ERR_FORMAT, "dimension 0 of tensor t is 0"},
    {"second dimension empty", second_dim, 0, ERR_FORMAT, "dimension 1 of tensor t is 0"},
    {"negative dimension", first_dim, MAX64, ERR_FORMAT, "dimension 0 of tensor t"},
    {"dimension of 2^40+1", second_dim, (UINT64_C(1) << 40) + 1, ERR_FORMAT, "dimension 1"},
    {"product wraps to 0", square_dims, UINT64_C(1) << 32, ERR_FORMAT, "too many elements"},
    {"product over 2^48", square_dims, UINT64_C(1) << 13, ERR_FORMAT, "too many elements"},
    {"removed type 4", tensor_type, 4, ERR_UNSUPPORTED, "blk.0.ffn_up.weight has type"},
    {"activation type Q8_1", tensor_type, 9, ERR_UNSUPPORTED, "(9), which Sheaf does not"},
    {"type Q2_K", tensor_type, 10, ERR_UNSUPPORTED, "type Q2_K (10)"},
    {"type of the future", tensor_type, 1000, ERR_UNSUPPORTED, "(1000)"},
    {"negative type", tensor_type, UINT32_MAX, ERR_UNSUPPORTED, "(4294967295)"},
    {"row of 33 in Q4_0", q4_0_row, 33, ERR_FORMAT, "rows of 33 elements"},
    {"row of 576 in Q4_K", q4_k_row, 576, ERR_FORMAT, "not a multiple of the 256 of Q4_K"},
    {"offset 16", offset, 16, ERR_FORMAT, "begins at 16, not a multiple of 32"},
    {"offset behind the end", offset, 64, ERR_FORMAT, "tensor t (32 bytes at 64)"},
    {"offset 2^63", offset, UINT64_C(1) << 63, ERR_FORMAT, "ends beyond the file"},
    {"offset that wraps", offset, MAX64 - 31, ERR_FORMAT, "ends beyond the file"},
    {"data a byte short", data_bytes, 31, ERR_FORMAT, "tensor short (32 bytes at 32)"},
    {"data missing", data_bytes, 0, ERR_FORMAT, "tensor short"},
    {"no data section", no_data_section, 0, ERR_FORMAT, "ends before the tensor data"},
    {"sizes whose sum wraps", two_huge_tensors, 0, ERR_FORMAT, "tensor huge.0"},
    {"two tensors at one place", two_tensors_at, 0, ERR_FORMAT, "overlap"},
    {"two tensors overlap", two_tensors_at, 64, ERR_FORMAT, "low and high overlap"},
    {"tensor cut in its dims", tensor_list_cut, 0, ERR_FORMAT, "inside tensor cut"},
    {"tensor cut in its type", tensor_list_cut, 3, ERR_FORMAT, "inside tensor cut"},
};

static void every_malformed_file_is_an_error_that_names_it(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct gguf_builder b;
        builder_init(&b);
        cases[i].build(&b, cases[i].value);
        struct gguf_bytes file = builder_take(&b);
        struct gguf *g = NULL;
        struct err e = {0};
        const int code = gguf_parse(file.data, file.size, &g, &e);
        if (code != cases[i].code || g || !strstr(e.text, cases[i].text))
            fail_msg("%s: code %d, text \"%s\"", cases[i].name, code, e.text);
        free(file.data);
    }
}

static void a_file_that_is_something_else_is_told_so(void **state)
{
    (void)state;
    static const struct {
        const char *bytes;
        size_t size;
        const char *text;
    } files[] = {
        {"", 0, "not a GGUF"},
        {"G", 1, "not a GGUF"},
        {"GGU", 3, "not a GGUF"},
        {"GGUF", 4, "ends inside its header"},
        {"GGUF\3\0\0", 7, "ends inside its header"},
        {"GGUF\3\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0", 23, "ends inside its header"},
        {"<!DOCTYPE html><html>", 21, "not a GGUF"},
        {"version https://git-lfs.github.com/spec/v1\n", 43, "Git LFS pointer"},
        {"\x80\x02}q\x00(X\x0a", 8, "not a GGUF"},
    };
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        uint8_t *exact = malloc(files[i].size + (files[i].size == 0));
        assert_non_null(exact);
        memcpy(exact, files[i].bytes, files[i].size);
        struct gguf *g = NULL;
        struct err e = {0};
        if (gguf_parse(exact, files[i].size, &g, &e) != ERR_FORMAT ||
            !strstr(e.text, files[i].text))
            fail_msg("case %zu: %s", i, e.text);
        free(exact);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_malformed_file_is_an_error_that_names_it),
        cmocka_unit_test(a_file_that_is_something_else_is_told_so),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
