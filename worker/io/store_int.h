/* What the files of the store share: the handle, cached statements, transactions, errors. */
#ifndef SHEAF_STORE_INT_H
#define SHEAF_STORE_INT_H

#include <sqlite3.h>
#include <stdint.h>

#include "base/buf.h"
#include "io/store.h"

enum store_sql {
    SQL_BEGIN,
    SQL_COMMIT,
    SQL_META_FIND,
    SQL_META_SET,
    SQL_RUN_FIND,
    SQL_RUN_INSERT,
    SQL_RUN_REOPEN,
    SQL_RUN_END,
    SQL_RUN_FAILED,
    SQL_FIND_RECORD,
    SQL_FIND_LINE,
    SQL_JOB_INSERT,
    SQL_JOB_RETIRE,
    SQL_JOB_DELETE,
    SQL_OUTPUT_INSERT,
    SQL_DOCUMENT_INSERT,
    SQL_DRAFT_INSERT,
    SQL_OUTBOX_INSERT,
    SQL_OUTBOX_DELETE,
    SQL_OUTBOX_MARK,
    SQL_OUTBOX_OFFER,
    SQL_OUTBOX_WITHDRAW,
    SQL_OUTBOX_SUPERSEDE,
    SQL_OUTBOX_OPEN,
    SQL_JOB_ERROR,
    SQL_OUTBOX_LINE,
    SQL_EACH_UNPUBLISHED,
    SQL_SINK_FIND,
    SQL_SINK_SET,
    SQL_SINK_STALE,
    SQL_SINK_UNMARK,
    SQL_LINES_COUNT,
    SQL_LINES_DELETE,
    SQL_EXPERIMENT_INSERT,
    SQL_CRASH_ADD,
    SQL_CRASH_FORGET,
    SQL_CRASH_PRUNE,
    SQL_CRASH_EACH,
    SQL_RECEIVE_RUN,
    SQL_RECEIVE_PLACE,
    SQL_RECEIVE_FIND,
    SQL_RECEIVE_MARK,
    SQL_POSITION_SET,
    SQL_POSITION_NOTE,
    SQL_HEADERS_JOB,
    SQL_HEADERS_DOCUMENTS,
    SQL_HEADERS_DRAFTS,
    STORE_SQL_COUNT
};

/* The lock file beside a database; held from open to close by its owner. */
struct store_lock {
    int fd;           /* -1: not held */
    char *path;       /* owned */
    bool left_behind; /* it was there already: the last owner did not close */
};

/* ERR_STATE with the owner's pid when another process, or this one, holds it. */
int store_lock_take(struct store_lock *lock, const char *db_path, struct err *e);
/* An open that failed leaves a file that was left behind where it is, for the next check.
 * Accepts a lock that is not held. */
void store_lock_release(struct store_lock *lock, bool is_clean);

struct store {
    sqlite3 *db;
    char *path;
    enum store_mode mode;
    bool is_ready; /* opened in full; else closing writes nothing */
    struct store_lock lock;
    char *run_id; /* the run begun last; NULL before */
    sqlite3_stmt *cached[STORE_SQL_COUNT];
};

/* Records what SQLite says about its last failure: "jobs.db: cannot <what>: ...". */
int store_fail(struct store *s, struct err *e, const char *what);
/* Runs SQL text that yields no rows. */
int store_exec(struct store *s, const char *sql, const char *what, struct err *e);
/* One integer of a one-row query. */
int store_query_s64(struct store *s, const char *sql, int64_t *out, struct err *e);

/* The cached statement, reset and without bindings. */
int store_prepare(struct store *s, enum store_sql which, sqlite3_stmt **out, struct err *e);
/* Runs it to its end and resets it. */
int store_finish(struct store *s, sqlite3_stmt *statement, const char *what, struct err *e);

/* Binds by name; the first failure is kept and told once. */
struct binder {
    sqlite3_stmt *statement;
    int rc;
};
void binder_note(struct binder *b, int rc);
void binder_put_text(struct binder *b, const char *name, const char *text);
void binder_put_s64(struct binder *b, const char *name, int64_t value);
void binder_put_double(struct binder *b, const char *name, double value);

/* Binds texts to parameters 1..n; they must live until the statement has run. */
int store_bind_texts(struct store *s, sqlite3_stmt *st, const char *const *texts, int n,
                     struct err *e);
/* A column as a string of its own; NULL becomes "". */
int store_copy_text(sqlite3_stmt *st, int column, char **out, struct err *e);

int store_begin(struct store *s, struct err *e);
int store_commit(struct store *s, struct err *e);
void store_rollback(struct store *s); /* no open transaction: nothing happens */

/* Within the caller's transaction: the job is answered. */
int store_forget_crash(struct store *s, const struct job *job, struct err *e);

/* Finds the current row of a source. *job_id 0: there is none. */
struct store_row {
    int64_t job_id;
    int64_t attempt;
    bool same_payload, same_run, published;
};
int store_find_row(struct store *s, const struct job_source *source, const char *run_id,
                   const char *payload_sha256, struct store_row *row, char **line,
                   struct err *e);

/* Within the caller's transaction, as all up to here. A result with its answer, documents,
 * drafts and line; no current row may answer its source. */
int store_insert_result(struct store *s, const char *run_id, const struct result *r,
                        const char *line, int64_t attempt, int64_t stored_us, int64_t *job_id,
                        struct err *e);
/* The old answer to a source whose input is another one now (store.c): deleted, or retired. */
int store_replace_row(struct store *s, const struct store_row *row,
                      const struct job_source *source, const char *run_id, struct err *e);
/* A statement whose only parameter is a job_id. */
int store_by_job_id(struct store *s, enum store_sql which, int64_t job_id, struct err *e);
int store_mark_all(struct store *s, const struct job_source *const *sources, size_t n,
                   struct err *e);
int store_sink_set_stale(struct store *s, const char *run_id, const char *topic, bool stale,
                         struct err *e);

/* A path as SQLite's URI: what means something in one is escaped. */
void store_append_uri(struct buf *out, const char *path, const char *parameters);

/* The schema: creates or upgrades; views follow the text that is built in. */
enum { STORE_APPLICATION_ID = 0x53484146, STORE_SCHEMA_VERSION = 5 };
int store_migrate(struct store *s, int64_t from, struct err *e);

#endif
