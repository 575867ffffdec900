/*
 * The SQLite database of one worker: runs, jobs, outputs, outbox.
 *
 * A finished job is one transaction: its row, its output, its outbox row (synchronous=FULL), so
 * that what is published or written to a file is always stored before. One process owns
 * a database (a lock file beside it); readers open it read-only. Rows are idempotent by
 * (topic, partition, offset). Schema: schema/sqlite, migrations in order, user_version.
 *
 * Thread: store (one thread owns the handle).
 */
#ifndef SHEAF_STORE_H
#define SHEAF_STORE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "result.h"

struct store;

enum store_mode { STORE_OWNER, STORE_READER };

/* Creates the file (mode 0600) and migrates it when STORE_OWNER. A database of a newer schema
 * is refused with both numbers. */
int store_open(const char *path, enum store_mode mode, struct store **out, struct err *e);
/* Checkpoints and optimises when owner. */
void store_close(struct store *s);

struct store_run {
    const char *run_id;
    const char *label; /* or NULL */
    const char *model, *model_sha256, *quant;
    const char *kernels;     /* "avx512" */
    const char *engine_json; /* options and plan as one JSON object */
    const char *version;
    int64_t started_s;
};
/* Inserts or re-opens a run; re-opening a run with another model is ERR_STATE. */
int store_begin_run(struct store *s, const struct store_run *run, struct err *e);
/* status: completed | cancelled | failed. */
int store_end_run(struct store *s, const char *run_id, const char *status, struct err *e);

/*
 * Stores results and their outbox lines in one transaction. lines[i] are the result's JSON.
 * A result whose (topic, partition, offset) is stored already with the same payload hash is
 * left as it is.
 */
int store_put(struct store *s, const char *run_id, const struct result *const *results,
              const char *const *lines, size_t n, struct err *e);

/* Marks outbox rows as published (or written). */
int store_mark_published(struct store *s, const struct job_source *const *sources, size_t n,
                         struct err *e);

/*
 * Is this input answered already? *line becomes the stored result line (free() it) and
 * *published tells whether it was handed over; *line NULL: not stored. A row whose payload
 * hash differs does not count.
 */
int store_find(struct store *s, const struct job_source *source, const char *payload_sha256,
               char **line, bool *published, struct err *e);

/* Calls each for every stored line that is not published, in (topic, partition, offset) order.
 */
int store_each_unpublished(struct store *s,
                           int (*each)(void *ctx, const struct job_source *source,
                                       const char *custom_id, const char *line, struct err *e),
                           void *ctx, struct err *e);

/* The handle for read-only queries of report/ (v_jobs, v_latency, ...). */
struct sqlite3 *store_handle(struct store *s);

#endif
