#include "io/store_upkeep.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "io/store_int.h"

enum { FAULTS_OF_A_KIND = 10, SENTENCE_BYTES = 512 };

struct checker {
    struct store *s;
    store_complain complain;
    void *ctx;
    size_t *n_faults;
};

static void complain(struct checker *c, const char *sentence)
{
    ++*c->n_faults;
    c->complain(c->ctx, sentence);
}

/* Each names what it finds: a row of one text. */
static const char *const questions[] = {
    /* rows without their job */
    "SELECT 'output ' || job_id || ' has no job' FROM outputs "
    "WHERE job_id NOT IN (SELECT job_id FROM jobs)",
    "SELECT 'result line ' || job_id || ' has no job' FROM outbox "
    "WHERE job_id NOT IN (SELECT job_id FROM jobs)",
    "SELECT DISTINCT 'documents of ' || job_id || ' have no job' FROM job_documents "
    "WHERE job_id NOT IN (SELECT job_id FROM jobs)",
    "SELECT DISTINCT 'drafts of ' || job_id || ' have no job' FROM job_drafts "
    "WHERE job_id NOT IN (SELECT job_id FROM jobs)",
    "SELECT 'job ' || job_id || ' has no run' FROM jobs "
    "WHERE run_id NOT IN (SELECT run_id FROM runs)",
    "SELECT 'job ' || job_id || ' has no output' FROM jobs "
    "WHERE job_id NOT IN (SELECT job_id FROM outputs)",
    "SELECT 'job ' || job_id || ' has no result line' FROM jobs WHERE is_current = 1 "
    "AND job_id NOT IN (SELECT job_id FROM outbox)",
    /* identities within a row */
    "SELECT 'job ' || job_id || ': prompt_tokens is not cached + computed' FROM jobs "
    "WHERE status = 'succeeded' AND prompt_tokens <> cached_tokens + computed_tokens",
    "SELECT 'job ' || job_id || ': ttft, e2e and their parts do not add up' FROM jobs "
    "WHERE status = 'succeeded' AND (ttft_us <> group_wait_us + prefill_us "
    "OR e2e_us <> ttft_us + decode_us)",
    "SELECT 'job ' || job_id || ': more drafted tokens were accepted than drafted' FROM jobs "
    "WHERE accepted_tokens > draft_tokens",
    "SELECT 'job ' || job_id || ': it succeeded and has no answer' FROM jobs j "
    "JOIN outputs o USING (job_id) WHERE j.status = 'succeeded' AND o.text IS NULL",
    "SELECT 'job ' || job_id || ': its status and its error disagree' FROM jobs "
    "WHERE (status = 'succeeded') <> (error_code IS NULL)",
    /* sums of the views */
    "SELECT 'run ' || v.run_id || ': v_runs does not sum up its jobs' FROM v_runs v "
    "LEFT JOIN (SELECT run_id, count(*) AS jobs, total(status = 'succeeded') AS good, "
    "total(prompt_tokens) AS prompt, total(cached_tokens) AS cached, "
    "total(computed_tokens) AS computed, total(completion_tokens) AS answered "
    "FROM jobs GROUP BY run_id) j ON j.run_id = v.run_id "
    "WHERE v.jobs <> coalesce(j.jobs, 0) OR v.succeeded <> coalesce(j.good, 0) "
    "OR v.jobs <> v.succeeded + v.failed + v.expired + v.cancelled "
    "OR v.prompt_tokens <> coalesce(j.prompt, 0) OR v.cached_tokens <> coalesce(j.cached, 0) "
    "OR v.computed_tokens <> coalesce(j.computed, 0) "
    "OR v.completion_tokens <> coalesce(j.answered, 0)",
    "SELECT 'v_runs has ' || (SELECT total(jobs) FROM v_runs) || ' jobs, the table ' || "
    "(SELECT count(*) FROM jobs) "
    "WHERE (SELECT total(jobs) FROM v_runs) <> (SELECT count(*) FROM jobs)",
    "SELECT 'v_jobs has ' || (SELECT count(*) FROM v_jobs) || ' jobs, the table ' || "
    "(SELECT count(*) FROM jobs) "
    "WHERE (SELECT count(*) FROM v_jobs) <> (SELECT count(*) FROM jobs)",
    "SELECT 'the runs have ' || (SELECT total(unpublished) FROM v_runs) || "
    "' unpublished results, the outbox ' || "
    "(SELECT count(*) FROM outbox WHERE published_at IS NULL AND superseded_at IS NULL) "
    "WHERE (SELECT total(unpublished) FROM v_runs) <> "
    "(SELECT count(*) FROM outbox WHERE published_at IS NULL AND superseded_at IS NULL)",
    "SELECT 'job ' || job_id || ': its result line is no JSON' FROM outbox "
    "WHERE NOT json_valid(line)",
    /* echo puts the prompt before the answer */
    "SELECT 'job ' || job_id || ': its result line has another answer' FROM outbox b "
    "JOIN outputs o USING (job_id) WHERE json_valid(b.line) AND o.text <> '' "
    "AND instr(b.line, '\\u0000') = 0 "
    "AND substr(json_extract(b.line, '$.response.body.choices[0].text'), -length(o.text)) "
    "<> o.text",
};

/* What a line and the columns of its job both say. Lines of other programs have only some of
 * the fields; what a line does not have is not compared. */
#define NATIVE    "j.dialect = 'native'"
#define SUCCEEDED "j.status = 'succeeded'"
#define HAS_PLACE                                                                              \
    "j.dialect = 'native' AND json_type(b.line, '$.source.topic') = 'text' "                   \
    "AND length(json_extract(b.line, '$.source.topic')) BETWEEN 1 AND 500 "                    \
    "AND json_type(b.line, '$.source.partition') = 'integer' "                                 \
    "AND json_extract(b.line, '$.source.partition') BETWEEN 0 AND 2147483647 "                 \
    "AND json_type(b.line, '$.source.offset') = 'integer' "                                    \
    "AND json_extract(b.line, '$.source.offset') BETWEEN 0 AND 1000000000000000"
static const struct {
    const char *path, *type, *column, *when;
} twice_told[] = {
    {"$.custom_id", "text", "j.custom_id", "1"},
    {"$.id", "text", "j.result_id", "length(j.result_id) < 47"},
    {"$.answer", "text", "o.text", NATIVE " AND instr(b.line, '\\u0000') = 0"},
    {"$.response.body.choices[0].message.content", "text", "o.text",
     SUCCEEDED " AND instr(b.line, '\\u0000') = 0"},
    {"$.status", "text", "j.status", NATIVE},
    {"$.model", "text", "j.model", NATIVE " AND j.model <> ''"},
    {"$.usage.prompt_tokens", "integer", "j.prompt_tokens", NATIVE " AND " SUCCEEDED},
    {"$.usage.completion_tokens", "integer", "j.completion_tokens", NATIVE " AND " SUCCEEDED},
    {"$.usage.prompt_tokens_details.cached_tokens", "integer", "j.cached_tokens",
     NATIVE " AND " SUCCEEDED},
    {"$.response.body.usage.prompt_tokens", "integer", "j.prompt_tokens", SUCCEEDED},
    {"$.response.body.usage.completion_tokens", "integer", "j.completion_tokens", SUCCEEDED},
    {"$.response.body.usage.prompt_tokens_details.cached_tokens", "integer", "j.cached_tokens",
     SUCCEEDED},
    {"$.source.topic", "text", "j.topic", /* a path's bytes need not be UTF-8 */
     HAS_PLACE " AND instr(json_extract(b.line, '$.source.topic'), char(65533)) = 0"},
    {"$.source.partition", "integer", "j.partition", HAS_PLACE},
    {"$.source.offset", "integer", "j.offset", HAS_PLACE},
};

static int ask(struct checker *c, const char *question, struct err *e)
{
    sqlite3_stmt *st = NULL;
    int n = 0, rc = sqlite3_prepare_v2(c->s->db, question, -1, &st, NULL);
    while (rc == SQLITE_OK || rc == SQLITE_ROW) {
        rc = sqlite3_step(st);
        if (rc != SQLITE_ROW)
            break;
        if (++n > FAULTS_OF_A_KIND) {
            complain(c, "... and more of these");
            rc = SQLITE_DONE;
            break;
        }
        const char *sentence = (const char *)sqlite3_column_text(st, 0);
        complain(c, sentence ? sentence : "a fault without a name");
    }
    const int code = rc == SQLITE_DONE ? 0 : store_fail(c->s, e, "check the rows");
    sqlite3_finalize(st);
    return code;
}

static int compare(struct checker *c, size_t i, struct err *e)
{
    struct buf sql = {0};
    const char *path = twice_told[i].path;
    buf_printf(&sql,
               "SELECT 'job ' || j.job_id || ': its line and its columns disagree on %s' "
               "FROM jobs j JOIN outbox b USING (job_id) LEFT JOIN outputs o USING (job_id) "
               "WHERE json_valid(b.line) AND json_type(b.line, '%s') = '%s' "
               "AND json_extract(b.line, '%s') IS NOT %s AND %s",
               path + 2, path, twice_told[i].type, path, twice_told[i].column,
               twice_told[i].when);
    const int code =
        buf_ok(&sql) ? ask(c, buf_str(&sql), e) : ERR_SET(e, ERR_NOMEM, "out of memory");
    buf_fini(&sql);
    return code;
}

/* Rows of one text, of which "ok" is none. */
static int check_pages(struct checker *c, struct err *e)
{
    sqlite3_stmt *st = NULL;
    char sentence[SENTENCE_BYTES];
    int rc = sqlite3_prepare_v2(c->s->db, "PRAGMA integrity_check(10)", -1, &st, NULL);
    while (rc == SQLITE_OK || rc == SQLITE_ROW) {
        rc = sqlite3_step(st);
        if (rc != SQLITE_ROW)
            break;
        const char *text = (const char *)sqlite3_column_text(st, 0);
        if (text && strcmp(text, "ok") == 0)
            continue;
        snprintf(sentence, sizeof sentence, "damaged pages: %.400s", text ? text : "?");
        complain(c, sentence);
    }
    const int code = rc == SQLITE_DONE ? 0 : store_fail(c->s, e, "check the pages");
    sqlite3_finalize(st);
    return code;
}

static int count(struct store *s, struct store_census *census, struct err *e)
{
    TRY(store_query_s64(s, "SELECT count(*) FROM jobs", &census->jobs, e));
    TRY(store_query_s64(s, "SELECT count(*) FROM runs", &census->runs, e));
    return store_query_s64(s,
                           "SELECT count(*) FROM outbox WHERE published_at IS NULL "
                           "AND superseded_at IS NULL",
                           &census->unpublished, e);
}

/* One state of the database, whatever its owner does meanwhile. */
static int check_all(struct checker *c, struct store_census *census, struct err *e)
{
    TRY(check_pages(c, e));
    if (*c->n_faults > 0) /* rows of damaged pages tell nothing */
        return 0;
    TRY(ask(c,
            "SELECT 'a row of ' || \"table\" || ' names a row of ' || parent || ' that is not "
            "there' FROM pragma_foreign_key_check",
            e));
    for (size_t i = 0; i < sizeof questions / sizeof questions[0]; i++)
        TRY(ask(c, questions[i], e));
    for (size_t i = 0; i < sizeof twice_told / sizeof twice_told[0]; i++)
        TRY(compare(c, i, e));
    return count(c->s, census, e);
}

int store_check(struct store *s, store_complain complain_to, void *ctx, size_t *n_faults,
                struct store_census *census, struct err *e)
{
    struct checker checker = {s, complain_to, ctx, n_faults};
    *n_faults = 0;
    *census = (struct store_census){0};
    TRY(store_exec(s, "BEGIN", "begin to read", e));
    const int code = check_all(&checker, census, e);
    store_rollback(s);
    return code;
}

int store_each_line(struct store *s, const char *run_id,
                    int (*each)(void *ctx, const char *line, size_t length, struct err *e),
                    void *ctx, struct err *e)
{
    static const char sql[] =
        "SELECT b.line FROM jobs j JOIN outbox b ON b.job_id = j.job_id "
        "WHERE j.is_current = 1 AND b.superseded_at IS NULL AND (?1 IS NULL OR j.run_id = ?1) "
        "ORDER BY j.is_file, j.topic, j.partition, j.offset, j.run_id";
    sqlite3_stmt *st = NULL;
    int code = 0, rc = sqlite3_prepare_v2(s->db, sql, -1, &st, NULL);
    if (rc == SQLITE_OK)
        rc = sqlite3_bind_text(st, 1, run_id, -1, SQLITE_STATIC);
    while (code == 0 && (rc == SQLITE_OK || rc == SQLITE_ROW)) {
        rc = sqlite3_step(st);
        const char *line = rc == SQLITE_ROW ? (const char *)sqlite3_column_text(st, 0) : NULL;
        if (rc != SQLITE_ROW)
            break;
        code = line ? each(ctx, line, (size_t)sqlite3_column_bytes(st, 0), e)
                    : ERR_SET(e, ERR_NOMEM, "out of memory");
    }
    if (code == 0 && rc != SQLITE_DONE)
        code = store_fail(s, e, "read the result lines");
    sqlite3_finalize(st);
    return code;
}

static int64_t file_bytes(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 ? (int64_t)st.st_size : 0;
}

static int checkpoint(struct store *s, struct err *e)
{
    if (sqlite3_wal_checkpoint_v2(s->db, NULL, SQLITE_CHECKPOINT_TRUNCATE, NULL, NULL) ==
        SQLITE_OK)
        return 0;
    return store_fail(s, e, "move the log into the database");
}

int store_vacuum(struct store *s, int64_t *bytes_before, int64_t *bytes_after, struct err *e)
{
    if (s->mode != STORE_OWNER)
        return ERR_SET(e, ERR_STATE, "%s is open for reading only", s->path);
    TRY(checkpoint(s, e));
    *bytes_before = file_bytes(s->path);
    TRY(store_exec(s, "VACUUM", "make the database small", e));
    TRY(store_exec(s, "PRAGMA optimize", "gather statistics", e));
    TRY(checkpoint(s, e));
    *bytes_after = file_bytes(s->path);
    return 0;
}
