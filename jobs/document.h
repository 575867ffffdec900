/*
 * Documents that are kept outside of the jobs, and read by reference: the text behind a name.
 *
 *   a line of a documents file     {"id": "mill", "title": "Village", "text": "..."}
 *   a record's value               {"title": "Village", "text": "..."}, or the text itself
 *   a file of a folder             the text itself
 *
 * A value is JSON when it is an object with a string `text`; everything else is text. The text
 * is UTF-8 without NUL and goes into a prompt byte for byte; only a BOM at its start does not.
 * title may be missing or null. Unknown keys are left unread.
 */
#ifndef SHEAF_DOCUMENT_H
#define SHEAF_DOCUMENT_H

#include <stddef.h>

#include "job.h"

struct document {
    char *id;    /* or NULL: a value has none */
    char *title; /* or NULL */
    char *text;  /* NUL-terminated */
    size_t length;
};

/* ERR_FORMAT says what is wrong with the bytes; ERR_LIMIT: more than JOB_BYTES_MAX. */
int document_parse_line(const char *bytes, size_t length, struct document *out, struct err *e);
int document_parse_value(const char *bytes, size_t length, struct document *out, struct err *e);
int document_parse_text(const char *bytes, size_t length, struct document *out, struct err *e);
void document_fini(struct document *d); /* accepts a zeroed one */

/*
 * The other way: a document of a job becomes a record of its own, and a reference in the line.
 *
 * The name of a text is "sha256:" and the hash of its bytes in hex, so that it stands for one
 * text for ever. The record's value is always JSON: a text that looks like JSON stays a text.
 */
enum { DOCUMENT_REF_BYTES = 7 + 64 + 1 };

int document_make_ref(const char *text, size_t length, char ref[DOCUMENT_REF_BYTES],
                      struct err *e);
/* New text; free() it. */
int document_make_value(const char *text, size_t length, char **out, struct err *e);
/*
 * The job's line with documents[i] as a reference wherever refs[i] is not NULL (n_documents of
 * them). id, and what else stands beside the text, stays; a title stays or comes out of data.
 * bytes are what the job was parsed from without an error. New text; free() it.
 */
int document_lift_line(const char *bytes, size_t length, const struct job *job,
                       const char *const *refs, char **out, struct err *e);

#endif
