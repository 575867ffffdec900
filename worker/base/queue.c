#include "base/queue.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <time.h>

#include "base/check.h"

struct queue {
    pthread_mutex_t lock; /* guards everything below */
    pthread_cond_t not_empty;
    pthread_cond_t not_full;
    size_t capacity;
    size_t head;
    size_t length;
    bool shut;
    void *items[];
};

struct queue *queue_open(size_t capacity)
{
    ASSERT(capacity > 0);
    struct queue *q = calloc(1, sizeof *q + capacity * sizeof q->items[0]);
    if (!q)
        return NULL;
    q->capacity = capacity;
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_mutex_init(&q->lock, NULL);
    pthread_cond_init(&q->not_empty, &attr);
    pthread_cond_init(&q->not_full, &attr);
    pthread_condattr_destroy(&attr);
    return q;
}

void queue_close(struct queue *q)
{
    if (!q)
        return;
    pthread_cond_destroy(&q->not_empty);
    pthread_cond_destroy(&q->not_full);
    pthread_mutex_destroy(&q->lock);
    free(q);
}

static void put(struct queue *q, void *item)
{
    q->items[(q->head + q->length) % q->capacity] = item;
    q->length++;
    pthread_cond_signal(&q->not_empty);
}

bool queue_push(struct queue *q, void *item)
{
    pthread_mutex_lock(&q->lock);
    while (!q->shut && q->length == q->capacity)
        pthread_cond_wait(&q->not_full, &q->lock);
    const bool ok = !q->shut;
    if (ok)
        put(q, item);
    pthread_mutex_unlock(&q->lock);
    return ok;
}

bool queue_try_push(struct queue *q, void *item)
{
    pthread_mutex_lock(&q->lock);
    const bool ok = !q->shut && q->length < q->capacity;
    if (ok)
        put(q, item);
    pthread_mutex_unlock(&q->lock);
    return ok;
}

static struct timespec deadline_in(int wait_ms)
{
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    at.tv_sec += wait_ms / 1000;
    at.tv_nsec += (long)(wait_ms % 1000) * 1000000;
    if (at.tv_nsec >= 1000000000) {
        at.tv_sec++;
        at.tv_nsec -= 1000000000;
    }
    return at;
}

void *queue_pop(struct queue *q, int wait_ms)
{
    const struct timespec deadline = deadline_in(wait_ms > 0 ? wait_ms : 0);
    pthread_mutex_lock(&q->lock);
    while (q->length == 0 && !q->shut && wait_ms != 0) {
        if (wait_ms < 0)
            pthread_cond_wait(&q->not_empty, &q->lock);
        else if (pthread_cond_timedwait(&q->not_empty, &q->lock, &deadline) == ETIMEDOUT)
            break;
    }
    void *item = NULL;
    if (q->length > 0) {
        item = q->items[q->head];
        q->head = (q->head + 1) % q->capacity;
        q->length--;
        pthread_cond_signal(&q->not_full);
    }
    pthread_mutex_unlock(&q->lock);
    return item;
}

void queue_shut(struct queue *q)
{
    pthread_mutex_lock(&q->lock);
    q->shut = true;
    pthread_cond_broadcast(&q->not_empty);
    pthread_cond_broadcast(&q->not_full);
    pthread_mutex_unlock(&q->lock);
}

bool queue_is_drained(struct queue *q)
{
    pthread_mutex_lock(&q->lock);
    const bool drained = q->shut && q->length == 0;
    pthread_mutex_unlock(&q->lock);
    return drained;
}

size_t queue_length(struct queue *q)
{
    pthread_mutex_lock(&q->lock);
    const size_t length = q->length;
    pthread_mutex_unlock(&q->lock);
    return length;
}
