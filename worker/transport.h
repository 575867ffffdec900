/*
 * Where jobs come from and where result lines go: a file on each side, or Kafka topics. The
 * pipeline knows transports only through this table.
 *
 * A line that is delivered was stored before. deliver marks it as published once it is where it
 * belongs, or as superseded when another worker's answer is there, so that after a kill it is
 * delivered again unless that is known.
 *
 * An input that waits for its turn may stop being ours meanwhile (its partition went to another
 * worker); holds tells, and it is then dropped unanswered and unsettled.
 */
#ifndef SHEAF_TRANSPORT_H
#define SHEAF_TRANSPORT_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "io/store.h"
#include "job.h"

/* The one store handle, which intake and delivery share. */
struct shared_store {
    struct store *store;
    pthread_mutex_t lock;
};

enum { TRANSPORT_BATCH_MAX = 64 }; /* outputs of one deliver */

enum transport_event { TRANSPORT_NOTHING, TRANSPORT_INPUT, TRANSPORT_END };

struct transport_input {
    const char *bytes; /* borrowed until the next take; NULL: a record without a value */
    size_t length;
    struct job_source source;  /* topic borrowed likewise */
    const char *custom_id;     /* that came beside the bytes, or NULL */
    struct job_record *record; /* the bytes and all that came with them, for the taker to move
                                  out of; NULL: lines of files have none */
};

struct transport_output {
    const struct job_source *source;
    const char *custom_id;
    const char *line; /* NULL: was published before; only the input is to be settled */
    const struct job_record *record; /* or NULL */
    const struct job_error *error;   /* or NULL: it was answered */
    const char *stage;               /* that the error comes from */
    int64_t attempts;                /* times that the job was begun */
};

/* What a progress line can say. total -1: not known. */
struct transport_progress {
    const char *unit; /* "bytes", "jobs" */
    int64_t taken, total;
};

struct transport {
    void *ctx;
    bool has_end;    /* stopping before it leaves work undone; a topic has none */
    bool unique_ids; /* a custom_id may come only once */
    /* Inputs that may wait for the engine. Where take has to be called on (a topic) it is all
     * that may be in flight, so that intake never waits for room. */
    size_t queue_max;
    /* Waits a little if it may. After the end, more may come of a transport that has none.
     * Thread: intake. */
    int (*take)(void *ctx, bool may_wait, struct transport_input *in,
                enum transport_event *event, struct err *e);
    /* Makes a take that waits return ERR_CANCELLED; NULL: take never waits long. Thread: any.
     */
    void (*stop)(void *ctx);
    /* Is this input still ours to answer? NULL: always. Thread: any. */
    bool (*holds)(void *ctx, const struct job_source *source);
    int linger_ms; /* how long outputs may wait for others that are delivered with them */
    /* At most TRANSPORT_BATCH_MAX outputs. 0: each is delivered, or kept (a copy) to be
     * delivered with a later batch, its input not settled till then. ERR_RETRY in e->flags: the
     * same call, with the same outputs, may succeed later. Thread: delivery. */
    int (*deliver)(void *ctx, const struct transport_output *outputs, size_t n, struct err *e);
    /* Thread: any. */
    void (*progress)(void *ctx, struct transport_progress *out);
    /* Takes nothing more, but keeps in touch with where inputs come from until everything is
     * delivered. NULL: no need. Waits a little. Thread: intake. */
    int (*tend)(void *ctx, struct err *e);
    /* After the last deliver; whole: every input was taken and answered. */
    int (*finish)(void *ctx, bool whole, struct err *e);
    void (*close)(void *ctx);
};

int transport_open_files(const char *input, const char *output, size_t queue_max,
                         struct shared_store *store, struct transport *out, struct err *e);

struct kafka_options;
struct dead_letters;
/* letters borrows its texts until close. */
int transport_open_kafka(const struct kafka_options *o, const struct dead_letters *letters,
                         bool exit_when_empty, struct shared_store *store,
                         struct transport *out, struct err *e);

#endif
