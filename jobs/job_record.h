/*
 * A record as it came from its topic: what a dead letter repeats byte for byte. Key, value and
 * header values are any bytes.
 */
#ifndef SHEAF_JOB_RECORD_H
#define SHEAF_JOB_RECORD_H

#include <stdbool.h>
#include <stddef.h>

struct job_header {
    char *name;
    char *value; /* NUL-terminated copy; NULL: a header without one */
    size_t length;
};

/* Owns what it points to. */
struct job_record {
    char *key; /* NUL-terminated copies; NULL: there is none */
    size_t key_length;
    char *value;
    size_t value_length;
    struct job_header *headers; /* in their order; names may come several times */
    size_t n_headers;
};

void job_record_fini(struct job_record *r); /* accepts a zeroed one */
/* False: no memory, and *out is as after job_record_fini. */
bool job_record_copy(const struct job_record *r, struct job_record *out);

/* The value of the last header of that name that has one; NULL: none has. */
const struct job_header *job_record_header(const struct job_record *r, const char *name);

/* What it takes in memory, for the limits of what is in flight. */
size_t job_record_bytes(const struct job_record *r);

#endif
