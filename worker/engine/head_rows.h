/*
 * Hidden rows of sequences that stay on a device: whose row stands in which of its places.
 *
 *     head_rows_note   a step drew tokens for a sequence: its row is to be kept
 *     head_rows_keep   all rows noted since, in one call; before the next step
 *     head_rows_drop   the sequence has ended
 *
 * There are as many places as a step may note rows. A sequence that has none gets a free one,
 * or that of the one whose row is the oldest: it is not decoding any more, and when it does
 * again it does so from a new row.
 *
 * Thread: the engine's. Takes no memory after head_rows_open.
 */
#ifndef SHEAF_HEAD_ROWS_H
#define SHEAF_HEAD_ROWS_H

#include <stddef.h>

#include "base/err.h"

struct engine_device;
struct head_rows;
struct head_seq;

/* The device is borrowed. */
int head_rows_open(struct engine_device *device, size_t n_places, struct head_rows **out,
                   struct err *e);
void head_rows_close(struct head_rows *r); /* accepts NULL */

/* Sets h->place; whoever had it before is told that it has none. Once a step for each. */
void head_rows_note(struct head_rows *r, struct head_seq *h, size_t logits_row);
void head_rows_keep(struct head_rows *r);
void head_rows_drop(struct head_rows *r, struct head_seq *h);

#endif
