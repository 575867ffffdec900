/* Arithmetic of measurements: in which order states are measured, what samples come to, and
 * which answers are the same. */
#ifndef SHEAF_EXPERIMENT_H
#define SHEAF_EXPERIMENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * Which of n states is measured at a position: forwards, then backwards, and so on. For two
 * that is A B B A A B B A: what drifts slowly, as a machine that warms up, weighs on both
 * alike.
 */
size_t experiment_state(size_t n_states, size_t position);

struct quantiles {
    double p50, p95, p99; /* NaN: there are no samples */
};
/* Of microseconds, in milliseconds, by nearest rank. Sorts the samples. */
struct quantiles experiment_quantiles(int64_t *us, size_t n);

struct experiment_answer {
    char *text; /* owned by its half; NULL: refused */
    size_t n_text;
    size_t n_tokens;
    int reason; /* enum finish_reason */
};
/* Byte for byte, and ended by the same token for the same reason; or both refused. */
bool experiment_is_same(const struct experiment_answer *a, const struct experiment_answer *b);

#endif
