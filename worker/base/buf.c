#include "base/buf.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"

static bool reserve(struct buf *b, size_t extra)
{
    if (b->failed || extra > SIZE_MAX / 4 - b->length) {
        b->failed = true;
        return false;
    }
    const size_t needed = b->length + extra + 1;
    if (needed <= b->capacity)
        return true;
    size_t capacity = b->capacity ? b->capacity : 128;
    while (capacity < needed)
        capacity *= 2;
    char *data = realloc(b->data, capacity);
    if (!data) {
        b->failed = true;
        return false;
    }
    b->data = data;
    b->capacity = capacity;
    return true;
}

void buf_append(struct buf *b, const void *bytes, size_t length)
{
    if (!reserve(b, length))
        return;
    if (length)
        memcpy(b->data + b->length, bytes, length);
    b->length += length;
    b->data[b->length] = '\0';
}

void buf_append_str(struct buf *b, const char *text)
{
    buf_append(b, text, strlen(text));
}

void buf_append_char(struct buf *b, char c)
{
    buf_append(b, &c, 1);
}

void buf_printf(struct buf *b, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    const int length = vsnprintf(NULL, 0, format, args);
    va_end(args);
    if (length < 0 || !reserve(b, (size_t)length)) {
        b->failed = true;
        return;
    }
    va_start(args, format);
    vsnprintf(b->data + b->length, (size_t)length + 1, format, args);
    va_end(args);
    b->length += (size_t)length;
}

void buf_truncate(struct buf *b, size_t length)
{
    ASSERT(length <= b->length);
    b->length = length;
    if (b->data)
        b->data[length] = '\0';
}

bool buf_ok(const struct buf *b)
{
    return !b->failed;
}

const char *buf_str(const struct buf *b)
{
    return b->data ? b->data : "";
}

char *buf_take(struct buf *b)
{
    char *data = b->data;
    if (b->failed) {
        free(data);
        data = NULL;
    }
    *b = (struct buf){0};
    return data;
}

void buf_fini(struct buf *b)
{
    free(b->data);
    *b = (struct buf){0};
}
