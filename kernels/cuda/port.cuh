/*
 * What kernels may use, and nothing else: what stands here means the same with nvcc
 * (port_cuda.cuh) and on the emulation (emu/port_emu.h), and nothing but those differs. Written
 * in a C-like subset of C++17; no templates but for small numbers and element types, no
 * cooperative groups, no lock-step without sync_warp().
 *
 *     KERNEL void f(args)                 a kernel: __global__, private to its file; arguments
 *                                         by value. __launch_bounds__ may stand behind KERNEL.
 *     DEVICE                              a function of kernels: __device__ inline
 *     LAUNCH(f, grid, block, dynamic_bytes, stream, args...)  (f<1, 2>) in parentheses
 *     SHARED(type, name, n)               an array in shared memory, n a constant
 *     DYNAMIC_SHARED(type, name)          the launch's dynamic shared memory, 16-byte aligned
 *     threadIdx, blockIdx, blockDim, gridDim, dim3
 *     sync_block(), sync_warp()
 *     shuffle_xor(value, mask), shuffle(value, lane): float, int32_t, uint32_t; all 32 lanes
 *     vote(predicate): uint32_t of all 32 lanes
 *     atomic_add(int32_t * | float *, value), atomic_max(int32_t *, value): what was there
 *     memory_fence(): what was written before is seen before what is written after
 *     bf16 (2 bytes, member bits), to_float(bf16), to_bf16(float): to nearest even; these and
 *     half_bits_to_float(uint16_t) are the host's too
 *     copy_async_16(shared, global), copy_async_commit(), copy_async_wait<n>(): until at most n
 *     of the thread's own commits are under way; others see the bytes after a barrier
 *     load_matrix_x4(uint32_t r[4], const void *shared), load_matrix_x4_transposed(...)
 *     mma_16816(float d[4], const uint32_t a[4], const uint32_t b[2])  d += a * b, bfloat16
 *     fast_exp2(float), fast_exp(float), rsqrt_of(float)
 *     mul_rounded(float, float), add_rounded(float, float): never part of a fused operation
 *     fast_divide(float, float): within two units of the last place; 0 by more than 2^126
 *     multiply_add_pairs(uint32_t a, b, c): a * b + c of two bfloat16 each, where the product
 *     is exact; subnormal numbers count
 *     bytes_to_halves(uint32_t): the two low bytes, each in 16 bits
 *     to_e4m3_pair(float low, float high): uint32_t of two E4M3 codes (e4m3.cuh), each the
 *     nearest, of two as near the even one, no further than 448; NaN is 0x7f
 *     copy_async_16_if(is_wanted, shared, global), copy_async_16_near_if(): the second by way
 *     of the first-level cache, for bytes whose neighbours are asked for soon; 256 of them come
 *     to the second level together
 *     mma_16816_first(d, a, b): mma_16816() onto zeros
 *
 * Every thread of a block comes to the same sync_block() of the source or has returned, and all
 * 32 lanes of a warp to the same line for everything that a warp does together: the emulation
 * insists on it.
 *
 * Host side (NULL is the default stream; nothing here waits unless it says so):
 *     stream_t, stream_t stream_open(), stream_close(s), stream_wait(s)
 *     event_t, event_t event_open(), event_close(e), event_record(e, s): what was asked of the
 *     stream so far; event_wait(e): until that is done
 *     void *device_alloc(bytes), device_free(p)   256-byte aligned, of any content; NULL: none
 *     void *pinned_alloc(bytes), pinned_free(p)   host memory that copies need not stage
 *     copy_to_device(s, to, from, bytes), copy_to_host(s, to, from, bytes),
 *     copy_on_device(s, to, from, bytes)
 *     graph_t; bool capture_begin(s): what is asked of the stream from here on is noted and not
 *     done. graph_t capture_end(s): it can be done as often as wanted; NULL: it cannot. In
 *     between this thread takes and frees no memory and waits for nothing. Both ends belong
 *     together even where something failed.
 *     bool graph_launch(g, s)  does what was noted, with the arguments of then
 *     graph_free(g)  may still be under way
 *     bool device_use(ordinal, struct device_facts *out)
 *     const char *last_error()  the first thing that failed since it was last asked, or NULL
 */
#ifndef SHEAF_CUDA_PORT_CUH
#define SHEAF_CUDA_PORT_CUH

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Of the device that device_use() chose. */
struct device_facts {
    char name[96];
    int compute_capability; /* 90 */
    int n_processors;       /* streaming multiprocessors */
    size_t memory_bytes, free_bytes;
    size_t shared_bytes_max; /* of a thread block */
};

/* The upper half of a float. */
struct bf16 {
    uint16_t bits;
};

#ifdef __CUDACC__
#include "port_cuda.cuh"
#else
#include "emu/port_emu.h"
#endif
#include "port_e4m3.cuh"

#endif
