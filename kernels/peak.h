/*
 * What this machine can do at most, measured: the yardstick of every speed that Sheaf reports.
 * Read it in the same process and minute as the speed itself; machines drift.
 */
#ifndef SHEAF_PEAK_H
#define SHEAF_PEAK_H

#include <stddef.h>

#include "kernels.h"

enum { PEAK_THREADS_MAX = 256 };

/*
 * Each runs n_threads (1..PEAK_THREADS_MAX, the caller waits) for about 0.2 s and sets *rate
 * to the sum over the threads, per second of the time that a thread computed: a neighbour that
 * takes a core away for a while lowers no peak. The CPU must have the instruction set. Fails
 * with ERR_STATE or ERR_NOMEM when the system refuses a thread or the memory.
 *
 * peak_int8: multiplications and additions (2 per product) of the byte dot product that isa
 * uses: vpdpbusd with avx512, vpmaddubsw + vpmaddwd + vpaddd with avx2, plain C with ref. It is
 * that of any bytes: products of 4-bit codes, whose sums need widening less often on AVX2, can
 * be faster.
 * peak_int16: the same of the word dot product: vpdpwssd; vpmaddwd + vpaddd; plain C.
 * peak_f32: the same of float32 fused multiply-adds; with ref a product and a sum.
 * peak_read: bytes read from memory, one stream of 256 MiB per thread, more
 * than a core's share of any cache.
 */
int peak_int8(enum kernels_isa isa, size_t n_threads, double *rate, struct err *e);
int peak_int16(enum kernels_isa isa, size_t n_threads, double *rate, struct err *e);
int peak_f32(enum kernels_isa isa, size_t n_threads, double *rate, struct err *e);
int peak_read(size_t n_threads, double *rate, struct err *e);

/*
 * What is held against a peak: round does `units` of work, in a few milliseconds at most, on
 * data of its thread (0..n_threads-1) alone.
 */
struct peak_work {
    void (*round)(void *ctx, size_t thread);
    void *ctx;
    double units;
};
/* Its rate, measured as the peaks are. */
int peak_work_rate(const struct peak_work *work, size_t n_threads, double *rate, struct err *e);

#endif
