#include "io/kafka_burst.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/fault.h"
#include "base/log.h"
#include "kafka_int.h"

enum {
    INIT_WAIT_MS = 30000,
    FENCED_US = 300000000,
};

struct kafka_burst {
    rd_kafka_t *rk; /* NULL: to be made */
    rd_kafka_conf_t *conf;
    char *id;
    bool is_unsure;       /* whether the last commit was carried out */
    bool is_text_refused; /* beside an offset, by the last burst's broker */
    bool sends_singly;    /* since a batch was refused for its size, until a burst is given */
    bool may_be_open;     /* records of a transaction that did not come true */
    int64_t fenced_us;    /* when last without a reason of its own; 0: never */
    int64_t began_us;     /* the transaction that is open; 0: none is */
    int64_t timeout_us;   /* after which brokers end it */
    struct kafka_undecided undecided;
    struct kafka_error_log error_log;
};

static void on_error(rd_kafka_t *rk, int code, const char *reason, void *burst)
{
    (void)rk;
    struct kafka_burst *b = burst;
    if (code != RD_KAFKA_RESP_ERR__FATAL) /* calls return those */
        kafka_error_log_line(&b->error_log, code, reason);
}

/* ------------------------------------------------------------------ the producer */

static void drop_producer(struct kafka_burst *b)
{
    if (b->rk)
        rd_kafka_destroy(b->rk);
    b->rk = NULL;
    b->may_be_open = true;
}

/* Brokers fence off the producer of a transaction that ran out of time, too; and once is no
 * proof of another worker. */
static int report_fenced(struct kafka_burst *b, struct err *e)
{
    const int64_t now_us = clock_mono_us();
    const bool is_late = b->began_us != 0 && now_us - b->began_us >= b->timeout_us;
    const bool is_again = b->fenced_us != 0 && now_us - b->fenced_us < FENCED_US;
    if (!is_late)
        b->fenced_us = now_us;
    if (is_again && !is_late)
        return ERR_SET_FLAGS(e, ERR_BROKER, ERR_FATAL,
                             "another worker publishes as %s: each worker needs a database of "
                             "its own, and no copy of another's",
                             b->id);
    return ERR_SET_FLAGS(e, ERR_BROKER, ERR_RETRY,
                         "the producer %s was fenced off by the broker: a new one is made",
                         b->id);
}

/* Takes error. The producer is of no more use. */
static int give_up_producer(struct kafka_burst *b, rd_kafka_error_t *error, const char *what,
                            struct err *e)
{
    const rd_kafka_resp_err_t code = rd_kafka_error_code(error);
    const bool is_fenced = kafka_error_is_fenced(code);
    const bool is_permanent = !is_fenced && kafka_error_reaction(code) == KAFKA_PERMANENT;
    const int rc = is_fenced
                       ? report_fenced(b, e)
                       : ERR_SET_FLAGS(e, ERR_BROKER, is_permanent ? ERR_FATAL : ERR_RETRY,
                                       "%s failed: %s", what, rd_kafka_error_string(error));
    rd_kafka_error_destroy(error);
    drop_producer(b);
    return rc;
}

static int make_producer(struct kafka_burst *b, struct err *e)
{
    if (b->rk)
        return 0;
    TRY(kafka_produce_open(b->conf, &b->rk, e));
    rd_kafka_error_t *error = rd_kafka_init_transactions(b->rk, INIT_WAIT_MS);
    return error ? give_up_producer(b, error, "beginning to publish", e) : 0;
}

/* Before anything is committed under this id again. */
static int end_open_records(struct kafka_burst *b, struct err *e)
{
    if (!b->may_be_open || !GUARD("undecided"))
        return 0;
    bool are_all;
    const int rc = kafka_undecided_end(&b->undecided, b->rk, &are_all, e);
    if (rc != 0)
        drop_producer(b);
    b->may_be_open = rc != 0 || !are_all;
    return rc;
}

static int64_t transaction_timeout_us(const rd_kafka_conf_t *conf)
{
    char ms[32] = "";
    size_t size = sizeof ms;
    rd_kafka_conf_get(conf, "transaction.timeout.ms", ms, &size);
    return strtoll(ms, NULL, 10) * 1000;
}

int kafka_burst_open(const struct kafka_options *o, struct kafka_burst **out, struct err *e)
{
    *out = NULL;
    struct kafka_burst *b = calloc(1, sizeof *b);
    if (!b || !(b->id = strdup(o->transactional_id))) {
        free(b);
        return ERR_SET(e, ERR_NOMEM, "no memory for a Kafka producer");
    }
    b->may_be_open = true;
    int rc = kafka_conf_build(o, KAFKA_PRODUCER, &b->conf, e);
    if (rc == 0)
        rc = kafka_undecided_open(o, &b->undecided, e);
    if (rc == 0) {
        b->timeout_us = transaction_timeout_us(b->conf);
        rd_kafka_conf_set_opaque(b->conf, b);
        rd_kafka_conf_set_error_cb(b->conf, on_error);
        rd_kafka_conf_set_dr_msg_cb(b->conf, kafka_produce_on_delivery);
        rc = make_producer(b, e);
    }
    if (rc == 0)
        rc = end_open_records(b, e);
    if (rc != 0) {
        kafka_burst_close(b);
        return rc;
    }
    *out = b;
    return 0;
}

void kafka_burst_close(struct kafka_burst *b)
{
    if (!b)
        return;
    drop_producer(b);
    if (b->conf)
        rd_kafka_conf_destroy(b->conf);
    kafka_undecided_close(&b->undecided);
    free(b->id);
    free(b);
}

bool kafka_burst_is_unsure(const struct kafka_burst *b)
{
    return b->is_unsure;
}

/* ------------------------------------------------------------------ a transaction */

/* rc is why, and in e already; what is found out now stands in its place only when no later
 * call can help. True: nobody has seen anything of the transaction. */
static bool take_back(struct kafka_burst *b, int *rc, struct err *e)
{
    b->may_be_open = true;
    rd_kafka_error_t *error = kafka_produce_abort(b->rk);
    if (!error)
        return true;
    struct err worse = {0};
    const int code = give_up_producer(b, error, "taking a burst of results back", &worse);
    if (worse.flags & ERR_FATAL) {
        err_clear(e);
        *rc = ERR_SET_FLAGS(e, code, worse.flags, "%s", worse.text);
    }
    return false;
}

/* Takes error, which is no reason to repeat the call. */
static int end_badly(struct kafka_burst *b, rd_kafka_error_t *error, const char *what,
                     struct err *e)
{
    if (rd_kafka_error_is_fatal(error) || !rd_kafka_error_txn_requires_abort(error))
        return give_up_producer(b, error, what, e);
    const bool is_permanent =
        kafka_error_reaction(rd_kafka_error_code(error)) == KAFKA_PERMANENT;
    int rc = ERR_SET_FLAGS(e, ERR_BROKER, is_permanent ? ERR_FATAL : ERR_RETRY, "%s failed: %s",
                           what, rd_kafka_error_string(error));
    rd_kafka_error_destroy(error);
    if (take_back(b, &rc, e))
        b->is_unsure = false;
    return rc;
}

static int send_offsets(struct kafka_burst *b, const struct kafka_snapshot *snapshot,
                        struct err *e)
{
    rd_kafka_error_t *error =
        kafka_produce_send_offsets(b->rk, snapshot->offsets, snapshot->member);
    b->is_text_refused =
        error && rd_kafka_error_code(error) == RD_KAFKA_RESP_ERR_OFFSET_METADATA_TOO_LARGE;
    return error ? end_badly(b, error, "committing the offsets of answered jobs", e) : 0;
}

/* Once it is asked for, a commit that does not answer may still come true: then only a new
 * producer makes sure that it does not end a later transaction. */
static int commit(struct kafka_burst *b, struct err *e)
{
    b->is_unsure = true;
    rd_kafka_error_t *error = kafka_produce_commit(b->rk);
    if (!error && !GUARD("commit-heard")) /* no guard: the answer that gets lost */
        error = rd_kafka_error_new(RD_KAFKA_RESP_ERR__TIMED_OUT, "no answer");
    if (error)
        return end_badly(b, error, "publishing a burst of results", e);
    b->is_unsure = false;
    return 0;
}

/* The messages of the answers that are open. */
struct parcel {
    struct kafka_message *messages;
    struct kafka_delivery *reports;
    size_t *answers; /* which one each belongs to */
    size_t n;
    bool is_purged; /* librdkafka has thrown some away */
};

static void parcel_fini(struct parcel *p)
{
    free(p->messages);
    free(p->reports);
    free(p->answers);
}

static void add_message(struct parcel *p, const struct kafka_message *m, size_t answer)
{
    p->messages[p->n] = *m;
    p->answers[p->n++] = answer;
}

static int pack(const struct kafka_answer *answers, size_t n,
                const enum kafka_answer_state *states, struct parcel *p, struct err *e)
{
    *p = (struct parcel){.messages = calloc(2 * n, sizeof p->messages[0]),
                         .reports = calloc(2 * n, sizeof p->reports[0]),
                         .answers = calloc(2 * n, sizeof p->answers[0])};
    if (!p->messages || !p->reports || !p->answers)
        return ERR_SET_FLAGS(e, ERR_NOMEM, ERR_RETRY, "no memory to send %zu results", n);
    for (size_t i = 0; i < n; i++) {
        if (states[i] != ANSWER_OPEN || !answers[i].message.value)
            continue;
        add_message(p, &answers[i].message, i);
        if (answers[i].dead_letter.topic)
            add_message(p, &answers[i].dead_letter, i);
    }
    return 0;
}

/* The first that failed, or 0; those that are too large are marked, and are what is to be said:
 * the transaction has failed with them, so that other messages are thrown away or refused. */
static int read_reports(struct parcel *p, enum kafka_answer_state *states, struct err *e)
{
    int rc = 0;
    bool is_limit = false;
    struct err first = {0};
    for (size_t i = 0; i < p->n; i++) {
        struct err why = {0};
        const size_t at = p->answers[i];
        const bool is_letter = i > 0 && p->answers[i - 1] == at;
        const int code = kafka_produce_outcome(&p->messages[i], p->reports[i].code, &why);
        p->is_purged |= p->reports[i].code == RD_KAFKA_RESP_ERR__PURGE_QUEUE ||
                        p->reports[i].code == RD_KAFKA_RESP_ERR__PURGE_INFLIGHT;
        if (code == ERR_LIMIT) {
            if (states[at] == ANSWER_OPEN)
                states[at] = is_letter ? ANSWER_LETTER_TOO_LARGE : ANSWER_TOO_LARGE;
            is_limit = true;
        } else if (code != 0 && rc == 0) {
            rc = code;
            first = why;
        }
    }
    if (is_limit && (first.flags & ERR_RETRY || rc == 0))
        return ERR_SET(e, ERR_LIMIT, "a result is too large for its topic");
    return rc == 0 ? 0 : ERR_SET_FLAGS(e, rc, first.flags, "%s", first.text);
}

/* Each waits for the one before it. */
static void produce_singly(struct kafka_burst *b, struct parcel *p)
{
    for (size_t i = 0; i < p->n; i++)
        kafka_produce_all(b->rk, &p->messages[i], 1, &p->reports[i]);
}

static int produce(struct kafka_burst *b, const struct kafka_answer *answers, size_t n,
                   enum kafka_answer_state *states, bool *is_purged, struct err *e)
{
    struct parcel p;
    int rc = pack(answers, n, states, &p, e);
    if (rc == 0) {
        if (b->sends_singly)
            produce_singly(b, &p);
        else
            kafka_produce_all(b->rk, p.messages, p.n, p.reports);
        rc = read_reports(&p, states, e);
    }
    *is_purged = p.is_purged;
    parcel_fini(&p);
    return rc;
}

/* rc is why nothing could be produced. Of messages that were thrown away that says nothing: the
 * transaction has failed, and any further call of it tells the cause, when it is not known. */
static int end_unproduced(struct kafka_burst *b, const struct kafka_snapshot *snapshot,
                          bool is_purged, int rc, struct err *e)
{
    rd_kafka_error_t *error =
        is_purged && rc != ERR_LIMIT
            ? kafka_produce_send_offsets(b->rk, snapshot->offsets, snapshot->member)
            : NULL;
    if (error && (rd_kafka_error_txn_requires_abort(error) || rd_kafka_error_is_fatal(error))) {
        err_clear(e);
        return end_badly(b, error, "sending results", e);
    }
    if (error)
        rd_kafka_error_destroy(error);
    take_back(b, &rc, e);
    /* Refused messages have used up sequence numbers that the broker never saw; and those that
     * timed out may be appended yet: only another epoch keeps them out of the next transaction.
     */
    if (rc != ERR_LIMIT || GUARD("sequences"))
        drop_producer(b);
    return rc;
}

static int transact(struct kafka_burst *b, const struct kafka_snapshot *snapshot,
                    const struct kafka_answer *answers, size_t n,
                    enum kafka_answer_state *states, struct err *e)
{
    CRASH_POINT("begin");
    b->began_us = clock_mono_us();
    rd_kafka_error_t *error = rd_kafka_begin_transaction(b->rk);
    if (error)
        return give_up_producer(b, error, "beginning a burst of results", e);
    CRASH_POINT("produce");
    bool is_purged;
    const int rc = produce(b, answers, n, states, &is_purged, e);
    if (rc != 0)
        return end_unproduced(b, snapshot, is_purged, rc, e);
    CRASH_POINT("offsets");
    if (GUARD("offsets"))
        TRY(send_offsets(b, snapshot, e));
    CRASH_POINT("commit");
    TRY(commit(b, e));
    CRASH_POINT("committed");
    return 0;
}

/* ------------------------------------------------------------------ a burst */

static bool is_any(const enum kafka_answer_state *states, size_t n,
                   enum kafka_answer_state wanted)
{
    for (size_t i = 0; i < n; i++)
        if (states[i] == wanted)
            return true;
    return false;
}

static void settle(struct kafka_source *source, const struct kafka_answer *answers, size_t n,
                   enum kafka_answer_state *states)
{
    for (size_t i = 0; i < n; i++) {
        if (states[i] != ANSWER_OPEN)
            continue;
        kafka_source_settle(source, answers[i].topic, answers[i].partition, answers[i].offset);
        states[i] = ANSWER_GIVEN;
    }
}

/* Without this a commit that came true unheard of would be answered a second time. */
static int find_out(struct kafka_burst *b, struct kafka_source *source, struct err *e)
{
    if (!b->is_unsure || !GUARD("find-out"))
        return 0;
    TRY(kafka_source_take_over_committed(source, e));
    b->is_unsure = false;
    return 0;
}

static int send_once(struct kafka_burst *b, struct kafka_source *source,
                     const struct kafka_answer *answers, size_t n,
                     enum kafka_answer_state *states, struct err *e)
{
    for (size_t i = 0; i < n; i++)
        states[i] = ANSWER_OPEN;
    b->is_text_refused = false;
    TRY(make_producer(b, e));
    TRY(end_open_records(b, e));
    TRY(find_out(b, source, e));
    if (!GUARD("settle-last"))
        settle(source, answers, n, states);
    struct kafka_snapshot snapshot = {0};
    int rc = kafka_source_snapshot(source, answers, n, states, &snapshot, e);
    if (rc == 0 && is_any(states, n, ANSWER_OPEN)) {
        rc = transact(b, &snapshot, answers, n, states, e);
        b->began_us = 0;
        if (rc == 0)
            settle(source, answers, n, states);
    }
    b->is_text_refused =
        b->is_text_refused && kafka_source_shorten_texts(source, snapshot.offsets);
    kafka_snapshot_fini(&snapshot);
    return rc;
}

int kafka_burst_send(struct kafka_burst *b, struct kafka_source *source,
                     const struct kafka_answer *answers, size_t n,
                     enum kafka_answer_state *states, struct err *e)
{
    for (;;) {
        struct err why = {0};
        const int rc = send_once(b, source, answers, n, states, &why);
        if (rc != 0 && b->is_text_refused)
            continue;
        /* Brokers measure what the producer packs together, not each message. */
        if (rc == ERR_LIMIT && !b->sends_singly && GUARD("size-singly")) {
            b->sends_singly = true;
            continue;
        }
        b->sends_singly = rc == ERR_LIMIT && b->sends_singly;
        return rc == 0 ? 0 : ERR_SET_FLAGS(e, rc, why.flags, "%s", why.text);
    }
}
