/*
 * The n-th allocation of our own code fails. Programs named test_*_alloc are linked so that
 * malloc, calloc, realloc, strdup and strndup come here first (--wrap, tests/CMakeLists.txt).
 */
#ifndef SHEAF_FAILING_ALLOC_H
#define SHEAF_FAILING_ALLOC_H

#include <stdbool.h>
#include <stddef.h>

/* Counts from here on; the nth fails (from 1), and with for_good every later one too. */
void failing_alloc_arm(long nth, bool for_good);
void failing_alloc_disarm(void);
/* Of an armed span, also after it: allocations asked for, and refused. */
size_t failing_alloc_asked(void);
size_t failing_alloc_refused(void);

#endif
