/*
 * Writes safetensors files byte by byte for tests: well-formed ones by default, malformed ones
 * because every entry, length and byte can be given. Shares no code with the reader. Running
 * out of memory aborts: this is test code.
 */
#ifndef SHEAF_TEST_SAFETENSORS_BUILDER_H
#define SHEAF_TEST_SAFETENSORS_BUILDER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "gguf_builder.h"

struct st_builder {
    char *header; /* owned: the entries so far */
    size_t n_entries;
    struct gguf_bytes data;
    bool has_length;
    uint64_t length; /* of the header, when it is not to be the true one */
};

void st_init(struct st_builder *b);
void st_fini(struct st_builder *b);
/* Text of the header as it is: `"name":{...}`. */
void st_entry(struct st_builder *b, const char *text);
/* A tensor of 1 or 2 dimensions (n_rows 0: one) whose elements are small_value(seed, index),
 * as dtype F32, F16, BF16, I32 or I64. */
void st_tensor(struct st_builder *b, const char *name, const char *dtype, size_t n_rows,
               size_t n_cols, unsigned seed);
/* The same with the bytes given. */
void st_tensor_bytes(struct st_builder *b, const char *name, const char *dtype, size_t n_rows,
                     size_t n_cols, const void *bytes, size_t n_bytes);
/* The file. The builder is empty afterwards. */
struct gguf_bytes st_take(struct st_builder *b);

/* One of -63/64 to 63/64, so that every float type holds it exactly. */
float small_value(unsigned seed, size_t index);

#endif
