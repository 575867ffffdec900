/* A message of librdkafka -> a record of our own: keeping the message would pin the whole fetch
 * response. */
#include <stdlib.h>
#include <string.h>

#include "kafka_int.h"

void kafka_record_free(struct kafka_record *r)
{
    if (!r)
        return;
    free(r->topic);
    job_record_fini(&r->record);
    free(r);
}

/* False: no memory. Bytes that are not there stay NULL. */
static bool copy_bytes(const void *bytes, size_t length, char **out, size_t *out_length)
{
    *out = NULL;
    *out_length = 0;
    if (!bytes)
        return true;
    char *copy = malloc(length + 1);
    if (!copy)
        return false;
    if (length > 0)
        memcpy(copy, bytes, length);
    copy[length] = '\0';
    *out = copy;
    *out_length = length;
    return true;
}

static bool copy_headers(const rd_kafka_message_t *m, struct job_record *out)
{
    rd_kafka_headers_t *headers;
    if (rd_kafka_message_headers(m, &headers) != RD_KAFKA_RESP_ERR_NO_ERROR)
        return true;
    const size_t n = rd_kafka_header_cnt(headers);
    out->headers = calloc(n + 1, sizeof out->headers[0]);
    if (!out->headers)
        return false;
    for (size_t i = 0; i < n; i++) {
        const char *name;
        const void *value;
        size_t length;
        if (rd_kafka_header_get_all(headers, i, &name, &value, &length) !=
            RD_KAFKA_RESP_ERR_NO_ERROR)
            break;
        struct job_header *header = &out->headers[out->n_headers];
        if (!(header->name = strdup(name)))
            return false;
        out->n_headers++;
        if (!copy_bytes(value, length, &header->value, &header->length))
            return false;
    }
    return true;
}

int64_t kafka_record_timestamp_us(const rd_kafka_message_t *m)
{
    rd_kafka_timestamp_type_t type;
    const int64_t ms = rd_kafka_message_timestamp(m, &type);
    const bool is_dated =
        type != RD_KAFKA_TIMESTAMP_NOT_AVAILABLE && ms > 0 && ms < INT64_MAX / 1000;
    return is_dated ? ms * 1000 : 0;
}

struct kafka_record *kafka_record_copy(const rd_kafka_message_t *m)
{
    struct kafka_record *r = calloc(1, sizeof *r);
    if (!r)
        return NULL;
    r->partition = m->partition;
    r->offset = m->offset;
    r->timestamp_us = kafka_record_timestamp_us(m);
    struct job_record *record = &r->record;
    if (!(r->topic = strdup(rd_kafka_topic_name(m->rkt))) ||
        !copy_bytes(m->payload, m->len, &record->value, &record->value_length) ||
        !copy_bytes(m->key, m->key_len, &record->key, &record->key_length) ||
        !copy_headers(m, record)) {
        kafka_record_free(r);
        return NULL;
    }
    return r;
}
