/*
 * The Kafka adapter against librdkafka's mock cluster, which serves errors on request. What is
 * committed is read with a handle of the test's own, not through the adapter. What only a real
 * broker shows (missing topics, restarts, transactions) is in tests/kafka.
 *
 * A group's first join takes 3 s in the mock: all sources join together in the set-up.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#include <librdkafka/rdkafka.h>
#include <librdkafka/rdkafka_mock.h>

#include "base/clock.h"
#include "base/limits.h"
#include "base/log.h"
#include "io/kafka_burst.h"
#include "io/queue_kafka.h"

/* Request keys of Kafka's protocol. */
enum {
    PRODUCE = 0,
    FETCH = 1,
    OFFSET_COMMIT = 8,
    OFFSET_FETCH = 9,
    FIND_COORDINATOR = 10,
    JOIN_GROUP = 11,
    HEARTBEAT = 12
};

enum { FLOW, ERRORS, SPAN_, DENIED, N_SOURCES };
enum { FLOW_JOBS = 50, ERROR_JOBS = 40, SPAN_JOBS = INFLIGHT_SPAN_MAX + 50 };

static const struct {
    const char *topic, *group;
    int jobs;
    size_t jobs_max, bytes_max;
} plan[N_SOURCES] = {
    {"flow", "flow-group", FLOW_JOBS, 10, 0},
    {"errors", "errors-group", ERROR_JOBS, 1000, 1 << 20},
    {"span", "span-group", SPAN_JOBS, 100000, 0},
    {"denied", "denied-group", 1, 10, 0},
};

static rd_kafka_t *host; /* the handle that the mock cluster lives in */
static rd_kafka_mock_cluster_t *mock;
static struct kafka_sink *sink;
static struct kafka_source *sources[N_SOURCES];
static rd_kafka_t *checkers[N_SOURCES];
static struct kafka_record *early[N_SOURCES]; /* came with the join */

static const char *const quick[] = {"session.timeout.ms",
                                    "6000",
                                    "heartbeat.interval.ms",
                                    "300",
                                    "fetch.wait.max.ms",
                                    "20",
                                    "retry.backoff.ms",
                                    "20",
                                    "linger.ms",
                                    "1",
                                    "message.timeout.ms",
                                    "8000",
                                    NULL};

static struct kafka_options options_of(int i)
{
    return (struct kafka_options){
        .brokers = rd_kafka_mock_cluster_bootstraps(mock),
        .group = plan[i].group,
        .jobs_topic = plan[i].topic,
        .props = quick,
        .inflight_jobs_max = plan[i].jobs_max,
        .inflight_bytes_max = plan[i].bytes_max,
    };
}

static int submit(const char *topic, int n)
{
    struct kafka_message *messages = calloc((size_t)n, sizeof *messages);
    char(*values)[16] = calloc((size_t)n, sizeof *values);
    for (int i = 0; i < n; i++) {
        snprintf(values[i], sizeof values[i], "job %d", i);
        messages[i] = (struct kafka_message){.topic = topic,
                                             .key = "k",
                                             .key_length = 1,
                                             .value = values[i],
                                             .value_length = strlen(values[i]),
                                             .custom_id = values[i]};
    }
    struct err e = {0};
    const int code = kafka_sink_send(sink, messages, (size_t)n, &e);
    if (code != 0)
        print_error("%s\n", e.text);
    free(values);
    free(messages);
    return code;
}

static rd_kafka_t *open_checker(int i)
{
    char reason[256];
    rd_kafka_conf_t *conf = rd_kafka_conf_new();
    rd_kafka_conf_set(conf, "bootstrap.servers", rd_kafka_mock_cluster_bootstraps(mock), reason,
                      sizeof reason);
    rd_kafka_conf_set(conf, "group.id", plan[i].group, reason, sizeof reason);
    rd_kafka_conf_set(conf, "log_level", "0", reason, sizeof reason);
    return rd_kafka_new(RD_KAFKA_CONSUMER, conf, reason, sizeof reason);
}

/* What the group has committed, by a consumer of the test's own; -1001: nothing. */
static int64_t committed_of(int i)
{
    rd_kafka_topic_partition_list_t *list = rd_kafka_topic_partition_list_new(1);
    rd_kafka_topic_partition_list_add(list, plan[i].topic, 0);
    assert_int_equal(rd_kafka_committed(checkers[i], list, 10000), 0);
    const int64_t offset = list->elems[0].offset;
    rd_kafka_topic_partition_list_destroy(list);
    return offset;
}

static int count_partitions(int i)
{
    struct kafka_progress progress;
    kafka_source_progress(sources[i], &progress);
    return progress.partitions;
}

/* Serves the sources until all have their partition. */
static bool join_all(void)
{
    const int64_t began_us = clock_mono_us();
    int joined = 0;
    while (joined < N_SOURCES && clock_mono_us() - began_us < 15000000) {
        joined = 0;
        for (int i = 0; i < N_SOURCES; i++) {
            if (count_partitions(i) == 0)
                kafka_source_poll(sources[i], 0, &early[i], NULL);
            usleep(5000);
            joined += count_partitions(i);
        }
    }
    return joined == N_SOURCES;
}

static void close_source(int i, int expected)
{
    const int64_t began_us = clock_mono_us();
    assert_int_equal(kafka_source_close(sources[i], NULL), expected);
    assert_true(clock_mono_us() - began_us < 5000000);
    sources[i] = NULL;
}

/* Polls until `n` records came or nothing came for quiet_ms; settles those below settle_below
 * at once. Returns how many came; they must be in order. */
static int take(int i, int n, int quiet_ms, int64_t *next, int64_t settle_from,
                int64_t settle_below)
{
    int taken = 0;
    int64_t last_us = clock_mono_us();
    while (taken < n && clock_mono_us() - last_us < quiet_ms * INT64_C(1000)) {
        struct kafka_record *r = early[i];
        struct err e = {0};
        early[i] = NULL;
        if (!r && kafka_source_poll(sources[i], 50, &r, &e) != 0)
            fail_msg("%s", e.text);
        if (!r)
            continue;
        assert_int_equal(r->offset, *next);
        (*next)++;
        if (r->offset >= settle_from && r->offset < settle_below)
            kafka_source_settle(sources[i], r->topic, r->partition, r->offset);
        kafka_record_free(r);
        taken++;
        last_us = clock_mono_us();
    }
    return taken;
}

static void wait_committed(int i, int64_t expected, int wait_ms)
{
    const int64_t began_us = clock_mono_us();
    int64_t seen = -1;
    int64_t next = 0;
    while (clock_mono_us() - began_us < wait_ms * INT64_C(1000)) {
        take(i, 1, 200, &next, 0, 0);
        if ((seen = committed_of(i)) == expected)
            return;
    }
    fail_msg("committed %lld, expected %lld", (long long)seen, (long long)expected);
}

static int set_up(void **state)
{
    (void)state;
    log_set_level(LOG_ERROR);
    char reason[256];
    host = rd_kafka_new(RD_KAFKA_PRODUCER, rd_kafka_conf_new(), reason, sizeof reason);
    mock = rd_kafka_mock_cluster_new(host, 1);
    if (!mock)
        return -1;
    struct kafka_options o = {.brokers = rd_kafka_mock_cluster_bootstraps(mock),
                              .props = quick};
    if (kafka_sink_open(&o, &sink, NULL) != 0)
        return -1;
    for (int i = 0; i < N_SOURCES; i++) {
        if (rd_kafka_mock_topic_create(mock, plan[i].topic, 1, 1) != 0 ||
            submit(plan[i].topic, plan[i].jobs) != 0)
            return -1;
        o = options_of(i);
        struct err e = {0};
        if (kafka_source_open(&o, &sources[i], &e) != 0) {
            print_error("%s\n", e.text);
            return -1;
        }
        if (!(checkers[i] = open_checker(i)))
            return -1;
    }
    return join_all() ? 0 : -1;
}

static int tear_down(void **state)
{
    (void)state;
    kafka_sink_close(sink);
    for (int i = 0; i < N_SOURCES; i++)
        kafka_source_close(sources[i], NULL);
    for (int i = 0; i < N_SOURCES; i++)
        rd_kafka_destroy(checkers[i]);
    rd_kafka_mock_cluster_destroy(mock);
    rd_kafka_destroy(host);
    return 0;
}

static int open_with(const char *key, const char *value, struct err *e)
{
    const char *const props[] = {key, value, NULL};
    const struct kafka_options o = {
        .brokers = "127.0.0.1:1", .group = "g", .jobs_topic = "t", .props = props};
    struct kafka_source *s;
    struct kafka_sink *k;
    const int code = kafka_sink_open(&o, &k, e);
    if (code != 0) {
        assert_null(k);
        /* both sides refuse alike */
        assert_int_equal(kafka_source_open(&o, &s, NULL), code);
        assert_null(s);
        return code;
    }
    kafka_sink_close(k);
    return 0;
}

static void properties_that_break_promises_are_refused_with_the_reason(void **state)
{
    (void)state;
    static const struct {
        const char *key, *value, *says;
    } cases[] = {
        {"enable.auto.commit", "true", "answered jobs"},
        {"enable.auto.offset.store", "true", "answered jobs"},
        {"auto.offset.reset", "latest", "beginning"},
        {"isolation.level", "read_uncommitted", "aborted"},
        {"partition.assignment.strategy", "cooperative-sticky", "range or roundrobin"},
        {"enable.idempotence", "false", "twice"},
        {"acks", "0", "replica"},
        {"partitioner", "consistent_random", "one partition"},
        {"bootstrap.servers", "elsewhere:9092", "setting brokers"},
        {"plugin.library.paths", "/tmp/x.so", "load code"},
        {"no.such.property", "1", "no.such.property"},
        {"linger.ms", "soon", "linger.ms"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct err e = {0};
        assert_int_equal(open_with(cases[i].key, cases[i].value, &e), ERR_CONFIG);
        assert_non_null(strstr(e.text, cases[i].key));
        assert_non_null(strstr(e.text, cases[i].says));
    }
    assert_int_equal(open_with("partition.assignment.strategy", "roundrobin", NULL), 0);
    assert_int_equal(open_with("session.timeout.ms", "60000", NULL), 0);
}

static void secrets_come_from_files_and_never_show(void **state)
{
    (void)state;
    struct err e = {0};
    assert_int_equal(open_with("sasl.password", "hunter2", &e), ERR_CONFIG);
    assert_non_null(strstr(e.text, "sasl.password.file"));
    assert_null(strstr(e.text, "hunter2"));

    char path[] = "/tmp/sheaf-secret-XXXXXX";
    const int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, "hunter2\n", 8), 8);
    close(fd);
    assert_int_equal(open_with("sasl.password.file", path, NULL), 0);
    unlink(path);
    err_clear(&e);
    assert_int_equal(open_with("sasl.password.file", path, &e), ERR_CONFIG);
    assert_non_null(strstr(e.text, path));
}

static int send_one(struct kafka_sink *k, const char *topic, size_t length, struct err *e)
{
    char *value = calloc(1, length + 1);
    const struct kafka_message m = {.topic = topic, .value = value, .value_length = length};
    const int code = kafka_sink_send(k, &m, 1, e);
    free(value);
    return code;
}

static void produce_errors_that_pass_are_got_over(void **state)
{
    (void)state;
    rd_kafka_mock_push_request_errors(
        mock, PRODUCE, 4, RD_KAFKA_RESP_ERR_NOT_LEADER_FOR_PARTITION,
        RD_KAFKA_RESP_ERR__TRANSPORT, RD_KAFKA_RESP_ERR_REQUEST_TIMED_OUT,
        RD_KAFKA_RESP_ERR_NOT_ENOUGH_REPLICAS);
    struct err e = {0};
    assert_int_equal(send_one(sink, "results", 100, &e), 0);
}

static void produce_errors_that_stay_name_topic_and_reason(void **state)
{
    (void)state;
    static const struct {
        rd_kafka_resp_err_t injected;
        int code;
        unsigned flags;
    } cases[] = {
        {RD_KAFKA_RESP_ERR_MSG_SIZE_TOO_LARGE, ERR_LIMIT, 0},
        {RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED, ERR_BROKER, ERR_FATAL},
        {RD_KAFKA_RESP_ERR_INVALID_REQUIRED_ACKS, ERR_BROKER, ERR_RETRY},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct err e = {0};
        rd_kafka_mock_push_request_errors(mock, PRODUCE, 1, cases[i].injected);
        assert_int_equal(send_one(sink, "results", 100, &e), cases[i].code);
        assert_int_equal(e.flags, cases[i].flags);
        assert_non_null(strstr(e.text, "results"));
        /* and the sink works again, at the latest when the topic was looked up anew */
        int tries = 0;
        while (send_one(sink, "results", 100, NULL) != 0 && ++tries < 20)
            usleep(200000);
        assert_true(tries < 20);
    }
}

static void a_message_too_large_fails_alone(void **state)
{
    (void)state;
    const size_t length = 18u << 20;
    char *value = calloc(1, length);
    const struct kafka_message messages[] = {
        {.topic = "results", .value = "a", .value_length = 1},
        {.topic = "results", .value = value, .value_length = length, .custom_id = "huge"},
        {.topic = "results", .value = "c", .value_length = 1, .key = "", .key_length = 0},
    };
    int codes[3];
    struct err e = {0};
    assert_int_equal(kafka_sink_send_each(sink, messages, 3, codes, &e), ERR_LIMIT);
    assert_int_equal(codes[0], 0);
    assert_int_equal(codes[1], ERR_LIMIT);
    assert_int_equal(codes[2], 0);
    assert_non_null(strstr(e.text, "huge"));
    assert_non_null(strstr(e.text, "results"));
    free(value);
}

/* Else whoever sends would not try again, though only that is needed. */
static void what_may_pass_is_told_before_what_is_too_large(void **state)
{
    (void)state;
    const size_t length = 18u << 20;
    char *value = calloc(1, length);
    const struct kafka_message messages[] = {
        {.topic = "results", .value = value, .value_length = length},
        {.topic = "results", .value = "b", .value_length = 1},
    };
    int codes[2];
    struct err e = {0};
    rd_kafka_mock_push_request_errors(mock, PRODUCE, 1,
                                      RD_KAFKA_RESP_ERR_INVALID_REQUIRED_ACKS);
    assert_int_equal(kafka_sink_send_each(sink, messages, 2, codes, &e), ERR_BROKER);
    assert_int_equal(e.flags, ERR_RETRY);
    assert_int_equal(codes[0], ERR_LIMIT);
    assert_int_equal(codes[1], ERR_BROKER);
    free(value);
}

static void a_broker_that_is_away_is_worth_a_retry(void **state)
{
    (void)state;
    const char *const props[] = {"message.timeout.ms", "700", NULL};
    const struct kafka_options o = {.brokers = "127.0.0.1:1", .props = props};
    struct kafka_sink *k;
    struct err e = {0};
    assert_int_equal(kafka_sink_open(&o, &k, &e), 0);
    assert_int_equal(send_one(k, "results", 10, &e), ERR_BROKER);
    assert_int_equal(e.flags, ERR_RETRY);
    kafka_sink_close(k);
}

static void consumption_pauses_at_the_limit_and_resumes_at_half(void **state)
{
    (void)state;
    int64_t next = 0, settled = 0;
    assert_int_equal(take(FLOW, FLOW_JOBS, 1500, &next, 0, 0), 10);
    struct kafka_progress progress;
    kafka_source_progress(sources[FLOW], &progress);
    assert_true(progress.is_paused);
    assert_int_equal(progress.partitions, 1);
    assert_int_equal(progress.inflight_jobs, 10);
    assert_true(progress.behind_known);
    assert_int_equal(progress.behind, FLOW_JOBS - 10);

    for (; settled < 4; settled++)
        kafka_source_settle(sources[FLOW], "flow", 0, settled);
    assert_int_equal(take(FLOW, FLOW_JOBS, 500, &next, 0, 0), 0); /* 6 are more than half */
    kafka_source_settle(sources[FLOW], "flow", 0, settled++);
    assert_int_equal(take(FLOW, FLOW_JOBS, 1500, &next, 0, 0),
                     5); /* 5 + 5 is the limit again */
    assert_false(kafka_source_is_drained(sources[FLOW]));
    while (settled < FLOW_JOBS) {
        for (; settled < next; settled++)
            kafka_source_settle(sources[FLOW], "flow", 0, settled);
        take(FLOW, 10, 1500, &next, 0, 0);
    }
    assert_int_equal(next, FLOW_JOBS);
    take(FLOW, 1, 500, &next, 0, 0);
    assert_true(kafka_source_is_drained(sources[FLOW]));
    kafka_source_progress(sources[FLOW], &progress);
    assert_int_equal(progress.behind, 0);
    assert_int_equal(progress.received, FLOW_JOBS);
    assert_int_equal(progress.settled, FLOW_JOBS);
    close_source(FLOW, 0);
    assert_int_equal(committed_of(FLOW), FLOW_JOBS);
}

static void group_errors_are_got_over_and_the_watermark_is_committed(void **state)
{
    (void)state;
    rd_kafka_mock_push_request_errors(mock, FETCH, 2,
                                      RD_KAFKA_RESP_ERR_NOT_LEADER_FOR_PARTITION,
                                      RD_KAFKA_RESP_ERR__TRANSPORT);
    rd_kafka_mock_push_request_errors(
        mock, OFFSET_COMMIT, 4, RD_KAFKA_RESP_ERR_COORDINATOR_LOAD_IN_PROGRESS,
        RD_KAFKA_RESP_ERR_NOT_COORDINATOR, RD_KAFKA_RESP_ERR__TRANSPORT,
        RD_KAFKA_RESP_ERR_REQUEST_TIMED_OUT);
    rd_kafka_mock_push_request_errors(mock, FIND_COORDINATOR, 2,
                                      RD_KAFKA_RESP_ERR_COORDINATOR_NOT_AVAILABLE,
                                      RD_KAFKA_RESP_ERR__TRANSPORT);
    int64_t next = 0;
    /* offset 0 is not settled, the rest is */
    assert_int_equal(take(ERRORS, ERROR_JOBS, 6000, &next, 1, ERROR_JOBS), ERROR_JOBS);
    wait_committed(ERRORS, 0, 8000);
    kafka_source_settle(sources[ERRORS], "errors", 0, 0);
    wait_committed(ERRORS, ERROR_JOBS, 12000);
    rd_kafka_mock_clear_request_errors(mock, OFFSET_COMMIT);
    rd_kafka_mock_clear_request_errors(mock, FIND_COORDINATOR);
}

/* More than one, because every source that is open sends heartbeats. */
static void forget_members(void)
{
    for (int i = 0; i < 20; i++)
        rd_kafka_mock_push_request_errors(mock, HEARTBEAT, 1,
                                          RD_KAFKA_RESP_ERR_UNKNOWN_MEMBER_ID);
}

/* The coordinator forgets the member: its partitions are lost, it joins again. What was in work
 * stays in work and does not come twice, because nobody else has taken it meanwhile. */
static void a_lost_membership_is_survived(void **state)
{
    (void)state;
    int64_t next = ERROR_JOBS;
    assert_int_equal(submit("errors", 3), 0);
    assert_int_equal(take(ERRORS, 3, 3000, &next, 0, 0), 3);
    forget_members();
    for (int tries = 0; count_partitions(ERRORS) == 1 && tries < 50; tries++)
        assert_int_equal(take(ERRORS, 1, 200, &next, 0, 0), 0);
    rd_kafka_mock_clear_request_errors(mock, HEARTBEAT);
    assert_int_equal(count_partitions(ERRORS), 0);
    assert_false(kafka_source_is_drained(sources[ERRORS]));
    assert_int_equal(submit("errors", 2), 0);
    assert_int_equal(take(ERRORS, 2, 12000, &next, 0, 0), 2);
    for (int64_t offset = ERROR_JOBS; offset < next; offset++)
        kafka_source_settle(sources[ERRORS], "errors", 0, offset);
    wait_committed(ERRORS, ERROR_JOBS + 5, 8000);
    assert_true(kafka_source_is_drained(sources[ERRORS]));
}

/* Nothing is read before it is known what is settled above the watermark. */
static void settled_jobs_do_not_come_again_when_offsets_cannot_be_read(void **state)
{
    (void)state;
    int64_t next = ERROR_JOBS + 5;
    assert_int_equal(submit("errors", 3), 0);
    assert_int_equal(take(ERRORS, 3, 6000, &next, next + 1, next + 3), 3);
    close_source(ERRORS, 0);
    assert_int_equal(committed_of(ERRORS), ERROR_JOBS + 5);
    rd_kafka_mock_push_request_errors(mock, OFFSET_FETCH, 2, RD_KAFKA_RESP_ERR_UNKNOWN,
                                      RD_KAFKA_RESP_ERR_UNKNOWN);
    const struct kafka_options o = options_of(ERRORS);
    assert_int_equal(kafka_source_open(&o, &sources[ERRORS], NULL), 0);
    next = ERROR_JOBS + 5;
    assert_int_equal(take(ERRORS, 1, 12000, &next, next, next + 1), 1);
    assert_int_equal(take(ERRORS, 1, 1000, &next, 0, 0), 0);
    rd_kafka_mock_clear_request_errors(mock, OFFSET_FETCH);
}

static void a_stuck_job_bounds_how_far_the_others_run_ahead(void **state)
{
    (void)state;
    int64_t next = 0;
    assert_int_equal(take(SPAN_, SPAN_JOBS, 3000, &next, 1, SPAN_JOBS), INFLIGHT_SPAN_MAX);
    assert_false(kafka_source_is_drained(sources[SPAN_]));
    wait_committed(SPAN_, 0, 3000);
    kafka_source_settle(sources[SPAN_], "span", 0, 0);
    assert_int_equal(take(SPAN_, 50, 3000, &next, 0, SPAN_JOBS), 50);
    assert_int_equal(next, SPAN_JOBS);
    take(SPAN_, 1, 500, &next, 0, 0);
    assert_true(kafka_source_is_drained(sources[SPAN_]));
    close_source(SPAN_, 0);
    assert_int_equal(committed_of(SPAN_), SPAN_JOBS);
}

static void what_will_not_pass_by_itself_stops_the_source(void **state)
{
    (void)state;
    struct kafka_record *r = NULL;
    struct err e = {0};
    int64_t next = 0;
    assert_int_equal(take(DENIED, 1, 6000, &next, 0, 1), 1);
    close_source(ERRORS, 0);
    forget_members();
    rd_kafka_mock_push_request_errors(mock, JOIN_GROUP, 2,
                                      RD_KAFKA_RESP_ERR_GROUP_AUTHORIZATION_FAILED,
                                      RD_KAFKA_RESP_ERR_GROUP_AUTHORIZATION_FAILED);
    int code = 0;
    const int64_t began_us = clock_mono_us();
    while (code == 0 && clock_mono_us() - began_us < 15000000) {
        code = kafka_source_poll(sources[DENIED], 100, &r, &e);
        kafka_record_free(r);
    }
    rd_kafka_mock_clear_request_errors(mock, HEARTBEAT);
    rd_kafka_mock_clear_request_errors(mock, JOIN_GROUP);
    assert_int_equal(code, ERR_BROKER);
    assert_int_equal(e.flags, ERR_FATAL);
    /* and stays stopped */
    assert_int_equal(kafka_source_poll(sources[DENIED], 0, &r, NULL), ERR_BROKER);
}

/* What a former producer may have left open there is asked later. */
static void a_result_partition_without_a_leader_holds_no_worker_up(void **state)
{
    (void)state;
    assert_int_equal(rd_kafka_mock_topic_create(mock, "led", 4, 1), 0);
    assert_int_equal(rd_kafka_mock_partition_set_leader(mock, "led", 2, -1), 0);
    struct kafka_options o = options_of(FLOW);
    o.results_topic = "led";
    o.transactional_id = "led-id";
    struct kafka_burst *burst;
    struct err e = {0};
    if (kafka_burst_open(&o, &burst, &e) != 0)
        fail_msg("%s", e.text);
    kafka_burst_close(burst);
}

int main(int argc, char **argv)
{
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(properties_that_break_promises_are_refused_with_the_reason),
        cmocka_unit_test(secrets_come_from_files_and_never_show),
        cmocka_unit_test(produce_errors_that_pass_are_got_over),
        cmocka_unit_test(produce_errors_that_stay_name_topic_and_reason),
        cmocka_unit_test(a_message_too_large_fails_alone),
        cmocka_unit_test(what_may_pass_is_told_before_what_is_too_large),
        cmocka_unit_test(a_broker_that_is_away_is_worth_a_retry),
        cmocka_unit_test(a_result_partition_without_a_leader_holds_no_worker_up),
        cmocka_unit_test(a_stuck_job_bounds_how_far_the_others_run_ahead),
        cmocka_unit_test(consumption_pauses_at_the_limit_and_resumes_at_half),
        cmocka_unit_test(group_errors_are_got_over_and_the_watermark_is_committed),
        cmocka_unit_test(a_lost_membership_is_survived),
        cmocka_unit_test(settled_jobs_do_not_come_again_when_offsets_cannot_be_read),
        cmocka_unit_test(what_will_not_pass_by_itself_stops_the_source),
    };
    return cmocka_run_group_tests_name("kafka_mock", tests, set_up, tear_down);
}
