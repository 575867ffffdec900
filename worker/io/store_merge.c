#include "io/store_merge.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/buf.h"
#include "io/store_int.h"
#include "io/store_upkeep.h"

/* ------------------------------------------------------------------ the other database */

struct verdict {
    char text[256]; /* the first complaint */
};

static void keep_first(void *ctx, const char *sentence)
{
    struct verdict *v = ctx;
    if (!v->text[0])
        snprintf(v->text, sizeof v->text, "%s", sentence);
}

static int check_input(const char *path, struct err *e)
{
    struct store *s = NULL;
    struct verdict verdict = {{0}};
    struct store_census census;
    size_t n_faults = 0;
    TRY(store_open(path, STORE_READER, &s, e));
    int code = store_check(s, keep_first, &verdict, &n_faults, &census, e);
    store_close(s);
    if (code == 0 && n_faults > 0)
        code = ERR_SET(e, ERR_FORMAT, "%s is damaged (%s): it is not merged; " STORE_ADVICE,
                       path, verdict.text);
    return code;
}

static bool has_log(const char *path)
{
    struct buf name = {0};
    struct stat st;
    buf_printf(&name, "%s-wal", path);
    const bool has = !buf_ok(&name) || stat(buf_str(&name), &st) == 0;
    buf_fini(&name);
    return has;
}

/* Without a log, be it empty, nobody writes, and SQLite leaves nothing beside the file. */
static char *make_uri(const char *path)
{
    struct buf uri = {0};
    char *real = realpath(path, NULL); /* a log lies beside the file, not beside a link to it */
    const char *file = real ? real : path;
    store_append_uri(&uri, file, has_log(file) ? "?mode=ro" : "?mode=ro&immutable=1");
    free(real);
    char *text = buf_ok(&uri) ? buf_take(&uri) : NULL;
    buf_fini(&uri);
    return text;
}

static int attach(struct store *s, const char *path, struct err *e)
{
    sqlite3_stmt *st = NULL;
    char *uri = make_uri(path);
    int code = 0;
    if (!uri)
        return ERR_SET(e, ERR_NOMEM, "out of memory");
    if (sqlite3_prepare_v2(s->db, "ATTACH ?1 AS other", -1, &st, NULL) != SQLITE_OK ||
        sqlite3_bind_text(st, 1, uri, -1, SQLITE_STATIC) != SQLITE_OK ||
        sqlite3_step(st) != SQLITE_DONE)
        code = store_fail(s, e, "open the other database");
    sqlite3_finalize(st);
    free(uri);
    return code;
}

static int refuse_itself(struct store *s, const char *path, struct err *e)
{
    struct stat a, b;
    if (stat(s->path, &a) == 0 && stat(path, &b) == 0 && a.st_ino == b.st_ino &&
        a.st_dev == b.st_dev)
        return ERR_SET(e, ERR_USAGE, "%s cannot be merged into itself", path);
    return 0;
}

/* ------------------------------------------------------------------ rows */

static int refuse_other_models(struct store *s, const char *path, struct err *e)
{
    static const char sql[] =
        "SELECT o.run_id, o.model, m.model FROM other.runs o JOIN main.runs m USING (run_id) "
        "WHERE o.model_sha256 <> m.model_sha256 AND '' NOT IN (o.model_sha256, "
        "m.model_sha256)";
    sqlite3_stmt *st = NULL;
    int code = 0;
    int rc = sqlite3_prepare_v2(s->db, sql, -1, &st, NULL);
    if (rc == SQLITE_OK)
        rc = sqlite3_step(st);
    if (rc == SQLITE_ROW)
        code = ERR_SET(e, ERR_STATE,
                       "%s: run %s is of model %s, and %s has a run of that name of model %s; "
                       "they cannot be one",
                       path, (const char *)sqlite3_column_text(st, 0),
                       (const char *)sqlite3_column_text(st, 1), s->path,
                       (const char *)sqlite3_column_text(st, 2));
    else if (rc != SQLITE_DONE)
        code = store_fail(s, e, "compare the runs");
    sqlite3_finalize(st);
    return code;
}

/* The columns of a table, without those named; generated ones are no columns here. */
static int list_columns(struct store *s, const char *table, const char *without,
                        const char *prefix, struct buf *out, struct err *e)
{
    sqlite3_stmt *st = NULL;
    int rc = sqlite3_prepare_v2(s->db,
                                "SELECT name FROM pragma_table_info(?1, 'main') "
                                "WHERE name <> ?2 ORDER BY cid",
                                -1, &st, NULL);
    if (rc == SQLITE_OK)
        rc = sqlite3_bind_text(st, 1, table, -1, SQLITE_STATIC);
    if (rc == SQLITE_OK)
        rc = sqlite3_bind_text(st, 2, without, -1, SQLITE_STATIC);
    while (rc == SQLITE_OK || rc == SQLITE_ROW) {
        rc = sqlite3_step(st);
        if (rc == SQLITE_ROW)
            buf_printf(out, ", %s\"%s\"", prefix, (const char *)sqlite3_column_text(st, 0));
    }
    const int code = rc == SQLITE_DONE ? 0 : store_fail(s, e, "list the columns");
    sqlite3_finalize(st);
    if (code == 0 && !buf_ok(out))
        return ERR_SET(e, ERR_NOMEM, "out of memory");
    return code;
}

/* The rows of a table that belong to the jobs in `moved`, under their new numbers. */
static int copy_table(struct store *s, const char *table, struct err *e)
{
    struct buf columns = {0}, values = {0}, sql = {0};
    int code = 0;
    TRY_OUT(code, list_columns(s, table, "job_id", "", &columns, e));
    TRY_OUT(code, list_columns(s, table, "job_id", "t.", &values, e));
    buf_printf(&sql,
               "INSERT INTO main.%s (job_id%s) SELECT m.new_id%s FROM other.%s t "
               "JOIN moved m ON m.old_id = t.job_id",
               table, buf_str(&columns), buf_str(&values), table);
    if (!buf_ok(&sql))
        TRY_OUT(code, ERR_SET(e, ERR_NOMEM, "out of memory"));
    code = store_exec(s, buf_str(&sql), "copy rows", e);
out:
    buf_fini(&columns);
    buf_fini(&values);
    buf_fini(&sql);
    return code;
}

static const char run_rows[] =
    "INSERT INTO main.runs SELECT * FROM other.runs WHERE true ON CONFLICT DO UPDATE SET "
    "label = coalesce(label, excluded.label), "
    "model = CASE model WHEN '' THEN excluded.model ELSE model END, "
    "quant = CASE quant WHEN '' THEN excluded.quant ELSE quant END, "
    "kernels = CASE kernels WHEN '' THEN excluded.kernels ELSE kernels END, "
    "version = CASE version WHEN '' THEN excluded.version ELSE version END, "
    "engine_json = CASE model_sha256 WHEN '' THEN excluded.engine_json ELSE engine_json END, "
    "model_sha256 = CASE model_sha256 WHEN '' THEN excluded.model_sha256 "
    "ELSE model_sha256 END, "
    "status = CASE WHEN 'in_progress' IN (status, excluded.status) THEN 'in_progress' "
    "WHEN 'failed' IN (status, excluded.status) THEN 'failed' "
    "WHEN 'cancelled' IN (status, excluded.status) THEN 'cancelled' ELSE status END, "
    "started_at = min(started_at, excluded.started_at), "
    "ended_at = CASE WHEN 'in_progress' IN (status, excluded.status) THEN NULL "
    "ELSE max(coalesce(ended_at, excluded.ended_at), coalesce(excluded.ended_at, ended_at)) "
    "END, "
    "starts = max(starts, excluded.starts);";

/*
 * What is there of each job, under a key: our own result ids are made of place and payload, and
 * are known also where a result line had no headers to tell these (store_receive.h); other
 * rows go by place and payload themselves. A job that came twice at one place (with another in
 * between) counts once, by its latest row. rank: 4 published, 2 waiting, 0 superseded or
 * without a line; one more when the whole payload hash is known.
 */
#define FILE_RUN "CASE j.is_file WHEN 1 THEN j.run_id ELSE '' END"
#define JOB_KEY                                                                                \
    "j.is_file || ' ' || " FILE_RUN " || ' ' || CASE WHEN length(j.result_id) = 42 "           \
    "AND j.result_id GLOB 'batch_req_*' THEN j.result_id || ' ' || j.custom_id "               \
    "ELSE j.topic || ' ' || j.partition || ' ' || j.offset || ' ' || j.payload_sha256 END"
#define RANK(schema)                                                                           \
    "(substr(j.payload_sha256, 17) GLOB '*[^0]*') + coalesce((SELECT CASE WHEN "               \
    "b.published_at IS NOT NULL THEN 4 WHEN b.superseded_at IS NULL THEN 2 END "               \
    "FROM " schema ".outbox b WHERE b.job_id = j.job_id), 0)"
#define LATEST(schema)                                                                         \
    "SELECT j.job_id, j.topic, j.partition, j.offset, j.is_file, " FILE_RUN                    \
    " AS file_run, " JOB_KEY " AS job_key, j.is_current, j.stored_at, " RANK(                  \
        schema) " AS rank, "                                                                   \
                "row_number() OVER (PARTITION BY " JOB_KEY " ORDER BY j.is_current DESC, "     \
                "j.stored_at DESC, j.job_id) AS nth FROM " schema ".jobs j"

static const char plan[] = "CREATE TEMP TABLE here AS SELECT * FROM (" LATEST(
    "main") ") WHERE nth = 1;"
            "CREATE INDEX temp.here_by_place ON here (topic, partition, offset);"
            "CREATE INDEX temp.here_by_key ON here (job_key);"
            "CREATE TEMP TABLE there AS SELECT * FROM (" LATEST(
                "other") ") WHERE nth = 1;"
                         "CREATE TEMP TABLE moved (old_id INTEGER PRIMARY KEY, new_id INTEGER "
                         "UNIQUE, "
                         "replaces INTEGER, rival INTEGER, is_current INTEGER, stored_at REAL);"
                         /* rows that have no equal here, or a lesser one */
                         "INSERT INTO moved (old_id, replaces, is_current, stored_at) "
                         "SELECT o.job_id, m.job_id, max(o.is_current, coalesce(m.is_current, "
                         "0)), o.stored_at "
                         "FROM there o LEFT JOIN here m ON m.job_key = o.job_key "
                         "WHERE m.job_id IS NULL OR m.rank < o.rank;"
                         /* another current job at the same place: the younger one stays current
                          */
                         "UPDATE moved SET rival = (SELECT m.job_id FROM there o JOIN here m "
                         "ON m.topic = o.topic AND m.partition = o.partition AND m.offset = "
                         "o.offset "
                         "AND m.is_file = o.is_file AND m.file_run = o.file_run "
                         "WHERE o.job_id = old_id AND m.is_current = 1 AND m.job_key <> "
                         "o.job_key) "
                         "WHERE is_current = 1;"
                         "UPDATE moved SET is_current = stored_at > (SELECT h.stored_at FROM "
                         "here h "
                         "WHERE h.job_id = rival) WHERE rival IS NOT NULL;"
                         "UPDATE moved SET new_id = nth + coalesce((SELECT max(job_id) FROM "
                         "main.jobs), 0) "
                         "FROM (SELECT old_id AS id, row_number() OVER (ORDER BY old_id) AS "
                         "nth FROM moved) "
                         "WHERE id = old_id;";

static const char make_room[] =
    "DELETE FROM main.jobs WHERE job_id IN (SELECT replaces FROM moved);"
    "DELETE FROM main.outbox WHERE job_id IN (SELECT rival FROM moved WHERE is_current = 1);"
    "UPDATE main.jobs SET is_current = 0 "
    "WHERE job_id IN (SELECT rival FROM moved WHERE is_current = 1);";

/* Those that became history have no line, as a worker's have none. */
static const char tidy_up[] =
    "DELETE FROM main.outbox WHERE job_id IN (SELECT new_id FROM moved WHERE is_current = 0);"
    "INSERT INTO main.lost_ranges (topic, partition, first_offset, last_offset, reason, "
    "detected_at) SELECT topic, partition, first_offset, last_offset, reason, detected_at "
    "FROM other.lost_ranges o WHERE NOT EXISTS (SELECT 1 FROM main.lost_ranges m "
    "WHERE m.topic = o.topic AND m.partition = o.partition "
    "AND m.first_offset = o.first_offset AND m.last_offset = o.last_offset);";

/* is_current is that of the plan, not the other database's. */
static int copy_jobs(struct store *s, struct err *e)
{
    struct buf columns = {0}, values = {0}, sql = {0};
    int code = 0;
    TRY_OUT(code, list_columns(s, "jobs", "job_id", "", &columns, e));
    TRY_OUT(code, list_columns(s, "jobs", "job_id", "t.", &values, e));
    buf_printf(&sql, "INSERT INTO main.jobs (job_id%s) SELECT m.new_id", buf_str(&columns));
    buf_append_str(&sql, buf_str(&values));
    const char *flag = "t.\"is_current\"";
    char *at = strstr(sql.data ? sql.data : "", flag);
    if (!buf_ok(&sql) || !at)
        TRY_OUT(code, ERR_SET(e, ERR_NOMEM, "out of memory"));
    at[0] = 'm';
    buf_append_str(&sql, " FROM other.jobs t JOIN moved m ON m.old_id = t.job_id");
    if (!buf_ok(&sql))
        TRY_OUT(code, ERR_SET(e, ERR_NOMEM, "out of memory"));
    code = store_exec(s, buf_str(&sql), "copy the jobs", e);
out:
    buf_fini(&columns);
    buf_fini(&values);
    buf_fini(&sql);
    return code;
}

static int copy_experiments(struct store *s, struct err *e)
{
    struct buf columns = {0}, sql = {0};
    int code = 0;
    TRY_OUT(code, list_columns(s, "experiments", "row_id", "", &columns, e));
    const char *list = buf_str(&columns) + 1; /* without the first comma */
    buf_printf(&sql,
               "INSERT OR IGNORE INTO main.experiments (%s) SELECT %s FROM other.experiments",
               list, list);
    if (!buf_ok(&sql))
        TRY_OUT(code, ERR_SET(e, ERR_NOMEM, "out of memory"));
    code = store_exec(s, buf_str(&sql), "copy the experiments", e);
out:
    buf_fini(&columns);
    buf_fini(&sql);
    return code;
}

static int count_moved(struct store *s, struct merge_counts *counts, struct err *e)
{
    int64_t all = 0, moved = 0, replaced = 0;
    TRY(store_query_s64(s, "SELECT count(*) FROM other.jobs", &all, e));
    TRY(store_query_s64(s, "SELECT count(*) FROM moved", &moved, e));
    TRY(store_query_s64(s, "SELECT count(replaces) FROM moved", &replaced, e));
    counts->added += moved - replaced;
    counts->replaced += replaced;
    counts->kept += all - moved;
    return 0;
}

static int merge_rows(struct store *s, struct merge_counts *counts, struct err *e)
{
    static const char *const tables[] = {"outputs", "job_documents", "job_drafts", "outbox"};
    TRY(store_exec(s, run_rows, "join the runs", e));
    TRY(store_exec(s, plan, "compare the jobs", e));
    TRY(count_moved(s, counts, e));
    TRY(store_exec(s, make_room, "make room", e));
    TRY(copy_jobs(s, e));
    for (size_t i = 0; i < sizeof tables / sizeof tables[0]; i++)
        TRY(copy_table(s, tables[i], e));
    TRY(store_exec(s, tidy_up, "tidy up", e));
    return copy_experiments(s, e);
}

static int merge_attached(struct store *s, const char *path, struct merge_counts *counts,
                          struct err *e)
{
    struct merge_counts sum = *counts;
    int code = 0;
    TRY(store_begin(s, e));
    TRY_OUT(code, refuse_other_models(s, path, e));
    TRY_OUT(code, merge_rows(s, &sum, e));
    TRY_OUT(code, store_commit(s, e));
    *counts = sum;
out:
    store_rollback(s);
    return code;
}

int store_merge(struct store *into, const char *path, struct merge_counts *counts,
                struct err *e)
{
    TRY(refuse_itself(into, path, e));
    TRY(check_input(path, e));
    TRY(attach(into, path, e));
    const int code = merge_attached(into, path, counts, e);
    err_prefix(e, "merging %s", path);
    sqlite3_exec(into->db,
                 "DROP TABLE IF EXISTS temp.here; "
                 "DROP TABLE IF EXISTS temp.there; DROP TABLE IF EXISTS temp.moved;",
                 NULL, NULL, NULL);
    if (sqlite3_exec(into->db, "DETACH other", NULL, NULL, NULL) != SQLITE_OK && code == 0)
        return store_fail(into, e, "close the other database");
    return code;
}
