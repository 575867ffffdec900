/* Arithmetic of sizes that many files need. */
#ifndef SHEAF_SIZE_H
#define SHEAF_SIZE_H

#include <stddef.h>

static inline size_t size_min(size_t a, size_t b)
{
    return a < b ? a : b;
}

static inline size_t size_max(size_t a, size_t b)
{
    return a > b ? a : b;
}

/* Rounded up. */
static inline size_t size_divide_up(size_t a, size_t b)
{
    return (a + b - 1) / b;
}

#endif
