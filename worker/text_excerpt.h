/*
 * A few tokens as text for a person: valid UTF-8 of a bounded width.
 */
#ifndef SHEAF_TEXT_EXCERPT_H
#define SHEAF_TEXT_EXCERPT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "model/tokenizer.h"

/*
 * The text of tokens [start, end) of a prompt. Of more than chars_max characters the first are
 * kept, or the last, and *cut is set. NUL-terminated, though a NUL may be inside; free() it.
 * NULL: out of memory.
 */
char *excerpt_text(const struct tokenizer *tok, const int32_t *tokens, size_t start, size_t end,
                   size_t chars_max, bool keep_last, size_t *length, bool *cut);

/* Writes to stdout with everything escaped that a terminal would obey or not show: control
 * characters, marks of direction and of no width, backslashes. */
void excerpt_print(const char *text, size_t length);
void excerpt_write(FILE *out, const char *text, size_t length); /* the same, to out */

#endif
