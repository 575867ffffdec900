/*
 * What is wrong with a machine's CUDA device is told in a sentence. Each case runs in a child,
 * which loads the fake driver of its own before the probe asks for libcuda.so.1. Codes are the
 * numbers of NVIDIA's documentation.
 */
#include <dlfcn.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "fake_driver.h"
#include "probe.cuh"

enum { NO_SUCH_CASE = 77 };

struct answer {
    int code;
    struct device_info info;
    struct err e;
    struct fake_driver driver; /* as the probe left it */
};

/* A machine with two H200; what a case changes is put on top. */
static struct fake_driver make_machine(void)
{
    return (struct fake_driver){.version = 13000,
                                .n_devices = 2,
                                .major = 9,
                                .minor = 0,
                                .memory_bytes = (size_t)141 << 30,
                                .free_bytes = (size_t)140 << 30,
                                .name = "NVIDIA H200",
                                .device_asked = -1};
}

static void probe_as_child(const char *library, const struct fake_driver *machine,
                           size_t ordinal, struct answer *out)
{
    void *driver = dlopen(library ? library : "libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library && driver)
        _exit(NO_SUCH_CASE); /* this machine has a driver */
    struct fake_driver *fake = driver ? dlsym(driver, FAKE_DRIVER_SYMBOL) : NULL;
    if (library && !fake)
        _exit(1);
    if (fake)
        *fake = *machine;
    out->code = probe_device(ordinal, &out->info, &out->e);
    if (fake)
        out->driver = *fake;
    _exit(0);
}

/* library NULL: no driver at all. */
static struct answer probe_with(const char *library, const struct fake_driver *machine,
                                size_t ordinal)
{
    struct answer *shared =
        mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(shared != MAP_FAILED);
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0)
        probe_as_child(library, machine, ordinal, shared);
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    const struct answer answer = *shared;
    munmap(shared, sizeof *shared);
    assert_true(WIFEXITED(status));
    if (WEXITSTATUS(status) == NO_SUCH_CASE)
        skip();
    assert_int_equal(WEXITSTATUS(status), 0);
    return answer;
}

static struct answer probe(const struct fake_driver *machine, size_t ordinal)
{
    return probe_with(FAKE_DRIVER, machine, ordinal);
}

/* Every word, in this order. */
static void assert_says(const struct answer *a, const char *const words[])
{
    const char *at = a->e.text;
    for (size_t i = 0; words[i]; i++) {
        const char *found = strstr(at, words[i]);
        if (!found)
            fail_msg("no \"%s\" in: %s", words[i], a->e.text);
        at = found + strlen(words[i]);
    }
    assert_true(strlen(a->e.text) < ERR_TEXT_BYTES - 1); /* nothing was cut off */
}

#define WORDS(...) ((const char *[]){__VA_ARGS__, NULL})

static void assert_refused(struct answer a, const char *const words[])
{
    assert_int_equal(a.code, ERR_UNSUPPORTED);
    assert_says(&a, words);
}

static void a_device_that_can_be_used_is_described(void **state)
{
    (void)state;
    const struct fake_driver machine = make_machine();
    const struct answer a = probe(&machine, 1);
    assert_string_equal(a.e.text, "");
    assert_int_equal(a.code, 0);
    assert_string_equal(a.info.name, "NVIDIA H200");
    assert_string_equal(a.info.arithmetic, "cuda-bf16");
    assert_int_equal(a.info.compute_capability, 90);
    assert_int_equal(a.info.memory_bytes, 151397597184);
    assert_int_equal(a.info.free_bytes, 150323855360);
    assert_int_equal(a.driver.device_asked, 1);
}

static void its_context_stays_but_is_no_threads_current_one(void **state)
{
    (void)state;
    const struct fake_driver machine = make_machine();
    const struct answer a = probe(&machine, 0);
    assert_int_equal(a.driver.n_contexts, 1);
    assert_int_equal(a.driver.n_current, 0);
}

static void without_a_driver_it_says_so(void **state)
{
    (void)state;
    assert_refused(probe_with(NULL, NULL, 0),
                   WORDS("there is no NVIDIA driver here", "libcuda.so.1", "--device cpu"));
}

static void a_driver_that_is_too_old_is_told_with_both_versions(void **state)
{
    (void)state;
    struct fake_driver machine = make_machine();
    machine.version = 12040;
    assert_refused(probe(&machine, 0),
                   WORDS("driver is too old", "runs CUDA 12.4,", "needs 13.0", "--device cpu"));
    machine.version = 11080;
    assert_refused(probe(&machine, 0),
                   WORDS("driver is too old", "runs CUDA 11.8,", "needs 13.0"));
}

static void the_version_is_looked_at_before_the_driver_is_started(void **state)
{
    (void)state;
    struct fake_driver machine = make_machine();
    machine.version = 12090;
    machine.init_code = 999;
    assert_refused(probe(&machine, 0), WORDS("driver is too old", "12.9"));
}

static void a_newer_driver_is_fine(void **state)
{
    (void)state;
    struct fake_driver machine = make_machine();
    machine.version = 13050;
    assert_int_equal(probe(&machine, 0).code, 0);
    machine.version = 14000;
    assert_int_equal(probe(&machine, 0).code, 0);
}

static void a_driver_without_a_function_is_told_with_its_name(void **state)
{
    (void)state;
    const struct fake_driver machine = make_machine();
    assert_refused(probe_with(OLD_DRIVER, &machine, 0),
                   WORDS("driver is too old", "cuDevicePrimaryCtxRetain"));
}

static void a_machine_without_a_device_is_told(void **state)
{
    (void)state;
    struct fake_driver machine = make_machine();
    machine.init_code = 100;
    assert_refused(probe(&machine, 0), WORDS("sees no device", "CUDA_VISIBLE_DEVICES"));
    machine.init_code = 0;
    machine.n_devices = 0;
    assert_refused(probe(&machine, 0), WORDS("sees no device", "CUDA_VISIBLE_DEVICES"));
}

static void an_ordinal_out_of_range_is_told_with_what_there_is(void **state)
{
    (void)state;
    const struct fake_driver machine = make_machine();
    assert_refused(probe(&machine, 2), WORDS("no CUDA device 2", "shows 2"));
    assert_refused(probe(&machine, SIZE_MAX),
                   WORDS("no CUDA device 18446744073709551615", "shows 2"));
    assert_refused(probe(&machine, (size_t)1 << 32),
                   WORDS("no CUDA device 4294967296", "shows 2"));
}

static void a_device_below_8_0_is_told_with_both_numbers(void **state)
{
    (void)state;
    struct fake_driver machine = make_machine();
    machine.name = "Tesla T4";
    machine.major = 7;
    machine.minor = 5;
    assert_refused(probe(&machine, 1), WORDS("CUDA device 1 (Tesla T4) is too old",
                                             "compute capability 7.5,", "needs 8.0"));
}

static void capabilities_from_8_0_on_are_fine(void **state)
{
    (void)state;
    static const int capabilities[][2] = {{8, 0}, {8, 9}, {9, 0}, {10, 3}, {12, 1}};
    struct fake_driver machine = make_machine();
    for (size_t i = 0; i < sizeof capabilities / sizeof capabilities[0]; i++) {
        machine.major = capabilities[i][0];
        machine.minor = capabilities[i][1];
        const struct answer a = probe(&machine, 0);
        assert_int_equal(a.code, 0);
        assert_int_equal(a.info.compute_capability, machine.major * 10 + machine.minor);
    }
}

static void a_device_that_another_process_has_for_itself_is_told(void **state)
{
    (void)state;
    struct fake_driver machine = make_machine();
    machine.use_code = 46;
    assert_refused(probe(&machine, 1),
                   WORDS("CUDA device 1: another process has it for itself"));
}

static void gpus_that_are_not_ready_are_told(void **state)
{
    (void)state;
    struct fake_driver machine = make_machine();
    machine.init_code = 802;
    assert_refused(probe(&machine, 0), WORDS("not ready", "nvidia-fabricmanager"));
    machine.init_code = 0;
    machine.use_code = 802;
    assert_refused(probe(&machine, 0),
                   WORDS("CUDA device 0: ", "not ready", "nvidia-fabricmanager"));
}

static void a_driver_in_disorder_is_told(void **state)
{
    (void)state;
    struct fake_driver machine = make_machine();
    machine.init_code = 803;
    assert_refused(probe(&machine, 0), WORDS("different versions", "restart"));
    machine.init_code = 34;
    assert_refused(probe(&machine, 0), WORDS("stub", "LD_LIBRARY_PATH"));
    machine.init_code = 804;
    assert_refused(probe(&machine, 0), WORDS("compatibility library"));
}

static void a_code_without_a_sentence_is_told_in_the_drivers_words(void **state)
{
    (void)state;
    struct fake_driver machine = make_machine();
    machine.init_code = 999;
    assert_refused(probe(&machine, 0),
                   WORDS("CUDA_ERROR_UNKNOWN (999), unknown error", "dmesg"));
    machine.init_code = 0;
    machine.memory_code = 998; /* of which this driver knows nothing */
    const struct answer a = probe(&machine, 0);
    assert_refused(a, WORDS("CUDA device 0: ", "error (998)"));
    assert_int_equal(a.driver.n_current, 0);
}

static void a_device_whose_memory_is_taken_is_told(void **state)
{
    (void)state;
    struct fake_driver machine = make_machine();
    machine.use_code = 2;
    const struct answer a = probe(&machine, 0);
    assert_int_equal(a.code, ERR_NOMEM);
    assert_says(&a, WORDS("CUDA device 0 (NVIDIA H200)", "144384 MiB"));
}

static void a_long_name_is_cut(void **state)
{
    (void)state;
    struct fake_driver machine = make_machine();
    char name[200];
    memset(name, 'x', sizeof name - 1);
    name[sizeof name - 1] = '\0';
    machine.name = name;
    const struct answer a = probe(&machine, 0);
    assert_int_equal(a.code, 0);
    assert_int_equal(strlen(a.info.name), sizeof a.info.name - 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_device_that_can_be_used_is_described),
        cmocka_unit_test(its_context_stays_but_is_no_threads_current_one),
        cmocka_unit_test(without_a_driver_it_says_so),
        cmocka_unit_test(a_driver_that_is_too_old_is_told_with_both_versions),
        cmocka_unit_test(the_version_is_looked_at_before_the_driver_is_started),
        cmocka_unit_test(a_newer_driver_is_fine),
        cmocka_unit_test(a_driver_without_a_function_is_told_with_its_name),
        cmocka_unit_test(a_machine_without_a_device_is_told),
        cmocka_unit_test(an_ordinal_out_of_range_is_told_with_what_there_is),
        cmocka_unit_test(a_device_below_8_0_is_told_with_both_numbers),
        cmocka_unit_test(capabilities_from_8_0_on_are_fine),
        cmocka_unit_test(a_device_that_another_process_has_for_itself_is_told),
        cmocka_unit_test(gpus_that_are_not_ready_are_told),
        cmocka_unit_test(a_driver_in_disorder_is_told),
        cmocka_unit_test(a_code_without_a_sentence_is_told_in_the_drivers_words),
        cmocka_unit_test(a_device_whose_memory_is_taken_is_told),
        cmocka_unit_test(a_long_name_is_cut),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
