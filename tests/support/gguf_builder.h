/*
 * Writes GGUF files byte by byte for tests: well-formed ones by default, and malformed ones
 * because every count, type and offset can be given. Shares no code with the reader.
 *
 * Order of calls: init, keys, tensors, take. Header counts are those of the calls unless
 * overridden in the struct before take. Running out of memory aborts: this is test code.
 */
#ifndef SHEAF_TEST_GGUF_BUILDER_H
#define SHEAF_TEST_GGUF_BUILDER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct gguf_bytes {
    uint8_t *data; /* owned; free() it. Exactly size bytes, so that overruns are seen */
    size_t size;
};

struct gguf_builder {
    struct gguf_bytes kv, infos, data;
    const char *magic; /* "GGUF" */
    uint32_t version;  /* 3 */
    uint64_t n_kv, n_tensors;
    size_t alignment;  /* of the data section and of each tensor; 32 */
    bool without_data; /* leave padding and data away */
};

enum { BUILD_U8, BUILD_I8, BUILD_U16, BUILD_I16, BUILD_U32, BUILD_I32, BUILD_F32, BUILD_BOOL };
enum { BUILD_STRING = 8, BUILD_ARRAY, BUILD_U64, BUILD_I64, BUILD_F64 };

void builder_init(struct gguf_builder *b);
void builder_fini(struct gguf_builder *b);

/* Well-formed keys. */
void builder_u32(struct gguf_builder *b, const char *key, uint32_t value);
void builder_u64(struct gguf_builder *b, const char *key, uint64_t value);
void builder_i32(struct gguf_builder *b, const char *key, int32_t value);
void builder_f32(struct gguf_builder *b, const char *key, float value);
void builder_bool(struct gguf_builder *b, const char *key, bool value);
void builder_string(struct gguf_builder *b, const char *key, const char *value);
void builder_bytes(struct gguf_builder *b, const char *key, const void *value, size_t length);
void builder_strings(struct gguf_builder *b, const char *key, const char *const *items,
                     size_t n_items);
void builder_i32s(struct gguf_builder *b, const char *key, const int32_t *items,
                  size_t n_items);
void builder_f32s(struct gguf_builder *b, const char *key, const float *items, size_t n_items);

/* Any key: its name, its type word, and the bytes of its value as they are. */
void builder_raw(struct gguf_builder *b, const char *key, uint32_t type, const void *value,
                 size_t length);
/* Pieces of the key-value section, for keys that cannot be written otherwise. */
void builder_kv_u32(struct gguf_builder *b, uint32_t word);
void builder_kv_u64(struct gguf_builder *b, uint64_t word);
void builder_kv_append(struct gguf_builder *b, const void *bytes, size_t length);

/* A tensor of n_bytes of data, filled with a pattern, at the next aligned offset. */
void builder_tensor(struct gguf_builder *b, const char *name, uint32_t type, size_t n_dims,
                    const uint64_t *dims, size_t n_bytes);
/* The same with the data given. */
void builder_tensor_data(struct gguf_builder *b, const char *name, uint32_t type, size_t n_dims,
                         const uint64_t *dims, const void *bytes, size_t n_bytes);
/* Only the entry of the list; no data is added. */
void builder_tensor_info(struct gguf_builder *b, const char *name, uint32_t type,
                         uint32_t n_dims, const uint64_t *dims, size_t n_dims_written,
                         uint64_t offset);

/* The file. The builder is empty afterwards. */
struct gguf_bytes builder_take(struct gguf_builder *b);

/* A whole file from disk; fails the test when it cannot be read. */
struct gguf_bytes gguf_bytes_read(const char *path);

#endif
