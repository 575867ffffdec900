/* Bytes as text: RFC 4648's base64, with padding. Thread: any. */
#ifndef SHEAF_BASE64_H
#define SHEAF_BASE64_H

#include <stddef.h>

/* NUL-terminated; free() it. NULL: out of memory, or more than BASE64_BYTES_MAX. */
char *base64_encode(const void *bytes, size_t length);

enum { BASE64_BYTES_MAX = 1 << 30 };

#endif
