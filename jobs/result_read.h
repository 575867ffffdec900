/*
 * A record of a result topic -> struct result: the line in either dialect, and what its headers
 * (result_headers.h) add. Lines of other programs and of workers that wrote no headers are
 * read as far as they go.
 *
 * The line decides what the answer is; headers say where it comes from and what was measured. A
 * figure that contradicts another (a first token before its wait was over) counts as not
 * known, so that every record that is read can be stored. What a completion with echo answered
 * cannot be told from the prompt before it: its text is all of the line's.
 */
#ifndef SHEAF_RESULT_READ_H
#define SHEAF_RESULT_READ_H

#include "result_headers.h"

enum { RESULT_LINE_BYTES_MAX = 18 << 20, RESULT_SOURCES_MAX = 16, RESULT_SOURCE_BYTES = 32 };

/* Zeroed is empty; result_record_fini frees what it owns. */
struct result_record {
    struct result *result;   /* owned, with its job; durations that are not known are -1 */
    bool has_source;         /* else job->source is empty */
    bool has_payload;        /* else payload_sha256 is its first 16 digits and zeros, or "" */
    char *run_id;            /* owned; NULL: not known, as all here */
    char *model, *worker_id; /* owned; lent to result */
    char *model_sha256, *quant, *kernels, *version; /* owned; of the run */
    int64_t run_started_us;
    int64_t attempt;             /* at least 1 */
    int64_t stored_us;           /* 0: not known */
    struct job_source replay_of; /* topic owned; NULL: not a repeated job */
    char draft_sources[RESULT_SOURCES_MAX][RESULT_SOURCE_BYTES]; /* lent to result->drafts */
    size_t n_draft_sources;
};

/*
 * ERR_FORMAT with a sentence: this is no result. ERR_NOMEM. Otherwise 0, and out is to be
 * freed. headers are borrowed.
 */
int result_read(const char *line, size_t length, const struct result_header *headers,
                size_t n_headers, struct result_record *out, struct err *e);
void result_record_fini(struct result_record *record);

#endif
