#include "pipeline.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/buf.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/queue.h"
#include "job_parse.h"
#include "parked.h"
#include "progress.h"
#include "readahead.h"
#include "signals.h"

enum {
    OUTCOMES_MAX = 1024, /* between engine and delivery, beside what waits for the engine */
    RETRY_MS_MAX = 10000,
    PATIENCE_US = 240000000, /* for a store or a transport that may work later */
    IDLE_MS = 50,
};

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
    _Atomic bool stop;        /* intake takes nothing more */
    _Atomic bool input_ended;
    _Atomic bool delivery_failed;
    _Atomic int64_t drain_ends_us; /* 0: not stopping */

    pthread_mutex_t lock; /* guards failure */
    struct err failure;   /* the first that stops the pipeline */

    _Atomic uint64_t taken, known, succeeded, failed, prompt_tokens, completion_tokens;
};

static void fail_pipeline(struct pipeline *p, const struct err *why)
{
    pthread_mutex_lock(&p->lock);
    if (p->failure.code == 0)
        p->failure = *why;
    pthread_mutex_unlock(&p->lock);
    atomic_store(&p->stop, true);
    queue_shut(p->admitted);
    queue_shut(p->outcomes);
}

static bool has_failed(struct pipeline *p)
{
    pthread_mutex_lock(&p->lock);
    const bool failed = p->failure.code != 0;
    pthread_mutex_unlock(&p->lock);
    return failed;
}

static void outcome_free(struct outcome *outcome)
{
    if (!outcome)
        return;
    result_free(outcome->result);
    job_free(outcome->known);
    free(outcome->line);
    free(outcome);
}

/* Takes the parts whatever happens. */
static int push_outcome(struct pipeline *p, struct outcome parts, struct err *e)
{
    struct outcome *outcome = malloc(sizeof *outcome);
    if (!outcome) {
        result_free(parts.result);
        job_free(parts.known);
        free(parts.line);
        return ERR_SET(e, ERR_NOMEM, "no memory for a result");
    }
    *outcome = parts;
    if (!queue_push(p->outcomes, outcome))
        outcome_free(outcome); /* shut: the pipeline has failed, the input stays unsettled */
    return 0;
}

/*
 * Repeats what may succeed later, waiting longer each time, for PATIENCE_US or until a stopping
 * worker's time is over; a second signal ends the patience.
 */
static int with_patience(struct pipeline *p,
                         int (*action)(struct pipeline *, void *, struct err *), void *ctx,
                         struct err *e)
{
    const int64_t began_us = clock_mono_us();
    int wait_ms = 100;
    for (;;) {
        struct err why = {0};
        const int rc = action(p, ctx, &why);
        if (rc == 0)
            return 0;
        const int64_t drain_ends_us = atomic_load(&p->drain_ends_us);
        const bool is_late = clock_mono_us() > began_us + PATIENCE_US ||
                             (drain_ends_us != 0 && clock_mono_us() > drain_ends_us);
        if (!(why.flags & ERR_RETRY) || is_late || signals_received() > 1)
            return ERR_SET_FLAGS(e, rc, why.flags, "%s", why.text);
        log_warn("%s; trying again in %d ms", why.text, wait_ms);
        const struct timespec wait = {.tv_sec = wait_ms / 1000,
                                      .tv_nsec = (long)(wait_ms % 1000) * 1000000};
        nanosleep(&wait, NULL);
        wait_ms = 2 * wait_ms < RETRY_MS_MAX ? 2 * wait_ms : RETRY_MS_MAX;
    }
}

/* ------------------------------------------------------------------ intake */

static int push_failure(struct pipeline *p, struct job *job, struct err *e)
{
    struct result *r = answer_failure_take(p->o->answers, job);
    if (!r) {
        job_free(job);
        return ERR_SET(e, ERR_NOMEM, "no memory for a result");
    }
    return push_outcome(p, (struct outcome){.result = r}, e);
}

static int take_custom_id(const struct transport_input *in, struct job *job, struct err *e)
{
    if (job->has_custom_id || !in->custom_id || !*in->custom_id)
        return 0;
    char *id = strndup(in->custom_id, JOB_ID_BYTES_MAX);
    if (!id)
        return ERR_SET(e, ERR_NOMEM, "no memory for a job");
    free(job->custom_id);
    job->custom_id = id;
    job->has_custom_id = true;
    return 0;
}

static int check_unique(struct pipeline *p, struct job *job, struct err *e)
{
    if (!p->o->transport->unique_ids || !job->has_custom_id)
        return 0;
    switch (hash_set_add(&p->ids, hash_bytes(job->custom_id, strlen(job->custom_id)))) {
    case HASH_SET_NEW: break;
    case HASH_SET_KNOWN:
        job_fail(job, 400, "duplicate_custom_id", "custom_id",
                 "an earlier line of this input has the same custom_id");
        break;
    case HASH_SET_NOMEM: return ERR_SET(e, ERR_NOMEM, "no memory for the ids of the input");
    }
    return 0;
}

static void check_deadline(struct job *job, int64_t now_wall_us)
{
    if (job->deadline_us != 0 && now_wall_us > job->deadline_us)
        job_fail(job, 408, "deadline_exceeded", "deadline",
                 "the deadline passed before the job's turn came");
}

/* True when the store had the answer: the job went on to delivery or is done with. */
static int pass_known(struct pipeline *p, struct job *job, bool *known, struct err *e)
{
    char *line = NULL;
    bool published = false;
    pthread_mutex_lock(&p->o->store->lock);
    const int rc =
        store_find(p->o->store->store, &job->source, job->payload_sha256, &line, &published, e);
    pthread_mutex_unlock(&p->o->store->lock);
    TRY(rc);
    *known = line != NULL;
    if (!*known)
        return 0;
    atomic_fetch_add(&p->known, 1);
    if (published) {
        free(line);
        line = NULL;
    }
    return push_outcome(p, (struct outcome){.known = job, .line = line}, e);
}

static void set_admitted(struct job *job)
{
    job->admitted_us = clock_mono_us();
    job->admitted_wall_us = clock_wall_us();
}

/* A job that is whole, or has an error. */
static int pass_on(struct pipeline *p, struct job *job, struct err *e)
{
    const int rc = job->error.status == 0 ? answer_tokenize(p->o->answers, job, e) : 0;
    if (rc != 0) {
        job_free(job);
        return rc;
    }
    if (job->error.status != 0)
        return push_failure(p, job, e);
    advice_sample_add(p->o->sample, job);
    if (!queue_push(p->admitted, job))
        job_free(job); /* stopped: unanswered and unsettled */
    return 0;
}

static int admit(struct pipeline *p, struct job *job, struct err *e)
{
    set_admitted(job);
    int rc = check_unique(p, job, e);
    bool known = false;
    if (rc == 0)
        rc = pass_known(p, job, &known, e);
    if (known)
        return rc;
    if (rc == 0 && job->error.status == 0)
        check_deadline(job, clock_wall_us());
    bool waits = false;
    if (rc == 0 && job->error.status == 0)
        rc = documents_resolve(p->o->documents, job, job->admitted_us, &waits, e);
    if (rc == 0 && waits)
        rc = parked_add(&p->parked, job, e);
    if (rc != 0) {
        job_free(job);
        return rc;
    }
    return waits ? 0 : pass_on(p, job, e);
}

/* Jobs whose documents have come, or whose time to wait for them is over. Waiting for a
 * document is time in the queue. */
static int retry_parked(struct pipeline *p, struct err *e)
{
    if (!parked_begin(&p->parked, p->o->documents))
        return 0;
    for (;;) {
        struct job *job = NULL;
        TRY(parked_next(&p->parked, p->o->documents, &job, e));
        if (!job)
            return 0;
        set_admitted(job);
        check_deadline(job, clock_wall_us());
        TRY(pass_on(p, job, e));
    }
}

static int take_one(struct pipeline *p, struct err *e)
{
    struct transport_input in;
    enum transport_event event;
    TRY(p->o->transport->take(p->o->transport->ctx, &in, &event, e));
    if (event == TRANSPORT_END)
        atomic_store(&p->input_ended, true);
    if (event != TRANSPORT_INPUT)
        return 0;
    const struct settings *s = p->o->answers->settings;
    const struct job_parse_options options = {.strict = s->strict,
                                              .max_tokens_default = s->max_tokens};
    struct job *job = NULL;
    TRY(job_parse(in.bytes, in.length, &in.source, &options, &job, e));
    atomic_fetch_add(&p->taken, 1);
    if (job->warnings)
        log_line(LOG_DEBUG, "%s offset %lld: ignored: %s", job->source.topic,
                 (long long)job->source.offset, job->warnings);
    const int rc = take_custom_id(&in, job, e);
    if (rc != 0) {
        job_free(job);
        return rc;
    }
    return admit(p, job, e);
}

/* At the end of the input only what waits for documents is left. */
static int take_or_wait(struct pipeline *p, struct err *e)
{
    if (!atomic_load(&p->input_ended))
        return take_one(p, e);
    nanosleep(&(struct timespec){.tv_nsec = 50000000}, NULL);
    return 0;
}

static void *intake_main(void *arg)
{
    struct pipeline *p = arg;
    struct err e = {0};
    while (!atomic_load(&p->stop) && (!atomic_load(&p->input_ended) || p->parked.n > 0)) {
        if (take_or_wait(p, &e) != 0 || retry_parked(p, &e) != 0) {
            if (e.code != ERR_CANCELLED || !atomic_load(&p->stop))
                fail_pipeline(p, &e);
            break;
        }
    }
    parked_fini(&p->parked); /* unanswered and unsettled */
    queue_shut(p->admitted);
    return NULL;
}

/* ------------------------------------------------------------------ engine */

static int submit(struct pipeline *p, struct job *job, struct err *e)
{
    struct seq_request req;
    struct logit_bias *bias = NULL;
    int rc = answer_request(p->o->answers, job, &req, &bias, e);
    struct err refusal = {0};
    if (rc == 0)
        rc = engine_submit(p->o->engine, &req, &refusal);
    free(bias);
    if (rc == 0)
        return 0;
    if (refusal.flags & ERR_JOB) {
        answer_refuse(job, &refusal);
        return push_failure(p, job, e);
    }
    job_free(job);
    return ERR_SET(e, rc, "%s", refusal.text);
}

static bool is_ready(struct pipeline *p)
{
    return engine_active(p->o->engine) > 0 ||
           readahead_is_ready(p->window, !queue_is_drained(p->admitted));
}

/* Waits for a job only while there is nothing to compute. */
static int fill_window(struct pipeline *p, struct err *e)
{
    while (readahead_has_room(p->window)) {
        struct job *job = queue_pop(p->admitted, is_ready(p) ? 0 : IDLE_MS);
        if (!job)
            return 0;
        TRY(readahead_add(p->window, job, e));
    }
    return 0;
}

/* Jobs that went to another worker while they waited are dropped. */
static int submit_next(struct pipeline *p, struct job *job, struct err *e)
{
    if (p->o->transport->holds && !p->o->transport->holds(p->o->transport->ctx, &job->source)) {
        job_free(job);
        atomic_fetch_sub(&p->taken, 1);
        return 0;
    }
    check_deadline(job, clock_wall_us());
    return job->error.status != 0 ? push_failure(p, job, e) : submit(p, job, e);
}

static int fill_engine(struct pipeline *p, struct err *e)
{
    TRY(fill_window(p, e));
    struct job *job;
    while (engine_has_room(p->o->engine) && is_ready(p) && (job = readahead_next(p->window)))
        TRY(submit_next(p, job, e));
    return 0;
}

static int collect_finished(struct pipeline *p, struct err *e)
{
    struct seq_result finished;
    while (engine_collect(p->o->engine, &finished)) {
        struct job *job = finished.user;
        if (finished.reason == FINISH_CANCELLED) {
            job_free(job); /* unanswered and unsettled: computed again at the next start */
            continue;
        }
        struct result *r = answer_result_take(p->o->answers, job, &finished);
        if (!r) {
            job_free(job);
            return ERR_SET(e, ERR_NOMEM, "no memory for a result");
        }
        TRY(push_outcome(p, (struct outcome){.result = r}, e));
    }
    return 0;
}

static void show_progress(struct pipeline *p, struct progress *progress)
{
    if (!progress_is_due(progress))
        return;
    const struct engine_counters c = engine_counters(p->o->engine);
    struct progress_figures f = {
        .done = atomic_load(&p->succeeded) + atomic_load(&p->failed) + atomic_load(&p->known),
        .failed = atomic_load(&p->failed),
        .running = engine_active(p->o->engine) + readahead_length(p->window) +
                   queue_length(p->admitted),
        .prompt_tokens_computed = c.computed_tokens,
        .completion_tokens = c.generated_tokens,
    };
    p->o->transport->progress(p->o->transport->ctx, &f.input);
    progress_show(progress, &f);
}

/* What waits for the engine when the worker stops is left for the next start. */
static void drop_waiting(struct pipeline *p)
{
    struct job *job;
    while ((job = queue_pop(p->admitted, 0)) || (job = readahead_next(p->window)))
        job_free(job);
}

static void obey_signals(struct pipeline *p)
{
    const int n = signals_received();
    if (n == 0)
        return;
    if (atomic_load(&p->drain_ends_us) == 0) {
        atomic_store(&p->drain_ends_us, clock_mono_us() + p->o->drain_us);
        log_warn(
            "stopping: %zu running jobs finish, the rest waits for the next start; once more "
            "stops at once",
            engine_active(p->o->engine));
        atomic_store(&p->stop, true);
        queue_shut(p->admitted);
        drop_waiting(p);
    }
    if (n > 1 || clock_mono_us() > atomic_load(&p->drain_ends_us))
        engine_cancel_all(p->o->engine);
}

static bool is_idle(struct pipeline *p)
{
    return engine_active(p->o->engine) == 0 && readahead_length(p->window) == 0 &&
           queue_is_drained(p->admitted);
}

static int engine_loop(struct pipeline *p, struct err *e)
{
    struct progress progress;
    progress_init(&progress, p->o->show_progress);
    int rc = 0;
    while (rc == 0 && !has_failed(p)) {
        obey_signals(p);
        rc = fill_engine(p, e);
        bool worked = false;
        if (rc == 0)
            rc = engine_step(p->o->engine, &worked, e);
        if (rc == 0)
            rc = collect_finished(p, e);
        show_progress(p, &progress);
        if (!worked && is_idle(p))
            break;
    }
    progress_end(&progress);
    return rc;
}

/* ------------------------------------------------------------------ delivery */

struct batch {
    struct outcome *items[TRANSPORT_BATCH_MAX];
    size_t n;
};

static bool gather(struct pipeline *p, struct batch *batch)
{
    batch->n = 0;
    struct outcome *outcome = queue_pop(p->outcomes, -1);
    while (outcome) {
        batch->items[batch->n++] = outcome;
        outcome = batch->n < TRANSPORT_BATCH_MAX ? queue_pop(p->outcomes, 0) : NULL;
    }
    return batch->n > 0;
}

static int emit_lines(struct batch *batch, struct err *e)
{
    for (size_t i = 0; i < batch->n; i++) {
        struct outcome *outcome = batch->items[i];
        if (!outcome->result)
            continue;
        struct buf line = {0};
        const int rc = result_emit(outcome->result, &line, e);
        outcome->line = buf_take(&line);
        TRY(rc);
        if (!outcome->line)
            return ERR_SET(e, ERR_NOMEM, "no memory for a result line");
    }
    return 0;
}

static int store_batch(struct pipeline *p, void *ctx, struct err *e)
{
    const struct batch *batch = ctx;
    const struct result *results[TRANSPORT_BATCH_MAX];
    const char *lines[TRANSPORT_BATCH_MAX];
    size_t n = 0;
    for (size_t i = 0; i < batch->n; i++) {
        if (!batch->items[i]->result)
            continue;
        results[n] = batch->items[i]->result;
        lines[n++] = batch->items[i]->line;
    }
    if (n == 0)
        return 0;
    pthread_mutex_lock(&p->o->store->lock);
    const int rc = store_put(p->o->store->store, p->o->run_id, results, lines, n, e);
    pthread_mutex_unlock(&p->o->store->lock);
    return rc;
}

static int deliver_batch(struct pipeline *p, void *ctx, struct err *e)
{
    const struct batch *batch = ctx;
    struct transport_output outputs[TRANSPORT_BATCH_MAX];
    for (size_t i = 0; i < batch->n; i++) {
        const struct outcome *outcome = batch->items[i];
        const struct job *job = outcome->result ? outcome->result->job : outcome->known;
        outputs[i] = (struct transport_output){
            .source = &job->source, .custom_id = job->custom_id, .line = outcome->line};
    }
    return p->o->transport->deliver(p->o->transport->ctx, outputs, batch->n, e);
}

static void count_batch(struct pipeline *p, const struct batch *batch)
{
    for (size_t i = 0; i < batch->n; i++) {
        const struct result *r = batch->items[i]->result;
        if (!r)
            continue;
        if (r->status == RESULT_SUCCEEDED)
            atomic_fetch_add(&p->succeeded, 1);
        else
            atomic_fetch_add(&p->failed, 1);
        atomic_fetch_add(&p->prompt_tokens, (uint64_t)r->metrics.prompt_tokens);
        atomic_fetch_add(&p->completion_tokens, (uint64_t)r->metrics.completion_tokens);
    }
}

static void *delivery_main(void *arg)
{
    struct pipeline *p = arg;
    struct batch batch;
    while (gather(p, &batch)) {
        struct err e = {0};
        /* What was computed is stored and delivered also when another stage has failed. */
        int rc = atomic_load(&p->delivery_failed) ? ERR_CANCELLED : emit_lines(&batch, &e);
        if (rc == 0)
            rc = with_patience(p, store_batch, &batch, &e);
        if (rc == 0)
            rc = with_patience(p, deliver_batch, &batch, &e);
        if (rc == 0)
            count_batch(p, &batch);
        else
            atomic_store(&p->delivery_failed, true);
        if (e.code != 0)
            fail_pipeline(p, &e);
        for (size_t i = 0; i < batch.n; i++)
            outcome_free(batch.items[i]);
    }
    return NULL;
}

/* ------------------------------------------------------------------ running */

/* Jobs that a failure has left in the engine. */
static void empty_engine(struct pipeline *p)
{
    bool worked;
    struct seq_result finished;
    engine_cancel_all(p->o->engine);
    if (engine_active(p->o->engine) > 0 && engine_step(p->o->engine, &worked, NULL) == 0)
        while (engine_collect(p->o->engine, &finished))
            job_free(finished.user);
}

static void free_leftovers(struct pipeline *p)
{
    drop_waiting(p);
    empty_engine(p);
    struct outcome *outcome;
    while ((outcome = queue_pop(p->outcomes, 0)))
        outcome_free(outcome);
}

/* Nothing was left out: an end of input that came with a signal may be a writer's death. */
static bool is_whole(const struct pipeline *p)
{
    return p->input_ended && p->taken == p->known + p->succeeded + p->failed &&
           signals_received() == 0;
}

static int run_stages(struct pipeline *p, struct err *e)
{
    pthread_t intake, delivery;
    if (pthread_create(&delivery, NULL, delivery_main, p) != 0)
        return ERR_SET(e, ERR_NOMEM, "cannot start the delivery thread");
    if (pthread_create(&intake, NULL, intake_main, p) != 0) {
        queue_shut(p->outcomes);
        pthread_join(delivery, NULL);
        return ERR_SET(e, ERR_NOMEM, "cannot start the intake thread");
    }
    struct err why = {0};
    if (engine_loop(p, &why) != 0)
        fail_pipeline(p, &why);
    atomic_store(&p->stop, true);
    if (p->o->transport->stop)
        p->o->transport->stop(p->o->transport->ctx);
    pthread_join(intake, NULL);
    queue_shut(p->outcomes);
    pthread_join(delivery, NULL);
    if (p->failure.code != 0)
        return ERR_SET_FLAGS(e, p->failure.code, p->failure.flags, "%s", p->failure.text);
    return p->o->transport->finish(p->o->transport->ctx, is_whole(p), e);
}

int pipeline_run(const struct pipeline_options *o, struct pipeline_totals *totals,
                 struct err *e)
{
    struct pipeline p = {.o = o};
    pthread_mutex_init(&p.lock, NULL);
    p.admitted = queue_open(o->transport->queue_max);
    p.outcomes = queue_open(o->transport->queue_max + OUTCOMES_MAX);
    int rc = readahead_open(o->answers->settings, o->engine, &p.window, e);
    if (rc == 0 && !(p.admitted && p.outcomes))
        rc = ERR_SET(e, ERR_NOMEM, "no memory for the queues of the pipeline");
    if (rc == 0) {
        rc = run_stages(&p, e);
        free_leftovers(&p);
    }
    *totals = (struct pipeline_totals){
        .taken = p.taken,
        .known = p.known,
        .succeeded = p.succeeded,
        .failed = p.failed,
        .prompt_tokens = p.prompt_tokens,
        .completion_tokens = p.completion_tokens,
        .stopped = !is_whole(&p),
    };
    readahead_close(p.window);
    queue_close(p.admitted);
    queue_close(p.outcomes);
    hash_set_fini(&p.ids);
    pthread_mutex_destroy(&p.lock);
    return rc;
}
