#include "job_parse.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/limits.h"
#include "base/sha256.h"
#include "jobs_int.h"
#include "json_scan.h"

/* Where an over-long line is searched for its custom_id. */
enum { SALVAGE_BYTES = 65536 };

bool job_line_is_blank(const char *bytes, size_t length)
{
    for (size_t i = 0; i < length; i++)
        if (bytes[i] != ' ' && bytes[i] != '\t' && bytes[i] != '\r' && bytes[i] != '\n')
            return false;
    return true;
}

static int set_id(struct parse *p, const char *bytes, size_t length)
{
    char *id = strndup(bytes, length);
    if (!id)
        return parse_nomem(p);
    free(p->job->custom_id);
    p->job->custom_id = id;
    p->job->has_custom_id = true;
    return 0;
}

int parse_custom_id(struct parse *p, const json_t *value)
{
    if (parse_is_absent(value))
        return 0;
    char *id = NULL;
    TRY(parse_string(p, value, "custom_id", 1, JOB_ID_BYTES_MAX, &id, NULL));
    free(p->job->custom_id);
    p->job->custom_id = id;
    p->job->has_custom_id = true;
    return 0;
}

/* An error at a place in the text. */
static int fail_at(struct parse *p, const char *code, size_t offset, const char *text)
{
    const struct job_source *source = &p->job->source;
    if (source->is_file)
        return parse_fail(p, code, "", "line %" PRId64 ", byte %zu: %s", source->offset, offset,
                          text);
    return parse_fail(p, code, "", "byte %zu: %s", offset, text);
}

static bool has_key(const json_t *object, const char *key)
{
    return !parse_is_absent(json_object_get(object, key));
}

/* Batch lines of other APIs, by the keys that only they have. */
static const char *foreign_dialect(const json_t *root)
{
    const json_t *params = json_object_get(root, "params");
    const json_t *request = json_object_get(root, "request");
    if (has_key(root, "requests"))
        return "an Anthropic message batch";
    if (has_key(params, "messages") && !has_key(root, "question") && !has_key(root, "messages"))
        return "an Anthropic batch line (custom_id and params)";
    if (has_key(request, "contents"))
        return has_key(root, "key") ? "a Gemini batch line (key and request.contents)"
                                    : "a Vertex AI batch line (request.contents)";
    if (has_key(root, "contents"))
        return "a Gemini request (contents)";
    if (has_key(root, "modelInput"))
        return "a Bedrock batch line (recordId and modelInput)";
    return NULL;
}

static bool has_any_key(const json_t *root, const char *const *names, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (has_key(root, names[i]))
            return true;
    return false;
}

static bool is_native(const json_t *root)
{
    static const char *const own[] = {"system",   "params",   "expect",  "run_id",
                                      "batch_id", "deadline", "question"};
    return has_any_key(root, own, sizeof own / sizeof own[0]) ||
           (has_key(root, "documents") &&
            (has_key(root, "custom_id") || !has_key(root, "messages")));
}

static int parse_root(struct parse *p, const json_t *root)
{
    if (!json_is_object(root))
        return parse_fail_type(p, "the job", "an object", root);
    TRY(parse_custom_id(p, json_object_get(root, "custom_id")));
    if (json_object_get(root, "body"))
        return parse_openai_line(p, root);
    const char *foreign = foreign_dialect(root);
    if (foreign)
        return parse_fail(p, "unsupported_dialect", "",
                          "this is %s; supported are the native line (question, documents) and "
                          "OpenAI batch lines (custom_id, body)",
                          foreign);
    if (has_key(root, "prompt") && !has_key(root, "question"))
        return parse_openai_body(p, root, false);
    if (is_native(root))
        return parse_native(p, root);
    if (has_key(root, "messages"))
        return parse_openai_body(p, root, false);
    return parse_fail(p, "invalid_request", "",
                      "no kind of job has these fields; expected are question (native), body "
                      "(OpenAI batch line), or messages or prompt (bare body)");
}

static bool has_documents_without_user(const struct job *job)
{
    for (size_t i = 0; i < job->n_messages; i++)
        if (job->messages[i].role == JOB_USER)
            return false;
    return job->n_documents > 0;
}

static int parse_text(struct parse *p, const char *bytes, size_t length, size_t skipped)
{
    json_t *root = NULL;
    struct json_fault fault = {0};
    int code = json_load_text(bytes, length, &root, &fault, p->e);
    if (code == ERR_INVALID)
        return fail_at(p, fault.code, skipped + fault.offset, fault.text);
    TRY(code);
    code = parse_root(p, root);
    json_decref(root);
    TRY(code);
    if (has_documents_without_user(p->job))
        return parse_fail(p, "invalid_request", "messages",
                          "documents need a user message that asks about them");
    return 0;
}

static bool has_pattern(const char *bytes, size_t length, bool zero_first)
{
    for (size_t i = 0; i < 4; i++)
        if (i >= length || (bytes[i] == '\0') != (zero_first == (i % 2 == 0)))
            return false;
    return true;
}

/* A reader that splits at 0A cuts UTF-16 LE lines one byte late, so that all but the first line
 * look like BE; the order is named only where it is known. */
static const char *utf16_name(const struct job *job, const char *bytes, size_t length)
{
    if (length >= 2 && memcmp(bytes, "\xff\xfe", 2) == 0)
        return "UTF-16 (little endian)";
    if (length >= 2 && memcmp(bytes, "\xfe\xff", 2) == 0)
        return "UTF-16 (big endian)";
    const bool whole = !job->source.is_file || job->source.offset <= 1;
    if (has_pattern(bytes, length, false))
        return whole ? "UTF-16 (little endian)" : "UTF-16";
    if (has_pattern(bytes, length, true))
        return whole ? "UTF-16 (big endian)" : "UTF-16";
    return NULL;
}

static int salvage_id(struct parse *p, const char *bytes, const struct json_scan *scan)
{
    return scan->has_id ? set_id(p, bytes + scan->id_offset, scan->id_length) : 0;
}

static int parse_too_long(struct parse *p, const char *bytes, size_t length)
{
    struct json_scan scan;
    json_scan_text(bytes, SALVAGE_BYTES, &scan);
    TRY(salvage_id(p, bytes, &scan));
    job_fail(p->job, 413, "line_too_long", "", "the job has %zu bytes; at most %u are allowed",
             length, JOB_BYTES_MAX);
    return ERR_INVALID;
}

static int parse_bytes(struct parse *p, const char *bytes, size_t length)
{
    static const char bom[] = "\xef\xbb\xbf";
    struct json_scan scan;
    if (length > JOB_BYTES_MAX)
        return parse_too_long(p, bytes, length);
    const char *utf16 = utf16_name(p->job, bytes, length);
    if (utf16) {
        char text[96];
        snprintf(text, sizeof text, "the text is %s; jobs are UTF-8", utf16);
        return fail_at(p, "invalid_utf8", 0, text);
    }
    const size_t skipped = length >= 3 && memcmp(bytes, bom, 3) == 0 ? 3 : 0;
    json_scan_text(bytes + skipped, length - skipped, &scan);
    TRY(salvage_id(p, bytes + skipped, &scan));
    if (scan.code)
        return fail_at(p, scan.code, skipped + scan.offset, scan.text);
    return parse_text(p, bytes + skipped, length - skipped, skipped);
}

static int init_job(struct parse *p, const char *bytes, size_t length,
                    const struct job_source *source)
{
    struct job *job = p->job;
    job->source = *source;
    job->source.topic = strdup(source->topic ? source->topic : "");
    if (!job->source.topic)
        return parse_nomem(p);
    job->params.temperature = 1;
    job->params.top_p = 1;
    job->params.repetition_penalty = 1;
    job->custom_id = job_place_name(&job->source);
    if (!job->custom_id)
        return parse_nomem(p);
    if (!p->options->payload_sha256)
        return sha256_hex(bytes, length, job->payload_sha256, p->e);
    snprintf(job->payload_sha256, sizeof job->payload_sha256, "%s", p->options->payload_sha256);
    return 0;
}

int job_parse(const char *bytes, size_t length, const struct job_source *source,
              const struct job_parse_options *options, struct job **out, struct err *e)
{
    *out = NULL;
    struct job *job = calloc(1, sizeof *job);
    struct parse p = {.job = job, .options = options, .e = e};
    if (!job)
        return parse_nomem(&p);
    int code = init_job(&p, bytes, length, source);
    if (code == 0)
        code = parse_bytes(&p, bytes, length);
    if (code != 0 && code != ERR_INVALID) {
        job_free(job);
        return code;
    }
    *out = job;
    return 0;
}
