/*
 * The prefix tree over a real pool. The test plays the sequences: pages hold stamps in place of
 * keys and values, and what a start says is there is read and compared.
 *
 * A prompt is written as runs, "A40B8": 40 tokens that only run A has, then 8 of run B. Two
 * runs differ from their first token on.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/limits.h"
#include "engine/prefix.h"
#include "kv_stamps.h"

enum { PAGE = KV_PAGE_TOKENS, TOKENS_MAX = 512, PAGES_MAX = TOKENS_MAX / PAGE };

struct world {
    struct kvpool *pool;
    struct prefix_tree *tree;
};

struct job {
    const char *salt;
    int32_t tokens[TOKENS_MAX];
    size_t n_tokens;
    size_t n_computed;
    int32_t pages[PAGES_MAX];
    size_t n_pages;
    struct prefix_path *path;
    struct prefix_hit hit;
};

static const struct prefix_options plain = {.enabled = true, .evicts_by_demand = true};

static void open_world(struct world *w, size_t n_pages, const struct prefix_options *o)
{
    w->pool = stamps_open_pool(n_pages);
    assert_int_equal(prefix_open(o, w->pool, &w->tree, NULL), 0);
}

static void close_world(struct world *w)
{
    assert_true(prefix_check(w->tree));
    prefix_close(w->tree);
    assert_int_equal(kvpool_free_pages(w->pool), kvpool_pages(w->pool));
    assert_true(kvpool_check(w->pool));
    kvpool_close(w->pool);
}

/* Appends runs. */
static void say(struct job *job, const char *runs)
{
    while (*runs) {
        const int32_t run = *runs++;
        char *end;
        const long n = strtol(runs, &end, 10);
        for (int32_t i = 0; i < n; i++)
            job->tokens[job->n_tokens++] = 1000 * run + i;
        runs = end;
    }
}

static void want_in_turn(struct world *w, struct job *job, const char *salt, const char *prompt,
                         enum prefix_turn turn)
{
    *job = (struct job){.salt = salt ? salt : ""};
    say(job, prompt);
    assert_int_equal(
        prefix_want(w->tree, salt, job->tokens, job->n_tokens, turn, &job->path, NULL), 0);
    assert_true(prefix_check(w->tree));
}

static void want(struct world *w, struct job *job, const char *salt, const char *prompt)
{
    want_in_turn(w, job, salt, prompt, PREFIX_NEXT);
}

static struct prefix_hit find(const struct world *w, const struct job *job)
{
    struct prefix_hit hit;
    prefix_find(w->tree, job->path, job->tokens, job->n_tokens, &hit);
    return hit;
}

static void assert_same_hit(struct prefix_hit a, struct prefix_hit b)
{
    assert_int_equal(a.n_tokens, b.n_tokens);
    assert_int_equal(a.n_pages_shared, b.n_pages_shared);
    assert_int_equal(a.n_coming, b.n_coming);
    assert_int_equal(a.miss, b.miss);
    assert_int_equal(a.miss_at, b.miss_at);
}

static size_t first_wrong(const struct world *w, const struct job *job, size_t n)
{
    return stamps_first_wrong(w->pool, job->pages, job->salt, job->tokens, n);
}

/* False when there are not enough pages. What is found is read and compared. */
static bool try_start(struct world *w, struct job *job, size_t n_spare)
{
    const struct prefix_hit found = find(w, job);
    if (!prefix_start(w->tree, job->path, job->tokens, job->n_tokens, n_spare, job->pages,
                      &job->hit))
        return false;
    assert_same_hit(job->hit, found);
    job->n_pages = (job->n_tokens + PAGE - 1) / PAGE;
    job->n_computed = job->hit.n_tokens;
    assert_int_equal(first_wrong(w, job, job->n_computed), job->n_computed);
    assert_true(prefix_check(w->tree));
    return true;
}

static void start(struct world *w, struct job *job)
{
    assert_true(try_start(w, job, 0));
}

/* Computes to n tokens, or all, and commits. */
static void compute(struct world *w, struct job *job, size_t n, bool partial)
{
    while (job->n_pages * PAGE < n)
        job->pages[job->n_pages++] = prefix_acquire_page(w->tree);
    stamps_write(w->pool, job->pages, job->salt, job->tokens, job->n_computed, n);
    job->n_computed = n;
    prefix_commit(w->tree, job->path, job->tokens, n, partial, job->pages);
    assert_true(prefix_check(w->tree));
    assert_int_equal(first_wrong(w, job, n), n);
}

static void stop(struct world *w, struct job *job, bool again)
{
    assert_int_equal(first_wrong(w, job, job->n_computed), job->n_computed);
    prefix_stop(w->tree, job->path, job->tokens, job->n_computed, job->pages, job->n_pages,
                again);
    job->n_pages = 0;
    if (!again)
        job->path = NULL;
    assert_true(prefix_check(w->tree));
}

static struct prefix_hit run(struct world *w, const char *salt, const char *prompt)
{
    struct job job;
    want(w, &job, salt, prompt);
    start(w, &job);
    compute(w, &job, job.n_tokens, false);
    stop(w, &job, false);
    return job.hit;
}

static struct prefix_hit look(struct world *w, const char *salt, const char *prompt)
{
    struct job job;
    want(w, &job, salt, prompt);
    const struct prefix_hit hit = find(w, &job);
    prefix_unwant(w->tree, job.path);
    return hit;
}

static void assert_miss(struct prefix_hit hit, enum prefix_miss miss, size_t at)
{
    assert_string_equal(prefix_miss_name(hit.miss), prefix_miss_name(miss));
    assert_int_equal(hit.miss_at, at);
}

static void a_repeated_prompt_is_there_but_for_its_last_token(void **state)
{
    (void)state;
    static const struct {
        const char *prompt;
        size_t n_tokens, n_shared;
    } cases[] = {{"A1", 0, 0},   {"A2", 1, 0},   {"A31", 30, 0}, {"A32", 31, 0},
                 {"A33", 32, 1}, {"A64", 63, 1}, {"A65", 64, 2}, {"A100", 99, 3}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct world w;
        open_world(&w, 8, &plain);
        assert_int_equal(run(&w, NULL, cases[i].prompt).n_tokens, 0);
        const struct prefix_hit hit = run(&w, NULL, cases[i].prompt);
        assert_int_equal(hit.n_tokens, cases[i].n_tokens);
        assert_int_equal(hit.n_pages_shared, cases[i].n_shared);
        assert_int_equal(hit.miss, PREFIX_MISS_NONE);
        assert_int_equal(hit.miss_at, cases[i].n_tokens);
        close_world(&w);
    }
}

static void a_hit_is_exact_to_the_token_wherever_prompts_part(void **state)
{
    (void)state;
    for (size_t n = 0; n <= 97; n++) {
        char first[32], second[32];
        snprintf(first, sizeof first, "A%zuB%zu", n, 100 - n);
        snprintf(second, sizeof second, "A%zuC%zu", n, 100 - n);
        struct world w;
        open_world(&w, 8, &plain);
        run(&w, NULL, first);
        const struct prefix_hit hit = run(&w, NULL, second);
        assert_int_equal(hit.n_tokens, n);
        assert_int_equal(hit.n_pages_shared, n / PAGE);
        assert_int_equal(hit.miss_at, n);
        close_world(&w);
    }
}

static void the_longest_partial_match_is_copied(void **state)
{
    (void)state;
    struct world w;
    open_world(&w, 16, &plain);
    run(&w, NULL, "A32B5C40");
    run(&w, NULL, "A32B20C40");
    run(&w, NULL, "A32B9C40");
    assert_int_equal(look(&w, NULL, "A32B15D9").n_tokens, 32 + 15);
    assert_int_equal(look(&w, NULL, "A32B20D9").n_tokens, 32 + 20);
    assert_int_equal(look(&w, NULL, "A32B4D9").n_tokens, 32 + 4);
    close_world(&w);
}

static void of_many_continuations_the_latest_used_64_are_compared(void **state)
{
    (void)state;
    struct world w;
    open_world(&w, 100, &plain);
    char prompt[32];
    for (char run_name = ':'; run_name <= '~'; run_name++) { /* 69 of them */
        snprintf(prompt, sizeof prompt, "A32%c32", run_name);
        run(&w, NULL, prompt);
    }
    assert_int_equal(look(&w, NULL, "A32~20D9").n_tokens, 52);
    assert_int_equal(look(&w, NULL, "A32?20D9").n_tokens, 52); /* the sixth: 64 from the end */
    assert_int_equal(look(&w, NULL, "A32>20D9").n_tokens, 32);
    assert_int_equal(look(&w, NULL, "A32>32D9").n_tokens, 64); /* whole blocks always are */
    run(&w, NULL, "A32>32D9");
    assert_int_equal(look(&w, NULL, "A32>20D9").n_tokens, 52);
    assert_int_equal(look(&w, NULL, "A32?20D9").n_tokens, 32);
    close_world(&w);
}

static void a_shared_page_is_the_same_page_and_a_copied_one_is_not(void **state)
{
    (void)state;
    struct world w;
    open_world(&w, 16, &plain);
    struct job a, b;
    want(&w, &a, NULL, "A50B30");
    want(&w, &b, NULL, "A50C30");
    start(&w, &a);
    compute(&w, &a, 80, false);
    start(&w, &b);
    assert_int_equal(b.pages[0], a.pages[0]);
    assert_int_not_equal(b.pages[1], a.pages[1]);
    assert_int_equal(prefix_counters(w.tree).pages_copied, 1);
    compute(&w, &b, 80, false); /* its own tokens leave those of a alone: stop() reads them */
    stop(&w, &a, false);
    stop(&w, &b, false);
    close_world(&w);
}

static void salts_are_separate_trees(void **state)
{
    (void)state;
    for (uint64_t mask = 0; mask <= 1; mask++) { /* 1: all hashes are 0 or 1 */
        struct prefix_options o = plain;
        o.hash_mask = mask;
        struct world w;
        open_world(&w, 32, &o);
        static const char *const salts[] = {NULL, "x", "y", "xy", "x "};
        for (size_t i = 0; i < 5; i++)
            assert_int_equal(run(&w, salts[i], "A90").n_tokens, 0);
        for (size_t i = 0; i < 5; i++)
            assert_int_equal(run(&w, salts[i], "A90").n_tokens, 89);
        assert_int_equal(look(&w, "", "A90").n_tokens, 89); /* none is the empty one */
        assert_int_equal(look(&w, "z", "A90").n_tokens, 0);
        close_world(&w);
    }
}

static void colliding_hashes_find_nothing_that_is_not_there(void **state)
{
    (void)state;
    struct prefix_options o = plain;
    o.hash_mask = 1;
    struct world w;
    open_world(&w, 400, &o);
    char prompt[32];
    for (int i = 0; i < 60; i++) {
        snprintf(prompt, sizeof prompt, "A%dB%d", 32 + i, 64 - i);
        run(&w, NULL, prompt);
        snprintf(prompt, sizeof prompt, "%c96", 'C' + i % 50);
        assert_int_equal(run(&w, NULL, prompt).n_tokens, i < 50 ? 0 : 95);
    }
    for (int i = 0; i < 60; i++) {
        snprintf(prompt, sizeof prompt, "A%dB%d", 32 + i, 64 - i);
        assert_int_equal(look(&w, NULL, prompt).n_tokens, 95);
    }
    close_world(&w);
}

static void the_block_behind_another_parent_is_another_block(void **state)
{
    (void)state;
    struct prefix_options o = plain;
    o.hash_mask = 1;
    struct world w;
    open_world(&w, 16, &o);
    run(&w, NULL, "A32B32");
    assert_int_equal(look(&w, NULL, "C32B32").n_tokens, 0);
    assert_int_equal(look(&w, NULL, "B32A32").n_tokens, 0);
    assert_int_equal(look(&w, NULL, "A32A32").n_tokens, 32);
    close_world(&w);
}

static void a_tree_that_is_off_finds_and_keeps_nothing(void **state)
{
    (void)state;
    const struct prefix_options o = {.enabled = false};
    struct world w;
    open_world(&w, 4, &o);
    for (int i = 0; i < 2; i++) {
        const struct prefix_hit hit = run(&w, NULL, "A100");
        assert_int_equal(hit.n_tokens, 0);
        assert_miss(hit, PREFIX_MISS_OFF, 0);
        assert_int_equal(kvpool_free_pages(w.pool), 4);
    }
    struct job job;
    want(&w, &job, "x", "A100");
    start(&w, &job);
    assert_int_equal(prefix_pages_available(w.tree), 0);
    stop(&w, &job, true);
    start(&w, &job);
    stop(&w, &job, false);
    close_world(&w);
}

static void a_hit_below_the_minimum_counts_as_none(void **state)
{
    (void)state;
    struct prefix_options o = plain;
    o.tokens_min = 40;
    struct world w;
    open_world(&w, 16, &o);
    run(&w, NULL, "A40B24");
    const struct prefix_hit hit = run(&w, NULL, "A39C30");
    assert_int_equal(hit.n_tokens, 0);
    assert_int_equal(hit.n_pages_shared, 0);
    assert_miss(hit, PREFIX_MISS_SHORT, 39);
    assert_int_equal(prefix_counters(w.tree).pages_copied, 0);
    assert_int_equal(prefix_counters(w.tree).pages_adopted,
                     1); /* its first page all the same */
    assert_int_equal(look(&w, NULL, "A40C30").n_tokens, 40);
    close_world(&w);
}

static void only_committed_tokens_are_found(void **state)
{
    (void)state;
    struct world w;
    open_world(&w, 16, &plain);
    struct job a;
    want(&w, &a, NULL, "A90");
    start(&w, &a);
    static const struct {
        size_t n_computed;
        bool partial;
        size_t n_found;
    } steps[] = {{20, false, 0},  {20, true, 20}, {31, false, 20}, {31, true, 31},
                 {33, false, 32}, {40, true, 40}, {63, true, 63},  {64, false, 64},
                 {90, false, 64}, {90, true, 89}};
    for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++) {
        compute(&w, &a, steps[i].n_computed, steps[i].partial);
        assert_int_equal(look(&w, NULL, "A90").n_tokens, steps[i].n_found);
    }
    stop(&w, &a, false);
    close_world(&w);
}

static void a_page_that_is_still_filled_can_be_copied_from(void **state)
{
    (void)state;
    struct world w;
    open_world(&w, 16, &plain);
    struct job a, b;
    want(&w, &a, NULL, "A64");
    start(&w, &a);
    compute(&w, &a, 10, true);
    want(&w, &b, NULL, "A64");
    start(&w, &b);
    assert_int_equal(b.hit.n_tokens, 10);
    compute(&w, &a, 64, false);
    compute(&w, &b, 64, false);
    assert_int_equal(b.pages[0], a.pages[0]);
    assert_int_equal(b.pages[1], a.pages[1]);
    stop(&w, &a, false);
    stop(&w, &b, false);
    close_world(&w);
}

static void the_same_page_computed_twice_is_kept_once(void **state)
{
    (void)state;
    struct world w;
    open_world(&w, 16, &plain);
    struct job a, b;
    want(&w, &a, NULL, "A64");
    want(&w, &b, NULL, "A64");
    start(&w, &a);
    start(&w, &b);
    assert_int_equal(kvpool_free_pages(w.pool), 12);
    compute(&w, &a, 64, false);
    compute(&w, &b, 40, true); /* adopts one, and publishes none of its second */
    assert_int_equal(b.pages[0], a.pages[0]);
    assert_int_not_equal(b.pages[1], a.pages[1]);
    assert_int_equal(kvpool_free_pages(w.pool), 13);
    compute(&w, &b, 64, false);
    assert_int_equal(b.pages[1], a.pages[1]);
    assert_int_equal(kvpool_free_pages(w.pool), 14);
    const struct prefix_counters c = prefix_counters(w.tree);
    assert_int_equal(c.pages_published, 2);
    assert_int_equal(c.pages_adopted, 2);
    stop(&w, &a, false);
    assert_int_equal(kvpool_idle_pages(w.pool), 0); /* b holds them still */
    stop(&w, &b, false);
    assert_int_equal(kvpool_idle_pages(w.pool), 2);
    close_world(&w);
}

static void a_leaf_that_grows_into_a_page_of_the_tree_is_dropped(void **state)
{
    (void)state;
    struct world w;
    open_world(&w, 16, &plain);
    struct job a, b;
    want(&w, &a, NULL, "A32");
    want(&w, &b, NULL, "A32");
    start(&w, &a);
    start(&w, &b);
    compute(&w, &a, 5, true);
    compute(&w, &b, 9, true); /* more than the other leaf has: a second one */
    assert_int_equal(prefix_counters(w.tree).pages_published, 2);
    compute(&w, &b, 32, false);
    compute(&w, &a, 32, false);
    assert_int_equal(a.pages[0], b.pages[0]);
    assert_int_equal(kvpool_free_pages(w.pool), 15);
    stop(&w, &a, false);
    stop(&w, &b, false);
    close_world(&w);
}

static void an_answer_is_found_by_a_prompt_that_quotes_it(void **state)
{
    (void)state;
    struct world w;
    open_world(&w, 16, &plain);
    struct job a;
    want(&w, &a, NULL, "A40");
    start(&w, &a);
    compute(&w, &a, 40, false);
    say(&a, "B70");
    for (size_t n = 41; n <= 110; n++)
        compute(&w, &a, n, n % 3 == 0);
    stop(&w, &a, false);
    assert_int_equal(look(&w, NULL, "A40B70C5").n_tokens, 110);
    close_world(&w);
}

static void a_preempted_sequence_finds_what_it_had_computed(void **state)
{
    (void)state;
    struct world w;
    open_world(&w, 16, &plain);
    struct job a;
    want(&w, &a, NULL, "A40");
    start(&w, &a);
    say(&a, "B70");
    compute(&w, &a, 100, false);
    for (int i = 0; i < 3; i++) {
        stop(&w, &a, true);
        assert_int_equal(kvpool_free_pages(w.pool) + kvpool_idle_pages(w.pool), 16);
        start(&w, &a);
        assert_int_equal(a.hit.n_tokens, 100);
        assert_int_equal(a.hit.n_pages_shared, 3);
    }
    compute(&w, &a, 110, false);
    stop(&w, &a, false);
    close_world(&w);
}

static void a_preempted_prompt_goes_on_in_the_middle(void **state)
{
    (void)state;
    struct world w;
    open_world(&w, 16, &plain);
    struct job a;
    want(&w, &a, NULL, "A100");
    start(&w, &a);
    compute(&w, &a, 70, false);
    stop(&w, &a, true);
    start(&w, &a);
    assert_int_equal(a.hit.n_tokens, 70);
    stop(&w, &a, true);
    prefix_unwant(w.tree, a.path);
    close_world(&w);
}

static void the_least_recently_used_goes_first(void **state)
{
    (void)state;
    struct world w;
    open_world(&w, 6, &plain);
    run(&w, NULL, "A64");
    run(&w, NULL, "B64");
    run(&w, NULL, "C64");
    run(&w, NULL, "A64"); /* used again; its copied end is a twin and goes back */
    assert_int_equal(kvpool_free_pages(w.pool), 1); /* B's leaf made room for the copy */
    assert_int_equal(look(&w, NULL, "B64").n_tokens, 32);
    run(&w, NULL, "D64");
    assert_int_equal(look(&w, NULL, "A64").n_tokens, 63);
    assert_int_equal(look(&w, NULL, "B64").n_tokens, 0);
    assert_int_equal(look(&w, NULL, "C64").n_tokens, 63);
    assert_int_equal(look(&w, NULL, "D64").n_tokens, 63);
    assert_int_equal(prefix_counters(w.tree).pages_evicted, 2);
    assert_int_equal(prefix_counters(w.tree).pages_evicted_wanted, 0);
    close_world(&w);
}

static void a_prefix_goes_from_its_end(void **state)
{
    (void)state;
    struct world w;
    open_world(&w, 4, &plain);
    run(&w, NULL, "A128");
    struct job b;
    want(&w, &b, NULL, "B40");
    start(&w, &b);
    assert_int_equal(look(&w, NULL, "A128").n_tokens, 64);
    stop(&w, &b, false);
    close_world(&w);
}

/* A is older than B, and a queued job wants A: what is left of each when a page is needed. */
static void press(bool by_demand, size_t *n_a, size_t *n_b, uint64_t *n_evicted_wanted)
{
    struct prefix_options o = plain;
    o.evicts_by_demand = by_demand;
    struct world w;
    open_world(&w, 4, &o);
    run(&w, NULL, "A64");
    run(&w, NULL, "B64");
    struct job queued, other;
    want(&w, &queued, NULL, "A64Q10");
    want(&w, &other, NULL, "C33");
    start(&w, &other);
    *n_a = find(&w, &queued).n_tokens;
    *n_b = look(&w, NULL, "B64").n_tokens;
    *n_evicted_wanted = prefix_counters(w.tree).pages_evicted_wanted;
    stop(&w, &other, false);
    prefix_unwant(w.tree, queued.path);
    close_world(&w);
}

static void what_a_queued_job_wants_outlives_what_none_wants(void **state)
{
    (void)state;
    size_t n_a, n_b;
    uint64_t n_evicted_wanted;
    press(true, &n_a, &n_b, &n_evicted_wanted);
    assert_int_equal(n_a, 64);
    assert_int_equal(n_b, 0);
    assert_int_equal(n_evicted_wanted, 0);
}

static void without_demand_only_the_last_use_counts(void **state)
{
    (void)state;
    size_t n_a, n_b;
    uint64_t n_evicted_wanted;
    press(false, &n_a, &n_b, &n_evicted_wanted);
    assert_int_equal(n_a, 0);
    assert_int_equal(n_b, 63);
    assert_int_equal(n_evicted_wanted, 2);
}

/* A is the least recently used, C the most; all three are wanted, B first, then A, then C, when
 * two pages are needed. What is found of each: */
static void press_wanted(enum prefix_turn turn_of_c, size_t n_found[3])
{
    struct world w;
    open_world(&w, 6, &plain);
    run(&w, NULL, "A64");
    run(&w, NULL, "B64");
    run(&w, NULL, "C64");
    struct job a, b, c, other;
    want_in_turn(&w, &b, NULL, "B64Q10", PREFIX_LATER);
    want_in_turn(&w, &a, NULL, "A64Q10", PREFIX_LATER);
    want_in_turn(&w, &c, NULL, "C64Q10", turn_of_c);
    want(&w, &other, NULL, "D33");
    start(&w, &other);
    n_found[0] = find(&w, &a).n_tokens;
    n_found[1] = find(&w, &b).n_tokens;
    n_found[2] = find(&w, &c).n_tokens;
    stop(&w, &other, false);
    prefix_unwant(w.tree, b.path);
    prefix_unwant(w.tree, a.path);
    prefix_unwant(w.tree, c.path);
    close_world(&w);
}

static void of_wanted_prefixes_the_one_whose_turn_is_furthest_goes_first(void **state)
{
    (void)state;
    size_t n_found[3];
    press_wanted(PREFIX_LATER, n_found);
    assert_int_equal(n_found[0], 64);
    assert_int_equal(n_found[1], 64);
    assert_int_equal(n_found[2], 0);
}

static void the_turn_of_a_submitted_job_is_before_that_of_all_in_the_window(void **state)
{
    (void)state;
    size_t n_found[3];
    press_wanted(PREFIX_NEXT, n_found);
    assert_int_equal(n_found[0], 0);
    assert_int_equal(n_found[1], 64);
    assert_int_equal(n_found[2], 64);
}

static void what_is_wanted_goes_too_when_nothing_else_is_left(void **state)
{
    (void)state;
    struct world w;
    open_world(&w, 4, &plain);
    run(&w, NULL, "A128");
    struct job queued, other;
    want(&w, &queued, NULL, "A128B1");
    want(&w, &other, NULL, "C128");
    start(&w, &other);
    assert_int_equal(prefix_counters(w.tree).pages_evicted_wanted, 4);
    assert_int_equal(find(&w, &queued).n_tokens, 0);
    compute(&w, &other, 128, false);
    stop(&w, &other, false);
    /* Its nodes outlived their pages, and get new ones. */
    run(&w, NULL, "A96");
    assert_int_equal(find(&w, &queued).n_tokens, 96);
    prefix_unwant(w.tree, queued.path);
    close_world(&w);
}

static void demand_ends_with_the_last_job_that_wants_it(void **state)
{
    (void)state;
    struct world w;
    open_world(&w, 4, &plain);
    run(&w, NULL, "A64");
    struct job queued[2], other;
    want(&w, &queued[0], NULL, "A64B1");
    want(&w, &queued[1], NULL, "A64C1");
    run(&w, NULL, "D64");
    prefix_unwant(w.tree, queued[0].path);
    want(&w, &other, NULL, "E1");
    start(&w, &other);
    stop(&w, &other, false); /* took D's end */
    assert_int_equal(find(&w, &queued[1]).n_tokens, 64);
    prefix_unwant(w.tree, queued[1].path);
    want(&w, &other, NULL, "F64");
    start(&w, &other); /* takes E, and A's end: older than D's first page */
    assert_int_equal(look(&w, NULL, "A64B1").n_tokens, 32);
    assert_int_equal(look(&w, NULL, "D64").n_tokens, 32);
    stop(&w, &other, false);
    close_world(&w);
}

static void a_page_that_is_held_never_goes(void **state)
{
    (void)state;
    struct world w;
    open_world(&w, 4, &plain);
    struct job a;
    want(&w, &a, NULL, "A64");
    start(&w, &a);
    compute(&w, &a, 64, false);
    int32_t taken[4];
    size_t n = 0;
    while ((taken[n] = prefix_acquire_page(w.tree)) != KVPOOL_NO_PAGE)
        n++;
    assert_int_equal(n, 2);
    assert_int_equal(prefix_pages_available(w.tree), 0);
    assert_int_equal(look(&w, NULL, "A64").n_tokens, 63);
    for (size_t i = 0; i < n; i++)
        kvpool_release_page(w.pool, taken[i]);
    stop(&w, &a, false);
    close_world(&w);
}

static void idle_pages_have_a_limit_of_their_own(void **state)
{
    (void)state;
    struct prefix_options o = plain;
    o.pages_max = 3;
    struct world w;
    open_world(&w, 16, &o);
    run(&w, NULL, "A64");
    run(&w, NULL, "B64");
    assert_int_equal(kvpool_idle_pages(w.pool), 3);
    assert_int_equal(look(&w, NULL, "A64").n_tokens, 32);
    assert_int_equal(look(&w, NULL, "B64").n_tokens, 63);
    run(&w, NULL, "C160");
    assert_int_equal(kvpool_idle_pages(w.pool), 3);
    assert_int_equal(look(&w, NULL, "C160").n_tokens, 96);
    close_world(&w);
}

static void a_start_without_pages_changes_nothing(void **state)
{
    (void)state;
    struct world w;
    open_world(&w, 6, &plain);
    struct job a, b;
    want(&w, &a, NULL, "A64");
    start(&w, &a);
    compute(&w, &a, 64, false);
    run(&w, NULL, "A32C32D32");
    want(&w, &b, NULL, "A32C40B90"); /* shares one page that a holds and one that is idle */
    const struct prefix_hit before = find(&w, &b);
    const struct prefix_counters counters = prefix_counters(w.tree);
    memset(b.pages, 0x77, sizeof b.pages);
    struct job untouched = b;
    for (size_t n_spare = 0; n_spare < 2; n_spare++)
        assert_false(try_start(&w, &b, n_spare));
    assert_memory_equal(&b, &untouched, sizeof b);
    assert_int_equal(prefix_pages_available(w.tree), 4);
    const struct prefix_counters now = prefix_counters(w.tree);
    assert_same_hit(find(&w, &b), before);
    assert_memory_equal(&now, &counters, sizeof now);
    prefix_unwant(w.tree, b.path);
    stop(&w, &a, false);
    close_world(&w);
}

static void a_start_leaves_the_spare_pages_that_it_was_asked_for(void **state)
{
    (void)state;
    struct world w;
    open_world(&w, 5, &plain);
    struct job a, b;
    want(&w, &a, NULL, "A64");
    start(&w, &a);
    compute(&w, &a, 64, false);
    want(&w, &b, NULL, "A64B1"); /* shares what a holds: needs one page of three */
    assert_false(try_start(&w, &b, 3));
    assert_true(try_start(&w, &b, 2));
    assert_int_equal(prefix_pages_available(w.tree), 2);
    stop(&w, &a, false);
    stop(&w, &b, false);
    close_world(&w);
}

static void a_copy_finds_room_when_its_source_is_the_only_idle_page(void **state)
{
    (void)state;
    struct world w;
    open_world(&w, 2, &plain);
    run(&w, NULL, "A32B20");
    struct job a;
    want(&w, &a, NULL, "A32B10C9");
    start(&w, &a);
    assert_int_equal(a.hit.n_tokens, 42);
    assert_int_equal(prefix_counters(w.tree).pages_copied, 0);
    assert_int_equal(prefix_counters(w.tree).pages_evicted, 1);
    compute(&w, &a, 51, false);
    stop(&w, &a, false);
    close_world(&w);
}

static void a_copy_takes_other_pages_before_its_source(void **state)
{
    (void)state;
    struct world w;
    open_world(&w, 3, &plain);
    run(&w, NULL, "A32B20"); /* older than D, so it would go first */
    run(&w, NULL, "D10");
    struct job a;
    want(&w, &a, NULL, "A32B10C9");
    start(&w, &a);
    assert_int_equal(prefix_counters(w.tree).pages_copied, 1);
    assert_int_equal(look(&w, NULL, "A32B20").n_tokens, 51);
    assert_int_equal(look(&w, NULL, "D10").n_tokens, 0);
    stop(&w, &a, false);
    close_world(&w);
}

static void what_held_paths_will_commit_is_coming(void **state)
{
    (void)state;
    struct world w;
    open_world(&w, 32, &plain);
    struct job a, b, c;
    want(&w, &b, NULL, "A100B50");
    assert_int_equal(find(&w, &b).n_coming, 0);
    want(&w, &a, NULL, "A100C50");              /* four full blocks, three of them also b's */
    assert_int_equal(find(&w, &b).n_coming, 0); /* it waits too */
    start(&w, &a);
    assert_int_equal(find(&w, &b).n_coming, 96);
    compute(&w, &a, 40, false);
    assert_int_equal(find(&w, &b).n_tokens, 32);
    assert_int_equal(find(&w, &b).n_coming, 64);
    compute(&w, &a, 40, true);
    assert_int_equal(find(&w, &b).n_tokens, 40);
    assert_int_equal(find(&w, &b).n_coming, 56);
    want(&w, &c, NULL, "A64"); /* never more than all but the last token */
    assert_int_equal(find(&w, &c).n_coming, 23);
    assert_int_equal(look(&w, "x", "A100").n_coming, 0);
    stop(&w, &a, true);
    assert_int_equal(find(&w, &b).n_coming, 0);
    start(&w, &a);
    assert_int_equal(find(&w, &b).n_coming, 56);
    compute(&w, &a, 150, false);
    assert_int_equal(find(&w, &b).n_tokens, 100);
    assert_int_equal(find(&w, &b).n_coming, 0);
    stop(&w, &a, false);
    prefix_unwant(w.tree, b.path);
    prefix_unwant(w.tree, c.path);
    close_world(&w);
}

static void what_would_stay_below_the_minimum_is_not_coming(void **state)
{
    (void)state;
    struct prefix_options o = plain;
    o.tokens_min = 60;
    struct world w;
    open_world(&w, 32, &o);
    struct job a;
    want(&w, &a, NULL, "A96");
    start(&w, &a);
    assert_int_equal(look(&w, NULL, "A50B20").n_coming, 0);
    assert_int_equal(look(&w, NULL, "A70B20").n_coming, 64);
    compute(&w, &a, 32, false);
    assert_int_equal(look(&w, NULL, "A70B20").n_tokens, 0);
    assert_int_equal(look(&w, NULL, "A70B20").n_coming, 64); /* what is there counts then */
    stop(&w, &a, false);
    close_world(&w);
}

static void a_miss_says_why(void **state)
{
    (void)state;
    struct world w;
    open_world(&w, 8, &plain);
    assert_miss(run(&w, "x", "A64B20"), PREFIX_MISS_COLD, 0);
    assert_miss(look(&w, "x", "A64B20"), PREFIX_MISS_NONE, 83);
    assert_miss(look(&w, "x", "A64B20C9"), PREFIX_MISS_COLD, 84); /* goes on behind the end */
    assert_miss(look(&w, "x", "A64B10C9"), PREFIX_MISS_DIFFERS, 74);
    assert_miss(look(&w, "x", "A64C9"), PREFIX_MISS_DIFFERS, 64);
    assert_miss(look(&w, "x", "A10C99"), PREFIX_MISS_DIFFERS, 10);
    assert_miss(look(&w, "x", "C9"), PREFIX_MISS_COLD, 0);
    assert_miss(look(&w, "y", "A64B20"), PREFIX_MISS_SALT, 0);
    assert_miss(look(&w, "y", "C9"), PREFIX_MISS_COLD, 0);
    close_world(&w);
}

static void a_miss_of_what_was_let_go_says_whether_it_was_wanted(void **state)
{
    (void)state;
    struct world w;
    open_world(&w, 4, &plain);
    run(&w, NULL, "A64B30");
    struct job queued;
    want(&w, &queued, NULL, "A64B32");
    run(&w, NULL, "C64"); /* takes the end, which no full block of the queued job is */
    assert_miss(find(&w, &queued), PREFIX_MISS_WINDOW, 64);
    run(&w, NULL, "D100"); /* and all of A */
    assert_miss(find(&w, &queued), PREFIX_MISS_EVICTED, 0);
    assert_miss(look(&w, NULL, "A5E5"), PREFIX_MISS_EVICTED, 0);
    assert_miss(look(&w, NULL, "C64"), PREFIX_MISS_WINDOW, 0);
    assert_miss(look(&w, "x", "C64"), PREFIX_MISS_SALT, 0);
    prefix_unwant(w.tree, queued.path);
    run(&w, NULL, "A64"); /* there again */
    assert_miss(look(&w, NULL, "A64B30"), PREFIX_MISS_WINDOW, 64);
    assert_miss(look(&w, NULL, "A64F9"), PREFIX_MISS_DIFFERS, 64);
    close_world(&w);
}

static void a_tampered_page_is_noticed(void **state)
{
    (void)state;
    struct world w;
    open_world(&w, 8, &plain);
    struct job a;
    want(&w, &a, NULL, "A70");
    start(&w, &a);
    compute(&w, &a, 70, false);
    for (size_t layer = 0; layer < STAMP_LAYERS; layer++) {
        for (size_t head = 0; head < STAMP_HEADS; head++) {
            uint64_t *slots = kvpool_block(w.pool, layer, a.pages[1], head);
            slots[5]++;
            assert_int_equal(first_wrong(&w, &a, 70), 37);
            slots[5]--;
        }
    }
    const int32_t page = a.pages[0];
    a.pages[0] = a.pages[1];
    assert_int_equal(first_wrong(&w, &a, 70), 0);
    a.pages[0] = page;
    assert_int_equal(first_wrong(&w, &a, 70), 70);
    stop(&w, &a, false);
    close_world(&w);
}

static void the_check_sees_a_page_that_left_behind_the_trees_back(void **state)
{
    (void)state;
    struct world w;
    open_world(&w, 8, &plain);
    struct job a;
    want(&w, &a, NULL, "A70");
    start(&w, &a);
    compute(&w, &a, 70, false);
    kvpool_uncache_page(w.pool, a.pages[0]);
    assert_false(prefix_check(w.tree));
    kvpool_cache_page(w.pool, a.pages[0]);
    assert_true(prefix_check(w.tree));
    kvpool_release_page(w.pool, a.pages[0]); /* held below, but not above */
    assert_false(prefix_check(w.tree));
    kvpool_share_page(w.pool, a.pages[0]);
    stop(&w, &a, false);
    close_world(&w);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_repeated_prompt_is_there_but_for_its_last_token),
        cmocka_unit_test(a_hit_is_exact_to_the_token_wherever_prompts_part),
        cmocka_unit_test(the_longest_partial_match_is_copied),
        cmocka_unit_test(of_many_continuations_the_latest_used_64_are_compared),
        cmocka_unit_test(a_shared_page_is_the_same_page_and_a_copied_one_is_not),
        cmocka_unit_test(salts_are_separate_trees),
        cmocka_unit_test(colliding_hashes_find_nothing_that_is_not_there),
        cmocka_unit_test(the_block_behind_another_parent_is_another_block),
        cmocka_unit_test(a_tree_that_is_off_finds_and_keeps_nothing),
        cmocka_unit_test(a_hit_below_the_minimum_counts_as_none),
        cmocka_unit_test(only_committed_tokens_are_found),
        cmocka_unit_test(a_page_that_is_still_filled_can_be_copied_from),
        cmocka_unit_test(the_same_page_computed_twice_is_kept_once),
        cmocka_unit_test(a_leaf_that_grows_into_a_page_of_the_tree_is_dropped),
        cmocka_unit_test(an_answer_is_found_by_a_prompt_that_quotes_it),
        cmocka_unit_test(a_preempted_sequence_finds_what_it_had_computed),
        cmocka_unit_test(a_preempted_prompt_goes_on_in_the_middle),
        cmocka_unit_test(the_least_recently_used_goes_first),
        cmocka_unit_test(a_prefix_goes_from_its_end),
        cmocka_unit_test(what_a_queued_job_wants_outlives_what_none_wants),
        cmocka_unit_test(without_demand_only_the_last_use_counts),
        cmocka_unit_test(of_wanted_prefixes_the_one_whose_turn_is_furthest_goes_first),
        cmocka_unit_test(the_turn_of_a_submitted_job_is_before_that_of_all_in_the_window),
        cmocka_unit_test(what_is_wanted_goes_too_when_nothing_else_is_left),
        cmocka_unit_test(demand_ends_with_the_last_job_that_wants_it),
        cmocka_unit_test(a_page_that_is_held_never_goes),
        cmocka_unit_test(idle_pages_have_a_limit_of_their_own),
        cmocka_unit_test(a_start_without_pages_changes_nothing),
        cmocka_unit_test(a_start_leaves_the_spare_pages_that_it_was_asked_for),
        cmocka_unit_test(a_copy_finds_room_when_its_source_is_the_only_idle_page),
        cmocka_unit_test(a_copy_takes_other_pages_before_its_source),
        cmocka_unit_test(what_held_paths_will_commit_is_coming),
        cmocka_unit_test(what_would_stay_below_the_minimum_is_not_coming),
        cmocka_unit_test(a_miss_says_why),
        cmocka_unit_test(a_miss_of_what_was_let_go_says_whether_it_was_wanted),
        cmocka_unit_test(a_tampered_page_is_noticed),
        cmocka_unit_test(the_check_sees_a_page_that_left_behind_the_trees_back),
    };
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests_name("prefix", tests, NULL, NULL);
}
