/*
 * Every allocation of the window and of the ideal fails in turn: ERR_NOMEM, nothing changed,
 * and the same call succeeds afterwards. Taking jobs out takes no memory.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "failing_alloc.h"
#include "group.h"
#include "group_ideal.h"

enum { BLOCK = 32, JOBS = 200, TOKENS = 8 * BLOCK };

static const struct group_limits limits = {.jobs_max = JOBS,
                                           .tokens_max = SIZE_MAX,
                                           .bytes_max = SIZE_MAX,
                                           .open_max = 2,
                                           .max_wait_us = 10,
                                           .enabled = true};

/* Job i leaves the trie in the middle of an edge, at the end of one, or at its root. */
static struct group_job make_job(size_t i)
{
    static int32_t tokens[TOKENS];
    for (size_t k = 0; k < TOKENS; k++)
        tokens[k] = k / BLOCK < i % 8 ? 1 : (int32_t)i;
    return (struct group_job){.tokens = tokens,
                              .n_tokens = i % 5 ? TOKENS : 3 * BLOCK,
                              .deadline_us = i % 3 ? 0 : 100,
                              .added_us = (int64_t)i,
                              .user = (void *)(uintptr_t)(i + 1)};
}

/* -> how often the call failed before it succeeded. */
static size_t add_with_failures(struct group_window *w, const struct group_job *job)
{
    for (long countdown = 0;; countdown++) {
        struct err e = {0};
        failing_alloc_arm(countdown + 1, false);
        const int rc = group_add(w, job, &e);
        failing_alloc_disarm();
        assert_true(group_check(w));
        if (rc == 0)
            return (size_t)countdown;
        assert_int_equal(rc, ERR_NOMEM);
        assert_int_equal(e.code, ERR_NOMEM);
    }
}

static void adding_fails_without_a_trace_and_taking_never_does(void **state)
{
    (void)state;
    struct group_window *w = NULL;
    assert_int_equal(group_open(&limits, &w, NULL), 0);
    size_t n_failed = 0;
    for (size_t i = 0; i < JOBS; i++) {
        const struct group_job job = make_job(i);
        const size_t n = add_with_failures(w, &job);
        assert_true(n > 0);
        n_failed += n;
        assert_int_equal(group_length(w), i + 1);
    }
    assert_true(n_failed > 2 * JOBS);
    uint64_t sum = 0;
    struct group_pick pick;
    failing_alloc_arm(1, false);
    while (group_next(w, 0, &pick))
        sum += (uintptr_t)pick.user;
    failing_alloc_disarm();
    assert_int_equal(failing_alloc_refused(), 0);
    assert_int_equal(sum, JOBS * (JOBS + 1) / 2);
    group_close(w);
}

static void opening_fails_without_a_leak(void **state)
{
    (void)state;
    struct group_window *w = NULL;
    long countdown = 0;
    for (;; countdown++) {
        failing_alloc_arm(countdown + 1, false);
        const int rc = group_open(&limits, &w, NULL);
        failing_alloc_disarm();
        if (rc == 0)
            break;
        assert_int_equal(rc, ERR_NOMEM);
        assert_null(w);
    }
    assert_int_equal(countdown, 4); /* the window, its trie's top, table and slots */
    group_close(w);
}

static void the_ideal_fails_without_a_leak(void **state)
{
    (void)state;
    const int32_t tokens[] = {1, 2, 3};
    const struct group_prompt prompts[] = {{tokens, 3, NULL}, {tokens, 2, NULL}};
    uint64_t cached;
    failing_alloc_arm(1, false);
    assert_int_equal(group_ideal_cached(prompts, 2, 0, &cached, NULL), ERR_NOMEM);
    failing_alloc_disarm();
    assert_int_equal(group_ideal_cached(prompts, 2, 0, &cached, NULL), 0);
    assert_int_equal(cached, 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(adding_fails_without_a_trace_and_taking_never_does),
        cmocka_unit_test(opening_fails_without_a_leak),
        cmocka_unit_test(the_ideal_fails_without_a_leak),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
