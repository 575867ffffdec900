#include "bench_median.h"

#include <stdlib.h>

#include "report/percentile.h"

static int compare_doubles(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

struct median median_of(double *values, size_t n)
{
    qsort(values, n, sizeof values[0], compare_doubles);
    const double median = values[percentile_rank(n, 50) - 1];
    return (struct median){median, (values[n - 1] - values[0]) / median};
}
