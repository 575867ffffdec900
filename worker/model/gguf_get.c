/* Look-ups in a parsed file. */
#include "gguf_int.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

uint32_t gguf_read_u32(const uint8_t *bytes)
{
    return (uint32_t)bytes[0] | (uint32_t)bytes[1] << 8 | (uint32_t)bytes[2] << 16 |
           (uint32_t)bytes[3] << 24;
}

uint64_t gguf_read_u64(const uint8_t *bytes)
{
    return (uint64_t)gguf_read_u32(bytes) | (uint64_t)gguf_read_u32(bytes + 4) << 32;
}

size_t gguf_kind_bytes(enum gguf_kind kind)
{
    switch (kind) {
    case GGUF_U8:
    case GGUF_I8:
    case GGUF_BOOL: return 1;
    case GGUF_U16:
    case GGUF_I16: return 2;
    case GGUF_U32:
    case GGUF_I32:
    case GGUF_F32: return 4;
    case GGUF_U64:
    case GGUF_I64:
    case GGUF_F64: return 8;
    case GGUF_STRING:
    case GGUF_ARRAY: break;
    }
    return 0;
}

static const char *kind_name(enum gguf_kind kind)
{
    static const char *const names[] = {"an 8-bit number", "an 8-bit number", "a 16-bit number",
                                        "a 16-bit number", "a 32-bit number", "a 32-bit number",
                                        "a float",         "a truth value",   "a string",
                                        "an array",        "a 64-bit number", "a 64-bit number",
                                        "a 64-bit float"};
    return names[kind];
}

int gguf_str_compare(struct gguf_str a, struct gguf_str b)
{
    const size_t shorter = a.length < b.length ? a.length : b.length;
    const int order = shorter ? memcmp(a.data, b.data, shorter) : 0;
    return order ? order : (a.length > b.length) - (a.length < b.length);
}

void gguf_str_print(struct gguf_str text, char *out, size_t out_bytes)
{
    size_t n = 0;
    for (size_t i = 0; i < text.length && n + 1 < out_bytes; i++) {
        const unsigned char c = (unsigned char)text.data[i];
        if (c >= 0x80 && c < 0xc0 && i > 0)
            continue; /* a UTF-8 sequence becomes one '?' */
        out[n++] = c >= 0x20 && c <= 0x7e ? (char)c : '?';
    }
    out[n] = '\0';
}

/* ------------------------------------------------------------------ tensors */

size_t gguf_file_bytes(const struct gguf *g)
{
    return g->size;
}

const void *gguf_file_data(const struct gguf *g)
{
    return g->bytes;
}

size_t gguf_kv_count(const struct gguf *g)
{
    return g->n_kv;
}

size_t gguf_tensor_count(const struct gguf *g)
{
    return g->n_tensors;
}

const struct gguf_tensor *gguf_tensor_at(const struct gguf *g, size_t index)
{
    return index < g->n_tensors ? &g->tensors[index] : NULL;
}

static int compare_tensor_name(const void *key, const void *item)
{
    return gguf_str_compare(*(const struct gguf_str *)key,
                            (*(const struct gguf_tensor *const *)item)->name);
}

const struct gguf_tensor *gguf_tensor_find(const struct gguf *g, const char *name)
{
    if (g->n_tensors == 0)
        return NULL;
    const struct gguf_str key = {name, strlen(name)};
    const struct gguf_tensor **found = bsearch(&key, g->tensors_by_name, g->n_tensors,
                                               sizeof *g->tensors_by_name, compare_tensor_name);
    return found ? *found : NULL;
}

/* ------------------------------------------------------------------ keys */

static int compare_kv_key(const void *key, const void *item)
{
    return gguf_str_compare(*(const struct gguf_str *)key, ((const struct gguf_kv *)item)->key);
}

const struct gguf_kv *gguf_kv_find(const struct gguf *g, const char *key)
{
    if (g->n_kv == 0)
        return NULL;
    const struct gguf_str text = {key, strlen(key)};
    return bsearch(&text, g->kv, g->n_kv, sizeof *g->kv, compare_kv_key);
}

bool gguf_has(const struct gguf *g, const char *key)
{
    return gguf_kv_find(g, key) != NULL;
}

static int need_kv(const struct gguf *g, const char *key, const struct gguf_kv **out,
                   struct err *e)
{
    *out = gguf_kv_find(g, key);
    if (!*out)
        return ERR_SET(e, ERR_NOTFOUND, "the key %s is missing", key);
    return 0;
}

static int wrong_kind(const char *key, const struct gguf_kv *kv, const char *wanted,
                      struct err *e)
{
    return ERR_SET(e, ERR_FORMAT, "the key %s is %s, not %s", key, kind_name(kv->kind), wanted);
}

/* One integer as sign and magnitude; false for kinds that are no integers. */
static bool read_integer(enum gguf_kind kind, const uint8_t *bytes, int64_t *negative,
                         uint64_t *value)
{
    int64_t number = 0;
    switch (kind) {
    case GGUF_U8: number = bytes[0]; break;
    case GGUF_I8: number = (int8_t)bytes[0]; break;
    case GGUF_U16: number = bytes[0] | bytes[1] << 8; break;
    case GGUF_I16: number = (int16_t)(bytes[0] | bytes[1] << 8); break;
    case GGUF_U32: number = gguf_read_u32(bytes); break;
    case GGUF_I32: number = (int32_t)gguf_read_u32(bytes); break;
    case GGUF_I64: number = (int64_t)gguf_read_u64(bytes); break;
    case GGUF_U64:
        *negative = 0;
        *value = gguf_read_u64(bytes);
        return true;
    default: return false;
    }
    *negative = number < 0 ? number : 0;
    *value = number < 0 ? 0 : (uint64_t)number;
    return true;
}

static bool read_float(enum gguf_kind kind, const uint8_t *bytes, double *value)
{
    if (kind == GGUF_F32) {
        const uint32_t bits = gguf_read_u32(bytes);
        float number;
        memcpy(&number, &bits, sizeof number);
        *value = (double)number;
    } else if (kind == GGUF_F64) {
        const uint64_t bits = gguf_read_u64(bytes);
        memcpy(value, &bits, sizeof *value);
    } else {
        return false;
    }
    return true;
}

int gguf_u64(const struct gguf *g, const char *key, uint64_t *out, struct err *e)
{
    const struct gguf_kv *kv;
    TRY(need_kv(g, key, &kv, e));
    int64_t negative;
    uint64_t value;
    if (!read_integer(kv->kind, kv->value, &negative, &value))
        return wrong_kind(key, kv, "a whole number", e);
    if (negative < 0)
        return ERR_SET(e, ERR_FORMAT, "the key %s is negative (%lld)", key,
                       (long long)negative);
    *out = value;
    return 0;
}

int gguf_f64(const struct gguf *g, const char *key, double *out, struct err *e)
{
    const struct gguf_kv *kv;
    TRY(need_kv(g, key, &kv, e));
    double value;
    if (!read_float(kv->kind, kv->value, &value))
        return wrong_kind(key, kv, "a float", e);
    *out = value;
    return 0;
}

int gguf_bool(const struct gguf *g, const char *key, bool *out, struct err *e)
{
    const struct gguf_kv *kv;
    TRY(need_kv(g, key, &kv, e));
    if (kv->kind != GGUF_BOOL)
        return wrong_kind(key, kv, "a truth value", e);
    *out = kv->value[0] != 0;
    return 0;
}

int gguf_string(const struct gguf *g, const char *key, struct gguf_str *out, struct err *e)
{
    const struct gguf_kv *kv;
    TRY(need_kv(g, key, &kv, e));
    if (kv->kind != GGUF_STRING)
        return wrong_kind(key, kv, "a string", e);
    *out = (struct gguf_str){(const char *)kv->value, kv->value_bytes};
    return 0;
}

/* ------------------------------------------------------------------ arrays */

static int need_array(const struct gguf *g, const char *key, const struct gguf_kv **out,
                      struct err *e)
{
    TRY(need_kv(g, key, out, e));
    return (*out)->kind == GGUF_ARRAY ? 0 : wrong_kind(key, *out, "an array", e);
}

static int need_items(const struct gguf *g, const char *key, size_t count,
                      const struct gguf_kv **out, struct err *e)
{
    TRY(need_array(g, key, out, e));
    if ((*out)->n_items != count)
        return ERR_SET(e, ERR_FORMAT, "the key %s has %zu items, not %zu", key, (*out)->n_items,
                       count);
    return 0;
}

int gguf_array(const struct gguf *g, const char *key, enum gguf_kind *kind, size_t *count,
               struct err *e)
{
    const struct gguf_kv *kv;
    TRY(need_array(g, key, &kv, e));
    *kind = kv->item_kind;
    *count = kv->n_items;
    return 0;
}

int gguf_array_strings(const struct gguf *g, const char *key, struct gguf_str *out,
                       size_t count, struct err *e)
{
    const struct gguf_kv *kv;
    TRY(need_items(g, key, count, &kv, e));
    if (kv->item_kind != GGUF_STRING)
        return ERR_SET(e, ERR_FORMAT, "the items of the key %s are not strings", key);
    const uint8_t *at = kv->value;
    for (size_t i = 0; i < count; i++) {
        const size_t length = (size_t)gguf_read_u64(at);
        out[i] = (struct gguf_str){(const char *)at + 8, length};
        at += 8 + length;
    }
    return 0;
}

int gguf_array_numbers(const struct gguf *g, const char *key, double *out, size_t count,
                       struct err *e)
{
    const struct gguf_kv *kv;
    TRY(need_items(g, key, count, &kv, e));
    const enum gguf_kind kind = kv->item_kind;
    if (kind == GGUF_STRING || kind == GGUF_BOOL)
        return ERR_SET(e, ERR_FORMAT, "the items of the key %s are not numbers", key);
    for (size_t i = 0; i < count; i++) {
        const uint8_t *item = kv->value + i * gguf_kind_bytes(kind);
        int64_t negative = 0;
        uint64_t value = 0;
        if (read_integer(kind, item, &negative, &value))
            out[i] = negative < 0 ? (double)negative : (double)value;
        else
            read_float(kind, item, &out[i]);
    }
    return 0;
}
