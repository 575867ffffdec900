/*
 * Every allocation of the GGUF reader and of the model's binding fails once: the answer is "out
 * of memory", nothing leaks (LeakSanitizer looks), and nothing is freed that was never had.
 * The sources are compiled into this program with their calloc redirected.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static size_t n_calls;
static size_t failing_call; /* counted from 1; 0: none */
static bool fails_from_there_on;

static void *counted_calloc(size_t n, size_t bytes)
{
    n_calls++;
    if (failing_call &&
        (fails_from_there_on ? n_calls >= failing_call : n_calls == failing_call))
        return NULL;
    return calloc(n, bytes);
}

#define calloc counted_calloc
#include "model/gguf_parse.c"
#include "model/model.c"
#include "model/model_tensors.c"
#undef calloc

#include "gguf_builder.h"

#define LLAMA SHEAF_TEST_DATA "/golden/tiny/tiny-llama-q8_0.gguf"

static void expect_no_memory(int code, const struct err *e)
{
    if (code != ERR_NOMEM || e->code != ERR_NOMEM || !strstr(e->text, "out of memory"))
        fail_msg("call %zu failed, but the code is %d, the text \"%s\"", failing_call, code,
                 e->text);
}

/* Fails call 1, 2, ... in turn until there is none left to fail; returns how many there are. */
static size_t fail_each_call(int (*open_and_close)(struct err *e))
{
    for (failing_call = 1; failing_call < 1000; failing_call++) {
        n_calls = 0;
        struct err e = {0};
        const int code = open_and_close(&e);
        if (n_calls < failing_call) {
            assert_int_equal(code, 0);
            return failing_call - 1;
        }
        expect_no_memory(code, &e);
    }
    fail_msg("still allocating after 1000 calls");
    return 0;
}

static struct gguf_bytes file; /* that parse_file parses */

static int parse_file(struct err *e)
{
    struct gguf *g = NULL;
    const int code = gguf_parse(file.data, file.size, &g, e);
    gguf_close(g);
    return code;
}

static int open_model(struct err *e)
{
    struct model *m = NULL;
    const int code = model_open(LLAMA, &m, e);
    model_close(m);
    return code;
}

static void every_failed_allocation_of_the_reader_is_reported(void **state)
{
    (void)state;
    file = gguf_bytes_read(LLAMA);
    for (int mode = 0; mode < 2; mode++) {
        fails_from_there_on = mode == 1;
        assert_int_equal(fail_each_call(parse_file), 5);
    }
    free(file.data);
}

static void every_failed_allocation_of_opening_is_reported(void **state)
{
    (void)state;
    for (int mode = 0; mode < 2; mode++) {
        fails_from_there_on = mode == 1;
        assert_int_equal(fail_each_call(open_model), 8); /* model, reader 5, used, layers */
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_failed_allocation_of_the_reader_is_reported),
        cmocka_unit_test(every_failed_allocation_of_opening_is_reported),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
