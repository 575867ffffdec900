/*
 * The Kafka adapter against a real broker: SHEAF_TEST_BROKER=host:port, given by
 * tests/kafka/run; without it nothing is run, and said so. SHEAF_TEST_BROKER_RESTART is a
 * command that kills that broker with kill -9 and starts it again.
 *
 * Also a worker process of its own: test_kafka_real worker TOPIC GROUP MODE, which prints
 * "received P O" and "settled P O" lines. Mode drain: settles all, ends when drained. Mode
 * crash: settles most of its first 100 records in a wild order, waits for a commit, and ends
 * without closing.
 *
 * Offsets are looked up with handles of the tests' own, and records with kcat.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>
#include <librdkafka/rdkafka.h>

#include "base/clock.h"
#include "base/log.h"
#include "io/queue_kafka.h"

enum { PARTITIONS = 4, OFFSETS_MAX = 2000, CRASH_RECORDS = 100, NOTHING = -1001 };

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
                                    "topic.metadata.propagation.max.ms",
                                    "1000",
                                    NULL};

static struct kafka_options options_of(const char *topic, const char *group, size_t jobs_max)
{
    return (struct kafka_options){.brokers = broker,
                                  .group = group,
                                  .jobs_topic = topic,
                                  .props = quick,
                                  .inflight_jobs_max = jobs_max,
                                  .inflight_bytes_max = 64 << 20};
}

static const char *name_of(char *out, size_t capacity, const char *stem)
{
    snprintf(out, capacity, "%s-%s", stem, suffix);
    return out;
}

static void make_topic(const char *topic, int partitions)
{
    struct err e = {0};
    bool created;
    const int64_t began_us = clock_mono_us();
    /* A broker whose machine stood still is fenced off by its own controller for a while. */
    while (kafka_sink_create_topic(sink, topic, partitions, &created, &e) != 0) {
        if (!strstr(e.text, "fenced") || clock_mono_us() - began_us > 30000000)
            fail_msg("%s", e.text);
        nanosleep(&(struct timespec){.tv_nsec = 200000000}, NULL);
        err_clear(&e);
    }
    assert_true(created);
}

static void submit(const char *topic, int n, const char *key)
{
    struct kafka_message *messages = calloc((size_t)n, sizeof *messages);
    char(*keys)[16] = calloc((size_t)n, sizeof *keys);
    for (int i = 0; i < n; i++) {
        snprintf(keys[i], sizeof keys[i], "key-%d", i);
        messages[i] = (struct kafka_message){.topic = topic,
                                             .key = key ? key : keys[i],
                                             .key_length = strlen(key ? key : keys[i]),
                                             .value = keys[i],
                                             .value_length = strlen(keys[i])};
    }
    struct err e = {0};
    if (kafka_sink_send(sink, messages, (size_t)n, &e) != 0)
        fail_msg("%s", e.text);
    free(keys);
    free(messages);
}

static struct kafka_source *open_source(const char *topic, const char *group, size_t jobs_max)
{
    const struct kafka_options o = options_of(topic, group, jobs_max);
    struct kafka_source *s;
    struct err e = {0};
    if (kafka_source_open(&o, &s, &e) != 0)
        fail_msg("%s", e.text);
    return s;
}

/* Who has seen which offset how often, and settled it. */
struct ledger {
    int received[PARTITIONS][OFFSETS_MAX], settled[PARTITIONS][OFFSETS_MAX];
};

static struct kafka_record *take_one(struct kafka_source *s, int wait_ms, struct ledger *l)
{
    struct kafka_record *r;
    struct err e = {0};
    if (kafka_source_poll(s, wait_ms, &r, &e) != 0)
        fail_msg("%s", e.text);
    if (r && l) {
        assert_in_range(r->partition, 0, PARTITIONS - 1);
        assert_in_range(r->offset, 0, OFFSETS_MAX - 1);
        l->received[r->partition][r->offset]++;
    }
    return r;
}

static void settle(struct kafka_source *s, const struct kafka_record *r, struct ledger *l)
{
    kafka_source_settle(s, r->topic, r->partition, r->offset);
    l->settled[r->partition][r->offset]++;
}

/* Reads and settles until drained; returns how many records came. */
static int drain(struct kafka_source *s, int wait_s, struct ledger *l)
{
    int n = 0;
    const int64_t began_us = clock_mono_us();
    while (!kafka_source_is_drained(s)) {
        if (clock_mono_us() - began_us > wait_s * INT64_C(1000000))
            fail_msg("not drained after %d s, %d records", wait_s, n);
        struct kafka_record *r = take_one(s, 100, l);
        if (r) {
            settle(s, r, l);
            n++;
        }
        kafka_record_free(r);
    }
    return n;
}

static void close_source(struct kafka_source *s)
{
    struct err e = {0};
    if (kafka_source_close(s, &e) != 0)
        fail_msg("%s", e.text);
}

static rd_kafka_t *open_checker(const char *group)
{
    char reason[256];
    rd_kafka_conf_t *conf = rd_kafka_conf_new();
    rd_kafka_conf_set(conf, "bootstrap.servers", broker, reason, sizeof reason);
    rd_kafka_conf_set(conf, "group.id", group, reason, sizeof reason);
    rd_kafka_t *rk = rd_kafka_new(RD_KAFKA_CONSUMER, conf, reason, sizeof reason);
    assert_non_null(rk);
    return rk;
}

/* committed[p] and the end of each partition, by a handle that is not the adapter's. */
static void look_up(const char *topic, const char *group, int n, int64_t *committed,
                    int64_t *ends)
{
    rd_kafka_t *rk = open_checker(group);
    rd_kafka_topic_partition_list_t *list = rd_kafka_topic_partition_list_new(n);
    for (int p = 0; p < n; p++)
        rd_kafka_topic_partition_list_add(list, topic, p);
    assert_int_equal(rd_kafka_committed(rk, list, 10000), 0);
    for (int p = 0; p < n; p++) {
        int64_t low;
        committed[p] = list->elems[p].offset;
        assert_int_equal(rd_kafka_query_watermark_offsets(rk, topic, p, &low, &ends[p], 10000),
                         0);
    }
    rd_kafka_topic_partition_list_destroy(list);
    rd_kafka_destroy(rk);
}

static void expect_all_committed(const char *topic, const char *group, int n)
{
    int64_t committed[PARTITIONS], ends[PARTITIONS];
    look_up(topic, group, n, committed, ends);
    for (int p = 0; p < n; p++)
        assert_int_equal(committed[p], ends[p]);
}

/* The first offset that is received and not settled, else one past the last received. */
static int64_t watermark_of(const struct ledger *l, int p)
{
    int64_t end = 0;
    for (int64_t o = 0; o < OFFSETS_MAX; o++) {
        if (l->received[p][o] && !l->settled[p][o])
            return o;
        if (l->received[p][o])
            end = o + 1;
    }
    return end;
}

static FILE *start_worker(const char *topic, const char *group, const char *mode)
{
    char command[1024];
    snprintf(command, sizeof command, "exec '%s' worker %s %s %s", self, topic, group, mode);
    FILE *f = popen(command, "r");
    assert_non_null(f);
    return f;
}

static void read_worker(FILE *f, struct ledger *l)
{
    char word[16];
    int p, o;
    while (fscanf(f, "%15s %d %d", word, &p, &o) == 3) {
        assert_in_range(p, 0, PARTITIONS - 1);
        assert_in_range(o, 0, OFFSETS_MAX - 1);
        (word[0] == 'r' ? l->received : l->settled)[p][o]++;
    }
    const int status = pclose(f);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

/* What kcat is given as a member of the group, without committing. */
static void read_kcat(const char *topic, const char *group, struct ledger *l)
{
    char command[1024];
    snprintf(command, sizeof command,
             "exec timeout 30 kcat -b %s -G %s -X enable.auto.offset.store=false -X "
             "auto.offset.reset=earliest -X session.timeout.ms=2000 -q -e -f 'received %%p "
             "%%o\\n' %s 2>/dev/null",
             broker, group, topic);
    FILE *f = popen(command, "r");
    assert_non_null(f);
    read_worker(f, l);
}

static void topics_are_created_once(void **state)
{
    (void)state;
    char topic[64];
    name_of(topic, sizeof topic, "create");
    make_topic(topic, 3);
    bool created = true;
    assert_int_equal(kafka_sink_create_topic(sink, topic, 5, &created, NULL), 0);
    assert_false(created);
    struct err e = {0};
    assert_int_equal(kafka_sink_create_topic(sink, "no/such name", 1, NULL, &e), ERR_BROKER);
    assert_non_null(strstr(e.text, "no/such name"));
}

/* A topic's setting as the broker tells it, by a handle of the test's own. */
static void ask_topic_setting(const char *topic, const char *name, char *out, size_t capacity)
{
    char reason[256];
    rd_kafka_conf_t *conf = rd_kafka_conf_new();
    rd_kafka_conf_set(conf, "bootstrap.servers", broker, reason, sizeof reason);
    rd_kafka_t *rk = rd_kafka_new(RD_KAFKA_PRODUCER, conf, reason, sizeof reason);
    rd_kafka_queue_t *answers = rd_kafka_queue_new(rk);
    rd_kafka_ConfigResource_t *asked =
        rd_kafka_ConfigResource_new(RD_KAFKA_RESOURCE_TOPIC, topic);
    rd_kafka_DescribeConfigs(rk, &asked, 1, NULL, answers);
    rd_kafka_event_t *event = rd_kafka_queue_poll(answers, 20000);
    assert_non_null(event);
    size_t n = 0;
    const rd_kafka_ConfigResource_t **found = rd_kafka_DescribeConfigs_result_resources(
        rd_kafka_event_DescribeConfigs_result(event), &n);
    assert_int_equal(n, 1);
    const rd_kafka_ConfigEntry_t **entries = rd_kafka_ConfigResource_configs(found[0], &n);
    snprintf(out, capacity, "none");
    for (size_t i = 0; i < n; i++)
        if (strcmp(rd_kafka_ConfigEntry_name(entries[i]), name) == 0)
            snprintf(out, capacity, "%s", rd_kafka_ConfigEntry_value(entries[i]));
    rd_kafka_event_destroy(event);
    rd_kafka_ConfigResource_destroy(asked);
    rd_kafka_queue_destroy(answers);
    rd_kafka_destroy(rk);
}

/* A broker may not know a topic yet that was made a moment ago. */
static void read_topic_setting(const char *topic, const char *name, char *out, size_t capacity)
{
    const int64_t deadline_us = clock_mono_us() + 20000000;
    do
        ask_topic_setting(topic, name, out, capacity);
    while (strcmp(out, "none") == 0 && clock_mono_us() < deadline_us);
}

static void only_a_compacted_topic_is_compacted(void **state)
{
    (void)state;
    char topic[64], policy[64];
    bool created = false;
    struct err e = {0};
    name_of(topic, sizeof topic, "compacted");
    assert_int_equal(kafka_sink_create_compacted(sink, topic, 2, &created, &e), 0);
    assert_true(created);
    read_topic_setting(topic, "cleanup.policy", policy, sizeof policy);
    assert_string_equal(policy, "compact");
    name_of(topic, sizeof topic, "uncompacted");
    make_topic(topic, 2);
    read_topic_setting(topic, "cleanup.policy", policy, sizeof policy);
    assert_string_equal(policy, "delete");
}

static void a_missing_topic_is_named(void **state)
{
    (void)state;
    struct kafka_options o = options_of("nowhere", "g", 10);
    struct kafka_source *s;
    struct err e = {0};
    assert_int_equal(kafka_source_open(&o, &s, &e), ERR_NOTFOUND);
    assert_null(s);
    assert_non_null(strstr(e.text, "nowhere"));
    err_clear(&e);
    const struct kafka_message m = {.topic = "nowhere", .value = "x", .value_length = 1};
    assert_int_equal(kafka_sink_send(sink, &m, 1, &e), ERR_NOTFOUND);
    assert_non_null(strstr(e.text, "nowhere"));
}

/* Java's partitioner: toPositive(murmur2(key)) % partitions. The hashes are those that Kafka's
 * own UtilsTest lists. */
static void keys_go_where_javas_clients_put_them(void **state)
{
    (void)state;
    static const struct {
        const char *key;
        int32_t hash;
    } cases[] = {
        {"21", -973932308},
        {"foobar", -790332482},
        {"a-little-bit-long-string", -985981536},
        {"a-little-bit-longer-string", -1486304829},
        {"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971},
        {"abc", 479470107},
    };
    enum { N = sizeof cases / sizeof *cases };
    char topic[64];
    make_topic(name_of(topic, sizeof topic, "murmur"), PARTITIONS);
    for (int i = 0; i < N; i++) {
        const struct kafka_message m = {.topic = topic,
                                        .key = cases[i].key,
                                        .key_length = strlen(cases[i].key),
                                        .value = "",
                                        .value_length = 0,
                                        .custom_id = cases[i].key};
        assert_int_equal(kafka_sink_send(sink, &m, 1, NULL), 0);
    }
    struct kafka_source *s = open_source(topic, topic, 100);
    int seen = 0;
    const int64_t began_us = clock_mono_us();
    while (seen < N && clock_mono_us() - began_us < 15000000) {
        struct kafka_record *r = take_one(s, 100, NULL);
        for (int i = 0; r && i < N; i++)
            if (strcmp(r->record.key, cases[i].key) == 0) {
                assert_int_equal(r->partition, (cases[i].hash & 0x7fffffff) % PARTITIONS);
                assert_string_equal(job_record_header(&r->record, "custom_id")->value,
                                    r->record.key);
                assert_true(r->timestamp_us > INT64_C(1600000000) * 1000000);
                assert_int_equal(r->record.value_length, 0);
                seen++;
            }
        kafka_record_free(r);
    }
    assert_int_equal(seen, N);
    close_source(s);
}

static void a_job_of_16_mib_passes_unchanged(void **state)
{
    (void)state;
    const size_t length = 16u << 20;
    char topic[64];
    make_topic(name_of(topic, sizeof topic, "large"), 1);
    char *value = malloc(length);
    uint32_t x = 1;
    for (size_t i = 0; i < length; i++) { /* nothing that compresses */
        x = x * 1664525u + 1013904223u;
        value[i] = (char)(x >> 24);
    }
    struct kafka_message m = {.topic = topic, .value = value, .value_length = length};
    struct err e = {0};
    if (kafka_sink_send(sink, &m, 1, &e) != 0)
        fail_msg("%s", e.text);
    struct kafka_source *s = open_source(topic, topic, 100);
    struct ledger *l = calloc(1, sizeof *l);
    struct kafka_record *r = NULL;
    for (int i = 0; !r && i < 200; i++)
        r = take_one(s, 100, l);
    assert_non_null(r);
    assert_int_equal(r->record.value_length, length);
    assert_memory_equal(r->record.value, value, length);
    settle(s, r, l);
    kafka_record_free(r);
    free(value);
    assert_int_equal(drain(s, 10, l), 0);
    close_source(s);
    free(l);
}

/* A reader that does not know what is committed beside the watermark is given all from there
 * on. */
static void a_crash_brings_back_exactly_what_was_not_settled(void **state)
{
    (void)state;
    enum { N = 400 };
    char topic[64];
    make_topic(name_of(topic, sizeof topic, "crash"), PARTITIONS);
    submit(topic, N, NULL);
    struct ledger *before = calloc(1, sizeof *before), *after = calloc(1, sizeof *after),
                  *kcat = calloc(1, sizeof *kcat);
    read_worker(start_worker(topic, topic, "crash"), before);

    int64_t committed[PARTITIONS], ends[PARTITIONS];
    look_up(topic, topic, PARTITIONS, committed, ends);
    for (int p = 0; p < PARTITIONS; p++) {
        const int64_t expected = watermark_of(before, p);
        assert_int_equal(committed[p] == NOTHING ? 0 : committed[p], expected);
    }
    read_kcat(topic, topic, kcat);
    read_worker(start_worker(topic, topic, "drain"), after);
    int64_t total = 0, again = 0, spared = 0;
    for (int p = 0; p < PARTITIONS; p++)
        for (int64_t o = 0; o < ends[p]; o++) {
            const int is_above = o >= watermark_of(before, p);
            assert_int_equal(kcat->received[p][o], is_above);
            assert_int_equal(after->received[p][o], !before->settled[p][o]);
            total += before->received[p][o] || after->received[p][o];
            again += before->received[p][o] && after->received[p][o];
            spared += is_above && before->settled[p][o];
        }
    assert_int_equal(total, N);
    assert_true(again > 0 && spared > 20); /* or the crash has proved nothing */
    print_message("%d records, %d of them came again, %d above a watermark did not\n",
                  (int)total, (int)again, (int)spared);
    expect_all_committed(topic, topic, PARTITIONS);
    free(before);
    free(after);
    free(kcat);
}

static void two_workers_one_crashing_leave_no_record_behind(void **state)
{
    (void)state;
    enum { N = 800 };
    char topic[64];
    make_topic(name_of(topic, sizeof topic, "pair"), PARTITIONS);
    submit(topic, N, NULL);
    struct ledger *crashed = calloc(1, sizeof *crashed), *drained = calloc(1, sizeof *drained);
    FILE *a = start_worker(topic, topic, "crash");
    FILE *b = start_worker(topic, topic, "drain");
    read_worker(a, crashed);
    read_worker(b, drained);
    /* The one that is left may be drained before the crashed one's session has run out. */
    read_worker(start_worker(topic, topic, "drain"), drained);
    int64_t committed[PARTITIONS], ends[PARTITIONS], total = 0;
    look_up(topic, topic, PARTITIONS, committed, ends);
    for (int p = 0; p < PARTITIONS; p++)
        for (int64_t o = 0; o < ends[p]; o++) {
            assert_true(crashed->settled[p][o] || drained->settled[p][o]);
            total++;
        }
    assert_int_equal(total, N);
    expect_all_committed(topic, topic, PARTITIONS);
    free(crashed);
    free(drained);
}

/* Polls both until the second has a partition; a's records go to its ledger. */
static void join(struct kafka_source *a, struct kafka_source *b, struct ledger *l,
                 struct ledger *lb, int partitions_of_b)
{
    struct kafka_progress progress = {0};
    for (int i = 0; i < 200 && progress.partitions != partitions_of_b; i++) {
        kafka_record_free(take_one(a, 50, l));
        kafka_record_free(take_one(b, 50, lb));
        kafka_source_progress(b, &progress);
    }
    assert_int_equal(progress.partitions, partitions_of_b);
}

static void work_in_hand_survives_a_rebalance(void **state)
{
    (void)state;
    enum { N = 60 };
    char topic[64];
    make_topic(name_of(topic, sizeof topic, "rebalance"), PARTITIONS);
    submit(topic, N, NULL);
    struct ledger *la = calloc(1, sizeof *la), *lb = calloc(1, sizeof *lb);
    struct kafka_source *a = open_source(topic, topic, 1000);
    int taken = 0;
    for (int i = 0; i < 400 && taken < N; i++) {
        struct kafka_record *r = take_one(a, 50, la);
        taken += r != NULL;
        kafka_record_free(r);
    }
    assert_int_equal(taken, N);
    struct kafka_source *b = open_source(topic, topic, 1000);
    join(a, b, la, lb, PARTITIONS / 2);
    /* a finishes what it had in hand, of its own partitions and of b's */
    for (int p = 0; p < PARTITIONS; p++)
        for (int64_t o = 0; o < OFFSETS_MAX; o++)
            if (la->received[p][o])
                kafka_source_settle(a, topic, p, o);
    for (int i = 0; i < 40; i++) {
        kafka_record_free(take_one(a, 50, la));
        kafka_record_free(take_one(b, 50, lb));
    }
    assert_true(kafka_source_is_drained(a));
    assert_false(kafka_source_is_drained(b)); /* it has settled nothing */
    int64_t n_b = 0, committed[PARTITIONS], ends[PARTITIONS];
    for (int p = 0; p < PARTITIONS; p++)
        for (int64_t o = 0; o < OFFSETS_MAX; o++) {
            assert_true(la->received[p][o] <= 1); /* nothing twice to the same worker */
            n_b += lb->received[p][o];
            if (lb->received[p][o])
                kafka_source_settle(b, topic, p, o);
        }
    assert_true(n_b > 0 && n_b < N);
    look_up(topic, topic, PARTITIONS, committed, ends);
    for (int p = 0; p < PARTITIONS; p++) /* a has committed its own only */
        assert_int_equal(committed[p] > 0 ? committed[p] : 0, lb->received[p][0] ? 0 : ends[p]);
    close_source(a);
    close_source(b);
    free(la);
    free(lb);
}

static void a_worker_without_partitions_is_drained_after_a_while(void **state)
{
    (void)state;
    char topic[64];
    make_topic(name_of(topic, sizeof topic, "idle"), 1);
    submit(topic, 1, "k");
    struct ledger *l = calloc(1, sizeof *l);
    struct kafka_source *a = open_source(topic, topic, 10), *b = open_source(topic, topic, 10);
    bool a_drained = false, b_drained = false;
    for (int i = 0; i < 200 && !(a_drained && b_drained); i++) {
        for (int k = 0; k < 2; k++) {
            struct kafka_record *r = take_one(k ? b : a, 50, l);
            if (r)
                settle(k ? b : a, r, l);
            kafka_record_free(r);
        }
        a_drained = kafka_source_is_drained(a);
        b_drained = kafka_source_is_drained(b);
    }
    assert_true(a_drained && b_drained);
    close_source(a);
    close_source(b);
    expect_all_committed(topic, topic, 1);
    free(l);
}

static struct kafka_source *open_named(const char *topic, const char *client_id)
{
    const char *props[sizeof quick / sizeof quick[0] + 2] = {"client.id", client_id};
    memcpy(props + 2, quick, sizeof quick);
    struct kafka_options o = options_of(topic, topic, 2);
    o.props = props;
    struct kafka_source *s;
    struct err e = {0};
    if (kafka_source_open(&o, &s, &e) != 0)
        fail_msg("%s", e.text);
    return s;
}

/* A worker has all that it may hold from one partition, and both are paused; then that one goes
 * to another worker. What is left is read on with. */
static void a_pause_does_not_outlive_a_rebalance(void **state)
{
    (void)state;
    char topic[64];
    make_topic(name_of(topic, sizeof topic, "paused"), 2);
    submit(topic, 4, "k");
    struct kafka_source *a = open_named(topic, "m");
    int32_t full = -1;
    for (int i = 0, n = 0; i < 200 && n < 2; i++) {
        struct kafka_record *r = take_one(a, 100, NULL);
        n += r != NULL;
        full = r ? r->partition : full;
        kafka_record_free(r); /* in work for ever */
    }
    assert_in_range(full, 0, 1);
    submit(topic, 40, NULL);
    struct kafka_record *r = take_one(a, 500, NULL);
    assert_null(r);
    /* range gives the first partition to the first name */
    struct kafka_source *b = open_named(topic, full == 0 ? "a" : "z");
    for (int i = 0; i < 200 && !r; i++) {
        kafka_record_free(take_one(b, 50, NULL));
        r = take_one(a, 50, NULL);
    }
    assert_non_null(r);
    assert_int_equal(r->partition, 1 - full);
    kafka_record_free(r);
    close_source(a);
    close_source(b);
}

/* An empty partition is at its end; a pause for the sake of another one must not hide that. */
static void drained_comes_again_after_a_pause(void **state)
{
    (void)state;
    char topic[64];
    make_topic(name_of(topic, sizeof topic, "pause"), PARTITIONS);
    struct ledger *l = calloc(1, sizeof *l);
    struct kafka_source *s = open_source(topic, topic, 5);
    assert_int_equal(drain(s, 10, l), 0);
    submit(topic, 12, "one key, one partition");
    struct kafka_record *held[5];
    int n = 0;
    for (int i = 0; i < 100 && n < 5; i++)
        if ((held[n] = take_one(s, 100, l)) != NULL)
            n++;
    assert_int_equal(n, 5);
    for (int i = 0; i < 10; i++)
        assert_null(take_one(s, 50, l)); /* paused */
    assert_false(kafka_source_is_drained(s));
    for (int i = 0; i < 5; i++) {
        settle(s, held[i], l);
        kafka_record_free(held[i]);
    }
    assert_int_equal(drain(s, 15, l), 7);
    close_source(s);
    expect_all_committed(topic, topic, PARTITIONS);
    free(l);
}

static void transact(rd_kafka_t *rk, const char *topic, int n, bool commit)
{
    assert_null(rd_kafka_begin_transaction(rk));
    for (int i = 0; i < n; i++)
        assert_int_equal(rd_kafka_producev(rk, RD_KAFKA_V_TOPIC(topic), RD_KAFKA_V_PARTITION(0),
                                           RD_KAFKA_V_VALUE((void *)(uintptr_t) "t", 1),
                                           RD_KAFKA_V_MSGFLAGS(RD_KAFKA_MSG_F_COPY),
                                           RD_KAFKA_V_END),
                         0);
    assert_int_equal(rd_kafka_flush(rk, 10000), 0);
    if (commit)
        assert_null(rd_kafka_commit_transaction(rk, 10000));
    else
        assert_null(rd_kafka_abort_transaction(rk, 10000));
}

static void aborted_jobs_are_no_jobs_and_markers_are_no_backlog(void **state)
{
    (void)state;
    char topic[64], reason[256];
    make_topic(name_of(topic, sizeof topic, "marks"), 1);
    rd_kafka_conf_t *conf = rd_kafka_conf_new();
    rd_kafka_conf_set(conf, "bootstrap.servers", broker, reason, sizeof reason);
    rd_kafka_conf_set(conf, "transactional.id", topic, reason, sizeof reason);
    rd_kafka_t *rk = rd_kafka_new(RD_KAFKA_PRODUCER, conf, reason, sizeof reason);
    assert_non_null(rk);
    assert_null(rd_kafka_init_transactions(rk, 20000));
    transact(rk, topic, 3, true);
    transact(rk, topic, 4, false);
    transact(rk, topic, 5, true);
    rd_kafka_destroy(rk);
    struct ledger *l = calloc(1, sizeof *l);
    struct kafka_source *s = open_source(topic, topic, 100);
    assert_int_equal(drain(s, 15, l), 8);
    for (int64_t o = 0; o < 15; o++) /* markers at 3, 8 and 14 */
        assert_int_equal(l->received[0][o], o < 3 || (o >= 9 && o < 14));
    close_source(s);
    int64_t committed, end;
    look_up(topic, topic, 1, &committed, &end);
    assert_int_equal(end, 15);
    assert_int_equal(committed, 15);
    free(l);
}

static void delete_before(const char *topic, int64_t offset)
{
    rd_kafka_t *rk = open_checker("deleter");
    rd_kafka_topic_partition_list_t *list = rd_kafka_topic_partition_list_new(1);
    rd_kafka_topic_partition_list_add(list, topic, 0)->offset = offset;
    rd_kafka_DeleteRecords_t *request = rd_kafka_DeleteRecords_new(list);
    rd_kafka_queue_t *answers = rd_kafka_queue_new(rk);
    rd_kafka_DeleteRecords(rk, &request, 1, NULL, answers);
    rd_kafka_event_t *event = rd_kafka_queue_poll(answers, 10000);
    assert_non_null(event);
    assert_int_equal(rd_kafka_event_error(event), 0);
    rd_kafka_event_destroy(event);
    rd_kafka_queue_destroy(answers);
    rd_kafka_DeleteRecords_destroy(request);
    rd_kafka_topic_partition_list_destroy(list);
    rd_kafka_destroy(rk);
}

static void jobs_lost_to_retention_do_not_stop_the_rest(void **state)
{
    (void)state;
    char topic[64];
    make_topic(name_of(topic, sizeof topic, "retention"), 1);
    submit(topic, 20, "k");
    struct ledger *l = calloc(1, sizeof *l);
    struct kafka_source *s = open_source(topic, topic, 100);
    for (int n = 0, i = 0; i < 200 && n < 5; i++) {
        struct kafka_record *r = take_one(s, 100, l);
        if (r)
            settle(s, r, l);
        n += r != NULL;
        kafka_record_free(r);
    }
    close_source(s);
    delete_before(topic, 12);
    memset(l, 0, sizeof *l);
    s = open_source(topic, topic, 100);
    assert_int_equal(drain(s, 20, l), 8);
    assert_int_equal(l->received[0][11], 0);
    assert_int_equal(l->received[0][12], 1);
    close_source(s);
    expect_all_committed(topic, topic, 1);
    free(l);
}

static void a_missed_poll_is_survived(void **state)
{
    (void)state;
    char topic[64];
    make_topic(name_of(topic, sizeof topic, "sleeper"), 1);
    submit(topic, 3, "k");
    struct ledger *l = calloc(1, sizeof *l);
    struct kafka_source *s = open_source(topic, topic, 100);
    assert_int_equal(drain(s, 15, l), 3);
    sleep(5); /* twice max.poll.interval.ms */
    submit(topic, 2, "k");
    int n = 0;
    for (int i = 0; i < 200 && n < 2; i++) {
        struct kafka_record *r = take_one(s, 100, l);
        if (r)
            settle(s, r, l);
        n += r != NULL;
        kafka_record_free(r);
    }
    assert_int_equal(n, 2);
    for (int64_t o = 0; o < 5; o++)
        assert_int_equal(l->received[0][o], 1);
    close_source(s);
    expect_all_committed(topic, topic, 1);
    free(l);
}

static void a_killed_broker_costs_no_job(void **state)
{
    (void)state;
    const char *restart = getenv("SHEAF_TEST_BROKER_RESTART");
    if (!restart)
        skip();
    enum { N = 300 };
    char topic[64];
    make_topic(name_of(topic, sizeof topic, "restart"), PARTITIONS);
    submit(topic, N / 2, NULL);
    struct ledger *l = calloc(1, sizeof *l);
    struct kafka_source *s = open_source(topic, topic, 1000);
    int n = 0;
    for (int i = 0; i < 400 && n < 40; i++) {
        struct kafka_record *r = take_one(s, 100, l);
        if (r)
            settle(s, r, l);
        n += r != NULL;
        kafka_record_free(r);
    }
    assert_int_equal(n, 40);
    assert_int_equal(system(restart), 0);
    submit(topic, N / 2, NULL);
    n += drain(s, 120, l); /* the broker may wait for the member it knew: session.timeout.ms */
    close_source(s);
    int seen = 0;
    for (int p = 0; p < PARTITIONS; p++)
        for (int o = 0; o < OFFSETS_MAX; o++)
            seen += l->received[p][o] > 0;
    assert_int_equal(seen, N);
    print_message("%d records received for %d submitted\n", n, N);
    expect_all_committed(topic, topic, PARTITIONS);
    free(l);
}

static void delete_topic(const char *topic)
{
    rd_kafka_t *rk = open_checker("deleter");
    rd_kafka_DeleteTopic_t *request = rd_kafka_DeleteTopic_new(topic);
    rd_kafka_queue_t *answers = rd_kafka_queue_new(rk);
    rd_kafka_DeleteTopics(rk, &request, 1, NULL, answers);
    rd_kafka_event_t *event = rd_kafka_queue_poll(answers, 10000);
    assert_non_null(event);
    assert_int_equal(rd_kafka_event_error(event), 0);
    rd_kafka_event_destroy(event);
    rd_kafka_queue_destroy(answers);
    rd_kafka_DeleteTopic_destroy(request);
    rd_kafka_destroy(rk);
}

/* The group's offset outlives nothing here: the topic is replaced while it is being read. */
static void a_topic_made_anew_is_read_from_its_beginning(void **state)
{
    (void)state;
    char topic[64];
    make_topic(name_of(topic, sizeof topic, "anew"), 1);
    submit(topic, 30, "k");
    struct ledger *l = calloc(1, sizeof *l);
    struct kafka_source *s = open_source(topic, topic, 100);
    assert_int_equal(drain(s, 15, l), 30);
    delete_topic(topic);
    for (int i = 0; i < 10; i++)
        kafka_record_free(take_one(s, 100, l));
    make_topic(topic, 1);
    submit(topic, 4, "k");
    for (int n = 0, i = 0; i < 200 && n < 4; i++) {
        struct kafka_record *r = take_one(s, 100, l);
        if (r)
            settle(s, r, l);
        n += r != NULL;
        kafka_record_free(r);
    }
    for (int64_t o = 0; o < 4; o++)
        assert_int_equal(l->received[0][o], 2);
    close_source(s);
    expect_all_committed(topic, topic, 1);
    free(l);
}

static void a_broker_is_needed(void **state)
{
    (void)state;
    print_message("not run: no SHEAF_TEST_BROKER; tests/kafka/run starts one\n");
    skip();
}

/* Settles the batch backwards; every seventh record of its second half is left. */
static void settle_wildly(struct kafka_source *s, struct kafka_record **batch, int n)
{
    for (int i = n - 1; i >= 0; i--) {
        if (i < n / 2 || i % 7 != 6) {
            kafka_source_settle(s, batch[i]->topic, batch[i]->partition, batch[i]->offset);
            printf("settled %d %lld\n", batch[i]->partition, (long long)batch[i]->offset);
        }
        kafka_record_free(batch[i]);
    }
}

static int work_and_crash(struct kafka_source *s)
{
    struct kafka_record *batch[CRASH_RECORDS], *r;
    int n = 0;
    const int64_t began_us = clock_mono_us();
    while (n < CRASH_RECORDS && clock_mono_us() - began_us < 20000000) {
        if (kafka_source_poll(s, 100, &r, NULL) != 0)
            return 1;
        if (!r)
            continue;
        printf("received %d %lld\n", r->partition, (long long)r->offset);
        batch[n++] = r;
    }
    settle_wildly(s, batch, n);
    for (int64_t end_us = clock_mono_us() + 2500000; clock_mono_us() < end_us;) {
        if (kafka_source_poll(s, 50, &r, NULL) != 0)
            return 1;
        if (r)
            printf("received %d %lld\n", r->partition, (long long)r->offset);
        kafka_record_free(r);
    }
    fflush(stdout);
    _exit(n == CRASH_RECORDS ? 0 : 1);
}

static int work_and_drain(struct kafka_source *s)
{
    const int64_t began_us = clock_mono_us();
    while (!kafka_source_is_drained(s)) {
        struct kafka_record *r;
        if (clock_mono_us() - began_us > 60000000 || kafka_source_poll(s, 100, &r, NULL) != 0)
            return 1;
        if (!r)
            continue;
        printf("received %d %lld\nsettled %d %lld\n", r->partition, (long long)r->offset,
               r->partition, (long long)r->offset);
        kafka_source_settle(s, r->topic, r->partition, r->offset);
        kafka_record_free(r);
        usleep(1000);
    }
    return kafka_source_close(s, NULL) != 0;
}

static int work(const char *topic, const char *group, const char *mode)
{
    const struct kafka_options o = options_of(topic, group, 1000);
    struct kafka_source *s;
    if (kafka_source_open(&o, &s, NULL) != 0)
        return 1;
    return strcmp(mode, "crash") == 0 ? work_and_crash(s) : work_and_drain(s);
}

static int open_sink(void **state)
{
    (void)state;
    const struct kafka_options o = options_of(NULL, NULL, 0);
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
    if (argc == 5 && strcmp(argv[1], "worker") == 0)
        return work(argv[2], argv[3], argv[4]);
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    if (!broker) {
        const struct CMUnitTest none[] = {cmocka_unit_test(a_broker_is_needed)};
        return cmocka_run_group_tests_name("kafka_real", none, NULL, NULL);
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(topics_are_created_once),
        cmocka_unit_test(only_a_compacted_topic_is_compacted),
        cmocka_unit_test(a_missing_topic_is_named),
        cmocka_unit_test(keys_go_where_javas_clients_put_them),
        cmocka_unit_test(a_job_of_16_mib_passes_unchanged),
        cmocka_unit_test(a_crash_brings_back_exactly_what_was_not_settled),
        cmocka_unit_test(two_workers_one_crashing_leave_no_record_behind),
        cmocka_unit_test(work_in_hand_survives_a_rebalance),
        cmocka_unit_test(a_worker_without_partitions_is_drained_after_a_while),
        cmocka_unit_test(a_pause_does_not_outlive_a_rebalance),
        cmocka_unit_test(drained_comes_again_after_a_pause),
        cmocka_unit_test(aborted_jobs_are_no_jobs_and_markers_are_no_backlog),
        cmocka_unit_test(jobs_lost_to_retention_do_not_stop_the_rest),
        cmocka_unit_test(a_topic_made_anew_is_read_from_its_beginning),
        cmocka_unit_test(a_missed_poll_is_survived),
        cmocka_unit_test(a_killed_broker_costs_no_job),
    };
    return cmocka_run_group_tests_name("kafka_real", tests, open_sink, close_sink);
}
