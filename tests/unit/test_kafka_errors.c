/*
 * What every error of a broker does to a worker: librdkafka's mock cluster answers a request
 * with it, and a small worker (a source, a burst, three jobs) has to take the road that the
 * table says, and to answer its jobs afterwards unless that road ends.
 *
 * Each pair has a cluster of its own, and many run side by side: the first join of a group
 * takes 3 s in the mock. What a real broker does with its transactions is in tests/kafka; the
 * mock keeps none.
 *
 * test_kafka_errors all: every pair. for-ever: errors that do not pass; they take a minute.
 */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <librdkafka/rdkafka.h>
#include <librdkafka/rdkafka_mock.h>

#include "base/clock.h"
#include "base/log.h"
#include "io/kafka_burst.h"
#include "io/offset_metadata.h"

enum {
    N_JOBS = 4,
    N_OPEN = 3,   /* a former worker has answered one of them, */
    ANSWERED = 1, /* at this offset, and said so beside the offset */
    BROKER = 1,
    SIDE_BY_SIDE = 128,
    ONCE_MS = 60000, /* for a pair as a whole */
    FOR_EVER_MS = 90000,
    FOR_EVER_ERRORS = 30000,
};

/* Keys of Kafka's protocol, in the order of the table's columns. */
enum { PRODUCE = 0, OFFSET_COMMIT = 8, INIT_PRODUCER_ID = 22, METADATA = 3, LIST_OFFSETS = 2 };
static const struct request {
    const char *name;
    int16_t key;
    bool at_open; /* it is sent while the worker opens */
} requests[] = {
    {"InitProducerId", INIT_PRODUCER_ID, true},
    {"FindCoordinator", 10, true},
    {"AddPartitionsToTxn", 24, false},
    {"AddOffsetsToTxn", 25, false},
    {"TxnOffsetCommit", 28, false},
    {"EndTxn", 26, false},
    {"Produce", PRODUCE, false},
    {"OffsetCommit", OFFSET_COMMIT, false},
    {"OffsetFetch", 9, true},
    {"JoinGroup", 11, true},
    {"SyncGroup", 14, true},
    {"Heartbeat", 12, false},
    {"ListOffsets", LIST_OFFSETS, true},
    {"Fetch", 1, true},
    {"Metadata", METADATA, true},
};
enum { N_REQUESTS = sizeof requests / sizeof requests[0] };
static const struct request not_sent = {"DeleteTopics", 20, true};

/*
 * The roads:
 *
 *     I  got over inside, nobody hears of it      L  too large: another answer takes the place
 *     R  taken back, and may be tried again       P  permanent: the worker stops and says why
 *     N  the same, with a new producer            .  no broker says that; not tried
 *
 * A small letter is tried by "all" only. Where they come from: KIP-98 and KIP-360 (ids, epochs
 * and sequences of producers), KIP-447 (generations of groups with transactions), and what
 * librdkafka's manual says of errors of transactions: fatal, to be aborted, or retriable.
 * Errors that it does not know are to be aborted. That a producer that was fenced off is no
 * reason to stop is this program's own: once it is no proof of another worker.
 */
#define E(name) RD_KAFKA_RESP_ERR_##name, #name
static const struct row {
    rd_kafka_resp_err_t code;
    const char *name;
    const char *roads; /* a letter for each request */
} table[] = {
    {E(NOT_COORDINATOR), "IiIIIIiIIiiIii."},
    {E(COORDINATOR_LOAD_IN_PROGRESS), "IIIIIIiIIiiiii."},
    {E(COORDINATOR_NOT_AVAILABLE), "iIIIIIiIIiiiii."},
    {E(CONCURRENT_TRANSACTIONS), "IiIIIIniiiiiii."},
    {E(INVALID_PRODUCER_EPOCH), "RiNNNNNiiiiiii."},
    {E(PRODUCER_FENCED), "RiNRRNniiiiiii."},
    {E(UNKNOWN_PRODUCER_ID), "iiRRrRNiiiiiii."},
    {E(INVALID_PRODUCER_ID_MAPPING), "iiRRNRniiiiiii."},
    {E(INVALID_TXN_STATE), "iiNNNNniiiiiii."},
    {E(OUT_OF_ORDER_SEQUENCE_NUMBER), "iirrrrNiiiiiii."},
    {E(REQUEST_TIMED_OUT), "iiriirIIIiiiii."},
    {E(NOT_LEADER_FOR_PARTITION), "iirrrrIiiiiiII."},
    {E(NOT_ENOUGH_REPLICAS), "iirrrrIiiiiiii."},
    {E(LEADER_NOT_AVAILABLE), "iirrrriiiiiiiiR"},
    {E(UNKNOWN_TOPIC_OR_PART), "iiiiIrIIiiiiiIP"},
    {E(TOPIC_AUTHORIZATION_FAILED), "iiPpPpPiPpiippP"},
    {E(GROUP_AUTHORIZATION_FAILED), "iipPPppIPPiippp"},
    {E(CLUSTER_AUTHORIZATION_FAILED), "PPppppPippiippp"},
    {E(TRANSACTIONAL_ID_AUTHORIZATION_FAILED), "PPPPPPpippiippp"},
    {E(MSG_SIZE_TOO_LARGE), "iirrrrIiiiiiii."},
    {E(OFFSET_METADATA_TOO_LARGE), "iirrRrniiiiiii."},
    {E(ILLEGAL_GENERATION), "iirrRrniiiiIii."},
    {E(UNKNOWN_MEMBER_ID), "iirrRrniiiiIii."},
    {E(FENCED_INSTANCE_ID), "iirrRrnPiPpPii."},
    {E(REBALANCE_IN_PROGRESS), "iirrRrnIiiiIii."},
    {E(INVALID_GROUP_ID), "iippPp.iPPii..."},
    {E(INVALID_TRANSACTION_TIMEOUT), "P.............."},
    {E(UNKNOWN), "iiRRRRNIIiiiii."},
    {E(_TRANSPORT), "IIIIIIIIIiiIII."},
};
#undef E
enum { N_ROWS = sizeof table / sizeof table[0] };

/* ------------------------------------------------------------------ a small worker */

struct trial {
    const struct row *row;
    const struct request *request;
    int n_errors;
    bool forgets_former; /* what a former worker answered is not said */
    char road;           /* taken */
    bool is_watched;
    char what[512]; /* the last error */
    int64_t took_us, deadline_us, injected_us;
    int64_t failed_us; /* until the first call came back without success */
    rd_kafka_t *host;  /* of the mock cluster */
    rd_kafka_mock_cluster_t *mock;
    struct kafka_burst *burst;
    struct kafka_source *source;
    struct kafka_sink *sink;
};

#define QUICK                                                                                  \
    "session.timeout.ms", "6000", "heartbeat.interval.ms", "200", "fetch.wait.max.ms", "20",   \
        "retry.backoff.ms", "20", "linger.ms", "1"
static const char *const quick[] = {QUICK, NULL};
static const char *const impatient[] = {
    QUICK, "message.timeout.ms", "2500", "transaction.timeout.ms", "3000", NULL};
#undef QUICK
static const char *const quick_sink[] = {"linger.ms", "1", "message.timeout.ms", "8000", NULL};

static bool is_plain(const struct trial *t)
{
    return t->request->key == OFFSET_COMMIT;
}

static struct kafka_options options_of(const struct trial *t)
{
    return (struct kafka_options){.brokers = rd_kafka_mock_cluster_bootstraps(t->mock),
                                  .group = "group",
                                  .jobs_topic = "jobs",
                                  .transactional_id = is_plain(t) ? NULL : "worker",
                                  .props = t->n_errors > 1 ? impatient : quick,
                                  .inflight_jobs_max = 100};
}

static void inject(struct trial *t)
{
    t->injected_us = clock_mono_us();
    if (t->request->key == METADATA) {
        rd_kafka_mock_topic_set_error(t->mock, "jobs", t->row->code);
        return;
    }
    for (int i = 0; i < t->n_errors && t->n_errors > 1; i++)
        rd_kafka_mock_push_request_errors(t->mock, t->request->key, 1, t->row->code);
    if (t->n_errors == 1)
        rd_kafka_mock_broker_push_request_error_rtts(t->mock, BROKER, t->request->key, 1,
                                                     t->row->code, 0);
}

static size_t count_left(const struct trial *t, int16_t key)
{
    size_t n = 0;
    rd_kafka_mock_broker_error_stack_cnt(t->mock, BROKER, key, &n);
    return n;
}

static bool is_late(const struct trial *t)
{
    return clock_mono_us() > t->deadline_us;
}

/* The worst road is the one that counts. */
static void take_road(struct trial *t, char road, const struct err *e)
{
    static const char worse[] = "IRNLPD";
    if (strchr(worse, road) > strchr(worse, t->road))
        t->road = road;
    if (e)
        snprintf(t->what, sizeof t->what, "%s", e->text);
}

/* False: that was the end. */
static bool may_go_on(struct trial *t, const struct err *e)
{
    if (!(e->flags & ERR_RETRY)) {
        take_road(t, 'P', e);
        return false;
    }
    take_road(t, 'R', e);
    if (t->n_errors > 1 && t->failed_us == 0) {
        t->failed_us = clock_mono_us() - t->injected_us;
        rd_kafka_mock_clear_request_errors(t->mock, t->request->key);
    }
    return !is_late(t);
}

static bool open_burst(struct trial *t)
{
    const struct kafka_options o = options_of(t);
    struct err e = {0};
    while (!is_plain(t) && kafka_burst_open(&o, &t->burst, &e) != 0) {
        if (!may_go_on(t, &e))
            return false;
        err_clear(&e);
    }
    return true;
}

static bool open_source(struct trial *t)
{
    const struct kafka_options o = options_of(t);
    struct err e = {0};
    while (kafka_source_open(&o, &t->source, &e) != 0) {
        if (t->request->key == METADATA)
            rd_kafka_mock_topic_set_error(t->mock, "jobs", RD_KAFKA_RESP_ERR_NO_ERROR);
        if (!may_go_on(t, &e))
            return false;
        err_clear(&e);
    }
    return true;
}

static bool poll_some(struct trial *t, int wait_ms, struct kafka_record **r)
{
    struct err e = {0};
    *r = NULL;
    if (kafka_source_poll(t->source, wait_ms, r, &e) == 0)
        return true;
    take_road(t, 'P', &e);
    return false;
}

static bool receive_all(struct trial *t, struct kafka_record *records[N_OPEN])
{
    for (size_t n = 0; n < N_OPEN && !is_late(t);) {
        if (!poll_some(t, 50, &records[n]))
            return false;
        if (!records[n])
            continue;
        if (records[n++]->offset == ANSWERED && t->request->key != LIST_OFFSETS)
            take_road(t, 'D', NULL);
    }
    return records[N_OPEN - 1] != NULL;
}

/* Whether the call after a failed one begins with a new producer: then it asks for an id. */
static void watch_producer(struct trial *t)
{
    t->is_watched = true;
    if (count_left(t, INIT_PRODUCER_ID) == 0)
        rd_kafka_mock_broker_push_request_error_rtts(t->mock, BROKER, INIT_PRODUCER_ID, 1,
                                                     RD_KAFKA_RESP_ERR_NO_ERROR, 0);
}

static void look_at_producer(struct trial *t)
{
    if (t->is_watched && t->request->key != INIT_PRODUCER_ID &&
        count_left(t, INIT_PRODUCER_ID) == 0)
        take_road(t, 'N', NULL);
}

static bool answer_one(struct trial *t, const struct kafka_record *r)
{
    const struct kafka_answer a = {
        .message = {.topic = "results", .value = "answer", .value_length = 6},
        .topic = r->topic,
        .partition = r->partition,
        .offset = r->offset,
        .lease = r->lease};
    enum kafka_answer_state state;
    struct err e = {0};
    struct kafka_record *none;
    while (kafka_burst_send(t->burst, t->source, &a, 1, &state, &e) != 0) {
        if (e.code == ERR_LIMIT) {
            take_road(t, 'L', &e);
        } else if (strstr(e.text, "rebalanced") || strstr(e.text, "no place")) {
            if (is_late(t))
                return false;
        } else {
            if (!may_go_on(t, &e))
                return false;
            watch_producer(t);
        }
        err_clear(&e);
        if (!poll_some(t, 20, &none))
            return false;
        kafka_record_free(none);
    }
    return state == ANSWER_GIVEN;
}

/* A poll at least each 20 ms, until the errors were served. */
static bool wait_served(struct trial *t)
{
    struct kafka_record *none;
    while (t->n_errors == 1 && t->request->key != METADATA && t->request != &not_sent &&
           count_left(t, t->request->key) > 0 && !is_late(t)) {
        if (!poll_some(t, 20, &none))
            return false;
        kafka_record_free(none);
    }
    return true;
}

/* A client of the group without a place in it. */
static rd_kafka_t *open_outsider(const struct trial *t)
{
    char reason[128];
    rd_kafka_conf_t *conf = rd_kafka_conf_new();
    rd_kafka_conf_set(conf, "bootstrap.servers", rd_kafka_mock_cluster_bootstraps(t->mock),
                      reason, sizeof reason);
    rd_kafka_conf_set(conf, "group.id", "group", reason, sizeof reason);
    rd_kafka_conf_set(conf, "log_level", "0", reason, sizeof reason);
    return rd_kafka_new(RD_KAFKA_CONSUMER, conf, reason, sizeof reason);
}

static bool is_committed(const struct trial *t)
{
    rd_kafka_t *outsider = open_outsider(t);
    rd_kafka_topic_partition_list_t *list = rd_kafka_topic_partition_list_new(1);
    rd_kafka_topic_partition_list_add(list, "jobs", 0);
    const bool is_done =
        rd_kafka_committed(outsider, list, 5000) == 0 && list->elems[0].offset == N_JOBS;
    rd_kafka_topic_partition_list_destroy(list);
    rd_kafka_destroy(outsider);
    return is_done;
}

/* What a former worker left: nothing below offset 0, and one job above it. */
static bool commit_former(const struct trial *t)
{
    rd_kafka_t *outsider = open_outsider(t);
    struct offset_bits settled = {.base = 0};
    char text[OFFSET_METADATA_MAX + 1];
    offset_bits_settle(&settled, ANSWERED);
    rd_kafka_topic_partition_list_t *list = rd_kafka_topic_partition_list_new(1);
    rd_kafka_topic_partition_t *p = rd_kafka_topic_partition_list_add(list, "jobs", 0);
    p->offset = 0;
    if (!t->forgets_former) {
        p->metadata_size = offset_metadata_encode(&settled, text);
        p->metadata = strdup(text);
    }
    const bool is_done = rd_kafka_commit(outsider, list, 0) == 0;
    rd_kafka_topic_partition_list_destroy(list);
    rd_kafka_destroy(outsider);
    return is_done;
}

static bool commit_all(struct trial *t, struct kafka_record *const records[N_OPEN])
{
    for (size_t i = 0; i < N_OPEN; i++)
        kafka_source_settle(t->source, "jobs", 0, records[i]->offset);
    if (!wait_served(t))
        return false;
    while (!is_late(t)) {
        struct kafka_record *none;
        for (int i = 0; i < 5; i++)
            if (!poll_some(t, 50, &none))
                return false;
        if (is_committed(t))
            return true;
    }
    return false;
}

static bool answer_all(struct trial *t, struct kafka_record *const records[N_OPEN])
{
    for (size_t i = 0; i < N_OPEN; i++) {
        if (!answer_one(t, records[i]))
            return false;
        if (t->road == 'R' && i == 0)
            look_at_producer(t);
        if (!wait_served(t))
            return false;
    }
    return true;
}

static bool submit(struct trial *t)
{
    struct kafka_message messages[N_JOBS];
    const struct kafka_options o = {.brokers = rd_kafka_mock_cluster_bootstraps(t->mock),
                                    .props = quick_sink};
    for (int i = 0; i < N_JOBS; i++)
        messages[i] = (struct kafka_message){
            .topic = "jobs", .key = "k", .key_length = 1, .value = "job", .value_length = 3};
    return kafka_sink_open(&o, &t->sink, NULL) == 0 &&
           kafka_sink_send(t->sink, messages, N_JOBS, NULL) == 0;
}

/* What was answered to the heartbeat comes up a little later. */
static bool hear_of_trouble(struct trial *t)
{
    struct kafka_record *none;
    for (int i = 0; i < 5; i++) {
        if (!poll_some(t, 100, &none))
            return false;
        kafka_record_free(none);
    }
    return true;
}

static bool live(struct trial *t)
{
    struct kafka_record *records[N_OPEN] = {NULL};
    if (!submit(t) || (t->request->key != LIST_OFFSETS && !commit_former(t)))
        return false;
    if (t->request->at_open)
        inject(t);
    bool ok = open_burst(t) && open_source(t) && receive_all(t, records);
    if (ok && !t->request->at_open)
        inject(t);
    ok = ok && (is_plain(t) ? commit_all(t, records) : answer_all(t, records));
    ok = ok && hear_of_trouble(t);
    for (size_t i = 0; i < N_OPEN; i++)
        kafka_record_free(records[i]);
    return ok;
}

static void *run_trial(void *arg)
{
    struct trial *t = arg;
    char reason[128];
    const int64_t began_us = clock_mono_us();
    t->deadline_us = began_us + INT64_C(1000) * (t->n_errors > 1 ? FOR_EVER_MS : ONCE_MS);
    t->road = 'I';
    rd_kafka_conf_t *conf = rd_kafka_conf_new();
    rd_kafka_conf_set(conf, "log_level", "0", reason, sizeof reason);
    t->host = rd_kafka_new(RD_KAFKA_PRODUCER, conf, reason, sizeof reason);
    t->mock = rd_kafka_mock_cluster_new(t->host, 1);
    rd_kafka_mock_topic_create(t->mock, "jobs", 1, 1);
    rd_kafka_mock_topic_create(t->mock, "results", 1, 1);
    const bool is_done = live(t);
    if (!is_done && t->road != 'P')
        t->road = 'X';
    else if (t->n_errors == 1 && t->request->key != METADATA &&
             count_left(t, t->request->key) > 0)
        t->road = '-'; /* nobody has asked */
    kafka_burst_close(t->burst);
    rd_kafka_mock_topic_set_error(t->mock, "jobs", RD_KAFKA_RESP_ERR_NO_ERROR);
    rd_kafka_mock_clear_request_errors(t->mock, t->request->key);
    kafka_source_close(t->source, NULL);
    kafka_sink_close(t->sink);
    rd_kafka_mock_cluster_destroy(t->mock);
    rd_kafka_destroy(t->host);
    t->took_us = clock_mono_us() - began_us;
    return NULL;
}

/* ------------------------------------------------------------------ the pairs */

enum { TRIALS_MAX = N_ROWS * N_REQUESTS };
static struct trial trials[TRIALS_MAX];

static void run_trials(size_t n)
{
    static pthread_t threads[TRIALS_MAX];
    for (size_t i = 0; i < n; i += SIDE_BY_SIDE) {
        const size_t end = i + SIDE_BY_SIDE < n ? i + SIDE_BY_SIDE : n;
        for (size_t k = i; k < end; k++)
            if (pthread_create(&threads[k], NULL, run_trial, &trials[k]) != 0)
                abort();
        for (size_t k = i; k < end; k++)
            pthread_join(threads[k], NULL);
    }
}

static char road_of(const struct row *row, const struct request *request)
{
    return row->roads[request - requests];
}

static char upper(char c)
{
    return (char)(c >= 'a' && c <= 'z' ? c - 'a' + 'A' : c);
}

/* A trial that went another way than the table says. */
static bool is_astray(const struct trial *t)
{
    const char road = upper(road_of(t->row, t->request));
    if (t->road == road)
        return false;
    printf("%s answered with %s: %c, and not %c, after %.1f s; the last error: %s\n",
           t->request->name, t->row->name, t->road, road, (double)t->took_us / 1e6, t->what);
    return true;
}

/* How many pairs were tried, or 0 when one went astray. */
static size_t try_pairs(bool all)
{
    size_t n = 0, n_astray = 0;
    for (size_t r = 0; r < N_ROWS; r++)
        for (size_t q = 0; q < N_REQUESTS; q++) {
            const char road = road_of(&table[r], &requests[q]);
            if (road == '.' || (road != upper(road) && !all))
                continue;
            trials[n++] =
                (struct trial){.row = &table[r], .request = &requests[q], .n_errors = 1};
        }
    run_trials(n);
    for (size_t i = 0; i < n; i++)
        n_astray += is_astray(&trials[i]);
    return n_astray == 0 ? n : 0;
}

static void every_error_takes_the_road_that_the_table_says(void **state)
{
    (void)state;
    const size_t n = try_pairs(false);
    assert_true(n > 0);
    printf("%zu pairs of a request and an error\n", n);
}

/* Twins: the trials find a job that is answered twice, and an error that nobody met. */
static void a_wrong_road_is_noticed(void **state)
{
    (void)state;
    static const struct row none = {RD_KAFKA_RESP_ERR_NOT_COORDINATOR, "none", ""};
    trials[0] = (struct trial){
        .row = &none, .request = &requests[0], .n_errors = 1, .forgets_former = true};
    trials[1] = (struct trial){.row = &none, .request = &not_sent, .n_errors = 1};
    run_trials(2);
    assert_int_equal(trials[0].road, 'D');
    assert_int_equal(trials[1].road, '-');
}

/* What does not pass: each call comes back all the same, and says that it may be repeated. */
static int try_for_ever(void)
{
    static const struct {
        const char *request;
        rd_kafka_resp_err_t code;
    } pairs[] = {
        {"InitProducerId", RD_KAFKA_RESP_ERR_COORDINATOR_LOAD_IN_PROGRESS},
        {"InitProducerId", RD_KAFKA_RESP_ERR_CONCURRENT_TRANSACTIONS},
        {"InitProducerId", RD_KAFKA_RESP_ERR__TRANSPORT},
        {"FindCoordinator", RD_KAFKA_RESP_ERR_COORDINATOR_NOT_AVAILABLE},
        {"AddPartitionsToTxn", RD_KAFKA_RESP_ERR_NOT_COORDINATOR},
        {"AddPartitionsToTxn", RD_KAFKA_RESP_ERR_CONCURRENT_TRANSACTIONS},
        {"AddOffsetsToTxn", RD_KAFKA_RESP_ERR_COORDINATOR_LOAD_IN_PROGRESS},
        {"AddOffsetsToTxn", RD_KAFKA_RESP_ERR__TRANSPORT},
        {"TxnOffsetCommit", RD_KAFKA_RESP_ERR_NOT_COORDINATOR},
        {"TxnOffsetCommit", RD_KAFKA_RESP_ERR_ILLEGAL_GENERATION},
        {"TxnOffsetCommit", RD_KAFKA_RESP_ERR__TRANSPORT},
        {"EndTxn", RD_KAFKA_RESP_ERR_NOT_COORDINATOR},
        {"EndTxn", RD_KAFKA_RESP_ERR_COORDINATOR_NOT_AVAILABLE},
        {"EndTxn", RD_KAFKA_RESP_ERR__TRANSPORT},
        {"Produce", RD_KAFKA_RESP_ERR_NOT_LEADER_FOR_PARTITION},
        {"Produce", RD_KAFKA_RESP_ERR__TRANSPORT},
    };
    enum { N_PAIRS = sizeof pairs / sizeof pairs[0] };
    static struct row rows[N_PAIRS];
    int n_astray = 0;
    for (size_t i = 0; i < N_PAIRS; i++) {
        size_t q = 0;
        while (strcmp(requests[q].name, pairs[i].request) != 0)
            q++;
        rows[i] = (struct row){pairs[i].code, rd_kafka_err2name(pairs[i].code), ""};
        trials[i] = (struct trial){
            .row = &rows[i], .request = &requests[q], .n_errors = FOR_EVER_ERRORS};
    }
    run_trials(N_PAIRS);
    for (size_t i = 0; i < N_PAIRS; i++) {
        printf("%s answered with %s for ever: %c after %.1f s: %s\n", trials[i].request->name,
               trials[i].row->name, trials[i].road, (double)trials[i].failed_us / 1e6,
               trials[i].what);
        n_astray += trials[i].road != 'R' && trials[i].road != 'N';
    }
    printf("%zu errors that do not pass\n", (size_t)N_PAIRS);
    return n_astray > 0;
}

static int try_all(void)
{
    const size_t n = try_pairs(true);
    printf("%zu pairs of a request and an error\n", n);
    return n == 0;
}

int main(int argc, char **argv)
{
    log_set_level(getenv("SHEAF_TEST_LOUD") ? LOG_DEBUG : LOG_ERROR);
    if (argc > 1 && strcmp(argv[1], "all") == 0)
        return try_all();
    if (argc > 1 && strcmp(argv[1], "for-ever") == 0)
        return try_for_ever();
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_error_takes_the_road_that_the_table_says),
        cmocka_unit_test(a_wrong_road_is_noticed),
    };
    return cmocka_run_group_tests_name("kafka_errors", tests, NULL, NULL);
}
