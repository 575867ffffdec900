/*
 * An engine over the tiny models against the float64 reference (tests/golden/tiny/README.md).
 */
#ifndef SHEAF_TEST_GOLDEN_TINY_H
#define SHEAF_TEST_GOLDEN_TINY_H

#include "golden.h"

struct golden_tolerance {
    double max_abs; /* of the last position */
    double rms;     /* of the last position */
    double gap;     /* arg-max must be equal from this gap on */
};

/* Greatest differences from the reference, and how many arg-max were compared. */
struct golden_worst {
    double max_abs, rms;
    size_t compared;
};

/* Group set-up and tear-down. */
int golden_tiny_load(void **state);
int golden_tiny_unload(void **state);

/* The models that are no refused ones; returns how many. */
size_t golden_tiny_models(const json_t *entries[16]);
const char *golden_tiny_name(const json_t *entry);
/* Six prompts, then free running greedy through the queue: equal up to the first gap that is
 * too small. Fails the test. */
struct golden_worst golden_tiny_check(struct engine *eng, const struct model *m,
                                      const json_t *entry, const struct golden_tolerance *t);

#endif
