/*
 * A night in virtual time: window, scheduler, prefix tree and KV pool as the worker drives
 * them, with an engine that computes no model. From a seed, jobs over shared documents come,
 * are cancelled, preempted, put back and answered; the clock is the number of steps.
 *
 * What stands for the model: the "keys" of a position are a hash of all tokens up to it, kept
 * in the page's own memory. Each computed row reads the keys of every position before it, as
 * attention would, and they must be those of its own tokens; the next token is a function of
 * them. The naive model knows nothing of pages: it computes the answer from the tokens alone.
 * SHEAF_RANDOM_OPS sets the number of random operations.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/limits.h"
#include "base/rng.h"
#include "engine/sched.h"
#include "group.h"

enum {
    CONTEXT = 256,
    PAGE = KV_PAGE_TOKENS,
    JOBS_MAX = 64, /* in the window and the scheduler at once */
    DOCUMENTS = 12,
    BATCH = 8,
    MAX_WAIT = 400, /* steps */
};

struct job {
    struct seq *seq;            /* NULL: in the window */
    struct prefix_path *wanted; /* while it is there */
    int32_t prompt[CONTEXT];
    size_t n_prompt, n_answer;
    const char *salt;
    int64_t added;
    bool used;
};

struct night {
    struct kvpool *pool;
    struct prefix_tree *prefixes;
    struct sched *sched;
    struct group_window *window;
    struct step_plan plan;
    struct job jobs[JOBS_MAX];
    uint64_t seed, n_rolls;
    int64_t now;    /* in steps */
    uint64_t trace; /* hash of everything that was decided */
    size_t n_pages, answered, cancelled, preempted, cached_tokens;
    int64_t waited_max;
    bool sees_a_difference;
};

static uint64_t mix(uint64_t a, uint64_t b)
{
    return rng_bits(a, 77, b);
}

static size_t roll(struct night *n, size_t limit)
{
    return rng_bits(n->seed, 3, n->n_rolls++) % limit;
}

/* The "keys" of a page: one word for each of its positions. */
static uint64_t *keys_of(const struct night *n, int32_t page)
{
    return kvpool_block(n->pool, 0, page, 0);
}

static int32_t next_token(uint64_t keys)
{
    return (int32_t)(keys >> 40) % 1000;
}

static void open_night(struct night *n, uint64_t seed)
{
    *n = (struct night){.seed = seed, .n_pages = 9 + seed % 3 * 14}; /* the longest takes 8 */
    const struct kvpool_shape shape = {
        .n_pages = n->n_pages, .n_layers = 1, .n_kv_heads = 1, .head_dim = 16, .type = KV_BF16};
    assert_true(kvpool_page_bytes(&shape) >= PAGE * sizeof(uint64_t));
    assert_int_equal(kvpool_open(&shape, &n->pool, NULL), 0);
    const struct prefix_options prefix = {
        .enabled = true, .evicts_by_demand = seed % 2, .tokens_min = seed % 5 ? 1 : PAGE};
    assert_int_equal(prefix_open(&prefix, n->pool, &n->prefixes, NULL), 0);
    const struct sched_limits limits = {.batch = BATCH,
                                        .step_tokens = 8 + seed % 64,
                                        .chunk_tokens = 1 + seed % 50,
                                        .whole_prompts = seed % 7 == 3};
    assert_int_equal(sched_open(&limits, n->prefixes, &n->sched, NULL), 0);
    const struct group_limits window = {.jobs_max = JOBS_MAX,
                                        .tokens_max = JOBS_MAX * CONTEXT,
                                        .bytes_max = SIZE_MAX / 2,
                                        .open_max = 1 + seed % 3,
                                        .max_wait_us = MAX_WAIT,
                                        .enabled = seed % 4 != 1};
    assert_int_equal(group_open(&window, &n->window, NULL), 0);
    n->plan.segments = calloc(BATCH, sizeof n->plan.segments[0]);
}

static void close_night(struct night *n)
{
    group_close(n->window);
    sched_close(n->sched);
    assert_int_equal(prefix_pages_available(n->prefixes), n->n_pages);
    prefix_close(n->prefixes);
    assert_int_equal(kvpool_free_pages(n->pool), n->n_pages);
    kvpool_close(n->pool);
    free(n->plan.segments);
}

/* System text, a document and a question, each shared by fewer: borders fall anywhere. */
static void write_prompt(struct night *n, struct job *job)
{
    const size_t document = roll(n, DOCUMENTS);
    const size_t n_system = 20, n_shared = n_system + 10 + document * 11;
    job->n_prompt = n_shared + roll(n, 40) + 1;
    if (roll(n, 20) == 0) /* one that shares nothing */
        for (size_t i = 0; i < n_shared; i++)
            job->prompt[i] = (int32_t)roll(n, 1000);
    else
        for (size_t i = 0; i < n_shared; i++)
            job->prompt[i] = (int32_t)(mix(i < n_system ? 1 : 100 + document, i) % 1000);
    for (size_t i = n_shared; i < job->n_prompt; i++)
        job->prompt[i] = (int32_t)roll(n, 3); /* questions begin alike now and then */
    job->n_answer = 1 + roll(n, 40);
    job->salt = roll(n, 4) == 0 ? "another tenant" : NULL;
}

static void add_job(struct night *n)
{
    struct job *job = NULL;
    for (size_t i = 0; i < JOBS_MAX && !job; i++)
        job = n->jobs[i].used ? NULL : &n->jobs[i];
    if (!job || !group_has_room(n->window))
        return;
    *job = (struct job){.used = true, .added = n->now};
    write_prompt(n, job);
    assert_int_equal(prefix_want(n->prefixes, job->salt, job->prompt, job->n_prompt,
                                 PREFIX_LATER, &job->wanted, NULL),
                     0);
    const struct group_job item = {.tokens = job->prompt,
                                   .n_tokens = job->n_prompt,
                                   .salt = job->salt,
                                   .bytes = 1,
                                   .priority = roll(n, 30) == 0,
                                   .added_us = n->now,
                                   .user = job};
    assert_int_equal(group_add(n->window, &item, NULL), 0);
}

static void submit_jobs(struct night *n)
{
    struct group_pick pick;
    while (sched_n_running(n->sched) + sched_n_waiting(n->sched) < BATCH &&
           group_next(n->window, n->now, &pick)) {
        struct job *job = pick.user;
        const struct seq_request req = {.prompt = job->prompt,
                                        .n_prompt = job->n_prompt,
                                        .max_tokens = job->n_answer,
                                        .salt = job->salt,
                                        .user = job};
        assert_int_equal(seq_open(&req, CONTEXT + 64, &job->seq, NULL), 0);
        prefix_unwant(n->prefixes, job->wanted);
        job->wanted = NULL;
        assert_int_equal(sched_add(n->sched, job->seq, NULL), 0);
        if (n->now - job->added > n->waited_max)
            n->waited_max = n->now - job->added;
        n->trace = mix(n->trace, (uint64_t)(job - n->jobs));
    }
}

static void leave(struct night *n, struct seq *seq)
{
    struct job *job = seq->req.user;
    sched_remove(n->sched, seq);
    n->preempted += seq->n_preempted;
    n->cached_tokens += seq->n_cached;
    seq_close(seq);
    job->used = false;
}

/* Computes one row; returns its keys. */
static uint64_t compute_row(struct night *n, const struct seq *seq, size_t position)
{
    uint64_t keys = 0;
    for (size_t i = 0; i <= position; i++) {
        uint64_t *slot = &keys_of(n, seq->pages[i / PAGE])[i % PAGE];
        keys = mix(keys, (uint64_t)seq->tokens[i]);
        if (i == position)
            *slot = keys;
        else if (*slot != keys)
            n->sees_a_difference = true;
    }
    return keys;
}

/* The answer from the tokens alone. */
static void check_answer(struct night *n, const struct seq *seq)
{
    const struct job *job = seq->req.user;
    assert_memory_equal(seq->tokens, job->prompt, job->n_prompt * sizeof job->prompt[0]);
    uint64_t keys = 0;
    for (size_t i = 0; i + 1 < seq->n_tokens; i++) {
        keys = mix(keys, (uint64_t)seq->tokens[i]);
        if (i + 1 >= job->n_prompt && seq->tokens[i + 1] != next_token(keys))
            n->sees_a_difference = true;
    }
    assert_int_equal(seq->n_tokens - seq->n_prompt, job->n_answer);
}

static void carry_out(struct night *n)
{
    uint64_t keys[BATCH];
    for (size_t i = 0; i < n->plan.n_segments; i++) {
        const struct step_segment *s = &n->plan.segments[i];
        for (size_t k = 0; k < s->n_rows; k++)
            keys[i] = compute_row(n, s->seq, s->position + k);
        n->trace = mix(n->trace, s->n_rows * 1000 + s->position);
    }
    sched_commit_step(n->sched, &n->plan);
    for (size_t i = 0; i < n->plan.n_segments; i++) {
        struct seq *seq = n->plan.segments[i].seq;
        if (n->plan.segments[i].n_logits == 0)
            continue;
        seq->tokens[seq->n_tokens++] = next_token(keys[i]);
        if (seq->n_tokens < seq->capacity)
            continue;
        check_answer(n, seq);
        leave(n, seq);
        n->answered++;
    }
}

static void step(struct night *n)
{
    submit_jobs(n);
    sched_plan_step(n->sched, &n->plan);
    assert_true(n->plan.n_rows > 0 || !sched_at(n->sched, 0));
    carry_out(n);
    n->now++;
}

static void cancel_one(struct night *n)
{
    const size_t present = sched_n_running(n->sched) + sched_n_waiting(n->sched);
    if (present == 0)
        return;
    leave(n, sched_at(n->sched, roll(n, present)));
    n->cancelled++;
}

static void spend(struct night *n, uint64_t seed, size_t ops, bool walks)
{
    open_night(n, seed);
    for (size_t i = 0; i < ops && !n->sees_a_difference; i++) {
        const size_t what = roll(n, 100);
        if (what < 30)
            add_job(n);
        else if (what < 31)
            cancel_one(n);
        else
            step(n);
        if (walks) {
            assert_true(prefix_check(n->prefixes));
            assert_true(kvpool_check(n->pool));
            assert_true(group_check(n->window));
        }
    }
    /* The bound says that nobody starves: the longest job takes a few hundred steps alone. */
    for (size_t i = 0;
         (sched_at(n->sched, 0) || group_length(n->window)) && !n->sees_a_difference; i++) {
        step(n);
        assert_true(i < JOBS_MAX * (CONTEXT + 64));
    }
}

static size_t random_ops(void)
{
    const char *wanted = getenv("SHEAF_RANDOM_OPS");
    return wanted ? (size_t)strtoull(wanted, NULL, 10) : 40000;
}

static void nothing_differs_from_the_naive_model_and_nothing_leaks(void **state)
{
    (void)state;
    enum { NIGHTS = 20 };
    struct night n;
    size_t answered = 0, preempted = 0, cached = 0;
    uint64_t evicted = 0;
    int64_t waited_max = 0;
    for (uint64_t seed = 1; seed <= NIGHTS; seed++) {
        spend(&n, seed, random_ops() / NIGHTS, false);
        if (n.sees_a_difference)
            fail_msg("seed %llu: a row read what is not its own", (unsigned long long)seed);
        answered += n.answered;
        preempted += n.preempted;
        cached += n.cached_tokens;
        evicted += prefix_counters(n.prefixes).pages_evicted;
        waited_max = n.waited_max > waited_max ? n.waited_max : waited_max;
        close_night(&n);
    }
    printf("    %zu operations: %zu jobs answered, %zu preemptions, %zu tokens from the cache, "
           "%llu pages evicted, longest wait %lld steps\n",
           random_ops(), answered, preempted, cached, (unsigned long long)evicted,
           (long long)waited_max);
    assert_true(answered > 100 && preempted > 0 && cached > 0 && evicted > 0);
}

static void every_structure_is_sound_after_every_operation(void **state)
{
    (void)state;
    struct night n;
    for (uint64_t seed = 21; seed <= 28; seed++) {
        spend(&n, seed, 1500, true);
        assert_false(n.sees_a_difference);
        close_night(&n);
    }
}

static void two_nights_of_one_seed_are_the_same_and_of_another_are_not(void **state)
{
    (void)state;
    struct night n;
    uint64_t trace[3];
    static const uint64_t seeds[3] = {5, 5, 6};
    for (size_t i = 0; i < 3; i++) {
        spend(&n, seeds[i], 5000, false);
        trace[i] = n.trace;
        close_night(&n);
    }
    assert_true(trace[0] == trace[1]);
    assert_true(trace[0] != trace[2]);
}

/* The twin: a page that holds something else is noticed. */
static void a_spoilt_page_is_seen(void **state)
{
    (void)state;
    struct night n;
    open_night(&n, 2);
    while (sched_n_running(n.sched) == 0 || sched_at(n.sched, 0)->n_computed < 8) {
        add_job(&n);
        step(&n);
    }
    assert_false(n.sees_a_difference);
    keys_of(&n, sched_at(n.sched, 0)->pages[0])[3] ^= 1;
    for (size_t i = 0; i < 50 && !n.sees_a_difference; i++)
        step(&n);
    assert_true(n.sees_a_difference);
    while (sched_at(n.sched, 0))
        leave(&n, sched_at(n.sched, 0));
    struct job *job;
    while ((job = group_take_any(n.window)))
        prefix_unwant(n.prefixes, job->wanted);
    close_night(&n);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_differs_from_the_naive_model_and_nothing_leaks),
        cmocka_unit_test(every_structure_is_sound_after_every_operation),
        cmocka_unit_test(two_nights_of_one_seed_are_the_same_and_of_another_are_not),
        cmocka_unit_test(a_spoilt_page_is_seen),
    };
    return cmocka_run_group_tests_name("night", tests, NULL, NULL);
}
