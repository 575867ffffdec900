#include "pipeline.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fault.h"
#include "base/log.h"
#include "pipeline_int.h"
#include "progress.h"
#include "signals.h"

enum {
    IDLE_MS = 50,
    OUTCOMES_MAX = 1024, /* between engine and delivery, beside what waits for the engine */
};

void pipeline_fail(struct pipeline *p, const struct err *why)
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

void pipeline_free_outcome(struct outcome *outcome)
{
    if (!outcome)
        return;
    result_free(outcome->result);
    job_free(outcome->known);
    free(outcome->line);
    free(outcome);
}

/* Takes the parts whatever happens. */
int pipeline_push_outcome(struct pipeline *p, struct outcome parts, struct err *e)
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
        pipeline_free_outcome(
            outcome); /* shut: the pipeline has failed, the input stays unsettled */
    return 0;
}

void pipeline_check_deadline(struct job *job, int64_t now_wall_us)
{
    if (job->deadline_us != 0 && now_wall_us > job->deadline_us)
        job_fail(job, 408, "deadline_exceeded", "deadline",
                 "the deadline passed before the job's turn came");
}

/* ------------------------------------------------------------------ engine */

static int try_submit(struct pipeline *p, struct job *job, struct err *e)
{
    struct seq_request req;
    struct logit_bias *bias = NULL;
    if (FAULT_AT("submit", job->custom_id, strlen(job->custom_id)))
        return ERR_SET(e, ERR_NOMEM, "no memory, as was asked for");
    int rc = answer_request(p->o->answers, job, &req, &bias, e);
    if (rc == 0)
        rc = engine_submit(p->o->engine, &req, e);
    free(bias);
    CRASH_POINT("submitted");
    return rc;
}

/* Takes the job. Intake has asked the engine: what is wrong with it is none of the job's. */
static int submit(struct pipeline *p, struct job *job, struct err *e)
{
    struct err why = {0};
    in_work_add(&p->in_work, job);
    if (try_submit(p, job, &why) == 0)
        return 0;
    in_work_remove(&p->in_work, job);
    return pipeline_postpone(p, &p->engine_retry, job, &why, e);
}

static bool is_ready(struct pipeline *p)
{
    return engine_active(p->o->engine) > 0 || p->alone.n > 0 ||
           readahead_is_ready(p->window, !queue_is_drained(p->admitted));
}

static int add_waiting(struct pipeline *p, struct job *job, struct err *e)
{
    struct err why = {0};
    if (job->is_suspect && GUARD("alone")) {
        alone_add(&p->alone, job);
        return 0;
    }
    const int rc = readahead_add(p->window, job, &why);
    return rc == 0 ? 0 : pipeline_postpone(p, &p->engine_retry, job, &why, e);
}

/* Those whose next attempt is due come before new ones. */
static struct job *next_waiting(struct pipeline *p, int wait_ms)
{
    struct job *job = pipeline_retry_next(p, &p->engine_retry);
    if (!job)
        job = queue_pop(p->admitted, wait_ms);
    if (!job && wait_ms > 0 && queue_is_drained(p->admitted) && p->engine_retry.n > 0)
        nanosleep(&(struct timespec){.tv_nsec = wait_ms * 1000000L}, NULL);
    return job;
}

/* Waits for a job only while there is nothing to compute. */
static int fill_window(struct pipeline *p, struct err *e)
{
    while (readahead_has_room(p->window)) {
        const bool waits = !is_ready(p);
        if (waits)
            stages_lap(&p->engine_laps, STAGE_WINDOW);
        struct job *job = next_waiting(p, waits ? IDLE_MS : 0);
        if (waits)
            stages_lap(&p->engine_laps, STAGE_WAIT);
        if (!job)
            return 0;
        TRY(add_waiting(p, job, e));
    }
    return 0;
}

/* Jobs that went to another worker while they waited are dropped. */
static int submit_next(struct pipeline *p, struct job *job, struct err *e)
{
    if (pipeline_drop_lost(p, job))
        return 0;
    pipeline_check_deadline(job, clock_wall_us());
    return job->error.status != 0 ? pipeline_answer(p, &p->engine_retry, job, NULL, e)
                                  : submit(p, job, e);
}

/* One that may be what crashes the worker takes nothing else down. */
static int submit_alone(struct pipeline *p, bool others_wait, struct err *e)
{
    while (engine_active(p->o->engine) == 0) {
        struct job *job = alone_next(&p->alone, others_wait);
        if (!job)
            return 0;
        TRY(submit_next(p, job, e));
    }
    return 0;
}

static bool others_wait(const struct pipeline *p)
{
    return readahead_length(p->window) > 0;
}

static int fill_engine(struct pipeline *p, struct err *e)
{
    TRY(fill_window(p, e));
    struct job *job;
    TRY(submit_alone(p, others_wait(p), e));
    while (engine_has_room(p->o->engine) && is_ready(p) &&
           !alone_has_turn(&p->alone, others_wait(p)) && (job = readahead_next(p->window))) {
        alone_note_other(&p->alone);
        TRY(submit_next(p, job, e));
    }
    return 0;
}

/* One that was cancelled has an error when its deadline was why; else it is computed again at
 * the next start, unanswered and unsettled. */
static int collect_one(struct pipeline *p, const struct seq_result *finished, struct err *e)
{
    struct job *job = finished->user;
    in_work_remove(&p->in_work, job);
    if (finished->reason == FINISH_NOMEM) {
        struct err why = {0};
        ERR_SET(&why, ERR_NOMEM, "no memory for the text of the answer");
        return pipeline_postpone(p, &p->engine_retry, job, &why, e);
    }
    if (finished->reason != FINISH_CANCELLED)
        return pipeline_answer(p, &p->engine_retry, job, finished, e);
    if (job->error.status != 0)
        return pipeline_answer(p, &p->engine_retry, job, NULL, e);
    job_free(job);
    return 0;
}

static int collect_finished(struct pipeline *p, struct err *e)
{
    struct seq_result finished;
    while (engine_collect(p->o->engine, &finished))
        TRY(collect_one(p, &finished, e));
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
        .running = engine_active(p->o->engine) + readahead_length(p->window) + p->alone.n +
                   p->engine_retry.n + queue_length(p->admitted),
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
    alone_drop(&p->alone);
    retry_drop(&p->engine_retry);
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
           p->alone.n == 0 && p->engine_retry.n == 0 && queue_is_drained(p->admitted);
}

/* It fails with a device only. Which job it was nobody knows: all that the engine has are
 * suspects of the next start, as after a crash. */
static int strike(struct pipeline *p, int rc)
{
    char names[1024];
    running_mark_crashed(p->o->running, RUNNING_ENGINE);
    running_describe(p->o->running, names, sizeof names);
    log_error("a step of the engine failed; this worker ends. In the engine: %s", names);
    return rc;
}

static int step(struct pipeline *p, bool *worked, struct err *e)
{
    in_work_expire(&p->in_work, p->o->engine, clock_wall_us());
    watchdog_enter(p->watchdog);
    in_work_fault(&p->in_work);
    const int rc = engine_step(p->o->engine, worked, e);
    watchdog_leave(p->watchdog);
    return rc == 0 ? 0 : strike(p, rc);
}

static int engine_loop(struct pipeline *p, struct err *e)
{
    struct progress progress;
    progress_init(&progress, p->o->show_progress);
    int rc = 0;
    while (rc == 0 && !has_failed(p)) {
        obey_signals(p);
        stages_lap(&p->engine_laps, STAGE_OTHER);
        rc = fill_engine(p, e);
        stages_lap(&p->engine_laps, STAGE_WINDOW);
        bool worked = false;
        if (rc == 0)
            rc = step(p, &worked, e);
        stages_lap(&p->engine_laps, STAGE_STEP);
        if (rc == 0)
            rc = collect_finished(p, e);
        stages_lap(&p->engine_laps, STAGE_COLLECT);
        show_progress(p, &progress);
        if (!worked && is_idle(p))
            break;
    }
    progress_end(&progress);
    stages_lap(&p->engine_laps, STAGE_OTHER);
    return rc;
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
        pipeline_free_outcome(outcome);
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
    if (pthread_create(&delivery, NULL, pipeline_delivery_main, p) != 0)
        return ERR_SET(e, ERR_NOMEM, "cannot start the delivery thread");
    if (pthread_create(&intake, NULL, pipeline_intake_main, p) != 0) {
        queue_shut(p->outcomes);
        pthread_join(delivery, NULL);
        return ERR_SET(e, ERR_NOMEM, "cannot start the intake thread");
    }
    struct err why = {0};
    stages_lap(&p->engine_laps, STAGE_START);
    if (engine_loop(p, &why) != 0)
        pipeline_fail(p, &why);
    atomic_store(&p->stop, true);
    if (p->o->transport->stop)
        p->o->transport->stop(p->o->transport->ctx);
    while (sem_wait(&p->intake_ended) != 0) /* else what it still passes on is lost */
        ;
    queue_shut(p->outcomes);
    pipeline_await_delivery(p, delivery);
    atomic_store(&p->delivered, true);
    pthread_join(intake, NULL);
    if (p->failure.code != 0)
        return ERR_SET_FLAGS(e, p->failure.code, p->failure.flags, "%s", p->failure.text);
    return p->o->transport->finish(p->o->transport->ctx, is_whole(p), e);
}

/* Thread: the watchdog's; the engine's stands still. */
static void on_stall(void *ctx)
{
    struct pipeline *p = ctx;
    char names[1024];
    running_mark_crashed(p->o->running, RUNNING_ENGINE); /* first: the log may hang, too */
    running_describe(p->o->running, names, sizeof names);
    log_error(
        "a step of the engine takes longer than %lld s; this worker ends. In the engine: %s",
        (long long)(p->o->watchdog_us / 1000000), names);
    raise(SIGABRT);
}

int pipeline_run(const struct pipeline_options *o, struct pipeline_totals *totals,
                 struct err *e)
{
    struct pipeline p = {.o = o};
    pthread_mutex_init(&p.lock, NULL);
    sem_init(&p.intake_ended, 0, 0);
    p.admitted = queue_open(o->transport->queue_max);
    p.outcomes = queue_open(o->transport->queue_max + OUTCOMES_MAX);
    int rc = readahead_open(o->answers->settings, o->engine, &p.window, e);
    alone_init(&p.alone, (size_t)o->answers->settings->batch);
    p.in_work.running = o->running;
    p.engine_retry.seed = p.intake_retry.seed = (uint64_t)clock_wall_us() ^ (uint64_t)getpid();
    if (rc == 0 && !(p.admitted && p.outcomes))
        rc = ERR_SET(e, ERR_NOMEM, "no memory for the queues of the pipeline");
    stages_begin(&p.engine_laps, p.stage_us, o->began_us);
    if (rc == 0)
        rc = watchdog_open(o->watchdog_us, on_stall, &p, &p.watchdog, e);
    if (rc == 0)
        rc = pipeline_watch_delivery(&p, e);
    if (rc == 0) {
        rc = run_stages(&p, e);
        free_leftovers(&p);
    }
    stages_lap(&p.engine_laps, STAGE_CLOSE);
    *totals = (struct pipeline_totals){
        .taken = p.taken,
        .known = p.known,
        .succeeded = p.succeeded,
        .failed = p.failed,
        .prompt_tokens = p.prompt_tokens,
        .completion_tokens = p.completion_tokens,
        .stopped = !is_whole(&p),
        .undelivered = atomic_load(&p.undelivered),
    };
    memcpy(totals->stage_us, p.stage_us, sizeof totals->stage_us);
    watchdog_close(p.watchdog);
    watchdog_close(p.delivery_watchdog);
    readahead_close(p.window);
    queue_close(p.admitted);
    queue_close(p.outcomes);
    hash_set_fini(&p.ids);
    sem_destroy(&p.intake_ended);
    pthread_mutex_destroy(&p.lock);
    return rc;
}
