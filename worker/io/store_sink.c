/* How far the output file of a run is written; the rules are in queue_file.h. */
#include "io/store_int.h"

#include <stdlib.h>

static int need_run(struct store *s, struct err *e)
{
    return s->run_id ? 0 : ERR_SET(e, ERR_STATE, "%s: no run has begun", s->path);
}

int store_find_sink(struct store *s, const char *topic, struct store_sink *out, struct err *e)
{
    sqlite3_stmt *st;
    *out = (struct store_sink){0};
    TRY(need_run(s, e));
    const char *const texts[] = {s->run_id, topic};
    TRY(store_prepare(s, SQL_SINK_FIND, &st, e));
    TRY(store_bind_texts(s, st, texts, 2, e));
    int code = 0;
    const int rc = sqlite3_step(st);
    if (rc == SQLITE_ROW) {
        out->bytes = sqlite3_column_int64(st, 1);
        out->is_stale = sqlite3_column_int(st, 2);
        code = store_copy_text(st, 0, &out->path, e);
    } else if (rc != SQLITE_DONE) {
        code = store_fail(s, e, "look up the output file");
    }
    sqlite3_reset(st);
    return code;
}

void store_sink_fini(struct store_sink *sink)
{
    free(sink->path);
    *sink = (struct store_sink){0};
}

static int set_bytes(struct store *s, const char *topic, const char *path, int64_t bytes,
                     struct err *e)
{
    sqlite3_stmt *st;
    const char *const texts[] = {s->run_id, topic, path};
    TRY(store_prepare(s, SQL_SINK_SET, &st, e));
    TRY(store_bind_texts(s, st, texts, 3, e));
    if (sqlite3_bind_int64(st, 4, bytes) != SQLITE_OK)
        return store_fail(s, e, "bind a length");
    return store_finish(s, st, "keep the length of the output file", e);
}

int store_sink_set_stale(struct store *s, const char *run_id, const char *topic, bool stale,
                         struct err *e)
{
    sqlite3_stmt *st;
    const char *const texts[] = {run_id, topic};
    TRY(store_prepare(s, SQL_SINK_STALE, &st, e));
    TRY(store_bind_texts(s, st, texts, 2, e));
    if (sqlite3_bind_int(st, 3, stale) != SQLITE_OK)
        return store_fail(s, e, "bind a flag");
    return store_finish(s, st, "mark the output file as stale", e);
}

static int unmark_all(struct store *s, const char *topic, struct err *e)
{
    sqlite3_stmt *st;
    const char *const texts[] = {s->run_id, topic};
    TRY(store_prepare(s, SQL_SINK_UNMARK, &st, e));
    TRY(store_bind_texts(s, st, texts, 2, e));
    return store_finish(s, st, "take marks back", e);
}

int store_mark_written(struct store *s, const char *topic, const char *path, int64_t bytes,
                       const struct job_source *const *sources, size_t n, struct err *e)
{
    int code = 0;
    TRY(need_run(s, e));
    TRY(store_begin(s, e));
    TRY_OUT(code, set_bytes(s, topic, path, bytes, e));
    TRY_OUT(code, store_mark_all(s, sources, n, e));
    TRY_OUT(code, store_commit(s, e));
out:
    store_rollback(s);
    return code;
}

int store_reset_sink(struct store *s, const char *topic, const char *path, struct err *e)
{
    int code = 0;
    TRY(need_run(s, e));
    TRY(store_begin(s, e));
    TRY_OUT(code, set_bytes(s, topic, path, 0, e));
    TRY_OUT(code, store_sink_set_stale(s, s->run_id, topic, false, e));
    TRY_OUT(code, unmark_all(s, topic, e));
    TRY_OUT(code, store_commit(s, e));
out:
    store_rollback(s);
    return code;
}

static int prepare_lines(struct store *s, enum store_sql which, const char *topic,
                         int64_t first, int64_t last, sqlite3_stmt **st, struct err *e)
{
    const char *const texts[] = {s->run_id, topic};
    TRY(store_prepare(s, which, st, e));
    TRY(store_bind_texts(s, *st, texts, 2, e));
    if (sqlite3_bind_int64(*st, 3, first) != SQLITE_OK ||
        sqlite3_bind_int64(*st, 4, last) != SQLITE_OK)
        return store_fail(s, e, "bind line numbers");
    return 0;
}

static int delete_lines(struct store *s, const char *topic, int64_t first, int64_t last,
                        bool published, struct err *e)
{
    sqlite3_stmt *st;
    int code = 0;
    TRY(store_begin(s, e));
    if (published)
        TRY_OUT(code, store_sink_set_stale(s, s->run_id, topic, true, e));
    TRY_OUT(code, prepare_lines(s, SQL_LINES_DELETE, topic, first, last, &st, e));
    TRY_OUT(code, store_finish(s, st, "drop lines", e));
    TRY_OUT(code, store_commit(s, e));
out:
    store_rollback(s);
    return code;
}

int store_drop_lines(struct store *s, const char *topic, int64_t first, int64_t last,
                     struct err *e)
{
    sqlite3_stmt *st;
    TRY(need_run(s, e));
    TRY(prepare_lines(s, SQL_LINES_COUNT, topic, first, last, &st, e));
    if (sqlite3_step(st) != SQLITE_ROW)
        return store_fail(s, e, "count lines");
    const int64_t stored = sqlite3_column_int64(st, 0), published = sqlite3_column_int64(st, 1);
    sqlite3_reset(st);
    return stored ? delete_lines(s, topic, first, last, published > 0, e) : 0;
}
