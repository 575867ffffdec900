/*
 * Which jobs are being worked on right now, in a small file beside the database
 * (night.db-running) that is mapped into memory: a worker that crashes, or is killed, leaves in
 * it the names of the jobs that were in its hands, and the next one reads them.
 *
 *     header   "SHEAFRUN", version, slots, bytes of a slot, how it ended, pid
 *     slot     is_used, partition, offset, SHA-256 of the payload, topic
 *
 * A slot for the job that intake works on, one for the job whose line delivery makes, and one
 * for each job in the engine. A job is written with plain stores: nothing here asks the system
 * for anything between opening and closing. The kernel keeps what was stored when the process
 * dies; power that fails may leave an older state, which names jobs that were done: they are
 * looked at with suspicion once and found answered.
 *
 * A worker whose device has failed ends in order, and leaves the file all the same: its mark is
 * set.
 *
 * The process that owns the database owns the file.
 */
#ifndef SHEAF_RUNNING_H
#define SHEAF_RUNNING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "job.h"

/* Who has a job; the numbers of the first slots. */
enum running_hand { RUNNING_INTAKE, RUNNING_DELIVERY, RUNNING_ENGINE, RUNNING_HANDS };

struct running;

/* Makes the file anew, mode 0600, with n_engine slots for the engine; takes its disk space now,
 * for a full disk would kill the process later. */
int running_open(const char *db_path, size_t n_engine, struct running **out, struct err *e);
/* An orderly end: removes the file, but for one that is marked. Accepts NULL. */
void running_close(struct running *r);

/* Names a job; slot is a hand, or RUNNING_ENGINE + the job's number in the engine. A slot is
 * written by one thread at a time. All accept NULL, which does nothing. */
void running_put(struct running *r, size_t slot, const struct job_source *source,
                 const char *payload_sha256);
void running_clear(struct running *r, size_t slot);
/* The process is about to end by its own fault or its device's, while this hand was at work.
 * The first mark stays. Thread: any, also in a signal handler. */
void running_mark_crashed(struct running *r, enum running_hand hand);
/* "jobs-0-17, jobs-0-19 and 3 more": what the engine has, for the log. */
void running_describe(struct running *r, char *out, size_t capacity);

/* What a process that did not end in order has left. */
struct running_name {
    char *topic; /* owned */
    int32_t partition;
    int64_t offset;
    char payload_sha256[65];
    enum running_hand hand;
};
struct running_last {
    struct running_name *names; /* owned */
    size_t n;
    bool crashed;                 /* by itself; else it vanished */
    enum running_hand crashed_in; /* when it did */
    int64_t pid;
};
/* No file, an empty or a strange one: nothing. ERR_IO: it cannot be read. */
int running_read(const char *db_path, struct running_last *out, struct err *e);
void running_last_fini(struct running_last *last);
/* After what was read is stored. */
void running_remove(const char *db_path);

#endif
