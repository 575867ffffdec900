#include "document.h"

#include <stdlib.h>
#include <string.h>

#include "base/limits.h"
#include "jobs_int.h"
#include "json_scan.h"
#include "utf8.h"

static const char bom[] = "\xef\xbb\xbf";

static size_t bom_length(const char *bytes, size_t length)
{
    return length >= 3 && memcmp(bytes, bom, 3) == 0 ? 3 : 0;
}

static int nomem(struct err *e)
{
    return ERR_SET(e, ERR_NOMEM, "out of memory for a document");
}

static int check_size(size_t length, struct err *e)
{
    if (length <= JOB_BYTES_MAX)
        return 0;
    return ERR_SET(e, ERR_LIMIT, "it has %zu bytes; at most %u are allowed", length,
                   JOB_BYTES_MAX);
}

static int check_text(const char *bytes, size_t length, struct err *e)
{
    for (size_t at = 0; at < length;) {
        bool valid = false;
        if (bytes[at] == '\0')
            return ERR_SET(e, ERR_FORMAT, "byte %zu is a NUL", at);
        at += utf8_measure_char(bytes + at, length - at, &valid);
        if (!valid)
            return ERR_SET(e, ERR_FORMAT, "byte %zu is not UTF-8", at);
    }
    return 0;
}

static int copy_text(const char *bytes, size_t length, char **out, struct err *e)
{
    *out = malloc(length + 1);
    if (!*out)
        return nomem(e);
    memcpy(*out, bytes, length);
    (*out)[length] = '\0';
    return 0;
}

static int copy_string(const json_t *value, char **out, size_t *length, struct err *e)
{
    if (length)
        *length = json_string_length(value);
    return copy_text(json_string_value(value), json_string_length(value), out, e);
}

/* Jansson has seen to UTF-8 and NULs. */
static int read_object(const json_t *root, struct document *out, struct err *e)
{
    const json_t *title = json_object_get(root, "title");
    const json_t *text = json_object_get(root, "text");
    if (!json_is_string(text))
        return ERR_SET(e, ERR_FORMAT, "text is missing, or is not a string");
    if (!parse_is_absent(title) && !json_is_string(title))
        return ERR_SET(e, ERR_FORMAT, "title is not a string");
    if (json_is_string(title))
        TRY(copy_string(title, &out->title, NULL, e));
    return copy_string(text, &out->text, &out->length, e);
}

static int read_line(const json_t *root, struct document *out, struct err *e)
{
    const json_t *id = json_object_get(root, "id");
    if (!json_is_object(root))
        return ERR_SET(e, ERR_FORMAT, "it is not a JSON object");
    if (!json_is_string(id) || json_string_length(id) == 0 ||
        json_string_length(id) > JOB_ID_BYTES_MAX)
        return ERR_SET(e, ERR_FORMAT, "id is not a string of 1 to %d bytes", JOB_ID_BYTES_MAX);
    TRY(copy_string(id, &out->id, NULL, e));
    return read_object(root, out, e);
}

static int load(const char *bytes, size_t length, json_t **root, struct err *e)
{
    struct json_scan scan;
    struct json_fault fault = {0};
    json_scan_text(bytes, length, &scan);
    if (scan.code)
        return ERR_SET(e, ERR_FORMAT, "byte %zu: %s", scan.offset, scan.text);
    const int rc = json_load_text(bytes, length, root, &fault, e);
    if (rc == ERR_INVALID)
        return ERR_SET(e, ERR_FORMAT, "byte %zu: %s", fault.offset, fault.text);
    return rc;
}

int document_parse_line(const char *bytes, size_t length, struct document *out, struct err *e)
{
    *out = (struct document){0};
    TRY(check_size(length, e));
    const size_t skipped = bom_length(bytes, length);
    json_t *root = NULL;
    TRY(load(bytes + skipped, length - skipped, &root, e));
    const int rc = read_line(root, out, e);
    json_decref(root);
    if (rc != 0)
        document_fini(out);
    return rc;
}

int document_parse_text(const char *bytes, size_t length, struct document *out, struct err *e)
{
    *out = (struct document){0};
    TRY(check_size(length, e));
    const size_t skipped = bom_length(bytes, length);
    TRY(check_text(bytes, length, e));
    out->length = length - skipped;
    return copy_text(bytes + skipped, out->length, &out->text, e);
}

int document_parse_value(const char *bytes, size_t length, struct document *out, struct err *e)
{
    *out = (struct document){0};
    TRY(check_size(length, e));
    const char *end = bytes + length;
    const char *first = bytes;
    while (first < end && strchr(" \t\r\n", *first) && *first)
        first++;
    json_t *root = NULL;
    int rc = 0;
    if (first < end && *first == '{')
        rc = load(bytes, length, &root, NULL);
    const bool is_object = json_is_string(json_object_get(root, "text"));
    if (rc != ERR_NOMEM && is_object)
        rc = read_object(root, out, e);
    else if (rc != ERR_NOMEM)
        rc = document_parse_text(bytes, length, out, e);
    else
        rc = nomem(e);
    json_decref(root);
    if (rc != 0)
        document_fini(out);
    return rc;
}

void document_fini(struct document *d)
{
    free(d->id);
    free(d->title);
    free(d->text);
    *d = (struct document){0};
}
