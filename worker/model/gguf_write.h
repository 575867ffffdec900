/*
 * The part of a GGUF file before its data, while it is written: keys and the list of tensors,
 * in the layout of gguf.h, version 3. A growth that fails is remembered (buf.h) and told by
 * gguf_head_finish.
 */
#ifndef SHEAF_GGUF_WRITE_H
#define SHEAF_GGUF_WRITE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "model/gguf.h"

enum { GGUF_WRITE_ALIGNMENT = 32 }; /* of the data and of each tensor in it */

/* Begins as {0}. */
struct gguf_head {
    struct buf keys, infos;
    uint64_t n_keys, n_tensors;
    uint64_t offset; /* of the next tensor's data */
};

/* Little-endian, as all of the file. */
void gguf_append_u32(struct buf *b, uint32_t value);
void gguf_append_f32(struct buf *b, float value);
void gguf_append_text(struct buf *b, const char *text);

void gguf_add_text(struct gguf_head *h, const char *key, const char *value);
void gguf_add_count(struct gguf_head *h, const char *key, size_t value);
void gguf_add_float(struct gguf_head *h, const char *key, float value);
/* Its n elements are to be appended to h->keys next. */
void gguf_begin_array(struct gguf_head *h, const char *key, enum gguf_kind kind, size_t n);

/* n_rows 0: a vector. The next tensor's data begins behind these and their padding. */
void gguf_add_tensor(struct gguf_head *h, const char *name, enum quant_type type, size_t n_rows,
                     size_t n_cols, uint64_t bytes);
/* Zero bytes between data of so many and what follows. */
size_t gguf_padding(uint64_t bytes);

/* Appends all of it to out, up to where data begins; h is empty after. False: no memory. */
bool gguf_head_finish(struct gguf_head *h, struct buf *out);

#endif
