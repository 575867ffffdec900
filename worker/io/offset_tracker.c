#include "offset_tracker.h"

#include <stdlib.h>
#include <string.h>

#include "base/check.h"

static size_t slot_of(const struct offset_tracker *t, int64_t offset)
{
    return (size_t)offset & (t->span - 1);
}

static bool is_set(const uint64_t *ring, size_t slot)
{
    return ring[slot / 64] >> (slot % 64) & 1;
}

static void set(uint64_t *ring, size_t slot)
{
    ring[slot / 64] |= UINT64_C(1) << (slot % 64);
}

static void unset(uint64_t *ring, size_t slot)
{
    ring[slot / 64] &= ~(UINT64_C(1) << (slot % 64));
}

static bool is_known(const struct offset_tracker *t, int64_t offset)
{
    return offset >= t->next && offset < t->known_end && is_set(t->known, slot_of(t, offset));
}

int offset_tracker_init(struct offset_tracker *t, int64_t start, size_t span, struct err *e)
{
    ASSERT(span >= 64 && (span & (span - 1)) == 0);
    *t = (struct offset_tracker){.span = span};
    t->bits = calloc(span / 64, sizeof *t->bits);
    t->weights = calloc(span, sizeof *t->weights);
    t->known = calloc(span / 64, sizeof *t->known);
    if (!t->bits || !t->weights || !t->known) {
        offset_tracker_fini(t);
        return ERR_SET(e, ERR_NOMEM, "no memory to track %zu offsets", span);
    }
    offset_tracker_restart(t, start);
    return 0;
}

void offset_tracker_fini(struct offset_tracker *t)
{
    free(t->bits);
    free(t->weights);
    free(t->known);
    *t = (struct offset_tracker){0};
}

bool offset_tracker_has_room(const struct offset_tracker *t, int64_t offset)
{
    return t->n_unsettled == 0 || offset - t->watermark < (int64_t)t->span;
}

/* Moves next; what was known of the offsets passed is of no more use, and those known behind
 * them are passed too. */
static void advance_to(struct offset_tracker *t, int64_t offset)
{
    for (; t->next < offset && t->next < t->known_end; t->next++)
        unset(t->known, slot_of(t, t->next));
    t->next = offset;
    for (; is_known(t, t->next); t->next++)
        unset(t->known, slot_of(t, t->next));
    if (t->n_unsettled == 0)
        t->watermark = t->next;
}

bool offset_tracker_receive(struct offset_tracker *t, int64_t offset, uint32_t weight)
{
    if (offset < 0 || offset < t->next)
        return false;
    if (is_known(t, offset)) {
        advance_to(t, offset + 1);
        return false;
    }
    ASSERT(offset_tracker_has_room(t, offset));
    const size_t slot = slot_of(t, offset);
    ASSERT(!is_set(t->bits, slot));
    set(t->bits, slot);
    t->weights[slot] = weight;
    if (t->n_unsettled == 0)
        t->watermark = offset;
    t->n_unsettled++;
    t->weight_unsettled += weight;
    advance_to(t, offset + 1);
    return true;
}

/* The smallest unsettled offset from `from` on, or next. A word of the ring at a time. */
static int64_t first_unsettled(const struct offset_tracker *t, int64_t from)
{
    if (t->n_unsettled == 0)
        return t->next;
    for (int64_t offset = from; offset < t->next;) {
        const size_t slot = slot_of(t, offset);
        const uint64_t word = t->bits[slot / 64] >> (slot % 64);
        if (word != 0)
            return offset + __builtin_ctzll(word);
        offset += 64 - (int64_t)(slot % 64);
    }
    return t->next;
}

static void clear(struct offset_tracker *t, size_t slot)
{
    unset(t->bits, slot);
    t->n_unsettled--;
    t->weight_unsettled -= t->weights[slot];
}

bool offset_tracker_is_unsettled(const struct offset_tracker *t, int64_t offset)
{
    return offset >= 0 && offset >= t->watermark && offset < t->next &&
           is_set(t->bits, slot_of(t, offset));
}

bool offset_tracker_settle(struct offset_tracker *t, int64_t offset)
{
    if (!offset_tracker_is_unsettled(t, offset))
        return false;
    clear(t, slot_of(t, offset));
    if (offset == t->watermark)
        t->watermark = first_unsettled(t, offset + 1);
    ASSERT_SLOW(offset_tracker_is_sound(t));
    return true;
}

void offset_tracker_skip_to(struct offset_tracker *t, int64_t offset)
{
    if (offset <= t->next)
        return;
    if (t->n_unsettled > 0 && offset - t->watermark > (int64_t)t->span)
        return; /* the ring cannot tell offsets so far apart; next stays where it is */
    advance_to(t, offset);
}

void offset_tracker_settle_below(struct offset_tracker *t, int64_t offset)
{
    while (t->n_unsettled > 0 && t->watermark < offset)
        offset_tracker_settle(t, t->watermark);
    offset_tracker_skip_to(t, offset);
}

static bool is_settled(const struct offset_bits *b, size_t i)
{
    return b->bits[i / 8] >> (i % 8) & 1;
}

void offset_tracker_settle_known(struct offset_tracker *t, const struct offset_bits *settled)
{
    offset_tracker_settle_below(t, settled->base);
    for (size_t i = 0; i < settled->n_bits; i++) {
        const int64_t offset = settled->base + (int64_t)i;
        if (!is_settled(settled, i) || offset - t->watermark >= (int64_t)t->span)
            continue;
        if (offset < t->next) {
            offset_tracker_settle(t, offset);
            continue;
        }
        set(t->known, slot_of(t, offset));
        if (offset >= t->known_end)
            t->known_end = offset + 1;
    }
    advance_to(t, t->next);
}

void offset_tracker_settled(const struct offset_tracker *t, struct offset_bits *out)
{
    ASSERT(t->watermark >= 0 && t->span <= INFLIGHT_SPAN_MAX);
    *out = (struct offset_bits){.base = t->watermark};
    const int64_t end = t->next > t->known_end ? t->next : t->known_end;
    for (int64_t offset = t->watermark; offset < end; offset++) {
        const size_t slot = slot_of(t, offset), i = (size_t)(offset - t->watermark);
        if (offset < t->next ? is_set(t->bits, slot) : !is_set(t->known, slot))
            continue;
        out->bits[i / 8] |= (uint8_t)(1u << i % 8);
        out->n_bits = i + 1;
    }
}

void offset_tracker_restart(struct offset_tracker *t, int64_t start)
{
    memset(t->bits, 0, t->span / 64 * sizeof *t->bits);
    memset(t->known, 0, t->span / 64 * sizeof *t->known);
    t->known_end = 0;
    t->n_unsettled = 0;
    t->weight_unsettled = 0;
    t->watermark = t->next = start >= 0 ? start : -1;
}

static size_t count_bits(const struct offset_tracker *t, const uint64_t *ring)
{
    size_t n = 0;
    for (size_t i = 0; i < t->span / 64; i++)
        n += (size_t)__builtin_popcountll(ring[i]);
    return n;
}

/* All that is known lies between next, which is not, and the span's end. */
static bool known_is_sound(const struct offset_tracker *t)
{
    size_t n = 0;
    for (int64_t offset = t->next; offset < t->known_end; offset++)
        n += is_known(t, offset);
    return n == count_bits(t, t->known) && !is_known(t, t->next) &&
           (n == 0 || t->known_end - t->watermark <= (int64_t)t->span);
}

bool offset_tracker_is_sound(const struct offset_tracker *t)
{
    const size_t n_bits = count_bits(t, t->bits);
    size_t n = 0;
    uint64_t weight = 0;
    int64_t lowest = t->next;
    for (int64_t offset = t->next - 1; n < n_bits && offset >= t->watermark; offset--) {
        const size_t slot = slot_of(t, offset);
        if (!is_set(t->bits, slot))
            continue;
        n++;
        weight += t->weights[slot];
        lowest = offset;
    }
    return n == n_bits && n == t->n_unsettled && weight == t->weight_unsettled &&
           lowest == t->watermark && t->next - t->watermark <= (int64_t)t->span &&
           known_is_sound(t);
}
