/* Counts that plans and graphs are made for, so that few serve all steps: 1, 2, 4, 8, 16, 24,
 * 32, 48, 64, 96 and so on. Of 17 and more a third at most is filled up. */
#ifndef SHEAF_CUDA_BUCKETS_H
#define SHEAF_CUDA_BUCKETS_H

#include <stdint.h>

/* The least of them that is not less than n. */
static inline uint64_t bucket_of(uint64_t n)
{
    uint64_t power = 1;
    while (power < n)
        power *= 2;
    return power > 16 && n <= power / 4 * 3 ? power / 4 * 3 : power;
}

#endif
