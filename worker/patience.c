#include "patience.h"

#include <time.h>

#include "base/clock.h"
#include "base/log.h"
#include "signals.h"

enum { FIRST_MS = 100, RETRY_MS_MAX = 10000, PATIENCE_US = 240000000 };

struct patience patience_begin(void)
{
    return (struct patience){.ends_us = clock_mono_us() + PATIENCE_US, .wait_ms = FIRST_MS};
}

bool patience_wait(struct patience *p, const struct err *why, int64_t ends_us)
{
    const int64_t now_us = clock_mono_us();
    const bool is_late = now_us > p->ends_us || (ends_us != 0 && now_us > ends_us);
    if (!(why->flags & ERR_RETRY) || is_late || signals_received() > 1)
        return false;
    log_warn("%s; trying again in %d ms", why->text, p->wait_ms);
    const struct timespec wait = {.tv_sec = p->wait_ms / 1000,
                                  .tv_nsec = (long)(p->wait_ms % 1000) * 1000000};
    nanosleep(&wait, NULL);
    p->wait_ms = 2 * p->wait_ms < RETRY_MS_MAX ? 2 * p->wait_ms : RETRY_MS_MAX;
    return true;
}
