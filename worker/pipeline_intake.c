/* The stage of the inputs: bytes -> job -> prompt -> the engine's queue, or straight to
 * delivery. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "job_parse.h"
#include "pipeline_int.h"

/* An id beside the bytes that is too long is none. */
static int take_custom_id(const struct transport_input *in, struct job *job, struct err *e)
{
    if (job->has_custom_id || !in->custom_id || !*in->custom_id ||
        strlen(in->custom_id) > JOB_ID_BYTES_MAX)
        return 0;
    char *id = strdup(in->custom_id);
    if (!id)
        return ERR_SET(e, ERR_NOMEM, "no memory for a job");
    free(job->custom_id);
    job->custom_id = id;
    job->has_custom_id = true;
    return 0;
}

/* The bytes go with the job: a dead letter repeats them. */
static void keep_record(const struct transport_input *in, struct job *job)
{
    if (!in->bytes) {
        job->error = (struct job_error){0};
        job_fail(job, 400, "null_value", "", "the record has no value, so it is no job");
    }
    if (!in->record)
        return;
    job->record = *in->record;
    *in->record = (struct job_record){0};
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

/* True when the store had the answer: the job went on to delivery or is done with. */
static int pass_known(struct pipeline *p, struct job *job, bool *known, struct err *e)
{
    char *line = NULL;
    bool published = false;
    stages_lap(&p->intake_laps, STAGE_PARSE);
    pthread_mutex_lock(&p->o->store->lock);
    int rc =
        store_find(p->o->store->store, &job->source, job->payload_sha256, &line, &published, e);
    if (rc == 0 && line && !published) /* its dead letter is to be made */
        rc = store_find_error(p->o->store->store, &job->source, &job->error, e);
    pthread_mutex_unlock(&p->o->store->lock);
    stages_lap(&p->intake_laps, STAGE_LOOKUP);
    TRY(rc);
    *known = line != NULL;
    if (!*known)
        return 0;
    atomic_fetch_add(&p->known, 1);
    if (published) {
        free(line);
        line = NULL;
    }
    return pipeline_push_outcome(p, (struct outcome){.known = job, .line = line}, e);
}

static void set_admitted(struct job *job)
{
    job->admitted_us = clock_mono_us();
    job->admitted_wall_us = clock_wall_us();
}

/* What the engine will refuse gets its error now and no place in a queue. */
static int check_request(struct pipeline *p, struct job *job, struct err *e)
{
    struct seq_request req;
    struct logit_bias *bias = NULL;
    struct err refusal = {0};
    TRY(answer_request(p->o->answers, job, &req, &bias, e));
    if (engine_check(p->o->engine, &req, &refusal) != 0)
        answer_refuse(job, &refusal);
    free(bias);
    return 0;
}

static int make_prompt(struct pipeline *p, struct job *job, struct err *e)
{
    TRY(answer_tokenize(p->o->answers, job, e));
    if (job->error.status != 0)
        return 0;
    job_free_document_texts(job);
    return check_request(p, job, e);
}

/* A job that is whole, or has an error. */
static int pass_on(struct pipeline *p, struct job *job, struct err *e)
{
    const int rc = job->error.status == 0 ? make_prompt(p, job, e) : 0;
    if (rc != 0) {
        job_free(job);
        return rc;
    }
    if (job->error.status != 0)
        return pipeline_push_failure(p, job, e);
    advice_sample_add(p->o->sample, job);
    stages_lap(&p->intake_laps, STAGE_PARSE);
    if (!queue_push(p->admitted, job))
        job_free(job); /* stopped: unanswered and unsettled */
    stages_lap(&p->intake_laps, STAGE_FULL);
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
        pipeline_check_deadline(job, clock_wall_us());
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

/* One job whose documents have come, or whose time to wait for them is over: between two of
 * them the transport is asked again, which keeps the membership of its group alive. Waiting for
 * a document is time in the queue. */
static int retry_parked(struct pipeline *p, struct err *e)
{
    struct job *job = NULL;
    const uint64_t n_dropped = p->parked.n_dropped;
    const int rc = parked_next(&p->parked, p->o->documents, p->o->transport, &job, e);
    atomic_fetch_sub(&p->taken, p->parked.n_dropped - n_dropped);
    if (rc != 0 || !job)
        return rc;
    set_admitted(job);
    pipeline_check_deadline(job, clock_wall_us());
    return pass_on(p, job, e);
}

static int take_one(struct pipeline *p, struct err *e)
{
    struct transport_input in;
    enum transport_event event;
    stages_lap(&p->intake_laps, STAGE_PARSE);
    TRY(p->o->transport->take(p->o->transport->ctx, !p->parked.is_passing, &in, &event, e));
    stages_lap(&p->intake_laps, STAGE_TAKE);
    atomic_store(&p->input_ended, event == TRANSPORT_END);
    if (event != TRANSPORT_INPUT)
        return 0;
    const struct settings *s = p->o->answers->settings;
    const struct job_parse_options options = {.strict = s->strict,
                                              .max_tokens_default = s->max_tokens};
    struct job *job = NULL;
    TRY(job_parse(in.bytes ? in.bytes : "", in.length, &in.source, &options, &job, e));
    atomic_fetch_add(&p->taken, 1);
    keep_record(&in, job);
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

/* At the end of a file only what waits for documents is left. A topic has no end: it is asked
 * on, so that this worker stays in its group and learns which of the waiting jobs went to
 * another one. */
static int take_or_wait(struct pipeline *p, struct err *e)
{
    const bool is_over = atomic_load(&p->input_ended);
    if (!(is_over && p->o->transport->has_end))
        TRY(take_one(p, e));
    if (is_over && !p->parked.is_passing) {
        stages_lap(&p->intake_laps, STAGE_PARSE);
        nanosleep(&(struct timespec){.tv_nsec = 50000000}, NULL);
        stages_lap(&p->intake_laps, STAGE_TAKE);
    }
    return 0;
}

/* The group is kept waiting by nobody while the last jobs finish, and our membership lives
 * until their results are published. */
static void tend_until_delivered(struct pipeline *p)
{
    struct err e = {0};
    while (p->o->transport->tend && !atomic_load(&p->delivered))
        if (p->o->transport->tend(p->o->transport->ctx, &e) != 0)
            break;
}

void *pipeline_intake_main(void *arg)
{
    struct pipeline *p = arg;
    struct err e = {0};
    stages_begin(&p->intake_laps, p->stage_us, clock_mono_us());
    while (!atomic_load(&p->stop) && (!atomic_load(&p->input_ended) || p->parked.n > 0)) {
        if (take_or_wait(p, &e) != 0 || retry_parked(p, &e) != 0) {
            if (e.code != ERR_CANCELLED || !atomic_load(&p->stop))
                pipeline_fail(p, &e);
            break;
        }
    }
    parked_fini(&p->parked); /* unanswered and unsettled */
    queue_shut(p->admitted);
    sem_post(&p->intake_ended);
    tend_until_delivered(p);
    return NULL;
}
