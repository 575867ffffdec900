#include "report/percentile.h"

#include <stdlib.h>

#include "base/check.h"

size_t percentile_rank(size_t n, int p)
{
    ASSERT(n >= 1 && n <= SIZE_MAX / 100 - 1);
    ASSERT(p >= 1 && p <= 100);
    return (n * (size_t)p + 99) / 100;
}

static int compare(const void *a, const void *b)
{
    const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

void percentile_sort(int64_t *values, size_t n)
{
    if (n)
        qsort(values, n, sizeof *values, compare);
}

int64_t percentile_of(const int64_t *values, size_t n, int p)
{
    return values[percentile_rank(n, p) - 1];
}
