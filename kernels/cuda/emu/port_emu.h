/*
 * port.cuh for the host: its names in terms of the emulation (emu.h).
 */
#ifndef SHEAF_PORT_EMU_H
#define SHEAF_PORT_EMU_H

#include <type_traits>

#include "emu.h"

#define KERNEL static
#define DEVICE static inline
#define __launch_bounds__(...)

#define threadIdx (emu_now->index)
#define blockIdx  emu_block_index
#define blockDim  emu_block_size
#define gridDim   emu_grid_size

/* As a default argument: the line of the kernel that calls the function. */
static constexpr emu_place emu_here(const char *file = __builtin_FILE(),
                                    int line = __builtin_LINE())
{
    return {file, line};
}

/* ------------------------------------------------------------------ launches and memory */

typedef emu_stream *stream_t;
typedef emu_event *event_t;

/* Arguments are converted to the kernel's own types once, by the caller, as nvcc does. */
template <class... P>
static void emu_launch_kernel(const char *name, void (*kernel)(P...), dim3 grid, dim3 block,
                              size_t dynamic_bytes, stream_t s,
                              typename std::common_type<P>::type... arguments)
{
    static_assert((std::is_trivially_copyable<P>::value && ...),
                  "a kernel takes its arguments by value, as plain bytes");
    const auto body = [=] { kernel(arguments...); };
    emu_launch launch = {};
    launch.kernel = name;
    launch.body = [](const void *argument) { (*static_cast<decltype(&body)>(argument))(); };
    launch.argument = &body;
    launch.argument_bytes = sizeof(body);
    launch.grid = grid;
    launch.block = block;
    launch.dynamic_bytes = dynamic_bytes;
    emu_run(s, launch);
}

#define LAUNCH(f, grid, block, dynamic_bytes, stream, ...)                                     \
    emu_launch_kernel(#f, f, grid, block, dynamic_bytes, stream, ##__VA_ARGS__)

/* Static rather than of a thread, for the address sanitizer looks after nothing else. */
#define SHARED(type, name, n)                                                                  \
    alignas(16) static type name[n];                                                           \
    static uint64_t name##_serial;                                                             \
    if (name##_serial != emu_block_serial)                                                     \
    emu_shared_begin(&name##_serial, name, sizeof(name))

#define DYNAMIC_SHARED(type, name) type *name = static_cast<type *>(emu_dynamic_shared())

stream_t stream_open();
void stream_close(stream_t s);
void stream_wait(stream_t s);
event_t event_open();
void event_close(event_t e);
void event_record(event_t e, stream_t s);
void event_wait(event_t e);
void *device_alloc(size_t bytes);
void device_free(void *p);
void *pinned_alloc(size_t bytes);
void pinned_free(void *p);
void copy_to_device(stream_t s, void *to, const void *from, size_t bytes);
void copy_to_host(stream_t s, void *to, const void *from, size_t bytes);
void copy_on_device(stream_t s, void *to, const void *from, size_t bytes);
bool device_use(int ordinal, device_facts *out);
typedef emu_graph *graph_t;
bool capture_begin(stream_t s);
graph_t capture_end(stream_t s);
bool graph_launch(graph_t g, stream_t s);
void graph_free(graph_t g);
const char *last_error();

/* ------------------------------------------------------------------ numbers */

/* Not by memcpy, whose locals the address sanitizer would guard. */
DEVICE uint32_t emu_bits(float value)
{
    return __builtin_bit_cast(uint32_t, value);
}

DEVICE float emu_float(uint32_t bits)
{
    return __builtin_bit_cast(float, bits);
}

DEVICE float to_float(bf16 value)
{
    return emu_float((uint32_t)value.bits << 16);
}

/* NaN becomes the one that a device gives. */
DEVICE bf16 to_bf16(float value)
{
    const uint32_t bits = emu_bits(value);
    if ((bits & 0x7fffffff) > 0x7f800000)
        return {0x7fff};
    return {(uint16_t)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16)};
}

DEVICE float half_bits_to_float(uint16_t half)
{
    const uint32_t sign = (uint32_t)(half & 0x8000) << 16;
    const uint32_t exponent = (half >> 10) & 31, fraction = half & 0x3ff;
    if (exponent == 31)
        return emu_float(sign | 0x7f800000 | fraction << 13);
    if (exponent == 0) {
        const float magnitude = (float)fraction * 0x1p-24f;
        return sign ? -magnitude : magnitude;
    }
    return emu_float(sign | (exponent + 112) << 23 | fraction << 13);
}

DEVICE float fast_exp2(float x)
{
    return exp2f(x);
}

DEVICE float fast_exp(float x)
{
    return expf(x);
}

DEVICE float rsqrt_of(float x)
{
    return (float)(1.0 / sqrt((double)x));
}

/* The host's files are built without contraction. */
DEVICE float mul_rounded(float a, float b)
{
    return a * b;
}

DEVICE float add_rounded(float a, float b)
{
    return a + b;
}

DEVICE float fast_divide(float a, float b)
{
    return a / b;
}

/* Subnormal floats would take the host's processor a hundred times as long. */
DEVICE double emu_double(uint32_t bits)
{
    if (bits & 0x7f80)
        return (double)to_float(bf16{(uint16_t)bits});
    const double magnitude = (double)(bits & 0x7f) * 0x1p-133;
    return bits & 0x8000 ? -magnitude : magnitude;
}

DEVICE uint32_t multiply_add_pairs(uint32_t a, uint32_t b, uint32_t c)
{
    uint32_t d = 0;
    for (int i = 0; i < 32; i += 16) {
        const double x = emu_double(a >> i & 0xffff);
        const double y = emu_double(b >> i & 0xffff);
        const double z = emu_double(c >> i & 0xffff);
        d |= (uint32_t)to_bf16((float)(x * y + z)).bits << i;
    }
    return d;
}

DEVICE uint32_t bytes_to_halves(uint32_t two)
{
    return (two & 0xff) | (two & 0xff00) << 8;
}

/* ------------------------------------------------------------------ threads together */

DEVICE void sync_block(emu_place place = emu_here())
{
    emu_sync_block(place);
}

DEVICE void sync_warp(emu_place place = emu_here())
{
    emu_sync_warp(place);
}

DEVICE unsigned emu_lane()
{
    return emu_now->linear % EMU_WARP;
}

DEVICE uint32_t shuffle(uint32_t value, int lane, emu_place place = emu_here())
{
    return emu_shuffle(value, (unsigned)lane % EMU_WARP, place);
}

DEVICE int32_t shuffle(int32_t value, int lane, emu_place place = emu_here())
{
    return (int32_t)emu_shuffle((uint32_t)value, (unsigned)lane % EMU_WARP, place);
}

DEVICE float shuffle(float value, int lane, emu_place place = emu_here())
{
    return emu_float(emu_shuffle(emu_bits(value), (unsigned)lane % EMU_WARP, place));
}

template <class T> static inline T shuffle_xor(T value, int mask, emu_place place = emu_here())
{
    return shuffle(value, (int)(emu_lane() ^ (unsigned)mask), place);
}

DEVICE uint32_t vote(bool predicate, emu_place place = emu_here())
{
    return emu_vote(predicate, place);
}

DEVICE int32_t atomic_add(int32_t *p, int32_t value)
{
    return emu_atomic_add(p, value);
}

DEVICE float atomic_add(float *p, float value)
{
    return emu_atomic_add(p, value);
}

DEVICE int32_t atomic_max(int32_t *p, int32_t value)
{
    return emu_atomic_max(p, value);
}

DEVICE void memory_fence()
{
    emu_fence();
}

/* ------------------------------------------------------------------ copies and matrices */

DEVICE void copy_async_16(void *shared, const void *global, emu_place place = emu_here())
{
    emu_copy_async(shared, global, place);
}

DEVICE void copy_async_16_if(bool is_wanted, void *shared, const void *global,
                             emu_place place = emu_here())
{
    if (is_wanted)
        copy_async_16(shared, global, place);
}

DEVICE void copy_async_16_near_if(bool is_wanted, void *shared, const void *global,
                                  emu_place place = emu_here())
{
    copy_async_16_if(is_wanted, shared, global, place);
}

DEVICE void copy_async_commit()
{
    emu_copy_async_commit();
}

template <int n> static inline void copy_async_wait()
{
    emu_copy_async_wait(n);
}

DEVICE void load_matrix_x4(uint32_t r[4], const void *shared, emu_place place = emu_here())
{
    emu_load_matrix(r, shared, false, place);
}

DEVICE void load_matrix_x4_transposed(uint32_t r[4], const void *shared,
                                      emu_place place = emu_here())
{
    emu_load_matrix(r, shared, true, place);
}

DEVICE void mma_16816(float d[4], const uint32_t a[4], const uint32_t b[2],
                      emu_place place = emu_here())
{
    emu_mma_16816(d, a, b, place);
}

DEVICE void mma_16816_first(float d[4], const uint32_t a[4], const uint32_t b[2],
                            emu_place place = emu_here())
{
    d[0] = d[1] = d[2] = d[3] = 0.0f;
    mma_16816(d, a, b, place);
}

#endif
