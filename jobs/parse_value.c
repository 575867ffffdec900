#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/limits.h"
#include "jobs_int.h"
#include "utf8.h"

enum { WARNINGS_BYTES_MAX = 1024 };

int parse_nomem(const struct parse *p)
{
    return ERR_SET(p->e, ERR_NOMEM, "out of memory for a job");
}

int parse_fail(struct parse *p, const char *code, const char *path, const char *format, ...)
{
    char message[ERR_TEXT_BYTES];
    va_list args;
    va_start(args, format);
    vsnprintf(message, sizeof message, format, args);
    va_end(args);
    job_fail(p->job, 400, code, path, "%s", message);
    return ERR_INVALID;
}

static const char *type_name(const json_t *value)
{
    switch (json_typeof(value)) {
    case JSON_OBJECT: return "an object";
    case JSON_ARRAY: return "an array";
    case JSON_STRING: return "a string";
    case JSON_INTEGER: return "an integer";
    case JSON_REAL: return "a number with a fraction or exponent";
    case JSON_TRUE:
    case JSON_FALSE: return "a boolean";
    case JSON_NULL: return "null";
    }
    return "something else";
}

int parse_fail_type(struct parse *p, const char *path, const char *wanted, const json_t *value)
{
    return parse_fail(p, "invalid_type", path, "%s must be %s, not %s", path, wanted,
                      type_name(value));
}

int parse_unsupported(struct parse *p, const char *path, const char *why)
{
    return parse_fail(p, "unsupported_parameter", path, "%s is not supported%s%s", path,
                      *why ? ": " : "", why);
}

/* Warnings are a list of paths, each once; a job cannot make it grow without end. */
static int add_warning(struct parse *p, const char *path)
{
    char *old = p->job->warnings;
    const size_t old_length = old ? strlen(old) : 0;
    const size_t length = strlen(path);
    for (const char *at = old; at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL)
        if (strncmp(at, path, length) == 0 && (at[length] == ',' || at[length] == '\0'))
            return 0;
    if (old_length + length + 2 > WARNINGS_BYTES_MAX)
        return 0;
    char *all = realloc(old, old_length + length + 2);
    if (!all)
        return parse_nomem(p);
    if (old_length)
        all[old_length] = ',';
    memcpy(all + old_length + (old_length ? 1 : 0), path, length + 1);
    p->job->warnings = all;
    return 0;
}

int parse_warn_ignored(struct parse *p, const char *path)
{
    if (p->options->strict)
        return parse_unsupported(p, path, "it would be ignored");
    return add_warning(p, path);
}

int parse_warn_unknown(struct parse *p, const char *path)
{
    if (p->options->strict)
        return parse_fail(p, "unknown_parameter", path, "%s is not a known field", path);
    return add_warning(p, path);
}

/* Appends the character or byte at *at in readable form, if it fits. */
static bool append_quoted(char *out, size_t size, size_t *used, const char *bytes,
                          size_t length, size_t *at)
{
    bool valid = false;
    size_t n = utf8_measure_char(bytes + *at, length - *at, &valid);
    const unsigned char c = (unsigned char)bytes[*at];
    char escaped[8];
    const char *piece = bytes + *at;
    size_t piece_length = n;
    if (!valid || c < 0x20 || c == 0x7f || c == '"' || c == '\\') {
        n = 1;
        piece_length = (size_t)snprintf(escaped, sizeof escaped,
                                        c == '"' || c == '\\' ? "\\%c" : "\\x%02x", c);
        piece = escaped;
    }
    if (*used + piece_length >= size)
        return false;
    memcpy(out + *used, piece, piece_length);
    *used += piece_length;
    *at += n;
    return true;
}

void quote_text(char out[QUOTE_BYTES], const char *bytes, size_t length)
{
    size_t used = 0;
    size_t at = 0;
    out[used++] = '"';
    while (at < length && at < QUOTE_TEXT_BYTES &&
           append_quoted(out, QUOTE_BYTES - 6, &used, bytes, length, &at)) {
    }
    snprintf(out + used, QUOTE_BYTES - used, "%s\"", at < length ? "..." : "");
}

void parse_quote(char out[QUOTE_BYTES], const json_t *value)
{
    if (json_is_string(value))
        quote_text(out, json_string_value(value), json_string_length(value));
    else if (json_is_integer(value))
        snprintf(out, QUOTE_BYTES, "%" JSON_INTEGER_FORMAT, json_integer_value(value));
    else if (json_is_real(value))
        snprintf(out, QUOTE_BYTES, "%.15g", json_real_value(value));
    else if (json_is_boolean(value))
        snprintf(out, QUOTE_BYTES, "%s", json_is_true(value) ? "true" : "false");
    else
        snprintf(out, QUOTE_BYTES, "%s", type_name(value));
}

/* Keys with letters no field of ours has are quoted; commas would split the warnings. */
void parse_path(char path[PATH_BYTES], const char *prefix, const char *key)
{
    const size_t plain = strspn(key, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                     "0123456789_-");
    if (plain > 0 && key[plain] == '\0' && plain <= QUOTE_TEXT_BYTES) {
        snprintf(path, PATH_BYTES, "%s%s", prefix, key);
        return;
    }
    char quoted[QUOTE_BYTES];
    size_t n = 0;
    for (; key[n] && n < QUOTE_TEXT_BYTES / 2; n++)
        quoted[n] =
            key[n] >= ' ' && key[n] < 0x7f && key[n] != ',' && key[n] != '"' ? key[n] : '?';
    quoted[n] = '\0';
    snprintf(path, PATH_BYTES, "%s\"%s%s\"", prefix, quoted, key[n] ? "..." : "");
}

bool parse_is_absent(const json_t *value)
{
    return !value || json_is_null(value);
}

int parse_string(struct parse *p, const json_t *value, const char *path, size_t bytes_min,
                 size_t bytes_max, char **out, size_t *length)
{
    if (!json_is_string(value))
        return parse_fail_type(p, path, "a string", value);
    const size_t n = json_string_length(value);
    if (n < bytes_min)
        return parse_fail(p, "invalid_value", path, "%s must not be empty", path);
    if (n > bytes_max)
        return parse_fail(p, "invalid_value", path, "%s has %zu bytes; at most %zu are allowed",
                          path, n, bytes_max);
    char *copy = malloc(n + 1);
    if (!copy)
        return parse_nomem(p);
    memcpy(copy, json_string_value(value), n);
    copy[n] = '\0';
    free(*out);
    *out = copy;
    if (length)
        *length = n;
    return 0;
}

int parse_integer(struct parse *p, const json_t *value, const char *path, int64_t min,
                  int64_t max, int64_t *out)
{
    if (!json_is_integer(value))
        return parse_fail_type(p, path, "an integer", value);
    const int64_t number = json_integer_value(value);
    if (number < min || number > max)
        return parse_fail(p, "invalid_value", path,
                          "%s must be between %lld and %lld, not %lld", path, (long long)min,
                          (long long)max, (long long)number);
    *out = number;
    return 0;
}

int parse_bool(struct parse *p, const json_t *value, const char *path, bool *out)
{
    if (!json_is_boolean(value))
        return parse_fail_type(p, path, "a boolean", value);
    *out = json_is_true(value);
    return 0;
}

int parse_ids(struct parse *p, const json_t *value, const char *path, size_t n_max,
              int32_t **out, size_t *n)
{
    if (!json_is_array(value))
        return parse_fail_type(p, path, "an array of token ids", value);
    const size_t size = json_array_size(value);
    if (size > n_max)
        return parse_fail(p, "invalid_value", path, "%s has %zu items; at most %zu are allowed",
                          path, size, n_max);
    int32_t *ids = calloc(size + 1, sizeof *ids);
    if (!ids)
        return parse_nomem(p);
    for (size_t i = 0; i < size; i++) {
        char item[PATH_BYTES];
        int64_t id = 0;
        snprintf(item, sizeof item, "%s[%zu]", path, i);
        const int code = parse_integer(p, json_array_get(value, i), item, 0, INT32_MAX, &id);
        if (code != 0) {
            free(ids);
            return code;
        }
        ids[i] = (int32_t)id;
    }
    free(*out);
    *out = ids;
    *n = size;
    return 0;
}
