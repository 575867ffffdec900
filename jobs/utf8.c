#include "utf8.h"

/* The range of the second byte depends on the first; all later ones are 80..BF. */
struct lead {
    unsigned char first, last; /* range of the first byte */
    unsigned char second_min, second_max;
    unsigned char length;
};

static const struct lead leads[] = {
    {0x00, 0x7f, 0, 0, 1},       {0xc2, 0xdf, 0x80, 0xbf, 2}, {0xe0, 0xe0, 0xa0, 0xbf, 3},
    {0xe1, 0xec, 0x80, 0xbf, 3}, {0xed, 0xed, 0x80, 0x9f, 3}, {0xee, 0xef, 0x80, 0xbf, 3},
    {0xf0, 0xf0, 0x90, 0xbf, 4}, {0xf1, 0xf3, 0x80, 0xbf, 4}, {0xf4, 0xf4, 0x80, 0x8f, 4},
};

static const struct lead *find_lead(unsigned char byte)
{
    for (size_t i = 0; i < sizeof leads / sizeof leads[0]; i++)
        if (byte >= leads[i].first && byte <= leads[i].last)
            return &leads[i];
    return NULL;
}

size_t utf8_measure_char(const char *bytes, size_t length, bool *valid)
{
    const struct lead *lead = find_lead((unsigned char)bytes[0]);
    *valid = false;
    if (!lead)
        return 1;
    for (size_t i = 1; i < lead->length; i++) {
        if (i == length)
            return i;
        const unsigned char byte = (unsigned char)bytes[i];
        const unsigned char min = i == 1 ? lead->second_min : 0x80;
        const unsigned char max = i == 1 ? lead->second_max : 0xbf;
        if (byte < min || byte > max)
            return i;
    }
    *valid = true;
    return lead->length;
}

bool utf8_is_valid(const char *bytes, size_t length)
{
    bool valid = true;
    for (size_t at = 0; at < length && valid;)
        at += utf8_measure_char(bytes + at, length - at, &valid);
    return valid;
}
