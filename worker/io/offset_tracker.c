#include "offset_tracker.h"

#include <stdlib.h>
#include <string.h>

#include "base/check.h"

static size_t slot_of(const struct offset_tracker *t, int64_t offset)
{
    return (size_t)offset & (t->span - 1);
}

static bool is_set(const struct offset_tracker *t, size_t slot)
{
    return t->bits[slot / 64] >> (slot % 64) & 1;
}

int offset_tracker_init(struct offset_tracker *t, int64_t start, size_t span, struct err *e)
{
    ASSERT(span >= 64 && (span & (span - 1)) == 0);
    *t = (struct offset_tracker){.span = span};
    t->bits = calloc(span / 64, sizeof *t->bits);
    t->weights = calloc(span, sizeof *t->weights);
    if (!t->bits || !t->weights) {
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
    *t = (struct offset_tracker){0};
}

bool offset_tracker_has_room(const struct offset_tracker *t, int64_t offset)
{
    return t->n_unsettled == 0 || offset - t->watermark < (int64_t)t->span;
}

bool offset_tracker_receive(struct offset_tracker *t, int64_t offset, uint32_t weight)
{
    if (offset < 0 || offset < t->next)
        return false;
    ASSERT(offset_tracker_has_room(t, offset));
    const size_t slot = slot_of(t, offset);
    ASSERT(!is_set(t, slot));
    t->bits[slot / 64] |= UINT64_C(1) << (slot % 64);
    t->weights[slot] = weight;
    t->next = offset + 1;
    if (t->n_unsettled == 0)
        t->watermark = offset;
    t->n_unsettled++;
    t->weight_unsettled += weight;
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
    t->bits[slot / 64] &= ~(UINT64_C(1) << (slot % 64));
    t->n_unsettled--;
    t->weight_unsettled -= t->weights[slot];
}

bool offset_tracker_settle(struct offset_tracker *t, int64_t offset)
{
    if (offset < 0 || offset < t->watermark || offset >= t->next)
        return false;
    const size_t slot = slot_of(t, offset);
    if (!is_set(t, slot))
        return false;
    clear(t, slot);
    if (offset == t->watermark)
        t->watermark = first_unsettled(t, offset + 1);
    ASSERT_SLOW(offset_tracker_is_sound(t));
    return true;
}

void offset_tracker_skip_to(struct offset_tracker *t, int64_t offset)
{
    if (offset <= t->next)
        return;
    if (t->n_unsettled == 0)
        t->watermark = offset;
    else if (offset - t->watermark > (int64_t)t->span)
        return; /* the ring cannot tell offsets so far apart; next stays where it is */
    t->next = offset;
}

void offset_tracker_settle_below(struct offset_tracker *t, int64_t offset)
{
    while (t->n_unsettled > 0 && t->watermark < offset)
        offset_tracker_settle(t, t->watermark);
    offset_tracker_skip_to(t, offset);
}

void offset_tracker_restart(struct offset_tracker *t, int64_t start)
{
    memset(t->bits, 0, t->span / 64 * sizeof *t->bits);
    t->n_unsettled = 0;
    t->weight_unsettled = 0;
    t->watermark = t->next = start >= 0 ? start : -1;
}

bool offset_tracker_is_sound(const struct offset_tracker *t)
{
    size_t n_bits = 0;
    for (size_t i = 0; i < t->span / 64; i++)
        n_bits += (size_t)__builtin_popcountll(t->bits[i]);
    size_t n = 0;
    uint64_t weight = 0;
    int64_t lowest = t->next;
    for (int64_t offset = t->next - 1; n < n_bits && offset >= t->watermark; offset--) {
        const size_t slot = slot_of(t, offset);
        if (!is_set(t, slot))
            continue;
        n++;
        weight += t->weights[slot];
        lowest = offset;
    }
    return n == n_bits && n == t->n_unsettled && weight == t->weight_unsettled &&
           lowest == t->watermark && t->next - t->watermark <= (int64_t)t->span;
}
