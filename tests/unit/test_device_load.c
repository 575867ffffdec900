/* A module is found beside the program or in ../lib/sheaf; one that is of no use says why. The
 * modules are tests/device_load's. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "device.h"

static void assert_loads(const char *name, const struct device_backend **backend)
{
    struct err e = {0};
    *backend = NULL;
    if (device_load(name, backend, &e) != 0)
        fail_msg("%s: %s", name, e.text);
    assert_non_null(*backend);
    assert_int_equal((*backend)->abi, DEVICE_ABI);
}

/* Every word, in this order. */
static void assert_refused(const char *name, const char *const words[])
{
    const struct device_backend *backend = NULL;
    struct err e = {0};
    assert_int_equal(device_load(name, &backend, &e), ERR_UNSUPPORTED);
    assert_null(backend);
    const char *at = e.text;
    for (size_t i = 0; words[i]; i++) {
        const char *found = strstr(at, words[i]);
        if (!found)
            fail_msg("%s: no \"%s\" in: %s", name, words[i], e.text);
        at = found + strlen(words[i]);
    }
}

static void a_module_beside_the_program_is_loaded(void **state)
{
    (void)state;
    const struct device_backend *backend;
    assert_loads("good", &backend);
}

static void a_module_in_lib_sheaf_is_loaded(void **state)
{
    (void)state;
    const struct device_backend *backend;
    assert_loads("installed", &backend);
}

static void a_second_load_gives_the_same_module(void **state)
{
    (void)state;
    const struct device_backend *first, *second;
    assert_loads("good", &first);
    assert_loads("good", &second);
    assert_ptr_equal(first, second);
}

static void without_a_module_the_places_and_the_way_out_are_told(void **state)
{
    (void)state;
    assert_refused("cuda", (const char *[]){"this build has no CUDA backend: sheaf-cuda.so is ",
                                            "/device_load/bin ", "../lib/sheaf",
                                            "-DSHEAF_CUDA=ON", "--device cpu", NULL});
    assert_refused("cuda-emu", (const char *[]){"this build has no cuda-emu backend",
                                                "-DSHEAF_CUDA_EMU=ON", NULL});
}

static void a_module_of_another_version_is_refused(void **state)
{
    (void)state;
    assert_refused("newer", (const char *[]){"sheaf-newer.so is of another version",
                                             "(interface ", "this program's is ", NULL});
}

static void a_library_without_the_symbol_is_refused(void **state)
{
    (void)state;
    assert_refused("nameless", (const char *[]){"sheaf-nameless.so is no backend of Sheaf",
                                                "sheaf_device_backend", NULL});
}

static void a_library_that_is_missing_is_named(void **state)
{
    (void)state;
    assert_refused("lacking", (const char *[]){"the lacking backend cannot be loaded",
                                               "sheaf-lacking.so needs libsheaf_absent.so,",
                                               "LD_LIBRARY_PATH", NULL});
}

static void a_file_that_is_no_library_is_told_in_the_loaders_words(void **state)
{
    (void)state;
    assert_refused("text", (const char *[]){"the text backend cannot be loaded",
                                            "sheaf-text.so", "ELF", NULL});
}

static void a_name_cannot_lead_out_of_the_folders(void **state)
{
    (void)state;
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        const struct device_backend *backend;
        signal(SIGABRT, SIG_DFL);
        close(STDERR_FILENO);
        device_load("../bin/sheaf-good", &backend, NULL);
        _exit(0);
    }
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_module_beside_the_program_is_loaded),
        cmocka_unit_test(a_module_in_lib_sheaf_is_loaded),
        cmocka_unit_test(a_second_load_gives_the_same_module),
        cmocka_unit_test(without_a_module_the_places_and_the_way_out_are_told),
        cmocka_unit_test(a_module_of_another_version_is_refused),
        cmocka_unit_test(a_library_without_the_symbol_is_refused),
        cmocka_unit_test(a_library_that_is_missing_is_named),
        cmocka_unit_test(a_file_that_is_no_library_is_told_in_the_loaders_words),
        cmocka_unit_test(a_name_cannot_lead_out_of_the_folders),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
