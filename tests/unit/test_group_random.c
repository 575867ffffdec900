/*
 * The window against a flat list that is searched from end to end: random jobs from a seed
 * (first argument), the clock of the test. What a list can say about an order is said here;
 * orders by hand are in test_group.c.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "group.h"
#include "group_ideal.h"

enum { BLOCK = 32, TOKENS_MAX = 12 * BLOCK, JOBS_MAX = 512, GROUPS_MAX = 2048 };

static uint64_t seed = 11, draws;

static size_t draw(size_t below)
{
    return (size_t)(rng_bits(seed, 1, draws++) % below);
}

/* ---- the flat list ---- */

struct record {
    int32_t tokens[TOKENS_MAX];
    struct group_job job;
    bool waits;
};

static struct record records[JOBS_MAX];
static size_t n_records; /* in order of arrival */

/* What is due by the list's clock, and in which order; 0 for both: not due. */
struct due {
    int64_t added_max, deadline_max;
    bool ages;
};

static int due_class(const struct due *due, const struct record *r)
{
    if (r->job.deadline_us != 0 && r->job.deadline_us < due->deadline_max)
        return 2;
    return due->ages && r->job.added_us <= due->added_max;
}

/* Records are looked at in order of arrival, so the first of equals is kept. */
static bool goes_before(const struct due *due, const struct record *a, const struct record *b)
{
    const int class_a = due_class(due, a), class_b = due_class(due, b);
    if (a->job.priority != b->job.priority)
        return a->job.priority > b->job.priority;
    if (class_a != class_b)
        return class_a > class_b;
    return class_a == 2   ? a->job.deadline_us < b->job.deadline_us
           : class_a == 1 ? a->job.added_us < b->job.added_us
                          : false;
}

static const struct record *first_of_list(const struct due *due)
{
    const struct record *found = NULL;
    for (size_t i = 0; i < n_records; i++)
        if (records[i].waits && (!found || goes_before(due, &records[i], found)))
            found = &records[i];
    return found;
}

static size_t n_waiting(void)
{
    size_t n = 0;
    for (size_t i = 0; i < n_records; i++)
        n += records[i].waits;
    return n;
}

static bool shares(const struct record *a, const struct record *b, size_t n_tokens)
{
    return strcmp(a->job.salt ? a->job.salt : "", b->job.salt ? b->job.salt : "") == 0 &&
           a->job.priority == b->job.priority && a->job.n_tokens >= n_tokens &&
           b->job.n_tokens >= n_tokens &&
           memcmp(a->tokens, b->tokens, n_tokens * sizeof a->tokens[0]) == 0;
}

/* ---- random jobs ---- */

static size_t append(int32_t *tokens, size_t n, size_t n_blocks, int32_t token)
{
    for (size_t i = 0; i < n_blocks * BLOCK && n < TOKENS_MAX; i++)
        tokens[n++] = token;
    return n;
}

/* A system prompt or none, one of few documents, examples or none, a question, some tokens. */
static size_t draw_prompt(int32_t *tokens)
{
    const size_t doc = draw(5);
    size_t n = append(tokens, 0, draw(4) ? 1 : 0, 1);
    n = append(tokens, n, draw(8) ? doc : 0, 10 + (int32_t)doc);
    n = append(tokens, n, draw(3) ? 0 : 1 + draw(2), 20 + (int32_t)draw(2));
    n = append(tokens, n, draw(3), 30 + (int32_t)draw(40));
    for (size_t rest = draw(BLOCK); rest > 0 && n < TOKENS_MAX; rest--)
        tokens[n++] = 100;
    return n;
}

static void add_random(struct group_window *w, int64_t now_us, size_t n_priorities)
{
    static const char *const salts[] = {NULL, "", "x"};
    struct record *r = &records[n_records++];
    const size_t n_tokens = draw_prompt(r->tokens);
    r->waits = true;
    r->job = (struct group_job){.tokens = r->tokens,
                                .n_tokens = n_tokens,
                                .salt = salts[draw(6) ? 0 : draw(3)],
                                .bytes = draw(100),
                                .priority = (int64_t)draw(n_priorities),
                                .deadline_us = draw(10) ? 0 : now_us + 1 + (int64_t)draw(300),
                                .added_us = now_us - (int64_t)draw(5),
                                .user = r};
    assert_int_equal(group_add(w, &r->job, NULL), 0);
}

/* ---- claims about one pick ---- */

/* Groups seen so far, by hash and priority, each with a job that it was given out for. */
static struct {
    uint64_t hash;
    const struct record *job;
    size_t n_tokens;
} groups[GROUPS_MAX];
static size_t n_groups;

static void remember_group(const struct group_pick *pick, const struct record *r)
{
    for (size_t i = 0; i < n_groups; i++) {
        if (groups[i].hash != pick->group || groups[i].job->job.priority != r->job.priority)
            continue;
        assert_int_equal(groups[i].n_tokens, pick->shared_tokens);
        assert_true(shares(groups[i].job, r, pick->shared_tokens));
        return;
    }
    assert_true(n_groups < GROUPS_MAX);
    groups[n_groups].hash = pick->group;
    groups[n_groups].job = r;
    groups[n_groups++].n_tokens = pick->shared_tokens;
}

static void check_group(const struct group_pick *pick, const struct record *r)
{
    if (pick->group == 0) {
        assert_int_equal(pick->group_jobs, 1);
        assert_int_equal(pick->shared_tokens, 0);
        return;
    }
    assert_true(pick->shared_tokens > 0 && pick->shared_tokens % BLOCK == 0);
    size_t n = 0;
    for (size_t i = 0; i < n_records; i++)
        n += records[i].waits && shares(&records[i], r, pick->shared_tokens);
    assert_true(pick->group_jobs >= 1 && pick->group_jobs <= n);
    remember_group(pick, r);
}

struct world {
    struct group_limits limits;
    int64_t now_us;
    int64_t max_wait_us; /* that the list expects; the window's own, but in a twin */
    size_t n_wrong;      /* picks that the list would not make */
    uint64_t order;      /* hash of the order in which jobs came out */
};

/* Whether a group that the job belongs to has been given out: it may be open. */
static bool may_be_open(const struct record *r)
{
    for (size_t i = 0; i < n_groups; i++)
        if (groups[i].hash != 0 && shares(groups[i].job, r, groups[i].n_tokens))
            return true;
    return false;
}

/* A job that goes out because it is due passes over none but those of open groups. */
static bool is_right(const struct world *s, const struct group_pick *pick)
{
    const int64_t near_us = s->max_wait_us ? s->max_wait_us : 60000000;
    const struct due due = {s->now_us - s->max_wait_us, s->now_us + near_us,
                            s->max_wait_us != 0};
    const struct record *r = pick->user, *first = first_of_list(&due);
    if (!s->limits.enabled)
        return r == first && pick->aged == (due_class(&due, r) > 0);
    if (r->job.priority != first->job.priority || (pick->aged && due_class(&due, r) == 0))
        return false;
    for (size_t i = 0; pick->aged && i < n_records; i++)
        if (records[i].waits && goes_before(&due, &records[i], r) && !may_be_open(&records[i]))
            return false;
    return true;
}

static void take_and_check(struct world *s, struct group_window *w)
{
    struct group_pick pick;
    const bool is_empty = n_waiting() == 0;
    assert_int_equal(group_next(w, s->now_us, &pick), !is_empty);
    if (is_empty)
        return;
    struct record *r = pick.user;
    assert_true(r->waits); /* each job once */
    s->n_wrong += !is_right(s, &pick);
    assert_true(s->limits.enabled || pick.group == 0);
    check_group(&pick, r);
    r->waits = false;
    s->order = rng_bits(s->order, 2, (uint64_t)(r - records));
}

static void run_random(struct world *s, size_t n_ops, size_t n_priorities)
{
    struct group_window *w = NULL;
    n_records = n_groups = 0;
    assert_int_equal(group_open(&s->limits, &w, NULL), 0);
    const size_t bias = 1 + draw(3); /* some windows fill, some stay short */
    for (size_t i = 0; i < n_ops; i++) {
        if (draw(4) < bias && n_records < JOBS_MAX)
            add_random(w, s->now_us, n_priorities);
        else
            take_and_check(s, w);
        s->now_us += (int64_t)draw(4);
        assert_int_equal(group_length(w), n_waiting());
        assert_true(group_check(w));
    }
    while (n_waiting() > 0) {
        take_and_check(s, w);
        assert_true(group_check(w));
    }
    take_and_check(s, w);
    group_close(w);
}

static struct world random_world(int64_t max_wait_us)
{
    return (struct world){.limits = {.jobs_max = JOBS_MAX,
                                     .tokens_max = SIZE_MAX,
                                     .bytes_max = SIZE_MAX,
                                     .open_max = 1 + draw(3),
                                     .max_wait_us = max_wait_us,
                                     .enabled = draw(4) != 0},
                          .now_us = 1000,
                          .max_wait_us = max_wait_us};
}

static void each_job_comes_once_and_none_due_is_passed_over(void **state)
{
    (void)state;
    for (size_t round = 0; round < 60; round++) {
        struct world s = random_world(round % 5 == 0 ? 0 : (int64_t)(10 << draw(7)));
        run_random(&s, 300, round % 2 ? 1 : 3);
        assert_int_equal(s.n_wrong, 0);
    }
}

/* The twin: windows that age jobs later or sooner than the list are caught by it. */
static void another_age_is_seen_by_the_list(void **state)
{
    (void)state;
    size_t n_wrong[2] = {0};
    for (size_t round = 0; round < 20; round++) {
        const bool enabled = round % 2;
        struct world s = random_world(enabled ? 20 : 1000000);
        s.limits.enabled = enabled;
        s.max_wait_us = enabled ? 1000000 : 20;
        run_random(&s, 300, 1);
        n_wrong[enabled] += s.n_wrong;
    }
    assert_true(n_wrong[0] > 0 && n_wrong[1] > 0);
}

static void one_seed_gives_one_order(void **state)
{
    (void)state;
    uint64_t orders[2];
    const uint64_t start = draws;
    for (size_t i = 0; i < 2; i++) {
        draws = start;
        struct world s = random_world(100);
        run_random(&s, 400, 2);
        orders[i] = s.order;
    }
    assert_true(orders[0] == orders[1]);
}

/* ---- a night: documents times questions ---- */

enum { DOCS = 8, QUESTIONS = 40, NIGHT = DOCS * QUESTIONS, SYSTEM = 40, DOC = 250 };

static void shuffle(size_t *order, size_t n)
{
    for (size_t i = n; i > 1; i--) {
        const size_t other = draw(i);
        const size_t held = order[i - 1];
        order[i - 1] = order[other];
        order[other] = held;
    }
}

/* Record i is a question to document i / QUESTIONS; no two questions share a token. */
static void make_night(void)
{
    for (size_t i = 0; i < NIGHT; i++) {
        struct record *r = &records[i];
        const size_t n_tokens = SYSTEM + DOC + 5 + draw(60);
        for (size_t k = 0; k < n_tokens; k++)
            r->tokens[k] = k < SYSTEM         ? 1
                           : k < SYSTEM + DOC ? (int32_t)(100 + i / QUESTIONS)
                                              : (int32_t)(1000 + i);
        r->job = (struct group_job){.tokens = r->tokens, .n_tokens = n_tokens, .user = r};
    }
}

struct night {
    size_t n_cached;   /* tokens, in a cache of open_max documents */
    size_t n_loaded;   /* documents put into that cache */
    size_t n_switches; /* jobs of another group than the one before */
    size_t n_begun;    /* documents begun and not finished, at most */
};

/* Each document has QUESTIONS jobs. */
static size_t count_begun(const size_t *given)
{
    size_t n = 0;
    for (size_t doc = 0; doc < DOCS; doc++)
        n += given[doc] > 0 && given[doc] < QUESTIONS;
    return n;
}

static bool is_cached(const size_t *held, size_t n, size_t doc)
{
    for (size_t i = 0; i < n; i++)
        if (held[i] == doc)
            return true;
    return false;
}

/* Moves the document to the front; the last one falls out. */
static void use_document(size_t *held, size_t n, size_t doc)
{
    size_t at = 0;
    while (at + 1 < n && held[at] != doc)
        at++;
    memmove(held + 1, held, at * sizeof held[0]);
    held[0] = doc;
}

static struct night run_night_at(int64_t now_us, const size_t *order, size_t open_max,
                                 bool grouping)
{
    const struct group_limits limits = {.jobs_max = NIGHT,
                                        .tokens_max = SIZE_MAX,
                                        .bytes_max = SIZE_MAX,
                                        .open_max = open_max,
                                        .max_wait_us = 1,
                                        .enabled = grouping};
    struct group_window *w = NULL;
    assert_int_equal(group_open(&limits, &w, NULL), 0);
    for (size_t i = 0; i < NIGHT; i++)
        assert_int_equal(group_add(w, &records[order[i]].job, NULL), 0);
    struct night night = {0};
    size_t held[DOCS], given[DOCS] = {0};
    memset(held, 0xff, sizeof held);
    uint64_t group = 0;
    for (size_t i = 0; i < NIGHT; i++) {
        struct group_pick pick;
        assert_true(group_next(w, now_us, &pick));
        const size_t doc = (size_t)((struct record *)pick.user - records) / QUESTIONS;
        const bool hit = is_cached(held, open_max, doc);
        night.n_cached += hit ? SYSTEM + DOC : i > 0 ? SYSTEM : 0;
        night.n_loaded += !hit;
        night.n_switches += i > 0 && pick.group != group;
        use_document(held, open_max, doc);
        given[doc]++;
        if (count_begun(given) > night.n_begun)
            night.n_begun = count_begun(given);
        group = pick.group;
    }
    group_close(w);
    return night;
}

static struct night run_night(const size_t *order, size_t open_max, bool grouping)
{
    return run_night_at(0, order, open_max, grouping);
}

static void shuffled_input_costs_what_sorted_input_does(void **state)
{
    (void)state;
    size_t sorted[NIGHT], shuffled[NIGHT];
    for (size_t i = 0; i < NIGHT; i++)
        sorted[i] = shuffled[i] = i;
    make_night();
    for (size_t round = 0; round < 10; round++) {
        const size_t open_max = 1 + round % 3;
        shuffle(shuffled, NIGHT);
        const struct night a = run_night(sorted, open_max, true);
        const struct night b = run_night(shuffled, open_max, true);
        assert_int_equal(a.n_loaded, DOCS);
        assert_int_equal(b.n_loaded, DOCS);
        assert_int_equal(a.n_switches, b.n_switches);
        assert_true(open_max > 1 || b.n_switches == DOCS - 1);
        assert_true((double)b.n_cached >= 0.98 * (double)a.n_cached);
    }
}

/* By the arithmetic of the night, and by the ideal of the same prompts. */
static void sorted_input_reaches_the_ideal(void **state)
{
    (void)state;
    size_t sorted[NIGHT];
    struct group_prompt prompts[NIGHT];
    make_night();
    for (size_t i = 0; i < NIGHT; i++) {
        sorted[i] = i;
        prompts[i] = (struct group_prompt){records[i].tokens, records[i].job.n_tokens, NULL};
    }
    const size_t expected = DOCS * (QUESTIONS - 1) * (SYSTEM + DOC) + (DOCS - 1) * SYSTEM;
    uint64_t cached = 0;
    assert_int_equal(group_ideal_cached(prompts, NIGHT, 0, &cached, NULL), 0);
    assert_int_equal(cached, expected);
    assert_int_equal(run_night(sorted, 2, true).n_cached, expected);
}

/* The twin: in order of arrival the shuffled night is lost. */
static void without_grouping_shuffled_input_costs_more(void **state)
{
    (void)state;
    size_t sorted[NIGHT], shuffled[NIGHT];
    for (size_t i = 0; i < NIGHT; i++)
        sorted[i] = shuffled[i] = i;
    make_night();
    shuffle(shuffled, NIGHT);
    const struct night a = run_night(sorted, 2, false);
    const struct night b = run_night(shuffled, 2, false);
    assert_int_equal(a.n_loaded, DOCS);
    assert_true(b.n_loaded > 10 * DOCS);
    assert_true((double)b.n_cached < 0.6 * (double)a.n_cached);
}

/* Every job is due, and the night runs in groups all the same. */
static void a_backlog_that_is_due_as_a_whole_still_runs_in_groups(void **state)
{
    (void)state;
    size_t shuffled[NIGHT];
    for (size_t i = 0; i < NIGHT; i++)
        shuffled[i] = i;
    make_night();
    for (size_t round = 0; round < 10; round++) {
        const size_t open_max = 1 + round % 3;
        shuffle(shuffled, NIGHT);
        const struct night fresh = run_night(shuffled, open_max, true);
        const struct night aged = run_night_at(1000, shuffled, open_max, true);
        assert_int_equal(fresh.n_begun, open_max);
        assert_int_equal(aged.n_begun, open_max + 1);
        /* A break for each of the at most DOCS groups that run in the extra slot. */
        assert_true(aged.n_switches <= fresh.n_switches + DOCS);
        assert_true(open_max > 1 || aged.n_switches < 2 * DOCS);
    }
}

/* The twin: the same backlog in order of age, which is that of arrival. */
static void a_backlog_in_order_of_age_switches_all_the_time(void **state)
{
    (void)state;
    size_t shuffled[NIGHT];
    for (size_t i = 0; i < NIGHT; i++)
        shuffled[i] = i;
    make_night();
    shuffle(shuffled, NIGHT);
    const struct night night = run_night_at(1000, shuffled, 1, false);
    assert_true(night.n_loaded > 10 * DOCS);
    assert_int_equal(night.n_begun, DOCS);
}

/* ---- whole groups ---- */

/* Documents of any number of questions: never more begun and unfinished than may be open. */
static void no_more_documents_are_begun_than_may_be_open(void **state)
{
    (void)state;
    make_night();
    for (size_t round = 0; round < 20; round++) {
        const size_t open_max = 1 + draw(3);
        struct group_limits limits = {.jobs_max = NIGHT,
                                      .tokens_max = SIZE_MAX,
                                      .bytes_max = SIZE_MAX,
                                      .open_max = open_max,
                                      .max_wait_us = 1,
                                      .enabled = true};
        struct group_window *w = NULL;
        size_t left[DOCS] = {0}, all[DOCS] = {0};
        assert_int_equal(group_open(&limits, &w, NULL), 0);
        for (size_t i = 0; i < NIGHT; i++) {
            const size_t at = draw(NIGHT);
            all[at / QUESTIONS]++;
            assert_int_equal(group_add(w, &records[at].job, NULL), 0);
        }
        memcpy(left, all, sizeof left);
        for (struct group_pick pick; group_next(w, 0, &pick);) {
            left[(size_t)((struct record *)pick.user - records) / QUESTIONS]--;
            size_t n_begun = 0;
            for (size_t doc = 0; doc < DOCS; doc++)
                n_begun += left[doc] > 0 && left[doc] < all[doc];
            assert_true(n_begun <= open_max);
        }
        group_close(w);
    }
}

int main(int argc, char **argv)
{
    if (argc > 1)
        seed = strtoull(argv[1], NULL, 0);
    print_message("seed %llu\n", (unsigned long long)seed);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_job_comes_once_and_none_due_is_passed_over),
        cmocka_unit_test(another_age_is_seen_by_the_list),
        cmocka_unit_test(one_seed_gives_one_order),
        cmocka_unit_test(shuffled_input_costs_what_sorted_input_does),
        cmocka_unit_test(sorted_input_reaches_the_ideal),
        cmocka_unit_test(without_grouping_shuffled_input_costs_more),
        cmocka_unit_test(a_backlog_that_is_due_as_a_whole_still_runs_in_groups),
        cmocka_unit_test(a_backlog_in_order_of_age_switches_all_the_time),
        cmocka_unit_test(no_more_documents_are_begun_than_may_be_open),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
