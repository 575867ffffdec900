/* The stage of the inputs: bytes -> job -> prompt -> the engine's queue, or straight to
 * delivery. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/fault.h"
#include "base/log.h"
#include "base/sha256.h"
#include "crash_signals.h"
#include "job_parse.h"
#include "pipeline_int.h"
#include "utf8.h"

/* As one that comes in a line: it goes into a line, where other bytes would become others. */
static bool is_id(const char *text)
{
    size_t length = strlen(text);
    bool is_valid = length > 0 && length <= JOB_ID_BYTES_MAX;
    while (is_valid && length > 0) {
        const size_t n = utf8_measure_char(text, length, &is_valid);
        text += n;
        length -= n;
    }
    return is_valid;
}

/* An id beside the bytes that is too long or no UTF-8 is none. */
static int take_custom_id(const struct transport_input *in, struct job *job, struct err *e)
{
    if (job->has_custom_id || !in->custom_id || !is_id(in->custom_id))
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
    int rc = 0;
    if (GUARD("lookup"))
        rc = store_find(p->o->store->store, &job->source, job->payload_sha256, &line,
                        &published, e);
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
    if (FAULT_AT("tokenize", job->custom_id, strlen(job->custom_id)))
        return ERR_SET(e, ERR_NOMEM, "no memory, as was asked for");
    TRY(answer_tokenize(p->o->answers, job, e));
    if (job->error.status != 0)
        return 0;
    job_free_document_texts(job);
    return check_request(p, job, e);
}

/* Takes a job that is whole, or has an error. */
static int pass_on(struct pipeline *p, struct job *job, struct err *e)
{
    struct err why = {0};
    if (job->error.status == 0 && make_prompt(p, job, &why) != 0)
        return pipeline_postpone(p, &p->intake_retry, job, &why, e);
    running_clear(p->o->running, RUNNING_INTAKE); /* waiting is no work */
    if (job->error.status != 0)
        return pipeline_answer(p, &p->intake_retry, job, NULL, e);
    advice_sample_add(p->o->sample, job);
    stages_lap(&p->intake_laps, STAGE_PARSE);
    if (!queue_push(p->admitted, job))
        job_free(job); /* stopped: unanswered and unsettled */
    CRASH_POINT("admitted");
    stages_lap(&p->intake_laps, STAGE_FULL);
    return 0;
}

/* Takes a job that no answer is known of. Its documents may be here already, and used up. */
static int prepare(struct pipeline *p, struct job *job, struct err *e)
{
    struct err why = {0};
    bool waits = false;
    int rc = 0;
    if (job->error.status == 0)
        pipeline_check_deadline(job, clock_wall_us());
    if (job->error.status == 0 && !job->tokens)
        rc = documents_resolve(p->o->documents, job, job->admitted_us, &waits, &why);
    if (rc == 0 && waits)
        rc = parked_add(&p->parked, job, &why);
    if (rc != 0)
        return pipeline_postpone(p, &p->intake_retry, job, &why, e);
    return waits ? 0 : pass_on(p, job, e);
}

/* Takes the job. */
static int admit(struct pipeline *p, struct job *job, struct err *e)
{
    set_admitted(job);
    int rc = check_unique(p, job, e);
    bool known = false;
    if (rc == 0)
        rc = pass_known(p, job, &known, e);
    if (known)
        return rc;
    if (rc != 0) {
        job_free(job);
        return rc;
    }
    return prepare(p, job, e);
}

/* One job whose documents have come, or whose time to wait for them is over: between two of
 * them the transport is asked again, which keeps the membership of its group alive. Waiting for
 * a document is time in the queue. */
static int retry_parked(struct pipeline *p, struct err *e)
{
    struct job *job = NULL;
    struct err why = {0};
    const uint64_t n_dropped = p->parked.n_dropped;
    const int rc = parked_next(&p->parked, p->o->documents, p->o->transport, &job, &why);
    atomic_fetch_sub(&p->taken, p->parked.n_dropped - n_dropped);
    if (!job)
        return 0;
    if (rc != 0)
        return pipeline_postpone(p, &p->intake_retry, job, &why, e);
    running_put(p->o->running, RUNNING_INTAKE, &job->source, job->payload_sha256);
    set_admitted(job);
    pipeline_check_deadline(job, clock_wall_us());
    return pass_on(p, job, e);
}

/* The setting's deadline counts from here. */
static void set_deadline(const struct pipeline *p, struct job *job)
{
    const int64_t deadline_s = p->o->answers->settings->deadline_s;
    if (job->deadline_us == 0 && deadline_s > 0)
        job->deadline_us = clock_wall_us() + deadline_s * 1000000;
}

static const char *bytes_of(const struct transport_input *in)
{
    return in->bytes ? in->bytes : "";
}

static int parse(const struct pipeline *p, const struct transport_input *in,
                 const char *payload_sha256, struct job **job, struct err *e)
{
    const struct settings *s = p->o->answers->settings;
    const struct job_parse_options options = {.strict = s->strict,
                                              .max_tokens_default = s->max_tokens,
                                              .payload_sha256 = payload_sha256};
    if (FAULT_AT("parse", bytes_of(in), in->length))
        return ERR_SET(e, ERR_NOMEM, "no memory, as was asked for");
    TRY(job_parse(bytes_of(in), in->length, &in->source, &options, job, e));
    const int rc = take_custom_id(in, *job, e);
    if (rc != 0) {
        job_free(*job);
        *job = NULL;
    }
    return rc;
}

/* The job of an input, or why there is none yet. The bytes of what may crash its reader are not
 * looked at. */
static int read_job(struct pipeline *p, const struct transport_input *in,
                    const char *payload_sha256, struct job **job, struct err *e)
{
    const struct suspicion suspicion =
        suspects_judge(p->o->suspects, &in->source, payload_sha256);
    if (suspicion.verdict != VERDICT_UNREADABLE) {
        TRY(parse(p, in, payload_sha256, job, e));
    } else {
        *job = job_unparsed(&in->source, payload_sha256, NULL, 0);
        if (!*job)
            return ERR_SET(e, ERR_NOMEM, "no memory for a job");
        take_custom_id(in, *job, NULL); /* else it is named by its place */
    }
    keep_record(in, *job);
    if (suspicion.verdict >= VERDICT_POISON)
        suspects_refuse(*job, &suspicion);
    (*job)->is_suspect = suspicion.verdict == VERDICT_ALONE;
    set_deadline(p, *job);
    if ((*job)->warnings)
        log_line(LOG_DEBUG, "%s offset %lld: ignored: %s", (*job)->source.topic,
                 (long long)(*job)->source.offset, (*job)->warnings);
    return 0;
}

/* Its bytes are kept for a later attempt. */
static int postpone_input(struct pipeline *p, const struct transport_input *in,
                          const char *payload_sha256, const struct err *why, struct err *e)
{
    const char *bytes = in->record ? NULL : bytes_of(in);
    struct job *job = job_unparsed(&in->source, payload_sha256, bytes, in->length);
    if (!job)
        return ERR_SET(e, ERR_NOMEM, "no memory to keep an input of %zu bytes", in->length);
    struct err lost = {0};
    if (take_custom_id(in, job, &lost) != 0) {
        job_free(job);
        return ERR_SET(e, lost.code, "%s", lost.text);
    }
    if (in->record) {
        job->record = *in->record;
        *in->record = (struct job_record){0};
    }
    job->is_unread = true;
    return pipeline_postpone(p, &p->intake_retry, job, why, e);
}

static int take_input(struct pipeline *p, const struct transport_input *in, struct err *e)
{
    struct job *job = NULL;
    struct err why = {0};
    char sha256[SHA256_HEX_BYTES];
    TRY(sha256_hex(bytes_of(in), in->length, sha256, e));
    running_put(p->o->running, RUNNING_INTAKE, &in->source, sha256);
    atomic_fetch_add(&p->taken, 1);
    return read_job(p, in, sha256, &job, &why) == 0 ? admit(p, job, e)
                                                    : postpone_input(p, in, sha256, &why, e);
}

static int retry_input(struct pipeline *p, struct job *kept, struct err *e)
{
    const bool has_record = !kept->unparsed;
    const struct transport_input in = {
        .bytes = has_record ? kept->record.value : kept->unparsed,
        .length = has_record ? kept->record.value_length : kept->unparsed_length,
        .source = kept->source,
        .custom_id = kept->has_custom_id ? kept->custom_id : NULL,
        .record = has_record ? &kept->record : NULL,
    };
    struct job *job = NULL;
    struct err why = {0};
    if (read_job(p, &in, kept->payload_sha256, &job, &why) != 0)
        return pipeline_postpone(p, &p->intake_retry, kept, &why, e);
    job->attempts = kept->attempts;
    job_free(kept);
    return admit(p, job, e);
}

/* One job whose next attempt is due. */
static int retry_failed(struct pipeline *p, struct err *e)
{
    struct job *job = pipeline_retry_next(p, &p->intake_retry);
    if (!job)
        return 0;
    running_put(p->o->running, RUNNING_INTAKE, &job->source, job->payload_sha256);
    return job->is_unread ? retry_input(p, job, e) : prepare(p, job, e);
}

static int take_one(struct pipeline *p, struct err *e)
{
    struct transport_input in;
    enum transport_event event;
    running_clear(p->o->running, RUNNING_INTAKE);
    stages_lap(&p->intake_laps, STAGE_PARSE);
    TRY(p->o->transport->take(p->o->transport->ctx, !p->parked.is_passing, &in, &event, e));
    stages_lap(&p->intake_laps, STAGE_TAKE);
    atomic_store(&p->input_ended, event == TRANSPORT_END);
    return event == TRANSPORT_INPUT ? take_input(p, &in, e) : 0;
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
        running_clear(p->o->running, RUNNING_INTAKE);
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
    crash_signals_name_thread(RUNNING_INTAKE);
    while (!atomic_load(&p->stop) &&
           (!atomic_load(&p->input_ended) || p->parked.n > 0 || p->intake_retry.n > 0)) {
        if (take_or_wait(p, &e) != 0 || retry_parked(p, &e) != 0 || retry_failed(p, &e) != 0) {
            if (e.code != ERR_CANCELLED || !atomic_load(&p->stop))
                pipeline_fail(p, &e);
            break;
        }
    }
    running_clear(p->o->running, RUNNING_INTAKE);
    parked_fini(&p->parked); /* unanswered and unsettled */
    retry_drop(&p->intake_retry);
    queue_shut(p->admitted);
    sem_post(&p->intake_ended);
    tend_until_delivered(p);
    return NULL;
}
