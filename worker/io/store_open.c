/*
 * Opening and closing: lock, checks, pragmas, migration.
 *
 * Order for an owner: lock file; the file itself (0600; SQLite gives -wal and -shm the same
 * mode); who made it (application_id) and which schema (user_version), before anything is
 * written; quick_check; WAL and synchronous=FULL; migrations, each in one transaction with its
 * user_version. A reader stops after the checks.
 *
 * SQLite 3.7.0 to 3.51.2 can corrupt a WAL when two connections checkpoint at once: the lock
 * makes this handle the only one that writes, and readers are opened read-only.
 */
#include "io/store_int.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "io/store_upkeep.h"

enum { BUSY_MS = 5000, SMALL_FILE_BYTES = 16 << 20 };

extern const unsigned char schema_sql_0001_initial[];
extern const unsigned char schema_sql_0002_prefixes[];
extern const unsigned char schema_sql_0003_experiments[];
extern const unsigned char schema_sql_0004_drafts[];
extern const unsigned char schema_sql_0005_delivery[];
extern const unsigned char schema_sql_views[];

static const unsigned char *const migrations[STORE_SCHEMA_VERSION] = {
    schema_sql_0001_initial, schema_sql_0002_prefixes, schema_sql_0003_experiments,
    schema_sql_0004_drafts,  schema_sql_0005_delivery,
};

static int create_private(const char *path, struct err *e)
{
    const int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0 && errno == EEXIST)
        return 0;
    if (fd < 0)
        return ERR_SET(e, ERR_IO, "cannot create %s: %s%s", path, strerror(errno),
                       err_advice(errno));
    close(fd);
    return 0;
}

static int refuse_special(const char *path, struct err *e)
{
    struct stat st;
    if (path[0] == '\0' || strcmp(path, ":memory:") == 0)
        return ERR_SET(e, ERR_INVALID, "a database needs a file name");
    if (stat(path, &st) == 0 && !S_ISREG(st.st_mode))
        return ERR_SET(e, ERR_INVALID, "%s is not a file", path);
    return 0;
}

/* Who made this database, and for which schema? *version 0: it is empty. */
static int check_identity(struct store *s, int64_t *version, struct err *e)
{
    int64_t application = 0, objects = 0;
    TRY(store_query_s64(s, "SELECT count(*) FROM sqlite_schema", &objects, e));
    TRY(store_query_s64(s, "PRAGMA application_id", &application, e));
    TRY(store_query_s64(s, "PRAGMA user_version", version, e));
    if (objects == 0 && application == 0 && *version == 0)
        return 0;
    if (application != STORE_APPLICATION_ID)
        return ERR_SET(e, ERR_STATE, "%s is a database of another program; it was left alone",
                       s->path);
    if (*version > STORE_SCHEMA_VERSION)
        return ERR_SET(e, ERR_STATE,
                       "%s has schema %" PRId64 ", this program knows schemas up to %d; use "
                       "a newer sheaf or another database",
                       s->path, *version, STORE_SCHEMA_VERSION);
    return 0;
}

static int quick_check(struct store *s, struct err *e)
{
    sqlite3_stmt *statement = NULL;
    int code = 0;
    if (sqlite3_prepare_v2(s->db, "PRAGMA quick_check(1)", -1, &statement, NULL) != SQLITE_OK ||
        sqlite3_step(statement) != SQLITE_ROW)
        code = store_fail(s, e, "check the database");
    else {
        const char *verdict = (const char *)sqlite3_column_text(statement, 0);
        if (!verdict || strcmp(verdict, "ok") != 0)
            code = ERR_SET_FLAGS(e, ERR_DB, ERR_FATAL, "%s is damaged (%.200s); " STORE_ADVICE,
                                 s->path, verdict ? verdict : "no verdict");
    }
    sqlite3_finalize(statement);
    return code;
}

static int64_t file_bytes(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 ? (int64_t)st.st_size : 0;
}

static int set_wal(struct store *s, struct err *e)
{
    sqlite3_stmt *statement = NULL;
    int code = 0;
    if (sqlite3_prepare_v2(s->db, "PRAGMA journal_mode = WAL", -1, &statement, NULL) !=
            SQLITE_OK ||
        sqlite3_step(statement) != SQLITE_ROW)
        code = store_fail(s, e, "switch to WAL");
    else if (sqlite3_stricmp((const char *)sqlite3_column_text(statement, 0), "wal") != 0)
        code =
            ERR_SET(e, ERR_DB, "%s cannot use a write-ahead log on this file system", s->path);
    sqlite3_finalize(statement);
    return code;
}

static int apply_migration(struct store *s, int64_t version, struct err *e)
{
    struct buf sql = {0};
    buf_append_str(&sql, (const char *)migrations[version - 1]);
    buf_printf(&sql, "\nPRAGMA application_id = %d;\nPRAGMA user_version = %" PRId64 ";\n",
               STORE_APPLICATION_ID, version);
    int code = 0;
    if (!buf_ok(&sql))
        TRY_OUT(code, ERR_SET(e, ERR_NOMEM, "out of memory"));
    TRY_OUT(code, store_begin(s, e));
    TRY_OUT(code, store_exec(s, buf_str(&sql), "bring the schema up to date", e));
    TRY_OUT(code, store_commit(s, e));
out:
    store_rollback(s);
    buf_fini(&sql);
    return code;
}

/* FNV-1a, to see whether the text changed; no more is asked of it. */
static uint64_t hash_text(const char *text)
{
    uint64_t hash = 14695981039346656037u;
    for (; *text; text++)
        hash = (hash ^ (unsigned char)*text) * 1099511628211u;
    return hash;
}

static int refresh_views(struct store *s, struct err *e)
{
    const char *views = (const char *)schema_sql_views;
    struct buf sql = {0};
    int64_t fresh = 0;
    int code = 0;
    buf_printf(&sql,
               "SELECT count(*) FROM meta WHERE key = 'views' AND value = '%016" PRIx64 "'",
               hash_text(views));
    if (!buf_ok(&sql))
        TRY_OUT(code, ERR_SET(e, ERR_NOMEM, "out of memory"));
    TRY_OUT(code, store_query_s64(s, buf_str(&sql), &fresh, e));
    if (fresh)
        goto out;
    buf_truncate(&sql, 0);
    buf_append_str(&sql, views);
    buf_printf(&sql,
               "INSERT INTO meta VALUES ('views', '%016" PRIx64 "') "
               "ON CONFLICT DO UPDATE SET value = excluded.value;"
               "INSERT INTO meta VALUES ('version', '" SHEAF_VERSION "') "
               "ON CONFLICT DO UPDATE SET value = excluded.value;",
               hash_text(views));
    if (!buf_ok(&sql))
        TRY_OUT(code, ERR_SET(e, ERR_NOMEM, "out of memory"));
    TRY_OUT(code, store_begin(s, e));
    TRY_OUT(code, store_exec(s, buf_str(&sql), "make the views", e));
    TRY_OUT(code, store_commit(s, e));
out:
    store_rollback(s);
    buf_fini(&sql);
    return code;
}

int store_migrate(struct store *s, int64_t from, struct err *e)
{
    for (int64_t version = from + 1; version <= STORE_SCHEMA_VERSION; version++)
        TRY(apply_migration(s, version, e));
    return refresh_views(s, e);
}

void store_append_uri(struct buf *out, const char *path, const char *parameters)
{
    buf_append_str(out, "file:");
    for (const char *c = path; *c; c++) {
        if (*c == '%' || *c == '?' || *c == '#')
            buf_printf(out, "%%%02x", (unsigned char)*c);
        else
            buf_append_char(out, *c);
    }
    buf_append_str(out, parameters);
}

static int connect_file(struct store *s, struct err *e)
{
    int flags = s->mode == STORE_OWNER ? SQLITE_OPEN_READWRITE : SQLITE_OPEN_READONLY;
    if (strncmp(s->path, "file:", 5) != 0) /* so that others can be attached for reading only */
        flags |= SQLITE_OPEN_URI;
    if (sqlite3_open_v2(s->path, &s->db, flags | SQLITE_OPEN_EXRESCODE, NULL) != SQLITE_OK)
        return store_fail(s, e, "open the database");
    sqlite3_busy_timeout(s->db, BUSY_MS);
    sqlite3_db_config(s->db, SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0, NULL);
    sqlite3_db_config(s->db, SQLITE_DBCONFIG_DEFENSIVE, 1, NULL);
    return store_exec(s, "PRAGMA foreign_keys = ON; PRAGMA mmap_size = 0;", "set up", e);
}

/* Of a database that has none: a new one, or one of an earlier version. */
static int make_identity(struct store *s, struct err *e)
{
    return store_exec(s,
                      "INSERT INTO meta SELECT 'identity', random() & 0x7fffffffffffffff "
                      "WHERE NOT EXISTS (SELECT 1 FROM meta WHERE key = 'identity')",
                      "give the database an identity", e);
}

int store_identity(struct store *s, int64_t *out, struct err *e)
{
    return store_query_s64(s, "SELECT CAST(value AS INTEGER) FROM meta WHERE key = 'identity'",
                           out, e);
}

/* The identity that the file has without its log; 0: it has none, or cannot be read so. */
static int64_t identity_in_file(const struct store *s)
{
    struct buf uri = {0};
    sqlite3 *db = NULL;
    sqlite3_stmt *st = NULL;
    int64_t identity = 0;
    char *real = realpath(s->path, NULL);
    store_append_uri(&uri, real ? real : s->path, "?mode=ro&immutable=1");
    free(real);
    if (buf_ok(&uri) &&
        sqlite3_open_v2(buf_str(&uri), &db, SQLITE_OPEN_READONLY | SQLITE_OPEN_URI, NULL) ==
            SQLITE_OK &&
        sqlite3_prepare_v2(db, "SELECT CAST(value AS INTEGER) FROM meta WHERE key = 'identity'",
                           -1, &st, NULL) == SQLITE_OK &&
        sqlite3_step(st) == SQLITE_ROW)
        identity = sqlite3_column_int64(st, 0);
    sqlite3_finalize(st);
    sqlite3_close(db);
    buf_fini(&uri);
    return identity;
}

/* SQLite takes any log that lies beside a file for its own. */
static int refuse_foreign_log(struct store *s, int64_t in_file, struct err *e)
{
    int64_t seen = 0, has_meta = 0;
    TRY(store_query_s64(s, "SELECT count(*) FROM sqlite_schema WHERE name = 'meta'", &has_meta,
                        e));
    if (in_file == 0 || !has_meta)
        return 0;
    TRY(store_query_s64(s,
                        "SELECT coalesce((SELECT CAST(value AS INTEGER) FROM meta "
                        "WHERE key = 'identity'), 0)",
                        &seen, e));
    if (seen == in_file)
        return 0;
    return ERR_SET_FLAGS(e, ERR_DB, ERR_FATAL,
                         "%s-wal belongs to another database; move it away (nothing of this "
                         "one is in it), or " STORE_ADVICE,
                         s->path);
}

static int open_owner(struct store *s, struct err *e)
{
    int64_t version = 0;
    TRY(store_lock_take(&s->lock, s->path, e));
    TRY(create_private(s->path, e));
    const int64_t in_file = identity_in_file(s);
    TRY(connect_file(s, e));
    TRY(refuse_foreign_log(s, in_file, e));
    TRY(check_identity(s, &version, e));
    if (s->lock.left_behind || file_bytes(s->path) <= SMALL_FILE_BYTES)
        TRY(quick_check(s, e));
    TRY(set_wal(s, e));
    TRY(store_exec(s, "PRAGMA synchronous = FULL; PRAGMA journal_size_limit = 67108864;",
                   "set up", e));
    TRY(store_migrate(s, version, e));
    return make_identity(s, e);
}

static int open_reader(struct store *s, struct err *e)
{
    int64_t version = 0;
    if (access(s->path, F_OK) != 0)
        return ERR_SET(e, ERR_NOTFOUND, "%s: no such database", s->path);
    const int64_t in_file = identity_in_file(s);
    TRY(connect_file(s, e));
    TRY(refuse_foreign_log(s, in_file, e));
    TRY(check_identity(s, &version, e));
    if (version == 0)
        return ERR_SET(e, ERR_STATE, "%s is empty: no run has written to it yet", s->path);
    if (version < STORE_SCHEMA_VERSION)
        return ERR_SET(e, ERR_STATE,
                       "%s has schema %" PRId64 ", this program reads schema %d; a worker that "
                       "opens it brings it up to date",
                       s->path, version, STORE_SCHEMA_VERSION);
    return 0;
}

int store_open(const char *path, enum store_mode mode, struct store **out, struct err *e)
{
    *out = NULL;
    TRY(refuse_special(path, e));
    struct store *s = calloc(1, sizeof *s);
    if (!s)
        return ERR_SET(e, ERR_NOMEM, "out of memory");
    s->mode = mode;
    s->lock.fd = -1;
    s->path = strdup(path);
    int code = s->path ? 0 : ERR_SET(e, ERR_NOMEM, "out of memory");
    if (code == 0)
        code = mode == STORE_OWNER ? open_owner(s, e) : open_reader(s, e);
    if (code != 0) {
        store_close(s);
        return code;
    }
    s->is_ready = true;
    *out = s;
    return 0;
}

void store_close(struct store *s)
{
    if (!s)
        return;
    for (int i = 0; i < STORE_SQL_COUNT; i++)
        sqlite3_finalize(s->cached[i]);
    if (s->is_ready && s->mode == STORE_OWNER) {
        /* A reader may hold the log back; then the next owner checkpoints it. */
        sqlite3_exec(s->db, "PRAGMA optimize", NULL, NULL, NULL);
        sqlite3_wal_checkpoint_v2(s->db, NULL, SQLITE_CHECKPOINT_TRUNCATE, NULL, NULL);
    }
    sqlite3_close_v2(s->db);
    store_lock_release(&s->lock, s->is_ready);
    free(s->run_id);
    free(s->path);
    free(s);
}

struct sqlite3 *store_handle(struct store *s)
{
    return s->db;
}
