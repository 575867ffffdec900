/* The middle of a bench's repeats. */
#ifndef SHEAF_BENCH_MEDIAN_H
#define SHEAF_BENCH_MEDIAN_H

#include <stddef.h>

struct median {
    double value;  /* by nearest rank, as percentile.h has it: the lower of two */
    double spread; /* (greatest - smallest) / median */
};

/* Sorts the n >= 1 values. */
struct median median_of(double *values, size_t n);

#endif
