#include "safetensors_builder.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void st_init(struct st_builder *b)
{
    *b = (struct st_builder){.header = strdup("")};
    if (!b->header)
        abort();
}

void st_fini(struct st_builder *b)
{
    free(b->header);
    free(b->data.data);
    *b = (struct st_builder){0};
}

void st_entry(struct st_builder *b, const char *text)
{
    char *longer;
    if (asprintf(&longer, "%s%s%s", b->header, b->n_entries++ ? "," : "", text) < 0)
        abort();
    free(b->header);
    b->header = longer;
}

void st_tensor_bytes(struct st_builder *b, const char *name, const char *dtype, size_t n_rows,
                     size_t n_cols, const void *bytes, size_t n_bytes)
{
    char rows[32] = "", *entry;
    if (n_rows > 0)
        snprintf(rows, sizeof rows, "%zu,", n_rows);
    const size_t begin = b->data.size;
    b->data.data = realloc(b->data.data, begin + n_bytes + 1);
    if (!b->data.data)
        abort();
    if (n_bytes > 0)
        memcpy(b->data.data + begin, bytes, n_bytes);
    b->data.size += n_bytes;
    if (asprintf(&entry,
                 "\"%s\":{\"dtype\":\"%s\",\"shape\":[%s%zu],\"data_offsets\":[%zu,%zu]}", name,
                 dtype, rows, n_cols, begin, b->data.size) < 0)
        abort();
    st_entry(b, entry);
    free(entry);
}

float small_value(unsigned seed, size_t index)
{
    return (float)((int)((seed * 31 + index * 7 + index / 13) % 127) - 63) / 64;
}

/* n / 64 with |n| < 64: the exponent is never below float16's smallest. */
static uint16_t half_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if (value == 0)
        return 0;
    const uint32_t exponent = (bits >> 23 & 0xff) - 127 + 15;
    return (uint16_t)((bits >> 31) << 15 | exponent << 10 | (bits >> 13 & 0x3ff));
}

static size_t put_element(const char *dtype, unsigned seed, size_t index, uint8_t *to)
{
    const float value = small_value(seed, index);
    const int64_t integer = (int64_t)((seed + index) % 320);
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    uint64_t word = (uint64_t)integer;
    size_t n = 8;
    if (strcmp(dtype, "I32") == 0)
        n = 4;
    else if (strcmp(dtype, "F32") == 0)
        word = bits, n = 4;
    else if (strcmp(dtype, "BF16") == 0)
        word = bits >> 16, n = 2;
    else if (strcmp(dtype, "F16") == 0)
        word = half_of(value), n = 2;
    for (size_t i = 0; i < n; i++)
        to[i] = (uint8_t)(word >> (8 * i));
    return n;
}

void st_tensor(struct st_builder *b, const char *name, const char *dtype, size_t n_rows,
               size_t n_cols, unsigned seed)
{
    const size_t n_elems = (n_rows ? n_rows : 1) * n_cols;
    uint8_t *bytes = malloc(8 * n_elems + 1);
    if (!bytes)
        abort();
    size_t n = 0;
    for (size_t i = 0; i < n_elems; i++)
        n += put_element(dtype, seed, i, bytes + n);
    st_tensor_bytes(b, name, dtype, n_rows, n_cols, bytes, n);
    free(bytes);
}

struct gguf_bytes st_take(struct st_builder *b)
{
    const size_t entries = strlen(b->header);
    const uint64_t length = b->has_length ? b->length : entries + 2;
    struct gguf_bytes file = {.size = 8 + entries + 2 + b->data.size};
    file.data = malloc(file.size);
    if (!file.data)
        abort();
    for (size_t i = 0; i < 8; i++)
        file.data[i] = (uint8_t)(length >> (8 * i));
    file.data[8] = '{';
    memcpy(file.data + 9, b->header, entries);
    file.data[9 + entries] = '}';
    if (b->data.size > 0)
        memcpy(file.data + 10 + entries, b->data.data, b->data.size);
    st_fini(b);
    return file;
}
