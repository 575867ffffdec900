/*
 * What the stages of the pipeline share: one struct, the hand-over of outcomes, and failing.
 * Everything here is for any thread unless a field says otherwise.
 */
#ifndef SHEAF_PIPELINE_INT_H
#define SHEAF_PIPELINE_INT_H

#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>

#include "alone.h"
#include "base/hash.h"
#include "base/queue.h"
#include "in_work.h"
#include "parked.h"
#include "pipeline.h"
#include "readahead.h"
#include "retry.h"
#include "watchdog.h"

/* What goes to delivery: a new result, or an input that the store knows already. */
struct outcome {
    struct result *result;
    struct job *known; /* result NULL: answered before */
    char *line;        /* its stored line, or the emitted one; NULL: published before */
};

struct pipeline {
    const struct pipeline_options *o;
    struct queue *admitted;   /* struct job */
    struct readahead *window; /* thread: engine */
    struct queue *outcomes;   /* struct outcome */
    struct hash_set ids;      /* of this run; thread: intake */
    struct parked parked;     /* thread: intake */
    struct retry intake_retry;
    struct retry engine_retry; /* thread: engine, these three */
    struct alone alone;
    struct in_work in_work;
    struct watchdog *watchdog, *delivery_watchdog;
    _Atomic bool stop; /* intake takes nothing more */
    _Atomic bool input_ended;
    sem_t intake_ended;            /* posted when intake passes on nothing more */
    _Atomic bool delivered;        /* or given up: delivery has ended */
    _Atomic bool undelivered;      /* a stop came before some results could be delivered */
    _Atomic int64_t drain_ends_us; /* 0: not stopping */

    pthread_mutex_t lock; /* guards failure */
    struct err failure;   /* the first that stops the pipeline */

    int64_t stage_us[STAGE_COUNT]; /* each for one thread until all have ended */
    struct laps engine_laps, intake_laps, delivery_laps;

    _Atomic uint64_t taken, known, succeeded, failed, prompt_tokens, completion_tokens;
};

/* The first failure stops every stage. */
void pipeline_fail(struct pipeline *p, const struct err *why);

void pipeline_free_outcome(struct outcome *outcome); /* accepts NULL */
/* Takes the parts whatever happens. */
int pipeline_push_outcome(struct pipeline *p, struct outcome parts, struct err *e);

/* pipeline_retry.c: one job's failure is not the worker's. retry is the calling stage's own. */

/* Takes the job, of which an attempt came to nothing: it is tried again later, or answered with
 * attempts_exhausted. What cannot pass is passed on as the worker's failure. */
int pipeline_postpone(struct pipeline *p, struct retry *retry, struct job *job,
                      const struct err *why, struct err *e);
/* Takes the job: its result goes to delivery; s NULL: its error is set. */
int pipeline_answer(struct pipeline *p, struct retry *retry, struct job *job,
                    const struct seq_result *s, struct err *e);
/* A job whose next attempt is due, and that is still this worker's; or NULL. */
struct job *pipeline_retry_next(struct pipeline *p, struct retry *retry);
/* Another worker has it by now: frees it. */
bool pipeline_drop_lost(struct pipeline *p, struct job *job);

/* Sets the job's error when its deadline is over. */
void pipeline_check_deadline(struct job *job, int64_t now_wall_us);

/* The threads; arg is the pipeline. */
void *pipeline_intake_main(void *arg);
void *pipeline_delivery_main(void *arg);
/* Ends the process when one batch takes too long; the watchdog is the pipeline's to close. */
int pipeline_watch_delivery(struct pipeline *p, struct err *e);
/* Joins the thread; of a worker that was told to stop it ends the process when that takes too
 * long: results are stored, and the next start delivers them. */
void pipeline_await_delivery(struct pipeline *p, pthread_t delivery);

#endif
