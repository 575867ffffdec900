/*
 * The levers never change an answer: batch, chunk, step and pool size, threads, order of
 * submission, preemption, prefix cache, eviction, shared attention, speculation and kernel set
 * against one plain run (reference kernels, one sequence at a time, no cache, one thread).
 * Tokens and text are compared byte for byte; each lever must be seen to have worked.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "golden.h"
#include "levers.h"

static const char *const models[] = {"tiny-llama-q4_1.gguf", "tiny-llama-mix.gguf",
                                     "tiny-qwen2-q8_0.gguf", "tiny-qwen3-q8_0.gguf"};

/* A sanitizer looks at one model and one kernel set here; the other tests show it the rest. So
 * does a build of nothing but the reference kernels, which the other builds have too. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { N_MODELS = 1, IS_SLOW = 1 };
#elif defined(SHEAF_REF_ONLY)
enum { N_MODELS = 2, IS_SLOW = 0 };
#else
enum { N_MODELS = sizeof models / sizeof models[0], IS_SLOW = 0 };
#endif

static void check_model(const char *name, enum kv_type kv)
{
    struct model *m = golden_open_tiny(name);
    struct model *drafting = golden_open_tiny(levers_draft_model(name));
    const char *isas[3];
    const size_t n_isas = golden_isas(isas);
    struct answers *want = levers_answer(m, NULL, "ref", NULL, kv, &lever_plain, 42);
    for (size_t k = 0; k < n_isas; k++) {
        for (size_t i = 0; i < n_levers; i++) {
            if (k + 1 < n_isas &&
                (IS_SLOW || i % 4 != k)) /* the twins' bits are equal: a sample */
                continue;
            struct answers *got = levers_answer(m, drafting, isas[k], NULL, kv, &levers[i], 42);
            const int job = levers_first_difference(want, got);
            if (job >= 0)
                fail_msg("%s, %s kernels, %s: job %d differs", name, isas[k], levers[i].name,
                         job);
            levers_check_signs(&levers[i], got);
            free(got);
        }
    }
    free(want);
    model_close(drafting);
    model_close(m);
}

static void no_lever_changes_an_answer_over_a_bf16_cache(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_MODELS; i++)
        check_model(models[i], KV_BF16);
}

static void no_lever_changes_an_answer_over_a_f32_cache(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_MODELS; i++)
        if (!strstr(models[i],
                    "mix")) /* the large one: its weights know nothing of the cache */
            check_model(models[i], KV_F32);
}

/* One model: what it adds to the others is the same for all. */
static void no_lever_changes_an_answer_over_an_int8_cache(void **state)
{
    (void)state;
    check_model("tiny-llama-q4_1.gguf", KV_INT8);
}

/* The twin: what must differ is seen to differ, and only there. */
static void the_comparison_sees_another_seed(void **state)
{
    (void)state;
    struct model *m = golden_open_tiny(models[0]);
    struct answers *a = levers_answer(m, NULL, "ref", NULL, KV_BF16, &lever_plain, 42);
    struct answers *b = levers_answer(m, NULL, "ref", NULL, KV_BF16, &lever_plain, 43);
    assert_int_equal(levers_first_difference(a, b), 1); /* job 0 is greedy */
    memcpy(b, a, sizeof *b);
    assert_int_equal(levers_first_difference(a, b), -1);
    b->job[7].tokens[b->job[7].n_tokens - 1] ^= 1;
    assert_int_equal(levers_first_difference(a, b), 7);
    free(a);
    free(b);
    model_close(m);
}

/* Rows of one chunk are bounded by the batch. */
static void logits_are_the_same_bits_for_every_chunk(void **state)
{
    (void)state;
    enum { N = 101 };
    int32_t ids[N];
    for (size_t i = 0; i < N; i++)
        ids[i] = (int32_t)(rng_bits(6, 0, i) % 300);
    for (size_t i = 0; i < sizeof models / sizeof models[0]; i++) {
        struct model *m = golden_open_tiny(models[i]);
        const size_t n = N * m->config.n_vocab;
        float *logits[3];
        static const size_t chunks[3] = {1, 64, 13};
        for (size_t k = 0; k < 3; k++) {
            const struct engine_options o = {
                .n_threads = 1 + k % 2, .batch = 64, .chunk_tokens = chunks[k]};
            const char *isas[3];
            const size_t n_isas = golden_isas(isas);
            struct engine *eng = golden_open_engine(m, isas[k % n_isas], ACT_INT8, KV_BF16, &o);
            struct err e = {0};
            logits[k] = malloc(n * sizeof(float));
            assert_int_equal(engine_logits(eng, ids, N, logits[k], &e), 0);
            engine_close(eng);
        }
        assert_memory_equal(logits[0], logits[1], n * sizeof(float));
        assert_memory_equal(logits[0], logits[2], n * sizeof(float));
        for (size_t k = 0; k < 3; k++)
            free(logits[k]);
        model_close(m);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_lever_changes_an_answer_over_a_bf16_cache),
        cmocka_unit_test(no_lever_changes_an_answer_over_a_f32_cache),
        cmocka_unit_test(no_lever_changes_an_answer_over_an_int8_cache),
        cmocka_unit_test(the_comparison_sees_another_seed),
        cmocka_unit_test(logits_are_the_same_bits_for_every_chunk),
    };
    return cmocka_run_group_tests_name("equality", tests, NULL, NULL);
}
