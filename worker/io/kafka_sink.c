/*
 * The writing side: results to their topic, jobs to theirs, topics made on request.
 *
 * The idempotent producer of librdkafka 2.0.2 can fail for good after a leader change. The
 * handle is then thrown away, and the next call makes a new one: resending what was not
 * acknowledged is what at-least-once means.
 */
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "kafka_int.h"

enum { SLICE_MS = 100, ADMIN_WAIT_MS = 20000 };

struct kafka_sink {
    rd_kafka_t *rk;
    rd_kafka_conf_t *conf; /* each handle gets a copy */
    char *brokers;
    bool is_reached; /* they have answered */
    struct kafka_error_log error_log;
};

static void on_error(rd_kafka_t *rk, int code, const char *reason, void *sink)
{
    (void)rk;
    struct kafka_sink *s = sink;
    kafka_error_log_line(&s->error_log, code, reason);
}

static int make_handle(struct kafka_sink *s, struct err *e)
{
    return s->rk ? 0 : kafka_produce_open(s->conf, &s->rk, e);
}

static void drop_dead_handle(struct kafka_sink *s)
{
    char reason[256];
    if (!s->rk || rd_kafka_fatal_error(s->rk, reason, sizeof reason) == 0)
        return;
    log_warn("Kafka: the producer failed for good (%s); making a new one", reason);
    rd_kafka_destroy(s->rk);
    s->rk = NULL;
}

int kafka_sink_open(const struct kafka_options *o, struct kafka_sink **out, struct err *e)
{
    *out = NULL;
    struct kafka_sink *s = calloc(1, sizeof *s);
    if (!s)
        return ERR_SET(e, ERR_NOMEM, "no memory for a Kafka producer");
    int code = kafka_conf_build(o, KAFKA_PRODUCER, &s->conf, e);
    if (code == 0 && !(s->brokers = strdup(o->brokers)))
        code = ERR_SET(e, ERR_NOMEM, "no memory for a Kafka producer");
    if (code == 0) {
        rd_kafka_conf_set_opaque(s->conf, s);
        rd_kafka_conf_set_error_cb(s->conf, on_error);
        rd_kafka_conf_set_dr_msg_cb(s->conf, kafka_produce_on_delivery);
        code = make_handle(s, e);
    }
    if (code != 0) {
        kafka_sink_close(s);
        return code;
    }
    *out = s;
    return 0;
}

void kafka_sink_close(struct kafka_sink *s)
{
    if (!s)
        return;
    if (s->rk)
        rd_kafka_destroy(s->rk);
    if (s->conf)
        rd_kafka_conf_destroy(s->conf);
    free(s->brokers);
    free(s);
}

int kafka_sink_send_each(struct kafka_sink *s, const struct kafka_message *messages, size_t n,
                         int *codes, struct err *e)
{
    for (size_t i = 0; codes && i < n; i++)
        codes[i] = ERR_BROKER;
    if (n == 0)
        return 0;
    drop_dead_handle(s);
    TRY(make_handle(s, e));
    struct kafka_delivery *deliveries = calloc(n, sizeof *deliveries);
    if (!deliveries)
        return ERR_SET(e, ERR_NOMEM, "no memory to send %zu messages", n);
    kafka_produce_all(s->rk, messages, n, deliveries);
    struct err told = {0};
    for (size_t i = 0; i < n; i++) {
        struct err why = {0};
        const int code = kafka_produce_outcome(&messages[i], deliveries[i].code, &why);
        if (codes)
            codes[i] = code;
        if (told.code == 0 || (told.code == ERR_LIMIT && code != 0 && code != ERR_LIMIT))
            told = why;
    }
    free(deliveries);
    return told.code == 0 ? 0 : ERR_SET_FLAGS(e, told.code, told.flags, "%s", told.text);
}

int kafka_sink_send(struct kafka_sink *s, const struct kafka_message *messages, size_t n,
                    struct err *e)
{
    return kafka_sink_send_each(s, messages, n, NULL, e);
}

static int read_created(const char *topic, rd_kafka_event_t *event, bool *created,
                        struct err *e)
{
    rd_kafka_resp_err_t code = rd_kafka_event_error(event);
    const char *reason = rd_kafka_event_error_string(event);
    if (code == RD_KAFKA_RESP_ERR_NO_ERROR) {
        size_t n;
        const rd_kafka_topic_result_t **results =
            rd_kafka_CreateTopics_result_topics(rd_kafka_event_CreateTopics_result(event), &n);
        code = n == 1 ? rd_kafka_topic_result_error(results[0]) : RD_KAFKA_RESP_ERR__BAD_MSG;
        reason = n == 1 ? rd_kafka_topic_result_error_string(results[0]) : NULL;
    }
    *created = code == RD_KAFKA_RESP_ERR_NO_ERROR;
    if (code == RD_KAFKA_RESP_ERR_NO_ERROR || code == RD_KAFKA_RESP_ERR_TOPIC_ALREADY_EXISTS)
        return 0;
    const bool is_away =
        code == RD_KAFKA_RESP_ERR__TIMED_OUT || code == RD_KAFKA_RESP_ERR__TRANSPORT;
    return ERR_SET_FLAGS(e, ERR_BROKER, is_away ? ERR_RETRY : 0,
                         "the topic %s cannot be created: %s", topic,
                         reason ? reason : rd_kafka_err2str(code));
}

static int ask_to_create(struct kafka_sink *s, const char *topic, rd_kafka_NewTopic_t *wanted,
                         bool *created, struct err *e)
{
    char reason[256];
    rd_kafka_queue_t *answers = rd_kafka_queue_new(s->rk);
    rd_kafka_AdminOptions_t *options =
        rd_kafka_AdminOptions_new(s->rk, RD_KAFKA_ADMIN_OP_CREATETOPICS);
    rd_kafka_AdminOptions_set_request_timeout(options, ADMIN_WAIT_MS / 2, reason,
                                              sizeof reason);
    rd_kafka_AdminOptions_set_operation_timeout(options, ADMIN_WAIT_MS / 4, reason,
                                                sizeof reason);
    rd_kafka_CreateTopics(s->rk, &wanted, 1, options, answers);
    rd_kafka_event_t *event = rd_kafka_queue_poll(answers, ADMIN_WAIT_MS);
    int code;
    if (event) {
        code = read_created(topic, event, created, e);
        rd_kafka_event_destroy(event);
    } else {
        code = ERR_SET_FLAGS(e, ERR_BROKER, ERR_RETRY,
                             "the topic %s cannot be created: no broker answers", topic);
    }
    rd_kafka_AdminOptions_destroy(options);
    rd_kafka_queue_destroy(answers);
    return code;
}

static int create_topic(struct kafka_sink *s, const char *topic, int partitions,
                        bool is_compacted, bool *created, struct err *e)
{
    bool is_new = false;
    if (created)
        *created = false;
    drop_dead_handle(s);
    TRY(make_handle(s, e));
    if (!s->is_reached)
        TRY(kafka_reach(s->rk, &s->error_log, s->brokers, e));
    s->is_reached = true;
    char reason[256];
    rd_kafka_NewTopic_t *wanted =
        rd_kafka_NewTopic_new(topic, partitions, -1, reason, sizeof reason);
    if (!wanted)
        return ERR_SET(e, ERR_INVALID, "the topic %s cannot be created: %s", topic, reason);
    rd_kafka_NewTopic_set_config(wanted, "max.message.bytes", KAFKA_MESSAGE_BYTES_MAX);
    if (is_compacted)
        rd_kafka_NewTopic_set_config(wanted, "cleanup.policy", "compact");
    const int code = ask_to_create(s, topic, wanted, &is_new, e);
    rd_kafka_NewTopic_destroy(wanted);
    if (created)
        *created = is_new;
    return code;
}

int kafka_sink_create_topic(struct kafka_sink *s, const char *topic, int partitions,
                            bool *created, struct err *e)
{
    return create_topic(s, topic, partitions, false, created, e);
}

int kafka_sink_create_compacted(struct kafka_sink *s, const char *topic, int partitions,
                                bool *created, struct err *e)
{
    return create_topic(s, topic, partitions, true, created, e);
}
