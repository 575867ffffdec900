/*
 * Which bytes of a text are UTF-8. Valid means Unicode table 3-7: no overlong forms, no
 * surrogates, nothing above U+10FFFF.
 */
#ifndef SHEAF_MODEL_UTF8_H
#define SHEAF_MODEL_UTF8_H

#include <stddef.h>

/* Length of the valid sequence at the start of bytes[0..length), 0 when there is none. */
size_t utf8_sequence(const char *bytes, size_t length);
/* Length of the longest valid prefix. */
size_t utf8_valid_prefix(const char *bytes, size_t length);

#endif
