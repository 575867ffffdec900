/* Which jobs were in work when a worker ended without saying so; the table is crashes. */
#include "io/store_int.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"

static int bind_name(struct binder *b, const char *topic, int32_t partition, int64_t offset,
                     const char *payload_sha256)
{
    binder_note(b, sqlite3_bind_text(b->statement, 1, topic, -1, SQLITE_STATIC));
    binder_note(b, sqlite3_bind_int64(b->statement, 2, partition));
    binder_note(b, sqlite3_bind_int64(b->statement, 3, offset));
    binder_note(b, sqlite3_bind_text(b->statement, 4, payload_sha256, -1, SQLITE_STATIC));
    return b->rc;
}

static int add_one(struct store *s, const struct store_crash *crash, double now_s,
                   struct err *e)
{
    struct binder b = {0};
    TRY(store_prepare(s, SQL_CRASH_ADD, &b.statement, e));
    bind_name(&b, crash->topic, crash->partition, crash->offset, crash->payload_sha256);
    binder_note(&b, sqlite3_bind_int64(b.statement, 5, crash->strikes));
    binder_note(&b, sqlite3_bind_int64(b.statement, 6, crash->deaths));
    binder_note(&b, sqlite3_bind_double(b.statement, 7, now_s));
    if (b.rc != SQLITE_OK)
        return store_fail(s, e, "bind a crash");
    return store_finish(s, b.statement, "keep a crash", e);
}

static int prune(struct store *s, double now_s, struct err *e)
{
    sqlite3_stmt *st;
    TRY(store_prepare(s, SQL_CRASH_PRUNE, &st, e));
    if (sqlite3_bind_double(st, 1, now_s - CRASH_DAYS_MAX * 86400.0) != SQLITE_OK)
        return store_fail(s, e, "bind a date");
    return store_finish(s, st, "forget old crashes", e);
}

int store_add_crashes(struct store *s, const struct store_crash *crashes, size_t n,
                      struct err *e)
{
    const double now_s = (double)clock_wall_us() / 1e6;
    int code = 0;
    TRY(store_begin(s, e));
    TRY_OUT(code, prune(s, now_s, e));
    for (size_t i = 0; i < n; i++)
        TRY_OUT(code, add_one(s, &crashes[i], now_s, e));
    TRY_OUT(code, store_commit(s, e));
out:
    store_rollback(s);
    return code;
}

static int give(sqlite3_stmt *st,
                int (*each)(void *ctx, const struct store_crash *crash, struct err *e),
                void *ctx, struct err *e)
{
    struct store_crash crash = {
        .partition = sqlite3_column_int(st, 1),
        .offset = sqlite3_column_int64(st, 2),
        .strikes = sqlite3_column_int64(st, 4),
        .deaths = sqlite3_column_int64(st, 5),
    };
    const char *sha256 = (const char *)sqlite3_column_text(st, 3);
    snprintf(crash.payload_sha256, sizeof crash.payload_sha256, "%s", sha256 ? sha256 : "");
    TRY(store_copy_text(st, 0, &crash.topic, e));
    const int rc = each(ctx, &crash, e);
    free(crash.topic);
    return rc;
}

int store_each_crash(struct store *s,
                     int (*each)(void *ctx, const struct store_crash *crash, struct err *e),
                     void *ctx, struct err *e)
{
    sqlite3_stmt *st;
    TRY(store_prepare(s, SQL_CRASH_EACH, &st, e));
    int code = 0, rc;
    while ((rc = sqlite3_step(st)) == SQLITE_ROW && code == 0)
        code = give(st, each, ctx, e);
    if (code == 0 && rc != SQLITE_DONE)
        code = store_fail(s, e, "read the crashes");
    sqlite3_reset(st);
    return code;
}

int store_forget_crash(struct store *s, const struct job *job, struct err *e)
{
    struct binder b = {0};
    TRY(store_prepare(s, SQL_CRASH_FORGET, &b.statement, e));
    if (bind_name(&b, job->source.topic, job->source.partition, job->source.offset,
                  job->payload_sha256) != SQLITE_OK)
        return store_fail(s, e, "bind a job");
    return store_finish(s, b.statement, "forget a crash", e);
}
