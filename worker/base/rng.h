/*
 * Counter-based random numbers: a pure function of (seed, stream, counter), so that a draw
 * depends on the job and the position it is for and on nothing that ran beside it. The mixer
 * is the finaliser of SplitMix64 (Steele, Lea, Flood 2014), applied between the three words.
 */
#ifndef SHEAF_RNG_H
#define SHEAF_RNG_H

#include <stdint.h>

uint64_t rng_bits(uint64_t seed, uint64_t stream, uint64_t counter);
/* Uniform in [0, 1), 53 bits. */
double rng_uniform(uint64_t seed, uint64_t stream, uint64_t counter);

#endif
