#include "watchdog.h"

#include <pthread.h>
#include <stdlib.h>
#include <time.h>

#include "base/clock.h"

enum { LOOKS = 16, LOOK_US_MIN = 1000, LOOK_US_MAX = 5000000 };

struct watchdog {
    _Atomic uint64_t beat; /* odd: in a step */
    struct watch watch;    /* thread: its own */
    void (*on_stall)(void *ctx);
    void *ctx;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool stop; /* under lock */
};

bool watch_look(struct watch *w, uint64_t beat, int64_t now_us)
{
    const int64_t since_us = w->looked_us ? now_us - w->looked_us : 0;
    const bool is_same = beat == w->beat && beat % 2 == 1 && w->looked_us;
    const int64_t most_us = 2 * w->look_us;
    w->stalled_us = is_same ? w->stalled_us + (since_us < most_us ? since_us : most_us) : 0;
    w->beat = beat;
    w->looked_us = now_us;
    return w->stalled_us >= w->timeout_us;
}

/* False: the watchdog is to end. */
static bool wait_a_look(struct watchdog *w)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    const int64_t ns = until.tv_nsec + w->watch.look_us * 1000;
    until.tv_sec += ns / 1000000000;
    until.tv_nsec = ns % 1000000000;
    pthread_mutex_lock(&w->lock);
    while (!w->stop && pthread_cond_timedwait(&w->changed, &w->lock, &until) == 0)
        ;
    const bool goes_on = !w->stop;
    pthread_mutex_unlock(&w->lock);
    return goes_on;
}

static void *watch_main(void *arg)
{
    struct watchdog *w = arg;
    while (wait_a_look(w))
        if (watch_look(&w->watch, atomic_load(&w->beat), clock_mono_us())) {
            w->on_stall(w->ctx);
            break;
        }
    return NULL;
}

int watchdog_open(int64_t timeout_us, void (*on_stall)(void *ctx), void *ctx,
                  struct watchdog **out, struct err *e)
{
    *out = NULL;
    if (timeout_us == 0)
        return 0;
    struct watchdog *w = calloc(1, sizeof *w);
    if (!w)
        return ERR_SET(e, ERR_NOMEM, "no memory for the watchdog");
    int64_t look_us = timeout_us / LOOKS;
    look_us = look_us < LOOK_US_MIN ? LOOK_US_MIN : look_us;
    w->watch = (struct watch){.timeout_us = timeout_us,
                              .look_us = look_us > LOOK_US_MAX ? LOOK_US_MAX : look_us};
    w->on_stall = on_stall;
    w->ctx = ctx;
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&w->changed, &attributes);
    pthread_condattr_destroy(&attributes);
    pthread_mutex_init(&w->lock, NULL);
    if (pthread_create(&w->thread, NULL, watch_main, w) != 0) {
        free(w);
        return ERR_SET(e, ERR_NOMEM, "cannot start the watchdog's thread");
    }
    *out = w;
    return 0;
}

void watchdog_close(struct watchdog *w)
{
    if (!w)
        return;
    pthread_mutex_lock(&w->lock);
    w->stop = true;
    pthread_cond_signal(&w->changed);
    pthread_mutex_unlock(&w->lock);
    pthread_join(w->thread, NULL);
    pthread_cond_destroy(&w->changed);
    pthread_mutex_destroy(&w->lock);
    free(w);
}

void watchdog_enter(struct watchdog *w)
{
    if (w) /* one writer */
        atomic_store_explicit(&w->beat,
                              atomic_load_explicit(&w->beat, memory_order_relaxed) | 1,
                              memory_order_release);
}

void watchdog_leave(struct watchdog *w)
{
    if (w)
        atomic_store_explicit(&w->beat,
                              atomic_load_explicit(&w->beat, memory_order_relaxed) + 1,
                              memory_order_release);
}
