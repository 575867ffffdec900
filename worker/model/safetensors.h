/*
 * safetensors files, read as hostile input.
 *
 * Layout: u64 N, little-endian; N bytes of JSON, an object that may end in blanks; tensor data.
 * Each key of the object is a tensor's name and tells
 *     {"dtype": "BF16", "shape": [64, 64], "data_offsets": [begin, end]}
 * with offsets into the data; only __metadata__, which is ignored, tells something else. The
 * tensors cover the data without gap or overlap, and the last ends with the file.
 *
 * Stricter than the format asks: N is at most SAFETENSORS_HEADER_BYTES_MAX (the largest known
 * headers have a few MB), names are printable ASCII, and a tensor tells nothing else. Element
 * types that Sheaf has no use for are let through, since a checkpoint holds more than is wanted
 * from it: their tensors are OTHER and their sizes unchecked.
 *
 * Only the header is read on opening. What is asked for is read into the caller's memory, so
 * that a file that shrinks later is an error and no more. Thread: read-only after opening, any.
 */
#ifndef SHEAF_SAFETENSORS_H
#define SHEAF_SAFETENSORS_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

struct safetensors;

enum safetensors_type {
    SAFETENSORS_F32,
    SAFETENSORS_F16,
    SAFETENSORS_BF16,
    SAFETENSORS_I32,
    SAFETENSORS_I64,
    SAFETENSORS_OTHER
};

enum { SAFETENSORS_DIMS_MAX = 8 };

struct safetensors_tensor {
    char *name;
    enum safetensors_type type;
    char type_name[16]; /* as the file says, cut */
    size_t n_dims;
    uint64_t dims[SAFETENSORS_DIMS_MAX]; /* as in the file: the last runs fastest */
    uint64_t n_elems;
    uint64_t begin, end; /* bytes of the data */
};

int safetensors_open(const char *path, struct safetensors **out, struct err *e);
/* The same of bytes that the caller keeps alive and unchanged. For tests and fuzzing. */
int safetensors_parse(const void *bytes, size_t size, struct safetensors **out, struct err *e);
void safetensors_close(struct safetensors *s); /* accepts NULL */

/* In the order of their data. */
size_t safetensors_count(const struct safetensors *s);
const struct safetensors_tensor *safetensors_at(const struct safetensors *s, size_t index);

/* n elements from the first-th on, which must be the tensor's; its type must be a float or an
 * integer one respectively. */
int safetensors_read_floats(const struct safetensors *s, const struct safetensors_tensor *t,
                            uint64_t first, float *out, size_t n, struct err *e);
int safetensors_read_integers(const struct safetensors *s, const struct safetensors_tensor *t,
                              uint64_t first, int64_t *out, size_t n, struct err *e);

#endif
