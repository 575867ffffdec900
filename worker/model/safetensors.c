/* Opening a file and reading elements from it. */
#include "model/safetensors_int.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/check.h"
#include "base/file.h"
#include "base/limits.h"
#include "base/size.h"
#include "quant.h"

enum { LENGTH_BYTES = 8, CHUNK_BYTES = 65536 };

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "numbers are copied as they lie");

struct safetensors {
    int fd;               /* -1: the bytes are in memory */
    const uint8_t *bytes; /* borrowed, or NULL */
    uint64_t data_begin;  /* in the file */
    struct safetensors_list list;
};

static int read_bytes(const struct safetensors *s, uint64_t offset, void *out, size_t n,
                      struct err *e)
{
    if (s->fd >= 0)
        return file_read_at(s->fd, offset, out, n, e);
    memcpy(out, s->bytes + offset, n);
    return 0;
}

static int check_length(uint64_t length, size_t size, struct err *e)
{
    if (length > SAFETENSORS_HEADER_BYTES_MAX)
        return ERR_SET(e, ERR_FORMAT,
                       "not a safetensors file that Sheaf reads: its header would have %llu "
                       "bytes, more than %u",
                       (unsigned long long)length, SAFETENSORS_HEADER_BYTES_MAX);
    if (length > size - LENGTH_BYTES)
        return ERR_SET(e, ERR_FORMAT,
                       "the file ends inside its header: it was not fetched whole");
    return 0;
}

static int read_header(struct safetensors *s, size_t size, struct err *e)
{
    uint64_t length;
    if (size < LENGTH_BYTES)
        return ERR_SET(e, ERR_FORMAT, "not a safetensors file: it has %zu bytes", size);
    TRY(read_bytes(s, 0, &length, sizeof length, e));
    TRY(check_length(length, size, e));
    char *text = malloc(length + 1);
    if (!text)
        return ERR_SET(e, ERR_NOMEM, "out of memory for a header of %llu bytes",
                       (unsigned long long)length);
    int code = read_bytes(s, LENGTH_BYTES, text, (size_t)length, e);
    s->data_begin = LENGTH_BYTES + length;
    if (code == 0)
        code =
            safetensors_parse_header(text, (size_t)length, size - s->data_begin, &s->list, e);
    free(text);
    return code;
}

static int open_any(int fd, const void *bytes, size_t size, struct safetensors **out,
                    struct err *e)
{
    struct safetensors *s = malloc(sizeof *s);
    if (!s) {
        if (fd >= 0)
            close(fd);
        return ERR_SET(e, ERR_NOMEM, "out of memory for a safetensors file");
    }
    *s = (struct safetensors){.fd = fd, .bytes = bytes};
    const int code = read_header(s, size, e);
    if (code != 0)
        safetensors_close(s);
    else
        *out = s;
    return code;
}

int safetensors_open(const char *path, struct safetensors **out, struct err *e)
{
    int fd;
    size_t size;
    TRY(file_open(path, ".safetensors file", &fd, &size, e));
    const bool is_first_error = e && e->code == 0;
    const int code = open_any(fd, NULL, size, out, e);
    if (code != 0 && is_first_error)
        err_prefix(e, "%s", path);
    return code;
}

int safetensors_parse(const void *bytes, size_t size, struct safetensors **out, struct err *e)
{
    return open_any(-1, bytes, size, out, e);
}

void safetensors_close(struct safetensors *s)
{
    if (!s)
        return;
    if (s->fd >= 0)
        close(s->fd);
    safetensors_list_fini(&s->list);
    free(s);
}

size_t safetensors_count(const struct safetensors *s)
{
    return s->list.length;
}

const struct safetensors_tensor *safetensors_at(const struct safetensors *s, size_t index)
{
    return index < s->list.length ? &s->list.items[index] : NULL;
}

/* ------------------------------------------------------------------ elements */

static uint64_t place(const struct safetensors *s, const struct safetensors_tensor *t,
                      uint64_t first, size_t n)
{
    ASSERT(first <= t->n_elems && n <= t->n_elems - first);
    return s->data_begin + t->begin + first * safetensors_type_bytes(t->type);
}

int safetensors_read_floats(const struct safetensors *s, const struct safetensors_tensor *t,
                            uint64_t first, float *out, size_t n, struct err *e)
{
    const uint64_t offset = place(s, t, first, n);
    if (t->type == SAFETENSORS_F32)
        return read_bytes(s, offset, out, n * sizeof *out, e);
    ASSERT(t->type == SAFETENSORS_F16 || t->type == SAFETENSORS_BF16);
    const enum quant_type type = t->type == SAFETENSORS_F16 ? QUANT_F16 : QUANT_BF16;
    uint16_t chunk[CHUNK_BYTES / sizeof(uint16_t)];
    for (size_t done = 0, m; done < n; done += m) {
        m = size_min(n - done, sizeof chunk / sizeof *chunk);
        TRY(read_bytes(s, offset + done * sizeof *chunk, chunk, m * sizeof *chunk, e));
        quant_dequantize_row(type, chunk, out + done, m);
    }
    return 0;
}

int safetensors_read_integers(const struct safetensors *s, const struct safetensors_tensor *t,
                              uint64_t first, int64_t *out, size_t n, struct err *e)
{
    const uint64_t offset = place(s, t, first, n);
    if (t->type == SAFETENSORS_I64)
        return read_bytes(s, offset, out, n * sizeof *out, e);
    ASSERT(t->type == SAFETENSORS_I32);
    int32_t chunk[CHUNK_BYTES / sizeof(int32_t)];
    for (size_t done = 0, m; done < n; done += m) {
        m = size_min(n - done, sizeof chunk / sizeof *chunk);
        TRY(read_bytes(s, offset + done * sizeof *chunk, chunk, m * sizeof *chunk, e));
        for (size_t i = 0; i < m; i++)
            out[done + i] = chunk[i];
    }
    return 0;
}
