/*
 * GGUF v2/v3 model files, read as hostile input.
 *
 * Layout: "GGUF", u32 version, u64 n_tensors, u64 n_kv; the key-value list; the tensor list;
 * zero padding to the alignment; tensor data. All little-endian. Every count and offset is
 * checked against what is left of the file by subtraction before it is used; a bad file is
 * an error that names the key or tensor, never an abort.
 *
 * Stricter than the format asks: arrays do not nest, names are printable ASCII and unique,
 * tensors have no empty dimension, do not overlap and have a type that quant_find() knows.
 * The other limits are in base/limits.h.
 *
 * The whole file is read into memory of its own, so that a file that shrinks later cannot
 * hurt. Thread: read-only after opening, any.
 */
#ifndef SHEAF_GGUF_H
#define SHEAF_GGUF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "quant.h"

struct gguf;

enum gguf_kind {
    GGUF_U8,
    GGUF_I8,
    GGUF_U16,
    GGUF_I16,
    GGUF_U32,
    GGUF_I32,
    GGUF_F32,
    GGUF_BOOL,
    GGUF_STRING,
    GGUF_ARRAY,
    GGUF_U64,
    GGUF_I64,
    GGUF_F64
};

struct gguf_str {
    const char *data; /* borrowed from the file's memory; no NUL */
    size_t length;
};

/* A rank 1 or 2 tensor as the engine sees it; a vector has n_rows 1. Data is borrowed. */
struct gguf_tensor {
    struct gguf_str name;
    uint32_t type_id; /* GGUF's id; quant_find() knows the ones that can be computed with */
    size_t n_dims;
    uint64_t dims[4]; /* dims[0] is the row length */
    const void *data;
    size_t bytes;
};

int gguf_open(const char *path, struct gguf **out, struct err *e);
/* Parses bytes that the caller keeps alive and unchanged. For tests and fuzzing. */
int gguf_parse(const void *bytes, size_t size, struct gguf **out, struct err *e);
void gguf_close(struct gguf *g); /* accepts NULL */

/* Gives the memory of a tensor back to the system; its bytes must not be read any more. Does
 * nothing for a file that gguf_parse got. */
void gguf_release_data(struct gguf *g, const void *data, size_t bytes);

size_t gguf_file_bytes(const struct gguf *g);
const void *gguf_file_data(const struct gguf *g); /* borrowed */
size_t gguf_kv_count(const struct gguf *g);
size_t gguf_tensor_count(const struct gguf *g);
const struct gguf_tensor *gguf_tensor_at(const struct gguf *g, size_t index);
const struct gguf_tensor *gguf_tensor_find(const struct gguf *g,
                                           const char *name); /* or NULL */

/*
 * Typed look-ups. ERR_NOTFOUND when the key is missing, ERR_FORMAT when it has another type or
 * a value that does not fit; *out is untouched then. gguf_u64 accepts every integer type.
 */
bool gguf_has(const struct gguf *g, const char *key);
int gguf_u64(const struct gguf *g, const char *key, uint64_t *out, struct err *e);
int gguf_f64(const struct gguf *g, const char *key, double *out, struct err *e);
int gguf_bool(const struct gguf *g, const char *key, bool *out, struct err *e);
int gguf_string(const struct gguf *g, const char *key, struct gguf_str *out, struct err *e);
/* Number of items of an array key, and of which kind. */
int gguf_array(const struct gguf *g, const char *key, enum gguf_kind *kind, size_t *count,
               struct err *e);
/* Items of a string array, filled into out[count]; count must be the array's. */
int gguf_array_strings(const struct gguf *g, const char *key, struct gguf_str *out,
                       size_t count, struct err *e);
/* Items of a numeric array as double (exact for every 32-bit type), into out[count]; count must
 * be the array's. */
int gguf_array_numbers(const struct gguf *g, const char *key, double *out, size_t count,
                       struct err *e);

/* Copies text from a file for a person to read: what is not printable ASCII becomes '?', what
 * does not fit is cut. */
void gguf_str_print(struct gguf_str text, char *out, size_t out_bytes);

#endif
