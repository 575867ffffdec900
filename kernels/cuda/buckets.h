/* Counts that plans and graphs are made for, so that few serve all steps. Host code, pure. */
#ifndef SHEAF_CUDA_BUCKETS_H
#define SHEAF_CUDA_BUCKETS_H

#include <stdint.h>

static inline uint64_t power_of_two_from(uint64_t n)
{
    uint64_t power = 1;
    while (power < n)
        power *= 2;
    return power;
}

/* The least of 1, 2, 4, 8, 16, 24, 32, 48, 64, 96 and so on that is not less than n. */
static inline uint64_t bucket_of(uint64_t n)
{
    const uint64_t power = power_of_two_from(n);
    return power > 16 && n <= power / 4 * 3 ? power / 4 * 3 : power;
}

/* Rounds up to a whole number of parts of the power of two that n fits into. */
static inline uint64_t fine_bucket_of(uint64_t n, uint64_t n_parts)
{
    const uint64_t power = power_of_two_from(n);
    const uint64_t part = power > n_parts ? power / n_parts : 1;
    return (n + part - 1) / part * part;
}

#endif
