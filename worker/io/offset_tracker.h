/*
 * Which offsets of one partition are still unsettled, and the low watermark that may be
 * committed. Pure: no I/O, no clock, no locks.
 *
 *   offsets    100 101 102 103 104 105 106
 *              done  .  done  .   -  done  ^ next (nothing from here on was received)
 *                    ^ watermark           - = a gap: never received, same as done
 *
 * Offsets arrive in rising order, with gaps (compaction, transaction markers). A gap needs no
 * record of its own: only received-and-unsettled offsets have a bit. The watermark is the
 * smallest of these, or next when there are none. Invariants: watermark <= every unsettled
 * offset < next; next - watermark <= span; the watermark never falls, except by
 * offset_tracker_restart.
 *
 * Of offsets that are still to come some may be known to be settled: a former owner said so
 * (offset_tracker_settle_known). Received again they count as seen before.
 *
 * Each offset carries a weight (its bytes in memory), so that the owner can bound their sum.
 */
#ifndef SHEAF_OFFSET_TRACKER_H
#define SHEAF_OFFSET_TRACKER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "io/offset_metadata.h"

struct offset_tracker {
    int64_t watermark; /* -1: no offset is known yet */
    int64_t next;      /* -1 likewise */
    size_t span;       /* a power of two */
    size_t n_unsettled;
    uint64_t weight_unsettled;
    uint64_t *bits;    /* [span / 64] ring by offset: received and unsettled */
    uint32_t *weights; /* [span] ring by offset */
    uint64_t *known;   /* [span / 64] ring by offset: still to come, and settled */
    int64_t known_end; /* no offset from here on is known so */
};

/* start: the committed offset, or -1 when there is none; span: a power of two >= 64. */
int offset_tracker_init(struct offset_tracker *t, int64_t start, size_t span, struct err *e);
void offset_tracker_fini(struct offset_tracker *t); /* accepts a zeroed one */

/* May this offset be received now, or would it stretch the span? */
bool offset_tracker_has_room(const struct offset_tracker *t, int64_t offset);

/* Received: false, and nothing changes, for an offset below next (seen before). There must be
 * room. */
bool offset_tracker_receive(struct offset_tracker *t, int64_t offset, uint32_t weight);

/* Settled: false for an offset that is not unsettled here (twice, never received, below the
 * watermark). */
bool offset_tracker_settle(struct offset_tracker *t, int64_t offset);

/* Received and not settled? */
bool offset_tracker_is_unsettled(const struct offset_tracker *t, int64_t offset);

/* Nothing below offset is still to be received: the reader is at the end of the partition. */
void offset_tracker_skip_to(struct offset_tracker *t, int64_t offset);

/* Everything below offset is settled, by another owner. */
void offset_tracker_settle_below(struct offset_tracker *t, int64_t offset);

/* The same, and of the offsets from there on some: what offset_tracker_settled said of them
 * when their owner committed. */
void offset_tracker_settle_known(struct offset_tracker *t, const struct offset_bits *settled);

/* What to commit: the watermark as base, and what is settled above it. The watermark must be
 * known, and the span at most INFLIGHT_SPAN_MAX. */
void offset_tracker_settled(const struct offset_tracker *t, struct offset_bits *out);

/* Forgets everything; offset as in init. For a log that was truncated or made anew. */
void offset_tracker_restart(struct offset_tracker *t, int64_t start);

/* Walks every bit: do the invariants hold? For tests and debug builds. */
bool offset_tracker_is_sound(const struct offset_tracker *t);

#endif
