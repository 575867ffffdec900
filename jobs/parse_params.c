/*
 * Sampling and output options. Each option is one row of a table: those Sheaf has, those it
 * refuses unless they ask for nothing, those that change no answer and are passed over.
 */
#include <errno.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/limits.h"
#include "jobs_int.h"

#define FIELD(name) offsetof(struct job_params, name)

enum { NO_FIELD = -1, COMPLETION_TOKENS_DEFAULT = 16 };

struct number_rule {
    const char *name;
    size_t field;
    ptrdiff_t has_field;
    double min, max;
    bool above_min; /* min itself is outside */
};

static const struct number_rule number_rules[] = {
    {"temperature", FIELD(temperature), FIELD(has_temperature), 0, 2, false},
    {"top_p", FIELD(top_p), FIELD(has_top_p), 0, 1, true},
    {"p", FIELD(top_p), FIELD(has_top_p), 0, 1, true},
    {"min_p", FIELD(min_p), NO_FIELD, 0, 1, false},
    {"repetition_penalty", FIELD(repetition_penalty), NO_FIELD, 0, 100, true},
    {"presence_penalty", FIELD(presence_penalty), NO_FIELD, -2, 2, false},
    {"frequency_penalty", FIELD(frequency_penalty), NO_FIELD, -2, 2, false},
};

static int read_number(struct parse *p, const struct number_rule *rule, const json_t *value,
                       const char *path)
{
    if (!json_is_number(value))
        return parse_fail_type(p, path, "a number", value);
    const double number = json_number_value(value);
    const bool low = rule->above_min ? !(number > rule->min) : !(number >= rule->min);
    if (low || !(number <= rule->max)) {
        char quoted[QUOTE_BYTES];
        parse_quote(quoted, value);
        return parse_fail(p, "invalid_value", path, "%s must be %s %g and at most %g, not %s",
                          path, rule->above_min ? "above" : "at least", rule->min, rule->max,
                          quoted);
    }
    char *params = (char *)&p->job->params;
    memcpy(params + rule->field, &number, sizeof number);
    if (rule->has_field != NO_FIELD)
        *(bool *)(params + rule->has_field) = true;
    return 0;
}

static int read_max_tokens(struct parse *p, const json_t *value, const char *path)
{
    p->has_max_tokens = true;
    return parse_integer(p, value, path, 1, INT32_MAX, &p->max_tokens);
}

static int read_max_completion_tokens(struct parse *p, const json_t *value, const char *path)
{
    p->has_max_completion_tokens = true;
    return parse_integer(p, value, path, 1, INT32_MAX, &p->max_completion_tokens);
}

static int read_min_tokens(struct parse *p, const json_t *value, const char *path)
{
    return parse_integer(p, value, path, 0, INT32_MAX, &p->job->params.min_tokens);
}

/* 0 and -1 both mean off: vLLM's habit. */
static int read_top_k(struct parse *p, const json_t *value, const char *path)
{
    TRY(parse_integer(p, value, path, -1, INT32_MAX, &p->job->params.top_k));
    if (p->job->params.top_k == -1)
        p->job->params.top_k = 0;
    return 0;
}

static int read_seed(struct parse *p, const json_t *value, const char *path)
{
    p->job->params.has_seed = true;
    return parse_integer(p, value, path, INT64_MIN, INT64_MAX, &p->job->params.seed);
}

static int read_ignore_eos(struct parse *p, const json_t *value, const char *path)
{
    return parse_bool(p, value, path, &p->job->params.ignore_eos);
}

static int read_include_stop(struct parse *p, const json_t *value, const char *path)
{
    return parse_bool(p, value, path, &p->job->params.include_stop);
}

static int read_stop_tokens(struct parse *p, const json_t *value, const char *path)
{
    return parse_ids(p, value, path, JOB_STOP_TOKENS_MAX, &p->job->params.stop_tokens,
                     &p->job->params.n_stop_tokens);
}

static int add_stop(struct parse *p, const json_t *value, const char *path)
{
    struct job_params *params = &p->job->params;
    TRY(parse_string(p, value, path, 1, JOB_STOP_BYTES_MAX, &params->stops[params->n_stops],
                     NULL));
    params->n_stops++;
    return 0;
}

static int read_stop(struct parse *p, const json_t *value, const char *path)
{
    struct job_params *params = &p->job->params;
    if (!json_is_string(value) && !json_is_array(value))
        return parse_fail_type(p, path, "a string or an array of strings", value);
    if (params->stops)
        return parse_fail(p, "invalid_request", path, "stop strings are given twice");
    const size_t n = json_is_array(value) ? json_array_size(value) : 1;
    if (n > JOB_STOPS_MAX)
        return parse_fail(p, "invalid_value", path, "%s has %zu items; at most %d are allowed",
                          path, n, JOB_STOPS_MAX);
    params->stops = calloc(n + 1, sizeof *params->stops);
    if (!params->stops)
        return parse_nomem(p);
    if (json_is_string(value))
        return add_stop(p, value, path);
    for (size_t i = 0; i < n; i++) {
        char item[PATH_BYTES];
        snprintf(item, sizeof item, "%s[%zu]", path, i);
        TRY(add_stop(p, json_array_get(value, i), item));
    }
    return 0;
}

static bool read_token_id(const char *text, int32_t *id)
{
    const size_t digits = strspn(text, "0123456789");
    if (digits == 0 || digits > 10 || text[digits] != '\0')
        return false;
    const long long value = strtoll(text, NULL, 10);
    if (value > INT32_MAX)
        return false;
    *id = (int32_t)value;
    return true;
}

static int add_bias(struct parse *p, const char *key, const json_t *value, const char *path)
{
    struct job_params *params = &p->job->params;
    struct job_bias *bias = &params->bias[params->n_bias];
    if (!read_token_id(key, &bias->id)) {
        char quoted[QUOTE_BYTES];
        quote_text(quoted, key, strlen(key));
        return parse_fail(p, "invalid_value", path, "%s has the key %s, which is no token id",
                          path, quoted);
    }
    if (!json_is_number(value))
        return parse_fail_type(p, path, "a map from token ids to numbers", value);
    bias->bias = json_number_value(value);
    if (!(bias->bias >= -100 && bias->bias <= 100))
        return parse_fail(p, "invalid_value", path,
                          "%s of token %d must be between -100 and 100, not %.15g", path,
                          bias->id, bias->bias);
    params->n_bias++;
    return 0;
}

static int read_logit_bias(struct parse *p, const json_t *value, const char *path)
{
    struct job_params *params = &p->job->params;
    if (!json_is_object(value))
        return parse_fail_type(p, path, "a map from token ids to numbers", value);
    const size_t n = json_object_size(value);
    if (n > JOB_BIAS_MAX)
        return parse_fail(p, "invalid_value", path, "%s has %zu items; at most %d are allowed",
                          path, n, JOB_BIAS_MAX);
    params->bias = calloc(n + 1, sizeof *params->bias);
    if (!params->bias)
        return parse_nomem(p);
    const char *key;
    json_t *item;
    json_object_foreach((json_t *)value, key, item) TRY(add_bias(p, key, item, path));
    return 0;
}

static int read_echo(struct parse *p, const json_t *value, const char *path)
{
    TRY(parse_bool(p, value, path, &p->job->echo));
    if (p->job->echo && p->job->dialect != DIALECT_OPENAI_COMPLETION)
        return parse_unsupported(p, path, "echo is for completions");
    return 0;
}

static int read_response_format(struct parse *p, const json_t *value, const char *path)
{
    if (!json_is_object(value))
        return parse_fail_type(p, path, "an object", value);
    char type_path[PATH_BYTES];
    snprintf(type_path, sizeof type_path, "%.100s.type", path);
    const json_t *type = json_object_get(value, "type");
    if (!type)
        return parse_fail(p, "missing_required_parameter", type_path, "%s is missing",
                          type_path);
    if (!json_is_string(type))
        return parse_fail_type(p, type_path, "a string", type);
    if (strcmp(json_string_value(type), "text") != 0)
        return parse_unsupported(p, type_path, "answers are plain text (\"text\")");
    return 0;
}

static int read_modalities(struct parse *p, const json_t *value, const char *path)
{
    const json_t *first = json_array_get(value, 0);
    if (!json_is_array(value) || json_array_size(value) != 1 || !json_is_string(first) ||
        strcmp(json_string_value(first), "text") != 0)
        return parse_unsupported(p, path, "only [\"text\"] is");
    return 0;
}

static int read_stream(struct parse *p, const json_t *value, const char *path)
{
    bool stream = false;
    TRY(parse_bool(p, value, path, &stream));
    return stream ? parse_warn_ignored(p, path) : 0;
}

struct option_rule {
    const char *name;
    int (*read)(struct parse *p, const json_t *value, const char *path);
};

static const struct option_rule option_rules[] = {
    {"max_tokens", read_max_tokens},
    {"max_completion_tokens", read_max_completion_tokens},
    {"min_tokens", read_min_tokens},
    {"top_k", read_top_k},
    {"k", read_top_k},
    {"seed", read_seed},
    {"ignore_eos", read_ignore_eos},
    {"include_stop_str_in_output", read_include_stop},
    {"stop_token_ids", read_stop_tokens},
    {"stop", read_stop},
    {"stop_sequences", read_stop},
    {"logit_bias", read_logit_bias},
    {"echo", read_echo},
    {"response_format", read_response_format},
    {"modalities", read_modalities},
    {"stream", read_stream},
};

/* Options that would change the answer and are not there: refused unless the value asks for
 * nothing. null and false always do. */
enum harmless { UNLESS_EMPTY, UNLESS_ZERO, UNLESS_ONE, UNLESS_NONE };

struct refused_rule {
    const char *name;
    enum harmless harmless;
};

static const struct refused_rule refused_rules[] = {
    {"n", UNLESS_ONE},
    {"best_of", UNLESS_ONE},
    {"logprobs", UNLESS_EMPTY},
    {"top_logprobs", UNLESS_ZERO},
    {"prompt_logprobs", UNLESS_EMPTY},
    {"suffix", UNLESS_EMPTY},
    {"tools", UNLESS_EMPTY},
    {"tool_choice", UNLESS_NONE},
    {"functions", UNLESS_EMPTY},
    {"function_call", UNLESS_NONE},
    {"audio", UNLESS_EMPTY},
    {"web_search_options", UNLESS_EMPTY},
    {"chat_template", UNLESS_EMPTY},
    {"chat_template_kwargs", UNLESS_EMPTY},
    {"continue_final_message", UNLESS_EMPTY},
    {"structured_outputs", UNLESS_EMPTY},
    {"guided_json", UNLESS_EMPTY},
    {"guided_regex", UNLESS_EMPTY},
    {"guided_choice", UNLESS_EMPTY},
    {"guided_grammar", UNLESS_EMPTY},
    {"grammar", UNLESS_EMPTY},
    {"regex", UNLESS_EMPTY},
    {"choice", UNLESS_EMPTY},
    {"bad_words", UNLESS_EMPTY},
    {"use_beam_search", UNLESS_EMPTY},
    {"length_penalty", UNLESS_ONE},
    {"truncate_prompt_tokens", UNLESS_EMPTY},
    {"prompt_embeds", UNLESS_EMPTY},
};

static bool is_harmless(enum harmless harmless, const json_t *value)
{
    if (json_is_false(value) || json_is_null(value))
        return true;
    switch (harmless) {
    case UNLESS_EMPTY:
        return (json_is_array(value) && json_array_size(value) == 0) ||
               (json_is_object(value) && json_object_size(value) == 0) ||
               (json_is_string(value) && json_string_length(value) == 0);
    case UNLESS_ZERO: return json_is_integer(value) && json_integer_value(value) == 0;
    case UNLESS_ONE: return json_is_number(value) && json_number_value(value) == 1.0;
    case UNLESS_NONE:
        return json_is_string(value) && (strcmp(json_string_value(value), "none") == 0 ||
                                         strcmp(json_string_value(value), "auto") == 0);
    }
    return false;
}

/* No answer depends on these. */
static const char *const passed_names[] = {
    "user",
    "store",
    "service_tier",
    "safety_identifier",
    "stream_options",
    "prompt_cache_key",
    "prompt_cache_retention",
    "request_id",
    "parallel_tool_calls",
};

/* Hints that a model of ours does not take, not yet, or not in this place. */
static const char *const ignored_names[] = {
    "prediction", "reasoning_effort",      "verbosity",
    "thinking",   "skip_special_tokens",   "spaces_between_special_tokens",
    "priority",   "add_generation_prompt", "add_special_tokens",
};

static bool is_listed(const char *name, const char *const *names, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(name, names[i]) == 0)
            return true;
    return false;
}

#define COUNT(array) (sizeof(array) / sizeof(array)[0])

static int parse_refused(struct parse *p, const char *key, const json_t *value,
                         const char *path, bool *known)
{
    for (size_t i = 0; i < COUNT(refused_rules); i++) {
        if (strcmp(key, refused_rules[i].name) != 0)
            continue;
        *known = true;
        if (is_harmless(refused_rules[i].harmless, value))
            return 0;
        return parse_unsupported(p, path,
                                 refused_rules[i].harmless == UNLESS_ONE ? "it must be 1" : "");
    }
    *known = false;
    return 0;
}

int parse_param(struct parse *p, const char *key, const json_t *value, const char *path,
                bool *known)
{
    *known = true;
    for (size_t i = 0; i < COUNT(number_rules); i++)
        if (strcmp(key, number_rules[i].name) == 0)
            return json_is_null(value) ? 0 : read_number(p, &number_rules[i], value, path);
    for (size_t i = 0; i < COUNT(option_rules); i++)
        if (strcmp(key, option_rules[i].name) == 0)
            return json_is_null(value) ? 0 : option_rules[i].read(p, value, path);
    if (is_listed(key, passed_names, COUNT(passed_names)))
        return 0;
    if (is_listed(key, ignored_names, COUNT(ignored_names)))
        return json_is_null(value) ? 0 : parse_warn_ignored(p, path);
    return parse_refused(p, key, value, path, known);
}

/* Both names may be given when they agree. */
static int settle_max_tokens(struct parse *p, const char *prefix)
{
    struct job_params *params = &p->job->params;
    if (p->has_max_tokens && p->has_max_completion_tokens &&
        p->max_tokens != p->max_completion_tokens) {
        char path[PATH_BYTES];
        parse_path(path, prefix, "max_completion_tokens");
        return parse_fail(p, "invalid_request", path,
                          "max_tokens is %lld and max_completion_tokens is %lld; give one, or "
                          "the same for both",
                          (long long)p->max_tokens, (long long)p->max_completion_tokens);
    }
    params->max_tokens = p->has_max_tokens ? p->max_tokens : p->max_completion_tokens;
    if (params->max_tokens != 0)
        return 0;
    params->max_tokens = p->job->dialect == DIALECT_OPENAI_COMPLETION
                             ? COMPLETION_TOKENS_DEFAULT
                             : p->options->max_tokens_default;
    return 0;
}

int parse_params_finish(struct parse *p, const char *prefix)
{
    struct job_params *params = &p->job->params;
    TRY(settle_max_tokens(p, prefix));
    if (params->max_tokens != 0 && params->min_tokens > params->max_tokens) {
        char path[PATH_BYTES];
        parse_path(path, prefix, "min_tokens");
        return parse_fail(p, "invalid_value", path,
                          "%s is %lld, more than the %lld tokens that max_tokens allows", path,
                          (long long)params->min_tokens, (long long)params->max_tokens);
    }
    if (!params->has_temperature)
        params->temperature = p->job->dialect == DIALECT_NATIVE ? 0 : 1;
    return 0;
}
