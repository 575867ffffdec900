/* What a program of emulated kernels is on a machine without SIMDe. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static void emulated_avx512_kernels_need_libsimde_dev(void **state)
{
    (void)state;
    skip();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(emulated_avx512_kernels_need_libsimde_dev),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
