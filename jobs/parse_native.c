/* The native RAG line: schema/job.schema.json. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/limits.h"
#include "jobs_int.h"

enum { METADATA_KEY_BYTES = 64, METADATA_VALUE_BYTES = 512, US_PER_S = 1000000 };

static const double deadline_s_max = 253402300799.0; /* the last second of the year 9999 */

int parse_metadata(struct parse *p, const json_t *value, const char *path)
{
    if (!json_is_object(value))
        return parse_fail_type(p, path, "an object", value);
    if (json_object_size(value) > JOB_METADATA_PAIRS)
        return parse_fail(p, "invalid_value", path, "%s has %zu pairs; at most %d are allowed",
                          path, json_object_size(value), JOB_METADATA_PAIRS);
    const char *key;
    json_t *item;
    json_object_foreach((json_t *)value, key, item)
    {
        if (strlen(key) > METADATA_KEY_BYTES)
            return parse_fail(p, "invalid_value", path,
                              "%s has a key of %zu bytes; at most %d are allowed", path,
                              strlen(key), METADATA_KEY_BYTES);
        if (json_is_string(item) && json_string_length(item) > METADATA_VALUE_BYTES)
            return parse_fail(p, "invalid_value", path,
                              "%s has a value of %zu bytes; at most %d are allowed", path,
                              json_string_length(item), METADATA_VALUE_BYTES);
    }
    TRY(json_dump_text(value, &p->job->metadata, p->e));
    if (strlen(p->job->metadata) > JOB_METADATA_BYTES_MAX)
        return parse_fail(p, "invalid_value", path,
                          "%s has %zu bytes as JSON; at most %d are passed through", path,
                          strlen(p->job->metadata), JOB_METADATA_BYTES_MAX);
    return 0;
}

static int parse_expect(struct parse *p, const json_t *value, const char *path)
{
    bool good = json_is_string(value) || (json_is_array(value) && json_array_size(value) > 0);
    for (size_t i = 0; good && json_is_array(value) && i < json_array_size(value); i++)
        good = json_is_string(json_array_get(value, i));
    if (!good)
        return parse_fail_type(p, path, "a string or an array of strings", value);
    return json_dump_text(value, &p->job->expect, p->e);
}

/* n decimal digits at *at, or -1. */
static int take_digits(const char **at, int n)
{
    int value = 0;
    for (int i = 0; i < n; i++, (*at)++) {
        if (**at < '0' || **at > '9')
            return -1;
        value = value * 10 + (**at - '0');
    }
    return value;
}

static bool take_char(const char **at, const char *any)
{
    if (**at == '\0' || !strchr(any, **at))
        return false;
    (*at)++;
    return true;
}

/* .digits after the seconds, microseconds kept. */
static bool take_fraction(const char **at, int64_t *us)
{
    *us = 0;
    if (!take_char(at, "."))
        return true;
    int64_t unit = US_PER_S / 10;
    if (**at < '0' || **at > '9')
        return false;
    for (; **at >= '0' && **at <= '9'; (*at)++, unit /= 10)
        *us += (**at - '0') * unit;
    return true;
}

static bool take_zone(const char **at, int64_t *offset_s)
{
    *offset_s = 0;
    if (take_char(at, "Zz"))
        return true;
    const int sign = **at == '-' ? -1 : 1;
    if (!take_char(at, "+-"))
        return false;
    const int hours = take_digits(at, 2);
    if (hours < 0 || hours > 23 || !take_char(at, ":"))
        return false;
    const int minutes = take_digits(at, 2);
    if (minutes < 0 || minutes > 59)
        return false;
    *offset_s = sign * (hours * 3600 + minutes * 60);
    return true;
}

/* RFC 3339: 2026-03-01T06:30:00.5+01:00 */
static bool read_rfc3339(const char *text, int64_t *us)
{
    struct tm tm = {0};
    const int year = take_digits(&text, 4);
    bool good = year >= 1970 && take_char(&text, "-");
    good = good && (tm.tm_mon = take_digits(&text, 2) - 1) >= 0 && take_char(&text, "-");
    good = good && (tm.tm_mday = take_digits(&text, 2)) >= 1 && take_char(&text, "Tt ");
    good = good && (tm.tm_hour = take_digits(&text, 2)) >= 0 && take_char(&text, ":");
    good = good && (tm.tm_min = take_digits(&text, 2)) >= 0 && take_char(&text, ":");
    good = good && (tm.tm_sec = take_digits(&text, 2)) >= 0;
    int64_t fraction = 0, offset_s = 0;
    good = good && take_fraction(&text, &fraction) && take_zone(&text, &offset_s);
    if (!good || *text != '\0' || tm.tm_hour > 23 || tm.tm_min > 59 || tm.tm_sec > 60)
        return false;
    tm.tm_year = year - 1900;
    const struct tm asked = tm;
    const time_t seconds = timegm(&tm);
    /* timegm moves 30 February on to March. */
    if (tm.tm_mon != asked.tm_mon && asked.tm_sec < 60)
        return false;
    *us = ((int64_t)seconds - offset_s) * US_PER_S + fraction;
    return *us > 0;
}

static int parse_deadline(struct parse *p, const json_t *value, const char *path)
{
    if (json_is_number(value)) {
        const double seconds = json_number_value(value);
        if (seconds > 0 && seconds <= deadline_s_max) {
            p->job->deadline_us = json_is_integer(value)
                                      ? (int64_t)json_integer_value(value) * US_PER_S
                                      : (int64_t)(seconds * US_PER_S);
            return 0;
        }
    } else if (json_is_string(value)) {
        if (read_rfc3339(json_string_value(value), &p->job->deadline_us))
            return 0;
    } else {
        return parse_fail_type(p, path, "Unix seconds or an RFC 3339 time", value);
    }
    char quoted[QUOTE_BYTES];
    parse_quote(quoted, value);
    return parse_fail(p, "invalid_value", path,
                      "%s must be Unix seconds up to the year 9999 or an RFC 3339 time, not %s",
                      path, quoted);
}

static int parse_run_id(struct parse *p, const json_t *value, const char *path)
{
    const char *earlier = p->job->run_id;
    if (earlier && json_is_string(value) && strcmp(earlier, json_string_value(value)) != 0)
        return parse_fail(p, "invalid_request", path, "run_id and batch_id differ; give one");
    return parse_string(p, value, path, 1, JOB_ID_BYTES_MAX, &p->job->run_id, NULL);
}

/* An empty salt is none. */
int parse_cache_salt(struct parse *p, const json_t *value, const char *path)
{
    char **salt = &p->job->cache_salt;
    TRY(parse_string(p, value, path, 0, JOB_SALT_BYTES_MAX, salt, NULL));
    if (**salt == '\0') {
        free(*salt);
        *salt = NULL;
    }
    return 0;
}

static int parse_native_params(struct parse *p, const json_t *value, const char *path)
{
    if (!json_is_object(value))
        return parse_fail_type(p, path, "an object", value);
    const char *key;
    json_t *item;
    json_object_foreach((json_t *)value, key, item)
    {
        char field[PATH_BYTES];
        bool known = false;
        parse_path(field, "params.", key);
        /* A salt in the wrong place must not be lost without a word. */
        if (strcmp(key, "cache_salt") == 0)
            return parse_unsupported(p, field, "it stands beside params");
        TRY(parse_param(p, key, item, field, &known));
        if (!known)
            TRY(parse_warn_unknown(p, field));
    }
    return 0;
}

static int parse_system(struct parse *p, const json_t *value, const char *path)
{
    char *content = NULL;
    size_t length = 0;
    TRY(parse_string(p, value, path, 0, JOB_BYTES_MAX, &content, &length));
    return parse_add_message_take(p, JOB_SYSTEM, content, length);
}

static int parse_question(struct parse *p, const json_t *value, const char *path)
{
    char *content = NULL;
    size_t length = 0;
    TRY(parse_string(p, value, path, 1, JOB_BYTES_MAX, &content, &length));
    return parse_add_message_take(p, JOB_USER, content, length);
}

static int parse_prediction_text(struct parse *p, const json_t *value, const char *path)
{
    return parse_string(p, value, path, 0, JOB_BYTES_MAX, &p->job->prediction,
                        &p->job->prediction_length);
}

static int parse_priority(struct parse *p, const json_t *value, const char *path)
{
    return parse_integer(p, value, path, INT64_MIN, INT64_MAX, &p->job->priority);
}

static int parse_model(struct parse *p, const json_t *value, const char *path)
{
    return parse_string(p, value, path, 1, JOB_ID_BYTES_MAX, &p->job->model, NULL);
}

static int parse_response_format(struct parse *p, const json_t *value, const char *path)
{
    bool known = false;
    return parse_param(p, "response_format", value, path, &known);
}

/* In the order in which they are read: the system text comes before the question. */
static const struct {
    const char *name;
    int (*read)(struct parse *p, const json_t *value, const char *path);
} fields[] = {
    {"run_id", parse_run_id},         {"batch_id", parse_run_id},
    {"model", parse_model},           {"metadata", parse_metadata},
    {"priority", parse_priority},     {"deadline", parse_deadline},
    {"expect", parse_expect},         {"prediction", parse_prediction_text},
    {"params", parse_native_params},  {"response_format", parse_response_format},
    {"cache_salt", parse_cache_salt}, {"system", parse_system},
    {"documents", parse_documents},   {"messages", parse_messages},
    {"question", parse_question},
};
enum { N_FIELDS = sizeof fields / sizeof fields[0] };

static int check_native_names(struct parse *p, const json_t *root)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)root, key, value)
    {
        bool known = strcmp(key, "custom_id") == 0;
        for (size_t i = 0; i < N_FIELDS && !known; i++)
            known = strcmp(key, fields[i].name) == 0;
        if (known)
            continue;
        char path[PATH_BYTES];
        parse_path(path, "", key);
        TRY(parse_warn_unknown(p, path));
    }
    return 0;
}

int parse_native(struct parse *p, const json_t *root)
{
    p->job->dialect = DIALECT_NATIVE;
    const bool has_question = !parse_is_absent(json_object_get(root, "question"));
    const bool has_messages = !parse_is_absent(json_object_get(root, "messages"));
    if (has_question && has_messages)
        return parse_fail(p, "invalid_request", "question",
                          "question and messages are both given; give one");
    if (!has_question && !has_messages)
        return parse_fail(p, "missing_required_parameter", "question", "question is missing");
    TRY(check_native_names(p, root));
    for (size_t i = 0; i < N_FIELDS; i++) {
        const json_t *value = json_object_get(root, fields[i].name);
        if (!parse_is_absent(value))
            TRY(fields[i].read(p, value, fields[i].name));
    }
    return parse_params_finish(p, "params.");
}
