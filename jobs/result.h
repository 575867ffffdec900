/*
 * A result: the outcome of one job with its own metrics, and its JSON line in the dialect
 * of the job.
 *
 * Metric definitions (all microseconds): queue = submitted -> admitted (wall); group_wait =
 * admitted -> first computed row; prefill = first computed row -> first token; ttft =
 * group_wait + prefill; decode = first -> last token; e2e = admitted -> last token. Turnaround
 * is the store's: submitted -> row durable.
 *
 * Tokens: cached = found in the prefix cache when the job was first admitted; computed = the
 * rest of the prompt. What is found or computed once more after a preemption is in neither.
 * accepted_prediction = drafted from the job's prediction and part of the answer;
 * rejected_prediction = drafted from it and not. Speculation that is off, or has better to do,
 * drafts none.
 */
#ifndef SHEAF_RESULT_H
#define SHEAF_RESULT_H

#include "base/buf.h"
#include "base/limits.h"
#include "job.h"

enum result_status { RESULT_SUCCEEDED, RESULT_FAILED, RESULT_EXPIRED, RESULT_CANCELLED };

struct result_metrics {
    int64_t queue_us, group_wait_us, prefill_us, ttft_us, decode_us, e2e_us, gap_us_max;
    int64_t prompt_tokens, cached_tokens, computed_tokens, completion_tokens;
    int64_t draft_tokens, accepted_tokens;
    int64_t draft_steps; /* 0: the drafts' figures mean nothing */
    int64_t draft_us, verify_us, expected_us;
    double expected_tokens;
    int64_t accepted_prediction_tokens, rejected_prediction_tokens; /* of the drafted ones */
    int64_t engine_steps, prefill_chunks, preemptions, kv_pages_peak;
    /* Static: none, off, cold, differs, evicted, window, short, salt; NULL: not known, and
     * miss_at means nothing. */
    const char *miss;
    int64_t miss_at;
    int64_t group_jobs; /* 0: not out of a window, and shared_tokens means nothing */
    int64_t shared_tokens;
};

/* Of speculation: tokens that stood so far behind the last one of the answer. */
struct result_draft {
    const char *source; /* static; "all": each token once, whoever drafted it */
    int64_t depth, drafted, accepted;
};

struct result {
    struct job *job; /* owned */
    enum result_status status;
    char *text; /* the answer; or NULL. UTF-8 always: invalid bytes became U+FFFD */
    size_t text_length;
    const char *finish_reason; /* static: "stop", "length"; NULL when failed */
    /* "eos", the stop string, "context_window", ... */
    char stop_reason[JOB_STOP_BYTES_MAX + 1];
    struct job_error error; /* when not RESULT_SUCCEEDED */
    struct result_metrics metrics;
    struct result_draft *drafts; /* owned; those that were drafted */
    size_t n_drafts;
    int64_t created_s; /* wall, Unix seconds */
    const char *model; /* static or borrowed from the worker: model name */
    const char *worker_id;
    char id[48]; /* "batch_req_" + hex of (topic, partition, offset, payload) */
};

void result_free(struct result *r); /* frees the job too; accepts NULL */

const char *result_status_name(enum result_status status); /* "succeeded", ... */
/* False: no status has that name (or it is NULL). */
bool result_status_find(const char *name, enum result_status *out);
/* Wall; 0: not known. */
int64_t result_finished_us(const struct result *r);

/*
 * A copy in which every run of bytes that is not a character became U+FFFD, one for each
 * longest start of a character as browsers do it; for the text of a result. NUL-terminated
 * behind *out_length bytes; free() it. NULL: out of memory.
 */
char *result_clean_utf8(const char *bytes, size_t length, size_t *out_length);

/*
 * Appends one JSON line without the newline, in the dialect of the job.
 *
 * OpenAI: {id, custom_id, response, error}. A job that ran or was refused has response
 * {status_code, request_id, body} and error null; the body is a chat.completion or
 * text_completion object, or {error: {message, type, param, code}} with status_code 4xx or
 * 5xx. A job that never ran has response null and error {code, message} with code
 * batch_expired or batch_cancelled. Beyond OpenAI's own fields: choices[0].stop_reason, as in
 * vLLM. Prediction tokens are counted for jobs that have a prediction only.
 *
 * Native: schema/result.schema.json.
 */
int result_emit(const struct result *r, struct buf *out, struct err *e);

#endif
