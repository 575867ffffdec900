/* What a burst says, worked out by hand for partitions that are built here. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "io/burst_plan.h"

enum { N_OFFSETS = 8 };

static struct kafka_partitions ps;

/* Partition id of topic "jobs", ours, with offsets 0..n-1 received. Its lease. */
static uint64_t own(const char *topic, int32_t id, int64_t n)
{
    const struct offset_bits nothing = {.base = -1};
    int64_t start;
    assert_int_equal(kafka_partitions_assign(&ps, topic, id, &nothing, &start, NULL), 0);
    struct kafka_partition *p = kafka_partitions_find(&ps, topic, id);
    for (int64_t offset = 0; offset < n; offset++)
        assert_true(offset_tracker_receive(&p->tracker, offset, 1));
    return p->lease;
}

static void settle(const char *topic, int32_t id, int64_t offset)
{
    assert_true(offset_tracker_settle(&kafka_partitions_find(&ps, topic, id)->tracker, offset));
}

static struct kafka_answer answer(const char *topic, int32_t id, int64_t offset, uint64_t lease)
{
    return (struct kafka_answer){
        .topic = topic, .partition = id, .offset = offset, .lease = lease};
}

static int clean(void **state)
{
    (void)state;
    kafka_partitions_fini(&ps);
    return 0;
}

/* settled: a character per offset from base on, '1' for settled; none behind its end. */
static void expect_offsets(const struct burst_offsets *o, const char *topic, int32_t id,
                           int64_t base, const char *settled)
{
    assert_string_equal(o->topic, topic);
    assert_int_equal(o->partition, id);
    assert_int_equal(o->settled.base, base);
    assert_int_equal(o->settled.n_bits, strlen(settled));
    for (size_t i = 0; settled[i]; i++)
        assert_int_equal(o->settled.bits[i / 8] >> i % 8 & 1, settled[i] == '1');
}

static void open_answers_are_committed_with_what_was_settled_before(void **state)
{
    (void)state;
    const uint64_t lease = own("jobs", 0, N_OFFSETS);
    settle("jobs", 0, 0);
    settle("jobs", 0, 5);
    const struct kafka_answer answers[] = {
        answer("jobs", 0, 3, lease),
        answer("jobs", 0, 5, lease),
        answer("jobs", 0, 1, lease),
    };
    enum kafka_answer_state states[3];
    struct burst_plan plan;
    assert_int_equal(burst_plan_make(&ps, answers, 3, states, &plan, NULL), 0);
    assert_int_equal(states[0], ANSWER_OPEN);
    assert_int_equal(states[1], ANSWER_GIVEN);
    assert_int_equal(states[2], ANSWER_OPEN);
    assert_int_equal(plan.n, 1);
    expect_offsets(&plan.items[0], "jobs", 0, 2, "0101"); /* 0, 1, 3, 5 are; 2, 4 are not */
    burst_plan_fini(&plan);
    /* A plan changes nothing: the burst may fail. */
    assert_int_equal(kafka_partitions_find(&ps, "jobs", 0)->tracker.watermark, 1);
}

static void only_partitions_with_open_answers_are_touched(void **state)
{
    (void)state;
    const uint64_t a = own("jobs", 0, 2), b = own("jobs", 1, 2), c = own("others", 1, 2);
    settle("jobs", 0, 1);
    settle("jobs", 1, 1);
    const struct kafka_answer answers[] = {answer("others", 1, 0, c), answer("jobs", 1, 1, b),
                                           answer("jobs", 0, 0, a)};
    enum kafka_answer_state states[3];
    struct burst_plan plan;
    assert_int_equal(burst_plan_make(&ps, answers, 3, states, &plan, NULL), 0);
    assert_int_equal(states[1], ANSWER_GIVEN);
    assert_int_equal(plan.n, 2);
    expect_offsets(&plan.items[0], "jobs", 0, 2, "");
    expect_offsets(&plan.items[1], "others", 1, 1, "");
    burst_plan_fini(&plan);
}

static void a_partition_that_went_away_and_came_back_has_no_old_answers(void **state)
{
    (void)state;
    const uint64_t old = own("jobs", 0, 2);
    kafka_partitions_revoke_all(&ps);
    kafka_partitions_drop_revoked(&ps);
    enum kafka_answer_state states[2];
    struct burst_plan plan;
    const struct kafka_answer gone = answer("jobs", 0, 0, old);
    assert_int_equal(burst_plan_make(&ps, &gone, 1, states, &plan, NULL), 0);
    assert_int_equal(states[0], ANSWER_NOT_OURS);
    assert_int_equal(plan.n, 0);
    burst_plan_fini(&plan);

    const uint64_t lease = own("jobs", 0, 2);
    const struct kafka_answer answers[] = {answer("jobs", 0, 0, old),
                                           answer("jobs", 0, 1, lease)};
    assert_int_equal(burst_plan_make(&ps, answers, 2, states, &plan, NULL), 0);
    assert_int_equal(states[0], ANSWER_NOT_OURS);
    assert_int_equal(states[1], ANSWER_OPEN);
    assert_int_equal(plan.n, 1);
    expect_offsets(&plan.items[0], "jobs", 0, 0, "01");
    burst_plan_fini(&plan);
}

static void between_two_assignments_nobody_knows(void **state)
{
    (void)state;
    const uint64_t lease = own("jobs", 0, 2);
    kafka_partitions_revoke_all(&ps);
    const struct kafka_answer a = answer("jobs", 0, 0, lease);
    enum kafka_answer_state s;
    struct burst_plan plan;
    struct err e = {0};
    assert_int_equal(burst_plan_make(&ps, &a, 1, &s, &plan, &e), ERR_BROKER);
    assert_int_equal(e.flags, ERR_RETRY);
    assert_int_equal(plan.n, 0);
    own("jobs", 0, 0); /* straight back */
    assert_int_equal(burst_plan_make(&ps, &a, 1, &s, &plan, NULL), 0);
    assert_int_equal(s, ANSWER_OPEN);
    expect_offsets(&plan.items[0], "jobs", 0, 1, "");
    burst_plan_fini(&plan);
}

static void what_the_group_has_committed_is_given(void **state)
{
    (void)state;
    const uint64_t lease = own("jobs", 0, 4);
    const struct offset_bits committed = {.base = 1, .n_bits = 3, .bits = {4}}; /* 0 and 3 */
    assert_true(burst_plan_take_over(&ps, "jobs", 0, &committed));
    assert_false(burst_plan_take_over(&ps, "jobs", 7, &committed)); /* not ours */
    const struct kafka_answer answers[] = {
        answer("jobs", 0, 0, lease), answer("jobs", 0, 1, lease), answer("jobs", 0, 3, lease)};
    enum kafka_answer_state states[3];
    struct burst_plan plan;
    assert_int_equal(burst_plan_make(&ps, answers, 3, states, &plan, NULL), 0);
    assert_int_equal(states[0], ANSWER_GIVEN);
    assert_int_equal(states[1], ANSWER_OPEN);
    assert_int_equal(states[2], ANSWER_GIVEN);
    expect_offsets(&plan.items[0], "jobs", 0, 2, "01");
    burst_plan_fini(&plan);
}

static void nothing_read_or_not_ours_is_not_taken_over(void **state)
{
    (void)state;
    own("jobs", 0, 2);
    const struct kafka_partition *p = kafka_partitions_find(&ps, "jobs", 0);
    const struct offset_bits unread = {.base = -1}, all = {.base = 2};
    assert_false(burst_plan_take_over(&ps, "jobs", 0, &unread));
    assert_int_equal(p->tracker.watermark, 0);
    kafka_partitions_revoke_all(&ps);
    assert_false(burst_plan_take_over(&ps, "jobs", 0, &all));
    assert_int_equal(p->tracker.watermark, 0);
}

static void no_answers_are_no_plan(void **state)
{
    (void)state;
    own("jobs", 0, 1);
    struct burst_plan plan;
    assert_int_equal(burst_plan_make(&ps, NULL, 0, NULL, &plan, NULL), 0);
    assert_int_equal(plan.n, 0);
    burst_plan_fini(&plan);
}

int main(int argc, char **argv)
{
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
#define CASE(name) cmocka_unit_test_teardown(name, clean)
    const struct CMUnitTest tests[] = {
        CASE(open_answers_are_committed_with_what_was_settled_before),
        CASE(only_partitions_with_open_answers_are_touched),
        CASE(a_partition_that_went_away_and_came_back_has_no_old_answers),
        CASE(between_two_assignments_nobody_knows),
        CASE(what_the_group_has_committed_is_given),
        CASE(nothing_read_or_not_ours_is_not_taken_over),
        CASE(no_answers_are_no_plan),
    };
#undef CASE
    return cmocka_run_group_tests_name("burst_plan", tests, NULL, NULL);
}
