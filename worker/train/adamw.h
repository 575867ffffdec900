/*
 * AdamW (Loshchilov and Hutter 2019, algorithm 2), on a run of parameters:
 *
 *     m = b1 m + (1 - b1) g                 v = b2 v + (1 - b2) g^2
 *     w = w - rate * (m / (1 - b1^t) / (sqrt(v / (1 - b2^t)) + eps) + decay * w)
 *
 * with b1 0.9, b2 0.999 and eps 1e-8. Every parameter for itself: however a run is cut, the
 * bits are the same.
 */
#ifndef SHEAF_ADAMW_H
#define SHEAF_ADAMW_H

#include <stddef.h>
#include <stdint.h>

struct adamw {
    double rate;
    double decay;
    uint64_t step; /* t, from 1 */
};

void adamw_step(const struct adamw *a, const float *gradient, size_t n, float *weights,
                float *first, float *second);

#endif
