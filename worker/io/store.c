/*
 * Results in, marks, and looking up what is answered already.
 *
 * Which row answers a source: for a record of a topic, the current row of its (topic,
 * partition, offset) in the database; for a line of a file, that of its run. The same source
 * with another payload (its SHA-256 differs) is another job:
 *   - within one run the input was edited: the old row answers nothing any more and is deleted.
 *     If its line is in the output file, the file is marked stale and written anew when it is
 *     closed or opened next (queue_file.h);
 *   - across runs the topic was made anew and counts its offsets from 0 again: the old row
 * stays with its run as history (is_current = 0), and its line is never published.
 */
#include "io/store_int.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/fault.h"

enum { QUESTION_BYTES_MAX = 2000 };

/* "" is how the fixed-size fields of a result say that there is nothing. */
static void bind_filled(struct binder *b, const char *name, const char *text)
{
    binder_put_text(b, name, text && text[0] ? text : NULL);
}

/* A date in microseconds as Unix seconds; 0 is "never". */
static void bind_date(struct binder *b, const char *name, int64_t us)
{
    if (us > 0)
        binder_put_double(b, name, (double)us / 1e6);
}

/* A duration that was not measured stays NULL: one below zero (two clocks that disagree), or
 * none at all of a job that failed on the way. */
static void bind_us(struct binder *b, const char *name, int64_t us, bool succeeded)
{
    if (us > 0 || (us == 0 && succeeded))
        binder_put_s64(b, name, us);
}

/* What has no value stays NULL. */
static void bind_known(struct binder *b, const char *name, int64_t value, bool is_known)
{
    if (is_known)
        binder_put_s64(b, name, value);
}

static void bind_fraction(struct binder *b, const char *name, double value, bool is_known)
{
    if (is_known)
        binder_put_double(b, name, value);
}

static void bind_metrics(struct binder *b, const struct result_metrics *m, bool succeeded)
{
#define BIND_US(name, value)              bind_us(b, name, value, succeeded)
#define BIND_COUNT(name, value)           binder_put_s64(b, name, value)
#define BIND_MISS(name, value)            bind_known(b, name, value, m->miss != NULL)
#define BIND_GROUP(name, value)           bind_known(b, name, value, m->group_jobs > 0)
#define BIND_DRAFTS(name, value)          bind_known(b, name, value, m->draft_steps > 0)
#define BIND_TOKENS(name, value)          bind_fraction(b, name, value, m->draft_steps > 0)
#define METRIC(column, field, unit, help) BIND_##unit(":" #column, m->field);
#include "schema/metrics.def"
#undef METRIC
    binder_put_text(b, ":miss_reason", m->miss);
}

static void bind_identity(struct binder *b, const struct result *r, const char *run_id)
{
    const struct job *job = r->job;
    binder_put_text(b, ":run_id", run_id);
    binder_put_text(b, ":custom_id", job->custom_id);
    binder_put_text(b, ":topic", job->source.topic);
    binder_put_s64(b, ":partition", job->source.partition);
    binder_put_s64(b, ":offset", job->source.offset);
    binder_put_s64(b, ":is_file", job->source.is_file);
    binder_put_text(b, ":payload_sha256", job->payload_sha256);
    binder_put_text(b, ":result_id", r->id);
    binder_put_text(b, ":worker_id", r->worker_id);
    binder_put_text(b, ":dialect", job_dialect_name(job->dialect));
    binder_put_text(b, ":model", r->model ? r->model : job->model);
    binder_put_text(b, ":prefix_group", job->prefix_group);
    binder_put_text(b, ":warnings", job->warnings);
    binder_put_text(b, ":metadata_json", job->metadata);
}

static void bind_outcome(struct binder *b, const struct result *r)
{
    const char *status = result_status_name(r->status);
    binder_put_text(b, ":status", status);
    binder_put_text(b, ":finish_reason", r->finish_reason);
    bind_filled(b, ":stop_reason", r->stop_reason);
    if (r->status == RESULT_SUCCEEDED)
        return;
    if (r->error.status)
        binder_put_s64(b, ":error_status", r->error.status);
    binder_put_text(b, ":error_code", r->error.code[0] ? r->error.code : status);
    bind_filled(b, ":error_type", r->error.type);
    bind_filled(b, ":error_param", r->error.param);
    bind_filled(b, ":error_message", r->error.message);
}

static void bind_times(struct binder *b, const struct result *r, int64_t now_us)
{
    const struct job *job = r->job;
    const int64_t finished_us = result_finished_us(r);
    bind_date(b, ":submitted_at", job->source.timestamp_us);
    bind_date(b, ":admitted_at", job->admitted_wall_us);
    bind_date(b, ":finished_at", finished_us > 0 ? finished_us : now_us);
    bind_date(b, ":stored_at", now_us);
    if (job->source.timestamp_us > 0)
        bind_us(b, ":turnaround_us", now_us - job->source.timestamp_us, true);
}

static int insert_job(struct store *s, const char *run_id, const struct result *r,
                      int64_t attempt, int64_t stored_us, int64_t *job_id, struct err *e)
{
    struct binder b = {0};
    TRY(store_prepare(s, SQL_JOB_INSERT, &b.statement, e));
    bind_identity(&b, r, run_id);
    bind_outcome(&b, r);
    bind_times(&b, r, stored_us);
    binder_put_s64(&b, ":attempt", attempt);
    bind_metrics(&b, &r->metrics, r->status == RESULT_SUCCEEDED);
    if (b.rc != SQLITE_OK)
        return store_fail(s, e, "bind a job");
    TRY(store_finish(s, b.statement, "store a job", e));
    *job_id = sqlite3_last_insert_rowid(s->db);
    return 0;
}

/* What was asked: the last user message, or a completion's prompt. */
static const char *question_of(const struct job *job, size_t *length)
{
    const char *text = job->prompt;
    *length = job->prompt ? job->prompt_length : 0;
    for (size_t i = 0; i < job->n_messages; i++)
        if (job->messages[i].role == JOB_USER) {
            text = job->messages[i].content;
            *length = job->messages[i].length;
        }
    if (*length > QUESTION_BYTES_MAX) {
        *length = QUESTION_BYTES_MAX;
        while (*length > 0 && ((unsigned char)text[*length] & 0xc0) == 0x80)
            --*length;
    }
    return text;
}

static int insert_output(struct store *s, int64_t job_id, const struct result *r, struct err *e)
{
    sqlite3_stmt *st;
    TRY(store_prepare(s, SQL_OUTPUT_INSERT, &st, e));
    size_t length = 0;
    const char *question = question_of(r->job, &length);
    struct binder b = {.statement = st};
    binder_note(&b, sqlite3_bind_int64(st, 1, job_id));
    binder_note(&b, sqlite3_bind_text64(st, 2, question, length, SQLITE_STATIC, SQLITE_UTF8));
    binder_note(&b, sqlite3_bind_text64(st, 3, r->text, r->text ? r->text_length : 0,
                                        SQLITE_STATIC, SQLITE_UTF8));
    binder_note(&b, sqlite3_bind_text(st, 4, r->job->expect, -1, SQLITE_STATIC));
    if (b.rc != SQLITE_OK)
        return store_fail(s, e, "bind an answer");
    return store_finish(s, st, "store an answer", e);
}

static int insert_document(struct store *s, int64_t job_id, size_t position,
                           const struct job_document *document, struct err *e)
{
    sqlite3_stmt *st;
    TRY(store_prepare(s, SQL_DOCUMENT_INSERT, &st, e));
    struct binder b = {.statement = st};
    binder_note(&b, sqlite3_bind_int64(st, 1, job_id));
    binder_note(&b, sqlite3_bind_int64(st, 2, (int64_t)position));
    binder_note(&b, sqlite3_bind_text(st, 3, job_document_id(document), -1, SQLITE_STATIC));
    binder_note(&b, sqlite3_bind_text(st, 4, document->title, -1, SQLITE_STATIC));
    binder_note(&b, sqlite3_bind_int64(st, 5, (int64_t)document->length));
    if (b.rc != SQLITE_OK)
        return store_fail(s, e, "bind a document");
    return store_finish(s, st, "store a document", e);
}

static int insert_draft(struct store *s, int64_t job_id, const struct result_draft *draft,
                        struct err *e)
{
    sqlite3_stmt *st;
    TRY(store_prepare(s, SQL_DRAFT_INSERT, &st, e));
    struct binder b = {.statement = st};
    binder_note(&b, sqlite3_bind_int64(st, 1, job_id));
    binder_note(&b, sqlite3_bind_text(st, 2, draft->source, -1, SQLITE_STATIC));
    binder_note(&b, sqlite3_bind_int64(st, 3, draft->depth));
    binder_note(&b, sqlite3_bind_int64(st, 4, draft->drafted));
    binder_note(&b, sqlite3_bind_int64(st, 5, draft->accepted));
    if (b.rc != SQLITE_OK)
        return store_fail(s, e, "bind a job's drafts");
    return store_finish(s, st, "store a job's drafts", e);
}

static int insert_line(struct store *s, int64_t job_id, const char *line, struct err *e)
{
    sqlite3_stmt *st;
    TRY(store_prepare(s, SQL_OUTBOX_INSERT, &st, e));
    if (sqlite3_bind_int64(st, 1, job_id) != SQLITE_OK ||
        sqlite3_bind_text(st, 2, line, -1, SQLITE_STATIC) != SQLITE_OK)
        return store_fail(s, e, "bind a result line");
    return store_finish(s, st, "store a result line", e);
}

int store_by_job_id(struct store *s, enum store_sql which, int64_t job_id, struct err *e)
{
    sqlite3_stmt *st;
    TRY(store_prepare(s, which, &st, e));
    if (sqlite3_bind_int64(st, 1, job_id) != SQLITE_OK)
        return store_fail(s, e, "bind a job id");
    return store_finish(s, st, "replace a job", e);
}

int store_replace_row(struct store *s, const struct store_row *row,
                      const struct job_source *source, const char *run_id, struct err *e)
{
    if (row->same_run) {
        if (source->is_file && row->published)
            TRY(store_sink_set_stale(s, run_id, source->topic, true, e));
        return store_by_job_id(s, SQL_JOB_DELETE, row->job_id, e);
    }
    TRY(store_by_job_id(s, SQL_OUTBOX_DELETE, row->job_id, e));
    return store_by_job_id(s, SQL_JOB_RETIRE, row->job_id, e);
}

int store_insert_result(struct store *s, const char *run_id, const struct result *r,
                        const char *line, int64_t attempt, int64_t stored_us, int64_t *job_id,
                        struct err *e)
{
    TRY(insert_job(s, run_id, r, attempt, stored_us, job_id, e));
    TRY(insert_output(s, *job_id, r, e));
    for (size_t i = 0; i < r->job->n_documents; i++)
        TRY(insert_document(s, *job_id, i, &r->job->documents[i], e));
    for (size_t i = 0; i < r->n_drafts; i++)
        TRY(insert_draft(s, *job_id, &r->drafts[i], e));
    return insert_line(s, *job_id, line, e);
}

static int put_one(struct store *s, const char *run_id, const struct result *r,
                   const char *line, struct err *e)
{
    struct store_row row;
    int64_t job_id = 0;
    TRY(store_find_row(s, &r->job->source, run_id, r->job->payload_sha256, &row, NULL, e));
    if (row.job_id && row.same_payload)
        return 0;
    if (row.job_id)
        TRY(store_replace_row(s, &row, &r->job->source, run_id, e));
    const int64_t attempt = row.job_id && row.same_run ? row.attempt + 1 : 1;
    return store_insert_result(s, run_id, r, line, attempt, clock_wall_us(), &job_id, e);
}

int store_put(struct store *s, const char *run_id, const struct result *const *results,
              const char *const *lines, size_t n, struct err *e)
{
    TRY(store_begin(s, e));
    int code = 0;
    for (size_t i = 0; i < n && code == 0; i++) {
        code = put_one(s, run_id, results[i], lines[i], e);
        if (code == 0)
            code = store_forget_crash(s, results[i]->job, e);
        if (code != 0)
            err_prefix(e, "job %s", results[i]->job->custom_id);
    }
    CRASH_POINT("storing");
    if (code == 0)
        code = store_commit(s, e);
    store_rollback(s);
    CRASH_POINT("stored");
    return code;
}

int store_copy_text(sqlite3_stmt *st, int column, char **out, struct err *e)
{
    const void *text = sqlite3_column_text(st, column);
    const size_t length = (size_t)sqlite3_column_bytes(st, column);
    *out = malloc(length + 1);
    if (!*out || (!text && sqlite3_column_type(st, column) != SQLITE_NULL)) {
        free(*out);
        *out = NULL;
        return ERR_SET_FLAGS(e, ERR_NOMEM, ERR_RETRY, "out of memory");
    }
    if (text)
        memcpy(*out, text, length);
    (*out)[length] = '\0';
    return 0;
}

static void read_row(sqlite3_stmt *st, struct store_row *row)
{
    row->job_id = sqlite3_column_int64(st, 0);
    row->attempt = sqlite3_column_int64(st, 1);
    row->same_payload = sqlite3_column_int(st, 2);
    row->same_run = sqlite3_column_int(st, 3);
    row->published = sqlite3_column_int(st, 4);
}

int store_find_row(struct store *s, const struct job_source *source, const char *run_id,
                   const char *payload_sha256, struct store_row *row, char **line,
                   struct err *e)
{
    *row = (struct store_row){0};
    sqlite3_stmt *st;
    TRY(store_prepare(s, source->is_file ? SQL_FIND_LINE : SQL_FIND_RECORD, &st, e));
    struct binder b = {.statement = st};
    binder_note(&b, sqlite3_bind_text(st, 1, source->topic, -1, SQLITE_STATIC));
    binder_note(&b, sqlite3_bind_int64(st, 2, source->partition));
    binder_note(&b, sqlite3_bind_int64(st, 3, source->offset));
    binder_note(&b, sqlite3_bind_text(st, 4, payload_sha256, -1, SQLITE_STATIC));
    binder_note(&b, sqlite3_bind_text(st, 5, run_id, -1, SQLITE_STATIC));
    if (b.rc != SQLITE_OK)
        return store_fail(s, e, "bind a source");
    int code = 0;
    const int rc = sqlite3_step(st);
    if (rc == SQLITE_ROW) {
        read_row(st, row);
        if (line && row->same_payload && sqlite3_column_type(st, 5) != SQLITE_NULL)
            code = store_copy_text(st, 5, line, e);
    } else if (rc != SQLITE_DONE) {
        code = store_fail(s, e, "look up a job");
    }
    sqlite3_reset(st);
    return code;
}

int store_find(struct store *s, const struct job_source *source, const char *payload_sha256,
               char **line, bool *published, struct err *e)
{
    *line = NULL;
    *published = false;
    struct store_row row;
    TRY(store_find_row(s, source, s->run_id, payload_sha256, &row, line, e));
    *published = *line && row.published;
    return 0;
}

typedef int (*each_line)(void *ctx, const struct job_source *source, const char *custom_id,
                         const char *line, struct err *e);

/* The line is read apart from the sorted keys, so that the sorting holds no lines. */
static int give_line(struct store *s, sqlite3_stmt *keys, each_line each, void *ctx,
                     struct err *e)
{
    char *topic = NULL, *custom_id = NULL, *line = NULL;
    sqlite3_stmt *st;
    int code = 0;
    TRY_OUT(code, store_copy_text(keys, 1, &topic, e));
    TRY_OUT(code, store_copy_text(keys, 6, &custom_id, e));
    TRY_OUT(code, store_prepare(s, SQL_OUTBOX_LINE, &st, e));
    if (sqlite3_bind_int64(st, 1, sqlite3_column_int64(keys, 0)) != SQLITE_OK)
        TRY_OUT(code, store_fail(s, e, "bind a job id"));
    const int rc = sqlite3_step(st);
    if (rc == SQLITE_ROW)
        code = store_copy_text(st, 0, &line, e);
    else if (rc != SQLITE_DONE)
        code = store_fail(s, e, "read a result line");
    sqlite3_reset(st);
    if (code != 0 || !line)
        goto out;
    const struct job_source source = {
        .topic = topic,
        .partition = sqlite3_column_int(keys, 2),
        .offset = sqlite3_column_int64(keys, 3),
        .timestamp_us = llround(sqlite3_column_double(keys, 4) * 1e6),
        .is_file = sqlite3_column_int(keys, 5),
    };
    code = each(ctx, &source, custom_id, line, e);
out:
    free(topic);
    free(custom_id);
    free(line);
    return code;
}

int store_each_unpublished(struct store *s, each_line each, void *ctx, struct err *e)
{
    sqlite3_stmt *keys;
    TRY(store_prepare(s, SQL_EACH_UNPUBLISHED, &keys, e));
    if (sqlite3_bind_text(keys, 1, s->run_id, -1, SQLITE_STATIC) != SQLITE_OK)
        return store_fail(s, e, "bind a run");
    int code = 0, rc;
    while ((rc = sqlite3_step(keys)) == SQLITE_ROW && code == 0)
        code = give_line(s, keys, each, ctx, e);
    if (code == 0 && rc != SQLITE_DONE)
        code = store_fail(s, e, "read the outbox");
    sqlite3_reset(keys);
    return code;
}
