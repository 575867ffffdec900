/* Laps of a thread add up to its time. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "base/clock.h"
#include "stages.h"

static void sleep_ms(long ms)
{
    nanosleep(&(struct timespec){.tv_nsec = ms * 1000000}, NULL);
}

static void the_stages_of_a_thread_add_up_to_its_time(void **state)
{
    (void)state;
    int64_t us[STAGE_COUNT] = {0};
    struct laps laps;
    const int64_t began_us = clock_mono_us();
    stages_begin(&laps, us, began_us - 5000000); /* it was opened five seconds ago */
    stages_lap(&laps, STAGE_START);
    for (int i = 0; i < 10; i++) {
        sleep_ms(3);
        stages_lap(&laps, STAGE_STEP);
        sleep_ms(1);
        stages_lap(&laps, STAGE_WAIT);
    }
    const int64_t ended_us = clock_mono_us();
    assert_true(us[STAGE_START] >= 5000000);
    assert_true(us[STAGE_STEP] >= 10 * 3000 && us[STAGE_WAIT] >= 10 * 1000);
    int64_t sum = 0;
    for (size_t i = 0; i < STAGE_COUNT; i++)
        sum += us[i];
    assert_int_equal(sum, laps.last_us - (began_us - 5000000));
    assert_true(laps.last_us <= ended_us);
}

static void every_stage_has_a_name_of_its_own(void **state)
{
    (void)state;
    for (size_t i = 0; i < STAGE_COUNT; i++) {
        assert_non_null(stages_name(i));
        assert_string_equal(stages_name(i) + strlen(stages_name(i)) - 3, "_us");
        for (size_t j = 0; j < i; j++)
            assert_string_not_equal(stages_name(i), stages_name(j));
    }
}

int main(int argc, char **argv)
{
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_stages_of_a_thread_add_up_to_its_time),
        cmocka_unit_test(every_stage_has_a_name_of_its_own),
    };
    return cmocka_run_group_tests_name("stages", tests, NULL, NULL);
}
