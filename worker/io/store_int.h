/* What the files of the store share: the handle, cached statements, transactions, errors. */
#ifndef SHEAF_STORE_INT_H
#define SHEAF_STORE_INT_H

#include <sqlite3.h>
#include <stdint.h>

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

/* Finds the current row of a source. *job_id 0: there is none. */
struct store_row {
    int64_t job_id;
    int64_t attempt;
    bool same_payload, same_run, published;
};
int store_find_row(struct store *s, const struct job_source *source, const char *run_id,
                   const char *payload_sha256, struct store_row *row, char **line,
                   struct err *e);

/* Within the caller's transaction. */
int store_mark_all(struct store *s, const struct job_source *const *sources, size_t n,
                   struct err *e);
int store_sink_set_stale(struct store *s, const char *run_id, const char *topic, bool stale,
                         struct err *e);

/* The schema: creates or upgrades; views follow the text that is built in. */
enum { STORE_APPLICATION_ID = 0x53484146, STORE_SCHEMA_VERSION = 5 };
int store_migrate(struct store *s, int64_t from, struct err *e);

#endif
