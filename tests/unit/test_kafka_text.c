/*
 * Brokers that take only a short text beside an offset: answers that come in any order are all
 * given in the end, and no text is ever longer than that. Judged by a table of what was given;
 * the bursts are played by the test, which commits what the snapshot says.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "io/kafka_int.h"

enum { JOBS = 900, BATCH = 64, ROUNDS = 40 };
static char topic[] = "jobs";

struct play {
    struct kafka_source source;
    struct kafka_answer waiting[JOBS]; /* in rising order */
    size_t n_waiting;
    int n_given[JOBS];
    size_t longest;
};

static void keep_membership(struct kafka_source *s)
{
    void *member;
    size_t n;
    rd_kafka_consumer_group_metadata_t *m = rd_kafka_consumer_group_metadata_new("group");
    assert_null(rd_kafka_consumer_group_metadata_write(m, &member, &n));
    rd_kafka_consumer_group_metadata_destroy(m);
    s->member = member;
    s->member_bytes = n;
}

/* Every third offset is a gap. */
static bool is_job(int64_t offset)
{
    return offset % 3 != 2;
}

static void begin(struct play *p, size_t text_max)
{
    *p = (struct play){0};
    pthread_mutex_init(&p->source.lock, NULL);
    p->source.is_assigned = true;
    p->source.partitions.are_texts_limited = true;
    p->source.partitions.text_max = text_max;
    keep_membership(&p->source);
    const struct offset_bits nothing = {.base = 0};
    int64_t start;
    for (int32_t id = 0; id < 2; id++)
        assert_int_equal(
            kafka_partitions_assign(&p->source.partitions, topic, id, &nothing, &start, NULL),
            0);
    for (int64_t offset = 0; offset < JOBS; offset++)
        if (is_job(offset))
            assert_true(
                offset_tracker_receive(&p->source.partitions.items[0]->tracker, offset, 1));
}

static void end(struct play *p)
{
    kafka_partitions_fini(&p->source.partitions);
    free(p->source.member);
    pthread_mutex_destroy(&p->source.lock);
}

static void insert(struct play *p, int64_t offset)
{
    size_t at = p->n_waiting++;
    for (; at > 0 && p->waiting[at - 1].offset > offset; at--)
        p->waiting[at] = p->waiting[at - 1];
    p->waiting[at] = (struct kafka_answer){
        .topic = topic, .offset = offset, .lease = p->source.partitions.items[0]->lease};
}

/* Everything that waits is offered, as one burst. */
static void offer(struct play *p)
{
    enum kafka_answer_state states[JOBS] = {0};
    struct kafka_snapshot snapshot = {0};
    struct err e = {0};
    if (kafka_source_snapshot(&p->source, p->waiting, p->n_waiting, states, &snapshot, &e) != 0)
        fail_msg("%s", e.text);
    for (int i = 0; i < snapshot.offsets->cnt; i++)
        if (snapshot.offsets->elems[i].metadata_size > p->longest)
            p->longest = snapshot.offsets->elems[i].metadata_size;
    size_t kept = 0;
    for (size_t i = 0; i < p->n_waiting; i++) {
        const int64_t offset = p->waiting[i].offset;
        if (states[i] == ANSWER_OPEN) {
            assert_int_equal(snapshot.offsets->cnt, 1);
            kafka_source_settle(&p->source, topic, 0, offset);
            p->n_given[offset]++;
        } else {
            assert_int_equal(states[i], ANSWER_DELAYED);
            p->waiting[kept++] = p->waiting[i];
        }
    }
    p->n_waiting = kept;
    kafka_snapshot_fini(&snapshot);
}

/* Jobs end in an order of the seed's own, near to that of the topic or far from it. */
static void finish_all(struct play *p, uint64_t seed)
{
    int64_t order[JOBS];
    const size_t reach = seed % 2 ? 700 : 20;
    for (size_t i = 0; i < JOBS; i++)
        order[i] = (int64_t)i;
    for (size_t i = 0; i < JOBS; i++) {
        const size_t other = i + rng_bits(seed, 1, i) % reach;
        if (other < JOBS) {
            const int64_t offset = order[i];
            order[i] = order[other];
            order[other] = offset;
        }
    }
    for (size_t i = 0; i < JOBS; i++) {
        if (is_job(order[i]))
            insert(p, order[i]);
        if (i % BATCH == BATCH - 1 || i == JOBS - 1)
            offer(p);
    }
}

static void expect_all_given_once(const struct play *p)
{
    for (int64_t offset = 0; offset < JOBS; offset++)
        assert_int_equal(p->n_given[offset], is_job(offset));
    assert_int_equal(p->n_waiting, 0);
    assert_int_equal(p->source.partitions.items[0]->tracker.n_unsettled, 0);
}

static void every_answer_is_given_with_short_texts(void **state)
{
    (void)state;
    static struct play p;
    const size_t limits[] = {0, 26, 32, 64, 100};
    for (uint64_t seed = 0; seed < ROUNDS; seed++) {
        const size_t limit = limits[seed % 5];
        begin(&p, limit);
        finish_all(&p, seed);
        expect_all_given_once(&p);
        assert_true(p.longest <= limit);
        end(&p);
    }
}

static void without_a_limit_texts_are_longer(void **state)
{
    (void)state;
    static struct play p;
    begin(&p, OFFSET_METADATA_MAX);
    finish_all(&p, 1);
    expect_all_given_once(&p);
    assert_true(p.longest > 100);
    end(&p);
}

/* What is settled already needs a longer text than the limit that is heard of now. */
static void a_limit_that_comes_late_is_kept_from_then_on(void **state)
{
    (void)state;
    static struct play p;
    begin(&p, OFFSET_METADATA_MAX);
    for (int64_t offset = 1; offset < JOBS; offset += 2 + offset / 20)
        if (is_job(offset))
            insert(&p, offset);
    offer(&p);
    assert_int_equal(p.n_waiting, 0);
    assert_true(p.longest > 32);
    p.source.partitions.are_texts_limited = true;
    p.source.partitions.text_max = 32;
    p.longest = 0;
    for (int64_t offset = JOBS - 1; offset >= 0; offset--) {
        if (is_job(offset) && !p.n_given[offset])
            insert(&p, offset);
        if (offset % 40 == 0)
            offer(&p);
    }
    expect_all_given_once(&p);
    assert_true(p.longest <= 32);
    end(&p);
}

static void a_refused_text_halves_what_is_sent(void **state)
{
    (void)state;
    static struct play p;
    begin(&p, OFFSET_METADATA_MAX);
    rd_kafka_topic_partition_list_t *list = rd_kafka_topic_partition_list_new(2);
    rd_kafka_topic_partition_list_add(list, topic, 0);
    assert_false(kafka_source_shorten_texts(&p.source, list));
    assert_int_equal(kafka_partitions_text_max(&p.source.partitions), OFFSET_METADATA_MAX);
    rd_kafka_topic_partition_list_add(list, topic, 1)->metadata_size = 50;
    assert_true(kafka_source_shorten_texts(&p.source, list));
    assert_int_equal(kafka_partitions_text_max(&p.source.partitions), 25);
    rd_kafka_topic_partition_list_destroy(list);
    end(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_answer_is_given_with_short_texts),
        cmocka_unit_test(without_a_limit_texts_are_longer),
        cmocka_unit_test(a_limit_that_comes_late_is_kept_from_then_on),
        cmocka_unit_test(a_refused_text_halves_what_is_sent),
    };
    return cmocka_run_group_tests_name("kafka_text", tests, NULL, NULL);
}
