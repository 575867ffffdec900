/*
 * Stop strings over text that arrives token by token.
 *
 * A stop string counts as soon as its last byte is there, wherever token borders fall; of
 * several that end in the same new piece the one that begins first wins, the longer one among
 * equals.
 */
#ifndef SHEAF_STOP_H
#define SHEAF_STOP_H

#include <stdbool.h>
#include <stddef.h>

struct stop_match {
    size_t index;  /* which stop string */
    size_t offset; /* where it begins in text */
};

/*
 * text[0, length) ends with a piece of new_bytes bytes. True when a stop string ends in that
 * piece.
 */
bool stop_find(const char *text, size_t length, size_t new_bytes, char *const *stops,
               size_t n_stops, struct stop_match *out);

#endif
