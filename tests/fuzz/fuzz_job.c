/*
 * Any bytes: parsed, laid out, and answered. Whatever comes in, a job with a name comes out,
 * and its result line is JSON without a line end in it.
 */
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "base/check.h"
#include "fuzz.h"
#include "job_parse.h"
#include "prompt.h"
#include "result.h"

static void check_prompt(const struct job *job)
{
    struct prompt p;
    if (job_has_unresolved(job))
        return;
    if (prompt_build(job, &p, NULL) != 0)
        return;
    ASSERT(p.n_messages == job->n_messages);
    ASSERT(p.n_messages == 0 || p.shared_message < p.n_messages);
    if (p.n_messages > 0)
        ASSERT(p.shared_bytes <= p.messages[p.shared_message].length);
    for (size_t i = 0; i < p.n_messages; i++)
        ASSERT(strlen(p.messages[i].text) == p.messages[i].length);
    prompt_fini(&p);
}

static void check_result_take(struct job *job)
{
    struct result *r = calloc(1, sizeof *r);
    if (!r)
        abort();
    r->job = job;
    r->status = job->error.status ? RESULT_FAILED : RESULT_SUCCEEDED;
    r->error = job->error;
    r->finish_reason = job->error.status ? NULL : "stop";
    strcpy(r->id, "batch_req_00");
    struct buf line = {0};
    struct err e = {0};
    ASSERT(result_emit(r, &line, &e) == 0);
    ASSERT(memchr(line.data, '\n', line.length) == NULL);
    json_t *value = json_loadb(line.data, line.length, JSON_REJECT_DUPLICATES, NULL);
    ASSERT(value != NULL);
    ASSERT(strcmp(json_string_value(json_object_get(value, "custom_id")), job->custom_id) == 0);
    json_decref(value);
    buf_fini(&line);
    result_free(r);
}

static void check_error(const struct job_error *error)
{
    if (error->status == 0)
        return;
    ASSERT(error->status == 400 || error->status == 413);
    ASSERT(error->code[0] != '\0');
    ASSERT(error->message[0] != '\0');
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *bytes = malloc(size ? size : 1);
    if (!bytes)
        return 0;
    memcpy(bytes, data, size);
    char topic[] = "t";
    for (int strict = 0; strict < 2; strict++) {
        const struct job_parse_options options = {.strict = strict, .max_tokens_default = 9};
        const struct job_source source = {.topic = topic, .offset = 1, .is_file = strict};
        struct job *job = NULL;
        struct err e = {0};
        ASSERT(job_parse(bytes, size, &source, &options, &job, &e) == 0);
        ASSERT(job->custom_id && job->custom_id[0] != '\0');
        check_error(&job->error);
        check_prompt(job);
        check_result_take(job);
    }
    free(bytes);
    return 0;
}
