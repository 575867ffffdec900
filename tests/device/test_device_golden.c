/*
 * The device against the float64 reference over the tiny models. Its weights and activations
 * are bfloat16, so the tolerance is twice the worst that was measured of all models, 0.17 and
 * 0.05: the emulation's arithmetic is that of the kernels, but for the order of sums.
 *
 * Four of the ten models in one mode each; all in both with SHEAF_DEVICE_FULL.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "golden_tiny.h"

static const struct golden_tolerance tolerance = {.max_abs = 0.4, .rms = 0.1, .gap = 0.4};

/* 'e': exact, 'f': fast, 0: not at all. A sanitizer looks at one. */
static char mode_in_small_form(const char *name)
{
#if !defined(__SANITIZE_ADDRESS__)
    if (strstr(name, "llama-q8_0") || strstr(name, "qwen3-q8_0"))
        return 'f';
    if (strstr(name, "qwen2-q8_0"))
        return 'e';
#endif
    return strstr(name, "mix") ? 'e' : 0;
}

static void check_model(const json_t *entry, enum kv_type kv, bool exact)
{
    const char *name = golden_tiny_name(entry);
    struct model *m = golden_open_tiny(name);
    const struct engine_options o = {.n_threads = 1,
                                     .batch = 16,
                                     .step_tokens = 128,
                                     .chunk_tokens = 64,
                                     .context = 512,
                                     .device = "cuda-emu",
                                     .device_exact = exact,
                                     .device_graphs = true};
    struct engine *eng = golden_open_engine(m, "ref", ACT_INT8, kv, &o);
    const struct golden_worst w = golden_tiny_check(eng, m, entry, &tolerance);
    printf("    %-22s %s%s: max abs %.2g, rms %.2g, %zu arg-max equal\n", name,
           kv == KV_F32 ? "f32 " : "bf16", exact ? ", exact" : "", w.max_abs, w.rms,
           w.compared);
    engine_close(eng);
    model_close(m);
}

static void the_device_stays_near_the_reference(void **state)
{
    (void)state;
    const json_t *entries[16];
    const size_t n = golden_tiny_models(entries);
    assert_int_equal(n, 10);
    for (size_t i = 0; i < n; i++) {
        const bool is_full = getenv("SHEAF_DEVICE_FULL") != NULL;
        const char mode = mode_in_small_form(golden_tiny_name(entries[i]));
        if (is_full || mode == 'f')
            check_model(entries[i], KV_BF16, false);
        if (is_full || mode == 'e')
            check_model(entries[i], KV_F32, true);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_device_stays_near_the_reference),
    };
    return cmocka_run_group_tests_name("golden tiny models on a device", tests,
                                       golden_tiny_load, golden_tiny_unload);
}
