/*
 * Input bytes -> struct job.
 *
 * A bad line is not a failure of the parser: the job comes back with job->error set, with
 * whatever identity could be read (its custom_id if there was one), so that it gets an answer
 * like every other. ERR_NOMEM is the only failure.
 *
 * Before Jansson sees a byte, a scan enforces size, depth, number length, UTF-8 and the
 * absence of NUL; the limits are in base/limits.h. Traps and their results: a BOM is skipped; a
 * UTF-16 line is named as such; CR before LF is part of the line end; duplicate keys, lone
 * surrogates, numbers outside their range and trailing text are job errors with the line and
 * column.
 */
#ifndef SHEAF_JOB_PARSE_H
#define SHEAF_JOB_PARSE_H

#include "job.h"

struct job_parse_options {
    bool strict; /* unknown fields are errors instead of warnings */
    int64_t max_tokens_default;
};

/* source is copied. bytes need no NUL at their end. */
int job_parse(const char *bytes, size_t length, const struct job_source *source,
              const struct job_parse_options *options, struct job **out, struct err *e);

/* A line of only spaces, tabs and CR is no job. */
bool job_line_is_blank(const char *bytes, size_t length);

#endif
