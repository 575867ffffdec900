#include "documents.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/clock.h"
#include "base/limits.h"
#include "documents_int.h"
#include "io/queue_file.h"
#include "job_parse.h"

/* A topic that is being read for the first time is waited for at least so long from record to
 * record, whatever the setting. */
enum {
    READ_WAIT_US = 10000000,
    UNKNOWN_WAIT_US = 240000000, /* as long as no broker says whether there is such a topic */
};

struct documents {
    struct documents_options options; /* path and topic are copies */
    bool has_file;
    struct documents_table file;
    char *folder;                  /* its real path, or NULL */
    struct documents_topic *topic; /* NULL until a reference asks for it */
};

/* ------------------------------------------------------------------ opening */

static int add_line(struct documents *d, const struct file_line *line, struct err *e)
{
    struct document document = {0};
    TRY(document_parse_line(line->bytes, line->length, &document, e));
    int rc = 0;
    if (documents_table_find(&d->file, document.id))
        rc = ERR_SET(e, ERR_FORMAT, "an earlier line has the id %.80s too", document.id);
    else
        rc = documents_table_put_take(&d->file, document.id, &document, e);
    if (rc == ERR_LIMIT && e)
        err_prefix(e, "more than documents.mb=%zu", d->options.bytes_max >> 20);
    document_fini(&document);
    return rc;
}

static int read_lines(struct documents *d, struct file_source *source, struct err *e)
{
    struct file_line line;
    for (;;) {
        TRY(file_source_next(source, &line, e));
        if (!line.bytes)
            return 0;
        if (job_line_is_blank(line.bytes, line.length))
            continue;
        const int rc = add_line(d, &line, e);
        if (rc != 0) {
            err_prefix(e, "%s line %lld", d->options.path, (long long)line.number);
            return rc;
        }
    }
}

static int open_path(struct documents *d, struct err *e)
{
    struct stat st;
    const char *path = d->options.path;
    if (stat(path, &st) != 0)
        return ERR_SET(e, ERR_NOTFOUND, "cannot find the documents at %s: %s", path,
                       strerror(errno));
    if (S_ISDIR(st.st_mode)) {
        d->folder = realpath(path, NULL);
        return d->folder ? 0 : ERR_SET(e, ERR_IO, "%s: %s", path, strerror(errno));
    }
    struct file_source *source = NULL;
    TRY(file_source_open(path, &source, e));
    d->has_file = true;
    const int rc = read_lines(d, source, e);
    file_source_close(source);
    return rc;
}

static int copy_name(const char **name, struct err *e)
{
    *name = strdup(*name ? *name : "");
    return *name ? 0 : ERR_SET(e, ERR_NOMEM, "no memory for the documents");
}

int documents_open(const struct documents_options *o, struct documents **out, struct err *e)
{
    *out = NULL;
    struct documents *d = calloc(1, sizeof *d);
    if (!d)
        return ERR_SET(e, ERR_NOMEM, "no memory for the documents");
    d->options = *o;
    d->options.topic = NULL;
    d->file.bytes_max = o->bytes_max;
    int rc = copy_name(&d->options.path, e);
    if (rc == 0) {
        d->options.topic = o->topic;
        rc = copy_name(&d->options.topic, e);
    }
    if (rc == 0 && *d->options.path)
        rc = open_path(d, e);
    if (rc != 0) {
        documents_close(d);
        return rc;
    }
    *out = d;
    return 0;
}

void documents_close(struct documents *d)
{
    if (!d)
        return;
    documents_topic_close(d->topic);
    documents_table_fini(&d->file);
    free(d->folder);
    free((void *)(uintptr_t)d->options.path);
    free((void *)(uintptr_t)d->options.topic);
    free(d);
}

/* ------------------------------------------------------------------ finding */

static bool has_topic(const struct documents *d)
{
    return d && *d->options.topic;
}

static int find_in_topic(struct documents *d, const char *ref, enum find_answer *answer,
                         struct document *out, struct err *why, struct err *e)
{
    if (!d->topic)
        TRY(documents_topic_open(&d->options, &d->topic, e));
    return documents_topic_read(d->topic, ref, answer, out, why, e);
}

/* What a source has, or has and cannot give, ends the search. */
static int find(struct documents *d, const char *ref, enum find_answer *answer,
                struct document *out, struct err *why, struct err *e)
{
    *answer = FIND_NOWHERE;
    if (d && d->has_file)
        TRY(documents_table_read(&d->file, ref, answer, out, why, e));
    const bool may_be_file = d && d->folder && (!has_topic(d) || documents_folder_is_name(ref));
    if (*answer == FIND_NOWHERE && may_be_file)
        TRY(documents_folder_read(d->folder, ref, answer, out, why, e));
    if (*answer == FIND_NOWHERE && has_topic(d))
        TRY(find_in_topic(d, ref, answer, out, why, e));
    return 0;
}

/* ------------------------------------------------------------------ resolving */

/* The reference as an error may quote it: printable, and not much of it. */
static void quote(const char *ref, char out[48])
{
    size_t n = 0;
    for (; ref[n] && n < 40; n++)
        out[n] = ref[n] > ' ' && ref[n] < 0x7f && ref[n] != '"' ? ref[n] : '?';
    snprintf(out + n, 48 - n, "%s", ref[n] ? "..." : "");
}

/* Whoever reads the result need not learn the worker's paths. */
static void fail_not_found(const struct documents *d, struct job *job, const char *param,
                           const char *name)
{
    char places[160] = "this worker, which was given none (--documents)";
    const char *local = !d            ? ""
                        : d->folder   ? "the documents folder"
                        : d->has_file ? "the documents file"
                                      : "";
    if (has_topic(d))
        snprintf(places, sizeof places, "%s%sthe topic %.80s", local, *local ? " or " : "",
                 d->options.topic);
    else if (*local)
        snprintf(places, sizeof places, "%s", local);
    job_fail(job, 404, "document_not_found", param, "there is no document \"%s\" in %s", name,
             places);
}

static bool may_still_come(const struct documents *d, int64_t since_us)
{
    if (!has_topic(d))
        return false;
    int64_t at_least_us = 0;
    if (!documents_topic_is_known(d->topic))
        at_least_us = UNKNOWN_WAIT_US;
    else if (!documents_topic_is_read(d->topic))
        at_least_us = READ_WAIT_US;
    const int64_t wait_us = d->options.wait_us > at_least_us ? d->options.wait_us : at_least_us;
    const int64_t moved_us = documents_topic_moved_us(d->topic);
    const int64_t from_us = moved_us > since_us ? moved_us : since_us;
    return clock_mono_us() < from_us + wait_us;
}

/* What was found -> the job's document or error. */
static void settle(struct documents *d, struct job *job, size_t i, enum find_answer answer,
                   struct document *found, const struct err *why)
{
    struct job_document *document = &job->documents[i];
    char param[64], name[48];
    snprintf(param, sizeof param, "documents[%zu].ref", i);
    quote(document->ref, name);
    switch (answer) {
    case FIND_HERE:
        if (!document->title) {
            document->title = found->title;
            found->title = NULL;
        }
        document->text = found->text;
        document->length = found->length;
        found->text = NULL;
        break;
    case FIND_INVALID:
        job_fail(job, 400, "document_invalid", param, "the document \"%s\" cannot be used: %s",
                 name, why->text);
        break;
    case FIND_LET_GO:
        job_fail(job, 500, "documents_memory_full", param,
                 "the document \"%s\" did not fit in the memory for documents "
                 "(documents.mb=%zu)",
                 name, d->options.bytes_max >> 20);
        break;
    case FIND_NOWHERE: fail_not_found(d, job, param, name); break;
    }
}

static void check_size(struct job *job)
{
    size_t bytes = 0;
    for (size_t i = 0; i < job->n_documents; i++)
        bytes += job->documents[i].length;
    if (bytes > JOB_BYTES_MAX)
        job_fail(job, 413, "documents_too_large", "documents",
                 "the documents of the job have more than %u bytes together", JOB_BYTES_MAX);
}

/* Whether a text is missing that may still come; the job's error for one that will not. */
static int look(struct documents *d, struct job *job, int64_t since_us, bool *waits,
                struct err *e)
{
    for (size_t i = 0; i < job->n_documents && job->error.status == 0; i++) {
        enum find_answer answer;
        struct err why = {0};
        if (job->documents[i].text)
            continue;
        TRY(find(d, job->documents[i].ref, &answer, NULL, &why, e));
        if (answer == FIND_NOWHERE && may_still_come(d, since_us))
            *waits = true;
        else if (answer != FIND_HERE)
            settle(d, job, i, answer, NULL, &why);
    }
    if (job->error.status != 0)
        *waits = false;
    return 0;
}

static int copy_texts(struct documents *d, struct job *job, struct err *e)
{
    for (size_t i = 0; i < job->n_documents && job->error.status == 0; i++) {
        enum find_answer answer;
        struct document found = {0};
        struct err why = {0};
        if (job->documents[i].text)
            continue;
        TRY(find(d, job->documents[i].ref, &answer, &found, &why, e));
        settle(d, job, i, answer, &found, &why);
        document_fini(&found);
        check_size(job);
    }
    return 0;
}

/* A job that waits holds no text: thousands may wait, for one document that all lack. */
int documents_resolve(struct documents *d, struct job *job, int64_t since_us, bool *waits,
                      struct err *e)
{
    *waits = false;
    TRY(look(d, job, since_us, waits, e));
    return *waits ? 0 : copy_texts(d, job, e);
}

uint64_t documents_generation(const struct documents *d)
{
    return d && d->topic ? documents_topic_generation(d->topic) : 0;
}
