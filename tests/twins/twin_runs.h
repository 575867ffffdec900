/*
 * Which twins a test program holds against the reference. Each program of this folder is built
 * twice: with the kernels as they are shipped, for what this CPU has, and as test_*_emulated
 * with the AVX-512 kernels alone, compiled for AVX2 (tests/emulated/).
 */
#ifndef SHEAF_TESTS_TWIN_RUNS_H
#define SHEAF_TESTS_TWIN_RUNS_H

#include <stdbool.h>
#include <stddef.h>

#include "kernels.h"

/* Indices as in enum kernels_isa. */
static inline bool twin_runs(size_t isa)
{
#ifdef SHEAF_EMULATED
    return isa == KERNELS_REF || (isa == KERNELS_AVX512 && kernels_has_isa(KERNELS_AVX2));
#else
    return kernels_has_isa((enum kernels_isa)isa);
#endif
}

#endif
