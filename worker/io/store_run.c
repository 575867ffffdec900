/* Runs: begin, resume, end. */
#include "io/store_int.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"

int store_bind_texts(struct store *s, sqlite3_stmt *st, const char *const *texts, int n,
                     struct err *e)
{
    for (int i = 0; i < n; i++)
        if (sqlite3_bind_text(st, i + 1, texts[i], -1, SQLITE_STATIC) != SQLITE_OK)
            return store_fail(s, e, "bind a text");
    return 0;
}

static int check_model(struct store *s, const struct store_run *run, bool *exists,
                       struct err *e)
{
    sqlite3_stmt *st;
    *exists = false;
    TRY(store_prepare(s, SQL_RUN_FIND, &st, e));
    TRY(store_bind_texts(s, st, &run->run_id, 1, e));
    int code = 0;
    const int rc = sqlite3_step(st);
    if (rc == SQLITE_ROW) {
        const char *model = (const char *)sqlite3_column_text(st, 0);
        const char *sha256 = (const char *)sqlite3_column_text(st, 1);
        *exists = true;
        if (!model || !sha256)
            code = ERR_SET_FLAGS(e, ERR_NOMEM, ERR_RETRY, "out of memory");
        else if (strcmp(sha256, run->model_sha256) != 0)
            code = ERR_SET(e, ERR_STATE,
                           "run %s was begun with model %s (%.12s), not %s (%.12s); give the "
                           "new run another name",
                           run->run_id, model, sha256, run->model, run->model_sha256);
    } else if (rc != SQLITE_DONE) {
        code = store_fail(s, e, "look up a run");
    }
    sqlite3_reset(st);
    return code;
}

static int insert_run(struct store *s, const struct store_run *run, struct err *e)
{
    sqlite3_stmt *st;
    const char *const texts[] = {run->run_id, run->label,   run->model,       run->model_sha256,
                                 run->quant,  run->kernels, run->engine_json, run->version};
    TRY(store_prepare(s, SQL_RUN_INSERT, &st, e));
    TRY(store_bind_texts(s, st, texts, 8, e));
    if (sqlite3_bind_double(st, 9, (double)run->started_s) != SQLITE_OK)
        return store_fail(s, e, "bind a run");
    return store_finish(s, st, "begin a run", e);
}

static int reopen_run(struct store *s, const struct store_run *run, struct err *e)
{
    sqlite3_stmt *st;
    const char *const texts[] = {run->run_id, run->kernels, run->engine_json, run->version,
                                 run->label};
    TRY(store_prepare(s, SQL_RUN_REOPEN, &st, e));
    TRY(store_bind_texts(s, st, texts, 5, e));
    return store_finish(s, st, "re-open a run", e);
}

int store_begin_run(struct store *s, const struct store_run *run, struct err *e)
{
    char *run_id = strdup(run->run_id);
    bool exists;
    int code = run_id ? 0 : ERR_SET(e, ERR_NOMEM, "out of memory");
    TRY_OUT(code, code);
    TRY_OUT(code, store_begin(s, e));
    TRY_OUT(code, check_model(s, run, &exists, e));
    TRY_OUT(code, exists ? reopen_run(s, run, e) : insert_run(s, run, e));
    TRY_OUT(code, store_commit(s, e));
    free(s->run_id);
    s->run_id = run_id;
    run_id = NULL;
out:
    store_rollback(s);
    free(run_id);
    return code;
}

int store_end_run(struct store *s, const char *run_id, const char *status,
                  const char *counters_json, struct err *e)
{
    sqlite3_stmt *st;
    const char *const texts[] = {run_id, status, counters_json};
    TRY(store_prepare(s, SQL_RUN_END, &st, e));
    TRY(store_bind_texts(s, st, texts, 3, e));
    if (sqlite3_bind_double(st, 4, (double)clock_wall_us() / 1e6) != SQLITE_OK)
        return store_fail(s, e, "bind a run");
    TRY(store_finish(s, st, "end a run", e));
    if (sqlite3_changes(s->db) == 0)
        return ERR_SET(e, ERR_NOTFOUND, "%s: no run %s", s->path, run_id);
    return 0;
}

int store_count_failed(struct store *s, const char *run_id, int64_t *n, struct err *e)
{
    sqlite3_stmt *st;
    TRY(store_prepare(s, SQL_RUN_FAILED, &st, e));
    TRY(store_bind_texts(s, st, &run_id, 1, e));
    int code = 0;
    if (sqlite3_step(st) == SQLITE_ROW)
        *n = sqlite3_column_int64(st, 0);
    else
        code = store_fail(s, e, "count the failed jobs");
    sqlite3_reset(st);
    return code;
}
