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

static char *copy_bytes(const char *bytes, size_t length, bool *is_whole)
{
    char *copy = bytes ? malloc(length + 1) : NULL;
    *is_whole &= copy || !bytes;
    if (!copy)
        return NULL;
    memcpy(copy, bytes, length);
    copy[length] = '\0';
    return copy;
}

bool job_record_copy(const struct job_record *r, struct job_record *out)
{
    bool is_whole = true;
    *out = (struct job_record){
        .key = copy_bytes(r->key, r->key_length, &is_whole),
        .key_length = r->key_length,
        .value = copy_bytes(r->value, r->value_length, &is_whole),
        .value_length = r->value_length,
        .headers = r->n_headers > 0 ? calloc(r->n_headers, sizeof out->headers[0]) : NULL,
    };
    is_whole &= r->n_headers == 0 || out->headers;
    for (size_t i = 0; is_whole && i < r->n_headers; i++) {
        const struct job_header *from = &r->headers[i];
        out->headers[i] =
            (struct job_header){.name = copy_bytes(from->name, strlen(from->name), &is_whole),
                                .value = copy_bytes(from->value, from->length, &is_whole),
                                .length = from->length};
        out->n_headers++;
    }
    if (!is_whole)
        job_record_fini(out);
    return is_whole;
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
