#include "result_read.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "json_scan.h"
#include "result_read_int.h"

int result_take_text(const json_t *value, size_t bytes_max, char **out, struct err *e)
{
    const size_t length = json_string_length(value);
    const char *text = json_string_value(value);
    if (!text || length == 0 || length > bytes_max || memchr(text, '\0', length))
        return 0;
    char *copy = strndup(text, length);
    if (!copy)
        return ERR_SET(e, ERR_NOMEM, "out of memory for a result");
    free(*out);
    *out = copy;
    return 0;
}

bool result_take_count(const json_t *value, int64_t *out)
{
    if (!json_is_integer(value) || json_integer_value(value) < 0 ||
        json_integer_value(value) > RESULT_COUNT_MAX)
        return false;
    *out = json_integer_value(value);
    return true;
}

bool result_take_us(const json_t *value, double us_per_unit, int64_t *out)
{
    const double us = json_number_value(value) * us_per_unit;
    if (!json_is_number(value) || !(us >= 0) || us > 1e18)
        return false;
    *out = llround(us);
    return true;
}

static int no_result(struct err *e, const char *why)
{
    return ERR_SET(e, ERR_FORMAT, "no result: %s", why);
}

/* ------------------------------------------------------------------ parts of both dialects */

static void copy_fixed(char *out, size_t capacity, const json_t *value)
{
    const char *text = json_string_value(value);
    snprintf(out, capacity, "%s", text ? text : "");
}

static void read_error(struct result *r, const json_t *error)
{
    copy_fixed(r->error.code, sizeof r->error.code, json_object_get(error, "code"));
    copy_fixed(r->error.type, sizeof r->error.type, json_object_get(error, "type"));
    copy_fixed(r->error.param, sizeof r->error.param, json_object_get(error, "param"));
    copy_fixed(r->error.message, sizeof r->error.message, json_object_get(error, "message"));
    const json_int_t status = json_integer_value(json_object_get(error, "status"));
    if (status >= 100 && status <= 599)
        r->error.status = (int)status;
}

/* What a program left out of usage is taken as none. */
static int read_usage(struct result *r, const json_t *usage, struct err *e)
{
    static const char *const keys[] = {"prompt_tokens", "completion_tokens"};
    struct result_metrics *m = &r->metrics;
    int64_t *const counts[] = {&m->prompt_tokens, &m->completion_tokens};
    for (size_t i = 0; i < 2; i++) {
        const json_t *value = json_object_get(usage, keys[i]);
        if (!parse_is_absent(value) && !result_take_count(value, counts[i]))
            return no_result(e, "usage has a count that is none");
    }
    result_take_count(
        json_object_get(json_object_get(usage, "prompt_tokens_details"), "cached_tokens"),
        &m->cached_tokens);
    if (m->cached_tokens > m->prompt_tokens)
        return no_result(e, "usage has more cached_tokens than prompt_tokens");
    m->computed_tokens = m->prompt_tokens - m->cached_tokens;
    return 0;
}

static int read_answer(struct result *r, const json_t *text, const json_t *finish_reason,
                       const json_t *stop_reason, struct err *e)
{
    if (!json_is_string(text))
        return no_result(e, "it succeeded and has no answer");
    r->text_length = json_string_length(text);
    r->text = malloc(r->text_length + 1);
    if (!r->text)
        return ERR_SET(e, ERR_NOMEM, "out of memory for a result");
    memcpy(r->text, json_string_value(text), r->text_length + 1);
    const char *finish = json_string_value(finish_reason);
    r->finish_reason = finish && strcmp(finish, "length") == 0 ? "length"
                       : finish                                ? "stop"
                                                               : NULL;
    copy_fixed(r->stop_reason, sizeof r->stop_reason, stop_reason);
    return 0;
}

static int read_metadata(struct job *job, const json_t *metadata, struct err *e)
{
    char *text = NULL;
    if (!json_is_object(metadata))
        return 0;
    TRY(json_dump_text(metadata, &text, e));
    const bool fits = strlen(text) <= JOB_METADATA_BYTES_MAX;
    job->metadata = fits ? strdup(text) : NULL;
    json_free_text(text);
    return fits && !job->metadata ? ERR_SET(e, ERR_NOMEM, "out of memory for a result") : 0;
}

/* ------------------------------------------------------------------ native */

static void read_metrics(struct result *r, const json_t *metrics)
{
    struct result_metrics *m = &r->metrics;
    const struct {
        const char *key;
        int64_t *us;
    } durations[] = {{"queue_ms", &m->queue_us},     {"group_wait_ms", &m->group_wait_us},
                     {"prefill_ms", &m->prefill_us}, {"ttft_ms", &m->ttft_us},
                     {"decode_ms", &m->decode_us},   {"e2e_ms", &m->e2e_us},
                     {"gap_max_ms", &m->gap_us_max}};
    for (size_t i = 0; i < sizeof durations / sizeof durations[0]; i++)
        result_take_us(json_object_get(metrics, durations[i].key), 1000, durations[i].us);
    result_take_count(json_object_get(metrics, "computed_tokens"), &m->computed_tokens);
    result_take_count(json_object_get(metrics, "engine_steps"), &m->engine_steps);
    result_take_count(json_object_get(metrics, "prefill_chunks"), &m->prefill_chunks);
    result_take_count(json_object_get(metrics, "preemptions"), &m->preemptions);
    result_take_count(json_object_get(metrics, "kv_pages_peak"), &m->kv_pages_peak);
}

static int read_documents(struct job *job, const json_t *ids, struct err *e)
{
    const size_t n = json_array_size(ids);
    if (n == 0 || n > JOB_DOCUMENTS_MAX)
        return 0;
    job->documents = calloc(n, sizeof *job->documents);
    if (!job->documents)
        return ERR_SET(e, ERR_NOMEM, "out of memory for a result");
    job->n_documents = n;
    for (size_t i = 0; i < n; i++)
        TRY(result_take_text(json_array_get(ids, i), JOB_ID_BYTES_MAX, &job->documents[i].id,
                             e));
    return 0;
}

static int read_warnings(struct job *job, const json_t *list, struct err *e)
{
    struct buf all = {0};
    for (size_t i = 0; i < json_array_size(list) && all.length < 1024; i++) {
        const char *text = json_string_value(json_array_get(list, i));
        if (text && *text)
            buf_printf(&all, "%s%.128s", all.length ? "," : "", text);
    }
    const bool ok = buf_ok(&all);
    if (ok)
        job->warnings = buf_take(&all);
    buf_fini(&all);
    return ok ? 0 : ERR_SET(e, ERR_NOMEM, "out of memory for a result");
}

static int read_source(struct result_record *record, const json_t *source, struct err *e)
{
    struct job_source *out = &record->result->job->source;
    const json_t *partition = json_object_get(source, "partition");
    int64_t number = 0;
    if (!result_take_count(partition, &number) || number > INT32_MAX ||
        !result_take_count(json_object_get(source, "offset"), &out->offset))
        return 0;
    out->partition = (int32_t)number;
    TRY(result_take_text(json_object_get(source, "topic"), JOB_ID_BYTES_MAX, &out->topic, e));
    record->has_source = out->topic != NULL;
    return 0;
}

static int read_native(struct result_record *record, const json_t *root, struct err *e)
{
    struct result *r = record->result;
    struct job *job = r->job;
    job->dialect = DIALECT_NATIVE;
    if (!result_status_find(json_string_value(json_object_get(root, "status")), &r->status))
        return no_result(e, "its status is none");
    TRY(read_usage(r, json_object_get(root, "usage"), e));
    if (r->status == RESULT_SUCCEEDED)
        TRY(read_answer(r, json_object_get(root, "answer"),
                        json_object_get(root, "finish_reason"),
                        json_object_get(root, "stop_reason"), e));
    else
        read_error(r, json_object_get(root, "error"));
    read_metrics(r, json_object_get(root, "metrics"));
    result_take_count(json_object_get(root, "created"), &r->created_s);
    TRY(read_source(record, json_object_get(root, "source"), e));
    TRY(read_documents(job, json_object_get(root, "documents"), e));
    TRY(read_warnings(job, json_object_get(root, "warnings"), e));
    TRY(read_metadata(job, json_object_get(root, "metadata"), e));
    TRY(result_take_text(json_object_get(root, "run_id"), JOB_ID_BYTES_MAX, &record->run_id,
                         e));
    TRY(result_take_text(json_object_get(root, "model"), JOB_ID_BYTES_MAX, &record->model, e));
    TRY(result_take_text(json_object_get(root, "worker"), JOB_ID_BYTES_MAX, &record->worker_id,
                         e));
    return result_take_text(json_object_get(root, "prefix_group"), JOB_ID_BYTES_MAX,
                            &job->prefix_group, e);
}

/* ------------------------------------------------------------------ OpenAI */

static int read_body(struct result_record *record, const json_t *body, struct err *e)
{
    struct result *r = record->result;
    const json_t *choice = json_array_get(json_object_get(body, "choices"), 0);
    const json_t *message = json_object_get(choice, "message");
    if (!json_is_object(choice))
        return no_result(e, "its response has neither choices nor an error");
    r->job->dialect = message ? DIALECT_OPENAI_CHAT : DIALECT_OPENAI_COMPLETION;
    TRY(read_usage(r, json_object_get(body, "usage"), e));
    TRY(read_answer(
        r, json_object_get(message ? message : choice, message ? "content" : "text"),
        json_object_get(choice, "finish_reason"), json_object_get(choice, "stop_reason"), e));
    result_take_count(json_object_get(body, "created"), &r->created_s);
    TRY(read_metadata(r->job, json_object_get(body, "metadata"), e));
    return result_take_text(json_object_get(body, "model"), JOB_ID_BYTES_MAX, &record->model,
                            e);
}

static int read_not_run(struct result *r, const json_t *error, struct err *e)
{
    if (!json_is_object(error))
        return no_result(e, "it has neither a response nor an error");
    read_error(r, error);
    r->status = strcmp(r->error.code, "batch_expired") == 0     ? RESULT_EXPIRED
                : strcmp(r->error.code, "batch_cancelled") == 0 ? RESULT_CANCELLED
                                                                : RESULT_FAILED;
    return 0;
}

static int read_openai(struct result_record *record, const json_t *root, struct err *e)
{
    struct result *r = record->result;
    const json_t *response = json_object_get(root, "response");
    r->job->dialect = DIALECT_OPENAI_CHAT; /* a header may know better */
    if (!json_is_object(response))
        return read_not_run(r, json_object_get(root, "error"), e);
    const json_t *body = json_object_get(response, "body");
    const json_t *error = json_object_get(body, "error");
    if (!json_is_object(error))
        return read_body(record, body, e);
    r->status = RESULT_FAILED;
    read_error(r, error);
    const json_int_t status = json_integer_value(json_object_get(response, "status_code"));
    if (status >= 100 && status <= 599)
        r->error.status = (int)status;
    return 0;
}

/* ------------------------------------------------------------------ the whole */

/* Our own ids end with the first digits of the payload's hash. */
static void guess_payload(struct result_record *record)
{
    static const char own[] = "batch_req_";
    enum { PREFIX = sizeof own - 1, KNOWN = 16 };
    const char *id = record->result->id;
    char *out = record->result->job->payload_sha256;
    if (strncmp(id, own, PREFIX) != 0 || strspn(id + PREFIX, "0123456789abcdef") != 2 * KNOWN ||
        id[PREFIX + 2 * KNOWN] != '\0')
        return;
    memset(out, '0', 64);
    memcpy(out, id + PREFIX + KNOWN, KNOWN);
    out[64] = '\0';
}

static int read_root(struct result_record *record, const json_t *root, struct err *e)
{
    struct result *r = record->result;
    if (!json_is_object(root))
        return no_result(e, "it is no JSON object");
    TRY(result_take_text(json_object_get(root, "custom_id"), JOB_ID_BYTES_MAX,
                         &r->job->custom_id, e));
    if (!r->job->custom_id)
        return no_result(e, "it has no custom_id");
    copy_fixed(r->id, sizeof r->id, json_object_get(root, "id"));
    guess_payload(record);
    const bool has_response = json_object_get(root, "response") != NULL;
    if (!has_response && json_is_string(json_object_get(root, "status")))
        return read_native(record, root, e);
    if (has_response)
        return read_openai(record, root, e);
    return no_result(e, "it has neither a status nor a response");
}

static int new_result(struct result_record *out, struct err *e)
{
    struct job *job = calloc(1, sizeof *job);
    out->result = calloc(1, sizeof *out->result);
    if (!job || !out->result) {
        free(job);
        return ERR_SET(e, ERR_NOMEM, "out of memory for a result");
    }
    struct result_metrics *m = &out->result->metrics;
    out->result->job = job;
    m->queue_us = m->group_wait_us = m->prefill_us = m->ttft_us = -1;
    m->decode_us = m->e2e_us = m->gap_us_max = -1;
    out->attempt = 1;
    return 0;
}

static int read_line(struct result_record *record, const char *line, size_t length,
                     struct err *e)
{
    struct json_scan scan;
    struct json_fault fault = {0};
    json_t *root = NULL;
    if (length == 0 || length > RESULT_LINE_BYTES_MAX)
        return no_result(e, length ? "it is too long" : "it is empty");
    json_scan_answer(line, length, &scan);
    if (scan.code)
        return no_result(e, scan.text);
    const int code = json_load_answer(line, length, &root, &fault, e);
    if (code == ERR_INVALID) /* without the text near the fault: it is somebody's */
        return no_result(e, "it is no JSON");
    TRY(code);
    const int read = read_root(record, root, e);
    json_decref(root);
    return read;
}

/* Identities that the database insists on; what breaks one is not known. */
static void drop_contradictions(struct result *r)
{
    struct result_metrics *m = &r->metrics;
    if (m->ttft_us < 0 || m->group_wait_us < 0 || m->prefill_us < 0 ||
        m->ttft_us != m->group_wait_us + m->prefill_us)
        m->group_wait_us = m->prefill_us = -1;
    if (m->e2e_us < 0 || m->ttft_us < 0 || m->decode_us < 0 ||
        m->e2e_us != m->ttft_us + m->decode_us)
        m->e2e_us = -1;
    if (m->cached_tokens > m->prompt_tokens)
        m->cached_tokens = m->prompt_tokens;
    if (r->status == RESULT_SUCCEEDED)
        m->computed_tokens = m->prompt_tokens - m->cached_tokens;
    if (m->accepted_tokens > m->draft_tokens)
        m->accepted_tokens = m->draft_tokens = 0;
}

int result_read(const char *line, size_t length, const struct result_header *headers,
                size_t n_headers, struct result_record *out, struct err *e)
{
    *out = (struct result_record){0};
    int code = new_result(out, e);
    if (code == 0)
        code = read_line(out, line, length, e);
    if (code == 0)
        code = result_read_headers(out, headers, n_headers, e);
    if (code != 0) {
        result_record_fini(out);
        return code;
    }
    drop_contradictions(out->result);
    out->result->model = out->model;
    out->result->worker_id = out->worker_id;
    return 0;
}

void result_record_fini(struct result_record *record)
{
    result_free(record->result);
    free(record->run_id);
    free(record->model);
    free(record->worker_id);
    free(record->model_sha256);
    free(record->quant);
    free(record->kernels);
    free(record->version);
    free(record->replay_of.topic);
    *record = (struct result_record){0};
}
