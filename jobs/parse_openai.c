/*
 * OpenAI batch lines and bare request bodies.
 *
 *   {"custom_id", "method": "POST", "url", "body": {...}}   OpenAI, Azure, vLLM
 *   {"custom_id", "body": {...}}                            Mistral, Fireworks
 *   {...}                                                   the body alone
 */
#include <stdio.h>
#include <string.h>

#include "base/limits.h"
#include "jobs_int.h"

static const char chat_url[] = "/v1/chat/completions";
static const char completion_url[] = "/v1/completions";

static int parse_url(struct parse *p, const json_t *value)
{
    static const char *const chat_urls[] = {chat_url, "/chat/completions"};
    static const char *const completion_urls[] = {completion_url, "/completions"};
    TRY(parse_string(p, value, "url", 1, JOB_ID_BYTES_MAX, &p->job->url, NULL));
    for (size_t i = 0; i < 2; i++) {
        if (strcmp(p->job->url, chat_urls[i]) == 0) {
            p->job->dialect = DIALECT_OPENAI_CHAT;
            return 0;
        }
        if (strcmp(p->job->url, completion_urls[i]) == 0) {
            p->job->dialect = DIALECT_OPENAI_COMPLETION;
            return 0;
        }
    }
    char quoted[QUOTE_BYTES];
    parse_quote(quoted, value);
    return parse_fail(p, "invalid_value", "url", "url must be %s or %s, not %s", chat_url,
                      completion_url, quoted);
}

static int parse_method(struct parse *p, const json_t *value)
{
    if (json_is_string(value) && strcmp(json_string_value(value), "POST") == 0)
        return 0;
    char quoted[QUOTE_BYTES];
    parse_quote(quoted, value);
    return parse_fail(p, "invalid_value", "method", "method must be \"POST\", not %s", quoted);
}

static int check_line_names(struct parse *p, const json_t *root)
{
    static const char *const known[] = {"custom_id", "method", "url", "body"};
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)root, key, value)
    {
        bool found = false;
        for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
            found = found || strcmp(key, known[i]) == 0;
        if (found)
            continue;
        char path[PATH_BYTES];
        parse_path(path, "line.", key);
        TRY(parse_warn_unknown(p, path));
    }
    return 0;
}

/* The body decides; a url that says otherwise is an error. */
static int settle_dialect(struct parse *p, const json_t *body, bool has_url)
{
    const bool has_messages = !parse_is_absent(json_object_get(body, "messages"));
    const bool has_prompt = !parse_is_absent(json_object_get(body, "prompt"));
    struct job *job = p->job;
    const bool wants_prompt = has_url && job->dialect == DIALECT_OPENAI_COMPLETION;
    if (has_messages && has_prompt)
        return parse_fail(p, "invalid_request", "prompt",
                          "messages and prompt are both given; give one");
    if (!has_messages && !has_prompt) {
        const char *name = wants_prompt ? "prompt" : "messages";
        if (!has_url)
            job->dialect = DIALECT_OPENAI_CHAT;
        return parse_fail(p, "missing_required_parameter", name, "%s is missing", name);
    }
    if (has_url && has_prompt != wants_prompt)
        return parse_fail(p, "url_mismatch", "url", "the url is for %s, the body has %s",
                          wants_prompt ? "completions" : "chat completions",
                          has_prompt ? "prompt" : "messages");
    job->dialect = has_prompt ? DIALECT_OPENAI_COMPLETION : DIALECT_OPENAI_CHAT;
    return 0;
}

static int set_default_url(struct parse *p)
{
    if (p->job->url)
        return 0;
    p->job->url = strdup(p->job->dialect == DIALECT_OPENAI_CHAT ? chat_url : completion_url);
    return p->job->url ? 0 : parse_nomem(p);
}

/* A prompt is text or token ids; a list of one of either is the same. */
static int parse_prompt(struct parse *p, const json_t *value, const char *path)
{
    struct job *job = p->job;
    const json_t *first = json_array_get(value, 0);
    if (json_is_array(value) && !first)
        return parse_fail(p, "invalid_value", path, "%s must not be empty", path);
    if (json_is_string(first) || json_is_array(first)) {
        if (json_array_size(value) > 1)
            return parse_unsupported(p, path, "one prompt a job; send each on its own line");
        if (json_is_array(first) && json_array_size(first) == 0)
            return parse_fail(p, "invalid_value", path, "%s must not be empty", path);
        value = first;
    }
    if (json_is_string(value))
        return parse_string(p, value, path, 0, JOB_BYTES_MAX, &job->prompt,
                            &job->prompt_length);
    if (json_is_array(value))
        return parse_ids(p, value, path, JOB_BYTES_MAX, &job->prompt_tokens,
                         &job->n_prompt_tokens);
    return parse_fail_type(p, path, "a string or an array of token ids", value);
}

static int parse_body_field(struct parse *p, const char *key, const json_t *value)
{
    struct job *job = p->job;
    if (strcmp(key, "messages") == 0)
        return parse_is_absent(value) ? 0 : parse_messages(p, value, "messages");
    if (strcmp(key, "prompt") == 0)
        return parse_is_absent(value) ? 0 : parse_prompt(p, value, "prompt");
    if (strcmp(key, "model") == 0)
        return parse_is_absent(value)
                   ? 0
                   : parse_string(p, value, "model", 1, JOB_ID_BYTES_MAX, &job->model, NULL);
    if (strcmp(key, "metadata") == 0)
        return parse_is_absent(value) ? 0 : parse_metadata(p, value, "metadata");
    if (strcmp(key, "cache_salt") == 0)
        return parse_is_absent(value) ? 0 : parse_cache_salt(p, value, "cache_salt");
    if (strcmp(key, "prediction") == 0 && job->dialect == DIALECT_OPENAI_CHAT)
        return parse_is_absent(value) ? 0 : parse_prediction(p, value, "prediction");
    if (strcmp(key, "documents") == 0 && job->dialect == DIALECT_OPENAI_CHAT)
        return parse_is_absent(value) ? 0 : parse_documents(p, value, "documents");
    if (strcmp(key, "documents") == 0)
        return parse_unsupported(p, "documents", "a completion takes its prompt only");
    char path[PATH_BYTES];
    bool known = false;
    parse_path(path, "", key);
    TRY(parse_param(p, key, value, path, &known));
    return known ? 0 : parse_warn_unknown(p, path);
}

int parse_openai_body(struct parse *p, const json_t *body, bool is_line)
{
    struct job *job = p->job;
    TRY(settle_dialect(p, body, job->url != NULL));
    TRY(set_default_url(p));
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)body, key,
                        value) if (is_line || strcmp(key, "custom_id") != 0)
        TRY(parse_body_field(p, key, value));
    if (job->echo && job->prompt_tokens)
        return parse_unsupported(p, "echo", "not with a prompt of token ids");
    return parse_params_finish(p, "");
}

int parse_openai_line(struct parse *p, const json_t *root)
{
    p->job->dialect = DIALECT_OPENAI_CHAT;
    const json_t *method = json_object_get(root, "method");
    const json_t *url = json_object_get(root, "url");
    const json_t *body = json_object_get(root, "body");
    /* The url first: an error still answers in the right dialect. */
    if (!parse_is_absent(url))
        TRY(parse_url(p, url));
    if (!parse_is_absent(method))
        TRY(parse_method(p, method));
    if (!json_is_object(body))
        return parse_fail_type(p, "body", "an object", body);
    TRY(check_line_names(p, root));
    return parse_openai_body(p, body, true);
}
