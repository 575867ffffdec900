/*
 * Every allocation of opening an engine, submitting and answering fails in turn, once and from
 * then on for good: the outcome is the same answer or ERR_NOMEM, and nothing leaks.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/seq.h"
#include "failing_alloc.h"
#include "golden.h"
#include "heads_make.h"

enum { N_OUT = 80, N_JOBS = 3 };

static struct model *model;
static struct heads *heads;

/* By job, for measured times may decide whose answer comes first. */
struct outcome {
    size_t n_answers;
    size_t n_tokens[N_JOBS];
    int32_t tokens[N_JOBS][N_OUT];
};

static void submit_all(struct engine *eng, int *worst, struct err *e)
{
    static size_t jobs[N_JOBS];
    static const int32_t prompt[] = {5, 6, 7, 8};
    static const char *const stops[] = {"never said", "nor this"};
    static const int32_t stop_tokens[] = {9999};
    static const struct logit_bias bias[] = {{5, 1}};
    static const int32_t prediction[] = {5, 6, 5, -1, 9999};
    struct seq_request req = {.prompt = prompt,
                              .n_prompt = 4,
                              .max_tokens = N_OUT,
                              .ignore_eos = true,
                              .stops = stops,
                              .n_stops = 2,
                              .stop_tokens = stop_tokens,
                              .n_stop_tokens = 1,
                              .prediction = prediction,
                              .n_prediction = 5,
                              .sample = sample_params_greedy()};
    req.sample.bias = bias;
    req.sample.n_bias = 1;
    static const int32_t said_at_once[] = {5};
    static const struct logit_bias sure[] = {{5, 1000}};
    for (size_t i = 0; i < N_JOBS; i++) {
        if (i == N_JOBS - 1) { /* ends with its first token, whose text is taken back */
            req.stop_tokens = said_at_once;
            req.sample.bias = sure;
        }
        jobs[i] = i;
        req.user = &jobs[i];
        const int rc = engine_submit(eng, &req, e);
        *worst = rc != 0 ? rc : *worst;
    }
}

/* That the last three tokens come again. */
static void propose(void *ctx, const struct seq *seq, size_t n_max, struct draft *out)
{
    (void)ctx;
    int node = DRAFT_ROOT;
    for (size_t i = 0; i < 3 && i < n_max; i++)
        node = draft_add(out, node, seq->tokens[seq->n_tokens - 3 + i], DRAFT_SELF, 0.5f);
}

/* Goes on after a failure, as far as it gets: the engine must stay whole. */
static int open_and_answer(unsigned speculation, struct outcome *out, struct err *e)
{
    struct engine_options o = {.n_threads = 2,
                               .batch = 2,
                               .step_tokens = 16,
                               .chunk_tokens = 16,
                               .context = 128,
                               .draft_tokens = 8,
                               .proposer = {.propose = propose}};
    if (speculation != SPECULATION_OFF) {
        o.proposer.propose = NULL;
        o.speculation = speculation;
        o.heads = heads;
        o.draft_model = model;
    }
    struct engine *eng = NULL;
    int worst = engine_open(model, &o, &eng, e);
    if (worst != 0)
        return worst;
    submit_all(eng, &worst, e);
    while (engine_active(eng) > 0) {
        struct seq_result r;
        if (engine_collect(eng, &r)) {
            out->n_answers++;
            const size_t job = *(const size_t *)r.user;
            memcpy(out->tokens[job], r.tokens, r.n_tokens * sizeof r.tokens[0]);
            out->n_tokens[job] = r.n_tokens;
            if (r.reason == FINISH_NOMEM)
                worst = ERR_SET(e, ERR_NOMEM, "an answer was cut");
            continue;
        }
        bool worked;
        const int rc = engine_step(eng, &worked, e);
        worst = rc != 0 ? rc : worst;
    }
    engine_close(eng);
    return worst;
}

/* SPECULATION_OFF: with a proposer. */
static void fail_each_allocation(unsigned speculation)
{
    struct outcome good = {0};
    struct err e = {0};
    assert_int_equal(open_and_answer(speculation, &good, &e), 0);
    assert_int_equal(good.n_answers, N_JOBS);
    for (int mode = 0; mode < 2; mode++) {
        int code = ERR_NOMEM;
        long n = 0;
        while (code != 0) {
            struct outcome out = {0};
            err_clear(&e);
            failing_alloc_arm(++n, mode == 1);
            code = open_and_answer(speculation, &out, &e);
            failing_alloc_disarm();
            if (code == 0) {
                assert_memory_equal(&out, &good, sizeof out);
            } else {
                assert_int_equal(code, ERR_NOMEM);
                assert_int_equal(e.code, ERR_NOMEM);
                assert_true(strlen(e.text) > 0);
            }
        }
        assert_true(n > 40);
        assert_true(failing_alloc_asked() < (size_t)n); /* it was not reached */
    }
}

static void a_failed_allocation_is_nomem_and_never_another_answer(void **state)
{
    (void)state;
    fail_each_allocation(SPECULATION_OFF);
}

static void nor_is_one_of_lookup_speculation(void **state)
{
    (void)state;
    fail_each_allocation(SPECULATION_LOOKUP);
}

static void nor_is_one_of_heads(void **state)
{
    (void)state;
    fail_each_allocation(SPECULATION_HEADS);
}

static void nor_is_one_of_a_draft_model(void **state)
{
    (void)state;
    fail_each_allocation(SPECULATION_MODEL);
}

static int load(void **state)
{
    (void)state;
    model = golden_open_tiny("tiny-llama-q4_1.gguf");
    heads = heads_make(
        model,
        &(struct heads_shape){.n_heads = 2, .n_blocks = 1, .n_draft = 100, .scale = 0.03125f});
    return 0;
}

static int unload(void **state)
{
    (void)state;
    heads_close(heads);
    model_close(model);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_failed_allocation_is_nomem_and_never_another_answer),
        cmocka_unit_test(nor_is_one_of_lookup_speculation),
        cmocka_unit_test(nor_is_one_of_heads),
        cmocka_unit_test(nor_is_one_of_a_draft_model),
    };
    return cmocka_run_group_tests_name("engine_alloc", tests, load, unload);
}
