/* Is a topic there, and with how many partitions? */
#include "kafka_int.h"

rd_kafka_resp_err_t kafka_topic_look_up(rd_kafka_t *rk, const char *name, int wait_ms, int *n)
{
    *n = 0;
    rd_kafka_topic_t *topic = rd_kafka_topic_new(rk, name, NULL);
    if (!topic)
        return rd_kafka_last_error();
    const struct rd_kafka_metadata *found = NULL;
    rd_kafka_resp_err_t code = rd_kafka_metadata(rk, 0, topic, &found, wait_ms);
    if (code == RD_KAFKA_RESP_ERR_NO_ERROR) {
        code = found->topic_cnt == 1 ? found->topics[0].err
                                     : RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART;
        if (code == RD_KAFKA_RESP_ERR_NO_ERROR)
            *n = found->topics[0].partition_cnt;
        rd_kafka_metadata_destroy(found);
    }
    rd_kafka_topic_destroy(topic);
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
