/*
 * ASSERT is for our own bugs, never for input: always compiled in, prints and aborts.
 * ASSERT_SLOW is for walkers that are too slow for a release build.
 */
#ifndef SHEAF_CHECK_H
#define SHEAF_CHECK_H

#include <stdio.h>
#include <stdlib.h>

#define ASSERT(condition)                                                                      \
    do {                                                                                       \
        if (!(condition)) {                                                                    \
            fprintf(stderr, "sheaf: bug: %s:%d: %s does not hold\n", __FILE__, __LINE__,       \
                    #condition);                                                               \
            abort();                                                                           \
        }                                                                                      \
    } while (0)

#ifdef SHEAF_DEBUG
#define ASSERT_SLOW(condition) ASSERT(condition)
#else
#define ASSERT_SLOW(condition) ((void)(0 && (condition))) /* compiled, never run */
#endif

#endif
