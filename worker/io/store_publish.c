/* What becomes of stored answers on their way to a topic. */
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "io/store_int.h"

static int mark_row(struct store *s, enum store_sql which, int64_t job_id, double now_s,
                    struct err *e)
{
    sqlite3_stmt *st;
    TRY(store_prepare(s, which, &st, e));
    if (sqlite3_bind_int64(st, 1, job_id) != SQLITE_OK ||
        sqlite3_bind_double(st, 2, now_s) != SQLITE_OK)
        return store_fail(s, e, "bind a mark");
    return store_finish(s, st, "mark a result", e);
}

static int need_row(struct store *s, const struct job_source *source, struct store_row *row,
                    struct err *e)
{
    TRY(store_find_row(s, source, s->run_id, NULL, row, NULL, e));
    if (row->job_id)
        return 0;
    return ERR_SET(e, ERR_NOTFOUND, "%s: %s-%d-%lld is to be marked and is not stored", s->path,
                   source->topic, (int)source->partition, (long long)source->offset);
}

static int mark_each(struct store *s, enum store_sql which,
                     const struct job_source *const *sources, size_t n, struct err *e)
{
    const double now_s = (double)clock_wall_us() / 1e6;
    for (size_t i = 0; i < n; i++) {
        struct store_row row;
        TRY(need_row(s, sources[i], &row, e));
        TRY(mark_row(s, which, row.job_id, now_s, e));
    }
    return 0;
}

int store_mark_all(struct store *s, const struct job_source *const *sources, size_t n,
                   struct err *e)
{
    return mark_each(s, SQL_OUTBOX_MARK, sources, n, e);
}

static int mark_in_one(struct store *s, enum store_sql which,
                       const struct job_source *const *sources, size_t n, struct err *e)
{
    if (n == 0)
        return 0;
    TRY(store_begin(s, e));
    int code = mark_each(s, which, sources, n, e);
    if (code == 0)
        code = store_commit(s, e);
    store_rollback(s);
    return code;
}

int store_mark_offered(struct store *s, const struct job_source *const *sources, size_t n,
                       struct err *e)
{
    return mark_in_one(s, SQL_OUTBOX_OFFER, sources, n, e);
}

int store_mark_withdrawn(struct store *s, const struct job_source *const *sources, size_t n,
                         struct err *e)
{
    return mark_in_one(s, SQL_OUTBOX_WITHDRAW, sources, n, e);
}

int store_mark_published(struct store *s, const struct job_source *const *sources, size_t n,
                         struct err *e)
{
    return mark_in_one(s, SQL_OUTBOX_MARK, sources, n, e);
}

int store_mark_superseded(struct store *s, const struct job_source *const *sources, size_t n,
                          struct err *e)
{
    return mark_in_one(s, SQL_OUTBOX_SUPERSEDE, sources, n, e);
}

/* ------------------------------------------------------------------ what a group says */

struct open_row {
    int64_t job_id;
    bool was_offered;
};
struct open_rows {
    struct open_row *items; /* owned */
    size_t n, capacity;
};

static int keep_row(struct open_rows *rows, sqlite3_stmt *st, struct err *e)
{
    if (rows->n == rows->capacity) {
        const size_t capacity = rows->capacity ? 2 * rows->capacity : 64;
        struct open_row *items = realloc(rows->items, capacity * sizeof items[0]);
        if (!items)
            return ERR_SET_FLAGS(e, ERR_NOMEM, ERR_RETRY, "no memory for waiting results");
        rows->items = items;
        rows->capacity = capacity;
    }
    rows->items[rows->n++] = (struct open_row){.job_id = sqlite3_column_int64(st, 0),
                                               .was_offered = sqlite3_column_int(st, 2)};
    return 0;
}

/* Marking changes the index that this reads, so it comes afterwards. */
static int list_settled(struct store *s, const char *topic, int32_t partition,
                        const struct offset_bits *settled, struct open_rows *rows,
                        struct err *e)
{
    sqlite3_stmt *st;
    TRY(store_prepare(s, SQL_OUTBOX_OPEN, &st, e));
    if (sqlite3_bind_text(st, 1, topic, -1, SQLITE_STATIC) != SQLITE_OK ||
        sqlite3_bind_int(st, 2, partition) != SQLITE_OK)
        return store_fail(s, e, "bind a partition");
    int code = 0, rc;
    while ((rc = sqlite3_step(st)) == SQLITE_ROW && code == 0)
        if (offset_bits_has(settled, sqlite3_column_int64(st, 1)))
            code = keep_row(rows, st, e);
    if (code == 0 && rc != SQLITE_DONE)
        code = store_fail(s, e, "read the outbox");
    sqlite3_reset(st);
    return code;
}

static int mark_rows(struct store *s, const struct open_rows *rows,
                     struct store_reconciled *out, struct err *e)
{
    const double now_s = (double)clock_wall_us() / 1e6;
    for (size_t i = 0; i < rows->n; i++) {
        const bool was_ours = rows->items[i].was_offered;
        TRY(mark_row(s, was_ours ? SQL_OUTBOX_MARK : SQL_OUTBOX_SUPERSEDE,
                     rows->items[i].job_id, now_s, e));
        out->n_published += was_ours;
        out->n_superseded += !was_ours;
    }
    return 0;
}

int store_reconcile(struct store *s, const char *topic, int32_t partition,
                    const struct offset_bits *settled, struct store_reconciled *out,
                    struct err *e)
{
    *out = (struct store_reconciled){0};
    struct open_rows rows = {0};
    int code = list_settled(s, topic, partition, settled, &rows, e);
    if (code == 0 && rows.n > 0) {
        TRY_OUT(code, store_begin(s, e));
        TRY_OUT(code, mark_rows(s, &rows, out, e));
        TRY_OUT(code, store_commit(s, e));
    }
out:
    store_rollback(s);
    free(rows.items);
    return code;
}

/* ------------------------------------------------------------------ errors */

static void copy_column(sqlite3_stmt *st, int column, char *out, size_t capacity)
{
    const char *text = (const char *)sqlite3_column_text(st, column);
    snprintf(out, capacity, "%s", text ? text : "");
}

int store_find_error(struct store *s, const struct job_source *source, struct job_error *out,
                     struct err *e)
{
    *out = (struct job_error){0};
    struct store_row row;
    sqlite3_stmt *st;
    TRY(need_row(s, source, &row, e));
    TRY(store_prepare(s, SQL_JOB_ERROR, &st, e));
    if (sqlite3_bind_int64(st, 1, row.job_id) != SQLITE_OK)
        return store_fail(s, e, "bind a job id");
    int code = 0;
    const int rc = sqlite3_step(st);
    if (rc == SQLITE_ROW) {
        const int status = sqlite3_column_int(st, 0);
        out->status = status ? status : 500;
        copy_column(st, 1, out->code, sizeof out->code);
        copy_column(st, 2, out->type, sizeof out->type);
        copy_column(st, 3, out->param, sizeof out->param);
        copy_column(st, 4, out->message, sizeof out->message);
    } else if (rc != SQLITE_DONE) {
        code = store_fail(s, e, "look up a job's error");
    }
    sqlite3_reset(st);
    return code;
}
