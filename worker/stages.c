#include "stages.h"

#include "base/check.h"
#include "base/clock.h"

const char *stages_name(enum stage stage)
{
    static const char *const names[STAGE_COUNT] = {
        [STAGE_START] = "start_us",     [STAGE_WAIT] = "wait_us",
        [STAGE_WINDOW] = "window_us",   [STAGE_STEP] = "step_us",
        [STAGE_COLLECT] = "collect_us", [STAGE_OTHER] = "other_us",
        [STAGE_CLOSE] = "close_us",     [STAGE_TAKE] = "take_us",
        [STAGE_LOOKUP] = "lookup_us",   [STAGE_PARSE] = "parse_us",
        [STAGE_FULL] = "full_us",       [STAGE_IDLE] = "idle_us",
        [STAGE_EMIT] = "emit_us",       [STAGE_STORE] = "store_us",
        [STAGE_DELIVER] = "deliver_us",
    };
    ASSERT(stage >= 0 && stage < STAGE_COUNT);
    return names[stage];
}

void stages_begin(struct laps *laps, int64_t *us, int64_t began_us)
{
    *laps = (struct laps){.us = us, .last_us = began_us};
}

void stages_lap(struct laps *laps, enum stage stage)
{
    const int64_t now_us = clock_mono_us();
    laps->us[stage] += now_us - laps->last_us;
    laps->last_us = now_us;
}
