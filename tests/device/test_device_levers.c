/*
 * On a device that computes exactly the levers never change an answer either: against one plain
 * run on the same device, one sequence at a time, without a cache. Tokens and text are compared
 * byte for byte; each lever must be seen to have worked. Each runs by launches and by graphs.
 * That the CPU answers otherwise shows that it was the device which answered.
 *
 * The emulation is slow: two levers of one model (a sanitizer looks at one); all of all, and
 * two of one in FP8, with SHEAF_DEVICE_FULL.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/kvpool.h"
#include "golden.h"
#include "levers.h"

static const char *const models[] = {"tiny-llama-q4_1.gguf", "tiny-qwen3-q8_0.gguf",
                                     "tiny-qwen2-q8_0.gguf", "tiny-llama-mix.gguf"};

static bool is_full(void)
{
    return getenv("SHEAF_DEVICE_FULL") != NULL;
}

#if defined(__SANITIZE_ADDRESS__)
enum { N_SMALL = 1 };
#else
enum { N_SMALL = 2 };
#endif

/* These between them chunk, share, evict, preempt, draft in branches and move tokens. */
static bool is_in_small_form(const char *lever)
{
    if (N_SMALL == 1)
        return strcmp(lever, "heads and lookup, shared attention, preempted") == 0;
    return strcmp(lever, "shared attention, evicted and preempted, two threads, shuffled") ==
               0 ||
           strcmp(lever, "heads and lookup, shared attention, preempted") == 0;
}

struct asked {
    const char *name, *isa, *weights;
    struct model *model, *drafting;
    enum kv_type kv;
};

static struct answers *answer_alike(const struct asked *a, const struct lever *lever,
                                    const struct answers *want)
{
    struct answers *got =
        levers_answer(a->model, a->drafting, a->isa, "cuda-emu", a->kv, lever, 42);
    const int job = levers_first_difference(want, got);
    if (job >= 0)
        fail_msg("%s, %s, graphs %s: job %d differs", a->name, lever->name,
                 lever->options.device_graphs ? "on" : "off", job);
    assert_int_equal(got->device.graphs_replayed > 0, lever->options.device_graphs);
    const bool has_heads = lever->options.speculation & SPECULATION_HEADS;
    assert_true((got->device.of[DEVICE_GUESS].launches > 0) == has_heads);
    return got;
}

/* Whether a pool runs out while jobs are answered hangs on where their answers end, which
 * differs from model to model: one to which it did not happen has it in a smaller pool. */
static void check_lever(const struct asked *a, struct lever lever, const struct answers *want)
{
    enum { N_SMALLER = 2 };
    struct answers *got = answer_alike(a, &lever, want);
    for (int i = 0; i < N_SMALLER && lever.pool_tokens && !levers_shows_signs(&lever, got);
         i++) {
        lever.pool_tokens -= KV_PAGE_TOKENS;
        free(got);
        got = answer_alike(a, &lever, want);
    }
    levers_check_signs(&lever, got);
    free(got);
}

static void check_model(const char *name, enum kv_type kv, const char *weights)
{
    const char *isas[3];
    const char *isa = isas[golden_isas(isas) - 1]; /* of what drafts */
    struct model *m = golden_open_tiny(name);
    struct model *drafting = golden_open_tiny(levers_draft_model(name));
    struct answers *cpu = levers_answer(m, NULL, isa, NULL, kv, &lever_plain, 42);
    struct lever plain = lever_plain;
    plain.options.device_weights = weights;
    struct answers *want = levers_answer(m, NULL, isa, "cuda-emu", kv, &plain, 42);
    assert_true(levers_first_difference(cpu, want) >= 0);
    assert_int_equal(want->device.graphs_replayed, 0);
    const struct asked asked = {name, isa, weights, m, drafting, kv};
    const bool takes_all = is_full() && strcmp(weights, "fp8") != 0;
    size_t n = 0;
    for (size_t i = 0; i < 2 * n_levers; i++) {
        struct lever lever = levers[i / 2];
        if (!takes_all && !is_in_small_form(lever.name))
            continue;
        lever.options.device_graphs = i % 2 == 1;
        lever.options.device_weights = weights;
        check_lever(&asked, lever, want);
        n++;
    }
    assert_int_equal(n, 2 * (takes_all ? n_levers : N_SMALL));
    printf("    %s, %s weights, KV %s: %zu levers with graphs and without, %d jobs the same\n",
           name, weights, kv == KV_F32 ? "f32" : "bf16", n / 2, N_JOBS);
    free(want);
    free(cpu);
    model_close(drafting);
    model_close(m);
}

static void no_lever_changes_an_answer(void **state)
{
    (void)state;
    const size_t n = is_full() ? sizeof models / sizeof models[0] : 1;
    for (size_t i = 0; i < n; i++)
        check_model(models[i], KV_BF16, "stored");
    if (!is_full())
        return;
    check_model(models[0], KV_F32, "stored");
    check_model("tiny-llama-mix.gguf", KV_BF16, "fp8");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_lever_changes_an_answer),
    };
    return cmocka_run_group_tests_name("levers on a device", tests, NULL, NULL);
}
