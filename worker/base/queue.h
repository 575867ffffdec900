/*
 * A bounded first-in-first-out queue of pointers between two stages. Pushing to a full queue
 * and popping from an empty one wait. Whoever pops an item owns it.
 *
 * Thread: any number of producers and consumers.
 */
#ifndef SHEAF_QUEUE_H
#define SHEAF_QUEUE_H

#include <stdbool.h>
#include <stddef.h>

struct queue;

struct queue *queue_open(size_t capacity); /* NULL: out of memory */
/* The queue must be empty or its items must not own anything. Accepts NULL. */
void queue_close(struct queue *q);

/* Waits while full. False when the queue was shut; the item stays the caller's. */
bool queue_push(struct queue *q, void *item);
/* Does not wait. False when full or shut; the item stays the caller's. */
bool queue_try_push(struct queue *q, void *item);
/* Waits up to wait_ms (-1 = for ever, 0 = not at all). NULL: nothing came, or shut and empty.
 */
void *queue_pop(struct queue *q, int wait_ms);
/* No more pushes; pops go on until it is empty. Wakes everyone who waits. */
void queue_shut(struct queue *q);
bool queue_is_drained(struct queue *q); /* shut and empty */
size_t queue_length(struct queue *q);

#endif
