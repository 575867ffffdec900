/*
 * A result: the outcome of one job with its own metrics, and its JSON line in the dialect
 * of the job.
 *
 * Metric definitions (all microseconds): queue = submitted -> admitted (wall); group_wait =
 * admitted -> first computed row; prefill = first computed row -> first token; ttft =
 * group_wait + prefill; decode = first -> last token; e2e = admitted -> last token. Turnaround
 * is the store's: submitted -> row durable.
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
    int64_t engine_steps, prefill_chunks, preemptions, kv_pages_peak;
};

struct result {
    struct job *job; /* owned */
    enum result_status status;
    char *text; /* the answer; or NULL. UTF-8 always: invalid bytes became U+FFFD */
    size_t text_length;
    const char *finish_reason; /* static: "stop", "length"; NULL when failed */
    char
        stop_reason[JOB_STOP_BYTES_MAX + 1]; /* "eos", the stop string, "context_window", ... */
    struct job_error error;                  /* when not RESULT_SUCCEEDED */
    struct result_metrics metrics;
    int64_t created_s; /* wall, Unix seconds */
    const char *model; /* static or borrowed from the worker: model name */
    const char *worker_id;
    char id[48]; /* "batch_req_" + hex of (topic, partition, offset, payload) */
};

void result_free(struct result *r); /* frees the job too; accepts NULL */

/*
 * Appends one JSON line without the newline. OpenAI dialects: {id, custom_id, response:
 * {status_code, request_id, body}, error}: a rejected request has response.status_code 4xx
 * with body.error{message,type,param,code} and error null; a request that was never run
 * (cancelled, expired) has response null and error{code, message}. Native:
 * schema/result.schema.json.
 */
int result_emit(const struct result *r, struct buf *out, struct err *e);

#endif
