#include "job_record.h"

#include <stdlib.h>
#include <string.h>

void job_record_fini(struct job_record *r)
{
    for (size_t i = 0; i < r->n_headers; i++) {
        free(r->headers[i].name);
        free(r->headers[i].value);
    }
    free(r->headers);
    free(r->key);
    free(r->value);
    *r = (struct job_record){0};
}

const struct job_header *job_record_header(const struct job_record *r, const char *name)
{
    for (size_t i = r->n_headers; i-- > 0;)
        if (r->headers[i].value && strcmp(r->headers[i].name, name) == 0)
            return &r->headers[i];
    return NULL;
}

size_t job_record_bytes(const struct job_record *r)
{
    size_t n = r->key_length + r->value_length;
    for (size_t i = 0; i < r->n_headers; i++)
        n += sizeof r->headers[i] + strlen(r->headers[i].name) + r->headers[i].length;
    return n;
}
