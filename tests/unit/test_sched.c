/*
 * The scheduler over a real KV pool and sequences without a forward pass: the test plays the
 * engine, computing what the plan says and appending a token where logits are wanted.
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

enum { CONTEXT = 512, SEQS_MAX = 64, PAGE = KV_PAGE_TOKENS };

struct world {
    struct kvpool *pool;
    struct prefix_tree *prefixes;
    struct sched *sched;
    struct sched_limits limits;
    struct step_plan plan;
    struct seq *seqs[SEQS_MAX];
    size_t n_seqs;
};

static void open_limits(struct world *w, size_t n_pages, struct sched_limits limits,
                        bool prefix_cache)
{
    *w = (struct world){.limits = limits};
    const struct kvpool_shape shape = {
        .n_pages = n_pages, .n_layers = 1, .n_kv_heads = 1, .head_dim = 16, .type = KV_BF16};
    assert_int_equal(kvpool_open(&shape, &w->pool, NULL), 0);
    const struct prefix_options prefix = {
        .enabled = prefix_cache, .evicts_by_demand = true, .tokens_min = PAGE};
    assert_int_equal(prefix_open(&prefix, w->pool, &w->prefixes, NULL), 0);
    assert_int_equal(sched_open(&w->limits, w->prefixes, &w->sched, NULL), 0);
    w->plan.segments = calloc(limits.batch, sizeof w->plan.segments[0]);
}

static void open_world(struct world *w, size_t n_pages, size_t batch, size_t step, size_t chunk)
{
    open_limits(w, n_pages, (struct sched_limits){batch, step, chunk, false}, false);
}

static void close_world(struct world *w)
{
    while (sched_at(w->sched, 0))
        sched_remove(w->sched, sched_at(w->sched, 0));
    assert_int_equal(prefix_pages_available(w->prefixes), kvpool_pages(w->pool));
    for (size_t i = 0; i < w->n_seqs; i++)
        seq_close(w->seqs[i]);
    sched_close(w->sched);
    prefix_close(w->prefixes);
    assert_int_equal(kvpool_free_pages(w->pool), kvpool_pages(w->pool));
    kvpool_close(w->pool);
    free(w->plan.segments);
}

static struct seq *add_prompt(struct world *w, const int32_t *prompt, size_t n_prompt,
                              size_t max_tokens)
{
    const struct seq_request req = {
        .prompt = prompt, .n_prompt = n_prompt, .max_tokens = max_tokens};
    struct seq *seq = NULL;
    assert_int_equal(seq_open(&req, CONTEXT, &seq, NULL), 0);
    assert_int_equal(sched_add(w->sched, seq, NULL), 0);
    w->seqs[w->n_seqs++] = seq;
    return seq;
}

static struct seq *add(struct world *w, size_t n_prompt, size_t max_tokens)
{
    static const int32_t prompt[CONTEXT];
    return add_prompt(w, prompt, n_prompt, max_tokens);
}

/* A prompt of its own: token i is base + i. */
static struct seq *add_own(struct world *w, int32_t base, size_t n_prompt, size_t max_tokens)
{
    int32_t prompt[CONTEXT];
    for (size_t i = 0; i < n_prompt; i++)
        prompt[i] = base + (int32_t)i;
    return add_prompt(w, prompt, n_prompt, max_tokens);
}

/* Does what the engine does after the forward pass. */
static void carry_out(struct world *w)
{
    sched_commit_step(w->sched, &w->plan);
    for (size_t i = 0; i < w->plan.n_segments; i++) {
        const struct step_segment *segment = &w->plan.segments[i];
        struct seq *seq = segment->seq;
        if (segment->n_logits == 0)
            continue;
        seq->tokens[seq->n_tokens++] = 1;
        if (seq->n_tokens == seq->capacity)
            sched_remove(w->sched, seq);
    }
}

static void step(struct world *w)
{
    sched_plan_step(w->sched, &w->plan);
    carry_out(w);
}

static void running_sequences_decode_before_any_prompt(void **state)
{
    (void)state;
    struct world w;
    open_world(&w, 64, 4, 8, 6);
    struct seq *a = add(&w, 3, 50);
    step(&w);
    struct seq *b = add(&w, 20, 5);
    struct seq *c = add(&w, 20, 5);
    sched_plan_step(w.sched, &w.plan);
    assert_int_equal(w.plan.n_segments, 3);
    assert_ptr_equal(w.plan.segments[0].seq, a);
    assert_int_equal(w.plan.segments[0].n_rows, 1);
    assert_ptr_equal(w.plan.segments[1].seq, b);
    assert_int_equal(w.plan.segments[1].n_rows, 6); /* the chunk */
    assert_ptr_equal(w.plan.segments[2].seq, c);
    assert_int_equal(w.plan.segments[2].n_rows, 1); /* what is left of the step */
    assert_int_equal(w.plan.n_rows, 8);
    assert_int_equal(w.plan.n_logits, 1);
    close_world(&w);
}

static void a_prompt_is_cut_into_chunks_and_only_its_end_wants_logits(void **state)
{
    (void)state;
    struct world w;
    open_world(&w, 64, 1, 64, 16);
    add(&w, 40, 2);
    static const size_t rows[] = {16, 16, 8};
    for (size_t i = 0; i < 3; i++) {
        sched_plan_step(w.sched, &w.plan);
        assert_int_equal(w.plan.n_rows, rows[i]);
        assert_int_equal(w.plan.segments[0].position, 16 * i);
        assert_int_equal(w.plan.n_logits, i == 2);
        carry_out(&w);
    }
    close_world(&w);
}

static void admission_waits_for_the_pages_of_the_whole_prompt(void **state)
{
    (void)state;
    struct world w;
    open_world(&w, 4, 8, 512, 512);
    struct seq *a = add(&w, 2 * PAGE, 5);
    struct seq *b = add(&w, 3 * PAGE, 5); /* does not fit beside a */
    sched_plan_step(w.sched, &w.plan);
    assert_int_equal(sched_n_running(w.sched), 1);
    assert_ptr_equal(sched_at(w.sched, 0), a);
    assert_ptr_equal(sched_at(w.sched, 1), b);
    assert_null(sched_at(w.sched, 2));
    close_world(&w);
}

/* One page is kept for the next tokens of what runs already. */
static void small_ones_pass_one_that_lacks_pages_but_not_for_ever(void **state)
{
    (void)state;
    struct world w;
    open_world(&w, 10, 2, 512, 512);
    struct seq *a = add(&w, 5 * PAGE, 2 * PAGE + 20);
    struct seq *large = add(&w, 6 * PAGE, 1);
    size_t passed = 0;
    while (w.n_seqs < SEQS_MAX - 1 && large->phase == SEQ_WAITING) {
        struct seq *small = add(&w, 2, 1);
        step(&w);
        passed += small->phase == SEQ_DONE;
    }
    assert_true(passed >= 60); /* the list of the test is full before it is their turn */
    large->n_passed = 64;
    struct seq *small = add(&w, 2, 1);
    step(&w);
    assert_int_equal(small->phase, SEQ_WAITING);
    sched_remove(w.sched, a);
    step(&w);
    assert_int_equal(large->phase, SEQ_DONE);
    close_world(&w);
}

static void a_short_prompt_does_not_wait_for_a_long_one(void **state)
{
    (void)state;
    struct world w;
    open_world(&w, 64, 4, 64, 64);
    add(&w, 500, 2);
    step(&w);
    struct seq *brief = add(&w, 10, 2);
    sched_plan_step(w.sched, &w.plan);
    assert_int_equal(w.plan.n_segments, 2);
    assert_ptr_equal(w.plan.segments[0].seq, brief);
    assert_int_equal(w.plan.segments[0].n_rows, 10);
    assert_int_equal(w.plan.segments[1].n_rows, 54);
    close_world(&w);
}

static void the_prompt_admitted_first_always_gets_a_quarter(void **state)
{
    (void)state;
    struct world w;
    open_world(&w, 64, 8, 64, 64);
    struct seq *lengthy = add(&w, 400, 2);
    step(&w);
    for (size_t i = 0; i < 4; i++)
        add(&w, 40, 2);
    sched_plan_step(w.sched, &w.plan);
    const struct step_segment *last = &w.plan.segments[w.plan.n_segments - 1];
    assert_ptr_equal(last->seq, lengthy);
    assert_int_equal(last->n_rows, 16);
    assert_int_equal(w.plan.n_rows, 64);
    close_world(&w);
}

static void whole_prompts_run_alone_and_one_decode_step_comes_between_them(void **state)
{
    (void)state;
    struct world w;
    open_limits(&w, 64, (struct sched_limits){4, 64, 16, true}, false);
    struct seq *a = add(&w, 2, 50);
    step(&w);
    struct seq *b = add(&w, 100, 5);
    struct seq *c = add(&w, 3, 5);
    /* The prompt of a was completed, so a decodes once; then b, in two steps; a and b decode
     * once; then c; then there is no prompt any more and all decode. */
    const struct seq *const first[] = {a, b, b, a, c, a, a};
    static const size_t segments[] = {1, 1, 1, 2, 1, 3, 3};
    static const size_t rows[] = {1, 64, 36, 2, 3, 3, 3};
    for (size_t i = 0; i < 7; i++) {
        sched_plan_step(w.sched, &w.plan);
        assert_int_equal(w.plan.n_segments, segments[i]);
        assert_ptr_equal(w.plan.segments[0].seq, first[i]);
        assert_int_equal(w.plan.n_rows, rows[i]);
        carry_out(&w);
    }
    close_world(&w);
}

static void a_stream_of_whole_prompts_does_not_stop_what_decodes(void **state)
{
    (void)state;
    struct world w;
    open_limits(&w, 64, (struct sched_limits){3, 64, 16, true}, false);
    struct seq *a = add(&w, 2, 20);
    for (size_t i = 0; i < 50; i++) {
        add(&w, 30, 1); /* one more prompt in each step than can be computed in it */
        step(&w);
    }
    assert_int_equal(a->phase, SEQ_DONE);
    assert_int_equal(a->n_tokens, 22);
    assert_true(sched_n_waiting(w.sched) > 0); /* there was always a prompt */
    close_world(&w);
}

static void followers_wait_for_the_prefix_that_is_being_computed_and_others_do_not(void **state)
{
    (void)state;
    struct world w;
    open_limits(&w, 64, (struct sched_limits){8, 64, 64, false}, true);
    struct seq *leader = add_own(&w, 0, 3 * PAGE + 4, 8);
    struct seq *follower = add_own(&w, 0, 3 * PAGE + 9, 8);
    struct seq *stranger = add_own(&w, 5000, 8, 8);
    step(&w); /* 64 rows: 8 of the stranger, 56 of the leader */
    assert_int_equal(leader->n_computed, 56);
    assert_int_equal(follower->phase, SEQ_WAITING);
    assert_int_equal(stranger->phase, SEQ_RUNNING);
    step(&w);
    assert_int_equal(leader->n_computed, 3 * PAGE + 4);
    sched_plan_step(w.sched, &w.plan);
    assert_int_equal(follower->phase, SEQ_RUNNING);
    /* the three full pages, and four tokens of the leader's last one */
    assert_int_equal(follower->n_cached, 3 * PAGE + 4);
    assert_memory_equal(follower->pages, leader->pages, 3 * sizeof leader->pages[0]);
    assert_int_not_equal(follower->pages[3], leader->pages[3]);
    assert_int_equal(w.plan.n_rows, 2 + 5); /* two decode, the follower computes the rest */
    carry_out(&w);
    close_world(&w);
}

/* The leader computes one row a step, in all of which more of the prefix is coming. */
static void a_follower_of_a_slow_leader_waits_256_steps_and_no_more(void **state)
{
    (void)state;
    struct world w;
    open_limits(&w, 64, (struct sched_limits){8, 64, 1, false}, true);
    struct seq *leader = add_own(&w, 0, 500, 1);
    struct seq *follower = add_own(&w, 0, 500, 1);
    for (size_t i = 0; i < 256; i++) {
        step(&w);
        assert_int_equal(follower->phase, SEQ_WAITING);
    }
    assert_int_equal(leader->n_computed, 256);
    step(&w);
    assert_int_equal(follower->phase, SEQ_RUNNING);
    assert_int_equal(follower->n_cached, 256); /* what the leader had by then: 8 pages */
    while (sched_at(w.sched, 0))
        step(&w);
    assert_int_equal(follower->n_tokens, 501);
    close_world(&w);
}

static void a_preempted_sequence_finds_what_it_had_computed(void **state)
{
    (void)state;
    struct world w;
    open_limits(&w, 6, (struct sched_limits){4, 512, 512, false}, true);
    struct seq *a = add_own(&w, 0, 2 * PAGE, 3 * PAGE);
    struct seq *b = add_own(&w, 5000, PAGE + 8, 2 * PAGE);
    while (b->n_preempted == 0)
        step(&w);
    const size_t lost_from = b->n_tokens;
    while (b->phase != SEQ_RUNNING) {
        assert_non_null(sched_at(w.sched, 0));
        step(&w);
    }
    assert_true(b->n_computed > 0 && b->n_computed <= lost_from + 1);
    assert_int_equal(b->n_cached, 0); /* of its first start */
    while (sched_at(w.sched, 0))
        step(&w);
    assert_int_equal(a->n_tokens, 5 * PAGE);
    assert_int_equal(b->n_tokens, 3 * PAGE + 8);
    close_world(&w);
}

static void the_batch_bounds_what_runs(void **state)
{
    (void)state;
    struct world w;
    open_world(&w, 64, 3, 64, 64);
    for (int i = 0; i < 5; i++)
        add(&w, 2, 5);
    step(&w);
    assert_int_equal(sched_n_running(w.sched), 3);
    assert_int_equal(sched_n_waiting(w.sched), 2);
    close_world(&w);
}

static void the_youngest_pays_for_a_missing_page_and_waits_in_front(void **state)
{
    (void)state;
    struct world w;
    open_world(&w, 5, 4, 512, 512);
    struct seq *a = add(&w, PAGE, 40); /* each needs its second page at once */
    struct seq *b = add(&w, PAGE, 20);
    struct seq *c = add(&w, PAGE, 20);
    struct seq *d = add(&w, 2, 20);
    step(&w);
    assert_int_equal(sched_n_running(w.sched), 3);
    step(&w);
    assert_int_equal(c->n_preempted, 1);
    assert_int_equal(c->n_computed, 0);
    assert_int_equal(c->n_pages, 0);
    assert_int_equal(c->n_tokens, PAGE + 1); /* what it answered is kept */
    assert_int_equal(a->n_preempted + b->n_preempted, 0);
    assert_ptr_equal(sched_at(w.sched, 2), c);
    assert_ptr_equal(sched_at(w.sched, 3), d);
    while (sched_at(w.sched, 0))
        step(&w);
    close_world(&w);
}

static void nothing_to_do_is_an_empty_plan(void **state)
{
    (void)state;
    struct world w;
    open_world(&w, 3, 3, 16, 16);
    sched_plan_step(w.sched, &w.plan);
    assert_int_equal(w.plan.n_rows, 0);
    assert_int_equal(w.plan.n_segments, 0);
    close_world(&w);
}

/* The page that a row writes is held by its sequence alone; what is held and what could be had
 * make up the pool. */
static void check_pages(const struct world *w)
{
    size_t holders[64] = {0};
    for (size_t i = 0; i < w->n_seqs; i++)
        for (size_t k = 0; k < w->seqs[i]->n_pages; k++)
            holders[w->seqs[i]->pages[k]]++;
    size_t held = 0;
    for (size_t i = 0; i < 64; i++)
        held += holders[i] > 0;
    for (size_t i = 0; i < w->plan.n_segments; i++) {
        const struct step_segment *s = &w->plan.segments[i];
        for (size_t at = s->position; at < s->position + s->n_rows; at++)
            assert_int_equal(holders[s->seq->pages[at / PAGE]], 1);
    }
    assert_int_equal(held + prefix_pages_available(w->prefixes), kvpool_pages(w->pool));
    assert_true(kvpool_check(w->pool));
    assert_true(prefix_check(w->prefixes));
}

/* What every plan must satisfy, said without the scheduler's code. */
static void check_plan(const struct world *w)
{
    size_t rows = 0, logits = 0;
    bool prompts = false;
    assert_true(w->plan.n_segments <= w->limits.batch);
    for (size_t i = 0; i < w->plan.n_segments; i++) {
        const struct step_segment *s = &w->plan.segments[i];
        const size_t left = s->seq->n_tokens - s->seq->n_computed;
        assert_int_equal(s->row, rows);
        assert_int_equal(s->position, s->seq->n_computed);
        assert_true(s->n_rows >= 1 && s->n_rows <= left);
        assert_true(s->n_rows <= w->limits.chunk_tokens || w->limits.whole_prompts);
        assert_int_equal(s->n_logits, s->n_rows == left);
        if (s->n_logits)
            assert_int_equal(s->logits_row, logits);
        /* Pages for every position it writes. */
        assert_true(s->seq->n_pages * PAGE >= s->position + s->n_rows);
        if (left > 1)
            prompts = true;
        else
            assert_false(prompts);
        rows += s->n_rows;
        logits += s->n_logits;
        for (size_t k = 0; k < i; k++)
            assert_ptr_not_equal(w->plan.segments[k].seq, s->seq);
    }
    assert_int_equal(w->plan.n_rows, rows);
    assert_int_equal(w->plan.n_logits, logits);
    assert_true(rows <= w->limits.step_tokens);
    check_pages(w);
}

/* A decoding sequence that runs is never left out of a step. */
static void check_decoders(const struct world *w)
{
    for (size_t i = 0; i < sched_n_running(w->sched); i++) {
        const struct seq *seq = sched_at(w->sched, i);
        bool planned = false;
        for (size_t k = 0; k < w->plan.n_segments; k++)
            planned = planned || w->plan.segments[k].seq == seq;
        const bool waits = w->limits.whole_prompts && w->plan.n_segments == 1;
        assert_true(planned || waits || seq->n_tokens - seq->n_computed > 1);
    }
}

struct dice {
    uint64_t seed, n;
};

static size_t roll(struct dice *d, size_t limit)
{
    return rng_bits(d->seed, 7, d->n++) % limit;
}

static void simulate(uint64_t seed)
{
    struct dice d = {seed, 0};
    struct world w;
    const size_t pages = 2 + roll(&d, 12), batch = 1 + roll(&d, 8);
    const size_t step_tokens = batch + roll(&d, 40), chunk_tokens = 1 + roll(&d, 50);
    const struct sched_limits limits = {batch, step_tokens, chunk_tokens, roll(&d, 4) == 0};
    open_limits(&w, pages, limits, seed % 3 != 0);
    const size_t room = pages * PAGE < CONTEXT ? pages * PAGE : CONTEXT;
    size_t work = 0, steps = 0;
    while (w.n_seqs < SEQS_MAX || sched_at(w.sched, 0)) {
        if (w.n_seqs < SEQS_MAX && roll(&d, 3) == 0) {
            const size_t n_prompt = 1 + roll(&d, room - 1);
            const size_t rest = room - n_prompt;
            add_own(&w, (int32_t)roll(&d, 3) * 1000, n_prompt,
                    roll(&d, 6) == 0 ? rest : 1 + roll(&d, rest));
            work += room;
        }
        if (sched_at(w.sched, 0) && roll(&d, 40) == 0) /* one is cancelled, wherever it is */
            sched_remove(w.sched, sched_at(w.sched, roll(&d, sched_n_running(w.sched) +
                                                                 sched_n_waiting(w.sched))));
        const struct seq *oldest = sched_n_running(w.sched) ? sched_at(w.sched, 0) : NULL;
        const size_t preempted = oldest ? oldest->n_preempted : 0;
        sched_plan_step(w.sched, &w.plan);
        check_plan(&w);
        check_decoders(&w);
        assert_true(w.plan.n_rows > 0 || !sched_at(w.sched, 0));
        if (oldest) {
            assert_ptr_equal(sched_at(w.sched, 0), oldest);
            assert_int_equal(oldest->n_preempted, preempted);
        }
        carry_out(&w);
        assert_true(++steps < 1000 + 100 * work);
    }
    for (size_t i = 0; i < w.n_seqs; i++)
        assert_int_equal(w.seqs[i]->phase, SEQ_DONE);
    close_world(&w);
}

static uint64_t simulating; /* the seed to repeat a failure with; 0 when none runs */

static void random_loads_keep_every_rule_and_all_finish(void **state)
{
    (void)state;
    for (simulating = 1; simulating <= 500; simulating++)
        simulate(simulating);
    simulating = 0;
}

static int print_seed(void **state)
{
    (void)state;
    if (simulating != 0)
        print_message("    failed with seed %llu\n", (unsigned long long)simulating);
    return 0;
}

static void a_pool_just_large_enough_for_one_finishes_all(void **state)
{
    (void)state;
    struct world w;
    open_world(&w, 4, 8, 64, 32);
    for (size_t i = 0; i < 20; i++)
        add(&w, 1 + i * 5, 4 * PAGE - 1 - i * 5);
    for (size_t steps = 0; sched_at(w.sched, 0); steps++) {
        step(&w);
        assert_true(steps < 10000);
    }
    for (size_t i = 0; i < w.n_seqs; i++)
        assert_int_equal(w.seqs[i]->n_tokens, 4 * PAGE);
    close_world(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(running_sequences_decode_before_any_prompt),
        cmocka_unit_test(a_prompt_is_cut_into_chunks_and_only_its_end_wants_logits),
        cmocka_unit_test(admission_waits_for_the_pages_of_the_whole_prompt),
        cmocka_unit_test(small_ones_pass_one_that_lacks_pages_but_not_for_ever),
        cmocka_unit_test(a_short_prompt_does_not_wait_for_a_long_one),
        cmocka_unit_test(the_prompt_admitted_first_always_gets_a_quarter),
        cmocka_unit_test(whole_prompts_run_alone_and_one_decode_step_comes_between_them),
        cmocka_unit_test(a_stream_of_whole_prompts_does_not_stop_what_decodes),
        cmocka_unit_test(
            followers_wait_for_the_prefix_that_is_being_computed_and_others_do_not),
        cmocka_unit_test(a_follower_of_a_slow_leader_waits_256_steps_and_no_more),
        cmocka_unit_test(a_preempted_sequence_finds_what_it_had_computed),
        cmocka_unit_test(the_batch_bounds_what_runs),
        cmocka_unit_test(the_youngest_pays_for_a_missing_page_and_waits_in_front),
        cmocka_unit_test(nothing_to_do_is_an_empty_plan),
        cmocka_unit_test_teardown(random_loads_keep_every_rule_and_all_finish, print_seed),
        cmocka_unit_test(a_pool_just_large_enough_for_one_finishes_all),
    };
    return cmocka_run_group_tests_name("sched", tests, NULL, NULL);
}
