/*
 * Orders worked out by hand. A prompt is written as a text whose every character is a block of
 * 32 tokens: "SAAA1" is a system prompt of one block, a document of three and a question.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "group_int.h"

enum { BLOCK = 32, BLOCKS_MAX = 64, NEVER = 1000000 };

static struct group_window *open_window(size_t open_max)
{
    const struct group_limits limits = {.jobs_max = 1000,
                                        .tokens_max = SIZE_MAX,
                                        .bytes_max = SIZE_MAX,
                                        .open_max = open_max,
                                        .max_wait_us = NEVER,
                                        .enabled = true};
    struct group_window *w = NULL;
    assert_int_equal(group_open(&limits, &w, NULL), 0);
    return w;
}

static void add_job(struct group_window *w, const char *prompt, struct group_job job)
{
    static int32_t tokens[BLOCKS_MAX * BLOCK];
    const size_t n_blocks = strlen(prompt);
    assert_true(n_blocks <= BLOCKS_MAX);
    for (size_t i = 0; i < n_blocks * BLOCK; i++)
        tokens[i] = prompt[i / BLOCK];
    job.tokens = tokens;
    job.n_tokens = n_blocks * BLOCK;
    job.user = (void *)(uintptr_t)prompt;
    assert_int_equal(group_add(w, &job, NULL), 0);
    assert_true(group_check(w));
}

static void add(struct group_window *w, const char *prompts)
{
    static char store[64][BLOCKS_MAX];
    static size_t n_stored;
    while (*prompts) {
        const size_t length = strcspn(prompts, " ");
        char *prompt = store[n_stored++ % 64];
        memcpy(prompt, prompts, length);
        prompt[length] = '\0';
        add_job(w, prompt, (struct group_job){0});
        prompts += length + strspn(prompts + length, " ");
    }
}

static struct group_pick next_at(struct group_window *w, int64_t now_us)
{
    struct group_pick pick = {0};
    assert_true(group_next(w, now_us, &pick));
    assert_true(group_check(w));
    return pick;
}

/* The next jobs are these, and none of them is hurried. */
static void expect(struct group_window *w, const char *prompts)
{
    while (*prompts) {
        const size_t length = strcspn(prompts, " ");
        char wanted[BLOCKS_MAX] = {0};
        memcpy(wanted, prompts, length);
        const struct group_pick pick = next_at(w, 0);
        assert_string_equal(pick.user, wanted);
        assert_false(pick.aged);
        prompts += length + strspn(prompts + length, " ");
    }
}

static void expect_at(struct group_window *w, int64_t now_us, const char *prompt, bool aged)
{
    const struct group_pick pick = next_at(w, now_us);
    assert_string_equal(pick.user, prompt);
    assert_int_equal(pick.aged, aged);
}

static void close_empty(struct group_window *w)
{
    struct group_pick pick;
    assert_false(group_next(w, 0, &pick));
    assert_int_equal(group_length(w), 0);
    group_close(w);
}

/* ---- groups ---- */

static void the_questions_of_a_document_come_together(void **state)
{
    (void)state;
    struct group_window *w = open_window(1);
    add(w, "AAAA1 BBBB1 AAAA2 BBBB2");
    expect(w, "AAAA1 AAAA2 BBBB1 BBBB2");
    close_empty(w);
}

static void open_groups_give_jobs_in_turn(void **state)
{
    (void)state;
    struct group_window *w = open_window(2);
    add(w, "AAAA1 BBBB1 CCCC1 AAAA2 BBBB2 CCCC2 AAAA3 BBBB3");
    /* A and B save 8 of 15 blocks, C 4 of 10. C gets A's place; B's has nothing left. */
    expect(w, "AAAA1 BBBB1 AAAA2 BBBB2 AAAA3 BBBB3 CCCC1 CCCC2");
    close_empty(w);
}

static void the_group_that_saves_most_opens_first(void **state)
{
    (void)state;
    struct group_window *w = open_window(1);
    add(w, "A1111 A2222 A3333 BBB11 BBB22 CCCC1 CCCC2");
    /* A saves 2 of 15 blocks, B 3 of 10, C 4 of 10. */
    expect(w, "CCCC1 CCCC2 BBB11 BBB22 A1111 A2222 A3333");
    close_empty(w);
}

/* (12 - 1) x 1 block above is more than (2 - 1) x 5, yet the system prompt makes no group. */
static void documents_beat_the_system_prompt_that_all_share(void **state)
{
    (void)state;
    struct group_window *w = open_window(2);
    add(w, "SAAAA1 SBBBB1 SCCCC1 SDDDD1 SEEEE1 SFFFF1");
    add(w, "SFFFF2 SEEEE2 SDDDD2 SCCCC2 SBBBB2 SAAAA2");
    const struct group_pick first = next_at(w, 0);
    assert_string_equal(first.user, "SAAAA1");
    assert_int_equal(first.shared_tokens, 5 * BLOCK);
    assert_int_equal(first.group_jobs, 2);
    expect(w, "SBBBB1");
    const struct group_pick second = next_at(w, 0);
    assert_string_equal(second.user, "SAAAA2");
    assert_int_equal(second.group_jobs, 1);
    assert_true(second.group == first.group && first.group != 0);
    expect(w, "SBBBB2 SCCCC1 SDDDD1 SCCCC2 SDDDD2 SEEEE1 SFFFF1 SEEEE2 SFFFF2");
    close_empty(w);
}

static void examples_below_a_document_run_depth_first_in_its_group(void **state)
{
    (void)state;
    struct group_window *w = open_window(1);
    add(w, "AAAAX1 AAAAY1 BBBBX1 AAAAX2 AAAAY2 BBBBX2");
    /* A saves 12 of 24 blocks; X and Y below it, and B with its X, 5 of 12. */
    uint64_t group = 0;
    static const char *const order[] = {"AAAAX1", "AAAAX2", "AAAAY1", "AAAAY2"};
    for (size_t i = 0; i < 4; i++) {
        const struct group_pick pick = next_at(w, 0);
        assert_string_equal(pick.user, order[i]);
        assert_int_equal(pick.shared_tokens, 4 * BLOCK);
        assert_int_equal(pick.group_jobs, 4 - i);
        assert_true(i == 0 || pick.group == group);
        group = pick.group;
    }
    expect(w, "BBBBX1 BBBBX2");
    close_empty(w);
}

/* Where the examples are longer than the document they make the groups, and the other examples
 * of the same document come next: its blocks are still there. */
static void what_the_last_group_left_warm_counts_as_saved(void **state)
{
    (void)state;
    struct group_window *w = open_window(1);
    add(w, "AAXXX1 AAYYY1 AAXXX2 AAYYY2");
    expect(w, "AAXXX1");
    add(w, "BBXXX1 BBXXX2 BBXXX3");
    /* B saves 10 of 18 blocks; Y saves 5 of 12, and with the two of A 7. */
    expect(w, "AAXXX2 AAYYY1 AAYYY2 BBXXX1 BBXXX2 BBXXX3");
    close_empty(w);
}

static void what_is_warm_does_not_count_for_more_than_it_saves(void **state)
{
    (void)state;
    struct group_window *w = open_window(1);
    add(w, "AAXXX1 AAXXX2 AALLL1");
    expect(w, "AAXXX1");
    add(w, "BBXXX1 BBXXX2 BBXXX3");
    /* L finds the two of A: 2 of 6. */
    expect(w, "AAXXX2 BBXXX1 BBXXX2 BBXXX3 AALLL1");
    close_empty(w);
}

/* x saves 20 of 33 blocks, the document 24 of 44: no reason to split it. */
static void a_chance_likeness_does_not_split_a_group(void **state)
{
    (void)state;
    struct group_window *w = open_window(1);
    add(w, "AAAAAAAAxx1 AAAAAAAAyy2 AAAAAAAAxx3 AAAAAAAAxx4");
    const struct group_pick pick = next_at(w, 0);
    assert_int_equal(pick.group_jobs, 4);
    assert_int_equal(pick.shared_tokens, 8 * BLOCK);
    assert_string_equal(pick.user, "AAAAAAAAxx1");
    expect(w, "AAAAAAAAxx3 AAAAAAAAxx4 AAAAAAAAyy2");
    close_empty(w);
}

static void jobs_that_share_nothing_come_last_and_in_order_of_arrival(void **state)
{
    (void)state;
    struct group_window *w = open_window(1);
    add(w, "L AAAA1 M AAAA2 NNNN");
    expect(w, "AAAA1 AAAA2");
    for (size_t i = 0; i < 3; i++) {
        static const char *const order[] = {"L", "M", "NNNN"};
        const struct group_pick pick = next_at(w, 0);
        assert_string_equal(pick.user, order[i]);
        assert_true(pick.group == 0);
        assert_int_equal(pick.group_jobs, 1);
        assert_int_equal(pick.shared_tokens, 0);
    }
    close_empty(w);
}

static void a_free_place_serves_jobs_that_are_alone(void **state)
{
    (void)state;
    struct group_window *w = open_window(2);
    add(w, "AAAA1 AAAA2 AAAA3 L M");
    expect(w, "AAAA1 L AAAA2 M AAAA3");
    close_empty(w);
}

static void prompts_shorter_than_a_block_are_jobs_like_others(void **state)
{
    (void)state;
    struct group_window *w = open_window(1);
    static const int32_t tokens[BLOCK - 1];
    static const char *const names[] = {"no token", "few tokens"};
    for (size_t i = 0; i < 2; i++) {
        const struct group_job job = {
            .tokens = tokens, .n_tokens = i * (BLOCK - 1), .user = (void *)(uintptr_t)names[i]};
        assert_int_equal(group_add(w, &job, NULL), 0);
    }
    add(w, "A");
    assert_string_equal(next_at(w, 0).user, "no token");
    assert_string_equal(next_at(w, 0).user, "few tokens");
    expect(w, "A");
    close_empty(w);
}

static void a_prompt_comes_before_those_that_go_on_from_it(void **state)
{
    (void)state;
    struct group_window *w = open_window(1);
    add(w, "AAAA12 AAAA1 AAAA AAAA AAAA2");
    expect(w, "AAAA AAAA AAAA1 AAAA12 AAAA2");
    close_empty(w);
}

static void salts_share_nothing(void **state)
{
    (void)state;
    struct group_window *w = open_window(1);
    add_job(w, "AAAA1", (struct group_job){.salt = "x"});
    add_job(w, "AAAA2", (struct group_job){.salt = "y"});
    add_job(w, "AAAA3", (struct group_job){.salt = "x"});
    add_job(w, "AAAA4", (struct group_job){.salt = NULL});
    add_job(w, "AAAA5", (struct group_job){.salt = "y"});
    add_job(w, "AAAA6", (struct group_job){.salt = ""});
    const struct group_pick x = next_at(w, 0);
    expect(w, "AAAA3");
    const struct group_pick y = next_at(w, 0);
    assert_string_equal(x.user, "AAAA1");
    assert_string_equal(y.user, "AAAA2");
    assert_int_equal(x.group_jobs, 2);
    assert_true(x.group != y.group);
    expect(w, "AAAA5 AAAA4 AAAA6");
    close_empty(w);
}

/* ---- arrivals ---- */

static void jobs_that_arrive_below_an_open_group_join_it(void **state)
{
    (void)state;
    struct group_window *w = open_window(1);
    add(w, "AAAA1 BBBB1 AAAA2 BBBB2");
    expect(w, "AAAA1");
    add(w, "BBBB3 BBBB4 AAAA3"); /* B would save more now, but A is open */
    expect(w, "AAAA2 AAAA3 BBBB1 BBBB2 BBBB3 BBBB4");
    close_empty(w);
}

static void a_group_that_was_open_lately_comes_before_an_equal_one(void **state)
{
    (void)state;
    struct group_window *w = open_window(1);
    add(w, "AAAA1 BBBB1 AAAA2 BBBB2");
    expect(w, "AAAA1 AAAA2");
    add(w, "CCCC1 CCCC2 AAAA3 AAAA4"); /* A is empty, and known by its hash only */
    expect(w, "AAAA3 AAAA4 BBBB1 BBBB2 CCCC1 CCCC2");
    close_empty(w);
}

static void documents_that_arrive_below_an_open_system_prompt_make_groups(void **state)
{
    (void)state;
    struct group_window *w = open_window(1);
    add(w, "SL1111 SM2222 SN3333");
    const struct group_pick pick = next_at(w, 0);
    assert_string_equal(pick.user, "SL1111");
    assert_int_equal(pick.shared_tokens, BLOCK);
    add(w, "SAAAA1 SAAAA2");
    assert_int_equal(next_at(w, 0).shared_tokens, 5 * BLOCK);
    expect(w, "SAAAA2 SM2222 SN3333");
    close_empty(w);
}

static void a_job_that_splits_an_open_groups_edge_is_not_in_it(void **state)
{
    (void)state;
    struct group_window *w = open_window(1);
    add(w, "AAAA1 AAAA2 AAAA3");
    expect(w, "AAAA1");
    add(w, "AA4");
    assert_int_equal(next_at(w, 0).group_jobs, 2);
    assert_int_equal(next_at(w, 0).group_jobs, 1);
    expect(w, "AA4");
    close_empty(w);
}

/* ---- age and deadline ---- */

static struct group_window *open_impatient(size_t open_max)
{
    struct group_window *w = open_window(open_max);
    w->limits.max_wait_us = 100;
    return w;
}

static void add_at(struct group_window *w, const char *prompt, int64_t added_us)
{
    add_job(w, prompt, (struct group_job){.added_us = added_us});
}

static void a_job_that_waited_long_goes_first(void **state)
{
    (void)state;
    struct group_window *w = open_impatient(1);
    add_at(w, "L", 0);
    add_at(w, "AAAA1", 50);
    add_at(w, "AAAA2", 50);
    add_at(w, "AAAA3", 50);
    expect_at(w, 60, "AAAA1", false);
    expect_at(w, 99, "AAAA2", false);
    expect_at(w, 100, "L", true);
    expect_at(w, 100, "AAAA3", false);
    close_empty(w);
}

static void an_aged_job_opens_its_group(void **state)
{
    (void)state;
    struct group_window *w = open_impatient(1);
    add_at(w, "BBBB1", 0);
    for (size_t i = 0; i < 3; i++)
        add_at(w, "AAAA1", 50);
    expect_at(w, 60, "AAAA1", false);
    add_at(w, "BBBB2", 90);
    expect_at(w, 100, "BBBB1", true);
    expect_at(w, 101, "BBBB2", false);
    expect_at(w, 102, "AAAA1", false);
    expect_at(w, 103, "AAAA1", false);
    close_empty(w);
}

static void groups_of_aged_jobs_open_oldest_first_and_run_whole(void **state)
{
    (void)state;
    struct group_window *w = open_impatient(2);
    add_at(w, "CCCC1", 4);
    add_at(w, "CCCC2", 5);
    add_at(w, "AAAA1", 3);
    add_at(w, "AAAA2", 1);
    add_at(w, "BBBB1", 2);
    add_at(w, "BBBB2", 0);
    add_at(w, "BBBB3", 6);
    expect_at(w, 500, "BBBB2", true);
    expect_at(w, 500, "AAAA2", true);
    expect_at(w, 500, "CCCC1", true); /* in the extra slot, without a break */
    expect_at(w, 500, "CCCC2", false);
    expect_at(w, 500, "BBBB1", false);
    expect_at(w, 500, "AAAA1", false);
    expect_at(w, 500, "BBBB3", false);
    close_empty(w);
}

static void only_one_extra_group_is_open_and_the_others_get_their_turns_back(void **state)
{
    (void)state;
    struct group_window *w = open_impatient(1);
    for (size_t i = 0; i < 5; i++)
        add_at(w, "AAAA1", 0);
    add_at(w, "BBBB1", 1);
    add_at(w, "CCCC1", 2);
    add_at(w, "BBBB2", 3);
    add_at(w, "CCCC2", 4);
    expect_at(w, 500, "AAAA1", true);
    static const char *const order[] = {"BBBB1", "BBBB2", "AAAA1", "AAAA1",
                                        "CCCC1", "CCCC2", "AAAA1", "AAAA1"};
    for (size_t i = 0; i < 8; i++)
        expect_at(w, 500, order[i], i % 4 == 0);
    close_empty(w);
}

static void due_jobs_that_are_alone_leave_every_other_turn_to_the_open_group(void **state)
{
    (void)state;
    struct group_window *w = open_impatient(1);
    add_at(w, "AAAA1", 0);
    add_at(w, "AAAA2", 0);
    add_at(w, "AAAA3", 0);
    add_at(w, "L", 1);
    add_at(w, "M", 2);
    add_at(w, "N", 3);
    add_at(w, "O", 4);
    static const char *const order[] = {"AAAA1", "L", "AAAA2", "M", "AAAA3", "N", "O"};
    for (size_t i = 0; i < 7; i++)
        expect_at(w, 500, order[i], i != 2 && i != 4);
    close_empty(w);
}

/* Jobs join A and B faster than they go. A2 and B2 are older than C, but come after joiners, so
 * that each group is opened for them once more. */
static void groups_that_jobs_keep_joining_do_not_hold_up_a_due_job(void **state)
{
    (void)state;
    struct group_window *w = open_impatient(1);
    add_at(w, "AAAA1", 0);
    add_at(w, "AAAA2", 0);
    add_at(w, "BBBB1", 1);
    add_at(w, "BBBB2", 1);
    add_at(w, "CCCC1", 2);
    add_at(w, "CCCC2", 3);
    size_t n = 0;
    for (bool found = false; !found; n++) {
        assert_true(n < 30);
        found = strcmp(next_at(w, 500).user, "CCCC1") == 0;
        add_at(w, "AAAA3", 10);
        add_at(w, "BBBB3", 10);
    }
    group_close(w);
}

/* The question of A that comes last in its group, among endless ones that come before it. */
static void jobs_that_keep_joining_do_not_hold_up_a_due_job_of_their_group(void **state)
{
    (void)state;
    struct group_window *w = open_impatient(1);
    add_at(w, "AAAAAAAAx1", 0);
    add_at(w, "AAAAAAAAx2", 0);
    add_at(w, "AAAAAAAA3", 1);
    size_t n = 0;
    for (bool found = false; !found; n++) {
        assert_true(n < 10);
        found = strcmp(next_at(w, 500).user, "AAAAAAAA3") == 0;
        add_at(w, "AAAAAAAAx4", 10);
        add_at(w, "AAAAAAAAx5", 10);
    }
    group_close(w);
}

static void with_no_longest_wait_only_deadlines_within_a_minute_are_due(void **state)
{
    (void)state;
    struct group_window *w = open_impatient(1);
    w->limits.max_wait_us = 0;
    add_at(w, "L", -1000000000);
    add_at(w, "AAAA1", 0);
    add_at(w, "AAAA2", 0);
    add_job(w, "M", (struct group_job){.deadline_us = 60000001});
    expect_at(w, 1, "AAAA1", false);
    expect_at(w, 2, "M", true);
    expect_at(w, 2, "AAAA2", false);
    expect_at(w, 2, "L", false);
    close_empty(w);
}

static void a_job_whose_deadline_is_near_goes_first(void **state)
{
    (void)state;
    struct group_window *w = open_impatient(1);
    add_at(w, "AAAA1", 30);
    add_at(w, "AAAA2", 30);
    add_at(w, "AAAA3", 30);
    add_job(w, "L", (struct group_job){.added_us = 40, .deadline_us = 150});
    add_job(w, "M", (struct group_job){.added_us = 35, .deadline_us = 160});
    expect_at(w, 50, "AAAA1", false);
    expect_at(w, 51, "L", true); /* 99 are left */
    expect_at(w, 52, "AAAA2", false);
    expect_at(w, 61, "M", true);
    expect_at(w, 61, "AAAA3", false);
    close_empty(w);
}

static void near_deadlines_go_before_age_and_the_nearest_first(void **state)
{
    (void)state;
    struct group_window *w = open_impatient(1);
    add_job(w, "L", (struct group_job){.added_us = 30, .deadline_us = 190});
    add_job(w, "M", (struct group_job){.added_us = 40, .deadline_us = 160});
    add_at(w, "N", 10);
    add_at(w, "O", 5);
    expect_at(w, 110, "M", true);
    expect_at(w, 110, "L", true);
    expect_at(w, 110, "O", true);
    expect_at(w, 110, "N", true);
    close_empty(w);
}

static void absurd_times_do_no_harm(void **state)
{
    (void)state;
    struct group_window *w = open_impatient(1);
    w->limits.max_wait_us = INT64_MAX;
    add_job(w, "L", (struct group_job){.deadline_us = INT64_MAX});
    add_job(w, "M", (struct group_job){.deadline_us = INT64_MIN});
    add_job(w, "N", (struct group_job){.added_us = INT64_MIN + 1});
    expect_at(w, INT64_MIN, "M", true);
    expect_at(w, INT64_MAX - 1, "N", true);
    expect_at(w, INT64_MIN, "L", false);
    close_empty(w);
}

/* ---- priority ---- */

static void a_higher_priority_goes_first(void **state)
{
    (void)state;
    struct group_window *w = open_window(2);
    add(w, "AAAA1 AAAA2");
    add_job(w, "L", (struct group_job){.priority = 5});
    add_job(w, "AAAA3", (struct group_job){.priority = 7});
    add_job(w, "M", (struct group_job){.priority = -1});
    expect(w, "AAAA3 L AAAA1");
    add_job(w, "N", (struct group_job){.priority = 1});
    expect(w, "N AAAA2 M");
    close_empty(w);
}

static void a_group_of_higher_priority_takes_the_place_of_an_open_one(void **state)
{
    (void)state;
    struct group_window *w = open_window(1);
    add(w, "AAAA1 AAAA2 AAAA3 CCCC1 CCCC2 CCCC3");
    expect(w, "AAAA1");
    add_job(w, "BBBB1", (struct group_job){.priority = 1});
    add_job(w, "BBBB2", (struct group_job){.priority = 1});
    /* A saves less than C now, for one of its jobs is gone. */
    expect(w, "BBBB1 BBBB2 CCCC1 CCCC2 CCCC3 AAAA2 AAAA3");
    close_empty(w);
}

static void priority_comes_before_age(void **state)
{
    (void)state;
    struct group_window *w = open_impatient(1);
    add_at(w, "L", 0);
    add_job(w, "M", (struct group_job){.priority = 9, .added_us = 90});
    add_job(w, "N", (struct group_job){.priority = 9, .added_us = 90});
    expect_at(w, 99, "M", false);
    expect_at(w, 100, "N", false);
    expect_at(w, 100, "L", true);
    close_empty(w);
}

/* ---- off, and room ---- */

static void without_grouping_jobs_come_by_priority_and_arrival(void **state)
{
    (void)state;
    struct group_window *w = open_impatient(2);
    w->limits.enabled = false;
    add(w, "AAAA1 BBBB1 AAAA2");
    add_job(w, "H", (struct group_job){.priority = 1});
    add_job(w, "BBBB2", (struct group_job){.salt = "x"});
    add_job(w, "K", (struct group_job){.added_us = -50});
    expect(w, "H AAAA1");
    expect_at(w, 50, "K", true);
    const struct group_pick pick = next_at(w, 0);
    assert_string_equal(pick.user, "BBBB1");
    assert_true(pick.group == 0);
    expect(w, "AAAA2 BBBB2");
    close_empty(w);
}

static void there_is_room_while_a_job_of_average_size_fits(void **state)
{
    (void)state;
    struct group_window *w = open_window(1);
    w->limits.tokens_max = 0;
    assert_true(group_has_room(w));
    add(w, "AAAA BB"); /* 96 tokens on average */
    assert_false(group_has_room(w));
    w->limits.tokens_max = 192 + 96;
    assert_true(group_has_room(w));
    w->limits.tokens_max--;
    assert_false(group_has_room(w));
    w->limits.tokens_max = SIZE_MAX;
    add_job(w, "C", (struct group_job){.bytes = 30}); /* 10 on average */
    w->limits.bytes_max = 40;
    assert_true(group_has_room(w));
    w->limits.bytes_max = 39;
    assert_false(group_has_room(w));
    w->limits.bytes_max = SIZE_MAX;
    w->limits.jobs_max = 4;
    assert_true(group_has_room(w));
    w->limits.jobs_max = 3;
    assert_false(group_has_room(w));
    assert_int_equal(group_length(w), 3);
    group_close(w);
}

static void any_job_can_be_taken_when_all_must_go(void **state)
{
    (void)state;
    struct group_window *w = open_window(2);
    add(w, "AAAA1 AAAA2 BBBB1 BBBB2 C");
    add_job(w, "D", (struct group_job){.deadline_us = 1});
    expect_at(w, 0, "D", true);
    expect(w, "AAAA1");
    size_t n = 0;
    while (group_take_any(w)) {
        n++;
        assert_true(group_check(w));
    }
    assert_int_equal(n, 4);
    close_empty(w);
    group_close(NULL);
}

/* ---- the twin of group_check ---- */

struct damage {
    const char *what;
    void (*swap)(struct group_window *w); /* done twice, it is undone */
};

static struct group_node *a_node(struct group_window *w)
{
    return w->trie.top->children.items[0];
}

static void damage_jobs(struct group_window *w)
{
    a_node(w)->n_jobs ^= 8;
}

static void damage_tokens(struct group_window *w)
{
    w->n_tokens ^= 1;
}

static void damage_saved(struct group_window *w)
{
    a_node(w)->saved = 1 - a_node(w)->saved;
}

static void damage_best(struct group_window *w)
{
    w->trie.top->best = 1 - w->trie.top->best;
}

static void damage_place(struct group_window *w)
{
    ((struct group_entry *)w->by_age.items[1])->place_age ^= 1;
}

static void damage_owner(struct group_window *w)
{
    w->by_age.n ^= 1; /* a job less, as if its group were open */
}

static void damage_order(struct group_window *w)
{
    struct group_entry *entry = w->by_age.items[0];
    entry->added_us = entry->added_us ? 0 : NEVER;
}

static void damage_deadline(struct group_window *w)
{
    struct group_entry *entry = w->by_age.items[0];
    entry->deadline_us = !entry->deadline_us;
}

static void damage_table(struct group_window *w)
{
    a_node(w)->edge[0] ^= 1;
}

static void damage_depth(struct group_window *w)
{
    a_node(w)->depth ^= 1;
}

static void damage_slot(struct group_window *w)
{
    w->trie.slots[0].node = w->trie.slots[0].node ? NULL : w->trie.slots[0].at;
}

static const struct damage damages[] = {
    {"jobs", damage_jobs},         {"tokens", damage_tokens}, {"saved", damage_saved},
    {"best", damage_best},         {"place", damage_place},   {"order", damage_order},
    {"deadline", damage_deadline}, {"table", damage_table},   {"depth", damage_depth},
    {"slot", damage_slot},         {"owner", damage_owner},
};

static void the_check_sees_each_damage(void **state)
{
    (void)state;
    struct group_window *w = open_window(1);
    add(w, "AAAA1 AAAA2 BBBB1 BBBB2 AAAA3");
    expect(w, "AAAA1");
    for (size_t i = 0; i < sizeof damages / sizeof damages[0]; i++) {
        damages[i].swap(w);
        if (group_check(w))
            fail_msg("%s: the check sees nothing", damages[i].what);
        damages[i].swap(w);
        assert_true(group_check(w));
    }
    group_close(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_questions_of_a_document_come_together),
        cmocka_unit_test(open_groups_give_jobs_in_turn),
        cmocka_unit_test(the_group_that_saves_most_opens_first),
        cmocka_unit_test(documents_beat_the_system_prompt_that_all_share),
        cmocka_unit_test(examples_below_a_document_run_depth_first_in_its_group),
        cmocka_unit_test(what_the_last_group_left_warm_counts_as_saved),
        cmocka_unit_test(what_is_warm_does_not_count_for_more_than_it_saves),
        cmocka_unit_test(a_chance_likeness_does_not_split_a_group),
        cmocka_unit_test(jobs_that_share_nothing_come_last_and_in_order_of_arrival),
        cmocka_unit_test(a_free_place_serves_jobs_that_are_alone),
        cmocka_unit_test(prompts_shorter_than_a_block_are_jobs_like_others),
        cmocka_unit_test(a_prompt_comes_before_those_that_go_on_from_it),
        cmocka_unit_test(salts_share_nothing),
        cmocka_unit_test(jobs_that_arrive_below_an_open_group_join_it),
        cmocka_unit_test(a_group_that_was_open_lately_comes_before_an_equal_one),
        cmocka_unit_test(documents_that_arrive_below_an_open_system_prompt_make_groups),
        cmocka_unit_test(a_job_that_splits_an_open_groups_edge_is_not_in_it),
        cmocka_unit_test(a_job_that_waited_long_goes_first),
        cmocka_unit_test(an_aged_job_opens_its_group),
        cmocka_unit_test(groups_of_aged_jobs_open_oldest_first_and_run_whole),
        cmocka_unit_test(only_one_extra_group_is_open_and_the_others_get_their_turns_back),
        cmocka_unit_test(due_jobs_that_are_alone_leave_every_other_turn_to_the_open_group),
        cmocka_unit_test(groups_that_jobs_keep_joining_do_not_hold_up_a_due_job),
        cmocka_unit_test(jobs_that_keep_joining_do_not_hold_up_a_due_job_of_their_group),
        cmocka_unit_test(with_no_longest_wait_only_deadlines_within_a_minute_are_due),
        cmocka_unit_test(a_job_whose_deadline_is_near_goes_first),
        cmocka_unit_test(near_deadlines_go_before_age_and_the_nearest_first),
        cmocka_unit_test(absurd_times_do_no_harm),
        cmocka_unit_test(a_higher_priority_goes_first),
        cmocka_unit_test(a_group_of_higher_priority_takes_the_place_of_an_open_one),
        cmocka_unit_test(priority_comes_before_age),
        cmocka_unit_test(without_grouping_jobs_come_by_priority_and_arrival),
        cmocka_unit_test(there_is_room_while_a_job_of_average_size_fits),
        cmocka_unit_test(any_job_can_be_taken_when_all_must_go),
        cmocka_unit_test(the_check_sees_each_damage),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
