/* Heads of random numbers for a model; close them with heads_close. */
#ifndef SHEAF_TEST_HEADS_MAKE_H
#define SHEAF_TEST_HEADS_MAKE_H

#include "model/heads.h"

struct heads_shape {
    uint64_t seed;
    size_t n_heads, n_blocks;
    bool has_output; /* each its own */
    size_t n_draft;  /* 0: the whole vocabulary, without a list */
    float scale;     /* of all numbers, a power of two; each of them is exact in 8 bits */
};

struct heads *heads_make(const struct model *m, const struct heads_shape *s);

#endif
