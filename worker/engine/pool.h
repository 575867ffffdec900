/*
 * A small pool of compute threads. The owner hands out numbered items of one job at a time;
 * whoever is free takes the next number. Helpers spin for a bounded time between jobs, then
 * sleep. What an item computes must not depend on which thread takes it.
 *
 * Thread: pool_run only from the thread that opened the pool.
 */
#ifndef SHEAF_POOL_H
#define SHEAF_POOL_H

#include <stddef.h>

#include "base/err.h"

struct pool;

/* thread is 0..n_threads-1 and unique among the calls that run at once: an index of scratch. */
typedef void (*pool_fn)(void *ctx, size_t item, size_t thread);

int pool_open(size_t n_threads, struct pool **out, struct err *e); /* n_threads >= 1 */
void pool_close(struct pool *p);
size_t pool_threads(const struct pool *p);

/* Runs items 0..n_items-1 and returns when all are done. The owner takes part. */
void pool_run(struct pool *p, pool_fn fn, void *ctx, size_t n_items);

#endif
