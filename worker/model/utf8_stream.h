/*
 * UTF-8 that arrives in arbitrary parts. Valid means Unicode table 3-7: no overlong forms, no
 * surrogates, nothing above U+10FFFF.
 *
 * A stream releases only complete sequences: the tail that could still become valid is held
 * back (3 bytes at most) until the rest comes. Bytes that can never be valid pass as they are,
 * so what goes out is always what came in.
 */
#ifndef SHEAF_UTF8_STREAM_H
#define SHEAF_UTF8_STREAM_H

#include <stdbool.h>
#include <stddef.h>

#include "base/buf.h"

/*
 * Length of the valid sequence at the start of bytes[0..length); 0 when there is none, either
 * because the first byte starts nothing valid or because the sequence is cut off (then
 * *incomplete, if not NULL, is true: more bytes could make it valid).
 */
size_t utf8_sequence(const char *bytes, size_t length, bool *incomplete);
/* Length of the longest valid prefix. */
size_t utf8_valid_prefix(const char *bytes, size_t length);

struct utf8_stream {
    char held[4];
    size_t n_held;
};

/* Appends to out what can be released now; out remembers a failed allocation. */
void utf8_stream_push(struct utf8_stream *s, const char *bytes, size_t length, struct buf *out);
/* Releases what is held back, at the end of the text. */
void utf8_stream_flush(struct utf8_stream *s, struct buf *out);

#endif
