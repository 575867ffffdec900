/* A step that takes too long ends the process; waiting, and not being looked at, does not. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "watchdog.h"

enum { LOOK = 10, TIMEOUT = 100 };

static struct watch make_watch(void)
{
    return (struct watch){.timeout_us = TIMEOUT, .look_us = LOOK};
}

/* The first time at which it barks, or -1. */
static int64_t barks_at(struct watch *w, uint64_t beat, int64_t from_us, int64_t until_us)
{
    for (int64_t now_us = from_us; now_us <= until_us; now_us += LOOK)
        if (watch_look(w, beat, now_us))
            return now_us;
    return -1;
}

static void a_step_that_lasts_is_told_after_the_time_it_is_given(void **state)
{
    (void)state;
    struct watch w = make_watch();
    assert_int_equal(barks_at(&w, 1, 1000, 5000), 1000 + TIMEOUT);
}

static void time_between_two_steps_is_not_told(void **state)
{
    (void)state;
    struct watch w = make_watch();
    assert_int_equal(barks_at(&w, 2, 1000, 100000), -1);
}

static void steps_that_follow_each_other_are_not_told(void **state)
{
    (void)state;
    struct watch w = make_watch();
    for (int64_t now_us = 1000; now_us < 100000; now_us += LOOK)
        assert_false(watch_look(&w, (uint64_t)(now_us / TIMEOUT) * 2 + 1, now_us));
}

static void time_in_which_nobody_looked_does_not_count(void **state)
{
    (void)state;
    struct watch w = make_watch();
    assert_false(watch_look(&w, 1, 1000));
    assert_false(watch_look(&w, 1, 1000000)); /* the process was stopped */
    assert_int_equal(barks_at(&w, 1, 1000000 + LOOK, 2000000), 1000000 + TIMEOUT - 2 * LOOK);
}

static void end_with_41(void *ctx)
{
    (void)ctx;
    _exit(41);
}

/* In a child whose stall ends it; a twin that waits between two steps is not ended. */
static int status_of_child(bool in_step)
{
    const pid_t pid = fork();
    if (pid != 0) {
        int status = 0;
        assert_int_equal(waitpid(pid, &status, 0), pid);
        return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    }
    struct watchdog *w;
    if (watchdog_open(50000, end_with_41, NULL, &w, NULL) != 0)
        _exit(1);
    for (int i = 0; i < 1000; i++) {
        watchdog_enter(w);
        watchdog_leave(w);
    }
    if (in_step)
        watchdog_enter(w);
    for (int i = 0; in_step || i < 20; i++)
        nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
    watchdog_close(w);
    _exit(0);
}

static void a_stall_ends_the_process_and_waiting_does_not(void **state)
{
    (void)state;
    assert_int_equal(status_of_child(true), 41);
    assert_int_equal(status_of_child(false), 0);
}

static void without_a_time_nobody_watches(void **state)
{
    (void)state;
    struct watchdog *w;
    assert_int_equal(watchdog_open(0, end_with_41, NULL, &w, NULL), 0);
    assert_null(w);
    watchdog_enter(w);
    watchdog_leave(w);
    watchdog_close(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_step_that_lasts_is_told_after_the_time_it_is_given),
        cmocka_unit_test(time_between_two_steps_is_not_told),
        cmocka_unit_test(steps_that_follow_each_other_are_not_told),
        cmocka_unit_test(time_in_which_nobody_looked_does_not_count),
        cmocka_unit_test(a_stall_ends_the_process_and_waiting_does_not),
        cmocka_unit_test(without_a_time_nobody_watches),
    };
    return cmocka_run_group_tests_name("watchdog", tests, NULL, NULL);
}
