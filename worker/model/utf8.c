#include "model/utf8.h"

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

size_t utf8_sequence(const char *bytes, size_t length)
{
    if (length == 0)
        return 0;
    unsigned char low, high;
    const size_t needed = sequence_length((unsigned char)bytes[0], &low, &high);
    if (needed > length)
        return 0;
    for (size_t i = 1; i < needed; i++) {
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
        const size_t n = utf8_sequence(bytes + at, length - at);
        if (n == 0)
            break;
        at += n;
    }
    return at;
}
