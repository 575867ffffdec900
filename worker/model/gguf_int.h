/* What the parser leaves behind and the look-ups read. Only for gguf*.c. */
#ifndef SHEAF_GGUF_INT_H
#define SHEAF_GGUF_INT_H

#include "model/gguf.h"

/* Values were checked when they were parsed: the look-ups read them without bounds. */
struct gguf_kv {
    struct gguf_str key;
    enum gguf_kind kind;
    enum gguf_kind item_kind; /* of a GGUF_ARRAY */
    size_t n_items;           /* of a GGUF_ARRAY */
    const uint8_t *value;     /* the scalar; of strings and arrays the first content byte */
    size_t value_bytes;
};

struct gguf {
    const uint8_t *bytes;
    size_t size;
    void *mapping; /* owned memory, NULL when the caller keeps the bytes */
    size_t n_kv;
    struct gguf_kv *kv; /* sorted by key */
    size_t n_tensors;
    struct gguf_tensor *tensors;                /* in file order */
    const struct gguf_tensor **tensors_by_name; /* sorted */
    size_t unused_bytes; /* of the data section: gaps between tensors beyond padding */
};

/* Of one value or array item; 0 for strings and arrays. */
size_t gguf_kind_bytes(enum gguf_kind kind);
const struct gguf_kv *gguf_kv_find(const struct gguf *g, const char *key); /* or NULL */
int gguf_str_compare(struct gguf_str a, struct gguf_str b); /* like memcmp, shorter first */
uint32_t gguf_read_u32(const uint8_t *bytes);
uint64_t gguf_read_u64(const uint8_t *bytes);

#endif
