/*
 * Text tables for a terminal: aligned columns, UTF-8 width, no control characters.
 *
 * Cells may hold text of jobs and models, so every control character (line ends and escape
 * sequences too) becomes a space, and what is wider than its column ends in an ellipsis.
 */
#ifndef SHEAF_TABLE_H
#define SHEAF_TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#include "base/err.h"

struct table_column {
    const char *name;
    bool is_right; /* numbers */
    int width_max; /* 0: as wide as it gets */
};

struct table;
/* columns are borrowed until table_close. */
struct table *table_open(const struct table_column *columns, size_t n); /* NULL: no memory */
/* The next cell, row by row; copied. A failed allocation is told by table_print. */
void table_add(struct table *t, const char *text);
int table_print(const struct table *t, FILE *out, struct err *e);
void table_close(struct table *t); /* accepts NULL */

/* Terminal columns of the text; invalid bytes count one each. */
int table_text_width(const char *text);

#endif
