/*
 * Which offsets above the committed one are settled, as text that is committed beside it. Jobs
 * finish out of order; whoever takes the partition over repeats none of those.
 *
 *     "shf1." base64url without padding of
 *         u8      kind     0: bitmap, 1: runs
 *         u32 le  crc32c   of all other bytes: the kind, then what stands behind this
 *         u64 le  base     the committed offset, the smallest that is not settled
 *         varint  n_bits   the last one is set
 *         body
 *
 *     bitmap  bit i, the lowest of a byte first: offset base + i is settled
 *     runs    varint lengths by turns, of bits that are clear, set, clear, ...; they sum to
 *             n_bits, and none is 0
 *
 * The shorter of the two is written, the bitmap when both are equal. A varint has 7 bits a
 * byte, the lowest first, the highest bit saying that more follow. Printable ASCII on purpose:
 * older clients mishandle zeros. INFLIGHT_SPAN_MAX offsets always fit the broker's limit.
 *
 * What cannot be read is worth nothing but is no harm: the offset alone stands for itself, and
 * jobs above it are answered again.
 *
 * Pure; thread: any.
 */
#ifndef SHEAF_OFFSET_METADATA_H
#define SHEAF_OFFSET_METADATA_H

#include <assert.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/limits.h"

enum {
    OFFSET_BITS_BYTES = INFLIGHT_SPAN_MAX / 8,
    OFFSET_METADATA_BROKER_MAX = 4096, /* characters that brokers take by default */
    OFFSET_METADATA_HEAD_BYTES = 1 + 4 + 8 + 3,
    OFFSET_METADATA_MAX =
        5 + ((OFFSET_METADATA_HEAD_BYTES + OFFSET_BITS_BYTES) * 4 + 2) / 3, /* without NUL */
};
static_assert(INFLIGHT_SPAN_MAX < 1 << 21, "n_bits is a varint of 3 bytes at most");
static_assert(OFFSET_METADATA_MAX <= OFFSET_METADATA_BROKER_MAX, "brokers refuse more");

/* Settled offsets at and above base, which itself is not: bit i of byte i / 8, lowest first. */
struct offset_bits {
    int64_t base;
    size_t n_bits; /* up to the last settled one; INFLIGHT_SPAN_MAX at most */
    uint8_t bits[OFFSET_BITS_BYTES];
};

/* One offset more is settled, base itself or one above it within INFLIGHT_SPAN_MAX; base moves
 * on over all that are. */
void offset_bits_settle(struct offset_bits *b, int64_t offset);
bool offset_bits_has(const struct offset_bits *b, int64_t offset); /* or it is below base */

/* Returns the length; 0, and out is "", when no bit is set. */
size_t offset_metadata_encode(const struct offset_bits *settled,
                              char out[OFFSET_METADATA_MAX + 1]);

/*
 * text need not end with NUL. NULL, or a few words on what is wrong with it; *out then says
 * that nothing above base is settled, as it does for an empty text.
 */
const char *offset_metadata_decode(const char *text, size_t length, int64_t base,
                                   struct offset_bits *out);

#endif
