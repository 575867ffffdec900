#include "model_edit.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* "64x320" as dims[0] 64, dims[1] 320. */
static size_t read_dims(const char *text, uint64_t dims[4])
{
    size_t n = 0;
    while (*text && n < 4) {
        char *end;
        dims[n++] = strtoull(text, &end, 10);
        text = *end ? end + 1 : end;
    }
    return n;
}

static void add_tensor(struct gguf_builder *b, const struct model_edit *x)
{
    uint64_t dims[4];
    const size_t n_dims = read_dims(x->value, dims);
    uint64_t n_elems = 1;
    for (size_t i = 0; i < n_dims; i++)
        n_elems *= dims[i];
    /* All floats 1: a valid value of norms, biases, weights and rotation factors alike. */
    float *ones = malloc(n_elems * sizeof *ones);
    if (!ones)
        abort();
    for (uint64_t i = 0; i < n_elems; i++)
        ones[i] = 1;
    builder_tensor_data(b, x->key, (uint32_t)x->number, n_dims, dims, ones,
                        n_elems * sizeof *ones);
    free(ones);
}

struct gguf_bytes model_edit_apply(const struct model_edit *x)
{
    struct gguf_bytes file = gguf_bytes_read(x->path);
    struct gguf_builder b;
    gguf_edit_begin(&file, x->key, x->key, &b);
    free(file.data);
    int32_t items[16] = {0};
    size_t n_items = 0;
    for (const char *c = x->kind == EDIT_I32S ? x->value : ""; *c; c++)
        items[n_items++] = *c - '0';
    switch (x->kind) {
    case EDIT_NONE: break;
    case EDIT_U32: builder_u32(&b, x->key, (uint32_t)x->number); break;
    case EDIT_F32: builder_f32(&b, x->key, (float)x->number); break;
    case EDIT_BOOL: builder_bool(&b, x->key, x->number != 0); break;
    case EDIT_TEXT: builder_string(&b, x->key, x->value); break;
    case EDIT_I32S: builder_i32s(&b, x->key, items, n_items); break;
    case EDIT_TENSOR: add_tensor(&b, x); break;
    }
    return builder_take(&b);
}

int model_edit_open(const struct gguf_bytes *file, bool is_vocab_only, struct model **m,
                    struct err *e)
{
    char path[] = "/tmp/sheaf-model-XXXXXX";
    FILE *f = fdopen(mkstemp(path), "wb");
    if (!f)
        abort();
    if (fwrite(file->data, 1, file->size, f) != file->size || fclose(f) != 0)
        abort();
    const int code = is_vocab_only ? model_open_vocab(path, m, e) : model_open(path, m, e);
    unlink(path);
    return code;
}
