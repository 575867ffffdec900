#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/sha256.h"
#include "document.h"
#include "jobs_int.h"

static int nomem(struct err *e)
{
    return ERR_SET(e, ERR_NOMEM, "out of memory for a reference");
}

int document_make_ref(const char *text, size_t length, char ref[DOCUMENT_REF_BYTES],
                      struct err *e)
{
    char hex[SHA256_HEX_BYTES];
    TRY(sha256_hex(text, length, hex, e));
    snprintf(ref, DOCUMENT_REF_BYTES, "sha256:%s", hex);
    return 0;
}

/* json_dump_text's memory is Jansson's to free. */
static int dump(const json_t *value, char **out, struct err *e)
{
    char *text = NULL;
    TRY(json_dump_text(value, &text, e));
    *out = strdup(text);
    json_free_text(text);
    return *out ? 0 : nomem(e);
}

int document_make_value(const char *text, size_t length, char **out, struct err *e)
{
    *out = NULL;
    json_watch_begin();
    json_t *root = json_object();
    const int rc = json_object_set_new(root, "text", json_stringn(text, length));
    const bool failed = json_watch_failed() || rc != 0;
    const int dumped = failed ? nomem(e) : dump(root, out, e);
    json_decref(root);
    return dumped;
}

/* The document's value as it stands in the line -> the same with ref in place of the text. */
static json_t *reference_to(const json_t *value, const struct job_document *document,
                            const char *ref)
{
    json_t *object =
        json_is_object(value) ? json_copy((json_t *)(uintptr_t)value) : json_object();
    if (!object)
        return NULL;
    json_object_del(object, "text");
    json_object_del(object, "data");
    int rc = json_object_set_new(object, "ref", json_string(ref));
    if (rc == 0 && document->title)
        rc = json_object_set_new(object, "title", json_string(document->title));
    if (rc == 0)
        return object;
    json_decref(object);
    return NULL;
}

static int replace(json_t *root, const struct job *job, const char *const *refs, struct err *e)
{
    json_t *body = json_object_get(root, "body");
    json_t *list = json_object_get(body ? body : root, "documents");
    json_watch_begin();
    bool failed = false;
    for (size_t i = 0; i < job->n_documents && !failed; i++) {
        if (!refs[i])
            continue;
        json_t *object = reference_to(json_array_get(list, i), &job->documents[i], refs[i]);
        failed = !object || json_array_set_new(list, i, object) != 0;
    }
    return json_watch_failed() || failed ? nomem(e) : 0;
}

int document_lift_line(const char *bytes, size_t length, const struct job *job,
                       const char *const *refs, char **out, struct err *e)
{
    *out = NULL;
    const size_t skipped = length >= 3 && memcmp(bytes, "\xef\xbb\xbf", 3) == 0 ? 3 : 0;
    json_t *root = NULL;
    struct json_fault fault = {0};
    const int loaded = json_load_text(bytes + skipped, length - skipped, &root, &fault, e);
    if (loaded == ERR_INVALID)
        return ERR_SET(e, ERR_INVALID, "%s", fault.text);
    TRY(loaded);
    int rc = replace(root, job, refs, e);
    if (rc == 0)
        rc = dump(root, out, e);
    json_decref(root);
    return rc;
}
