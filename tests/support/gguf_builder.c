#include "gguf_builder.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void append(struct gguf_bytes *to, const void *bytes, size_t length)
{
    if (length == 0)
        return;
    to->data = realloc(to->data, to->size + length);
    if (!to->data)
        abort();
    memcpy(to->data + to->size, bytes, length);
    to->size += length;
}

static void append_word(struct gguf_bytes *to, uint64_t word, size_t length)
{
    for (size_t i = 0; i < length; i++) {
        const uint8_t byte = (uint8_t)(word >> (8 * i));
        append(to, &byte, 1);
    }
}

static void append_string(struct gguf_bytes *to, const void *bytes, size_t length)
{
    append_word(to, length, 8);
    append(to, bytes, length);
}

static void pad(struct gguf_bytes *to, size_t alignment)
{
    while (alignment && to->size % alignment != 0)
        append(to, "", 1);
}

void builder_init(struct gguf_builder *b)
{
    *b = (struct gguf_builder){.magic = "GGUF", .version = 3, .alignment = 32};
}

void builder_fini(struct gguf_builder *b)
{
    free(b->kv.data);
    free(b->infos.data);
    free(b->data.data);
    *b = (struct gguf_builder){0};
}

/* ------------------------------------------------------------------ keys */

void builder_raw(struct gguf_builder *b, const char *key, uint32_t type, const void *value,
                 size_t length)
{
    append_string(&b->kv, key, strlen(key));
    append_word(&b->kv, type, 4);
    append(&b->kv, value, length);
    b->n_kv++;
}

static void add_word(struct gguf_builder *b, const char *key, uint32_t type, uint64_t word,
                     size_t length)
{
    builder_raw(b, key, type, NULL, 0);
    append_word(&b->kv, word, length);
}

void builder_u32(struct gguf_builder *b, const char *key, uint32_t value)
{
    add_word(b, key, BUILD_U32, value, 4);
}

void builder_u64(struct gguf_builder *b, const char *key, uint64_t value)
{
    add_word(b, key, BUILD_U64, value, 8);
}

void builder_i32(struct gguf_builder *b, const char *key, int32_t value)
{
    add_word(b, key, BUILD_I32, (uint32_t)value, 4);
}

void builder_f32(struct gguf_builder *b, const char *key, float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    add_word(b, key, BUILD_F32, bits, 4);
}

void builder_bool(struct gguf_builder *b, const char *key, bool value)
{
    add_word(b, key, BUILD_BOOL, value, 1);
}

void builder_bytes(struct gguf_builder *b, const char *key, const void *value, size_t length)
{
    builder_raw(b, key, BUILD_STRING, NULL, 0);
    append_string(&b->kv, value, length);
}

void builder_string(struct gguf_builder *b, const char *key, const char *value)
{
    builder_bytes(b, key, value, strlen(value));
}

static void add_array(struct gguf_builder *b, const char *key, uint32_t type, size_t n_items)
{
    builder_raw(b, key, BUILD_ARRAY, NULL, 0);
    append_word(&b->kv, type, 4);
    append_word(&b->kv, n_items, 8);
}

void builder_strings(struct gguf_builder *b, const char *key, const char *const *items,
                     size_t n_items)
{
    add_array(b, key, BUILD_STRING, n_items);
    for (size_t i = 0; i < n_items; i++)
        append_string(&b->kv, items[i], strlen(items[i]));
}

void builder_i32s(struct gguf_builder *b, const char *key, const int32_t *items, size_t n_items)
{
    add_array(b, key, BUILD_I32, n_items);
    for (size_t i = 0; i < n_items; i++)
        append_word(&b->kv, (uint32_t)items[i], 4);
}

void builder_f32s(struct gguf_builder *b, const char *key, const float *items, size_t n_items)
{
    add_array(b, key, BUILD_F32, n_items);
    for (size_t i = 0; i < n_items; i++) {
        uint32_t bits;
        memcpy(&bits, &items[i], sizeof bits);
        append_word(&b->kv, bits, 4);
    }
}

void builder_kv_u32(struct gguf_builder *b, uint32_t word)
{
    append_word(&b->kv, word, 4);
}

void builder_kv_u64(struct gguf_builder *b, uint64_t word)
{
    append_word(&b->kv, word, 8);
}

void builder_kv_append(struct gguf_builder *b, const void *bytes, size_t length)
{
    append(&b->kv, bytes, length);
}

/* ------------------------------------------------------------------ tensors */

void builder_tensor_info(struct gguf_builder *b, const char *name, uint32_t type,
                         uint32_t n_dims, const uint64_t *dims, size_t n_dims_written,
                         uint64_t offset)
{
    append_string(&b->infos, name, strlen(name));
    append_word(&b->infos, n_dims, 4);
    for (size_t i = 0; i < n_dims_written; i++)
        append_word(&b->infos, dims[i], 8);
    append_word(&b->infos, type, 4);
    append_word(&b->infos, offset, 8);
    b->n_tensors++;
}

void builder_tensor_data(struct gguf_builder *b, const char *name, uint32_t type, size_t n_dims,
                         const uint64_t *dims, const void *bytes, size_t n_bytes)
{
    pad(&b->data, b->alignment);
    builder_tensor_info(b, name, type, (uint32_t)n_dims, dims, n_dims, b->data.size);
    append(&b->data, bytes, n_bytes);
}

void builder_tensor(struct gguf_builder *b, const char *name, uint32_t type, size_t n_dims,
                    const uint64_t *dims, size_t n_bytes)
{
    uint8_t *pattern = malloc(n_bytes + 1);
    if (!pattern)
        abort();
    for (size_t i = 0; i < n_bytes; i++)
        pattern[i] = (uint8_t)(i * 7 + 1);
    builder_tensor_data(b, name, type, n_dims, dims, pattern, n_bytes);
    free(pattern);
}

/* ------------------------------------------------------------------ files */

struct gguf_bytes builder_take(struct gguf_builder *b)
{
    struct gguf_bytes file = {0};
    append(&file, b->magic, 4);
    append_word(&file, b->version, 4);
    append_word(&file, b->n_tensors, 8);
    append_word(&file, b->n_kv, 8);
    append(&file, b->kv.data, b->kv.size);
    append(&file, b->infos.data, b->infos.size);
    if (b->infos.size > 0 && !b->without_data) {
        pad(&file, b->alignment);
        append(&file, b->data.data, b->data.size);
    }
    builder_fini(b);
    return file;
}

struct gguf_bytes gguf_bytes_read(const char *path)
{
    struct gguf_bytes file = {0};
    FILE *stream = fopen(path, "rb");
    uint8_t chunk[4096];
    size_t n;
    if (!stream) {
        fprintf(stderr, "cannot open %s\n", path);
        abort();
    }
    while ((n = fread(chunk, 1, sizeof chunk, stream)) > 0)
        append(&file, chunk, n);
    fclose(stream);
    return file;
}
