/*
 * port.cuh for nvcc: its names in terms of CUDA, and all PTX that kernels use. sm_80 and later.
 */
#ifndef SHEAF_PORT_CUDA_CUH
#define SHEAF_PORT_CUDA_CUH

#include <cuda_runtime.h>
#include <stdio.h>

#define KERNEL     static __global__
#define DEVICE     static __device__ __forceinline__
#define SHEAF_BOTH static __host__ __device__ __forceinline__

/* ------------------------------------------------------------------ launches and memory */

typedef cudaStream_t stream_t;
typedef cudaEvent_t event_t;

/* What a block gets without asking. */
enum { PORT_DYNAMIC_BYTES_FREE = 48 << 10 };

template <class T> struct port_type {
    typedef T type;
};

/* Errors are for last_error(). */
template <class... P>
static void port_launch(void (*kernel)(P...), dim3 grid, dim3 block, size_t dynamic_bytes,
                        stream_t s, typename port_type<P>::type... arguments)
{
    if (dynamic_bytes > PORT_DYNAMIC_BYTES_FREE)
        cudaFuncSetAttribute((const void *)kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             (int)dynamic_bytes);
    kernel<<<grid, block, dynamic_bytes, s>>>(arguments...);
}

#define LAUNCH(f, grid, block, dynamic_bytes, stream, ...)                                     \
    port_launch(f, grid, block, dynamic_bytes, stream, ##__VA_ARGS__)

#define SHARED(type, name, n) __shared__ __align__(16) type name[n]

/* One name for all: kernels of one file share it. */
extern __shared__ __align__(16) unsigned char port_dynamic_shared[];
#define DYNAMIC_SHARED(type, name) type *name = reinterpret_cast<type *>(port_dynamic_shared)

static inline stream_t stream_open()
{
    stream_t s = nullptr;
    return cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking) == cudaSuccess ? s : nullptr;
}

static inline void stream_close(stream_t s)
{
    if (s)
        cudaStreamDestroy(s);
}

static inline void stream_wait(stream_t s)
{
    cudaStreamSynchronize(s);
}

static inline event_t event_open()
{
    event_t e = nullptr;
    return cudaEventCreateWithFlags(&e, cudaEventDisableTiming) == cudaSuccess ? e : nullptr;
}

static inline void event_close(event_t e)
{
    if (e)
        cudaEventDestroy(e);
}

static inline void event_record(event_t e, stream_t s)
{
    cudaEventRecord(e, s);
}

static inline void event_wait(event_t e)
{
    cudaEventSynchronize(e);
}

static inline void *device_alloc(size_t bytes)
{
    void *p = nullptr;
    return cudaMalloc(&p, bytes ? bytes : 1) == cudaSuccess ? p : nullptr;
}

static inline void device_free(void *p)
{
    cudaFree(p);
}

static inline void *pinned_alloc(size_t bytes)
{
    void *p = nullptr;
    return cudaMallocHost(&p, bytes ? bytes : 1) == cudaSuccess ? p : nullptr;
}

static inline void pinned_free(void *p)
{
    if (p)
        cudaFreeHost(p);
}

static inline void copy_to_device(stream_t s, void *to, const void *from, size_t bytes)
{
    cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, s);
}

static inline void copy_to_host(stream_t s, void *to, const void *from, size_t bytes)
{
    cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, s);
}

static inline void copy_on_device(stream_t s, void *to, const void *from, size_t bytes)
{
    cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, s);
}

/* ------------------------------------------------------------------ graphs */

typedef cudaGraphExec_t graph_t;

static inline bool capture_begin(stream_t s)
{
    return cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal) == cudaSuccess;
}

static inline graph_t capture_end(stream_t s)
{
    cudaGraph_t graph = nullptr;
    graph_t out = nullptr;
    if (cudaStreamEndCapture(s, &graph) != cudaSuccess || !graph)
        return nullptr;
    if (cudaGraphInstantiate(&out, graph, 0) != cudaSuccess)
        out = nullptr;
    cudaGraphDestroy(graph);
    return out;
}

static inline bool graph_launch(graph_t g, stream_t s)
{
    return cudaGraphLaunch(g, s) == cudaSuccess;
}

static inline void graph_free(graph_t g)
{
    if (g)
        cudaGraphExecDestroy(g);
}

/* ------------------------------------------------------------------ errors, facts */

/* The runtime keeps the last error of the thread until it is asked for. */
static inline const char *last_error()
{
    const cudaError_t error = cudaGetLastError();
    return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

static inline bool device_use(int ordinal, device_facts *out)
{
    cudaDeviceProp facts;
    if (cudaSetDevice(ordinal) != cudaSuccess ||
        cudaGetDeviceProperties(&facts, ordinal) != cudaSuccess)
        return false;
    *out = device_facts();
    snprintf(out->name, sizeof(out->name), "%.95s", facts.name);
    out->compute_capability = 10 * facts.major + facts.minor;
    out->n_processors = facts.multiProcessorCount;
    out->shared_bytes_max = facts.sharedMemPerBlockOptin;
    return cudaMemGetInfo(&out->free_bytes, &out->memory_bytes) == cudaSuccess;
}

/* ------------------------------------------------------------------ numbers */

SHEAF_BOTH float port_float(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof(value));
    return value;
}

SHEAF_BOTH float to_float(bf16 value)
{
    return port_float((uint32_t)value.bits << 16);
}

SHEAF_BOTH bf16 to_bf16(float value)
{
    bf16 out;
#ifdef __CUDA_ARCH__
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(out.bits) : "f"(value));
#else
    uint32_t bits;
    memcpy(&bits, &value, sizeof(bits));
    const bool is_nan = (bits & 0x7fffffff) > 0x7f800000;
    out.bits = is_nan ? 0x7fff : (uint16_t)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
#endif
    return out;
}

SHEAF_BOTH float half_bits_to_float(uint16_t half)
{
#ifdef __CUDA_ARCH__
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(half));
    return value;
#else
    const uint32_t sign = (uint32_t)(half & 0x8000) << 16;
    const uint32_t exponent = (half >> 10) & 31, fraction = half & 0x3ff;
    if (exponent == 31)
        return port_float(sign | 0x7f800000 | fraction << 13);
    if (exponent == 0)
        return (sign ? -1.0f : 1.0f) * (float)fraction / 16777216.0f;
    return port_float(sign | (exponent + 112) << 23 | fraction << 13);
#endif
}

DEVICE float fast_exp2(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

DEVICE float fast_exp(float x)
{
    return fast_exp2(x * 1.4426950408889634f);
}

DEVICE float rsqrt_of(float x)
{
    return rsqrtf(x);
}

DEVICE float mul_rounded(float a, float b)
{
    return __fmul_rn(a, b);
}

DEVICE float add_rounded(float a, float b)
{
    return __fadd_rn(a, b);
}

DEVICE float fast_divide(float a, float b)
{
    return __fdividef(a, b);
}

/* bfloat16 has no mode in which small numbers become zero. */
DEVICE uint32_t multiply_add_pairs(uint32_t a, uint32_t b, uint32_t c)
{
    uint32_t d;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
}

DEVICE uint32_t bytes_to_halves(uint32_t two)
{
    return __byte_perm(two, 0, 0x4140);
}

/* ------------------------------------------------------------------ threads together */

enum : unsigned { PORT_ALL_LANES = 0xffffffffu };

DEVICE void sync_block()
{
    __syncthreads();
}

DEVICE void sync_warp()
{
    __syncwarp();
}

template <class T> static __device__ __forceinline__ T shuffle(T value, int lane)
{
    return __shfl_sync(PORT_ALL_LANES, value, lane);
}

template <class T> static __device__ __forceinline__ T shuffle_xor(T value, int mask)
{
    return __shfl_xor_sync(PORT_ALL_LANES, value, mask);
}

DEVICE uint32_t vote(bool predicate)
{
    return __ballot_sync(PORT_ALL_LANES, predicate);
}

DEVICE int32_t atomic_add(int32_t *p, int32_t value)
{
    return atomicAdd(p, value);
}

DEVICE float atomic_add(float *p, float value)
{
    return atomicAdd(p, value);
}

DEVICE int32_t atomic_max(int32_t *p, int32_t value)
{
    return atomicMax(p, value);
}

DEVICE void memory_fence()
{
    __threadfence();
}

/* ------------------------------------------------------------------ copies and matrices */

DEVICE uint32_t port_shared_address(const void *shared)
{
    return (uint32_t)__cvta_generic_to_shared(shared);
}

/* Past the first-level cache, as what is copied is read once by a block. */
DEVICE void copy_async_16(void *shared, const void *global)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(port_shared_address(shared)),
                 "l"(__cvta_generic_to_global(global))
                 : "memory");
}

/* The compiler branches around a copy in an `if`; a predicate costs less. */
#define PORT_COPY_16_IF(way, is_wanted, shared, global)                                        \
    asm volatile("{\n\t"                                                                       \
                 ".reg .pred wanted;\n\t"                                                      \
                 "setp.ne.b32 wanted, %2, 0;\n\t"                                              \
                 "@wanted cp.async." way " [%0], [%1], 16;\n\t"                                \
                 "}" ::"r"(port_shared_address(shared)),                                       \
                 "l"(__cvta_generic_to_global(global)), "r"((int)(is_wanted))                  \
                 : "memory")

DEVICE void copy_async_16_if(bool is_wanted, void *shared, const void *global)
{
    PORT_COPY_16_IF("cg.shared.global", is_wanted, shared, global);
}

DEVICE void copy_async_16_near_if(bool is_wanted, void *shared, const void *global)
{
    PORT_COPY_16_IF("ca.shared.global.L2::256B", is_wanted, shared, global);
}

DEVICE void copy_async_commit()
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

template <int n> static __device__ __forceinline__ void copy_async_wait()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(n) : "memory");
}

DEVICE void load_matrix_x4(uint32_t r[4], const void *shared)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(port_shared_address(shared))
                 : "memory");
}

DEVICE void load_matrix_x4_transposed(uint32_t r[4], const void *shared)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(port_shared_address(shared))
                 : "memory");
}

DEVICE void mma_16816(float d[4], const uint32_t a[4], const uint32_t b[2])
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

/* Without registers that have to be cleared. */
DEVICE void mma_16816_first(float d[4], const uint32_t a[4], const uint32_t b[2])
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %10, %10, %10};"
        : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "f"(0.0f));
}

#endif
