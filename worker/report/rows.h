/*
 * The rows of a query as a text table or as JSON: the one place where a column of the database
 * becomes something to read.
 */
#ifndef SHEAF_ROWS_H
#define SHEAF_ROWS_H

#include <stdbool.h>
#include <stdio.h>

#include "base/err.h"
#include "io/store.h"

enum rows_kind { ROWS_TEXT, ROWS_COUNT, ROWS_DECIMAL, ROWS_PERCENT, ROWS_DATE };

/* How the i-th column of the query is shown in a table. In JSON every column keeps its own name
 * and type. */
struct rows_column {
    const char *heading;
    enum rows_kind kind;
    int width_max; /* 0: as wide as it gets */
};

enum rows_form { ROWS_TABLE, ROWS_JSON_ARRAY, ROWS_JSON_LINES, ROWS_JSON_FIRST };

struct rows_query {
    const char *sql;
    const char *args[4];               /* texts for ?1..?4; NULL binds NULL */
    const struct rows_column *columns; /* for ROWS_TABLE */
    size_t n_columns;
};

/* ROWS_JSON_FIRST: the first row as an object, or null. Array and object end without a line
 * feed. *n (may be NULL): rows printed. */
int rows_print(struct store *store, const struct rows_query *query, enum rows_form form,
               FILE *out, size_t *n, struct err *e);

#endif
