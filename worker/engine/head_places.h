/*
 * Hidden rows of sequences that stay on a device: whose row stands in which of its places.
 *
 *     head_places_note   a step drew tokens for a sequence: its row is to be kept
 *     head_places_keep   all rows noted since, in one call; before the next step
 *     head_places_drop   the sequence has ended
 *
 * There are as many places as a step may note rows. A sequence that has none gets a free one,
 * or that of the one whose row is the oldest: it is not decoding any more, and when it does
 * again it does so from a new row.
 *
 * Thread: the engine's. Takes no memory after head_places_open.
 */
#ifndef SHEAF_HEAD_PLACES_H
#define SHEAF_HEAD_PLACES_H

#include <stddef.h>

#include "base/err.h"

struct engine_device;
struct head_places;
struct head_seq;

/* The device is borrowed. */
int head_places_open(struct engine_device *device, size_t n_places, struct head_places **out,
                     struct err *e);
void head_places_close(struct head_places *p); /* accepts NULL */

/* Sets h->place; whoever had it before is told that it has none. Once a step for each. */
void head_places_note(struct head_places *p, struct head_seq *h, size_t logits_row);
void head_places_keep(struct head_places *p);
void head_places_drop(struct head_places *p, struct head_seq *h);

#endif
