/*
 * Exactly once against a real broker: SHEAF_TEST_BROKER=host:port, given by tests/kafka/run;
 * without it nothing is run, and said so.
 *
 * Workers are processes of their own: test_kafka_exact worker TOPIC ID. Each answers "P O" to
 * the records that it is given, in a wild order, in bursts; SHEAF_CRASH_AT kills it at a point
 * of a burst (base/fault.h). What readers see is asked of kcat.
 */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/rng.h"
#include "io/kafka_burst.h"

enum { PARTITIONS = 4, N_JOBS = 200, OFFSETS_MAX = 400, BURST_JOBS = 16 };
/* A worker answers when it has so many jobs in hand; bursts that fail let them become more. */
enum { IN_HAND = 60, IN_HAND_MAX = 1000 };

static const char *broker;
static const char *self;
static char suffix[32];
static struct kafka_sink *sink;

static const char *const quick[] = {"session.timeout.ms",
                                    "2000",
                                    "heartbeat.interval.ms",
                                    "300",
                                    "max.poll.interval.ms",
                                    "2500",
                                    "message.timeout.ms",
                                    "2500",
                                    "transaction.timeout.ms",
                                    "3000",
                                    NULL};

static struct kafka_options options_of(const char *topic, const char *id)
{
    return (struct kafka_options){.brokers = broker,
                                  .group = topic,
                                  .jobs_topic = topic,
                                  .transactional_id = id,
                                  .props = quick,
                                  .inflight_jobs_max = IN_HAND_MAX};
}

/* ------------------------------------------------------------------ a worker */

/* Records in hand and their answers. */
struct hand {
    struct kafka_record *records[IN_HAND_MAX];
    char lines[IN_HAND_MAX][32];
    size_t n;
};

static void take_up(struct hand *hand, struct kafka_record *r)
{
    hand->records[hand->n] = r;
    snprintf(hand->lines[hand->n], sizeof hand->lines[0], "%d %lld", r->partition,
             (long long)r->offset);
    hand->n++;
}

static void drop(struct hand *hand, size_t i)
{
    kafka_record_free(hand->records[i]);
    hand->n--;
    hand->records[i] = hand->records[hand->n];
    memcpy(hand->lines[i], hand->lines[hand->n], sizeof hand->lines[0]);
}

static size_t pick_answers(struct hand *hand, const char *results, uint64_t seed,
                           struct kafka_answer *answers)
{
    const size_t n = hand->n < BURST_JOBS ? hand->n : BURST_JOBS;
    for (size_t i = 0; i < n; i++) {
        const size_t k = i + (size_t)(rng_bits(seed, hand->n, i) % (hand->n - i));
        struct kafka_record *r = hand->records[k];
        hand->records[k] = hand->records[i];
        hand->records[i] = r;
        char line[sizeof hand->lines[0]];
        memcpy(line, hand->lines[k], sizeof line);
        memcpy(hand->lines[k], hand->lines[i], sizeof line);
        memcpy(hand->lines[i], line, sizeof line);
    }
    for (size_t i = 0; i < n; i++)
        answers[i] = (struct kafka_answer){.message = {.topic = results,
                                                       .key = hand->lines[i],
                                                       .key_length = strlen(hand->lines[i]),
                                                       .value = hand->lines[i],
                                                       .value_length = strlen(hand->lines[i])},
                                           .topic = hand->records[i]->topic,
                                           .partition = hand->records[i]->partition,
                                           .offset = hand->records[i]->offset,
                                           .lease = hand->records[i]->lease};
    return n;
}

/* One burst of what is in hand. False: it may be tried again. */
static bool answer_some(struct kafka_burst *b, struct kafka_source *s, const char *results,
                        struct hand *hand, uint64_t seed)
{
    struct kafka_answer answers[BURST_JOBS];
    enum kafka_answer_state states[BURST_JOBS];
    const size_t n = pick_answers(hand, results, seed, answers);
    struct err e = {0};
    if (kafka_burst_send(b, s, answers, n, states, &e) != 0) {
        if (!(e.flags & ERR_RETRY)) {
            fprintf(stderr, "worker: %s\n", e.text);
            _exit(1);
        }
        return false;
    }
    for (size_t i = n; i-- > 0;)
        drop(hand, i);
    return true;
}

static int work(const char *topic, const char *id)
{
    char results[96];
    snprintf(results, sizeof results, "%s-results", topic);
    const struct kafka_options o = options_of(topic, id);
    struct kafka_burst *b;
    struct kafka_source *s;
    if (kafka_burst_open(&o, &b, NULL) != 0 || kafka_source_open(&o, &s, NULL) != 0)
        return 1;
    struct hand hand = {.n = 0};
    const int64_t began_us = clock_mono_us();
    while (!kafka_source_is_drained(s)) {
        struct kafka_record *r;
        if (clock_mono_us() - began_us > 60000000 || kafka_source_poll(s, 50, &r, NULL) != 0)
            return 1;
        if (r)
            take_up(&hand, r);
        if (hand.n >= IN_HAND || (hand.n > 0 && !r))
            answer_some(b, s, results, &hand, (uint64_t)began_us);
    }
    kafka_burst_close(b);
    return kafka_source_close(s, NULL) != 0;
}

/* ------------------------------------------------------------------ the test's side */

static void make_topic(const char *topic)
{
    struct err e = {0};
    if (kafka_sink_create_topic(sink, topic, PARTITIONS, NULL, &e) != 0)
        fail_msg("%s", e.text);
}

static void make_topics(const char *topic)
{
    char results[96];
    snprintf(results, sizeof results, "%s-results", topic);
    make_topic(topic);
    make_topic(results);
    struct kafka_message messages[N_JOBS];
    char keys[N_JOBS][16];
    for (int i = 0; i < N_JOBS; i++) {
        snprintf(keys[i], sizeof keys[i], "key-%d", i);
        messages[i] = (struct kafka_message){.topic = topic,
                                             .key = keys[i],
                                             .key_length = strlen(keys[i]),
                                             .value = keys[i],
                                             .value_length = strlen(keys[i])};
    }
    struct err e = {0};
    if (kafka_sink_send(sink, messages, N_JOBS, &e) != 0)
        fail_msg("%s", e.text);
}

/* crash_at: "POINT:BURST", or "" */
static FILE *start_worker(const char *topic, const char *id, const char *crash_at)
{
    char command[1024];
    snprintf(command, sizeof command, "SHEAF_CRASH_AT=%s exec '%s' worker %s %s", crash_at,
             self, topic, id);
    FILE *f = popen(command, "r");
    assert_non_null(f);
    return f;
}

static void wait_worker(FILE *f)
{
    const int status = pclose(f);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

static void wait_crash(FILE *f)
{
    const int status = pclose(f);
    assert_true(WIFSIGNALED(status));
    assert_int_equal(WTERMSIG(status), SIGKILL);
}

/* Of a burst, in their order; each is just before it is done. */
enum point { BEGIN, PRODUCE, OFFSETS, COMMIT, COMMITTED };
static const char *const points[] = {"begin", "produce", "offsets", "commit", "committed"};

struct tally {
    int n[PARTITIONS][OFFSETS_MAX];
    int n_all, n_jobs, n_twice;
};

/* What a reader of the results sees; kcat reads committed records by default. */
static void count_results(const char *topic, const char *isolation, struct tally *t)
{
    char command[512];
    snprintf(command, sizeof command,
             "exec timeout 30 kcat -C -q -e -b %s -t %s-results -X isolation.level=%s -f "
             "'%%s\\n' 2>/dev/null",
             broker, topic, isolation);
    FILE *f = popen(command, "r");
    assert_non_null(f);
    *t = (struct tally){0};
    char line[64];
    while (fgets(line, sizeof line, f)) {
        char *rest;
        const long p = strtol(line, &rest, 10), o = strtol(rest, NULL, 10);
        assert_in_range(p, 0, PARTITIONS - 1);
        assert_in_range(o, 0, OFFSETS_MAX - 1);
        t->n_jobs += t->n[p][o] == 0;
        t->n_twice += t->n[p][o] == 1;
        t->n[p][o]++;
        t->n_all++;
    }
    assert_int_equal(pclose(f), 0);
}

/* A transaction that a crash left open keeps readers waiting until the broker ends it. */
static void expect_each_once(const char *topic)
{
    struct tally t;
    const int64_t began_us = clock_mono_us();
    do
        count_results(topic, "read_committed", &t);
    while (t.n_jobs < N_JOBS && clock_mono_us() - began_us < 20000000);
    assert_int_equal(t.n_jobs, N_JOBS);
    assert_int_equal(t.n_all, N_JOBS);
}

/* A worker ends at the point; its successor, of the same name or not, does the rest. */
static void crash_and_succeed(const char *stem, enum point first, enum point last, bool same_id)
{
    for (enum point point = first; point <= last; point++) {
        char topic[64], crash_at[32];
        snprintf(topic, sizeof topic, "%s-%s-%s", stem, points[point], suffix);
        snprintf(crash_at, sizeof crash_at, "%s:3", points[point]);
        make_topics(topic);
        wait_crash(start_worker(topic, "first", crash_at));
        struct tally t;
        count_results(topic, "read_committed", &t);
        assert_int_equal(t.n_all, point == COMMITTED ? 3 * BURST_JOBS : 2 * BURST_JOBS);
        wait_worker(start_worker(topic, same_id ? "first" : "second", ""));
        expect_each_once(topic);
        count_results(topic, "read_uncommitted", &t);
        const bool was_produced = point == OFFSETS || point == COMMIT;
        assert_int_equal(t.n_all, N_JOBS + (was_produced ? BURST_JOBS : 0));
    }
}

static void a_crash_at_any_point_shows_each_answer_once(void **state)
{
    (void)state;
    crash_and_succeed("same", BEGIN, COMMITTED, true);
}

static void so_it_does_when_another_worker_goes_on(void **state)
{
    (void)state;
    /* Where a transaction is left open. */
    crash_and_succeed("other", OFFSETS, COMMIT, false);
}

static void two_workers_of_which_one_crashes_show_each_answer_once(void **state)
{
    (void)state;
    char topic[64];
    snprintf(topic, sizeof topic, "exact-pair-%s", suffix);
    make_topics(topic);
    FILE *a = start_worker(topic, "a", "commit:2");
    FILE *b = start_worker(topic, "b", "");
    wait_crash(a);
    wait_worker(b);
    wait_worker(start_worker(topic, "c", ""));
    expect_each_once(topic);
}

/* A worker that stops just before its second and its third commit, and goes on each time when
 * brokers have ended the transaction for the time it took: they fence its producer off, as they
 * do when another worker has its id. */
static void a_worker_whose_transactions_take_too_long_goes_on(void **state)
{
    (void)state;
    char topic[64];
    snprintf(topic, sizeof topic, "exact-late-%s", suffix);
    make_topics(topic);
    const pid_t pid = fork();
    if (pid == 0) {
        setenv("SHEAF_STOP_AT", "commit:2,3", 1);
        execl(self, self, "worker", topic, "late", (char *)NULL);
        _exit(127);
    }
    int status;
    for (int i = 0; i < 2; i++) {
        assert_int_equal(waitpid(pid, &status, WUNTRACED), pid);
        assert_true(WIFSTOPPED(status));
        sleep(5); /* transaction.timeout.ms is 3000, and they look once a second */
        kill(pid, SIGCONT);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    expect_each_once(topic);
}

/* Polls until the hand holds n records. */
static void fill_hand(struct kafka_source *s, struct hand *hand, size_t n)
{
    const int64_t began_us = clock_mono_us();
    while (hand->n < n) {
        struct kafka_record *r;
        struct err e = {0};
        if (kafka_source_poll(s, 50, &r, &e) != 0)
            fail_msg("%s", e.text);
        assert_true(clock_mono_us() - began_us < 30000000);
        if (r)
            take_up(hand, r);
    }
}

/* A worker that slept: the group has given its partitions away, and it does not know. */
static void wake_up_late(const char *topic, bool exactly_once)
{
    make_topics(topic);
    char results[96];
    snprintf(results, sizeof results, "%s-results", topic);
    const struct kafka_options o = options_of(topic, "sleeper");
    struct kafka_burst *burst;
    struct kafka_source *source;
    assert_int_equal(kafka_burst_open(&o, &burst, NULL), 0);
    assert_int_equal(kafka_source_open(&o, &source, NULL), 0);
    struct hand hand = {.n = 0};
    fill_hand(source, &hand, IN_HAND);
    wait_worker(start_worker(topic, "awake", "")); /* comes in after max.poll.interval.ms */
    expect_each_once(topic);
    if (exactly_once) {
        assert_false(answer_some(burst, source, results, &hand, 1));
        assert_int_equal(hand.n, IN_HAND);
    } else {
        struct kafka_answer answers[BURST_JOBS];
        const size_t n = pick_answers(&hand, results, 1, answers);
        for (size_t i = 0; i < n; i++)
            assert_int_equal(kafka_sink_send(sink, &answers[i].message, 1, NULL), 0);
    }
    while (hand.n > 0)
        drop(&hand, 0);
    kafka_burst_close(burst);
    kafka_source_close(source, NULL);
}

static void a_worker_that_wakes_up_late_is_not_heard(void **state)
{
    (void)state;
    char topic[64];
    snprintf(topic, sizeof topic, "sleeper-%s", suffix);
    wake_up_late(topic, true);
    expect_each_once(topic);
}

/* The twin: without the gate the same answers are doubled, and the count shows it. */
static void without_transactions_it_is_heard(void **state)
{
    (void)state;
    char topic[64];
    snprintf(topic, sizeof topic, "loud-%s", suffix);
    wake_up_late(topic, false);
    struct tally t;
    count_results(topic, "read_committed", &t);
    assert_int_equal(t.n_jobs, N_JOBS);
    assert_int_equal(t.n_twice, BURST_JOBS);
}

/* A copy of a worker's database has its name too. */
static void two_workers_of_one_name_are_told(void **state)
{
    (void)state;
    char topic[64], results[96];
    snprintf(topic, sizeof topic, "names-%s", suffix);
    snprintf(results, sizeof results, "%s-results", topic);
    make_topics(topic);
    const struct kafka_options o = options_of(topic, "namesake");
    struct kafka_burst *first, *second;
    struct kafka_source *source;
    assert_int_equal(kafka_burst_open(&o, &first, NULL), 0);
    assert_int_equal(kafka_source_open(&o, &source, NULL), 0);
    struct hand hand = {.n = 0};
    fill_hand(source, &hand, BURST_JOBS);
    struct kafka_answer answers[BURST_JOBS];
    enum kafka_answer_state states[BURST_JOBS];
    struct err e = {0};
    const size_t n = pick_answers(&hand, results, 1, answers) / 2;
    assert_int_equal(kafka_burst_open(&o, &second, NULL), 0);
    assert_int_equal(kafka_burst_send(first, source, answers, n, states, &e), ERR_BROKER);
    assert_int_equal(e.flags & (ERR_RETRY | ERR_FATAL), ERR_RETRY);
    kafka_burst_close(second);
    /* It may have been a transaction that took too long. */
    assert_int_equal(kafka_burst_send(first, source, answers, n, states, NULL), 0);
    assert_int_equal(kafka_burst_open(&o, &second, NULL), 0);
    err_clear(&e);
    assert_int_equal(kafka_burst_send(first, source, answers + n, n, states, &e), ERR_BROKER);
    assert_int_equal(e.flags & (ERR_RETRY | ERR_FATAL), ERR_FATAL);
    kafka_burst_close(second);
    assert_non_null(strstr(e.text, "namesake"));
    while (hand.n > 0)
        drop(&hand, 0);
    kafka_burst_close(first);
    kafka_source_close(source, NULL);
}

static void a_broker_is_needed(void **state)
{
    (void)state;
    print_message("SHEAF_TEST_BROKER is not set: run tests/kafka/run\n");
    skip();
}

static int open_sink(void **state)
{
    (void)state;
    const struct kafka_options o = options_of(NULL, NULL);
    return kafka_sink_open(&o, &sink, NULL);
}

static int close_sink(void **state)
{
    (void)state;
    kafka_sink_close(sink);
    return 0;
}

int main(int argc, char **argv)
{
    broker = getenv("SHEAF_TEST_BROKER");
    self = argv[0];
    log_set_level(getenv("SHEAF_TEST_LOUD") ? LOG_DEBUG : LOG_ERROR);
    snprintf(suffix, sizeof suffix, "%lld", (long long)(clock_wall_us() / 1000));
    if (argc == 4 && strcmp(argv[1], "worker") == 0)
        return work(argv[2], argv[3]);
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    if (!broker) {
        const struct CMUnitTest none[] = {cmocka_unit_test(a_broker_is_needed)};
        return cmocka_run_group_tests_name("kafka_exact", none, NULL, NULL);
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_crash_at_any_point_shows_each_answer_once),
        cmocka_unit_test(so_it_does_when_another_worker_goes_on),
        cmocka_unit_test(two_workers_of_which_one_crashes_show_each_answer_once),
        cmocka_unit_test(a_worker_whose_transactions_take_too_long_goes_on),
        cmocka_unit_test(a_worker_that_wakes_up_late_is_not_heard),
        cmocka_unit_test(without_transactions_it_is_heard),
        cmocka_unit_test(two_workers_of_one_name_are_told),
    };
    return cmocka_run_group_tests_name("kafka_exact", tests, open_sink, close_sink);
}
