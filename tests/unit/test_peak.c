/* Peaks, and work that is measured beside them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "peak.h"

enum { N_THREADS = 3 };

struct calls {
    size_t n[N_THREADS];
    size_t n_strangers; /* of a thread that there is not */
};

static void count_call(void *ctx, size_t thread)
{
    struct calls *calls = ctx;
    if (thread < N_THREADS)
        calls->n[thread]++;
    else
        calls->n_strangers++;
    for (volatile int i = 0; i < 100000; i = i + 1)
        ;
}

static void every_thread_works_under_its_own_number(void **state)
{
    (void)state;
    struct calls calls = {0};
    const struct peak_work work = {.round = count_call, .ctx = &calls, .units = 7};
    double rate = 0;
    assert_int_equal(peak_work_rate(&work, N_THREADS, &rate, NULL), 0);
    assert_int_equal(calls.n_strangers, 0);
    size_t n_calls = 0;
    for (size_t i = 0; i < N_THREADS; i++) {
        assert_true(calls.n[i] > 0);
        n_calls += calls.n[i];
    }
    /* A thread computes for 0.2 s or a round longer, so what it did bounds its rate. */
    assert_true(rate > 0);
    assert_true(rate <= 7 * (double)n_calls / 0.2);
}

/* That they are measured; there is no figure to hold them against. */
static void each_instruction_set_has_its_peaks(void **state)
{
    (void)state;
    int (*const peaks[])(enum kernels_isa, size_t, double *,
                         struct err *) = {peak_int8, peak_int16, peak_f32};
    for (int isa = KERNELS_REF; isa <= KERNELS_AVX512; isa++)
        for (size_t i = 0; kernels_has_isa((enum kernels_isa)isa) && i < 3; i++) {
            double rate = 0;
            assert_int_equal(peaks[i]((enum kernels_isa)isa, 1, &rate, NULL), 0);
            assert_true(rate > 0);
        }
}

int main(int argc, char **argv)
{
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_thread_works_under_its_own_number),
        cmocka_unit_test(each_instruction_set_has_its_peaks),
    };
    return cmocka_run_group_tests_name("peak", tests, NULL, NULL);
}
