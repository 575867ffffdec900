/*
 * What kernels may use, and nothing else: this header is all that differs between nvcc and the
 * emulation (emu/). Written in a C-like subset of C++17; no templates but for small numbers and
 * element types, no cooperative groups, no lock-step without sync_warp().
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

DEVICE float fast_divide(float a, float b)
{
#ifdef __CUDA_ARCH__
    return __fdividef(a, b);
#else
    return a / b;
#endif
}

#ifndef __CUDACC__
/* Subnormal floats would take the host's processor a hundred times as long. */
DEVICE double double_of_bf16(uint32_t bits)
{
    if (bits & 0x7f80)
        return (double)to_float(bf16{(uint16_t)bits});
    const double magnitude = (double)(bits & 0x7f) * 0x1p-133;
    return bits & 0x8000 ? -magnitude : magnitude;
}
#endif

/* bfloat16 has no mode in which small numbers become zero. */
DEVICE uint32_t multiply_add_pairs(uint32_t a, uint32_t b, uint32_t c)
{
#ifdef __CUDACC__
    uint32_t d;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
#else
    uint32_t d = 0;
    for (int i = 0; i < 32; i += 16) {
        const double x = double_of_bf16(a >> i & 0xffff);
        const double y = double_of_bf16(b >> i & 0xffff);
        const double z = double_of_bf16(c >> i & 0xffff);
        d |= (uint32_t)to_bf16((float)(x * y + z)).bits << i;
    }
    return d;
#endif
}

DEVICE uint32_t bytes_to_halves(uint32_t two)
{
#ifdef __CUDA_ARCH__
    return __byte_perm(two, 0, 0x4140);
#else
    return (two & 0xff) | (two & 0xff00) << 8;
#endif
}

/* Devices of 8.9 and later have an instruction for two codes. */
DEVICE uint32_t port_e4m3(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof(bits));
    const uint32_t sign = bits >> 24 & 0x80;
    const uint32_t size = bits & 0x7fffffff;
    if (size > 0x7f800000)
        return 0x7f;
    if (size >= 0x43e00000) /* 448 */
        return sign | 0x7e;
    if (size >= 0x3c800000) { /* 2^-6: 20 bits fewer of mantissa, another exponent bias */
        const uint32_t rounded = size + 0x7ffff + (size >> 20 & 1);
        return sign | ((rounded >> 20) - ((127 - 7) << 3));
    }
    const float units = fabsf(value) + 16384.0f; /* whose last bit is 2^-9, like theirs */
    memcpy(&bits, &units, sizeof(bits));
    return sign | (bits - 0x46800000);
}

DEVICE uint32_t to_e4m3_pair(float low, float high)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
    uint16_t pair;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(high), "f"(low));
    return pair;
#else
    return port_e4m3(low) | port_e4m3(high) << 8;
#endif
}

/* The compiler branches around a copy in an `if`; a predicate costs less. */
DEVICE void copy_async_16_if(bool is_wanted, void *shared, const void *global)
{
#ifdef __CUDA_ARCH__
    asm volatile("{\n\t"
                 ".reg .pred wanted;\n\t"
                 "setp.ne.b32 wanted, %2, 0;\n\t"
                 "@wanted cp.async.cg.shared.global [%0], [%1], 16;\n\t"
                 "}" ::"r"(port_shared_address(shared)),
                 "l"(__cvta_generic_to_global(global)), "r"((int)is_wanted)
                 : "memory");
#else
    if (is_wanted)
        copy_async_16(shared, global);
#endif
}

DEVICE void copy_async_16_near_if(bool is_wanted, void *shared, const void *global)
{
#ifdef __CUDA_ARCH__
    asm volatile("{\n\t"
                 ".reg .pred wanted;\n\t"
                 "setp.ne.b32 wanted, %2, 0;\n\t"
                 "@wanted cp.async.ca.shared.global.L2::256B [%0], [%1], 16;\n\t"
                 "}" ::"r"(port_shared_address(shared)),
                 "l"(__cvta_generic_to_global(global)), "r"((int)is_wanted)
                 : "memory");
#else
    if (is_wanted)
        copy_async_16(shared, global);
#endif
}

/* Without registers that have to be cleared. */
DEVICE void mma_16816_first(float d[4], const uint32_t a[4], const uint32_t b[2])
{
#ifdef __CUDA_ARCH__
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %10, %10, %10};"
        : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "f"(0.0f));
#else
    d[0] = d[1] = d[2] = d[3] = 0.0f;
    mma_16816(d, a, b);
#endif
}

#endif
