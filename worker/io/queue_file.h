/*
 * A JSONL file, or stdin, as job queue, and a JSONL file, or stdout, for the answers.
 *
 * Exactly one line an input, whatever is killed when. A batch of answers goes three steps after
 * the store holds it:
 *
 *   1  append the lines to the file        bytes [good, good + n)
 *   2  fdatasync the file
 *   3  one transaction: the lines are marked as published, good += n
 *
 * Killed before 3, the database still says good, and the lines are unpublished; opening cuts
 * the file to good (torn last line and all) and writes every unpublished line again. Killed
 * after 3, the lines are in the file and marked. So the file's first `good` bytes are always
 * exactly the marked lines. Lines are in the order of completion.
 *
 * A line that answered input which was edited or removed since makes the file stale: it is then
 * written anew from the database, when the run finishes or is opened next. That is one
 * transaction that takes all marks back and sets good = 0, after which the same steps repair
 * the file.
 *
 * What is not ours is not overwritten: a file that holds bytes which this run did not write
 * (or whose line end at `good` is gone) is refused, unless the caller says overwrite.
 *
 * On stdout nothing can be cut off or synced: opening takes all marks back and writes nothing;
 * each known line is written again when its input is read, so that the output of one process is
 * whole and holds the lines of this input only.
 */
#ifndef SHEAF_QUEUE_FILE_H
#define SHEAF_QUEUE_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "io/store.h"

/* Without its line feed; a CR before it is still there. Borrowed until the next call. */
struct file_line {
    const char *bytes; /* NULL: the end of the file */
    size_t length;     /* at most JOB_BYTES_MAX + 1: a longer line is cut there, which makes it
                          too long for job_parse */
    uint64_t size;     /* the whole line */
    int64_t number;    /* 1-based */
};

struct file_source;
/* path "-" is stdin. */
int file_source_open(const char *path, struct file_source **out, struct err *e);
int file_source_next(struct file_source *f, struct file_line *line, struct err *e);
/* Makes a call that waits for input return ERR_CANCELLED within 0.1 s, now or later. Thread:
 * any. */
void file_source_stop(struct file_source *f);
/* For a progress line. *total -1: not known (a pipe). */
void file_source_progress(const struct file_source *f, int64_t *read, int64_t *total);
void file_source_close(struct file_source *f); /* accepts NULL */

struct file_sink;
/*
 * path "-" is stdout. topic is the topic of the run's sources (the input's path); the run must
 * have begun. Repairs the file and writes what is stored and not yet in it. The file is created
 * with mode 0600, for answers quote documents. Refused: what is not a regular file, a file in
 * use by another process (ERR_STATE).
 */
int file_sink_open(const char *path, const char *topic, struct store *store, bool overwrite,
                   struct file_sink **out, struct err *e);
/*
 * Writes lines that the store holds already, syncs and marks them. After an error with
 * ERR_RETRY no line counts as written and the same call may be tried again (stdout: never).
 */
int file_sink_write(struct file_sink *f, const struct job_source *const *sources,
                    const char *const *lines, size_t n, struct err *e);
/* At the end of a run: writes a stale file anew. */
int file_sink_finish(struct file_sink *f, struct err *e);
int64_t file_sink_bytes(const struct file_sink *f); /* good */
void file_sink_close(struct file_sink *f);          /* accepts NULL */

#endif
