/*
 * Lookup speculation at its edges: prompts and answers of all lengths that a context allows,
 * ends within a right draft, as many sequences and tenants as an engine takes, pools in which
 * sequences put each other back, engines that are stopped, prefixes from disk; predictions that
 * come true, steps that leave no rows. What drafts cost is not asked, so that there are some in
 * every step. Answers are those of an engine without.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/limits.h"
#include "base/rng.h"
#include "base/size.h"
#include "engine/engine_int.h"
#include "golden.h"

enum { CONTEXT = 96, PAGE = KV_PAGE_TOKENS, JOBS_MAX = 600 };

struct job {
    struct seq_request req; /* without what is in here */
    int32_t prompt[CONTEXT];
    size_t n_prompt;
    int32_t prediction[2 * CONTEXT];
    size_t n_prediction;
    char salt[8];
    struct logit_bias bias;
    int32_t stop_token;

    /* The answer without speculation. */
    enum finish_reason reason;
    int32_t tokens[CONTEXT];
    size_t n_tokens;
};

static struct model *model;
static const char *isa;
static struct job jobs[JOBS_MAX];
static size_t n_jobs;

static size_t page_bytes(void)
{
    const struct kvpool_shape shape = {.n_layers = model->config.n_layers,
                                       .n_kv_heads = model->config.n_kv_heads,
                                       .head_dim = model->config.head_dim,
                                       .type = KV_BF16};
    return kvpool_page_bytes(&shape);
}

static struct engine_options options(size_t batch, size_t n_pages)
{
    return (struct engine_options){.n_threads = 1,
                                   .batch = batch,
                                   .step_tokens = batch + 64,
                                   .chunk_tokens = 48,
                                   .context = CONTEXT,
                                   .kv_bytes = n_pages * page_bytes(),
                                   .prefix_cache = true,
                                   .prefix_tokens_min = 1,
                                   .evicts_by_demand = true,
                                   .shared_attention = true,
                                   .speculation = SPECULATION_LOOKUP,
                                   .draft_always = true};
}

static struct engine *open_engine(const struct engine_options *o)
{
    return golden_open_engine(model, isa, ACT_INT8, KV_BF16, o);
}

static struct job *add_job(size_t n_prompt, size_t max_tokens, uint64_t stream)
{
    assert_true(n_jobs < JOBS_MAX);
    struct job *job = &jobs[n_jobs++];
    *job = (struct job){.n_prompt = n_prompt};
    job->req.max_tokens = max_tokens;
    job->req.ignore_eos = true;
    job->req.sample = sample_params_greedy();
    for (size_t i = 0; i < n_prompt; i++)
        job->prompt[i] = (int32_t)(rng_bits(21, stream, i) % 300);
    return job;
}

static int submit(struct engine *eng, struct job *job, struct err *e)
{
    struct seq_request req = job->req;
    req.prompt = job->prompt;
    req.n_prompt = job->n_prompt;
    req.prediction = job->prediction;
    req.n_prediction = job->n_prediction;
    req.salt = job->salt;
    req.user = job;
    return engine_submit(eng, &req, e);
}

static void submit_all(struct engine *eng)
{
    struct err e = {0};
    for (size_t i = 0; i < n_jobs; i++)
        if (submit(eng, &jobs[i], &e) != 0)
            fail_msg("%s", e.text);
}

static void step(struct engine *eng)
{
    bool worked;
    struct err e = {0};
    if (engine_step(eng, &worked, &e) != 0)
        fail_msg("%s", e.text);
}

static void answer_plainly(void)
{
    struct engine_options o = options(16, 16 * (CONTEXT / PAGE + 1));
    o.speculation = SPECULATION_OFF;
    struct engine *eng = open_engine(&o);
    struct seq_result r;
    submit_all(eng);
    while (engine_active(eng) > 0) {
        if (!engine_collect(eng, &r)) {
            step(eng);
            continue;
        }
        struct job *job = r.user;
        job->reason = r.reason;
        job->n_tokens = r.n_tokens;
        memcpy(job->tokens, r.tokens, r.n_tokens * sizeof r.tokens[0]);
    }
    engine_close(eng);
}

struct totals {
    size_t n_drafted, n_accepted, n_predicted, n_preempted, n_cached, n_steps, n_tokens;
    size_t n_jobs_preempted;
};

static void compare(const struct seq_result *r, struct totals *all)
{
    const struct job *job = r->user;
    if (r->reason != job->reason || r->n_tokens != job->n_tokens ||
        memcmp(r->tokens, job->tokens, r->n_tokens * sizeof r->tokens[0]) != 0)
        fail_msg("job %zu of %zu and %zu tokens: another answer", (size_t)(job - jobs),
                 job->n_prompt, job->n_tokens);
    assert_true(r->n_accepted <= r->n_drafted && r->n_accepted < r->n_tokens);
    all->n_drafted += r->n_drafted;
    all->n_accepted += r->n_accepted;
    all->n_predicted += r->n_predicted;
    all->n_preempted += r->n_preempted;
    all->n_jobs_preempted += r->n_preempted > 0;
    all->n_cached += r->n_cached;
    all->n_steps += r->n_steps;
    all->n_tokens += r->n_tokens;
}

static void answer_all(struct engine *eng, struct totals *all)
{
    struct seq_result r;
    submit_all(eng);
    while (engine_active(eng) > 0) {
        if (engine_collect(eng, &r))
            compare(&r, all);
        else
            step(eng);
    }
}

/* The answer, and what it does not say behind it: nothing must come of that. */
static void predict(struct job *job, size_t n_more)
{
    memcpy(job->prediction, job->tokens, job->n_tokens * sizeof job->tokens[0]);
    job->n_prediction = job->n_tokens + n_more;
    for (size_t i = job->n_tokens; i < job->n_prediction; i++)
        job->prediction[i] = (int32_t)(rng_bits(22, job->n_prompt, i) % 300);
}

/* ------------------------------------------------------------------ tests */

static void prompts_and_answers_may_be_as_short_and_long_as_there_is_room(void **state)
{
    (void)state;
    static const size_t prompts[] = {
        1, 2, 3, 31, 32, 33, PAGE * 2, CONTEXT - 4, CONTEXT - 3, CONTEXT - 2, CONTEXT - 1};
    static const size_t answers[] = {1, 2, 3, 30, CONTEXT};
    n_jobs = 0;
    for (size_t i = 0; i < sizeof prompts / sizeof prompts[0]; i++)
        for (size_t k = 0; k < sizeof answers / sizeof answers[0]; k++)
            add_job(prompts[i], answers[k], i);
    answer_plainly();
    struct totals plain = {0}, predicted = {0};
    const struct engine_options o = options(4, 32);
    struct engine *eng = open_engine(&o);
    answer_all(eng, &plain);
    assert_int_equal(plain.n_predicted, 0);
    /* Now prompts are cached whole, and decode in their first step. */
    for (size_t i = 0; i < n_jobs; i++)
        predict(&jobs[i], i % 2 ? 40 : 0);
    answer_all(eng, &predicted);
    assert_true(predicted.n_predicted > 0 && predicted.n_cached > plain.n_cached);
    assert_true(predicted.n_steps < plain.n_steps);
    engine_close(eng);
}

static void what_is_refused_leaves_nothing_behind(void **state)
{
    (void)state;
    n_jobs = 0;
    struct job *job = add_job(20, 10, 1);
    answer_plainly();
    const struct engine_options o = options(2, 16);
    struct engine *eng = open_engine(&o);
    for (size_t i = 0; i < 2 * CONTEXT; i++)
        job->prediction[i] = (int32_t)i;
    job->n_prediction = 2 * CONTEXT;
    const size_t n_prompt = job->n_prompt;
    job->n_prompt = 0;
    assert_int_equal(submit(eng, job, NULL), ERR_INVALID);
    job->n_prompt = CONTEXT;
    assert_int_equal(submit(eng, job, NULL), ERR_CONTEXT);
    job->n_prompt = n_prompt;
    job->prompt[3] = -1;
    assert_int_equal(submit(eng, job, NULL), ERR_INVALID);
    job->prompt[3] = (int32_t)(rng_bits(21, 1, 3) % 300);
    assert_int_equal(engine_active(eng), 0);
    struct totals all = {0};
    answer_all(eng, &all);
    engine_close(eng); /* all room for predictions has come back, or it stops the program */
}

static void an_end_within_a_right_draft_is_the_end(void **state)
{
    (void)state;
    n_jobs = 0;
    for (size_t i = 0; i < 60; i++) {
        struct job *job = add_job(10, 60, i);
        job->req.sample.temperature = 0.8f;
        job->req.sample.seed = i;
        job->req.ignore_eos = false;
        job->bias = (struct logit_bias){tokenizer_eos(model->tokenizer), (float)(i % 8)};
        job->req.sample.bias = &job->bias;
        job->req.sample.n_bias = 1;
    }
    answer_plainly();
    for (size_t i = 0; i < n_jobs; i++) { /* others end where they say something */
        struct job *job = &jobs[i];
        predict(job, 40);
        job->stop_token = job->tokens[job->n_tokens / 2];
        job->req.stop_tokens = &job->stop_token;
        job->req.n_stop_tokens = i % 2;
    }
    answer_plainly();
    size_t n_ends = 0, n_stops = 0;
    for (size_t i = 0; i < n_jobs; i++) {
        n_ends += jobs[i].reason == FINISH_EOS && jobs[i].n_tokens > 4;
        n_stops += jobs[i].reason == FINISH_STOP && jobs[i].n_tokens > 4;
    }
    assert_true(n_ends >= 5 && n_stops >= 5);
    struct totals all = {0};
    const struct engine_options o = options(8, 64);
    struct engine *eng = open_engine(&o);
    answer_all(eng, &all);
    assert_true(4 * all.n_accepted > 3 * (all.n_tokens - 2 * n_jobs));
    engine_close(eng);
}

/* Every job begins as all others do; under its own salt, one of its neighbours', or none. */
static void
as_many_tenants_and_sequences_as_there_can_be_share_no_more_than_they_may(void **state)
{
    (void)state;
    n_jobs = 0;
    for (size_t i = 0; i < ENGINE_SEQS_MAX + 100; i++) {
        struct job *job = add_job(40 + i % 3, 1 + i % 20, i % 3);
        job->prompt[38] = (int32_t)(i % 7);
        if (i % 4)
            snprintf(job->salt, sizeof job->salt, "t%zu", i % 4 == 1 ? i : i % 10);
    }
    answer_plainly();
    for (size_t i = 0; i < n_jobs; i += 2)
        predict(&jobs[i], i % 5 * 20);
    static const size_t pools[] = {4, 40, ENGINE_SEQS_MAX * 3};
    for (size_t i = 0; i < 3; i++) {
        struct totals all = {0};
        const struct engine_options o = options(ENGINE_SEQS_MAX, pools[i]);
        struct engine *eng = open_engine(&o);
        answer_all(eng, &all);
        assert_true(all.n_accepted > 0 || pools[i] > 40);
        engine_close(eng);
    }
}

/* Each grows from one page to three; the pool holds three and a few. */
static void sequences_that_put_each_other_back_keep_their_drafts(void **state)
{
    (void)state;
    n_jobs = 0;
    for (size_t i = 0; i < 24; i++)
        add_job(8 + i % 5, 80, i);
    answer_plainly();
    for (size_t i = 0; i < n_jobs; i += 2)
        predict(&jobs[i], 10);
    size_t n_jobs_preempted = 0;
    for (size_t n_pages = 3; n_pages <= 24; n_pages++) {
        struct totals all = {0};
        struct engine_options o = options(12, n_pages);
        o.prefix_cache = n_pages % 2;
        o.draft_tokens = n_pages * 9;
        struct engine *eng = open_engine(&o);
        answer_all(eng, &all);
        assert_true(all.n_accepted > 0);
        n_jobs_preempted = size_max(n_jobs_preempted, all.n_jobs_preempted);
        engine_close(eng);
    }
    assert_true(n_jobs_preempted >= 12);
}

static void an_engine_that_is_stopped_in_the_middle_answers_the_same_after(void **state)
{
    (void)state;
    n_jobs = 0;
    for (size_t i = 0; i < 20; i++)
        add_job(30, 50, i % 6);
    answer_plainly();
    for (size_t i = 0; i < n_jobs; i++)
        predict(&jobs[i], 10);
    const struct engine_options o = options(6, 20);
    struct engine *eng = open_engine(&o);
    for (size_t n_steps = 0; n_steps < 12; n_steps++) {
        struct seq_result r;
        submit_all(eng);
        for (size_t i = 0; i < n_steps; i++)
            step(eng);
        engine_cancel_all(eng);
        bool worked;
        assert_int_equal(engine_step(eng, &worked, NULL), 0);
        while (engine_collect(eng, &r))
            ;
        assert_int_equal(engine_active(eng), 0);
    }
    struct totals all = {0};
    answer_all(eng, &all);
    assert_true(all.n_accepted > 0);
    submit_all(eng); /* and one may be closed with them */
    for (size_t i = 0; i < 5; i++)
        step(eng);
    engine_close(eng);
}

static void prefixes_from_disk_are_gone_on_from(void **state)
{
    (void)state;
    char folder[] = "/tmp/sheaf-lookup-XXXXXX";
    assert_non_null(mkdtemp(folder));
    n_jobs = 0;
    for (size_t i = 0; i < 12; i++) {
        struct job *job = add_job(2 * PAGE + 4, 25, i % 3);
        job->prompt[2 * PAGE + 3] = (int32_t)i;
    }
    answer_plainly();
    for (size_t i = 0; i < n_jobs; i += 3)
        predict(&jobs[i], 0);
    uint64_t n_loaded = 0;
    for (size_t i = 0; i < 3; i++) {
        struct totals all = {0};
        struct engine_options o = options(4, i == 2 ? 7 : 40);
        o.kv_disk = folder;
        o.kv_disk_bytes = 1 << 28;
        o.kv_disk_tokens_min = PAGE;
        o.kv_disk_always = true;
        struct engine *eng = open_engine(&o);
        answer_all(eng, &all);
        assert_true(all.n_accepted > 0);
        n_loaded = engine_counters(eng).disk.tokens_loaded;
        assert_true((n_loaded > 0) == (i > 0));
        engine_close(eng);
    }
    char command[64];
    snprintf(command, sizeof command, "rm -r %s", folder);
    assert_int_equal(system(command), 0);
}

static struct totals answer_with(const struct engine_options *o)
{
    struct totals all = {0};
    struct engine *eng = open_engine(o);
    answer_all(eng, &all);
    engine_close(eng);
    return all;
}

/* The prompt's step yields one token; others one more than what a source may say at once. */
static void a_right_prediction_makes_few_steps(void **state)
{
    (void)state;
    n_jobs = 0;
    struct job *job = add_job(20, 61, 30);
    answer_plainly();
    struct engine_options o = options(1, 8);
    const struct totals without = answer_with(&o);
    assert_int_equal(without.n_predicted, 0);
    predict(job, 0);
    const struct totals right = answer_with(&o);
    assert_true(right.n_steps <= 6 && right.n_steps < without.n_steps);
    assert_true(right.n_predicted >= 50 && right.n_accepted >= 50);
    /* Where one token is another, the rest is found again. */
    job->prediction[30] ^= 1;
    assert_true(answer_with(&o).n_steps <= right.n_steps + 3);
    o.speculation = SPECULATION_OFF;
    const struct totals off = answer_with(&o);
    assert_int_equal(off.n_drafted + off.n_predicted, 0);
}

/* Those that the user gives are refused where there is no room; those the engine chooses for
 * itself are as many as there is room for. */
static void drafts_take_the_rows_that_steps_leave(void **state)
{
    (void)state;
    n_jobs = 0;
    struct job *job = add_job(20, 40, 31);
    answer_plainly();
    predict(job, 0);
    struct engine_options o = options(1, 8);
    o.step_tokens = STEP_ROWS_MAX - 10;
    struct engine *eng = open_engine(&o);
    assert_int_equal(eng->options.draft_tokens, 10);
    engine_close(eng);
    assert_true(answer_with(&o).n_accepted > 0);
    o.step_tokens = STEP_ROWS_MAX;
    assert_int_equal(answer_with(&o).n_drafted, 0);
    o.draft_always = false;
    assert_int_equal(answer_with(&o).n_drafted, 0);
    o.draft_tokens = 1;
    struct err e = {0};
    assert_int_equal(engine_open(model, &o, &eng, &e), ERR_CONFIG);
    assert_non_null(strstr(e.text, "1 drafted tokens and step_tokens 4096"));
    o.step_tokens = 64;
    o.draft_tokens = 0;
    eng = open_engine(&o);
    assert_int_equal(eng->options.draft_tokens, DRAFT_NODES_MAX);
    engine_close(eng);
}

static int load(void **state)
{
    (void)state;
    const char *isas[3];
    const size_t n_isas = golden_isas(isas);
    isa = isas[n_isas - 1];
    model = golden_open_tiny("tiny-llama-q4_1.gguf");
    return 0;
}

static int unload(void **state)
{
    (void)state;
    model_close(model);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(prompts_and_answers_may_be_as_short_and_long_as_there_is_room),
        cmocka_unit_test(what_is_refused_leaves_nothing_behind),
        cmocka_unit_test(an_end_within_a_right_draft_is_the_end),
        cmocka_unit_test(
            as_many_tenants_and_sequences_as_there_can_be_share_no_more_than_they_may),
        cmocka_unit_test(sequences_that_put_each_other_back_keep_their_drafts),
        cmocka_unit_test(an_engine_that_is_stopped_in_the_middle_answers_the_same_after),
        cmocka_unit_test(prefixes_from_disk_are_gone_on_from),
        cmocka_unit_test(a_right_prediction_makes_few_steps),
        cmocka_unit_test(drafts_take_the_rows_that_steps_leave),
    };
    return cmocka_run_group_tests_name("lookup_edges", tests, load, unload);
}
