/* Statistics of a run: summary, latency, failures. */
#include "report/report.h"

#include <inttypes.h>
#include <sqlite3.h>
#include <stdlib.h>
#include <string.h>

#include "report/rows.h"

#define N(array) (sizeof(array) / sizeof(array)[0])

static const struct rows_column latency_columns[] = {
    {"metric", ROWS_TEXT, 0},    {"n", ROWS_COUNT, 0},        {"mean ms", ROWS_DECIMAL, 0},
    {"p50 ms", ROWS_DECIMAL, 0}, {"p90 ms", ROWS_DECIMAL, 0}, {"p95 ms", ROWS_DECIMAL, 0},
    {"p99 ms", ROWS_DECIMAL, 0}, {"max ms", ROWS_DECIMAL, 0},
};
static const struct rows_column failure_columns[] = {
    {"failure", ROWS_TEXT, 0},
    {"count", ROWS_COUNT, 0},
    {"example", ROWS_TEXT, 24},
    {"message", ROWS_TEXT, 60},
};
static const struct rows_column run_columns[] = {
    {"run", ROWS_TEXT, 40},    {"status", ROWS_TEXT, 0},    {"started", ROWS_DATE, 0},
    {"model", ROWS_TEXT, 30},  {"jobs", ROWS_COUNT, 0},     {"succeeded", ROWS_COUNT, 0},
    {"failed", ROWS_COUNT, 0}, {"jobs/s", ROWS_DECIMAL, 0}, {"answer tok/s", ROWS_DECIMAL, 0},
};

static struct rows_query latency_query(const char *run_id)
{
    return (struct rows_query){
        .sql = "SELECT metric, n, mean_ms, p50_ms, p90_ms, p95_ms, p99_ms, max_ms "
               "FROM v_latency WHERE run_id = ?1 ORDER BY position",
        .args = {run_id},
        .columns = latency_columns,
        .n_columns = N(latency_columns),
    };
}

static struct rows_query failures_query(const char *run_id)
{
    return (struct rows_query){
        .sql = "SELECT error_code, count, example_id, example_message, status "
               "FROM v_failures WHERE run_id = ?1 ORDER BY count DESC, error_code",
        .args = {run_id},
        .columns = failure_columns,
        .n_columns = N(failure_columns),
    };
}

int report_latest_run(struct store *store, char **run_id, struct err *e)
{
    sqlite3 *db = store_handle(store);
    sqlite3_stmt *st = NULL;
    int code = 0;
    *run_id = NULL;
    if (sqlite3_prepare_v2(db, "SELECT run_id FROM runs ORDER BY started_at DESC, run_id DESC",
                           -1, &st, NULL) != SQLITE_OK)
        return ERR_SET(e, ERR_DB, "cannot read the runs: %s", sqlite3_errmsg(db));
    const int rc = sqlite3_step(st);
    if (rc == SQLITE_ROW) {
        const char *text = (const char *)sqlite3_column_text(st, 0);
        *run_id = text ? strdup(text) : NULL;
        if (!*run_id)
            code = ERR_SET(e, ERR_NOMEM, "out of memory");
    } else if (rc == SQLITE_DONE) {
        code = ERR_SET(e, ERR_NOTFOUND, "the database holds no run");
    } else {
        code = ERR_SET(e, ERR_DB, "cannot read the runs: %s", sqlite3_errmsg(db));
    }
    sqlite3_finalize(st);
    return code;
}

/* Copies the given id, or finds the latest; *out is the caller's to free. */
static int choose_run(struct store *store, const char *run_id, char **out, struct err *e)
{
    if (!run_id)
        return report_latest_run(store, out, e);
    *out = strdup(run_id);
    return *out ? 0 : ERR_SET(e, ERR_NOMEM, "out of memory");
}

static int latency(struct store *store, const char *run_id, enum rows_form form, FILE *out,
                   struct err *e)
{
    const struct rows_query query = latency_query(run_id);
    return rows_print(store, &query, form, out, NULL, e);
}

int report_latency(struct store *store, const char *run_id, bool json, FILE *out, struct err *e)
{
    char *run = NULL;
    TRY(choose_run(store, run_id, &run, e));
    const int code = latency(store, run, json ? ROWS_JSON_ARRAY : ROWS_TABLE, out, e);
    if (json)
        fputc('\n', out);
    free(run);
    return code;
}

static void print_rate(FILE *out, sqlite3_stmt *st, int column, const char *unit)
{
    if (sqlite3_column_type(st, column) != SQLITE_NULL)
        fprintf(out, ", %.1f %s", sqlite3_column_double(st, column), unit);
}

static void print_counts(FILE *out, sqlite3_stmt *st)
{
    static const char *const names[] = {"succeeded", "failed", "expired", "cancelled",
                                        "not published"};
    fprintf(out, "jobs    %" PRId64 ":", (int64_t)sqlite3_column_int64(st, 5));
    const char *separator = " ";
    for (int i = 0; i < 5; i++) {
        const int64_t n = sqlite3_column_int64(st, 6 + i);
        if (n == 0 && i > 1)
            continue;
        fprintf(out, "%s%" PRId64 " %s", separator, n, names[i]);
        separator = ", ";
    }
    fputc('\n', out);
}

/* Nothing where no token was drafted. */
static void print_drafts(FILE *out, sqlite3_stmt *st)
{
    const int64_t drafted = sqlite3_column_int64(st, 19);
    const int64_t accepted = sqlite3_column_int64(st, 20);
    if (drafted == 0)
        return;
    fprintf(out,
            "drafts  %" PRId64 " tokens: %" PRId64 " accepted, %" PRId64 " rejected; %.2f "
            "tokens a step\n",
            drafted, accepted, drafted - accepted, sqlite3_column_double(st, 21));
    const char *by_source = (const char *)sqlite3_column_text(st, 22);
    const char *by_depth = (const char *)sqlite3_column_text(st, 23);
    if (by_source && by_depth)
        fprintf(out, "        accepted of %s; by depth %s\n", by_source, by_depth);
}

/* Columns as in summary_sql. */
static void print_summary(FILE *out, sqlite3_stmt *st)
{
    fprintf(out, "run     %s (%s)\n", (const char *)sqlite3_column_text(st, 0),
            (const char *)sqlite3_column_text(st, 1));
    fprintf(out, "model   %s, %s, %s kernels\n", (const char *)sqlite3_column_text(st, 2),
            (const char *)sqlite3_column_text(st, 3), (const char *)sqlite3_column_text(st, 4));
    print_counts(out, st);
    if (sqlite3_column_type(st, 18) != SQLITE_NULL)
        fprintf(out, "steps   %s\n", (const char *)sqlite3_column_text(st, 18));
    fprintf(out,
            "tokens  %" PRId64 " of prompts (%" PRId64 " from the cache), %" PRId64
            " of answers\n",
            (int64_t)sqlite3_column_int64(st, 11), (int64_t)sqlite3_column_int64(st, 12),
            (int64_t)sqlite3_column_int64(st, 13));
    print_drafts(out, st);
    if (sqlite3_column_type(st, 14) == SQLITE_NULL)
        return;
    fprintf(out, "time    %.1f s", sqlite3_column_double(st, 14));
    print_rate(out, st, 15, "jobs/s");
    print_rate(out, st, 16, "prompt tokens/s");
    print_rate(out, st, 17, "answer tokens/s");
    fputc('\n', out);
}

/* The one in brackets: how long a step of so many rows took at start, if that was measured. */
static const char summary_sql[] =
    "SELECT run_id, status, model, quant, kernels, jobs, succeeded, failed, expired, "
    "cancelled, unpublished, prompt_tokens, cached_tokens, completion_tokens, busy_s, jobs_s, "
    "prompt_tok_s, completion_tok_s, "
    "(SELECT group_concat(printf('%d rows %.1f ms', json_extract(value, '$.rows'), "
    "json_extract(value, '$.us') / 1000.0), ', ') || printf('; prompts by %d', "
    "json_extract(engine_json, '$.chunk_tokens')) FROM json_each(engine_json, "
    "'$.calibration')), draft_tokens, accepted_tokens, tokens_per_step, "
    "(SELECT group_concat(printf('%s %.0f %%', source, 100.0 * a / d), ', ') FROM (SELECT "
    "source, sum(accepted) AS a, sum(drafted) AS d FROM v_spec WHERE run_id = ?1 AND source "
    "<> 'all' GROUP BY source ORDER BY source)), "
    "(SELECT group_concat(printf('%d: %.0f %%', depth, 100.0 * a / d), ', ') FROM (SELECT "
    "depth, sum(accepted) AS a, sum(drafted) AS d FROM v_spec WHERE run_id = ?1 AND source "
    "= 'all' AND depth <= 8 GROUP BY depth ORDER BY depth)) "
    "FROM v_runs WHERE run_id = ?1";

static int summary_text(struct store *store, const char *run_id, FILE *out, struct err *e)
{
    sqlite3 *db = store_handle(store);
    sqlite3_stmt *st = NULL;
    int code = 0;
    if (sqlite3_prepare_v2(db, summary_sql, -1, &st, NULL) != SQLITE_OK ||
        sqlite3_bind_text(st, 1, run_id, -1, SQLITE_STATIC) != SQLITE_OK) {
        code = ERR_SET(e, ERR_DB, "cannot read the run: %s", sqlite3_errmsg(db));
    } else {
        const int rc = sqlite3_step(st);
        if (rc == SQLITE_ROW)
            print_summary(out, st);
        else if (rc == SQLITE_DONE)
            code = ERR_SET(e, ERR_NOTFOUND, "the database holds no run %s", run_id);
        else
            code = ERR_SET(e, ERR_DB, "cannot read the run: %s", sqlite3_errmsg(db));
    }
    sqlite3_finalize(st);
    return code;
}

static int has_failures(struct store *store, const char *run_id, bool *out, struct err *e)
{
    sqlite3 *db = store_handle(store);
    sqlite3_stmt *st = NULL;
    int rc = sqlite3_prepare_v2(
        db, "SELECT 1 FROM jobs WHERE run_id = ?1 AND status <> 'succeeded' LIMIT 1", -1, &st,
        NULL);
    if (rc == SQLITE_OK)
        rc = sqlite3_bind_text(st, 1, run_id, -1, SQLITE_STATIC);
    if (rc == SQLITE_OK)
        rc = sqlite3_step(st);
    *out = rc == SQLITE_ROW;
    const int code = rc == SQLITE_ROW || rc == SQLITE_DONE
                         ? 0
                         : ERR_SET(e, ERR_DB, "cannot read the jobs: %s", sqlite3_errmsg(db));
    sqlite3_finalize(st);
    return code;
}

static int print_run_text(struct store *store, const char *run_id, FILE *out, struct err *e)
{
    bool any;
    TRY(summary_text(store, run_id, out, e));
    TRY(has_failures(store, run_id, &any, e));
    if (!any)
        return 0;
    const struct rows_query query = failures_query(run_id);
    fputc('\n', out);
    return rows_print(store, &query, ROWS_TABLE, out, NULL, e);
}

static int print_run_json(struct store *store, const char *run_id, FILE *out, struct err *e)
{
    const struct rows_query query = {.sql = "SELECT * FROM v_runs WHERE run_id = ?1",
                                     .args = {run_id}};
    size_t n = 0;
    TRY(rows_print(store, &query, ROWS_JSON_FIRST, out, &n, e));
    return n ? 0 : ERR_SET(e, ERR_NOTFOUND, "the database holds no run %s", run_id);
}

int report_run_summary(struct store *store, const char *run_id, bool json, FILE *out,
                       struct err *e)
{
    char *run = NULL;
    TRY(choose_run(store, run_id, &run, e));
    const int code =
        json ? print_run_json(store, run, out, e) : print_run_text(store, run, out, e);
    if (json)
        fputc('\n', out);
    free(run);
    return code;
}

int report_runs(struct store *store, bool json, FILE *out, struct err *e)
{
    const struct rows_query query = {
        .sql = "SELECT run_id, status, started_at, model, jobs, succeeded, failed, jobs_s, "
               "completion_tok_s FROM v_runs ORDER BY started_at, run_id",
        .columns = run_columns,
        .n_columns = N(run_columns),
    };
    return rows_print(store, &query, json ? ROWS_JSON_LINES : ROWS_TABLE, out, NULL, e);
}

static int stats_json(struct store *store, const char *run_id, FILE *out, struct err *e)
{
    const struct rows_query failures = failures_query(run_id);
    const struct rows_query slowest = {
        .sql = "SELECT custom_id, e2e_ms, ttft_ms, tpot_ms, prompt_tokens, completion_tokens "
               "FROM v_slowest WHERE run_id = ?1 ORDER BY rank",
        .args = {run_id}};
    fputs("{\"run\":", out);
    TRY(print_run_json(store, run_id, out, e));
    fputs(",\"latency\":", out);
    TRY(latency(store, run_id, ROWS_JSON_ARRAY, out, e));
    fputs(",\"failures\":", out);
    TRY(rows_print(store, &failures, ROWS_JSON_ARRAY, out, NULL, e));
    fputs(",\"slowest\":", out);
    TRY(rows_print(store, &slowest, ROWS_JSON_ARRAY, out, NULL, e));
    fputs("}\n", out);
    return 0;
}

int report_stats(struct store *store, const char *run_id, bool json, FILE *out, struct err *e)
{
    char *run = NULL;
    int code = 0;
    TRY(choose_run(store, run_id, &run, e));
    if (json) {
        code = stats_json(store, run, out, e);
    } else {
        code = print_run_text(store, run, out, e);
        fputc('\n', out);
        if (code == 0)
            code = latency(store, run, ROWS_TABLE, out, e);
    }
    free(run);
    return code == 0 && ferror(out) ? ERR_SET(e, ERR_IO, "cannot write the report") : code;
}
