#include "lift.h"

#include <search.h>
#include <stdlib.h>
#include <string.h>

#include "document.h"

static int compare(const void *a, const void *b)
{
    return strcmp(a, b);
}

static int nomem(struct err *e)
{
    return ERR_SET(e, ERR_NOMEM, "no memory to lift a document");
}

int lift_flush(struct lift *l, struct err *e)
{
    if (l->failure != 0)
        return ERR_SET(e, l->failure, "the documents were not sent");
    if (l->n > 0)
        l->failure = kafka_sink_send(l->sink, l->messages, l->n, e);
    for (size_t i = 0; i < l->n; i++)
        free((void *)(uintptr_t)l->messages[i].value);
    l->n = 0;
    l->bytes = 0;
    return l->failure;
}

/* *out: the tree's copy of the reference. */
static int remember(struct lift *l, const char *ref, bool *is_new, const char **out,
                    struct err *e)
{
    char *copy = strdup(ref);
    if (!copy)
        return nomem(e);
    char **node = tsearch(copy, &l->known, compare);
    *is_new = node && *node == copy;
    if (!*is_new)
        free(copy);
    if (!node)
        return nomem(e);
    *out = *node;
    return 0;
}

static int add_message(struct lift *l, const char *ref, const struct job_document *document,
                       struct err *e)
{
    char *value = NULL;
    TRY(document_make_value(document->text, document->length, &value, e));
    const size_t length = strlen(value);
    l->messages[l->n++] = (struct kafka_message){.topic = l->topic,
                                                 .key = ref,
                                                 .key_length = strlen(ref),
                                                 .value = value,
                                                 .value_length = length,
                                                 .custom_id = NULL};
    l->bytes += length;
    l->n_documents++;
    l->bytes_saved -= (int64_t)(length + strlen(ref));
    return l->n == LIFT_BATCH || l->bytes > LIFT_BYTES ? lift_flush(l, e) : 0;
}

static bool is_lifted(const struct lift *l, const struct job_document *document)
{
    return document->text && (document->ref || document->length >= l->bytes_min);
}

/* refs: borrowed from the tree; *n of them are not NULL. */
static int send_documents(struct lift *l, const struct job *job, const char **refs, size_t *n,
                          struct err *e)
{
    for (size_t i = 0; i < job->n_documents; i++) {
        const struct job_document *document = &job->documents[i];
        char ref[DOCUMENT_REF_BYTES];
        bool is_new = false;
        if (!is_lifted(l, document))
            continue;
        TRY(document_make_ref(document->text, document->length, ref, e));
        TRY(remember(l, ref, &is_new, &refs[i], e));
        if (is_new)
            TRY(add_message(l, refs[i], document, e));
        ++*n;
    }
    return 0;
}

int lift_line(struct lift *l, const struct job *job, const char *bytes, size_t length,
              char **out, struct err *e)
{
    *out = NULL;
    if (job->n_documents == 0)
        return 0;
    const char **refs = calloc(job->n_documents, sizeof refs[0]);
    if (!refs)
        return nomem(e);
    size_t n = 0;
    int rc = send_documents(l, job, refs, &n, e);
    if (rc == 0 && n > 0)
        rc = document_lift_line(bytes, length, job, refs, out, e);
    free(refs);
    if (rc == 0 && n > 0) {
        l->n_references += n;
        l->bytes_saved += (int64_t)length - (int64_t)strlen(*out);
    }
    return rc;
}

void lift_fini(struct lift *l)
{
    for (size_t i = 0; i < l->n; i++)
        free((void *)(uintptr_t)l->messages[i].value);
    tdestroy(l->known, free);
    *l = (struct lift){0};
}
