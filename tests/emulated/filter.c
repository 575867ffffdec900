/* A flawed program runs the one test that must fail, named by SHEAF_TEST_FILTER. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

__attribute__((constructor)) static void choose_test(void)
{
    cmocka_set_test_filter(getenv("SHEAF_TEST_FILTER"));
}
