#include "model/gguf_write.h"

#include <assert.h>
#include <string.h>

enum { VERSION = 3 };

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "numbers are written as they lie");

static void append_u64(struct buf *b, uint64_t value)
{
    buf_append(b, &value, sizeof value);
}

void gguf_append_u32(struct buf *b, uint32_t value)
{
    buf_append(b, &value, sizeof value);
}

void gguf_append_f32(struct buf *b, float value)
{
    buf_append(b, &value, sizeof value);
}

void gguf_append_text(struct buf *b, const char *text)
{
    append_u64(b, strlen(text));
    buf_append_str(b, text);
}

static void begin_key(struct gguf_head *h, const char *key, enum gguf_kind kind)
{
    gguf_append_text(&h->keys, key);
    gguf_append_u32(&h->keys, (uint32_t)kind);
    h->n_keys++;
}

void gguf_add_text(struct gguf_head *h, const char *key, const char *value)
{
    begin_key(h, key, GGUF_STRING);
    gguf_append_text(&h->keys, value);
}

void gguf_add_count(struct gguf_head *h, const char *key, size_t value)
{
    begin_key(h, key, GGUF_U32);
    gguf_append_u32(&h->keys, (uint32_t)value);
}

void gguf_add_float(struct gguf_head *h, const char *key, float value)
{
    begin_key(h, key, GGUF_F32);
    gguf_append_f32(&h->keys, value);
}

void gguf_begin_array(struct gguf_head *h, const char *key, enum gguf_kind kind, size_t n)
{
    begin_key(h, key, GGUF_ARRAY);
    gguf_append_u32(&h->keys, (uint32_t)kind);
    append_u64(&h->keys, n);
}

size_t gguf_padding(uint64_t bytes)
{
    return (size_t)((GGUF_WRITE_ALIGNMENT - bytes % GGUF_WRITE_ALIGNMENT) %
                    GGUF_WRITE_ALIGNMENT);
}

void gguf_add_tensor(struct gguf_head *h, const char *name, enum quant_type type, size_t n_rows,
                     size_t n_cols, uint64_t bytes)
{
    gguf_append_text(&h->infos, name);
    gguf_append_u32(&h->infos, n_rows ? 2 : 1);
    append_u64(&h->infos, n_cols);
    if (n_rows)
        append_u64(&h->infos, n_rows);
    gguf_append_u32(&h->infos, (uint32_t)type);
    append_u64(&h->infos, h->offset);
    h->offset += bytes + gguf_padding(bytes);
    h->n_tensors++;
}

bool gguf_head_finish(struct gguf_head *h, struct buf *out)
{
    buf_append_str(out, "GGUF");
    gguf_append_u32(out, VERSION);
    append_u64(out, h->n_tensors);
    append_u64(out, h->n_keys);
    buf_append(out, h->keys.data, h->keys.length);
    buf_append(out, h->infos.data, h->infos.length);
    for (size_t n = gguf_padding(out->length); n > 0; n--)
        buf_append_char(out, '\0');
    const bool ok = buf_ok(&h->keys) && buf_ok(&h->infos) && buf_ok(out);
    buf_fini(&h->keys);
    buf_fini(&h->infos);
    *h = (struct gguf_head){0};
    return ok;
}
