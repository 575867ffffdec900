#include "engine/pool.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>

#include "base/check.h"
#include "base/limits.h"

enum { SPINS_MAX = 4000 }; /* about 50 us of pause instructions, then sleep */

struct helper {
    struct pool *pool;
    size_t index;
    pthread_t thread;
};

struct pool {
    size_t n_threads;
    size_t n_started;

    /* The current job: written by the owner before generation moves. */
    pool_fn fn;
    void *ctx;
    size_t n_items;
    bool stop;

    _Atomic uint64_t generation; /* one more for each job */
    _Atomic size_t next_item;
    _Atomic size_t helpers_busy; /* helpers that have not left the current job */

    /* Only for those who gave up spinning. */
    pthread_mutex_t lock;
    pthread_cond_t job_there;
    pthread_cond_t job_done;

    struct helper helpers[];
};

static inline void relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

static void take_items(struct pool *p, size_t thread)
{
    for (;;) {
        const size_t item = atomic_fetch_add_explicit(&p->next_item, 1, memory_order_relaxed);
        if (item >= p->n_items)
            return;
        p->fn(p->ctx, item, thread);
    }
}

static uint64_t wait_for_job(struct pool *p, uint64_t seen)
{
    for (int spin = 0; spin < SPINS_MAX; spin++) {
        const uint64_t now = atomic_load_explicit(&p->generation, memory_order_acquire);
        if (now != seen)
            return now;
        relax();
    }
    pthread_mutex_lock(&p->lock);
    uint64_t now;
    while ((now = atomic_load_explicit(&p->generation, memory_order_acquire)) == seen)
        pthread_cond_wait(&p->job_there, &p->lock);
    pthread_mutex_unlock(&p->lock);
    return now;
}

static void *helper_main(void *arg)
{
    struct helper *h = arg;
    struct pool *p = h->pool;
    uint64_t seen = 0;
    for (;;) {
        seen = wait_for_job(p, seen);
        if (p->stop)
            return NULL;
        take_items(p, h->index);
        if (atomic_fetch_sub_explicit(&p->helpers_busy, 1, memory_order_acq_rel) == 1) {
            pthread_mutex_lock(&p->lock);
            pthread_cond_signal(&p->job_done);
            pthread_mutex_unlock(&p->lock);
        }
    }
}

/* The lock makes sure that a helper about to sleep sees the new generation. */
static void announce_job(struct pool *p)
{
    pthread_mutex_lock(&p->lock);
    atomic_fetch_add_explicit(&p->generation, 1, memory_order_release);
    pthread_cond_broadcast(&p->job_there);
    pthread_mutex_unlock(&p->lock);
}

static void wait_for_helpers(struct pool *p)
{
    for (int spin = 0; spin < SPINS_MAX; spin++) {
        if (atomic_load_explicit(&p->helpers_busy, memory_order_acquire) == 0)
            return;
        relax();
    }
    pthread_mutex_lock(&p->lock);
    while (atomic_load_explicit(&p->helpers_busy, memory_order_acquire) != 0)
        pthread_cond_wait(&p->job_done, &p->lock);
    pthread_mutex_unlock(&p->lock);
}

void pool_run(struct pool *p, pool_fn fn, void *ctx, size_t n_items)
{
    if (n_items <= 1 || p->n_threads == 1) {
        for (size_t item = 0; item < n_items; item++)
            fn(ctx, item, 0);
        return;
    }
    p->fn = fn;
    p->ctx = ctx;
    p->n_items = n_items;
    atomic_store_explicit(&p->next_item, 0, memory_order_relaxed);
    atomic_store_explicit(&p->helpers_busy, p->n_threads - 1, memory_order_relaxed);
    announce_job(p);
    take_items(p, 0);
    wait_for_helpers(p);
}

int pool_open(size_t n_threads, struct pool **out, struct err *e)
{
    ASSERT(n_threads >= 1 && n_threads <= ENGINE_THREADS_MAX);
    struct pool *p = calloc(1, sizeof *p + (n_threads - 1) * sizeof p->helpers[0]);
    if (!p)
        return ERR_SET(e, ERR_NOMEM, "no memory for %zu compute threads", n_threads);
    p->n_threads = n_threads;
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->job_there, NULL);
    pthread_cond_init(&p->job_done, NULL);
    for (; p->n_started < n_threads - 1; p->n_started++) {
        struct helper *h = &p->helpers[p->n_started];
        h->pool = p;
        h->index = p->n_started + 1;
        if (pthread_create(&h->thread, NULL, helper_main, h) != 0) {
            pool_close(p);
            return ERR_SET(e, ERR_NOMEM, "cannot start %zu compute threads", n_threads);
        }
    }
    *out = p;
    return 0;
}

void pool_close(struct pool *p)
{
    if (!p)
        return;
    p->stop = true;
    announce_job(p);
    for (size_t i = 0; i < p->n_started; i++)
        pthread_join(p->helpers[i].thread, NULL);
    pthread_cond_destroy(&p->job_there);
    pthread_cond_destroy(&p->job_done);
    pthread_mutex_destroy(&p->lock);
    free(p);
}

size_t pool_threads(const struct pool *p)
{
    return p->n_threads;
}
