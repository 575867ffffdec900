#include "model/utf8_stream.h"

#include <stdint.h>
#include <string.h>

#include "base/check.h"

/* Table 3-7: what may follow a first byte. */
static size_t sequence_length(unsigned char first, unsigned char *low, unsigned char *high)
{
    *low = 0x80;
    *high = 0xBF;
    if (first < 0x80)
        return 1;
    if (first >= 0xC2 && first <= 0xDF)
        return 2;
    if (first >= 0xE0 && first <= 0xEF) {
        if (first == 0xE0)
            *low = 0xA0;
        if (first == 0xED)
            *high = 0x9F;
        return 3;
    }
    if (first >= 0xF0 && first <= 0xF4) {
        if (first == 0xF0)
            *low = 0x90;
        if (first == 0xF4)
            *high = 0x8F;
        return 4;
    }
    return 0;
}

size_t utf8_sequence(const char *bytes, size_t length, bool *incomplete)
{
    if (incomplete)
        *incomplete = false;
    if (length == 0)
        return 0;
    unsigned char low, high;
    const size_t needed = sequence_length((unsigned char)bytes[0], &low, &high);
    for (size_t i = 1; i < needed; i++) {
        if (i == length) {
            if (incomplete)
                *incomplete = true;
            return 0;
        }
        const unsigned char byte = (unsigned char)bytes[i];
        if (byte < low || byte > high)
            return 0;
        low = 0x80;
        high = 0xBF;
    }
    return needed;
}

size_t utf8_valid_prefix(const char *bytes, size_t length)
{
    size_t at = 0;
    while (at < length) {
        if ((unsigned char)bytes[at] < 0x80) { /* speed only */
            at++;
            continue;
        }
        const size_t n = utf8_sequence(bytes + at, length - at, NULL);
        if (n == 0)
            break;
        at += n;
    }
    return at;
}

/* How much of the text may go out: all but a tail that more bytes could complete. */
static size_t releasable(const char *bytes, size_t length)
{
    size_t at = 0;
    while (at < length) {
        bool incomplete;
        const size_t n = utf8_sequence(bytes + at, length - at, &incomplete);
        if (n == 0 && incomplete)
            return at;
        at += n ? n : 1;
    }
    return at;
}

void utf8_stream_push(struct utf8_stream *s, const char *bytes, size_t length, struct buf *out)
{
    size_t used = 0;
    while (s->n_held > 0 && used < length) {
        s->held[s->n_held++] = bytes[used++];
        const size_t n = releasable(s->held, s->n_held);
        buf_append(out, s->held, n);
        s->n_held -= n;
        memmove(s->held, s->held + n, s->n_held);
        ASSERT(s->n_held < sizeof s->held);
    }
    if (s->n_held > 0)
        return;
    const size_t n = releasable(bytes + used, length - used);
    buf_append(out, bytes + used, n);
    s->n_held = length - used - n;
    ASSERT(s->n_held < sizeof s->held);
    memcpy(s->held, bytes + used + n, s->n_held);
}

void utf8_stream_flush(struct utf8_stream *s, struct buf *out)
{
    buf_append(out, s->held, s->n_held);
    s->n_held = 0;
}
