/*
 * Records of this producer's id that stay open although everything it began is ended.
 *
 * A coordinator ends what former producers of an id began before it lets a new one begin, and
 * says so of each transaction that is taken back. Brokers that were fenced off by their own
 * controller for seconds have been seen to say so and to write no end of the transaction to the
 * partitions it was in: its records stay open, and the next commit of the same id makes them
 * visible beside what was sent in their place.
 *
 *     look     where each partition of the topics ends, for readers of open records
 *     wait     for readers of committed records to get as far: ends are written a little later
 *              than they are acknowledged
 *     end      where they do not: one more transaction there, taken back; what its end says
 *              counts for every record that the id has left open
 *
 * Others' open transactions look the same, and stay as they are.
 */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/log.h"
#include "kafka_int.h"

enum {
    LOOK_MS = 2000,
    LOOK_US_MAX = 10000000,
    WAIT_US_MAX = 1000000,
    NAP_MS = 20,
};

static void nap(void)
{
    nanosleep(&(struct timespec){.tv_nsec = NAP_MS * 1000000L}, NULL);
}

int kafka_undecided_open(const struct kafka_options *o, struct kafka_undecided *u,
                         struct err *e)
{
    *u = (struct kafka_undecided){0};
    TRY(kafka_conf_build(o, KAFKA_CONSUMER, &u->conf, e));
    /* Last: it is a setting of those that no user changes. */
    rd_kafka_conf_set(u->conf, "isolation.level", "read_uncommitted", NULL, 0);
    u->group = strdup(o->group);
    bool is_whole = u->group != NULL;
    const char *const names[] = {o->results_topic, o->letters_topic};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (!names[i])
            continue;
        u->topics[u->n_topics] = strdup(names[i]);
        is_whole = is_whole && u->topics[u->n_topics++];
    }
    return is_whole ? 0 : ERR_SET(e, ERR_NOMEM, "no memory for the names of topics");
}

void kafka_undecided_close(struct kafka_undecided *u)
{
    if (u->conf)
        rd_kafka_conf_destroy(u->conf);
    for (size_t i = 0; i < u->n_topics; i++)
        free(u->topics[i]);
    free(u->group);
    *u = (struct kafka_undecided){0};
}

/* ------------------------------------------------------------------ look */

/* Nothing of ours is open in a topic that does not exist or that we may not write to. */
static bool has_none_of_ours(rd_kafka_resp_err_t code)
{
    return kafka_topic_is_unknown(code) || code == RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED;
}

/* Those that have a leader; of the others nobody knows anything. */
static rd_kafka_resp_err_t list_partitions(const struct kafka_undecided *u, rd_kafka_t *rk,
                                           rd_kafka_topic_partition_list_t *list, bool *are_all)
{
    *are_all = true;
    for (size_t i = 0; i < u->n_topics; i++) {
        bool are_led;
        const rd_kafka_resp_err_t code =
            kafka_topic_list_led(rk, u->topics[i], LOOK_MS, list, &are_led);
        if (code != RD_KAFKA_RESP_ERR_NO_ERROR && !has_none_of_ours(code))
            return code;
        *are_all = *are_all && are_led;
    }
    return RD_KAFKA_RESP_ERR_NO_ERROR;
}

/* One question to each broker: offset: where each ends, as rk's isolation level has it. */
static rd_kafka_resp_err_t ask_ends(rd_kafka_t *rk, rd_kafka_topic_partition_list_t *list)
{
    for (int i = 0; i < list->cnt; i++)
        list->elems[i].offset = RD_KAFKA_OFFSET_END;
    rd_kafka_resp_err_t code =
        list->cnt > 0 ? rd_kafka_offsets_for_times(rk, list, LOOK_MS) : 0;
    for (int i = 0; i < list->cnt && code == RD_KAFKA_RESP_ERR_NO_ERROR; i++)
        code = list->elems[i].offset >= 0 ? list->elems[i].err
                                          : RD_KAFKA_RESP_ERR_LEADER_NOT_AVAILABLE;
    return code;
}

/* The partitions of the topics; offset: where each ends, open records included. */
static rd_kafka_resp_err_t look_once(const struct kafka_undecided *u, rd_kafka_t *looker,
                                     rd_kafka_topic_partition_list_t *list, bool *are_all)
{
    const rd_kafka_resp_err_t code = list_partitions(u, looker, list, are_all);
    return code == RD_KAFKA_RESP_ERR_NO_ERROR ? ask_ends(looker, list) : code;
}

static void clear_list(rd_kafka_topic_partition_list_t *list)
{
    while (list->cnt > 0)
        rd_kafka_topic_partition_list_del_by_idx(list, list->cnt - 1);
}

static int look(const struct kafka_undecided *u, rd_kafka_topic_partition_list_t *list,
                bool *are_all, struct err *e)
{
    rd_kafka_t *looker;
    TRY(kafka_conf_open_consumer(rd_kafka_conf_dup(u->conf), &looker, e));
    const int64_t began_us = clock_mono_us();
    rd_kafka_resp_err_t code;
    while ((code = look_once(u, looker, list, are_all)) != RD_KAFKA_RESP_ERR_NO_ERROR &&
           clock_mono_us() - began_us < LOOK_US_MAX) {
        clear_list(list);
        nap();
    }
    rd_kafka_destroy(looker);
    if (code == RD_KAFKA_RESP_ERR_NO_ERROR)
        return 0;
    return ERR_SET_FLAGS(e, ERR_BROKER, ERR_RETRY, "where %s%s%s ends cannot be asked: %s",
                         u->topics[0], u->n_topics > 1 ? " or " : "",
                         u->n_topics > 1 ? u->topics[1] : "", rd_kafka_err2str(code));
}

/* ------------------------------------------------------------------ wait */

/* Leaves those that readers of committed records cannot read to the end. The producer asks as
 * such a reader does. */
static void drop_decided(rd_kafka_t *producer, rd_kafka_topic_partition_list_t *list)
{
    rd_kafka_topic_partition_list_t *found = rd_kafka_topic_partition_list_copy(list);
    ask_ends(producer, found); /* what is not known is no end */
    for (int i = list->cnt; i-- > 0;)
        if (found->elems[i].offset >= list->elems[i].offset)
            rd_kafka_topic_partition_list_del_by_idx(list, i);
    rd_kafka_topic_partition_list_destroy(found);
}

static void wait_decided(rd_kafka_t *producer, rd_kafka_topic_partition_list_t *list)
{
    const int64_t began_us = clock_mono_us();
    for (;;) {
        drop_decided(producer, list);
        if (list->cnt == 0 || clock_mono_us() - began_us > WAIT_US_MAX)
            return;
        nap();
    }
}

/* ------------------------------------------------------------------ end */

/* A record without a value in each partition. Nobody sees it. */
static int produce_nothing(rd_kafka_t *producer, const rd_kafka_topic_partition_list_t *list,
                           struct err *e)
{
    struct kafka_delivery *reports = calloc((size_t)list->cnt, sizeof reports[0]);
    if (!reports)
        return ERR_SET_FLAGS(e, ERR_NOMEM, ERR_RETRY, "no memory to look after open records");
    int rc = 0;
    for (int i = 0; i < list->cnt; i++) {
        const struct kafka_message m = {
            .topic = list->elems[i].topic, .key = "sheaf", .key_length = strlen("sheaf")};
        kafka_produce_to(producer, &m, list->elems[i].partition, &reports[i]);
    }
    for (int i = 0; i < list->cnt; i++) {
        kafka_produce_wait(producer, &reports[i]);
        if (reports[i].code != RD_KAFKA_RESP_ERR_NO_ERROR && rc == 0)
            rc = ERR_SET_FLAGS(e, ERR_BROKER, ERR_RETRY,
                               "open records of %s [%d] cannot be ended: %s",
                               list->elems[i].topic, list->elems[i].partition,
                               rd_kafka_err2str(reports[i].code));
    }
    free(reports);
    return rc;
}

/* Takes error. */
static int fail(rd_kafka_error_t *error, struct err *e)
{
    if (!error)
        return 0;
    const int rc = ERR_SET_FLAGS(e, ERR_BROKER, ERR_RETRY, "ending open records failed: %s",
                                 rd_kafka_error_string(error));
    rd_kafka_error_destroy(error);
    return rc;
}

/* The answers to offsets of somebody who is no member, or may not read the topic. */
static bool is_refusal(rd_kafka_resp_err_t code)
{
    return code == RD_KAFKA_RESP_ERR_UNKNOWN_MEMBER_ID ||
           code == RD_KAFKA_RESP_ERR_ILLEGAL_GENERATION ||
           code == RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED;
}

/* Offsets that were to come true with the records wait for the same end. What makes the group's
 * offsets part of the transaction is the question; that it is refused keeps this offset from
 * coming true should the end of this transaction get lost, too. */
static int ask_in_vain(const struct kafka_undecided *u, rd_kafka_t *producer,
                       const rd_kafka_topic_partition_t *p, struct err *e)
{
    rd_kafka_topic_partition_list_t *offsets = rd_kafka_topic_partition_list_new(1);
    rd_kafka_topic_partition_list_add(offsets, p->topic, p->partition)->offset = 0;
    rd_kafka_consumer_group_metadata_t *nobody =
        rd_kafka_consumer_group_metadata_new_with_genid(u->group, 0, "nobody", NULL);
    rd_kafka_error_t *error = kafka_produce_send_offsets(producer, offsets, nobody);
    rd_kafka_consumer_group_metadata_destroy(nobody);
    rd_kafka_topic_partition_list_destroy(offsets);
    if (!error || !is_refusal(rd_kafka_error_code(error)))
        return fail(error, e);
    rd_kafka_error_destroy(error);
    return 0;
}

static int end_there(const struct kafka_undecided *u, rd_kafka_t *producer,
                     const rd_kafka_topic_partition_list_t *list, struct err *e)
{
    TRY(fail(rd_kafka_begin_transaction(producer), e));
    int rc = produce_nothing(producer, list, e);
    if (rc == 0)
        rc = ask_in_vain(u, producer, &list->elems[0], e);
    const int aborted = fail(kafka_produce_abort(producer), rc == 0 ? e : NULL);
    return rc != 0 ? rc : aborted;
}

int kafka_undecided_end(const struct kafka_undecided *u, rd_kafka_t *producer, bool *are_all,
                        struct err *e)
{
    *are_all = true;
    if (u->n_topics == 0)
        return 0;
    rd_kafka_topic_partition_list_t *list = rd_kafka_topic_partition_list_new(8);
    int rc = look(u, list, are_all, e);
    if (rc == 0)
        wait_decided(producer, list);
    if (rc == 0 && list->cnt > 0) {
        log_warn("%s [%d]%s: records before offset %lld are open; what this worker may have "
                 "left of them is taken back",
                 list->elems[0].topic, list->elems[0].partition,
                 list->cnt > 1 ? " and others" : "", (long long)list->elems[0].offset);
        rc = end_there(u, producer, list, e);
    }
    rd_kafka_topic_partition_list_destroy(list);
    return rc;
}
