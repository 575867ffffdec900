/*
 * Bytes -> struct gguf. The cursor only ever shrinks: a read first proves that n <= left, and
 * nothing is added to a position. Counts are held against the bytes that their items need at
 * least before memory is taken for them.
 */
#include "gguf_int.h"

#include <stdlib.h>
#include <string.h>

#include "base/limits.h"

enum {
    KV_BYTES_MIN = 13,     /* key length, value type, one byte of value */
    TENSOR_BYTES_MIN = 24, /* name length, number of dims, type, offset */
    ALIGNMENT_DEFAULT = 32,
    ALIGNMENT_MIN = 8,
    ALIGNMENT_MAX = 65536,
    TENSOR_NAME_BYTES_MAX = 63,
};

#define DIM_MAX   (UINT64_C(1) << 40)
#define ELEMS_MAX (UINT64_C(1) << 48)

struct cursor {
    const uint8_t *at;
    size_t left;
};

static const uint8_t *take(struct cursor *c, size_t n)
{
    if (n > c->left)
        return NULL;
    const uint8_t *bytes = c->at;
    c->at += n;
    c->left -= n;
    return bytes;
}

static bool take_u32(struct cursor *c, uint32_t *out)
{
    const uint8_t *bytes = take(c, sizeof *out);
    if (bytes)
        *out = gguf_read_u32(bytes);
    return bytes != NULL;
}

static bool take_u64(struct cursor *c, uint64_t *out)
{
    const uint8_t *bytes = take(c, sizeof *out);
    if (bytes)
        *out = gguf_read_u64(bytes);
    return bytes != NULL;
}

/* A name that is going to be shown, compared and looked up. */
static int take_name(struct cursor *c, const char *what, size_t index, size_t bytes_max,
                     struct gguf_str *out, struct err *e)
{
    uint64_t length;
    if (!take_u64(c, &length))
        return ERR_SET(e, ERR_FORMAT, "the file ends before %s %zu", what, index);
    if (length == 0)
        return ERR_SET(e, ERR_FORMAT, "%s %zu has an empty name", what, index);
    if (length > bytes_max)
        return ERR_SET(e, ERR_FORMAT, "the name of %s %zu has %llu bytes, more than %zu", what,
                       index, (unsigned long long)length, bytes_max);
    const uint8_t *bytes = take(c, (size_t)length);
    if (!bytes)
        return ERR_SET(e, ERR_FORMAT, "the file ends inside the name of %s %zu", what, index);
    for (size_t i = 0; i < length; i++) {
        if (bytes[i] < 0x20 || bytes[i] > 0x7e)
            return ERR_SET(e, ERR_FORMAT, "the name of %s %zu is not printable ASCII", what,
                           index);
    }
    *out = (struct gguf_str){(const char *)bytes, (size_t)length};
    return 0;
}

#define NAME_ARG(text) (int)(text).length, (text).data

/* ------------------------------------------------------------------ key-value list */

static int take_string(struct cursor *c, struct gguf_str key, struct gguf_str *out,
                       struct err *e)
{
    uint64_t length;
    if (!take_u64(c, &length))
        return ERR_SET(e, ERR_FORMAT, "the file ends inside key %.*s", NAME_ARG(key));
    if (length > GGUF_STRING_BYTES_MAX)
        return ERR_SET(e, ERR_LIMIT, "a string of key %.*s has %llu bytes, more than %u",
                       NAME_ARG(key), (unsigned long long)length, GGUF_STRING_BYTES_MAX);
    const uint8_t *bytes = take(c, (size_t)length);
    if (!bytes)
        return ERR_SET(e, ERR_FORMAT, "the file ends inside a string of key %.*s",
                       NAME_ARG(key));
    *out = (struct gguf_str){(const char *)bytes, (size_t)length};
    return 0;
}

static int take_scalars(struct cursor *c, struct gguf_str key, enum gguf_kind kind,
                        size_t n_items, struct gguf_kv *kv, struct err *e)
{
    size_t bytes;
    if (__builtin_mul_overflow(n_items, gguf_kind_bytes(kind), &bytes) || bytes > c->left)
        return ERR_SET(e, ERR_FORMAT, "the file ends inside key %.*s", NAME_ARG(key));
    kv->value = take(c, bytes);
    kv->value_bytes = bytes;
    for (size_t i = 0; kind == GGUF_BOOL && i < n_items; i++) {
        if (kv->value[i] > 1)
            return ERR_SET(e, ERR_FORMAT, "key %.*s has a truth value that is neither 0 nor 1",
                           NAME_ARG(key));
    }
    return 0;
}

static int take_strings(struct cursor *c, struct gguf_str key, size_t n_items,
                        struct gguf_kv *kv, struct err *e)
{
    if (n_items > c->left / sizeof(uint64_t))
        return ERR_SET(e, ERR_FORMAT, "key %.*s has %zu strings, more than the file can hold",
                       NAME_ARG(key), n_items);
    kv->value = c->at;
    const size_t left = c->left;
    for (size_t i = 0; i < n_items; i++) {
        struct gguf_str item;
        TRY(take_string(c, key, &item, e));
    }
    kv->value_bytes = left - c->left;
    return 0;
}

static int take_array(struct cursor *c, struct gguf_str key, struct gguf_kv *kv, struct err *e)
{
    uint32_t kind;
    uint64_t n_items;
    if (!take_u32(c, &kind) || !take_u64(c, &n_items))
        return ERR_SET(e, ERR_FORMAT, "the file ends inside key %.*s", NAME_ARG(key));
    if (kind == GGUF_ARRAY)
        return ERR_SET(e, ERR_UNSUPPORTED, "key %.*s is an array of arrays", NAME_ARG(key));
    if (kind > GGUF_F64)
        return ERR_SET(e, ERR_FORMAT, "key %.*s is an array of the unknown type %u",
                       NAME_ARG(key), kind);
    if (n_items > GGUF_ARRAY_ITEMS_MAX)
        return ERR_SET(e, ERR_LIMIT, "key %.*s has %llu items, more than %u", NAME_ARG(key),
                       (unsigned long long)n_items, GGUF_ARRAY_ITEMS_MAX);
    kv->item_kind = (enum gguf_kind)kind;
    kv->n_items = (size_t)n_items;
    return kind == GGUF_STRING ? take_strings(c, key, kv->n_items, kv, e)
                               : take_scalars(c, key, kv->item_kind, kv->n_items, kv, e);
}

static int take_kv(struct cursor *c, size_t index, struct gguf_kv *kv, struct err *e)
{
    TRY(take_name(c, "key", index, GGUF_KEY_BYTES_MAX, &kv->key, e));
    uint32_t kind;
    if (!take_u32(c, &kind))
        return ERR_SET(e, ERR_FORMAT, "the file ends inside key %.*s", NAME_ARG(kv->key));
    if (kind > GGUF_F64)
        return ERR_SET(e, ERR_FORMAT, "key %.*s has the unknown type %u", NAME_ARG(kv->key),
                       kind);
    kv->kind = (enum gguf_kind)kind;
    if (kind == GGUF_ARRAY)
        return take_array(c, kv->key, kv, e);
    if (kind != GGUF_STRING)
        return take_scalars(c, kv->key, kv->kind, 1, kv, e);
    struct gguf_str text;
    TRY(take_string(c, kv->key, &text, e));
    kv->value = (const uint8_t *)text.data;
    kv->value_bytes = text.length;
    return 0;
}

static int compare_kv(const void *a, const void *b)
{
    return gguf_str_compare(((const struct gguf_kv *)a)->key, ((const struct gguf_kv *)b)->key);
}

static int take_kv_list(struct cursor *c, struct gguf *g, struct err *e)
{
    if (g->n_kv == 0)
        return 0;
    g->kv = calloc(g->n_kv, sizeof *g->kv);
    if (!g->kv)
        return ERR_SET(e, ERR_NOMEM, "out of memory for %zu keys", g->n_kv);
    for (size_t i = 0; i < g->n_kv; i++)
        TRY(take_kv(c, i, &g->kv[i], e));
    qsort(g->kv, g->n_kv, sizeof *g->kv, compare_kv);
    for (size_t i = 1; i < g->n_kv; i++) {
        if (compare_kv(&g->kv[i - 1], &g->kv[i]) == 0)
            return ERR_SET(e, ERR_FORMAT, "key %.*s is there twice", NAME_ARG(g->kv[i].key));
    }
    return 0;
}

static int find_alignment(const struct gguf *g, size_t *out, struct err *e)
{
    *out = ALIGNMENT_DEFAULT;
    const struct gguf_kv *kv = gguf_kv_find(g, "general.alignment");
    if (!kv)
        return 0;
    if (kv->kind != GGUF_U32)
        return ERR_SET(e, ERR_FORMAT, "general.alignment is not an unsigned 32-bit number");
    const uint32_t alignment = gguf_read_u32(kv->value);
    if (alignment < ALIGNMENT_MIN || alignment > ALIGNMENT_MAX ||
        (alignment & (alignment - 1)) != 0)
        return ERR_SET(e, ERR_FORMAT,
                       "general.alignment is %u, not a power of two from %d to %d", alignment,
                       ALIGNMENT_MIN, ALIGNMENT_MAX);
    *out = alignment;
    return 0;
}

/* ------------------------------------------------------------------ tensor list */

static int take_dims(struct cursor *c, struct gguf_tensor *t, struct err *e)
{
    uint32_t n_dims;
    if (!take_u32(c, &n_dims))
        return ERR_SET(e, ERR_FORMAT, "the file ends inside tensor %.*s", NAME_ARG(t->name));
    if (n_dims < 1 || n_dims > 4)
        return ERR_SET(e, ERR_FORMAT, "tensor %.*s has %u dimensions, not 1 to 4",
                       NAME_ARG(t->name), n_dims);
    t->n_dims = n_dims;
    uint64_t n_elems = 1;
    for (size_t i = 0; i < 4; i++) {
        t->dims[i] = 1;
        if (i < n_dims && !take_u64(c, &t->dims[i]))
            return ERR_SET(e, ERR_FORMAT, "the file ends inside tensor %.*s",
                           NAME_ARG(t->name));
        if (t->dims[i] < 1 || t->dims[i] > DIM_MAX)
            return ERR_SET(e, ERR_FORMAT, "dimension %zu of tensor %.*s is %llu", i,
                           NAME_ARG(t->name), (unsigned long long)t->dims[i]);
        if (__builtin_mul_overflow(n_elems, t->dims[i], &n_elems) || n_elems > ELEMS_MAX)
            return ERR_SET(e, ERR_FORMAT, "tensor %.*s has too many elements",
                           NAME_ARG(t->name));
    }
    return 0;
}

static int refuse_type(const struct gguf_tensor *t, struct err *e)
{
    const char *name = quant_foreign_name(t->type_id);
    return ERR_SET(e, ERR_UNSUPPORTED,
                   "tensor %.*s has type %s (%u), which Sheaf does not compute with; it knows "
                   "F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K, Q6_K and IQ4_NL",
                   NAME_ARG(t->name), name ? name : "unknown", t->type_id);
}

/* Fills t->bytes from shape and type. */
static int size_tensor(struct gguf_tensor *t, struct err *e)
{
    const struct quant_info *info = quant_find(t->type_id);
    if (!info)
        return refuse_type(t, e);
    if (t->dims[0] % info->block_elems != 0)
        return ERR_SET(e, ERR_FORMAT,
                       "tensor %.*s has rows of %llu elements, not a multiple of the %zu of %s",
                       NAME_ARG(t->name), (unsigned long long)t->dims[0], info->block_elems,
                       info->name);
    uint64_t bytes = t->dims[0] / info->block_elems;
    if (__builtin_mul_overflow(bytes, info->block_bytes, &bytes) ||
        __builtin_mul_overflow(bytes, t->dims[1], &bytes) ||
        __builtin_mul_overflow(bytes, t->dims[2], &bytes) ||
        __builtin_mul_overflow(bytes, t->dims[3], &bytes) || bytes > SIZE_MAX)
        return ERR_SET(e, ERR_FORMAT, "the size of tensor %.*s overflows", NAME_ARG(t->name));
    t->bytes = (size_t)bytes;
    return 0;
}

/* Leaves the offset in *offset: where the data section begins is known only after the list. */
static int take_tensor(struct cursor *c, size_t index, size_t alignment, struct gguf_tensor *t,
                       uint64_t *offset, struct err *e)
{
    TRY(take_name(c, "tensor", index, TENSOR_NAME_BYTES_MAX, &t->name, e));
    TRY(take_dims(c, t, e));
    if (!take_u32(c, &t->type_id) || !take_u64(c, offset))
        return ERR_SET(e, ERR_FORMAT, "the file ends inside tensor %.*s", NAME_ARG(t->name));
    TRY(size_tensor(t, e));
    if (*offset % alignment != 0)
        return ERR_SET(e, ERR_FORMAT,
                       "the data of tensor %.*s begins at %llu, not a multiple of %zu",
                       NAME_ARG(t->name), (unsigned long long)*offset, alignment);
    return 0;
}

/* Skips the zeros up to the data section, which begins on a multiple of alignment of the file.
 */
static int skip_padding(struct cursor *c, size_t file_bytes, size_t alignment, struct err *e)
{
    const size_t position = file_bytes - c->left;
    const size_t padding = (alignment - position % alignment) % alignment;
    if (!take(c, padding))
        return ERR_SET(e, ERR_FORMAT, "the file ends before the tensor data");
    return 0;
}

static int place_tensor(const struct cursor *data, struct gguf_tensor *t, uint64_t offset,
                        struct err *e)
{
    if (offset > data->left || t->bytes > data->left - (size_t)offset)
        return ERR_SET(
            e, ERR_FORMAT,
            "the data of tensor %.*s (%zu bytes at %llu) ends beyond the file: it is "
            "damaged or was not fetched whole",
            NAME_ARG(t->name), t->bytes, (unsigned long long)offset);
    t->data = data->at + offset;
    return 0;
}

static int take_tensor_list(struct cursor *c, struct gguf *g, size_t alignment, struct err *e)
{
    if (g->n_tensors == 0)
        return 0;
    uint64_t *offsets = calloc(g->n_tensors, sizeof *offsets);
    g->tensors = calloc(g->n_tensors, sizeof *g->tensors);
    int code = 0;
    if (!offsets || !g->tensors) {
        code = ERR_SET(e, ERR_NOMEM, "out of memory for %zu tensors", g->n_tensors);
        goto out;
    }
    for (size_t i = 0; i < g->n_tensors; i++)
        TRY_OUT(code, take_tensor(c, i, alignment, &g->tensors[i], &offsets[i], e));
    TRY_OUT(code, skip_padding(c, g->size, alignment, e));
    for (size_t i = 0; i < g->n_tensors; i++)
        TRY_OUT(code, place_tensor(c, &g->tensors[i], offsets[i], e));
out:
    free(offsets);
    return code;
}

static int compare_place(const void *a, const void *b)
{
    const struct gguf_tensor *x = *(const struct gguf_tensor *const *)a;
    const struct gguf_tensor *y = *(const struct gguf_tensor *const *)b;
    return (x->data > y->data) - (x->data < y->data);
}

static int compare_name(const void *a, const void *b)
{
    return gguf_str_compare((*(const struct gguf_tensor *const *)a)->name,
                            (*(const struct gguf_tensor *const *)b)->name);
}

static int check_overlap(struct gguf *g, const struct gguf_tensor **sorted, size_t alignment,
                         struct err *e)
{
    qsort(sorted, g->n_tensors, sizeof *sorted, compare_place);
    for (size_t i = 1; i < g->n_tensors; i++) {
        const struct gguf_tensor *low = sorted[i - 1], *high = sorted[i];
        const size_t distance =
            (size_t)((const uint8_t *)high->data - (const uint8_t *)low->data);
        if (distance < low->bytes)
            return ERR_SET(e, ERR_FORMAT, "tensors %.*s and %.*s overlap", NAME_ARG(low->name),
                           NAME_ARG(high->name));
        if (distance - low->bytes >= alignment)
            g->unused_bytes += distance - low->bytes;
    }
    return 0;
}

static int sort_names(struct gguf *g, struct err *e)
{
    qsort(g->tensors_by_name, g->n_tensors, sizeof *g->tensors_by_name, compare_name);
    for (size_t i = 1; i < g->n_tensors; i++) {
        const struct gguf_str name = g->tensors_by_name[i]->name;
        if (gguf_str_compare(g->tensors_by_name[i - 1]->name, name) == 0)
            return ERR_SET(e, ERR_FORMAT, "tensor %.*s is there twice", NAME_ARG(name));
    }
    return 0;
}

static int index_tensors(struct gguf *g, size_t alignment, struct err *e)
{
    if (g->n_tensors == 0)
        return 0;
    g->tensors_by_name = calloc(g->n_tensors, sizeof *g->tensors_by_name);
    if (!g->tensors_by_name)
        return ERR_SET(e, ERR_NOMEM, "out of memory for %zu tensors", g->n_tensors);
    for (size_t i = 0; i < g->n_tensors; i++)
        g->tensors_by_name[i] = &g->tensors[i];
    TRY(check_overlap(g, g->tensors_by_name, alignment, e));
    return sort_names(g, e);
}

/* ------------------------------------------------------------------ the file */

static int check_version(uint32_t version, struct err *e)
{
    if (version == 2 || version == 3)
        return 0;
    if (version == 1)
        return ERR_SET(e, ERR_UNSUPPORTED,
                       "GGUF version 1 is too old; convert the model again with a current "
                       "converter (versions 2 and 3 are read)");
    if (version != 0 && (version & 0xffff) == 0)
        return ERR_SET(e, ERR_UNSUPPORTED,
                       "the file is big-endian; only little-endian GGUF files are read");
    return ERR_SET(e, ERR_UNSUPPORTED, "GGUF version %u is not known; 2 and 3 are read",
                   version);
}

static int check_magic(const uint8_t *bytes, size_t size, struct err *e)
{
    static const char lfs[] = "version https://git-lfs";
    if (size >= 4 && memcmp(bytes, "GGUF", 4) == 0)
        return 0;
    if (size >= sizeof lfs - 1 && memcmp(bytes, lfs, sizeof lfs - 1) == 0)
        return ERR_SET(e, ERR_FORMAT,
                       "this is a Git LFS pointer, not the model; fetch the file it points to");
    return ERR_SET(e, ERR_FORMAT, "not a GGUF model file (it does not begin with GGUF)");
}

static int take_header(struct cursor *c, struct gguf *g, struct err *e)
{
    TRY(check_magic(c->at, c->left, e));
    uint32_t version;
    uint64_t n_tensors, n_kv;
    if (!take(c, 4) || !take_u32(c, &version))
        return ERR_SET(e, ERR_FORMAT, "the file ends inside its header");
    TRY(check_version(version, e));
    if (!take_u64(c, &n_tensors) || !take_u64(c, &n_kv))
        return ERR_SET(e, ERR_FORMAT, "the file ends inside its header");
    if (n_kv > GGUF_KV_MAX || n_kv > c->left / KV_BYTES_MIN)
        return ERR_SET(e, ERR_FORMAT, "the header tells of %llu keys, more than can be there",
                       (unsigned long long)n_kv);
    if (n_tensors > GGUF_TENSORS_MAX || n_tensors > c->left / TENSOR_BYTES_MIN)
        return ERR_SET(e, ERR_FORMAT,
                       "the header tells of %llu tensors, more than can be there",
                       (unsigned long long)n_tensors);
    g->n_kv = (size_t)n_kv;
    g->n_tensors = (size_t)n_tensors;
    return 0;
}

static int parse(struct gguf *g, struct err *e)
{
    struct cursor c = {g->bytes, g->size};
    size_t alignment;
    TRY(take_header(&c, g, e));
    TRY(take_kv_list(&c, g, e));
    TRY(find_alignment(g, &alignment, e));
    TRY(take_tensor_list(&c, g, alignment, e));
    return index_tensors(g, alignment, e);
}

int gguf_parse(const void *bytes, size_t size, struct gguf **out, struct err *e)
{
    struct gguf *g = calloc(1, sizeof *g);
    if (!g)
        return ERR_SET(e, ERR_NOMEM, "out of memory for a model file");
    g->bytes = bytes;
    g->size = size;
    const int code = parse(g, e);
    if (code != 0) {
        gguf_close(g);
        return code;
    }
    *out = g;
    return 0;
}
