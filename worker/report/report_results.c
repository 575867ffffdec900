/* The answers of a run: to read, to process, or as the lines that were published. */
#include "report/report.h"

#include <inttypes.h>
#include <sqlite3.h>
#include <string.h>

#include "report/rows.h"

enum { WIDTH_DEFAULT = 100, WIDTH_TEXT_MIN = 24, WIDTH_ID_MAX = 24, WIDTH_OTHERS = 48 };

/* ?1 run, ?2 status, ?3 custom_id; a NULL leaves its column free. ?4 the limit, -1 is none. */
#define CHOSEN                                                                                 \
    " WHERE (?1 IS NULL OR run_id = ?1) AND (?2 IS NULL OR status = ?2) "                      \
    "AND (?3 IS NULL OR custom_id = ?3) "                                                      \
    "ORDER BY run_id, topic, partition, offset, job_id LIMIT CAST(?4 AS INTEGER)"

static struct rows_query query_of(const struct report_results_options *o, const char *sql,
                                  const char *limit)
{
    return (struct rows_query){.sql = sql, .args = {o->run_id, o->status, o->custom_id, limit}};
}

static int print_table(struct store *store, const struct report_results_options *o,
                       const char *limit, FILE *out, size_t *n, struct err *e)
{
    const int texts = (o->width > 0 ? o->width : WIDTH_DEFAULT) - WIDTH_OTHERS;
    const int width = texts / 2 < WIDTH_TEXT_MIN ? WIDTH_TEXT_MIN : texts / 2;
    const struct rows_column columns[] = {
        {"custom_id", ROWS_TEXT, WIDTH_ID_MAX},
        {"status", ROWS_TEXT, 0},
        {"tokens", ROWS_COUNT, 0},
        {"ms", ROWS_DECIMAL, 0},
        {"question", ROWS_TEXT, width},
        {"answer", ROWS_TEXT, width},
    };
    struct rows_query query =
        query_of(o,
                 "SELECT custom_id, status, completion_tokens, e2e_ms, question, "
                 "coalesce(answer, error_code || ': ' || error_message, error_code) "
                 "FROM v_jobs" CHOSEN,
                 limit);
    query.columns = columns;
    query.n_columns = sizeof columns / sizeof columns[0];
    return rows_print(store, &query, ROWS_TABLE, out, n, e);
}

/* Control characters that a terminal would act on become spaces; line ends and tabs stay. */
static void print_plain(FILE *out, const unsigned char *text, int length)
{
    for (int i = 0; i < length; i++) {
        const unsigned char c = text[i];
        const bool is_c1 = c == 0xc2 && i + 1 < length && text[i + 1] < 0xa0;
        if (is_c1)
            i++;
        fputc((c < 0x20 && c != '\n' && c != '\t') || c == 0x7f || is_c1 ? ' ' : c, out);
    }
}

static void print_column(FILE *out, const char *label, sqlite3_stmt *st, int column)
{
    const unsigned char *text = sqlite3_column_text(st, column);
    if (!text)
        return;
    fputs(label, out);
    print_plain(out, text, sqlite3_column_bytes(st, column));
    fputc('\n', out);
}

static void print_text_row(FILE *out, sqlite3_stmt *st)
{
    print_column(out, "== ", st, 0);
    print_column(out, "Q: ", st, 1);
    print_column(out, "A: ", st, 2);
    print_column(out, "E: ", st, 3);
    fputc('\n', out);
}

static void print_line_row(FILE *out, sqlite3_stmt *st)
{
    fwrite(sqlite3_column_text(st, 0), 1, (size_t)sqlite3_column_bytes(st, 0), out);
    fputc('\n', out);
}

static int print_rows(struct store *store, const struct rows_query *query,
                      void (*print)(FILE *out, sqlite3_stmt *st), FILE *out, size_t *n,
                      struct err *e)
{
    sqlite3 *db = store_handle(store);
    sqlite3_stmt *st = NULL;
    int rc = sqlite3_prepare_v2(db, query->sql, -1, &st, NULL);
    for (int i = 0; i < 4 && rc == SQLITE_OK; i++)
        rc = sqlite3_bind_text(st, i + 1, query->args[i], -1, SQLITE_STATIC);
    while (rc == SQLITE_OK || rc == SQLITE_ROW) {
        rc = sqlite3_step(st);
        if (rc != SQLITE_ROW)
            break;
        print(out, st);
        ++*n;
    }
    const int code = rc == SQLITE_DONE ? 0
                                       : ERR_SET(e, ERR_DB, "cannot read the results: %s",
                                                 sqlite3_errmsg(db));
    sqlite3_finalize(st);
    return code;
}

static int print_form(struct store *store, const struct report_results_options *o, FILE *out,
                      size_t *n, struct err *e)
{
    char limit[32];
    snprintf(limit, sizeof limit, "%" PRId64, o->limit > 0 ? o->limit : -1);
    const struct rows_query objects = query_of(o, "SELECT * FROM v_jobs" CHOSEN, limit);
    const struct rows_query texts =
        query_of(o,
                 "SELECT custom_id, question, answer, error_code || ': ' || "
                 "coalesce(error_message, '') FROM v_jobs" CHOSEN,
                 limit);
    const struct rows_query lines =
        query_of(o, "SELECT line FROM jobs JOIN outbox USING (job_id)" CHOSEN, limit);
    switch (o->form) {
    case REPORT_TABLE: return print_table(store, o, limit, out, n, e);
    case REPORT_TEXT: return print_rows(store, &texts, print_text_row, out, n, e);
    case REPORT_JSON: return rows_print(store, &objects, ROWS_JSON_LINES, out, n, e);
    case REPORT_LINES: return print_rows(store, &lines, print_line_row, out, n, e);
    }
    return ERR_SET(e, ERR_INVALID, "no such form of results");
}

int report_results(struct store *store, const struct report_results_options *options, FILE *out,
                   size_t *n, struct err *e)
{
    size_t count = 0;
    const int code = print_form(store, options, out, &count, e);
    if (n)
        *n = count;
    return code == 0 && ferror(out) ? ERR_SET(e, ERR_IO, "cannot write the results") : code;
}
