/*
 * The thin layer over SQLite: errors as sentences, cached statements, transactions.
 *
 * Which failures are worth another try: a full disk, a failed read or write, a lock that
 * someone holds for long (ERR_RETRY). A damaged database is not (ERR_FATAL).
 */
#include "io/store_int.h"

#include <errno.h>
#include <string.h>

#include "base/check.h"
#include "io/store_upkeep.h"

#define LINES_OF_RUN                                                                           \
    "run_id = ?1 AND topic = ?2 AND partition = 0 AND offset BETWEEN ?3 AND ?4 "               \
    "AND is_file = 1 AND is_current = 1"
#define FIND_COLUMNS                                                                           \
    "SELECT j.job_id, j.attempt, j.payload_sha256 = ?4, j.run_id = ?5, "                       \
    "b.published_at IS NOT NULL, b.line "                                                      \
    "FROM jobs j LEFT JOIN outbox b ON b.job_id = j.job_id "                                   \
    "WHERE j.topic = ?1 AND j.partition = ?2 AND j.offset = ?3 AND j.is_current = 1 "
#define RECEIVE_COLUMNS                                                                        \
    "SELECT j.job_id, j.attempt, j.payload_sha256, j.run_id = ?3, b.line, j.topic, "           \
    "j.partition, j.offset FROM jobs j LEFT JOIN outbox b ON b.job_id = j.job_id "

/* Columns by hand, then one for every row of metrics.def. */
static const char job_insert[] =
    "INSERT INTO jobs (run_id, custom_id, topic, partition, offset, is_file, payload_sha256, "
    "attempt, result_id, worker_id, dialect, model, prefix_group, status, finish_reason, "
    "stop_reason, error_status, error_code, error_type, error_param, error_message, warnings, "
    "metadata_json, miss_reason, submitted_at, admitted_at, finished_at, stored_at, "
#define METRIC(column, field, unit, help) #column ", "
#include "schema/metrics.def"
#undef METRIC
    "turnaround_us) VALUES (:run_id, :custom_id, :topic, :partition, :offset, :is_file, "
    ":payload_sha256, :attempt, :result_id, :worker_id, :dialect, :model, :prefix_group, "
    ":status, :finish_reason, :stop_reason, :error_status, :error_code, :error_type, "
    ":error_param, :error_message, :warnings, "
    "CASE WHEN json_valid(:metadata_json) THEN :metadata_json END, "
    ":miss_reason, :submitted_at, :admitted_at, :finished_at, :stored_at, "
#define METRIC(column, field, unit, help) ":" #column ", "
#include "schema/metrics.def"
#undef METRIC
    ":turnaround_us)";

static const char experiment_insert[] =
    "INSERT INTO experiments (experiment_id, lever, name, job_kind, repeat, position, "
    "lever_on, "
#define FIGURE(column, kind, help) #column ", "
#include "schema/experiments.def"
#undef FIGURE
    "cpu, kernels, model, model_sha256, quant, version, settings_json, started_at) VALUES "
    "(:experiment_id, :lever, :name, :job_kind, :repeat, :position, :lever_on, "
#define FIGURE(column, kind, help) ":" #column ", "
#include "schema/experiments.def"
#undef FIGURE
    ":cpu, :kernels, :model, :model_sha256, :quant, :version, "
    "CASE WHEN json_valid(:settings_json) THEN :settings_json END, :started_at)";

/* The columns that store_result_headers.c reads, in its order. */
static const char headers_job[] =
    "SELECT j.attempt, j.custom_id, j.status, j.dialect, j.worker_id, j.result_id, "
    "j.payload_sha256, j.prefix_group, j.submitted_at, j.admitted_at, j.stored_at, j.run_id, "
    "r.model_sha256, r.quant, r.kernels, r.version, j.miss_reason, r.started_at, "
    "j.finished_at, "
    "j.model"
#define METRIC(column, field, unit, help) ", j." #column
#include "schema/metrics.def"
#undef METRIC
    " FROM jobs j JOIN runs r ON r.run_id = j.run_id WHERE j.job_id = ?1";

static const char *const texts[STORE_SQL_COUNT] = {
    [SQL_BEGIN] = "BEGIN IMMEDIATE",
    [SQL_COMMIT] = "COMMIT",
    [SQL_META_FIND] = "SELECT value FROM meta WHERE key = ?1 || ?2",
    [SQL_META_SET] = "INSERT INTO meta (key, value) VALUES (?1 || ?2, ?3) "
                     "ON CONFLICT DO NOTHING",
    [SQL_RUN_FIND] = "SELECT model, model_sha256 FROM runs WHERE run_id = ?1",
    [SQL_RUN_INSERT] =
        "INSERT INTO runs (run_id, label, model, model_sha256, quant, kernels, engine_json, "
        "version, started_at) VALUES (?1, ?2, ?3, ?4, ?5, ?6, CASE WHEN json_valid(?7) THEN ?7 "
        "END, ?8, ?9)",
    [SQL_RUN_REOPEN] =
        "UPDATE runs SET status = 'in_progress', ended_at = NULL, counters_json = NULL, "
        "starts = starts + 1, "
        "kernels = ?2, engine_json = CASE WHEN json_valid(?3) THEN ?3 END, version = ?4, label "
        "= coalesce(?5, label) "
        "WHERE run_id = ?1",
    [SQL_RUN_END] =
        "UPDATE runs SET status = ?2, counters_json = ?3, ended_at = ?4 WHERE run_id = ?1",
    [SQL_RUN_FAILED] = "SELECT count(*) FROM jobs WHERE run_id = ?1 AND status <> 'succeeded'",
    [SQL_FIND_RECORD] = FIND_COLUMNS "AND j.is_file = 0",
    [SQL_FIND_LINE] = FIND_COLUMNS "AND j.is_file = 1 AND j.run_id = ?5",
    [SQL_JOB_INSERT] = job_insert,
    [SQL_JOB_RETIRE] = "UPDATE jobs SET is_current = 0 WHERE job_id = ?1",
    [SQL_JOB_DELETE] = "DELETE FROM jobs WHERE job_id = ?1",
    [SQL_OUTPUT_INSERT] = "INSERT INTO outputs (job_id, question, text, expect_json) "
                          "VALUES (?1, ?2, ?3, CASE WHEN json_valid(?4) THEN ?4 END)",
    [SQL_DOCUMENT_INSERT] =
        "INSERT INTO job_documents (job_id, position, doc_id, title, bytes) "
        "VALUES (?1, ?2, ?3, ?4, ?5)",
    [SQL_DRAFT_INSERT] = "INSERT INTO job_drafts (job_id, source, depth, drafted, accepted) "
                         "VALUES (?1, ?2, ?3, ?4, ?5)",
    [SQL_OUTBOX_INSERT] = "INSERT INTO outbox (job_id, line) VALUES (?1, ?2)",
    [SQL_OUTBOX_DELETE] = "DELETE FROM outbox WHERE job_id = ?1",
    [SQL_OUTBOX_MARK] = "UPDATE outbox SET published_at = ?2, superseded_at = NULL "
                        "WHERE job_id = ?1 AND published_at IS NULL",
    [SQL_OUTBOX_OFFER] = "UPDATE outbox SET offered_at = ?2 "
                         "WHERE job_id = ?1 AND published_at IS NULL",
    [SQL_OUTBOX_WITHDRAW] = "UPDATE outbox SET offered_at = NULL "
                            "WHERE job_id = ?1 AND ?2 IS NOT NULL AND published_at IS NULL",
    [SQL_OUTBOX_SUPERSEDE] = "UPDATE outbox SET superseded_at = ?2 "
                             "WHERE job_id = ?1 AND published_at IS NULL",
    [SQL_OUTBOX_OPEN] = "SELECT j.job_id, j.offset, b.offered_at IS NOT NULL FROM outbox b "
                        "JOIN jobs j ON j.job_id = b.job_id WHERE b.published_at IS NULL "
                        "AND b.superseded_at IS NULL AND j.is_file = 0 AND j.is_current = 1 "
                        "AND j.topic = ?1 AND j.partition = ?2",
    [SQL_JOB_ERROR] = "SELECT error_status, error_code, error_type, error_param, error_message "
                      "FROM jobs WHERE job_id = ?1 AND status <> 'succeeded'",
    [SQL_OUTBOX_LINE] = "SELECT line FROM outbox WHERE job_id = ?1 AND published_at IS NULL",
    [SQL_EACH_UNPUBLISHED] =
        "SELECT j.job_id, j.topic, j.partition, j.offset, j.submitted_at, j.is_file, "
        "j.custom_id FROM outbox b JOIN jobs j ON j.job_id = b.job_id "
        "WHERE b.published_at IS NULL AND b.superseded_at IS NULL "
        "AND (j.is_file = 0 OR j.run_id = ?1) "
        "ORDER BY j.topic, j.partition, j.offset",
    [SQL_SINK_FIND] =
        "SELECT path, bytes, is_stale FROM sinks WHERE run_id = ?1 AND topic = ?2",
    [SQL_SINK_SET] = "INSERT INTO sinks (run_id, topic, path, bytes) VALUES (?1, ?2, ?3, ?4) "
                     "ON CONFLICT DO UPDATE SET path = excluded.path, bytes = excluded.bytes",
    [SQL_SINK_STALE] = "UPDATE sinks SET is_stale = ?3 WHERE run_id = ?1 AND topic = ?2",
    [SQL_SINK_UNMARK] =
        "UPDATE outbox SET published_at = NULL WHERE job_id IN (SELECT job_id FROM jobs "
        "WHERE run_id = ?1 AND topic = ?2 AND is_file = 1 AND is_current = 1)",
    [SQL_LINES_COUNT] =
        "SELECT count(*), count(b.published_at) FROM jobs j LEFT JOIN outbox b USING (job_id) "
        "WHERE " LINES_OF_RUN,
    [SQL_LINES_DELETE] = "DELETE FROM jobs WHERE " LINES_OF_RUN,
    [SQL_EXPERIMENT_INSERT] = experiment_insert,
    [SQL_CRASH_ADD] =
        "INSERT INTO crashes (topic, partition, offset, payload_sha256, strikes, deaths, "
        "seen_at) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7) ON CONFLICT DO UPDATE SET "
        "strikes = strikes + excluded.strikes, deaths = deaths + excluded.deaths, "
        "seen_at = excluded.seen_at",
    [SQL_CRASH_FORGET] = "DELETE FROM crashes WHERE topic = ?1 AND partition = ?2 "
                         "AND offset = ?3 AND payload_sha256 = ?4",
    [SQL_CRASH_PRUNE] = "DELETE FROM crashes WHERE seen_at < ?1",
    [SQL_CRASH_EACH] =
        "SELECT topic, partition, offset, payload_sha256, strikes, deaths FROM crashes",
    /* Of a run that only its results tell of; what one does not know the next may. */
    [SQL_RECEIVE_RUN] =
        "INSERT INTO runs (run_id, model, model_sha256, quant, kernels, engine_json, version, "
        "started_at) VALUES (?1, ?2, ?3, ?4, ?5, '{}', ?6, ?7) "
        "ON CONFLICT DO UPDATE SET "
        "model = CASE model WHEN '' THEN excluded.model ELSE model END, "
        "model_sha256 = CASE model_sha256 WHEN '' THEN excluded.model_sha256 "
        "ELSE model_sha256 END, "
        "quant = CASE quant WHEN '' THEN excluded.quant ELSE quant END, "
        "kernels = CASE kernels WHEN '' THEN excluded.kernels ELSE kernels END, "
        "version = CASE version WHEN '' THEN excluded.version ELSE version END, "
        "started_at = min(started_at, excluded.started_at) "
        "WHERE started_at > excluded.started_at OR '' IN (model, model_sha256, quant, kernels, "
        "version)",
    [SQL_RECEIVE_PLACE] = RECEIVE_COLUMNS
    "WHERE j.topic = ?1 AND j.partition = ?2 AND j.offset = ?4 AND j.is_current = 1 "
    "AND j.is_file = 0",
    [SQL_RECEIVE_FIND] = RECEIVE_COLUMNS
    "WHERE j.custom_id = ?1 AND j.result_id = ?2 AND j.is_current = 1 AND j.is_file = 0",
    [SQL_RECEIVE_MARK] = "UPDATE outbox SET published_at = ?2 WHERE job_id = ?1",
    [SQL_POSITION_SET] =
        "INSERT INTO result_offsets (topic, partition, next_offset, updated_at) "
        "VALUES (?1, ?2, ?3, ?4) ON CONFLICT DO UPDATE SET next_offset = excluded.next_offset, "
        "updated_at = excluded.updated_at",
    [SQL_HEADERS_JOB] = headers_job,
    [SQL_HEADERS_DOCUMENTS] =
        "SELECT doc_id, title, bytes FROM job_documents WHERE job_id = ?1 ORDER BY position",
    [SQL_HEADERS_DRAFTS] = "SELECT source, depth, drafted, accepted FROM job_drafts "
                           "WHERE job_id = ?1 ORDER BY source, depth",
    [SQL_POSITION_NOTE] =
        "INSERT INTO meta VALUES ('result ' || ?1 || ' ' || ?2, ?3 || ' ' || ?4) "
        "ON CONFLICT DO UPDATE SET value = excluded.value",
};

static unsigned flags_of(int primary)
{
    switch (primary) {
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
    case SQLITE_FULL:
    case SQLITE_IOERR:
    case SQLITE_NOMEM: return ERR_RETRY;
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB: return ERR_FATAL;
    default: return 0;
    }
}

/* The errno that stands behind a failure, or would; 0: none. */
static int cause_of(sqlite3 *db, int primary)
{
    switch (primary) {
    case SQLITE_FULL: return ENOSPC;
    case SQLITE_READONLY: return EACCES;
    case SQLITE_IOERR:
    case SQLITE_CANTOPEN: return sqlite3_system_errno(db);
    default: return 0;
    }
}

static const char *advice_for(int primary, int cause)
{
    switch (primary) {
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB: return "; it or its disk is damaged: " STORE_ADVICE;
    case SQLITE_BUSY:
    case SQLITE_LOCKED: return "; another program holds it: end that one";
    case SQLITE_IOERR: /* SQLite does not keep the errno of a commit */
        if (cause == 0)
            return "; look into the kernel's log, and at the limit of file sizes (ulimit -f)";
        break;
    default: break;
    }
    return err_advice(cause);
}

int store_fail(struct store *s, struct err *e, const char *what)
{
    const int extended = s->db ? sqlite3_extended_errcode(s->db) : SQLITE_NOMEM;
    const int primary = extended & 0xff;
    const int code = primary == SQLITE_NOMEM ? ERR_NOMEM : ERR_DB;
    const char *message = s->db ? sqlite3_errmsg(s->db) : "out of memory";
    const int cause = s->db ? cause_of(s->db, primary) : 0;
    return ERR_SET_FLAGS(e, code, flags_of(primary), "%s: cannot %s: %.160s (SQLite %d%s%s)%s",
                         s->path, what, message, extended, cause ? ", " : "",
                         cause ? strerror(cause) : "", advice_for(primary, cause));
}

int store_exec(struct store *s, const char *sql, const char *what, struct err *e)
{
    return sqlite3_exec(s->db, sql, NULL, NULL, NULL) == SQLITE_OK ? 0 : store_fail(s, e, what);
}

int store_query_s64(struct store *s, const char *sql, int64_t *out, struct err *e)
{
    sqlite3_stmt *statement = NULL;
    int code = 0;
    if (sqlite3_prepare_v2(s->db, sql, -1, &statement, NULL) != SQLITE_OK ||
        sqlite3_step(statement) != SQLITE_ROW)
        code = store_fail(s, e, "read");
    else
        *out = sqlite3_column_int64(statement, 0);
    sqlite3_finalize(statement);
    return code;
}

int store_prepare(struct store *s, enum store_sql which, sqlite3_stmt **out, struct err *e)
{
    sqlite3_stmt **cached = &s->cached[which];
    if (!*cached && sqlite3_prepare_v3(s->db, texts[which], -1, SQLITE_PREPARE_PERSISTENT,
                                       cached, NULL) != SQLITE_OK)
        return store_fail(s, e, "prepare a statement");
    sqlite3_reset(*cached);
    sqlite3_clear_bindings(*cached);
    *out = *cached;
    return 0;
}

int store_finish(struct store *s, sqlite3_stmt *statement, const char *what, struct err *e)
{
    int rc;
    while ((rc = sqlite3_step(statement)) == SQLITE_ROW)
        ;
    const int code = rc == SQLITE_DONE ? 0 : store_fail(s, e, what);
    sqlite3_reset(statement);
    return code;
}

static int slot(const struct binder *b, const char *name)
{
    const int index = sqlite3_bind_parameter_index(b->statement, name);
    ASSERT(index > 0);
    return index;
}

void binder_note(struct binder *b, int rc)
{
    if (b->rc == SQLITE_OK)
        b->rc = rc;
}

void binder_put_text(struct binder *b, const char *name, const char *text)
{
    binder_note(b, sqlite3_bind_text(b->statement, slot(b, name), text, -1, SQLITE_STATIC));
}

void binder_put_s64(struct binder *b, const char *name, int64_t value)
{
    binder_note(b, sqlite3_bind_int64(b->statement, slot(b, name), value));
}

void binder_put_double(struct binder *b, const char *name, double value)
{
    binder_note(b, sqlite3_bind_double(b->statement, slot(b, name), value));
}

int store_begin(struct store *s, struct err *e)
{
    sqlite3_stmt *statement;
    if (s->mode == STORE_READER)
        return ERR_SET(e, ERR_STATE, "%s is open for reading only", s->path);
    TRY(store_prepare(s, SQL_BEGIN, &statement, e));
    return store_finish(s, statement, "begin", e);
}

int store_commit(struct store *s, struct err *e)
{
    sqlite3_stmt *statement;
    TRY(store_prepare(s, SQL_COMMIT, &statement, e));
    return store_finish(s, statement, "commit", e);
}

void store_rollback(struct store *s)
{
    if (!sqlite3_get_autocommit(s->db))
        sqlite3_exec(s->db, "ROLLBACK", NULL, NULL, NULL);
}
