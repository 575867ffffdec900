/*
 * A growable byte buffer. A failed growth is remembered: later appends do nothing, and
 * buf_ok says so once at the end, so that writers need no check after each piece. The bytes
 * are always followed by a NUL that is not counted.
 */
#ifndef SHEAF_BUF_H
#define SHEAF_BUF_H

#include <stdbool.h>
#include <stddef.h>

struct buf {
    char *data; /* owned; NULL while nothing was appended */
    size_t length;
    size_t capacity;
    bool failed; /* an allocation failed; data holds what fitted before */
};

void buf_append(struct buf *b, const void *bytes, size_t length);
void buf_append_str(struct buf *b, const char *text);
void buf_append_char(struct buf *b, char c);
void buf_printf(struct buf *b, const char *format, ...) __attribute__((format(printf, 2, 3)));
void buf_truncate(struct buf *b, size_t length); /* length <= b->length; keeps the memory */
bool buf_ok(const struct buf *b);
/* The bytes as a C string, "" when empty; valid until the next append. */
const char *buf_str(const struct buf *b);
/* Hands the bytes over (free() them); the buffer is empty after. NULL when failed or empty. */
char *buf_take(struct buf *b);
void buf_fini(struct buf *b);

#endif
