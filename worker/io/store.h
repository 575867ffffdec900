/*
 * The SQLite database of one worker: runs, jobs, outputs, outbox.
 *
 * A finished job is one transaction: its row, its output, its outbox row (synchronous=FULL), so
 * that what is published or written to a file is always stored before. One process owns
 * a database (a lock file beside it); readers open it read-only. Schema: schema/sqlite,
 * migrations in order, user_version.
 *
 * Rows are idempotent: a record of a topic by (topic, partition, offset) in the database; a
 * line of a file by (path, line number) in its run, so that two runs over one file can stand
 * side by side. For lines, "its run" is the one begun last with store_begin_run. What happens
 * when the payload differs is told in store.c.
 *
 * Errors of SQLite are ERR_DB with its own text and the path; ERR_RETRY is set when the same
 * call can succeed later (disk full, I/O, busy), ERR_FATAL when the database is damaged.
 *
 * Thread: any, one at a time: threads that share a handle share a lock.
 */
#ifndef SHEAF_STORE_H
#define SHEAF_STORE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "io/offset_metadata.h"
#include "result.h"

struct store;

enum store_mode { STORE_OWNER, STORE_READER };

/*
 * STORE_OWNER: creates the file (mode 0600), checks and migrates it; ERR_STATE with the pid of
 * the process that owns it already. STORE_READER: never writes; may be used while an owner
 * works. Refused with ERR_STATE: a newer schema (with both numbers), another program's
 * database; with ERR_DB: what is not a database, a damaged one.
 */
int store_open(const char *path, enum store_mode mode, struct store **out, struct err *e);
/* A random number that the database was given when it was made: which worker's it is. */
int store_identity(struct store *s, int64_t *out, struct err *e);
/*
 * The answers to a topic's jobs in this database are those of one group of one cluster: for
 * another one they would be found here and never published. Remembers both at the first call
 * for a topic; ERR_STATE when they are others now. cluster NULL: not known.
 */
int store_claim_topic(struct store *s, const char *topic, const char *cluster,
                      const char *group, struct err *e);
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
/* Jobs of the run that have no answer but an error, by whichever start. */
int store_count_failed(struct store *s, const char *run_id, int64_t *n, struct err *e);
/* status: completed | cancelled | failed; counters_json: what the engine counted, or NULL. */
int store_end_run(struct store *s, const char *run_id, const char *status,
                  const char *counters_json, struct err *e);

/*
 * Stores results and their outbox lines in one transaction. lines[i] are the result's JSON.
 * A result whose (topic, partition, offset) is stored already with the same payload hash is
 * left as it is.
 */
int store_put(struct store *s, const char *run_id, const struct result *const *results,
              const char *const *lines, size_t n, struct err *e);

/*
 * What becomes of stored answers on their way to a topic (store_publish.c):
 *
 *     stored --offered--> in a burst --published--> visible
 *        <----withdrawn------/ (it was taken back)
 *        \                    |
 *         \------------------superseded: another worker's answer is visible
 *
 * Each marks outbox rows, all or none. A source without a row is ERR_NOTFOUND.
 */
int store_mark_offered(struct store *s, const struct job_source *const *sources, size_t n,
                       struct err *e);
int store_mark_withdrawn(struct store *s, const struct job_source *const *sources, size_t n,
                         struct err *e);
int store_mark_published(struct store *s, const struct job_source *const *sources, size_t n,
                         struct err *e);
int store_mark_superseded(struct store *s, const struct job_source *const *sources, size_t n,
                          struct err *e);

/*
 * The group has committed that these offsets of a partition are settled. An answer that waits
 * here for one of them was in the burst that did it, when it was offered to one and its marking
 * was cut off; else another worker's answer is the visible one.
 */
struct store_reconciled {
    size_t n_published, n_superseded;
};
int store_reconcile(struct store *s, const char *topic, int32_t partition,
                    const struct offset_bits *settled, struct store_reconciled *out,
                    struct err *e);

/* The error that the stored answer of a source is; status 0: it is none. */
int store_find_error(struct store *s, const struct job_source *source, struct job_error *out,
                     struct err *e);

/*
 * Is this input answered already? *line becomes the stored result line (free() it) and
 * *published tells whether it was handed over; *line NULL: not stored. A row whose payload
 * hash differs does not count.
 */
int store_find(struct store *s, const struct job_source *source, const char *payload_sha256,
               char **line, bool *published, struct err *e);

/*
 * Calls each for every stored line that is not published, in (topic, partition, offset) order:
 * records of all runs (source->is_file false) and lines of the run begun last (true). each may
 * mark what it was given; it may not call this function. An error of each ends it.
 */
int store_each_unpublished(struct store *s,
                           int (*each)(void *ctx, const struct job_source *source,
                                       const char *custom_id, const char *line, struct err *e),
                           void *ctx, struct err *e);

/*
 * Jobs that a worker had in its hands when it ended without saying so. store_put forgets a job
 * in the transaction that stores its answer.
 */
struct store_crash {
    char *topic;
    int32_t partition;
    int64_t offset;
    char payload_sha256[65];
    int64_t strikes; /* the worker crashed or hung by itself, or its device failed */
    int64_t deaths;  /* it was killed, or nobody knows */
};
/* Adds to what is known of them, all or none; rows that are older than CRASH_DAYS_MAX go. */
enum { CRASH_DAYS_MAX = 30 };
int store_add_crashes(struct store *s, const struct store_crash *crashes, size_t n,
                      struct err *e);
/* In no order; crash is borrowed. each may not use the store. An error of each ends it. */
int store_each_crash(struct store *s,
                     int (*each)(void *ctx, const struct store_crash *crash, struct err *e),
                     void *ctx, struct err *e);

/*
 * Output files, for queue_file.c. The run begun last writes the answers to the input file
 * `topic` into one output file; how many of its bytes are known to be good changes in the
 * transaction of the marks. is_stale: a line in it answers input that was edited since.
 */
struct store_sink {
    char *path; /* owned; NULL: nothing was written yet */
    int64_t bytes;
    bool is_stale;
};
int store_find_sink(struct store *s, const char *topic, struct store_sink *out, struct err *e);
void store_sink_fini(struct store_sink *sink);
/* Marks as store_mark_published does, and keeps the file's new length. */
int store_mark_written(struct store *s, const char *topic, const char *path, int64_t bytes,
                       const struct job_source *const *sources, size_t n, struct err *e);
/* The file counts as empty: no line of the topic in this run is published any more. */
int store_reset_sink(struct store *s, const char *topic, const char *path, struct err *e);

/*
 * The run begun last has no input any more at lines first..last of the file: a line that became
 * blank, or the end of a file that became shorter. Their answers go; if one was written, the
 * output is stale. Costs a look-up where there is nothing.
 */
int store_drop_lines(struct store *s, const char *topic, int64_t first, int64_t last,
                     struct err *e);

/* The handle for read-only queries of report/ (v_jobs, v_latency, ...). */
struct sqlite3 *store_handle(struct store *s);

#endif
