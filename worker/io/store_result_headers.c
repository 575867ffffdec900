#include "io/store_result_headers.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "io/store_int.h"

/* A row as a result. Texts live in the statements' memory, or in documents and drafts. */
struct row {
    struct job job;
    struct result result;
    struct result_origin origin;
};

enum { FIXED_COLUMNS = 20 }; /* before those of metrics.def */

static const char *text_of(sqlite3_stmt *st, int column)
{
    return (const char *)sqlite3_column_text(st, column);
}

static int64_t us_of(sqlite3_stmt *st, int column)
{
    return llround(sqlite3_column_double(st, column) * 1e6);
}

/* What is NULL was not known. */
static int64_t number_of(sqlite3_stmt *st, int column)
{
    return sqlite3_column_type(st, column) == SQLITE_NULL ? -1
                                                          : sqlite3_column_int64(st, column);
}

static enum job_dialect dialect_of(const char *name)
{
    for (int i = DIALECT_NATIVE; name && i <= DIALECT_OPENAI_COMPLETION; i++)
        if (strcmp(name, job_dialect_name((enum job_dialect)i)) == 0)
            return (enum job_dialect)i;
    return DIALECT_NATIVE;
}

static void read_metrics(sqlite3_stmt *st, struct result_metrics *m)
{
    int column = FIXED_COLUMNS;
#define READ_US(field)                  m->field = number_of(st, column)
#define READ_COUNT(field)               m->field = sqlite3_column_int64(st, column)
#define READ_MISS(field)                READ_COUNT(field)
#define READ_GROUP(field)               READ_COUNT(field)
#define READ_DRAFTS(field)              READ_COUNT(field)
#define READ_TOKENS(field)              m->field = sqlite3_column_double(st, column)
#define METRIC(name, field, unit, help) READ_##unit(field), column++;
#include "schema/metrics.def"
#undef METRIC
    m->miss = text_of(st, 16);
}

static void read_row(sqlite3_stmt *st, struct row *row)
{
    struct job *job = &row->job;
    struct result *r = &row->result;
    const char *id = text_of(st, 5), *payload = text_of(st, 6);
    r->job = job;
    job->custom_id = (char *)text_of(st, 1);
    if (!result_status_find(text_of(st, 2), &r->status))
        r->status = RESULT_FAILED;
    job->dialect = dialect_of(text_of(st, 3));
    r->worker_id = text_of(st, 4);
    snprintf(r->id, sizeof r->id, "%s", id ? id : "");
    snprintf(job->payload_sha256, sizeof job->payload_sha256, "%s", payload ? payload : "");
    job->prefix_group = (char *)text_of(st, 7);
    job->source.timestamp_us = us_of(st, 8);
    job->admitted_wall_us = us_of(st, 9);
    r->model = text_of(st, 19);
    r->created_s = us_of(st, 18) / 1000000;
    row->origin = (struct result_origin){.stored_us = us_of(st, 10),
                                         .run_id = text_of(st, 11),
                                         .attempt = sqlite3_column_int64(st, 0),
                                         .model_sha256 = text_of(st, 12),
                                         .quant = text_of(st, 13),
                                         .kernels = text_of(st, 14),
                                         .version = text_of(st, 15)};
    read_metrics(st, &r->metrics);
}

static int grow(void **items, size_t n, size_t size, struct err *e)
{
    if ((n & (n - 1)) != 0)
        return 0;
    void *more = realloc(*items, (n ? 2 * n : 1) * size);
    if (!more)
        return ERR_SET_FLAGS(e, ERR_NOMEM, ERR_RETRY, "no memory for the headers of a result");
    *items = more;
    return 0;
}

static int add_document(sqlite3_stmt *st, struct row *row, struct err *e)
{
    struct job *job = &row->job;
    TRY(grow((void **)&job->documents, job->n_documents, sizeof *job->documents, e));
    struct job_document *d = &job->documents[job->n_documents++];
    *d = (struct job_document){.length = (size_t)sqlite3_column_int64(st, 2)};
    if (sqlite3_column_type(st, 0) != SQLITE_NULL)
        TRY(store_copy_text(st, 0, &d->id, e));
    return sqlite3_column_type(st, 1) == SQLITE_NULL ? 0 : store_copy_text(st, 1, &d->title, e);
}

static int add_draft(sqlite3_stmt *st, struct row *row, struct err *e)
{
    struct result *r = &row->result;
    char *source = NULL;
    TRY(grow((void **)&r->drafts, r->n_drafts, sizeof *r->drafts, e));
    TRY(store_copy_text(st, 0, &source, e));
    r->drafts[r->n_drafts++] = (struct result_draft){.source = source,
                                                     .depth = sqlite3_column_int64(st, 1),
                                                     .drafted = sqlite3_column_int64(st, 2),
                                                     .accepted = sqlite3_column_int64(st, 3)};
    return 0;
}

static int read_each(struct store *s, enum store_sql which, int64_t job_id, struct row *row,
                     int (*add)(sqlite3_stmt *, struct row *, struct err *), struct err *e)
{
    sqlite3_stmt *st;
    TRY(store_prepare(s, which, &st, e));
    if (sqlite3_bind_int64(st, 1, job_id) != SQLITE_OK)
        return store_fail(s, e, "bind a job id");
    int code = 0, rc;
    while ((rc = sqlite3_step(st)) == SQLITE_ROW && code == 0)
        code = add(st, row, e);
    if (code == 0 && rc != SQLITE_DONE)
        code = store_fail(s, e, "read what belongs to a job");
    sqlite3_reset(st);
    return code;
}

static void row_fini(struct row *row)
{
    for (size_t i = 0; i < row->job.n_documents; i++) {
        free(row->job.documents[i].id);
        free(row->job.documents[i].title);
    }
    for (size_t i = 0; i < row->result.n_drafts; i++)
        free((char *)row->result.drafts[i].source);
    free(row->job.documents);
    free(row->result.drafts);
}

static int make(struct store *s, sqlite3_stmt *st, int64_t job_id,
                const struct job_source *source, const char *replay_of,
                struct result_headers *out, struct err *e)
{
    struct row row = {0};
    int code = 0;
    read_row(st, &row);
    row.origin.run_started_us = us_of(st, 17);
    row.origin.replay_of = replay_of;
    row.job.source.topic = source->topic;
    row.job.source.partition = source->partition;
    row.job.source.offset = source->offset;
    TRY_OUT(code, read_each(s, SQL_HEADERS_DOCUMENTS, job_id, &row, add_document, e));
    TRY_OUT(code, read_each(s, SQL_HEADERS_DRAFTS, job_id, &row, add_draft, e));
    code = result_headers_make(&row.result, &row.origin, out, e);
out:
    row_fini(&row);
    return code;
}

int store_result_headers(struct store *s, const struct job_source *source,
                         const char *replay_of, struct result_headers *out, struct err *e)
{
    struct store_row found;
    sqlite3_stmt *st;
    *out = (struct result_headers){0};
    TRY(store_find_row(s, source, s->run_id, NULL, &found, NULL, e));
    if (!found.job_id)
        return ERR_SET(e, ERR_NOTFOUND, "%s: %s-%d-%lld is to be published and is not stored",
                       s->path, source->topic, (int)source->partition,
                       (long long)source->offset);
    TRY(store_prepare(s, SQL_HEADERS_JOB, &st, e));
    if (sqlite3_bind_int64(st, 1, found.job_id) != SQLITE_OK)
        return store_fail(s, e, "bind a job id");
    const int code = sqlite3_step(st) == SQLITE_ROW
                         ? make(s, st, found.job_id, source, replay_of, out, e)
                         : store_fail(s, e, "read a result");
    sqlite3_reset(st);
    return code;
}
