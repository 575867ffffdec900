/*
 * A batch of messages on its way, by a producer of either kind.
 *
 * It is produced without copying its values: the call returns only when every message has its
 * delivery report, which librdkafka gives within message.timeout.ms whatever happens.
 */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "kafka_int.h"

enum {
    SLICE_MS = 100,
    OFFSETS_WAIT_MS = 10000,
    END_WAIT_MS = 30000, /* a coordinator that never answers would be waited for without end */
    REPEAT_MS = 100,
    REPEAT_US_MAX = 20000000,
};

int kafka_produce_open(const rd_kafka_conf_t *conf, rd_kafka_t **out, struct err *e)
{
    char reason[256];
    rd_kafka_conf_t *copy = rd_kafka_conf_dup(conf);
    *out = rd_kafka_new(RD_KAFKA_PRODUCER, copy, reason, sizeof reason);
    if (*out)
        return 0;
    rd_kafka_conf_destroy(copy);
    return ERR_SET(e, ERR_CONFIG, "Kafka producer: %s", reason);
}

static rd_kafka_headers_t *make_headers(const struct kafka_message *m)
{
    rd_kafka_headers_t *headers = rd_kafka_headers_new(m->n_headers + 1);
    if (m->custom_id)
        rd_kafka_header_add(headers, "custom_id", -1, m->custom_id, -1);
    for (size_t i = 0; i < m->n_headers; i++) {
        const struct kafka_header *h = &m->headers[i];
        rd_kafka_header_add(headers, h->name, -1, h->value, h->value ? (ssize_t)h->length : 0);
    }
    return headers;
}

/* rd_kafka_producev takes the headers over only when it succeeds. */
static rd_kafka_resp_err_t produce(rd_kafka_t *rk, const struct kafka_message *m,
                                   int32_t partition, struct kafka_delivery *d)
{
    rd_kafka_headers_t *headers = make_headers(m);
    const rd_kafka_resp_err_t code =
        rd_kafka_producev(rk, RD_KAFKA_V_TOPIC(m->topic), RD_KAFKA_V_PARTITION(partition),
                          RD_KAFKA_V_KEY(m->key, m->key_length),
                          RD_KAFKA_V_VALUE((void *)(uintptr_t)m->value, m->value_length),
                          RD_KAFKA_V_HEADERS(headers), RD_KAFKA_V_MSGFLAGS(0),
                          RD_KAFKA_V_OPAQUE(d), RD_KAFKA_V_END);
    if (code != RD_KAFKA_RESP_ERR_NO_ERROR)
        rd_kafka_headers_destroy(headers);
    return code;
}

void kafka_produce_on_delivery(rd_kafka_t *rk, const rd_kafka_message_t *m, void *opaque)
{
    (void)rk;
    (void)opaque;
    struct kafka_delivery *d = m->_private;
    d->code = m->err;
    d->is_done = true;
}

/* A full queue empties as reports come in. */
void kafka_produce_to(rd_kafka_t *rk, const struct kafka_message *m, int32_t partition,
                      struct kafka_delivery *d)
{
    rd_kafka_resp_err_t code;
    while ((code = produce(rk, m, partition, d)) == RD_KAFKA_RESP_ERR__QUEUE_FULL)
        rd_kafka_poll(rk, SLICE_MS);
    if (code != RD_KAFKA_RESP_ERR_NO_ERROR)
        *d = (struct kafka_delivery){.code = code, .is_done = true};
    rd_kafka_poll(rk, 0);
}

void kafka_produce_wait(rd_kafka_t *rk, const struct kafka_delivery *d)
{
    while (!d->is_done)
        rd_kafka_poll(rk, SLICE_MS);
}

void kafka_produce_all(rd_kafka_t *rk, const struct kafka_message *messages, size_t n,
                       struct kafka_delivery *deliveries)
{
    for (size_t i = 0; i < n; i++)
        kafka_produce_to(rk, &messages[i], RD_KAFKA_PARTITION_UA, &deliveries[i]);
    for (size_t i = 0; i < n; i++)
        kafka_produce_wait(rk, &deliveries[i]);
}

int kafka_produce_outcome(const struct kafka_message *m, rd_kafka_resp_err_t code,
                          struct err *e)
{
    const char *const id = m->custom_id ? m->custom_id : "without id";
    switch ((int)code) {
    case RD_KAFKA_RESP_ERR_NO_ERROR: return 0;
    case RD_KAFKA_RESP_ERR_MSG_SIZE_TOO_LARGE:
    case RD_KAFKA_RESP_ERR_INVALID_MSG_SIZE:
        return ERR_SET(e, ERR_LIMIT,
                       "a message of %zu bytes (%s) is too large for the topic %s: raise its "
                       "max.message.bytes",
                       m->value_length + m->key_length, id, m->topic);
    case RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART:
    case RD_KAFKA_RESP_ERR__UNKNOWN_TOPIC:
    case RD_KAFKA_RESP_ERR__UNKNOWN_PARTITION:
        return ERR_SET(
            e, ERR_NOTFOUND,
            "the topic %s does not exist on the brokers: create it, or check its name",
            m->topic);
    case RD_KAFKA_RESP_ERR__MSG_TIMED_OUT:
        return ERR_SET_FLAGS(e, ERR_BROKER, ERR_RETRY,
                             "no broker has acknowledged a message (%s) to %s in time", id,
                             m->topic);
    default: break;
    }
    const unsigned flags =
        kafka_error_reaction(code) == KAFKA_PERMANENT ? ERR_FATAL : ERR_RETRY;
    return ERR_SET_FLAGS(e, ERR_BROKER, flags, "a message (%s) to %s was not accepted: %s", id,
                         m->topic, rd_kafka_err2str(code));
}

/* ------------------------------------------------------------------ transactions */

/* False: error is to be told. Else destroys it and waits. */
static bool may_repeat(rd_kafka_error_t *error, int64_t began_us)
{
    if (!error || !rd_kafka_error_is_retriable(error) ||
        clock_mono_us() - began_us > REPEAT_US_MAX)
        return false;
    rd_kafka_error_destroy(error);
    nanosleep(&(struct timespec){.tv_nsec = REPEAT_MS * 1000000L}, NULL);
    return true;
}

rd_kafka_error_t *kafka_produce_send_offsets(rd_kafka_t *rk,
                                             const rd_kafka_topic_partition_list_t *offsets,
                                             const rd_kafka_consumer_group_metadata_t *member)
{
    const int64_t began_us = clock_mono_us();
    rd_kafka_error_t *error;
    do
        error = rd_kafka_send_offsets_to_transaction(rk, offsets, member, OFFSETS_WAIT_MS);
    while (may_repeat(error, began_us));
    return error;
}

rd_kafka_error_t *kafka_produce_commit(rd_kafka_t *rk)
{
    const int64_t began_us = clock_mono_us();
    rd_kafka_error_t *error;
    do
        error = rd_kafka_commit_transaction(rk, END_WAIT_MS);
    while (may_repeat(error, began_us));
    return error;
}

rd_kafka_error_t *kafka_produce_abort(rd_kafka_t *rk)
{
    return rd_kafka_abort_transaction(rk, END_WAIT_MS);
}
