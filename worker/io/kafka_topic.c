/* Is a topic there, and with how many partitions? */
#include "kafka_int.h"

/* *out, when there is no error: rd_kafka_metadata_destroy it. */
static rd_kafka_resp_err_t ask(rd_kafka_t *rk, const char *name, int wait_ms,
                               const struct rd_kafka_metadata **out)
{
    rd_kafka_topic_t *topic = rd_kafka_topic_new(rk, name, NULL);
    if (!topic)
        return rd_kafka_last_error();
    rd_kafka_resp_err_t code = rd_kafka_metadata(rk, 0, topic, out, wait_ms);
    rd_kafka_topic_destroy(topic);
    if (code != RD_KAFKA_RESP_ERR_NO_ERROR)
        return code;
    code = (*out)->topic_cnt == 1 ? (*out)->topics[0].err
                                  : RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART;
    if (code != RD_KAFKA_RESP_ERR_NO_ERROR)
        rd_kafka_metadata_destroy(*out);
    return code;
}

rd_kafka_resp_err_t kafka_topic_look_up(rd_kafka_t *rk, const char *name, int wait_ms, int *n)
{
    *n = 0;
    const struct rd_kafka_metadata *found;
    const rd_kafka_resp_err_t code = ask(rk, name, wait_ms, &found);
    if (code != RD_KAFKA_RESP_ERR_NO_ERROR)
        return code;
    *n = found->topics[0].partition_cnt;
    rd_kafka_metadata_destroy(found);
    return code;
}

rd_kafka_resp_err_t kafka_topic_list_led(rd_kafka_t *rk, const char *name, int wait_ms,
                                         rd_kafka_topic_partition_list_t *list, bool *are_led)
{
    *are_led = true;
    const struct rd_kafka_metadata *found;
    const rd_kafka_resp_err_t code = ask(rk, name, wait_ms, &found);
    if (code != RD_KAFKA_RESP_ERR_NO_ERROR)
        return code;
    for (int i = 0; i < found->topics[0].partition_cnt; i++) {
        const struct rd_kafka_metadata_partition *p = &found->topics[0].partitions[i];
        if (p->leader >= 0)
            rd_kafka_topic_partition_list_add(list, name, p->id);
        *are_led = *are_led && p->leader >= 0;
    }
    rd_kafka_metadata_destroy(found);
    return code;
}

bool kafka_topic_is_unknown(rd_kafka_resp_err_t code)
{
    return code == RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART ||
           code == RD_KAFKA_RESP_ERR__UNKNOWN_TOPIC;
}

int kafka_topic_count_partitions(rd_kafka_t *rk, const char *topic, int wait_ms,
                                 struct kafka_error_log *log)
{
    int n;
    const rd_kafka_resp_err_t code = kafka_topic_look_up(rk, topic, wait_ms, &n);
    if (code == RD_KAFKA_RESP_ERR_NO_ERROR || kafka_topic_is_unknown(code))
        return n;
    if (code > 0) /* a broker's word; that none answers is told elsewhere */
        kafka_error_log_line(log, code, topic);
    return -1;
}

int kafka_topic_refuse_unknown(const char *topic, struct err *e)
{
    return ERR_SET(
        e, ERR_NOTFOUND,
        "the topic %s does not exist on the brokers: submit jobs to it (that creates "
        "it), or check its name",
        topic);
}
