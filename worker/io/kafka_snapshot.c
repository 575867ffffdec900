/*
 * What a burst commits (burst_plan.h), under the source's lock and together with who we are in
 * the group, so that offsets of partitions that were taken away are never committed in
 * the name of a generation that gave them to somebody else.
 */
#include "base/log.h"
#include "burst_plan.h"
#include "kafka_int.h"

void kafka_snapshot_fini(struct kafka_snapshot *snapshot)
{
    if (snapshot->offsets)
        rd_kafka_topic_partition_list_destroy(snapshot->offsets);
    if (snapshot->member)
        rd_kafka_consumer_group_metadata_destroy(snapshot->member);
    *snapshot = (struct kafka_snapshot){0};
}

static rd_kafka_topic_partition_list_t *list_offsets(const struct burst_plan *plan)
{
    rd_kafka_topic_partition_list_t *list = rd_kafka_topic_partition_list_new((int)plan->n + 1);
    for (size_t i = 0; i < plan->n; i++)
        kafka_group_add_settled(list, plan->items[i].topic, plan->items[i].partition,
                                &plan->items[i].settled);
    return list;
}

static int snapshot_locked(struct kafka_source *s, const struct kafka_answer *answers, size_t n,
                           enum kafka_answer_state *states, struct kafka_snapshot *out,
                           struct err *e)
{
    if (!s->is_assigned || !s->member || s->is_broken)
        return ERR_SET_FLAGS(e, ERR_BROKER, ERR_RETRY,
                             "this worker has no place in its group now: results wait until it "
                             "is known whose they are");
    struct burst_plan plan;
    TRY(burst_plan_make(&s->partitions, answers, n, states, &plan, e));
    out->offsets = list_offsets(&plan);
    burst_plan_fini(&plan);
    rd_kafka_error_t *error =
        rd_kafka_consumer_group_metadata_read(&out->member, s->member, s->member_bytes);
    if (!error)
        return 0;
    const int rc = ERR_SET(e, ERR_CONFIG, "the membership of the group cannot be used: %s",
                           rd_kafka_error_string(error));
    rd_kafka_error_destroy(error);
    return rc;
}

int kafka_source_snapshot(struct kafka_source *s, const struct kafka_answer *answers, size_t n,
                          enum kafka_answer_state *states, struct kafka_snapshot *out,
                          struct err *e)
{
    pthread_mutex_lock(&s->lock);
    const int rc = snapshot_locked(s, answers, n, states, out, e);
    pthread_mutex_unlock(&s->lock);
    return rc;
}

bool kafka_source_shorten_texts(struct kafka_source *s,
                                const rd_kafka_topic_partition_list_t *offsets)
{
    size_t longest = 0;
    for (int i = 0; i < offsets->cnt; i++)
        if (offsets->elems[i].metadata_size > longest)
            longest = offsets->elems[i].metadata_size;
    if (longest == 0)
        return false;
    pthread_mutex_lock(&s->lock);
    if (!s->partitions.are_texts_limited)
        log_warn("Kafka: the brokers refuse %zu characters beside an offset: answers wait for "
                 "those before them; raise offset.metadata.max.bytes to %d",
                 longest, OFFSET_METADATA_BROKER_MAX);
    s->partitions.are_texts_limited = true;
    s->partitions.text_max = longest / 2;
    pthread_mutex_unlock(&s->lock);
    return true;
}

static rd_kafka_topic_partition_list_t *list_owned(struct kafka_source *s)
{
    pthread_mutex_lock(&s->lock);
    rd_kafka_topic_partition_list_t *list =
        rd_kafka_topic_partition_list_new((int)s->partitions.n + 1);
    for (size_t i = 0; i < s->partitions.n; i++)
        if (s->partitions.items[i]->is_owned)
            rd_kafka_topic_partition_list_add(list, s->partitions.items[i]->topic,
                                              s->partitions.items[i]->id);
    pthread_mutex_unlock(&s->lock);
    return list;
}

static void take_over(struct kafka_source *s, const rd_kafka_topic_partition_t *found)
{
    struct offset_bits committed;
    kafka_group_read_committed(found, &committed);
    pthread_mutex_lock(&s->lock);
    const bool is_ours =
        burst_plan_take_over(&s->partitions, found->topic, found->partition, &committed);
    pthread_mutex_unlock(&s->lock);
    if (is_ours)
        kafka_group_tell_committed(s, found->topic, found->partition, &committed);
}

/* What is not ours now is asked for when it is given to us. */
int kafka_source_take_over_committed(struct kafka_source *s, struct err *e)
{
    rd_kafka_topic_partition_list_t *list = list_owned(s);
    rd_kafka_resp_err_t code = RD_KAFKA_RESP_ERR_NO_ERROR;
    if (list->cnt > 0)
        code = kafka_group_ask_committed(s, list);
    for (int i = 0; code == RD_KAFKA_RESP_ERR_NO_ERROR && i < list->cnt; i++)
        take_over(s, &list->elems[i]);
    rd_kafka_topic_partition_list_destroy(list);
    if (code == RD_KAFKA_RESP_ERR_NO_ERROR)
        return 0;
    return ERR_SET_FLAGS(e, ERR_BROKER, ERR_RETRY,
                         "what the group has committed cannot be read: %s",
                         rd_kafka_err2str(code));
}
