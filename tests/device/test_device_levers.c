/*
 * On a device that computes exactly the levers never change an answer either: against one plain
 * run on the same device, one sequence at a time, without a cache. Tokens and text are compared
 * byte for byte; each lever must be seen to have worked.
 *
 * The emulation is slow: every third lever of one model, and all of all with
 * SHEAF_DEVICE_FULL.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "golden.h"
#include "levers.h"

static const char *const models[] = {"tiny-llama-q4_1.gguf", "tiny-qwen3-q8_0.gguf",
                                     "tiny-qwen2-q8_0.gguf", "tiny-llama-mix.gguf"};

enum { FEW_LEVERS = 3 };

static bool is_full(void)
{
    return getenv("SHEAF_DEVICE_FULL") != NULL;
}

static void check_model(const char *name, enum kv_type kv, size_t first, size_t every)
{
    const char *isas[3];
    const char *isa = isas[golden_isas(isas) - 1]; /* of what drafts */
    struct model *m = golden_open_tiny(name);
    struct model *drafting = golden_open_tiny(levers_draft_model(name));
    struct answers *want = levers_answer(m, NULL, isa, "cuda-emu", kv, &lever_plain, 42);
    for (size_t i = first; i < n_levers; i += every) {
        struct answers *got = levers_answer(m, drafting, isa, "cuda-emu", kv, &levers[i], 42);
        const int job = levers_first_difference(want, got);
        if (job >= 0)
            fail_msg("%s, %s: job %d differs", name, levers[i].name, job);
        levers_check_signs(&levers[i], got);
        free(got);
    }
    free(want);
    model_close(drafting);
    model_close(m);
}

static void no_lever_changes_an_answer_over_a_bf16_cache(void **state)
{
    (void)state;
    const size_t n = is_full() ? sizeof models / sizeof models[0] : 1;
    for (size_t i = 0; i < n; i++)
        check_model(models[i], KV_BF16, 0, is_full() ? 1 : FEW_LEVERS);
}

static void no_lever_changes_an_answer_over_a_f32_cache(void **state)
{
    (void)state;
    const size_t n = is_full() ? 3 : 1;
    for (size_t i = 0; i < n; i++)
        check_model(models[i], KV_F32, is_full() ? 0 : 1, is_full() ? 1 : 4 * FEW_LEVERS);
}

/* The twin: what must differ is seen to differ. That answers of the CPU are others than those
 * of the device shows besides that it was the device which answered. */
static void the_comparison_sees_another_seed_and_another_device(void **state)
{
    (void)state;
    struct model *m = golden_open_tiny(models[0]);
    struct answers *a = levers_answer(m, NULL, "ref", "cuda-emu", KV_BF16, &lever_plain, 42);
    struct answers *b = levers_answer(m, NULL, "ref", "cuda-emu", KV_BF16, &lever_plain, 43);
    struct answers *c = levers_answer(m, NULL, "ref", NULL, KV_BF16, &lever_plain, 42);
    assert_int_equal(levers_first_difference(a, b), 1); /* job 0 is greedy */
    assert_true(levers_first_difference(a, c) >= 0);
    free(a);
    free(b);
    free(c);
    model_close(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_lever_changes_an_answer_over_a_bf16_cache),
        cmocka_unit_test(no_lever_changes_an_answer_over_a_f32_cache),
        cmocka_unit_test(the_comparison_sees_another_seed_and_another_device),
    };
    return cmocka_run_group_tests_name("levers on a device", tests, NULL, NULL);
}
