#include "kafka_admin_int.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"

/* A reader of everything, not of a few jobs: librdkafka pauses for a second whenever more than
 * this is fetched ahead, and an end is to be seen soon, as the next partition waits for it. */
static const char *const fetching[][2] = {{"queued.min.messages", "100000"},
                                          {"queued.max.messages.kbytes", "32768"},
                                          {"fetch.wait.max.ms", "10"}};

enum {
    LOOK_UP_MS = 10000,
    ADMIN_MS = 15000,
    REPEAT_MS = 200,
    REPEAT_US_MAX = 15000000, /* a broker that has just started reads its groups first */
    SLICE_MS = 100,
    TOPIC_WAIT_US = 400000,  /* a topic that was just made is not known everywhere */
    QUIET_US_MAX = 30000000, /* a partition that gives nothing for so long is not read on */
};

static void on_error(rd_kafka_t *rk, int code, const char *reason, void *reader)
{
    (void)rk;
    struct kafka_admin *r = reader;
    const bool is_told = /* by the call that waits for an answer */
        code == RD_KAFKA_RESP_ERR__FATAL || code == RD_KAFKA_RESP_ERR__ALL_BROKERS_DOWN ||
        code == RD_KAFKA_RESP_ERR__TRANSPORT;
    if (!is_told || r->error_log.is_quiet)
        kafka_error_log_line(&r->error_log, code, reason);
}

static int make_handle(struct kafka_admin *r, const struct kafka_options *o, struct err *e)
{
    rd_kafka_conf_t *conf;
    char reason[256];
    TRY(kafka_conf_build(o, KAFKA_CONSUMER, &conf, e));
    for (size_t i = 0; i < sizeof fetching / sizeof *fetching; i++)
        rd_kafka_conf_set(conf, fetching[i][0], fetching[i][1], reason, sizeof reason);
    rd_kafka_conf_set_opaque(conf, r);
    rd_kafka_conf_set_error_cb(conf, on_error);
    return kafka_conf_open_consumer(conf, &r->rk, e);
}

int kafka_admin_open(const struct kafka_options *o, struct kafka_admin **out, struct err *e)
{
    *out = NULL;
    struct kafka_admin *r = calloc(1, sizeof *r);
    if (!r)
        return ERR_SET(e, ERR_NOMEM, "no memory for a Kafka reader");
    int rc = make_handle(r, o, e);
    if (rc == 0 && !(r->brokers = strdup(o->brokers)))
        rc = ERR_SET(e, ERR_NOMEM, "no memory for a Kafka reader");
    if (rc == 0)
        rc = kafka_reach(r->rk, &r->error_log, o->brokers, e);
    if (rc != 0) {
        kafka_admin_close(r);
        return rc;
    }
    *out = r;
    return 0;
}

void kafka_admin_close(struct kafka_admin *r)
{
    if (!r)
        return;
    if (r->rk)
        rd_kafka_destroy_flags(r->rk, RD_KAFKA_DESTROY_F_NO_CONSUMER_CLOSE);
    free(r->brokers);
    free(r);
}

/* The error that goes with what a broker said, or did not. */
static int fail(const struct kafka_admin *r, rd_kafka_resp_err_t code, const char *what,
                struct err *e)
{
    switch ((int)code) {
    case RD_KAFKA_RESP_ERR__TRANSPORT:
    case RD_KAFKA_RESP_ERR__TIMED_OUT:
    case RD_KAFKA_RESP_ERR__ALL_BROKERS_DOWN:
    case RD_KAFKA_RESP_ERR__RESOLVE:
        return ERR_SET_FLAGS(e, ERR_BROKER, ERR_RETRY,
                             "no Kafka broker answers at %s (asked for %s)", r->brokers, what);
    case RD_KAFKA_RESP_ERR_COORDINATOR_LOAD_IN_PROGRESS:
    case RD_KAFKA_RESP_ERR_COORDINATOR_NOT_AVAILABLE:
    case RD_KAFKA_RESP_ERR_NOT_COORDINATOR:
    case RD_KAFKA_RESP_ERR_UNSTABLE_OFFSET_COMMIT:
        return ERR_SET_FLAGS(e, ERR_BROKER, ERR_RETRY, "%s cannot be read yet: %s", what,
                             rd_kafka_err2str(code));
    default:
        return ERR_SET(e, ERR_BROKER, "%s cannot be read: %s", what, rd_kafka_err2str(code));
    }
}

/* ------------------------------------------------------------------ topics */

int kafka_admin_count_partitions(struct kafka_admin *r, const char *topic, int *n,
                                 struct err *e)
{
    const int64_t began_us = clock_mono_us();
    for (;;) {
        const rd_kafka_resp_err_t code = kafka_topic_look_up(r->rk, topic, LOOK_UP_MS, n);
        if (code == RD_KAFKA_RESP_ERR_NO_ERROR && *n > 0)
            return 0;
        if (code == RD_KAFKA_RESP_ERR__TRANSPORT || code == RD_KAFKA_RESP_ERR__TIMED_OUT ||
            kafka_error_reaction(code) != KAFKA_IGNORE)
            return fail(r, code, topic, e);
        if (clock_mono_us() - began_us >= TOPIC_WAIT_US)
            return 0;
        nanosleep(&(struct timespec){.tv_nsec = SLICE_MS * 1000000L}, NULL);
    }
}

int kafka_admin_range(struct kafka_admin *r, const char *topic, int32_t partition,
                      struct kafka_range *out, struct err *e)
{
    const rd_kafka_resp_err_t code = rd_kafka_query_watermark_offsets(
        r->rk, topic, partition, &out->begin, &out->end, LOOK_UP_MS);
    return code == RD_KAFKA_RESP_ERR_NO_ERROR ? 0 : fail(r, code, topic, e);
}

/* ------------------------------------------------------------------ records */

int kafka_admin_seek(struct kafka_admin *r, const char *topic, int32_t partition, int64_t begin,
                     int64_t end, struct err *e)
{
    r->partition = partition;
    r->end = end;
    r->is_at_end = begin >= end;
    if (r->is_at_end)
        return 0;
    rd_kafka_topic_partition_list_t *list = rd_kafka_topic_partition_list_new(1);
    rd_kafka_topic_partition_list_add(list, topic, partition)->offset = begin;
    const rd_kafka_resp_err_t code = rd_kafka_assign(r->rk, list);
    rd_kafka_topic_partition_list_destroy(list);
    return code == RD_KAFKA_RESP_ERR_NO_ERROR ? 0 : fail(r, code, topic, e);
}

/* True: it says that nothing more is wanted. What is left of the partition read before, or bad
 * news that librdkafka gets over, is passed by. */
static bool is_end(struct kafka_admin *r, const rd_kafka_message_t *m)
{
    if (m->partition == r->partition && m->err == RD_KAFKA_RESP_ERR__PARTITION_EOF)
        return true;
    if (m->err != RD_KAFKA_RESP_ERR_NO_ERROR && m->err != RD_KAFKA_RESP_ERR__PARTITION_EOF)
        kafka_error_log_line(&r->error_log, m->err, rd_kafka_message_errstr(m));
    return m->partition == r->partition && m->err == RD_KAFKA_RESP_ERR_NO_ERROR &&
           m->offset >= r->end;
}

int kafka_admin_next(struct kafka_admin *r, rd_kafka_message_t **out, struct err *e)
{
    *out = NULL;
    const int64_t began_us = clock_mono_us();
    while (!r->is_at_end) {
        rd_kafka_message_t *m = rd_kafka_consumer_poll(r->rk, SLICE_MS);
        if (m) {
            r->is_at_end = is_end(r, m);
            if (!r->is_at_end && m->partition == r->partition &&
                m->err == RD_KAFKA_RESP_ERR_NO_ERROR) {
                *out = m;
                return 0;
            }
            rd_kafka_message_destroy(m);
        }
        if (!r->is_at_end && clock_mono_us() - began_us > QUIET_US_MAX)
            return fail(r, RD_KAFKA_RESP_ERR__TIMED_OUT, "records", e);
    }
    return 0;
}

/* ------------------------------------------------------------------ requests */

/* Takes error. */
static void drop_error(rd_kafka_error_t *error)
{
    if (error)
        rd_kafka_error_destroy(error);
}

int kafka_admin_request(struct kafka_admin *r, rd_kafka_admin_op_t kind, bool is_stable,
                        kafka_admin_ask ask, void *ctx, const char *what,
                        rd_kafka_event_t **out, struct err *e)
{
    char reason[256];
    rd_kafka_queue_t *answers = rd_kafka_queue_new(r->rk);
    rd_kafka_AdminOptions_t *options = rd_kafka_AdminOptions_new(r->rk, kind);
    rd_kafka_AdminOptions_set_request_timeout(options, ADMIN_MS, reason, sizeof reason);
    if (is_stable)
        drop_error(rd_kafka_AdminOptions_set_require_stable_offsets(options, 1));
    ask(r->rk, options, answers, ctx);
    *out = rd_kafka_queue_poll(answers, ADMIN_MS * 2);
    rd_kafka_AdminOptions_destroy(options);
    rd_kafka_queue_destroy(answers);
    const rd_kafka_resp_err_t code =
        *out ? rd_kafka_event_error(*out) : RD_KAFKA_RESP_ERR__TIMED_OUT;
    if (code == RD_KAFKA_RESP_ERR_NO_ERROR)
        return 0;
    if (*out)
        rd_kafka_event_destroy(*out);
    *out = NULL;
    return fail(r, code, what, e);
}

struct offsets_question {
    const char *group, *topic;
    const rd_kafka_topic_partition_list_t *partitions;
};

static void ask_for_offsets(rd_kafka_t *rk, const rd_kafka_AdminOptions_t *options,
                            rd_kafka_queue_t *answers, void *ctx)
{
    const struct offsets_question *q = ctx;
    rd_kafka_ListConsumerGroupOffsets_t *list =
        rd_kafka_ListConsumerGroupOffsets_new(q->group, q->partitions);
    rd_kafka_ListConsumerGroupOffsets(rk, &list, 1, options, answers);
    rd_kafka_ListConsumerGroupOffsets_destroy(list);
}

static int read_offsets(const struct kafka_admin *r, rd_kafka_event_t *event, const char *topic,
                        int n, struct offset_bits *committed, struct err *e)
{
    size_t n_groups;
    const rd_kafka_group_result_t **groups = rd_kafka_ListConsumerGroupOffsets_result_groups(
        rd_kafka_event_ListConsumerGroupOffsets_result(event), &n_groups);
    if (n_groups != 1)
        return fail(r, RD_KAFKA_RESP_ERR__BAD_MSG, "a group's offsets", e);
    const rd_kafka_error_t *error = rd_kafka_group_result_error(groups[0]);
    if (error)
        return fail(r, rd_kafka_error_code(error), "a group's offsets", e);
    const rd_kafka_topic_partition_list_t *list = rd_kafka_group_result_partitions(groups[0]);
    for (int i = 0; i < n; i++) {
        const rd_kafka_topic_partition_t *found = NULL;
        for (int k = 0; list && k < list->cnt; k++)
            if (list->elems[k].partition == i && strcmp(list->elems[k].topic, topic) == 0)
                found = &list->elems[k];
        if (found && found->err != RD_KAFKA_RESP_ERR_NO_ERROR)
            return fail(r, found->err, "a group's offsets", e);
        kafka_group_read_committed(found, &committed[i]);
    }
    return 0;
}

static int ask_committed(struct kafka_admin *r, struct offsets_question *question, int n,
                         bool is_stable, struct offset_bits *committed, struct err *e)
{
    rd_kafka_event_t *event;
    TRY(kafka_admin_request(r, RD_KAFKA_ADMIN_OP_LISTCONSUMERGROUPOFFSETS, is_stable,
                            ask_for_offsets, question, "a group's offsets", &event, e));
    const int rc = read_offsets(r, event, question->topic, n, committed, e);
    rd_kafka_event_destroy(event);
    return rc;
}

/* Is what failed worth another try? Waits for it then. */
static bool may_repeat(const struct err *why, int64_t began_us)
{
    if (!(why->flags & ERR_RETRY) || clock_mono_us() - began_us > REPEAT_US_MAX)
        return false;
    nanosleep(&(struct timespec){.tv_nsec = REPEAT_MS * 1000000L}, NULL);
    return true;
}

int kafka_admin_committed(struct kafka_admin *r, const char *group, const char *topic, int n,
                          bool is_stable, struct offset_bits *committed, struct err *e)
{
    rd_kafka_topic_partition_list_t *partitions = rd_kafka_topic_partition_list_new(n);
    for (int i = 0; i < n; i++)
        rd_kafka_topic_partition_list_add(partitions, topic, i);
    struct offsets_question question = {group, topic, partitions};
    const int64_t began_us = clock_mono_us();
    struct err why;
    do
        why = (struct err){0};
    while (ask_committed(r, &question, n, is_stable, committed, &why) != 0 &&
           may_repeat(&why, began_us));
    rd_kafka_topic_partition_list_destroy(partitions);
    return why.code == 0 ? 0 : ERR_SET_FLAGS(e, why.code, why.flags, "%s", why.text);
}

/* ------------------------------------------------------------------ groups */

static void ask_for_group(rd_kafka_t *rk, const rd_kafka_AdminOptions_t *options,
                          rd_kafka_queue_t *answers, void *ctx)
{
    const char *group = ctx;
    rd_kafka_DescribeConsumerGroups(rk, &group, 1, options, answers);
}

static int ask_group(struct kafka_admin *r, const char *group, rd_kafka_event_t **event,
                     const rd_kafka_ConsumerGroupDescription_t **out, struct err *e)
{
    TRY(kafka_admin_request(r, RD_KAFKA_ADMIN_OP_DESCRIBECONSUMERGROUPS, false, ask_for_group,
                            (void *)(uintptr_t)group, "a group", event, e));
    size_t n;
    const rd_kafka_ConsumerGroupDescription_t **groups =
        rd_kafka_DescribeConsumerGroups_result_groups(
            rd_kafka_event_DescribeConsumerGroups_result(*event), &n);
    *out = n == 1 ? groups[0] : NULL;
    const rd_kafka_error_t *error = *out ? rd_kafka_ConsumerGroupDescription_error(*out) : NULL;
    rd_kafka_resp_err_t code = *out ? rd_kafka_error_code(error) : RD_KAFKA_RESP_ERR__BAD_MSG;
    if (code == RD_KAFKA_RESP_ERR_NO_ERROR || code == RD_KAFKA_RESP_ERR_GROUP_ID_NOT_FOUND)
        return 0;
    const int rc = fail(r, code, "a group", e);
    rd_kafka_event_destroy(*event);
    *event = NULL;
    return rc;
}

int kafka_admin_describe(struct kafka_admin *r, const char *group, rd_kafka_event_t **event,
                         const rd_kafka_ConsumerGroupDescription_t **out, struct err *e)
{
    const int64_t began_us = clock_mono_us();
    struct err why;
    do
        why = (struct err){0};
    while (ask_group(r, group, event, out, &why) != 0 && may_repeat(&why, began_us));
    return why.code == 0 ? 0 : ERR_SET_FLAGS(e, why.code, why.flags, "%s", why.text);
}
