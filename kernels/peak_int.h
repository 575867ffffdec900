/* The inner loops of peak.c. Each does n rounds and returns something of its result. */
#ifndef SHEAF_PEAK_INT_H
#define SHEAF_PEAK_INT_H

#include <stddef.h>

/* Independent chains: more than latency x ports of any core, fewer than the registers. */
enum { PEAK_CHAINS_AVX512 = 16, PEAK_CHAINS_AVX2 = 12 };

/* Keeps a vector in its register and the compiler from seeing through it. */
#define PEAK_KEEP(vector) __asm__ volatile("" : "+v"(vector))

int peak_dot_avx512(size_t n);
int peak_fma_avx512(size_t n);
int peak_dot_avx2(size_t n);
int peak_fma_avx2(size_t n);

#endif
