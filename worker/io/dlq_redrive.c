/*
 * Dead letters sent again, in transactions of some hundred: the jobs into their topic, and
 * which letters they were as offsets of the group "<group>.dlq". A second redrive beside this
 * one has the same transactional id, so the first is fenced off, and the second begins with
 * what the first has committed.
 */
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/fault.h"
#include "base/limits.h"
#include "base/log.h"
#include "dlq_int.h"
#include "offset_tracker.h"

enum {
    BATCH_LETTERS = 256,
    BATCH_BYTES = 16 << 20, /* and one record more */
    INIT_WAIT_MS = 30000,
    POLL_MS = 100,
    ORIGIN_BYTES = TOPIC_NAME_BYTES_MAX + 64,
    NUMBER_BYTES_MAX = 20,
};

struct redrive {
    struct dlq *d;
    const struct dlq_choice *choice;
    struct redrive_report *report;
    rd_kafka_t *rk;
    struct kafka_error_log error_log;
    struct offset_tracker tracker; /* of the partition that is read */
    size_t n_batch, batch_bytes;   /* of the open transaction; none is open at 0 */
    rd_kafka_resp_err_t refusal;   /* of the first job of the batch that was not taken */
    int64_t refused_offset;
};

/* ------------------------------------------------------------------ errors */

static int superseded(const struct redrive *r, struct err *e)
{
    return ERR_SET(e, ERR_STATE,
                   "another redrive of the group %s has begun, and this one stops",
                   r->d->kafka->group);
}

/* Takes error. */
static int transaction_failed(const struct redrive *r, rd_kafka_error_t *error,
                              const char *what, struct err *e)
{
    const rd_kafka_resp_err_t code = rd_kafka_error_code(error);
    int rc;
    if (kafka_error_is_fenced(code))
        rc = superseded(r, e);
    else
        rc = ERR_SET_FLAGS(e, ERR_BROKER, ERR_RETRY,
                           "%s failed: %s; nothing is sent twice when it is run again", what,
                           rd_kafka_error_string(error));
    rd_kafka_error_destroy(error);
    return rc;
}

/* A producer that is fenced off throws away what it has: that is no fault of the job. */
static int job_refused(const struct redrive *r, rd_kafka_resp_err_t code, int64_t offset,
                       struct err *e)
{
    char reason[256];
    const rd_kafka_resp_err_t fatal = rd_kafka_fatal_error(r->rk, reason, sizeof reason);
    if (kafka_error_is_fenced(fatal))
        return superseded(r, e);
    if (fatal != RD_KAFKA_RESP_ERR_NO_ERROR)
        return ERR_SET_FLAGS(e, ERR_BROKER, ERR_RETRY,
                             "sending again failed: %s; nothing is sent twice when it is run "
                             "again",
                             reason);
    return ERR_SET(e, code == RD_KAFKA_RESP_ERR_MSG_SIZE_TOO_LARGE ? ERR_LIMIT : ERR_BROKER,
                   "the job of the dead letter at offset %lld was not taken by %s: %s",
                   (long long)offset, r->d->kafka->jobs_topic, rd_kafka_err2str(code));
}

/* ------------------------------------------------------------------ the producer */

static void on_error(rd_kafka_t *rk, int code, const char *reason, void *redrive)
{
    (void)rk;
    struct redrive *r = redrive;
    if (code != RD_KAFKA_RESP_ERR__FATAL) /* calls return those */
        kafka_error_log_line(&r->error_log, code, reason);
}

static void on_delivery(rd_kafka_t *rk, const rd_kafka_message_t *m, void *redrive)
{
    (void)rk;
    struct redrive *r = redrive;
    if (m->err == RD_KAFKA_RESP_ERR_NO_ERROR || r->refusal != RD_KAFKA_RESP_ERR_NO_ERROR)
        return;
    r->refusal = m->err;
    r->refused_offset = (int64_t)(intptr_t)m->_private;
}

/* Ends what a former redrive of the group has left open. */
static int open_producer(struct redrive *r, struct err *e)
{
    struct kafka_options options = *r->d->kafka;
    options.transactional_id = r->d->notes_group;
    rd_kafka_conf_t *conf;
    TRY(kafka_conf_build(&options, KAFKA_PRODUCER, &conf, e));
    rd_kafka_conf_set_opaque(conf, r);
    rd_kafka_conf_set_error_cb(conf, on_error);
    rd_kafka_conf_set_dr_msg_cb(conf, on_delivery);
    const int rc = kafka_produce_open(conf, &r->rk, e);
    rd_kafka_conf_destroy(conf);
    TRY(rc);
    rd_kafka_error_t *error = rd_kafka_init_transactions(r->rk, INIT_WAIT_MS);
    return error ? transaction_failed(r, error, "beginning to send again", e) : 0;
}

/* ------------------------------------------------------------------ one letter */

/* Digits in a header become a number of that place. */
static bool append_number(const struct dlq_letter *letter, const char *name, char *out)
{
    struct kafka_header header;
    if (!dlq_letter_header(letter, name, &header) || header.length == 0 ||
        header.length > NUMBER_BYTES_MAX)
        return false;
    const size_t at = strlen(out);
    for (size_t i = 0; i < header.length; i++)
        if (((const char *)header.value)[i] < '0' || ((const char *)header.value)[i] > '9')
            return false;
    snprintf(out + at, ORIGIN_BYTES - at, "/%.*s", (int)header.length,
             (const char *)header.value);
    return true;
}

/* Its own headers, and which job it is again. */
static rd_kafka_headers_t *make_headers(const struct redrive *r,
                                        const struct dlq_letter *letter)
{
    char origin[ORIGIN_BYTES];
    rd_kafka_headers_t *headers = rd_kafka_headers_new(8);
    struct kafka_header h;
    for (size_t i = 0; dlq_letter_header_at(letter, i, &h); i++)
        if (!dlq_letter_is_added(h.name) && strcmp(h.name, "sheaf.replay_of") != 0)
            rd_kafka_header_add(headers, h.name, -1, h.value, (ssize_t)h.length);
    snprintf(origin, sizeof origin, "%.*s", TOPIC_NAME_BYTES_MAX, r->d->kafka->jobs_topic);
    if (append_number(letter, "sheaf.error.partition", origin) &&
        append_number(letter, "sheaf.error.offset", origin))
        rd_kafka_header_add(headers, "sheaf.replay_of", -1, origin, -1);
    return headers;
}

static rd_kafka_resp_err_t produce(struct redrive *r, const struct dlq_letter *letter)
{
    rd_kafka_headers_t *headers = make_headers(r, letter);
    rd_kafka_resp_err_t code;
    while ((code = rd_kafka_producev(
                r->rk, RD_KAFKA_V_TOPIC(r->d->kafka->jobs_topic),
                RD_KAFKA_V_PARTITION(RD_KAFKA_PARTITION_UA),
                RD_KAFKA_V_KEY(letter->key, letter->key_length),
                RD_KAFKA_V_VALUE((void *)(uintptr_t)letter->value, letter->value_length),
                RD_KAFKA_V_HEADERS(headers), RD_KAFKA_V_MSGFLAGS(RD_KAFKA_MSG_F_COPY),
                RD_KAFKA_V_OPAQUE((void *)(intptr_t)letter->offset), RD_KAFKA_V_END)) ==
           RD_KAFKA_RESP_ERR__QUEUE_FULL)
        rd_kafka_poll(r->rk, POLL_MS);
    if (code != RD_KAFKA_RESP_ERR_NO_ERROR)
        rd_kafka_headers_destroy(headers);
    rd_kafka_poll(r->rk, 0);
    return code;
}

/* ------------------------------------------------------------------ a transaction */

static void take_back(struct redrive *r)
{
    r->n_batch = 0;
    if (rd_kafka_fatal_error(r->rk, NULL, 0) != RD_KAFKA_RESP_ERR_NO_ERROR)
        return; /* nothing can; a successor's beginning does */
    rd_kafka_error_t *error = kafka_produce_abort(r->rk);
    if (error) { /* the broker does it in the end: transaction.timeout.ms */
        log_warn("Kafka: an unfinished redrive could not be taken back: %s",
                 rd_kafka_error_string(error));
        rd_kafka_error_destroy(error);
    }
}

/* Takes error; that of a call of the open transaction. */
static int end_badly(struct redrive *r, rd_kafka_error_t *error, const char *what,
                     struct err *e)
{
    const bool is_to_abort = rd_kafka_error_txn_requires_abort(error) != 0;
    const int rc = transaction_failed(r, error, what, e);
    if (is_to_abort)
        take_back(r);
    r->n_batch = 0;
    return rc;
}

static int begin_batch(struct redrive *r, struct err *e)
{
    r->refusal = RD_KAFKA_RESP_ERR_NO_ERROR;
    r->batch_bytes = 0;
    rd_kafka_error_t *error = rd_kafka_begin_transaction(r->rk);
    return error ? transaction_failed(r, error, "beginning to send again", e) : 0;
}

static int note_batch(struct redrive *r, int32_t partition, struct err *e)
{
    struct offset_bits settled;
    offset_tracker_settled(&r->tracker, &settled);
    rd_kafka_topic_partition_list_t *offsets = rd_kafka_topic_partition_list_new(1);
    kafka_group_add_settled(offsets, r->d->topic, partition, &settled);
    rd_kafka_consumer_group_metadata_t *group =
        rd_kafka_consumer_group_metadata_new(r->d->notes_group);
    rd_kafka_error_t *error = kafka_produce_send_offsets(r->rk, offsets, group);
    rd_kafka_consumer_group_metadata_destroy(group);
    rd_kafka_topic_partition_list_destroy(offsets);
    return error ? end_badly(r, error, "noting what is sent again", e) : 0;
}

static int commit_batch(struct redrive *r, int32_t partition, struct err *e)
{
    if (r->n_batch == 0)
        return 0;
    rd_kafka_flush(r->rk, -1); /* message.timeout.ms bounds it */
    if (r->refusal != RD_KAFKA_RESP_ERR_NO_ERROR) {
        take_back(r);
        return job_refused(r, r->refusal, r->refused_offset, e);
    }
    CRASH_POINT("redrive_sent");
    TRY(note_batch(r, partition, e));
    CRASH_POINT("redrive_noted");
    rd_kafka_error_t *error = kafka_produce_commit(r->rk);
    if (error)
        return end_badly(r, error, "sending dead letters again", e);
    CRASH_POINT("redrive_committed");
    r->report->redriven += r->n_batch;
    r->n_batch = 0;
    return 0;
}

static int send_again(struct redrive *r, const struct dlq_letter *letter, struct err *e)
{
    if (r->n_batch == 0)
        TRY(begin_batch(r, e));
    r->n_batch++; /* a transaction is open from here on */
    const rd_kafka_resp_err_t code = produce(r, letter);
    if (code != RD_KAFKA_RESP_ERR_NO_ERROR) {
        take_back(r);
        return job_refused(r, code, letter->offset, e);
    }
    offset_tracker_settle(&r->tracker, letter->offset);
    r->batch_bytes += letter->key_length + letter->value_length;
    if (r->n_batch < BATCH_LETTERS && r->batch_bytes < BATCH_BYTES)
        return 0;
    return commit_batch(r, letter->partition, e);
}

/* ------------------------------------------------------------------ which letters */

static bool is_chosen(const struct dlq_choice *c, const struct dlq_letter *letter)
{
    return (!c->code || dlq_letter_header_is(letter, "sheaf.error.code", c->code)) &&
           (!c->job_id || dlq_letter_header_is(letter, "sheaf.error.job_id", c->job_id)) &&
           (c->offset < 0 || letter->offset == c->offset);
}

static bool is_enough(const struct redrive *r)
{
    return r->choice->limit >= 0 &&
           r->report->redriven + r->n_batch >= (uint64_t)r->choice->limit;
}

/* Everything of our group that is not noted stays open in the tracker until it is sent. False:
 * it is so far above the first open one that there is no room for a note. */
static bool receive(struct redrive *r, const struct dlq_letter *letter)
{
    if (offset_bits_has(&r->d->committed[letter->partition], letter->offset) ||
        !dlq_is_of_group(r->d, letter))
        return true;
    if (!offset_tracker_has_room(&r->tracker, letter->offset))
        return false;
    offset_tracker_receive(&r->tracker, letter->offset, 0);
    return true;
}

static int visit(struct redrive *r, const struct dlq_letter *letter, struct err *e)
{
    const bool has_room = receive(r, letter);
    if (!is_chosen(r->choice, letter) || letter->state == LETTER_FOREIGN)
        return 0;
    if (letter->state == LETTER_ELSEWHERE)
        r->report->elsewhere++;
    else if (letter->state == LETTER_REDRIVEN && !r->choice->again)
        r->report->already++;
    else if (!has_room)
        r->report->beyond++;
    else
        return send_again(r, letter, e);
    return 0;
}

/* ------------------------------------------------------------------ partitions */

static int begin_partition(struct redrive *r, int32_t partition, struct kafka_range *range,
                           struct err *e)
{
    TRY(dlq_range(r->d, partition, range, e));
    const struct offset_bits *noted = &r->d->committed[partition];
    const int64_t start = noted->base >= 0 ? noted->base : range->begin;
    TRY(offset_tracker_init(&r->tracker, start, INFLIGHT_SPAN_MAX, e));
    if (noted->base >= 0)
        offset_tracker_settle_known(&r->tracker, noted);
    offset_tracker_settle_below(&r->tracker, range->begin); /* what was deleted is past */
    const struct dlq_choice *c = r->choice;
    const bool is_named = c->code || c->job_id || c->offset >= 0; /* found also when sent */
    const int64_t begin = c->again || is_named ? range->begin : r->tracker.watermark;
    return kafka_admin_seek(r->d->reader, r->d->topic, partition, begin, range->end, e);
}

static int read_partition(struct redrive *r, int32_t partition, struct err *e)
{
    struct kafka_range range;
    TRY(begin_partition(r, partition, &range, e));
    bool is_at_end = false;
    while (!is_at_end && !is_enough(r)) {
        rd_kafka_message_t *message;
        TRY(kafka_admin_next(r->d->reader, &message, e));
        is_at_end = !message;
        if (!message)
            continue;
        struct dlq_letter letter;
        dlq_read(r->d, message, &letter);
        const int rc = visit(r, &letter, e);
        rd_kafka_message_destroy(message);
        TRY(rc);
    }
    if (is_at_end)
        offset_tracker_skip_to(&r->tracker, range.end);
    return commit_batch(r, partition, e);
}

/* What a consumer commits as this group would count as sent again. Brokers do not refuse it. */
static int check_members(const struct redrive *r, struct err *e)
{
    rd_kafka_event_t *event;
    const rd_kafka_ConsumerGroupDescription_t *found;
    TRY(kafka_admin_describe(r->d->reader, r->d->notes_group, &event, &found, e));
    const bool is_known = !rd_kafka_ConsumerGroupDescription_error(found);
    const size_t n = is_known ? rd_kafka_ConsumerGroupDescription_member_count(found) : 0;
    rd_kafka_event_destroy(event);
    if (n == 0)
        return 0;
    return ERR_SET(e, ERR_STATE,
                   "the group %s has %zu members, but it is the one that notes what is sent "
                   "again: let those consumers use another group",
                   r->d->notes_group, n);
}

static int redrive_all(struct redrive *r, struct err *e)
{
    int n_partitions;
    TRY(kafka_admin_count_partitions(r->d->reader, r->d->kafka->jobs_topic, &n_partitions, e));
    if (n_partitions == 0)
        return ERR_SET(e, ERR_NOTFOUND, "the topic %s does not exist, nothing is sent to it",
                       r->d->kafka->jobs_topic);
    TRY(check_members(r, e));
    TRY(open_producer(r, e));
    TRY(dlq_read_notes(r->d, true, e)); /* a former redrive has ended by now */
    for (int32_t p = 0; p < r->d->n_partitions && !is_enough(r); p++) {
        if (r->choice->partition >= 0 && r->choice->partition != p)
            continue;
        const int rc = read_partition(r, p, e);
        offset_tracker_fini(&r->tracker);
        r->tracker = (struct offset_tracker){0};
        TRY(rc);
    }
    return 0;
}

int dlq_redrive(struct dlq *d, const struct dlq_choice *choice, struct redrive_report *report,
                struct err *e)
{
    *report = (struct redrive_report){0};
    struct redrive r = {.d = d, .choice = choice, .report = report};
    const int rc = redrive_all(&r, e);
    if (r.rk && r.n_batch > 0) /* an error came while a transaction was open */
        take_back(&r);
    if (r.rk)
        rd_kafka_destroy(r.rk);
    return rc;
}
