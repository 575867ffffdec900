/* Messages and documents, the text that reaches the model; and what it may answer. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/limits.h"
#include "jobs_int.h"

int parse_add_message_take(struct parse *p, enum job_role role, char *content, size_t length)
{
    struct job *job = p->job;
    struct job_message *messages =
        realloc(job->messages, (job->n_messages + 1) * sizeof *messages);
    if (!messages) {
        free(content);
        return parse_nomem(p);
    }
    job->messages = messages;
    messages[job->n_messages++] =
        (struct job_message){.role = role, .content = content, .length = length};
    return 0;
}

static int parse_role(struct parse *p, const json_t *value, const char *path,
                      enum job_role *role)
{
    if (!value)
        return parse_fail(p, "missing_required_parameter", path, "%s is missing", path);
    if (!json_is_string(value))
        return parse_fail_type(p, path, "a string", value);
    const char *name = json_string_value(value);
    if (strcmp(name, "system") == 0 || strcmp(name, "developer") == 0)
        *role = JOB_SYSTEM;
    else if (strcmp(name, "user") == 0)
        *role = JOB_USER;
    else if (strcmp(name, "assistant") == 0)
        *role = JOB_ASSISTANT;
    else if (strcmp(name, "tool") == 0 || strcmp(name, "function") == 0)
        return parse_unsupported(p, path, "tool messages have no place without tools");
    else {
        char quoted[QUOTE_BYTES];
        parse_quote(quoted, value);
        return parse_fail(p, "invalid_value", path,
                          "%s must be system, developer, user or assistant, not %s", path,
                          quoted);
    }
    return 0;
}

/* An object whose type is the only one that is supported, which what says in other words. */
static int check_type(struct parse *p, const json_t *object, const char *path,
                      const char *wanted, const char *what)
{
    char field[PATH_BYTES];
    if (!json_is_object(object))
        return parse_fail_type(p, path, "an object", object);
    snprintf(field, sizeof field, "%.100s.type", path);
    const json_t *type = json_object_get(object, "type");
    if (!type)
        return parse_fail(p, "missing_required_parameter", field, "%s is missing", field);
    if (!json_is_string(type))
        return parse_fail_type(p, field, "a string", type);
    if (strcmp(json_string_value(type), wanted) == 0)
        return 0;
    char quoted[QUOTE_BYTES];
    parse_quote(quoted, type);
    return parse_fail(p, "unsupported_parameter", field, "%s is %s; only %s supported", field,
                      quoted, what);
}

static int parse_part(struct parse *p, const json_t *part, const char *path, struct buf *text)
{
    char field[PATH_BYTES];
    TRY(check_type(p, part, path, "text", "text parts are"));
    snprintf(field, sizeof field, "%.100s.text", path);
    const json_t *value = json_object_get(part, "text");
    if (!value)
        return parse_fail(p, "missing_required_parameter", field, "%s is missing", field);
    if (!json_is_string(value))
        return parse_fail_type(p, field, "a string", value);
    buf_append(text, json_string_value(value), json_string_length(value));
    return 0;
}

/* Text parts are joined with one line end, as vLLM does for templates that take strings. */
static int parse_parts(struct parse *p, const json_t *parts, const char *path, char **out,
                       size_t *length)
{
    struct buf text = {0};
    buf_append(&text, "", 0);
    for (size_t i = 0; i < json_array_size(parts); i++) {
        char item[PATH_BYTES];
        snprintf(item, sizeof item, "%.100s[%zu]", path, i);
        if (i > 0)
            buf_append_char(&text, '\n');
        const int code = parse_part(p, json_array_get(parts, i), item, &text);
        if (code != 0) {
            buf_fini(&text);
            return code;
        }
    }
    *length = text.length;
    *out = buf_take(&text);
    return *out ? 0 : parse_nomem(p);
}

static int parse_message_content(struct parse *p, const json_t *value, const char *path,
                                 char **out, size_t *length)
{
    if (parse_is_absent(value))
        return parse_fail(p, "missing_required_parameter", path, "%s is missing", path);
    if (json_is_array(value))
        return parse_parts(p, value, path, out, length);
    if (!json_is_string(value))
        return parse_fail_type(p, path, "a string or an array of text parts", value);
    return parse_string(p, value, path, 0, JOB_BYTES_MAX, out, length);
}

/* {"type": "content", "content": what a message's content may be} */
int parse_prediction(struct parse *p, const json_t *value, const char *path)
{
    TRY(check_type(p, value, path, "content", "content is"));
    char field[PATH_BYTES];
    const char *key;
    json_t *item;
    json_object_foreach((json_t *)value, key, item)
    {
        if (strcmp(key, "type") == 0 || strcmp(key, "content") == 0)
            continue;
        parse_path(field, "prediction.", key);
        TRY(parse_warn_unknown(p, field));
    }
    snprintf(field, sizeof field, "%.100s.content", path);
    return parse_message_content(p, json_object_get(value, "content"), field,
                                 &p->job->prediction, &p->job->prediction_length);
}

/* Fields beside role and content. */
static int check_message_fields(struct parse *p, const json_t *message, const char *path)
{
    static const char *const refused[] = {"tool_calls", "function_call", "audio", "refusal"};
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)message, key, value)
    {
        char field[PATH_BYTES];
        if (strcmp(key, "role") == 0 || strcmp(key, "content") == 0 || json_is_null(value))
            continue;
        for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
            const bool is_empty = json_is_array(value) && json_array_size(value) == 0;
            if (strcmp(key, refused[i]) != 0 || is_empty)
                continue;
            snprintf(field, sizeof field, "%.80s.%s", path, key);
            return parse_unsupported(p, field, "");
        }
        parse_path(field, "messages[].", key);
        TRY(strcmp(key, "name") == 0 ? parse_warn_ignored(p, field)
                                     : parse_warn_unknown(p, field));
    }
    return 0;
}

static int parse_message(struct parse *p, const json_t *message, const char *path)
{
    char field[PATH_BYTES];
    enum job_role role = JOB_USER;
    if (!json_is_object(message))
        return parse_fail_type(p, path, "an object", message);
    snprintf(field, sizeof field, "%.100s.role", path);
    TRY(parse_role(p, json_object_get(message, "role"), field, &role));
    TRY(check_message_fields(p, message, path));
    char *content = NULL;
    size_t length = 0;
    snprintf(field, sizeof field, "%.100s.content", path);
    TRY(parse_message_content(p, json_object_get(message, "content"), field, &content,
                              &length));
    return parse_add_message_take(p, role, content, length);
}

int parse_messages(struct parse *p, const json_t *value, const char *path)
{
    if (!json_is_array(value))
        return parse_fail_type(p, path, "an array of messages", value);
    const size_t n = json_array_size(value);
    if (n == 0)
        return parse_fail(p, "invalid_value", path, "%s must not be empty", path);
    if (n > JOB_MESSAGES_MAX)
        return parse_fail(p, "invalid_value", path, "%s has %zu items; at most %d are allowed",
                          path, n, JOB_MESSAGES_MAX);
    for (size_t i = 0; i < n; i++) {
        char item[PATH_BYTES];
        snprintf(item, sizeof item, "%.100s[%zu]", path, i);
        TRY(parse_message(p, json_array_get(value, i), item));
    }
    return 0;
}

/* Cohere's data object: every key reaches the model. "title" becomes the heading; a lone
 * "text" is the text; anything else is written as "key: value" lines in the given order. */
static int parse_document_data(struct parse *p, const json_t *data, const char *path,
                               struct job_document *document)
{
    if (!json_is_object(data))
        return parse_fail_type(p, path, "an object", data);
    const json_t *title = json_object_get(data, "title");
    const json_t *text = json_object_get(data, "text");
    const size_t n_titles = json_is_string(title) ? 1 : 0;
    if (n_titles)
        TRY(parse_string(p, title, path, 0, JOB_BYTES_MAX, &document->title, NULL));
    if (json_is_string(text) && json_object_size(data) == 1 + n_titles)
        return parse_string(p, text, path, 0, JOB_BYTES_MAX, &document->text,
                            &document->length);
    struct buf lines = {0};
    buf_append(&lines, "", 0);
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)data, key, value)
    {
        if (n_titles && value == title)
            continue;
        char *dumped = NULL;
        if (!json_is_string(value) && json_dump_text(value, &dumped, p->e) != 0) {
            buf_fini(&lines);
            return ERR_NOMEM;
        }
        buf_printf(&lines, "%s%s: ", lines.length ? "\n" : "", key);
        if (dumped)
            buf_append_str(&lines, dumped);
        else
            buf_append(&lines, json_string_value(value), json_string_length(value));
        json_free_text(dumped);
    }
    document->length = lines.length;
    document->text = buf_take(&lines);
    return document->text ? 0 : parse_nomem(p);
}

static int parse_document_id(struct parse *p, const json_t *value, const char *path,
                             struct job_document *document)
{
    if (!json_is_integer(value))
        return parse_string(p, value, path, 1, JOB_ID_BYTES_MAX, &document->id, NULL);
    document->id = malloc(24);
    if (!document->id)
        return parse_nomem(p);
    snprintf(document->id, 24, "%" JSON_INTEGER_FORMAT, json_integer_value(value));
    return 0;
}

static bool has_content(const struct job_document *document)
{
    return document->text || document->ref;
}

/* text, data or ref: the one of them that a document has. */
static int parse_document_content(struct parse *p, const char *key, const json_t *value,
                                  const char *path, struct job_document *document)
{
    if (has_content(document))
        return parse_fail(p, "invalid_request", path,
                          "%.80s: a document has text, data or ref; give one of them", path);
    if (strcmp(key, "data") == 0)
        return parse_document_data(p, value, path, document);
    if (strcmp(key, "ref") == 0)
        return parse_string(p, value, path, 1, JOB_ID_BYTES_MAX, &document->ref, NULL);
    return parse_string(p, value, path, 0, JOB_BYTES_MAX, &document->text, &document->length);
}

static int parse_document_object(struct parse *p, const json_t *object, const char *path,
                                 struct job_document *document)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)object, key, value)
    {
        char field[PATH_BYTES];
        snprintf(field, sizeof field, "%.80s.%.20s", path, key);
        if (json_is_null(value))
            continue;
        if (strcmp(key, "id") == 0) {
            TRY(parse_document_id(p, value, field, document));
        } else if (strcmp(key, "title") == 0) {
            TRY(parse_string(p, value, field, 0, JOB_BYTES_MAX, &document->title, NULL));
        } else if (strcmp(key, "text") == 0 || strcmp(key, "data") == 0 ||
                   strcmp(key, "ref") == 0) {
            TRY(parse_document_content(p, key, value, field, document));
        } else {
            parse_path(field, "documents[].", key);
            TRY(parse_warn_unknown(p, field));
        }
    }
    if (has_content(document))
        return 0;
    char field[PATH_BYTES];
    snprintf(field, sizeof field, "%.100s.text", path);
    return parse_fail(p, "missing_required_parameter", field, "%s is missing", field);
}

static int parse_document(struct parse *p, const json_t *value, const char *path,
                          struct job_document *document)
{
    if (json_is_string(value))
        return parse_string(p, value, path, 0, JOB_BYTES_MAX, &document->text,
                            &document->length);
    if (json_is_object(value))
        return parse_document_object(p, value, path, document);
    return parse_fail_type(p, path, "a string or an object", value);
}

int parse_documents(struct parse *p, const json_t *value, const char *path)
{
    struct job *job = p->job;
    if (!json_is_array(value))
        return parse_fail_type(p, path, "an array of documents", value);
    const size_t n = json_array_size(value);
    if (n > JOB_DOCUMENTS_MAX)
        return parse_fail(p, "invalid_value", path, "%s has %zu items; at most %d are allowed",
                          path, n, JOB_DOCUMENTS_MAX);
    job->documents = calloc(n + 1, sizeof *job->documents);
    if (!job->documents)
        return parse_nomem(p);
    /* A document counts once it is whole. */
    for (size_t i = 0; i < n; i++) {
        char item[PATH_BYTES];
        struct job_document document = {0};
        snprintf(item, sizeof item, "%.100s[%zu]", path, i);
        const int code = parse_document(p, json_array_get(value, i), item, &document);
        if (code != 0) {
            free(document.id);
            free(document.title);
            free(document.ref);
            free(document.text);
            return code;
        }
        job->documents[job->n_documents++] = document;
    }
    return 0;
}
