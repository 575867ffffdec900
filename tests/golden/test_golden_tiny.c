/*
 * The tiny models against the float64 reference (tests/golden/tiny/README.md), for each kernel
 * set. Tolerances are twice to three times what independent engines were measured at: float32
 * throughout, max abs 2e-4; 8-bit activations, rms 0.25 and arg-max where the gap is 0.6 or
 * more.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "golden_tiny.h"

static const struct golden_tolerance float32_tolerance = {
    .max_abs = 2e-4, .rms = 2e-5, .gap = 0.005};
static const struct golden_tolerance int8_tolerance = {.max_abs = 1e9, .rms = 0.25, .gap = 0.6};

static void check_model(const json_t *entry, const char *isa, enum act_kind act)
{
    const char *name = golden_tiny_name(entry);
    struct model *m = golden_open_tiny(name);
    struct engine *eng = golden_open_engine(m, isa, act, KV_F32, NULL);
    const struct golden_worst w =
        golden_tiny_check(eng, m, entry, act == ACT_F32 ? &float32_tolerance : &int8_tolerance);
    printf("    %-22s %-6s %s: max abs %.2g, rms %.2g, %zu arg-max equal\n", name, isa,
           act == ACT_F32 ? "float32" : "int8   ", w.max_abs, w.rms, w.compared);
    engine_close(eng);
    model_close(m);
}

static void check_all(enum act_kind act)
{
    const char *isas[3];
    const size_t n_isas = golden_isas(isas);
    const json_t *entries[16];
    const size_t n_models = golden_tiny_models(entries);
    assert_int_equal(n_models, 10);
    for (size_t i = 0; i < n_models; i++)
        for (size_t k = 0; k < n_isas; k++)
            check_model(entries[i], isas[k], act);
}

static void float32_engine_equals_the_reference(void **state)
{
    (void)state;
    check_all(ACT_F32);
}

static void int8_activations_stay_near_the_reference(void **state)
{
    (void)state;
    check_all(ACT_INT8);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(float32_engine_equals_the_reference),
        cmocka_unit_test(int8_activations_stay_near_the_reference),
    };
    return cmocka_run_group_tests_name("golden tiny models", tests, golden_tiny_load,
                                       golden_tiny_unload);
}
