/*
 * Preloaded before a program: a nap (nanosleep) is over at once, and the monotonic clock has
 * gone on by its length. So minutes of patience take no time, and the program's own arithmetic
 * with the clock still holds. For programs whose condition variables use that clock.
 */
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static _Atomic int64_t skipped_ns;

enum { NS_PER_S = 1000000000 };

static struct timespec moved(const struct timespec *at, int64_t by_ns)
{
    const int64_t ns = (int64_t)at->tv_sec * NS_PER_S + at->tv_nsec + by_ns;
    return (struct timespec){.tv_sec = ns / NS_PER_S, .tv_nsec = ns % NS_PER_S};
}

int nanosleep(const struct timespec *nap, struct timespec *left)
{
    (void)left;
    atomic_fetch_add(&skipped_ns, (int64_t)nap->tv_sec * NS_PER_S + nap->tv_nsec);
    return 0;
}

int clock_gettime(clockid_t id, struct timespec *now)
{
    const int rc = (int)syscall(SYS_clock_gettime, id, now);
    if (rc == 0 && id == CLOCK_MONOTONIC)
        *now = moved(now, atomic_load(&skipped_ns));
    return rc;
}

int pthread_cond_timedwait(pthread_cond_t *cond, pthread_mutex_t *mutex,
                           const struct timespec *until)
{
    const struct timespec real = moved(until, -atomic_load(&skipped_ns));
    if (real.tv_sec < 0 || real.tv_nsec < 0)
        return ETIMEDOUT;
    return pthread_cond_clockwait(cond, mutex, CLOCK_MONOTONIC, &real);
}
