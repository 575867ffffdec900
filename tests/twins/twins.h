/* What the twin tests share: reproducible inputs, and a comparison of float bits. */
#ifndef SHEAF_TESTS_TWINS_H
#define SHEAF_TESTS_TWINS_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "kernels_int.h"
#include "twin_runs.h"

#ifdef SHEAF_REF_ONLY
#define TWINS_OF(op)                                                                           \
    {                                                                                          \
        op##_ref                                                                               \
    }
enum { N_TWINS = 1 };
#else
#define TWINS_OF(op)                                                                           \
    {                                                                                          \
        op##_ref, op##_avx2, op##_avx512                                                       \
    }
enum { N_TWINS = 3 };
#endif

/* Uniform in [-range, range), a pure function of stream and i. */
static inline float random_float(uint64_t stream, size_t i, float range)
{
    return ((float)rng_uniform(1, stream, i) * 2.0f - 1.0f) * range;
}

static inline void fill_random(uint64_t stream, float range, size_t n, float *x)
{
    for (size_t i = 0; i < n; i++)
        x[i] = random_float(stream, i, range);
}

/* Exactly n floats, aligned as kernels.h wants them, so that ASan sees one too many. */
static inline float *new_floats(size_t n)
{
    void *p = NULL;
    if (posix_memalign(&p, KERNELS_ALIGN, (n ? n : 1) * sizeof(float)) != 0)
        abort();
    memset(p, 0, n * sizeof(float));
    return p;
}

/* Index of the first element whose bits differ; n when all are the same. */
static inline size_t first_difference(const float *a, const float *b, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (memcmp(&a[i], &b[i], sizeof a[i]) != 0)
            return i;
    return n;
}

static inline bool same_bits(const char *what, const float *want, const float *got, size_t n)
{
    const size_t i = first_difference(want, got, n);
    if (i == n)
        return true;
    fprintf(stderr, "%s: element %zu of %zu is %a, not %a\n", what, i, n, (double)got[i],
            (double)want[i]);
    return false;
}

#endif
