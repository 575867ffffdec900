/*
 * The twin tests can fail: programs whose emulated kernels have one wrong intrinsic (flaws.h)
 * run the test that must notice it, and the same test passes over right ones.
 */
#include <fcntl.h>
#include <setjmp.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "kernels.h"

extern char **environ;

/* The program test_<subject>_<flaw>, and its test that must fail. */
struct flaw {
    const char *subject;
    const char *flaw;
    const char *test;
};

/* Exit status of the program's one test: the number of tests that failed. */
static int run_program(const char *subject, const char *flaw, const char *test)
{
    char path[512];
    snprintf(path, sizeof path, "%s/test_%s_%s", PROGRAM_FOLDER, subject, flaw);
    setenv("SHEAF_TEST_FILTER", test, 1);
    posix_spawn_file_actions_t quiet;
    posix_spawn_file_actions_init(&quiet);
    posix_spawn_file_actions_addopen(&quiet, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
    posix_spawn_file_actions_adddup2(&quiet, STDOUT_FILENO, STDERR_FILENO);
    pid_t pid;
    char *const argv[] = {path, NULL};
    assert_int_equal(posix_spawn(&pid, path, &quiet, NULL, argv, environ), 0);
    posix_spawn_file_actions_destroy(&quiet);
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void twin_test_notices(const struct flaw *f)
{
    if (!kernels_has_isa(KERNELS_AVX2))
        skip();
    assert_int_equal(run_program(f->subject, f->flaw, f->test), 1);
    assert_int_equal(run_program(f->subject, "flawless", f->test), 0);
}

static void a_product_rounded_before_its_sum_is_noticed_in_rmsnorm(void **state)
{
    (void)state;
    twin_test_notices(
        &(struct flaw){"small_ops", "unfused", "rmsnorm_is_its_formula_in_every_twin"});
}

static void a_product_rounded_before_its_sum_is_noticed_in_exp(void **state)
{
    (void)state;
    twin_test_notices(
        &(struct flaw){"small_ops", "unfused", "exp_has_the_same_bits_in_every_twin"});
}

static void a_product_rounded_before_its_sum_is_noticed_in_attention(void **state)
{
    (void)state;
    twin_test_notices(&(struct flaw){"attend", "unfused", "twins_agree_on_extreme_scores"});
}

static void halves_rounded_away_from_zero_are_noticed_in_attention(void **state)
{
    (void)state;
    twin_test_notices(&(struct flaw){"attend", "rounded_away",
                                     "weights_half_way_between_codes_become_the_even_one"});
}

static void one_bit_of_one_lane_is_noticed_in_silu(void **state)
{
    (void)state;
    twin_test_notices(
        &(struct flaw){"small_ops", "bit", "silu_mul_is_its_formula_in_every_twin"});
}

static void byte_products_that_saturate_are_noticed_at_extreme_codes(void **state)
{
    (void)state;
    twin_test_notices(
        &(struct flaw){"matmul", "saturated", "twins_agree_when_all_codes_are_extreme"});
}

static void halves_rounded_away_from_zero_are_noticed_in_quantisation(void **state)
{
    (void)state;
    twin_test_notices(
        &(struct flaw){"matmul", "rounded_away", "quantize_twins_give_the_references_bits"});
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_product_rounded_before_its_sum_is_noticed_in_rmsnorm),
        cmocka_unit_test(a_product_rounded_before_its_sum_is_noticed_in_exp),
        cmocka_unit_test(a_product_rounded_before_its_sum_is_noticed_in_attention),
        cmocka_unit_test(halves_rounded_away_from_zero_are_noticed_in_attention),
        cmocka_unit_test(one_bit_of_one_lane_is_noticed_in_silu),
        cmocka_unit_test(byte_products_that_saturate_are_noticed_at_extreme_codes),
        cmocka_unit_test(halves_rounded_away_from_zero_are_noticed_in_quantisation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
