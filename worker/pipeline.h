/*
 * The worker's loop: take -> parse -> tokenize -> group -> engine -> emit -> store -> deliver.
 *
 * Three stages, each a thread, a job owned by exactly one of them and handed on through bounded
 * queues; what needs no computing goes from intake to delivery straight:
 *
 *     intake    transport.take, suspects_judge, job_parse,
 *               store_find (answered before?), documents_resolve,
 *               answer_tokenize, engine_check                    --admitted-->
 *     engine    readahead, or alone.h for suspects,
 *               engine_submit, engine_step, engine_collect       --outcomes-->
 *     delivery  result_emit, store_put, transport.deliver
 *
 * A job that waits for a document (parked.h) or for another attempt (retry.h) stays with its
 * stage. The engine stage is the caller's thread; a watchdog looks at its steps. Every input
 * that was taken gets exactly one result line, or, when the worker is stopped before its turn,
 * stays unanswered and unsettled for the next start. An input that the store has an answer for
 * when it is taken is not computed again.
 */
#ifndef SHEAF_PIPELINE_H
#define SHEAF_PIPELINE_H

#include <stdbool.h>
#include <stdint.h>

#include "advice_sample.h"
#include "answer.h"
#include "io/documents.h"
#include "running.h"
#include "stages.h"
#include "suspects.h"
#include "transport.h"

struct pipeline_options {
    const struct answer_context *answers;
    struct engine *engine;
    struct transport *transport;
    struct shared_store *store;
    struct documents *documents; /* that jobs refer to; NULL: none is found */
    const char *run_id;
    const struct suspects *suspects; /* borrowed; NULL: none */
    struct running *running;         /* borrowed; NULL: nobody writes down what runs */
    int64_t watchdog_us;             /* of one step of the engine; 0: no limit */
    struct advice_sample *sample;    /* of the prompts; borrowed, for the intake */
    bool show_progress;
    int64_t drain_us;
    int64_t began_us; /* monotonic: when the worker began to open all this */
};

struct pipeline_totals {
    uint64_t taken;     /* inputs */
    uint64_t known;     /* of them answered by an earlier start */
    uint64_t succeeded; /* of the others */
    uint64_t failed;
    uint64_t prompt_tokens;
    uint64_t completion_tokens;
    bool stopped;     /* by a signal, before everything was taken and answered */
    bool undelivered; /* so that the next start has to deliver what is stored */
    int64_t stage_us[STAGE_COUNT];
};

/* Runs until the transport ends or a signal stops it. */
int pipeline_run(const struct pipeline_options *o, struct pipeline_totals *totals,
                 struct err *e);

#endif
