/* SHA-256 as lower-case hex, for naming files by what is in them. Thread: any. */
#ifndef SHEAF_SHA256_H
#define SHEAF_SHA256_H

#include <stddef.h>
#include <stdio.h>

#include "base/err.h"

enum { SHA256_HEX_BYTES = 65 }; /* 64 digits and the NUL */

int sha256_hex(const void *bytes, size_t length, char hex[SHA256_HEX_BYTES], struct err *e);
/* Of everything from the stream's position to its end. Borrows the stream. */
int sha256_hex_stream(FILE *stream, char hex[SHA256_HEX_BYTES], struct err *e);

#endif
