#include "report/rows.h"

#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <sqlite3.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "report/table.h"

enum { CELL_BYTES = 64, COLUMNS_MAX = 32 };

static int fail(struct store *store, struct err *e)
{
    return ERR_SET(e, ERR_DB, "cannot read the database: %s",
                   sqlite3_errmsg(store_handle(store)));
}

static void format_date(double seconds, char *cell)
{
    const time_t when = (time_t)seconds;
    struct tm local;
    if (!localtime_r(&when, &local) ||
        strftime(cell, CELL_BYTES, "%Y-%m-%d %H:%M:%S", &local) == 0)
        snprintf(cell, CELL_BYTES, "%.0f", seconds);
}

/* Three figures are enough to compare latencies by eye. */
static void format_decimal(double value, char *cell)
{
    const double size = fabs(value);
    snprintf(cell, CELL_BYTES, "%.*f", size >= 100 ? 0 : size >= 10 ? 1 : 2, value);
}

static const char *cell_text(sqlite3_stmt *st, int i, enum rows_kind kind, char *cell)
{
    if (sqlite3_column_type(st, i) == SQLITE_NULL)
        return "-";
    const double value = kind == ROWS_TEXT ? 0 : sqlite3_column_double(st, i);
    switch (kind) {
    case ROWS_COUNT:
        snprintf(cell, CELL_BYTES, "%" PRId64, (int64_t)sqlite3_column_int64(st, i));
        return cell;
    case ROWS_DECIMAL: format_decimal(value, cell); return cell;
    case ROWS_PERCENT: snprintf(cell, CELL_BYTES, "%.1f%%", 100 * value); return cell;
    case ROWS_DATE: format_date(value, cell); return cell;
    case ROWS_TEXT: break;
    }
    const char *text = (const char *)sqlite3_column_text(st, i);
    return text ? text : "";
}

static int print_table(struct store *store, sqlite3_stmt *st, const struct rows_query *query,
                       FILE *out, size_t *n, struct err *e)
{
    struct table_column columns[COLUMNS_MAX];
    for (size_t i = 0; i < query->n_columns; i++)
        columns[i] = (struct table_column){query->columns[i].heading,
                                           query->columns[i].kind == ROWS_COUNT ||
                                               query->columns[i].kind == ROWS_DECIMAL ||
                                               query->columns[i].kind == ROWS_PERCENT,
                                           query->columns[i].width_max};
    struct table *table = table_open(columns, query->n_columns);
    if (!table)
        return ERR_SET(e, ERR_NOMEM, "out of memory");
    int rc;
    while ((rc = sqlite3_step(st)) == SQLITE_ROW) {
        char cell[CELL_BYTES];
        for (size_t i = 0; i < query->n_columns; i++)
            table_add(table, cell_text(st, (int)i, query->columns[i].kind, cell));
        ++*n;
    }
    const int code = rc == SQLITE_DONE ? table_print(table, out, e) : fail(store, e);
    table_close(table);
    return code;
}

/* New reference. Text that is not UTF-8 has no place in JSON and becomes null. */
static json_t *column_json(sqlite3_stmt *st, int i)
{
    json_t *value = NULL;
    switch (sqlite3_column_type(st, i)) {
    case SQLITE_INTEGER: return json_integer(sqlite3_column_int64(st, i));
    case SQLITE_FLOAT: return json_real(sqlite3_column_double(st, i));
    case SQLITE_TEXT: {
        const char *text = (const char *)sqlite3_column_text(st, i);
        value = text ? json_stringn(text, (size_t)sqlite3_column_bytes(st, i)) : NULL;
        break;
    }
    default: break;
    }
    return value ? value : json_null();
}

static int print_object(sqlite3_stmt *st, FILE *out, struct err *e)
{
    json_t *object = json_object();
    bool ok = object != NULL;
    for (int i = 0; ok && i < sqlite3_column_count(st); i++)
        ok = json_object_set_new(object, sqlite3_column_name(st, i), column_json(st, i)) == 0;
    /* 15 digits show a measured decimal as it was written: 64.07, not 64.069999999999993. */
    ok = ok && json_dumpf(object, out, JSON_REAL_PRECISION(15) | JSON_COMPACT) == 0;
    json_decref(object);
    if (ok)
        return 0;
    return ferror(out) ? ERR_SET(e, ERR_IO, "cannot write the result")
                       : ERR_SET(e, ERR_NOMEM, "out of memory");
}

static int print_json(struct store *store, sqlite3_stmt *st, enum rows_form form, FILE *out,
                      size_t *n, struct err *e)
{
    int rc;
    if (form == ROWS_JSON_ARRAY)
        fputc('[', out);
    while ((rc = sqlite3_step(st)) == SQLITE_ROW) {
        if (form == ROWS_JSON_ARRAY && *n)
            fputc(',', out);
        TRY(print_object(st, out, e));
        ++*n;
        if (form == ROWS_JSON_LINES)
            fputc('\n', out);
        if (form == ROWS_JSON_FIRST)
            return 0;
    }
    if (rc != SQLITE_DONE)
        return fail(store, e);
    if (form != ROWS_JSON_LINES)
        fputs(form == ROWS_JSON_ARRAY ? "]" : "null", out);
    return ferror(out) ? ERR_SET(e, ERR_IO, "cannot write the result") : 0;
}

int rows_print(struct store *store, const struct rows_query *query, enum rows_form form,
               FILE *out, size_t *n, struct err *e)
{
    sqlite3_stmt *st = NULL;
    size_t count = 0;
    int code = 0;
    if (sqlite3_prepare_v2(store_handle(store), query->sql, -1, &st, NULL) != SQLITE_OK)
        return fail(store, e);
    for (int i = 0; i < 4 && i < sqlite3_bind_parameter_count(st); i++)
        if (sqlite3_bind_text(st, i + 1, query->args[i], -1, SQLITE_STATIC) != SQLITE_OK)
            TRY_OUT(code, fail(store, e));
    code = form == ROWS_TABLE ? print_table(store, st, query, out, &count, e)
                              : print_json(store, st, form, out, &count, e);
out:
    sqlite3_finalize(st);
    if (n)
        *n = count;
    return code;
}
