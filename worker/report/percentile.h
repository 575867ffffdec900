/*
 * Percentiles by nearest rank, one rule for C and SQL: of n sorted values the one of rank
 * (n * p + 99) / 100 in integers, counted from 1. No interpolation: the result is always a
 * value that was measured.
 */
#ifndef SHEAF_PERCENTILE_H
#define SHEAF_PERCENTILE_H

#include <stddef.h>
#include <stdint.h>

/* 1..n for p in 1..100 and n >= 1. */
size_t percentile_rank(size_t n, int p);
void percentile_sort(int64_t *values, size_t n);
/* values sorted upwards, n >= 1. */
int64_t percentile_of(const int64_t *values, size_t n, int p);

#endif
