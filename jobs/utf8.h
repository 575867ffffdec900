/* UTF-8 as of RFC 3629: no overlong forms, no surrogates, nothing above U+10FFFF. */
#ifndef SHEAF_UTF8_H
#define SHEAF_UTF8_H

#include <stdbool.h>
#include <stddef.h>

/*
 * Looks at the character that starts at bytes[0]; length >= 1. Returns how many bytes it
 * takes. *valid is false when they are not a character: the return is then the longest start
 * of a character they form (at least 1), which is what one U+FFFD stands for (the practice
 * that the Unicode standard recommends and web browsers follow).
 */
size_t utf8_measure_char(const char *bytes, size_t length, bool *valid);
/* All of them are characters. */
bool utf8_is_valid(const char *bytes, size_t length);

#endif
