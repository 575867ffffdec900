/*
 * Input bytes -> struct job.
 *
 * A bad line is not a failure of the parser: the job comes back with job->error set, with
 * whatever identity could be read, so that it gets an answer like every other. ERR_NOMEM is the
 * only failure. What a job holds is whole even then: each message that counts has its
 * text, each document its text or a reference.
 *
 * Before Jansson sees a byte, a scan enforces depth, number length, UTF-8 and the absence of
 * NUL (limits: base/limits.h). It also finds the custom_id, so that a line that is broken
 * elsewhere keeps its name: a top-level custom_id is kept if it stands there once, complete,
 * without escapes. Other lines are named by their place: line-N, or topic-partition-offset.
 *
 * job->error.code is one of
 *
 *   line_too_long               more than JOB_BYTES_MAX bytes (status 413; all others 400)
 *   invalid_utf8                bytes that are not UTF-8; UTF-16, named as such; half of a
 *                               surrogate pair as an escape
 *   invalid_json_line           not JSON, text after the value, raw NUL, too deep
 *   duplicate_key               one object has a key twice
 *   invalid_request             JSON, but no kind of job; or fields that contradict each other
 *   unsupported_dialect         a batch line of Anthropic, Gemini, Vertex or Bedrock
 *   invalid_type                a field of the wrong JSON type
 *   invalid_value               a field outside its range or limit; a number outside int64 or
 *                               double, or of more than JOB_NUMBER_BYTES_MAX bytes; \u0000
 *   missing_required_parameter
 *   unsupported_parameter       known to us, would change the answer, and is not there
 *   url_mismatch                the url is for another body
 *   unknown_parameter           strict only
 *
 * error.param is the path of the field ("params.top_p", "messages[1].role"; for OpenAI lines it
 * starts inside the body). Messages of the first four begin with "line N, byte B: " (files)
 * or "byte B: " (records), B counted from 0 at the start of the line. They quote at most 40
 * bytes of the job, escaped. Ranges are refused, never clamped.
 *
 * A BOM at the start is skipped, CR before the line's end is white space. null is as good as
 * not given. Unknown fields, and known ones that are ignored (stream: true), are listed in
 * job->warnings.
 *
 * Defaults of what a job does not give: temperature 0 for native jobs and 1 for OpenAI's,
 * max_tokens 16 for completions and max_tokens_default for all others, the rest off.
 */
#ifndef SHEAF_JOB_PARSE_H
#define SHEAF_JOB_PARSE_H

#include "job.h"

struct job_parse_options {
    bool strict;                /* unknown and ignored fields are errors instead of warnings */
    int64_t max_tokens_default; /* 0: leave max_tokens at 0 */
    const char *payload_sha256; /* of the bytes, where it is known; NULL: it is computed */
};

/*
 * source is copied. bytes need no NUL at their end. Two jobs with one custom_id are the
 * caller's to find. A bare body has no custom_id of its own: the caller may put a Kafka header
 * or key there when has_custom_id is false.
 */
int job_parse(const char *bytes, size_t length, const struct job_source *source,
              const struct job_parse_options *options, struct job **out, struct err *e);

/* A line of only spaces, tabs and CR is no job. */
bool job_line_is_blank(const char *bytes, size_t length);

#endif
