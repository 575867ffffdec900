/*
 * struct result -> one JSON line. Builders return a new reference or NULL; a NULL that is put
 * into a parent makes the whole line fail, so that only the line is checked at the end.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "jobs_int.h"
#include "result.h"

/* {key: value, ...}; steals the values. Every value NULL or not, the object must be whole. */
struct builder {
    json_t *object;
    bool failed;
};

static struct builder build(void)
{
    json_t *object = json_object();
    return (struct builder){object, object == NULL};
}

static void put(struct builder *b, const char *key, json_t *value)
{
    if (json_object_set_new(b->object, key, value) != 0)
        b->failed = true;
}

static json_t *built(struct builder *b)
{
    if (!b->failed)
        return b->object;
    json_decref(b->object);
    return NULL;
}

/* Text from anywhere: what was cut inside a character is mended. */
static json_t *text_value(const char *text, size_t length)
{
    size_t clean_length = 0;
    char *clean = result_clean_utf8(text, length, &clean_length);
    if (!clean)
        return NULL;
    json_t *value = json_stringn_nocheck(clean, clean_length);
    free(clean);
    return value;
}

static json_t *string_or_null(const char *text)
{
    return text && text[0] != '\0' ? text_value(text, strlen(text)) : json_null();
}

static json_t *usage_value(const struct result *r)
{
    const struct result_metrics *m = &r->metrics;
    struct builder prompt = build();
    put(&prompt, "cached_tokens", json_integer(m->cached_tokens));
    struct builder completion = build();
    put(&completion, "reasoning_tokens", json_integer(0));
    if (r->job->prediction_length > 0) {
        put(&completion, "accepted_prediction_tokens",
            json_integer(m->accepted_prediction_tokens));
        put(&completion, "rejected_prediction_tokens",
            json_integer(m->rejected_prediction_tokens));
    }
    struct builder usage = build();
    put(&usage, "prompt_tokens", json_integer(m->prompt_tokens));
    put(&usage, "completion_tokens", json_integer(m->completion_tokens));
    put(&usage, "total_tokens", json_integer(m->prompt_tokens + m->completion_tokens));
    put(&usage, "prompt_tokens_details", built(&prompt));
    put(&usage, "completion_tokens_details", built(&completion));
    return built(&usage);
}

static json_t *error_value(const struct job_error *error)
{
    struct builder b = build();
    put(&b, "message", text_value(error->message, strlen(error->message)));
    put(&b, "type", text_value(error->type, strlen(error->type)));
    put(&b, "param", string_or_null(error->param));
    put(&b, "code", text_value(error->code, strlen(error->code)));
    return built(&b);
}

/* JSON text that the parser wrote. */
static json_t *json_value(const char *text)
{
    return text ? json_loads(text, JSON_DECODE_ANY, NULL) : json_null();
}

/* The hex of "batch_req_<hex>", behind another prefix. */
static json_t *id_value(const struct result *r, const char *prefix)
{
    static const char own[] = "batch_req_";
    const char *hex = strncmp(r->id, own, sizeof own - 1) == 0 ? r->id + sizeof own - 1 : r->id;
    return json_sprintf("%s%s", prefix, hex);
}

static json_t *model_value(const struct result *r)
{
    const char *model = r->model && r->model[0] != '\0' ? r->model : r->job->model;
    return model ? text_value(model, strlen(model)) : json_string("");
}

static json_t *message_value(const struct result *r)
{
    struct builder b = build();
    put(&b, "role", json_string("assistant"));
    put(&b, "content", text_value(r->text ? r->text : "", r->text ? r->text_length : 0));
    put(&b, "refusal", json_null());
    return built(&b);
}

/* echo puts the prompt in front. */
static json_t *completion_text(const struct result *r)
{
    struct buf text = {0};
    if (r->job->echo && r->job->prompt)
        buf_append(&text, r->job->prompt, r->job->prompt_length);
    if (r->text)
        buf_append(&text, r->text, r->text_length);
    json_t *value = buf_ok(&text) ? text_value(buf_str(&text), text.length) : NULL;
    buf_fini(&text);
    return value;
}

static json_t *choice_value(const struct result *r, bool chat)
{
    struct builder b = build();
    put(&b, "index", json_integer(0));
    if (chat)
        put(&b, "message", message_value(r));
    else
        put(&b, "text", completion_text(r));
    put(&b, "logprobs", json_null());
    put(&b, "finish_reason", string_or_null(r->finish_reason));
    put(&b, "stop_reason", string_or_null(r->stop_reason));
    return built(&b);
}

static json_t *success_body(const struct result *r)
{
    const bool chat = r->job->dialect == DIALECT_OPENAI_CHAT;
    json_t *choices = json_array();
    if (json_array_append_new(choices, choice_value(r, chat)) != 0) {
        json_decref(choices);
        return NULL;
    }
    struct builder b = build();
    put(&b, "id", id_value(r, chat ? "chatcmpl-" : "cmpl-"));
    put(&b, "object", json_string(chat ? "chat.completion" : "text_completion"));
    put(&b, "created", json_integer(r->created_s));
    put(&b, "model", model_value(r));
    put(&b, "choices", choices);
    put(&b, "usage", usage_value(r));
    put(&b, "system_fingerprint", json_null());
    if (r->job->metadata)
        put(&b, "metadata", json_value(r->job->metadata));
    return built(&b);
}

static json_t *error_body(const struct result *r)
{
    struct builder b = build();
    put(&b, "error", error_value(&r->error));
    return built(&b);
}

static json_t *response_value(const struct result *r)
{
    const bool good = r->status == RESULT_SUCCEEDED;
    struct builder b = build();
    put(&b, "status_code", json_integer(good ? 200 : r->error.status));
    put(&b, "request_id", id_value(r, "req_"));
    put(&b, "body", good ? success_body(r) : error_body(r));
    return built(&b);
}

/* The error to show; a job that never ran has one of the two codes that readers of OpenAI's
 * error files know. */
static struct job_error shown_error(const struct result *r)
{
    struct job_error error = r->error;
    const bool expired = r->status == RESULT_EXPIRED;
    if (r->status == RESULT_FAILED)
        return error;
    error.status = expired ? 408 : 499;
    snprintf(error.code, sizeof error.code, expired ? "batch_expired" : "batch_cancelled");
    snprintf(error.type, sizeof error.type, "invalid_request_error");
    if (error.message[0] == '\0')
        snprintf(error.message, sizeof error.message, "the job %s before it ran",
                 expired ? "passed its deadline" : "was cancelled");
    return error;
}

static json_t *not_run_value(const struct result *r)
{
    const struct job_error error = shown_error(r);
    struct builder b = build();
    put(&b, "code", string_or_null(error.code));
    put(&b, "message", string_or_null(error.message));
    return built(&b);
}

static json_t *openai_line(const struct result *r)
{
    const bool ran = r->status == RESULT_SUCCEEDED || r->status == RESULT_FAILED;
    struct builder b = build();
    put(&b, "id", string_or_null(r->id));
    put(&b, "custom_id", text_value(r->job->custom_id, strlen(r->job->custom_id)));
    put(&b, "response", ran ? response_value(r) : json_null());
    put(&b, "error", ran ? json_null() : not_run_value(r));
    return built(&b);
}

static json_t *ms_value(int64_t us)
{
    return json_real((double)us / 1000.0);
}

static json_t *metrics_value(const struct result_metrics *m)
{
    struct builder b = build();
    put(&b, "queue_ms", ms_value(m->queue_us));
    put(&b, "group_wait_ms", ms_value(m->group_wait_us));
    put(&b, "prefill_ms", ms_value(m->prefill_us));
    put(&b, "ttft_ms", ms_value(m->ttft_us));
    put(&b, "decode_ms", ms_value(m->decode_us));
    put(&b, "e2e_ms", ms_value(m->e2e_us));
    put(&b, "gap_max_ms", ms_value(m->gap_us_max));
    put(&b, "computed_tokens", json_integer(m->computed_tokens));
    put(&b, "engine_steps", json_integer(m->engine_steps));
    put(&b, "prefill_chunks", json_integer(m->prefill_chunks));
    put(&b, "preemptions", json_integer(m->preemptions));
    put(&b, "kv_pages_peak", json_integer(m->kv_pages_peak));
    return built(&b);
}

static json_t *document_ids(const struct job *job)
{
    json_t *ids = json_array();
    for (size_t i = 0; i < job->n_documents; i++) {
        if (json_array_append_new(ids, string_or_null(job_document_id(&job->documents[i]))) !=
            0) {
            json_decref(ids);
            return NULL;
        }
    }
    return ids;
}

/* The warnings of a job are one comma-separated text. */
static json_t *warnings_value(const char *text)
{
    json_t *list = json_array();
    while (text && *text) {
        const size_t n = strcspn(text, ",");
        if (json_array_append_new(list, text_value(text, n)) != 0) {
            json_decref(list);
            return NULL;
        }
        text += n + (text[n] == ',');
    }
    return list;
}

static json_t *source_value(const struct job_source *source)
{
    struct builder b = build();
    put(&b, "topic", string_or_null(source->topic));
    put(&b, "partition", json_integer(source->partition));
    put(&b, "offset", json_integer(source->offset));
    return built(&b);
}

static json_t *native_error(const struct result *r)
{
    const struct job_error error = shown_error(r);
    json_t *value = error_value(&error);
    if (json_object_set_new(value, "status", json_integer(error.status)) == 0)
        return value;
    json_decref(value);
    return NULL;
}

static json_t *native_line(const struct result *r)
{
    const struct job *job = r->job;
    const bool good = r->status == RESULT_SUCCEEDED;
    struct builder b = build();
    put(&b, "id", string_or_null(r->id));
    put(&b, "custom_id", text_value(job->custom_id, strlen(job->custom_id)));
    put(&b, "run_id", string_or_null(job->run_id));
    put(&b, "status", json_string(result_status_name(r->status)));
    put(&b, "answer",
        good ? text_value(r->text ? r->text : "", r->text ? r->text_length : 0) : json_null());
    put(&b, "finish_reason", string_or_null(r->finish_reason));
    put(&b, "stop_reason", string_or_null(r->stop_reason));
    put(&b, "model", model_value(r));
    put(&b, "created", json_integer(r->created_s));
    put(&b, "usage", usage_value(r));
    put(&b, "metrics", metrics_value(&r->metrics));
    put(&b, "error", good ? json_null() : native_error(r));
    put(&b, "documents", document_ids(job));
    put(&b, "prefix_group", string_or_null(job->prefix_group));
    put(&b, "metadata", json_value(job->metadata));
    put(&b, "warnings", warnings_value(job->warnings));
    put(&b, "source", source_value(&job->source));
    put(&b, "worker", string_or_null(r->worker_id));
    return built(&b);
}

int result_emit(const struct result *r, struct buf *out, struct err *e)
{
    json_watch_begin();
    json_t *line = r->job->dialect == DIALECT_NATIVE ? native_line(r) : openai_line(r);
    (void)json_watch_failed();
    if (!line)
        return ERR_SET(e, ERR_NOMEM, "out of memory for a result line");
    char *text = NULL;
    const int code = json_dump_text(line, &text, e);
    json_decref(line);
    TRY(code);
    buf_append_str(out, text);
    json_free_text(text);
    return buf_ok(out) ? 0 : ERR_SET(e, ERR_NOMEM, "out of memory for a result line");
}
