/* The stage of the outcomes: result -> line -> database -> output. */
#include <stdlib.h>
#include <string.h>
#include <sysexits.h>
#include <time.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/fault.h"
#include "base/log.h"
#include "crash_signals.h"
#include "patience.h"
#include "pipeline_int.h"
#include "signals.h"

enum {
    DELIVER_US_MAX = 180000000, /* of one batch */
    DRAIN_GRACE_US = 10000000,  /* for the last results */
    ABANDON_LOOKS = 2,          /* seconds, likewise, after a second signal */
};

/* Until it works, or a stopping worker's time is over, which is no fault: ERR_CANCELLED, and
 * e is left alone. */
static int with_patience(struct pipeline *p,
                         int (*action)(struct pipeline *, void *, struct err *), void *ctx,
                         struct err *e)
{
    struct patience patience = patience_begin();
    for (;;) {
        struct err why = {0};
        const int rc = action(p, ctx, &why);
        if (rc == 0)
            return 0;
        const int64_t drain_ends_us = atomic_load(&p->drain_ends_us);
        if (patience_wait(&patience, &why, drain_ends_us))
            continue;
        if (signals_received() == 0 || !(why.flags & ERR_RETRY))
            return ERR_SET_FLAGS(e, rc, why.flags, "%s", why.text);
        log_warn("%s; stopping all the same: the next start does what is left", why.text);
        return ERR_CANCELLED;
    }
}

struct batch {
    struct outcome *items[TRANSPORT_BATCH_MAX];
    size_t n;
};

static bool gather(struct pipeline *p, struct batch *batch)
{
    batch->n = 0;
    struct outcome *outcome = queue_pop(p->outcomes, -1);
    const int64_t until_us = clock_mono_us() + p->o->transport->linger_ms * INT64_C(1000);
    while (outcome) {
        batch->items[batch->n++] = outcome;
        const int64_t left_us = until_us - clock_mono_us();
        const int wait_ms = left_us > 0 ? (int)(left_us / 1000) : 0;
        outcome = batch->n < TRANSPORT_BATCH_MAX ? queue_pop(p->outcomes, wait_ms) : NULL;
    }
    return batch->n > 0;
}

static char *line_of(struct pipeline *p, const struct result *r)
{
    const struct job *job = r->job;
    struct buf line = {0};
    char *text = NULL;
    running_put(p->o->running, RUNNING_DELIVERY, &job->source, job->payload_sha256);
    if (!FAULT_AT("emit", job->custom_id, strlen(job->custom_id)) &&
        result_emit(r, &line, NULL) == 0)
        text = buf_take(&line);
    buf_fini(&line);
    running_clear(p->o->running, RUNNING_DELIVERY);
    return text;
}

/* A line that never finds memory gives way to an error, which needs less. */
static int emit_one(struct pipeline *p, struct outcome *outcome, struct err *e)
{
    struct result *r = outcome->result;
    outcome->line = line_of(p, r);
    if (outcome->line)
        return 0;
    if (++r->job->attempts >= RETRY_ATTEMPTS_MAX)
        answer_withdraw(r, "no memory for a result line");
    return ERR_SET_FLAGS(e, ERR_NOMEM, ERR_RETRY, "no memory for a result line");
}

static int emit_lines(struct pipeline *p, void *ctx, struct err *e)
{
    const struct batch *batch = ctx;
    for (size_t i = 0; i < batch->n; i++)
        if (batch->items[i]->result && !batch->items[i]->line)
            TRY(emit_one(p, batch->items[i], e));
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

/* A known job has the error that was stored for it, if any. */
static struct transport_output output_of(const struct outcome *outcome)
{
    const struct result *r = outcome->result;
    const struct job *job = r ? r->job : outcome->known;
    const struct job_error *error = r ? &r->error : &job->error;
    const bool failed = r ? r->status != RESULT_SUCCEEDED : error->status != 0;
    return (struct transport_output){.source = &job->source,
                                     .custom_id = job->custom_id,
                                     .line = outcome->line,
                                     .record = job->source.is_file ? NULL : &job->record,
                                     .error = failed ? error : NULL,
                                     .stage = job->tokens ? "engine" : "intake",
                                     .attempts = job->attempts + 1};
}

static int deliver_batch(struct pipeline *p, void *ctx, struct err *e)
{
    const struct batch *batch = ctx;
    struct transport_output outputs[TRANSPORT_BATCH_MAX];
    int rc = 0;
    watchdog_enter(p->delivery_watchdog);
    for (size_t i = 0; i < batch->n; i++) {
        outputs[i] = output_of(batch->items[i]);
        if (FAULT_AT("deliver", outputs[i].custom_id, strlen(outputs[i].custom_id)))
            rc = ERR_SET_FLAGS(e, ERR_BROKER, ERR_RETRY, "delivery was made to fail");
    }
    if (rc == 0)
        rc = p->o->transport->deliver(p->o->transport->ctx, outputs, batch->n, e);
    watchdog_leave(p->delivery_watchdog);
    return rc;
}

/* Nothing is lost with the process: what is stored is delivered by the next start. */
static void abandon(const char *why)
{
    log_error("%s: this worker ends, and its next start delivers what is left", why);
    _exit(EX_TEMPFAIL);
}

/* Thread: the watchdog's. librdkafka may wait for an answer that never comes, longer than it
 * was told to. */
static void on_stall(void *ctx)
{
    (void)ctx;
    abandon("results could not be delivered for three minutes");
}

int pipeline_watch_delivery(struct pipeline *p, struct err *e)
{
    return watchdog_open(DELIVER_US_MAX, on_stall, NULL, &p->delivery_watchdog, e);
}

static bool has_ended(pthread_t thread)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec++;
    return pthread_timedjoin_np(thread, NULL, &until) == 0;
}

/* A signal that came when nothing was left to compute. */
static void obey_signal(struct pipeline *p)
{
    if (signals_received() == 0 || atomic_load(&p->drain_ends_us) != 0)
        return;
    atomic_store(&p->drain_ends_us, clock_mono_us() + p->o->drain_us);
    log_warn("stopping: the last results are being delivered; once more stops at once");
}

void pipeline_await_delivery(struct pipeline *p, pthread_t delivery)
{
    for (int looks = 0; !has_ended(delivery);) {
        obey_signal(p);
        const int64_t drain_ends_us = atomic_load(&p->drain_ends_us);
        if (signals_received() > 1 && ++looks >= ABANDON_LOOKS)
            abandon("stopped while results were being delivered");
        if (drain_ends_us != 0 && clock_mono_us() > drain_ends_us + DRAIN_GRACE_US)
            abandon("results could not be delivered before the end of the drain");
    }
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

/* What was computed is stored and delivered also when another stage has failed; and stored when
 * a stop came before it could be delivered. */
static int pass_on(struct pipeline *p, struct batch *batch, bool may_deliver, struct err *e)
{
    struct laps *laps = &p->delivery_laps;
    int rc = with_patience(p, emit_lines, batch, e);
    stages_lap(laps, STAGE_EMIT);
    if (rc == 0 && GUARD("store-first"))
        rc = with_patience(p, store_batch, batch, e);
    stages_lap(laps, STAGE_STORE);
    if (rc == 0)
        rc = may_deliver ? with_patience(p, deliver_batch, batch, e) : ERR_CANCELLED;
    stages_lap(laps, STAGE_DELIVER);
    return rc;
}

void *pipeline_delivery_main(void *arg)
{
    struct pipeline *p = arg;
    struct batch batch;
    struct laps *laps = &p->delivery_laps;
    int rc = 0; /* stays what it was when something could not be delivered */
    stages_begin(laps, p->stage_us, clock_mono_us());
    crash_signals_name_thread(RUNNING_DELIVERY);
    while (gather(p, &batch)) {
        struct err e = {0};
        stages_lap(laps, STAGE_IDLE);
        if (rc == 0 || rc == ERR_CANCELLED)
            rc = pass_on(p, &batch, rc == 0, &e);
        if (rc == 0)
            count_batch(p, &batch);
        if (e.code != 0)
            pipeline_fail(p, &e);
        else if (rc != 0)
            atomic_store(&p->undelivered, true);
        for (size_t i = 0; i < batch.n; i++)
            pipeline_free_outcome(batch.items[i]);
        stages_lap(laps, STAGE_EMIT);
    }
    return NULL;
}
