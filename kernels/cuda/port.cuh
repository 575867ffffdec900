/*
 * What kernels may use, and nothing else: this header is all that differs between nvcc and the
 * emulation (emu/). Written in a C-like subset of C++17; no templates but for small numbers and
 * element types, no cooperative groups, no lock-step without syncwarp().
 *
 *     KERNEL void f(args)                 a kernel: __global__
 *     DEVICE                              a function of kernels: __device__ inline
 *     LAUNCH(f, grid, block, dynamic_bytes, stream, args...)
 *     SHARED(type, name, n)               an array in shared memory, n a constant
 *     DYNAMIC_SHARED(type, name)          the launch's dynamic shared memory, 16-byte aligned
 *     threadIdx, blockIdx, blockDim, gridDim, dim3
 *     sync_block(), sync_warp()
 *     shuffle_xor(value, mask), shuffle(value, lane): float, int32_t, uint32_t; all 32 lanes
 *     vote(predicate): uint32_t of all 32 lanes
 *     atomic_add(int32_t * | float *, value), atomic_max(int32_t *, value)
 *     bf16 (2 bytes), to_float(bf16), to_bf16(float): to nearest even
 *     half_bits_to_float(uint16_t)
 *     copy_async_16(shared, global), copy_async_commit(), copy_async_wait<n>()
 *     load_matrix_x4(uint32_t r[4], const void *shared), load_matrix_x4_transposed(...)
 *     mma_16816(float d[4], const uint32_t a[4], const uint32_t b[2])  d += a * b, bfloat16
 *     fast_exp2(float), fast_exp(float), rsqrt_of(float)
 *     mul_rounded(float, float), add_rounded(float, float): never part of a fused operation
 *
 * Host side:
 *     stream_t, memory: device_alloc, device_free, copy_to_device, copy_to_host (on a stream),
 *     pinned_alloc, pinned_free, stream_wait, last_error -> sentence or NULL
 */
#ifndef SHEAF_CUDA_PORT_CUH
#define SHEAF_CUDA_PORT_CUH

#ifdef __CUDACC__
#include "port_cuda.cuh"
#else
#include "emu/port_emu.h"
#endif

/* The host's files are built without contraction. */
DEVICE float mul_rounded(float a, float b)
{
#ifdef __CUDA_ARCH__
    return __fmul_rn(a, b);
#else
    return a * b;
#endif
}

DEVICE float add_rounded(float a, float b)
{
#ifdef __CUDA_ARCH__
    return __fadd_rn(a, b);
#else
    return a + b;
#endif
}

#endif
