/* The inner loops of peak.c. Each does n rounds and returns something of its result; memory is
 * for the loop that reads. */
#ifndef SHEAF_PEAK_INT_H
#define SHEAF_PEAK_INT_H

#include <stddef.h>
#include <stdint.h>

/*
 * Independent chains: at least latency x ports, and few enough that the compiler keeps all of
 * them in registers. An integer dot product of AVX2 chains only its last addition.
 */
enum { PEAK_CHAINS_AVX512 = 16, PEAK_FMA_CHAINS_AVX2 = 10, PEAK_DOT_CHAINS_AVX2 = 6 };

/* Keeps a vector in its register and the compiler from seeing through it. */
#define PEAK_KEEP(vector) __asm__ volatile("" : "+v"(vector))

int peak_dot_avx512(size_t n, const uint8_t *memory);
int peak_dot_words_avx512(size_t n, const uint8_t *memory);
int peak_fma_avx512(size_t n, const uint8_t *memory);
int peak_dot_avx2(size_t n, const uint8_t *memory);
int peak_dot_words_avx2(size_t n, const uint8_t *memory);
int peak_fma_avx2(size_t n, const uint8_t *memory);

#endif
