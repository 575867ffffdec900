#include "gguf_edit.h"

#include <stdlib.h>
#include <string.h>

enum { DATA_ALIGNMENT = 32 };

struct walker {
    const uint8_t *bytes;
    size_t size, at;
};

static const uint8_t *step(struct walker *w, uint64_t n)
{
    if (n > w->size - w->at)
        abort();
    const uint8_t *bytes = w->bytes + w->at;
    w->at += (size_t)n;
    return bytes;
}

static uint64_t word(struct walker *w, size_t n)
{
    const uint8_t *bytes = step(w, n);
    uint64_t value = 0;
    for (size_t i = n; i > 0; i--)
        value = value << 8 | bytes[i - 1];
    return value;
}

/* A string as NUL-terminated text in out[64]. */
static void name(struct walker *w, char *out)
{
    const uint64_t length = word(w, 8);
    const uint8_t *bytes = step(w, length);
    if (length > 63)
        abort();
    memcpy(out, bytes, length);
    out[length] = '\0';
}

static void skip_value(struct walker *w, uint64_t type)
{
    static const size_t bytes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
    if (type == BUILD_STRING) {
        step(w, word(w, 8));
    } else if (type == BUILD_ARRAY) {
        const uint64_t item_type = word(w, 4), count = word(w, 8);
        for (uint64_t i = 0; i < count; i++)
            skip_value(w, item_type);
    } else {
        step(w, bytes[type]);
    }
}

static bool is_same(const char *a, const char *b)
{
    return a && strcmp(a, b) == 0;
}

static void copy_keys(struct walker *w, uint64_t n, const char *dropped, struct gguf_builder *b)
{
    for (uint64_t i = 0; i < n; i++) {
        char key[64];
        name(w, key);
        const uint64_t type = word(w, 4);
        const size_t begin = w->at;
        skip_value(w, type);
        if (b && !is_same(dropped, key))
            builder_raw(b, key, (uint32_t)type, w->bytes + begin, w->at - begin);
    }
}

struct entry {
    char name[64];
    uint64_t n_dims, dims[4], type, offset, end; /* end: where the next one begins */
};

static struct entry *read_entries(struct walker *w, uint64_t n)
{
    struct entry *all = calloc(n + 1, sizeof *all);
    if (!all)
        abort();
    for (uint64_t i = 0; i < n; i++) {
        name(w, all[i].name);
        all[i].n_dims = word(w, 4);
        for (uint64_t j = 0; j < all[i].n_dims; j++)
            all[i].dims[j] = word(w, 8);
        all[i].type = word(w, 4);
        all[i].offset = word(w, 8);
        if (i > 0)
            all[i - 1].end = all[i].offset;
    }
    step(w, (DATA_ALIGNMENT - w->at % DATA_ALIGNMENT) % DATA_ALIGNMENT);
    if (n > 0)
        all[n - 1].end = w->size - w->at;
    return all;
}

static uint64_t begin(struct walker *w, const struct gguf_bytes *file, uint64_t *n_keys)
{
    *w = (struct walker){file->data, file->size, 0};
    step(w, 8);
    const uint64_t n_tensors = word(w, 8);
    *n_keys = word(w, 8);
    return n_tensors;
}

void gguf_edit_begin(const struct gguf_bytes *file, const char *dropped_key,
                     const char *dropped_tensor, struct gguf_builder *b)
{
    struct walker w;
    uint64_t n_keys;
    const uint64_t n_tensors = begin(&w, file, &n_keys);
    builder_init(b);
    copy_keys(&w, n_keys, dropped_key, b);
    struct entry *all = read_entries(&w, n_tensors);
    for (uint64_t i = 0; i < n_tensors; i++) {
        if (!is_same(dropped_tensor, all[i].name))
            builder_tensor_data(b, all[i].name, (uint32_t)all[i].type, (size_t)all[i].n_dims,
                                all[i].dims, w.bytes + w.at + all[i].offset,
                                (size_t)(all[i].end - all[i].offset));
    }
    free(all);
}

const uint8_t *gguf_edit_find(const struct gguf_bytes *file, const char *tensor)
{
    struct walker w;
    uint64_t n_keys;
    const uint64_t n_tensors = begin(&w, file, &n_keys);
    copy_keys(&w, n_keys, NULL, NULL);
    struct entry *all = read_entries(&w, n_tensors);
    const uint8_t *found = NULL;
    for (uint64_t i = 0; i < n_tensors; i++) {
        if (is_same(tensor, all[i].name))
            found = w.bytes + w.at + all[i].offset;
    }
    free(all);
    return found;
}
