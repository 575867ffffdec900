/*
 * What a burst commits: taken from the trackers under the source's lock, together with who we
 * are in the group, so that offsets of partitions that were taken away are never committed in
 * the name of a generation that gave them to somebody else.
 */
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "kafka_int.h"

enum { COMMITTED_WAIT_MS = 10000 };

void kafka_snapshot_fini(struct kafka_snapshot *snapshot)
{
    if (snapshot->offsets)
        rd_kafka_topic_partition_list_destroy(snapshot->offsets);
    if (snapshot->member)
        rd_kafka_consumer_group_metadata_destroy(snapshot->member);
    *snapshot = (struct kafka_snapshot){0};
}

static struct kafka_partition *partition_of(const struct kafka_source *s,
                                            const struct kafka_answer *a)
{
    struct kafka_partition *p = kafka_partitions_find(&s->partitions, a->topic, a->partition);
    return p && p->lease == a->lease ? p : NULL;
}

/* False: nobody knows yet whose it will be. */
static bool sort_answer(const struct kafka_source *s, const struct kafka_answer *a,
                        enum kafka_answer_state *state)
{
    const struct kafka_partition *p = partition_of(s, a);
    if (!p)
        *state = ANSWER_NOT_OURS;
    else if (!offset_tracker_is_unsettled(&p->tracker, a->offset))
        *state = ANSWER_GIVEN;
    return !p || p->is_owned;
}

static bool is_open_in(const struct kafka_answer *a, enum kafka_answer_state state,
                       const struct kafka_partition *p)
{
    return state == ANSWER_OPEN && a->partition == p->id && strcmp(a->topic, p->topic) == 0;
}

static size_t text_length(const struct offset_bits *settled)
{
    char text[OFFSET_METADATA_MAX + 1];
    return offset_metadata_encode(settled, text);
}

static void delay_all(const struct kafka_partition *p, const struct kafka_answer *answers,
                      size_t n, enum kafka_answer_state *states)
{
    for (size_t i = 0; i < n; i++)
        if (is_open_in(&answers[i], states[i], p))
            states[i] = ANSWER_DELAYED;
}

/* An answer above unanswered jobs has to be told of in the text; the one at the watermark only
 * makes the text shorter. False: even so it is too long, from when it could be longer. */
static bool settle_what_fits(const struct kafka_partition *p,
                             const struct kafka_answer *answers, size_t n,
                             enum kafka_answer_state *states, size_t text_max,
                             struct offset_bits *settled)
{
    for (size_t i = 0; i < n; i++) {
        if (!is_open_in(&answers[i], states[i], p))
            continue;
        struct offset_bits more = *settled;
        offset_bits_settle(&more, answers[i].offset);
        if (answers[i].offset == settled->base || text_length(&more) <= text_max)
            *settled = more;
        else
            states[i] = ANSWER_DELAYED;
    }
    return text_length(settled) <= text_max;
}

static bool is_any_open_in(const struct kafka_partition *p, const struct kafka_answer *answers,
                           size_t n, const enum kafka_answer_state *states)
{
    for (size_t i = 0; i < n; i++)
        if (is_open_in(&answers[i], states[i], p))
            return true;
    return false;
}

static void add_partition(const struct kafka_partition *p, size_t text_max,
                          const struct kafka_answer *answers, size_t n,
                          enum kafka_answer_state *states,
                          rd_kafka_topic_partition_list_t *list)
{
    if (!is_any_open_in(p, answers, n, states))
        return;
    struct offset_bits settled;
    offset_tracker_settled(&p->tracker, &settled);
    if (text_max == OFFSET_METADATA_MAX) {
        for (size_t i = 0; i < n; i++)
            if (is_open_in(&answers[i], states[i], p))
                offset_bits_settle(&settled, answers[i].offset);
    } else if (!settle_what_fits(p, answers, n, states, text_max, &settled)) {
        delay_all(p, answers, n, states);
    }
    if (is_any_open_in(p, answers, n, states))
        kafka_group_add_settled(list, p->topic, p->id, &settled);
}

static int snapshot_locked(struct kafka_source *s, const struct kafka_answer *answers, size_t n,
                           enum kafka_answer_state *states, struct kafka_snapshot *out,
                           struct err *e)
{
    bool is_known = s->is_assigned && s->member != NULL && !s->is_broken;
    for (size_t i = 0; i < n; i++)
        is_known &= sort_answer(s, &answers[i], &states[i]);
    if (!is_known)
        return ERR_SET_FLAGS(e, ERR_BROKER, ERR_RETRY,
                             "the group is being rebalanced: results wait until it is known "
                             "whose they are");
    out->offsets = rd_kafka_topic_partition_list_new((int)s->partitions.n);
    for (size_t i = 0; i < s->partitions.n; i++)
        if (s->partitions.items[i]->is_owned)
            add_partition(s->partitions.items[i], s->text_max, answers, n, states,
                          out->offsets);
    rd_kafka_error_t *error =
        rd_kafka_consumer_group_metadata_read(&out->member, s->member, s->member_bytes);
    if (!error)
        return 0;
    rd_kafka_error_destroy(error);
    return ERR_SET(e, ERR_NOMEM, "no memory for the membership of the group");
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
    if (s->text_max == OFFSET_METADATA_MAX)
        log_warn("Kafka: the brokers refuse %zu characters beside an offset: answers wait for "
                 "those before them; raise offset.metadata.max.bytes to %d",
                 longest, OFFSET_METADATA_BROKER_MAX);
    s->text_max = longest / 2;
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
    struct kafka_partition *p =
        kafka_partitions_find(&s->partitions, found->topic, found->partition);
    const bool is_ours = p && p->is_owned && committed.base >= 0;
    if (is_ours)
        offset_tracker_settle_known(&p->tracker, &committed);
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
        code = rd_kafka_committed(s->rk, list, COMMITTED_WAIT_MS);
    for (int i = 0; code == RD_KAFKA_RESP_ERR_NO_ERROR && i < list->cnt; i++)
        take_over(s, &list->elems[i]);
    rd_kafka_topic_partition_list_destroy(list);
    if (code == RD_KAFKA_RESP_ERR_NO_ERROR)
        return 0;
    return ERR_SET_FLAGS(e, ERR_BROKER, ERR_RETRY,
                         "what the group has committed cannot be read: %s",
                         rd_kafka_err2str(code));
}
