/*
 * Where the last tokens of a sequence's own text stood before: an index over its most recent
 * tokens, by pairs. It grows with the text and forgets what falls out of its window.
 *
 *     ... a b c x ... a b c y ... a b c     the last match of length 3 ended before "y",
 *           ^           ^           ^       the one before it before "x"
 *
 * Memory is taken at once and for good. Thread: the engine's.
 */
#ifndef SHEAF_NGRAM_H
#define SHEAF_NGRAM_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

struct ngram;

enum {
    NGRAM_MATCHES_MAX = 16, /* earlier places looked at, most recent first */
    NGRAM_LENGTH_MAX = 32,  /* longer matches are told as this long */
};

/* The places where the longest match ended. */
struct ngram_match {
    uint32_t length; /* in tokens; 0: nothing of two tokens or more matches */
    size_t n_ends;
    size_t ends[NGRAM_MATCHES_MAX]; /* indices of the text's tokens, most recent first */
};

/* Of an index over a window of so many tokens, a power of two. */
size_t ngram_bytes(size_t window);
int ngram_open(size_t window, struct ngram **out, struct err *e);
void ngram_close(struct ngram *ix);
void ngram_clear(struct ngram *ix);

void ngram_add(struct ngram *ix, int32_t token);
size_t ngram_n_tokens(const struct ngram *ix); /* added since it was clear */
/* A token of the window. */
int32_t ngram_token(const struct ngram *ix, size_t index);
void ngram_find(const struct ngram *ix, struct ngram_match *out);

#endif
