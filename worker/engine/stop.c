#include "engine/stop.h"

#include <string.h>

static bool find_one(const char *text, size_t length, size_t new_bytes, const char *stop,
                     size_t *offset)
{
    const size_t n = strlen(stop);
    if (n == 0 || n > length)
        return false;
    /* The match must end inside the new piece, so it begins no earlier than this. */
    const size_t old = length - new_bytes;
    const size_t first = old + 1 > n ? old + 1 - n : 0;
    for (size_t at = first; at + n <= length; at++) {
        if (memcmp(text + at, stop, n) == 0) {
            *offset = at;
            return true;
        }
    }
    return false;
}

bool stop_find(const char *text, size_t length, size_t new_bytes, char *const *stops,
               size_t n_stops, struct stop_match *out)
{
    bool found = false;
    for (size_t i = 0; i < n_stops; i++) {
        size_t offset;
        if (!find_one(text, length, new_bytes, stops[i], &offset))
            continue;
        const bool better =
            !found || offset < out->offset ||
            (offset == out->offset && strlen(stops[i]) > strlen(stops[out->index]));
        if (better)
            *out = (struct stop_match){.index = i, .offset = offset};
        found = true;
    }
    return found;
}
