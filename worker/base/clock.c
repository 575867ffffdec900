#include "base/clock.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

static int64_t read_us(clockid_t id)
{
    struct timespec now;
    clock_gettime(id, &now);
    return (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

int64_t clock_mono_us(void)
{
    return read_us(CLOCK_MONOTONIC);
}

int64_t clock_wall_us(void)
{
    return read_us(CLOCK_REALTIME);
}

int64_t clock_thread_us(void)
{
    return read_us(CLOCK_THREAD_CPUTIME_ID);
}

const char *clock_format_utc(int64_t wall_us, char out[CLOCK_UTC_BYTES])
{
    const time_t seconds = wall_us / 1000000;
    struct tm utc;
    if (!gmtime_r(&seconds, &utc) ||
        strftime(out, CLOCK_UTC_BYTES, "%Y-%m-%dT%H:%M:%SZ", &utc) == 0)
        out[0] = '\0';
    return out;
}

const char *clock_format_utc_ms(int64_t wall_us, char out[CLOCK_UTC_BYTES])
{
    const size_t n = strlen(clock_format_utc(wall_us, out));
    if (n > 0) /* in place of the Z */
        snprintf(out + n - 1, CLOCK_UTC_BYTES - n + 1, ".%03dZ", (int)(wall_us / 1000 % 1000));
    return out;
}
