#include "answer.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/hash.h"
#include "base/limits.h"
#include "base/size.h"
#include "prompt.h"

int answer_context_init(struct answer_context *ctx, const struct model *m,
                        const struct settings *settings, const char *worker_id, struct err *e)
{
    *ctx = (struct answer_context){.model = m, .settings = settings, .worker_id = worker_id};
    const char *wanted = settings->chat_template;
    const bool is_auto = strcmp(wanted, "auto") == 0;
    ctx->template_family = is_auto ? m->template_family : template_find(wanted);
    if (ctx->template_family == TEMPLATE_UNKNOWN)
        return ERR_SET(e, ERR_CONFIG,
                       is_auto
                           ? "the model's chat template is not one that Sheaf knows; set "
                             "chat_template to chatml, llama-3, llama-2, mistral, gemma, phi-3 "
                             "or zephyr%s"
                           : "chat_template=%s is not one of auto, chatml, llama-3, llama-2, "
                             "mistral, gemma, phi-3, zephyr",
                       is_auto ? "" : wanted);
    if (is_auto)
        ctx->default_system = m->default_system;
    return template_check(ctx->template_family, m->tokenizer, e);
}

/* ------------------------------------------------------------------ job -> tokens */

static int encode(const struct answer_context *ctx, const struct token_span *spans, size_t n,
                  bool add_bos, int32_t **tokens, size_t *n_tokens, struct err *e)
{
    struct token_list list = {0};
    const int rc = tokenizer_encode(ctx->model->tokenizer, spans, n, add_bos, &list, e);
    if (rc != 0) {
        token_list_fini(&list);
        return rc;
    }
    *tokens = list.ids;
    *n_tokens = list.length;
    return 0;
}

static int encode_prompt(const struct answer_context *ctx, const struct token_span *spans,
                         size_t n, struct job *job, struct err *e)
{
    return encode(ctx, spans, n, true, &job->tokens, &job->n_tokens, e);
}

/* As text that stands for itself: an answer's tokens are those, but perhaps for the first ones
 * and for those around what is otherwise. A hint, so what is too long is cut wherever it is. */
static int encode_prediction(const struct answer_context *ctx, struct job *job, struct err *e)
{
    if (strcmp(ctx->settings->speculation, "off") == 0 || !job->prediction)
        return 0;
    const struct token_span span = {.text = job->prediction,
                                    .length =
                                        size_min(job->prediction_length, JOB_PREDICTION_BYTES)};
    return encode(ctx, &span, 1, false, &job->prediction_tokens, &job->n_prediction_tokens, e);
}

static enum chat_role chat_role_of(enum job_role role)
{
    switch (role) {
    case JOB_SYSTEM: return CHAT_SYSTEM;
    case JOB_USER: return CHAT_USER;
    case JOB_ASSISTANT: return CHAT_ASSISTANT;
    }
    ASSERT(!"a role");
    return CHAT_USER;
}

static int render_and_encode(const struct answer_context *ctx, const struct prompt *prompt,
                             struct job *job, struct err *e)
{
    struct chat_message *messages = calloc(prompt->n_messages + 1, sizeof messages[0]);
    if (!messages)
        return ERR_SET(e, ERR_NOMEM, "no memory for a prompt");
    for (size_t i = 0; i < prompt->n_messages; i++)
        messages[i] = (struct chat_message){.role = chat_role_of(prompt->messages[i].role),
                                            .content = prompt->messages[i].text,
                                            .length = prompt->messages[i].length};
    struct span_list spans = {0};
    struct err why = {0};
    int rc = template_render(ctx->template_family, messages, prompt->n_messages,
                             ctx->default_system, &spans, &why);
    if (rc == ERR_INVALID) {
        job_fail(job, 400, "invalid_value", "messages", "%s", why.text);
        rc = 0;
    } else if (rc != 0) {
        rc = ERR_SET(e, rc, "%s", why.text);
    } else {
        rc = encode_prompt(ctx, spans.items, spans.length, job, e);
    }
    span_list_fini(&spans);
    free(messages);
    return rc;
}

static int tokenize_chat(const struct answer_context *ctx, struct job *job, struct err *e)
{
    struct prompt prompt = {0};
    int rc = prompt_build(job, &prompt, e);
    if (rc == 0) {
        free(job->prefix_group); /* of an attempt that failed */
        job->prefix_group = strdup(prompt.group);
        rc = job->prefix_group ? render_and_encode(ctx, &prompt, job, e)
                               : ERR_SET(e, ERR_NOMEM, "no memory for a prompt");
    }
    prompt_fini(&prompt);
    return rc;
}

static int tokenize_prompt(const struct answer_context *ctx, struct job *job, struct err *e)
{
    if (job->prompt_tokens) {
        job->tokens = job->prompt_tokens;
        job->n_tokens = job->n_prompt_tokens;
        job->prompt_tokens = NULL;
        job->n_prompt_tokens = 0;
        return 0;
    }
    if (!job->prompt)
        return tokenize_chat(ctx, job, e);
    const struct token_span span = {.text = job->prompt, .length = job->prompt_length};
    return encode_prompt(ctx, &span, 1, job, e);
}

int answer_tokenize(const struct answer_context *ctx, struct job *job, struct err *e)
{
    ASSERT(job->error.status == 0);
    if (!job->tokens)
        TRY(tokenize_prompt(ctx, job, e));
    TRY(encode_prediction(ctx, job, e));
    job_free_prediction_text(job);
    return 0;
}

/* ------------------------------------------------------------------ tokens -> request */

static struct sample_params sampling_of(const struct answer_context *ctx, const struct job *job)
{
    const struct job_params *p = &job->params;
    struct sample_params sample = sample_params_greedy();
    sample.temperature = (float)p->temperature;
    sample.top_k = (int32_t)p->top_k;
    sample.top_p = (float)p->top_p;
    sample.min_p = (float)p->min_p;
    sample.repetition_penalty = (float)p->repetition_penalty;
    sample.presence_penalty = (float)p->presence_penalty;
    sample.frequency_penalty = (float)p->frequency_penalty;
    sample.seed = (uint64_t)(p->has_seed ? p->seed : ctx->settings->seed);
    /* By id, so that equal questions under two ids are two draws, and a rerun repeats both. */
    sample.stream = hash_bytes(job->custom_id, strlen(job->custom_id));
    return sample;
}

int answer_request(const struct answer_context *ctx, struct job *job, struct seq_request *req,
                   struct logit_bias **bias, struct err *e)
{
    const struct job_params *p = &job->params;
    struct logit_bias *list = calloc(p->n_bias + 1, sizeof list[0]);
    if (!list)
        return ERR_SET(e, ERR_NOMEM, "no memory for a request");
    for (size_t i = 0; i < p->n_bias; i++)
        list[i] = (struct logit_bias){.id = p->bias[i].id, .bias = (float)p->bias[i].bias};
    *bias = list;
    *req = (struct seq_request){
        .prompt = job->tokens,
        .n_prompt = job->n_tokens,
        .max_tokens = (size_t)(p->max_tokens ? p->max_tokens : ctx->settings->max_tokens),
        .min_tokens = (size_t)p->min_tokens,
        .ignore_eos = p->ignore_eos,
        .include_stop = p->include_stop,
        .sample = sampling_of(ctx, job),
        .stops = (const char *const *)p->stops,
        .n_stops = p->n_stops,
        .stop_tokens = p->stop_tokens,
        .n_stop_tokens = p->n_stop_tokens,
        .salt = job->cache_salt,
        .prediction = job->prediction_tokens,
        .n_prediction = job->n_prediction_tokens,
        .user = job,
    };
    req->sample.bias = list;
    req->sample.n_bias = p->n_bias;
    return 0;
}

void answer_refuse(struct job *job, const struct err *e)
{
    switch (e->code) {
    case ERR_CONTEXT:
        job_fail(job, 413, "context_length_exceeded", "messages", "%s", e->text);
        break;
    case ERR_LIMIT:
        job_fail(job, 413, "kv_cache_too_small", "max_tokens", "%s", e->text);
        break;
    default: job_fail(job, 400, "invalid_value", "", "%s", e->text);
    }
}

/* ------------------------------------------------------------------ outcome -> result */

/* The same job at the same place has the same id, also when it is answered again. */
static void make_id(struct result *r)
{
    const struct job_source *source = &r->job->source;
    char place[512];
    const int n = snprintf(place, sizeof place, "%d %lld %s %.400s", source->partition,
                           (long long)source->offset, r->job->payload_sha256, source->topic);
    const size_t length = n < (int)sizeof place ? (size_t)n : sizeof place - 1;
    snprintf(r->id, sizeof r->id, "batch_req_%016llx%.16s",
             (unsigned long long)hash_bytes(place, length), r->job->payload_sha256);
}

static struct result *new_result(const struct answer_context *ctx, struct job *job)
{
    struct result *r = calloc(1, sizeof *r);
    if (!r)
        return NULL;
    r->job = job;
    r->created_s = clock_wall_us() / 1000000;
    r->model = ctx->model->name;
    r->worker_id = ctx->worker_id;
    make_id(r);
    return r;
}

static void set_reason(struct result *r, const struct seq_result *s)
{
    const char *reason = "";
    r->finish_reason = "stop";
    switch (s->reason) {
    case FINISH_EOS: reason = "eos"; break;
    case FINISH_STOP:
        if (s->stop_index >= 0)
            reason = r->job->params.stops[s->stop_index];
        break;
    case FINISH_LENGTH:
        r->finish_reason = "length";
        reason = "max_tokens";
        break;
    case FINISH_CONTEXT:
        r->finish_reason = "length";
        reason = "context_window";
        break;
    case FINISH_CANCELLED:
    case FINISH_NOMEM: reason = "cancelled"; break; /* neither becomes a result */
    }
    snprintf(r->stop_reason, sizeof r->stop_reason, "%s", reason);
    if (s->reason == FINISH_STOP && s->stop_index < 0)
        snprintf(r->stop_reason, sizeof r->stop_reason, "token %d", s->stop_token);
}

/* The submitter's clock may be ahead of ours. */
static int64_t queue_us_of(const struct job *job)
{
    const int64_t waited_us = job->admitted_wall_us - job->source.timestamp_us;
    return waited_us > 0 ? waited_us : 0;
}

/* The definitions are in result.h. */
static void set_metrics(struct result *r, const struct seq_result *s)
{
    const struct job *job = r->job;
    struct result_metrics *m = &r->metrics;
    m->queue_us = queue_us_of(job);
    m->group_wait_us = s->scheduled_us - job->admitted_us;
    m->prefill_us = s->first_token_us - s->scheduled_us;
    m->ttft_us = s->first_token_us - job->admitted_us;
    m->decode_us = s->last_token_us - s->first_token_us;
    m->e2e_us = s->last_token_us - job->admitted_us;
    m->gap_us_max = s->gap_us_max;
    m->prompt_tokens = (int64_t)s->n_prompt;
    m->cached_tokens = (int64_t)s->n_cached;
    m->computed_tokens = (int64_t)(s->n_prompt - s->n_cached);
    m->completion_tokens = (int64_t)s->n_tokens;
    m->draft_tokens = (int64_t)s->n_drafted;
    m->accepted_tokens = (int64_t)s->n_accepted;
    m->draft_steps = (int64_t)s->drafts->steps;
    m->draft_us = s->drafts->draft_us;
    m->verify_us = s->drafts->verify_us;
    m->expected_us = llround(s->drafts->expected_us);
    m->expected_tokens = s->drafts->expected;
    m->accepted_prediction_tokens = (int64_t)s->n_predicted_accepted;
    m->rejected_prediction_tokens = (int64_t)(s->n_predicted - s->n_predicted_accepted);
    m->engine_steps = (int64_t)s->n_steps;
    m->prefill_chunks = (int64_t)s->n_chunks;
    m->preemptions = (int64_t)s->n_preempted;
    m->kv_pages_peak = (int64_t)s->kv_pages_peak;
    m->miss = prefix_miss_name(s->miss);
    m->miss_at = (int64_t)s->miss_at;
    m->group_jobs = (int64_t)job->group_jobs;
    m->shared_tokens = (int64_t)job->shared_tokens;
}

static int64_t count_drafted(const struct draft_tally *t)
{
    int64_t n = 0;
    for (size_t source = 0; source < TALLY_SOURCES; source++)
        for (size_t at = 0; at < TALLY_DEPTHS; at++)
            n += t->drafted[source][at] > 0;
    return n;
}

/* False: no memory. */
static bool set_drafts(struct result *r, const struct draft_tally *t)
{
    const int64_t n = count_drafted(t);
    if (n == 0)
        return true;
    r->drafts = calloc((size_t)n, sizeof r->drafts[0]);
    if (!r->drafts)
        return false;
    for (size_t source = 0; source < TALLY_SOURCES; source++)
        for (size_t at = 0; at < TALLY_DEPTHS; at++)
            if (t->drafted[source][at] > 0)
                r->drafts[r->n_drafts++] = (struct result_draft){
                    .source = source == TALLY_ALL
                                  ? "all"
                                  : draft_source_name((enum draft_source)source),
                    .depth = (int64_t)at + 1,
                    .drafted = t->drafted[source][at],
                    .accepted = t->accepted[source][at]};
    return true;
}

struct result *answer_result_take(const struct answer_context *ctx, struct job *job,
                                  const struct seq_result *s)
{
    struct result *r = new_result(ctx, job);
    if (!r)
        return NULL;
    r->text = result_clean_utf8(s->text, s->text_bytes, &r->text_length);
    if (!r->text || !set_drafts(r, s->drafts)) {
        free(r->text);
        free(r);
        return NULL;
    }
    r->status = RESULT_SUCCEEDED;
    set_reason(r, s);
    set_metrics(r, s);
    return r;
}

struct result *answer_failure_take(const struct answer_context *ctx, struct job *job)
{
    ASSERT(job->error.status != 0);
    struct result *r = new_result(ctx, job);
    if (!r)
        return NULL;
    r->error = job->error;
    r->status =
        strcmp(job->error.code, "deadline_exceeded") == 0 ? RESULT_EXPIRED : RESULT_FAILED;
    r->metrics.queue_us = queue_us_of(job);
    return r;
}

void answer_exhaust(struct job *job, const char *why)
{
    job->error = (struct job_error){0};
    job_fail(job, 503, "attempts_exhausted", "",
             "%lld attempts came to nothing; the last: %.300s", (long long)job->attempts, why);
    job->attempts--; /* the last one is what is answered now */
}

void answer_withdraw(struct result *r, const char *why)
{
    answer_exhaust(r->job, why);
    free(r->text);
    free(r->drafts);
    r->text = NULL;
    r->text_length = 0;
    r->drafts = NULL;
    r->n_drafts = 0;
    r->finish_reason = NULL;
    r->stop_reason[0] = '\0';
    r->status = RESULT_FAILED;
    r->error = r->job->error;
    r->metrics = (struct result_metrics){.queue_us = r->metrics.queue_us};
}
