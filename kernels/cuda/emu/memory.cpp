/*
 * The emulated device's memory and copies. Every allocation lies between two red zones; the
 * address sanitizer forbids them, without it they are looked at when memory is freed and when a
 * stream is waited for.
 */
#include <map>

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "../port.cuh"
#include "asan_int.h"
#include "block_int.h"

enum { ZONE_BYTES = 256, ZONE_FILL = 0xa5, ALIGNMENT = 256 };

static struct {
    pthread_mutex_t lock;
    std::map<const char *, size_t> live; /* begin -> bytes */
    uint64_t n_changes;                  /* of it */
    size_t memory_bytes;
    emu_counts counts;
    bool has_error;
    char error[256];
} device = {PTHREAD_MUTEX_INITIALIZER, {}, 0, (size_t)64 << 30, {}, false, {}};

/* ------------------------------------------------------------------ errors, counts */

void error_set(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    if (!device.has_error)
        vsnprintf(device.error, sizeof(device.error), format, arguments);
    device.has_error = true;
    va_end(arguments);
}

const char *last_error()
{
    const bool had = device.has_error;
    device.has_error = false;
    return had ? device.error : nullptr;
}

void count_launch()
{
    device.counts.launches++;
}

void count_copy(size_t bytes)
{
    device.counts.copies++;
    device.counts.bytes_copied += bytes;
}

void count_graph_launch()
{
    device.counts.graph_launches++;
}

emu_counts emu_count()
{
    return device.counts;
}

/* ------------------------------------------------------------------ red zones */

/* The upper zone begins at the last byte and ends at a multiple of the alignment. */
static size_t upper_zone_bytes(size_t bytes)
{
    return ZONE_BYTES + (ALIGNMENT - bytes % ALIGNMENT) % ALIGNMENT;
}

void *guarded_alloc(size_t bytes)
{
    const size_t upper = upper_zone_bytes(bytes);
    char *memory = (char *)aligned_alloc(ALIGNMENT, ZONE_BYTES + bytes + upper);
    if (!memory)
        return nullptr;
    char *begin = memory + ZONE_BYTES;
    memset(memory, ZONE_FILL, ZONE_BYTES);
    memset(begin, EMU_POISON, bytes);
    memset(begin + bytes, ZONE_FILL, upper);
    FORBID(memory, ZONE_BYTES);
    FORBID(begin + bytes, upper);
    return begin;
}

static void check_zone(const char *zone, size_t n, const char *what, const char *side)
{
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)zone[i] != ZONE_FILL)
            emu_fail({}, "somebody wrote %s %s (byte %zu there)", side, what, i);
}

void guarded_check(const void *p, size_t bytes, const char *what)
{
    const char *begin = (const char *)p;
    if (HAS_ASAN)
        return;
    check_zone(begin - ZONE_BYTES, ZONE_BYTES, what, "below");
    check_zone(begin + bytes, upper_zone_bytes(bytes), what, "behind the end of");
}

void guarded_free(void *p, size_t bytes)
{
    char *memory = (char *)p - ZONE_BYTES;
    ALLOW(memory, ZONE_BYTES + bytes + upper_zone_bytes(bytes));
    free(memory);
}

/* ------------------------------------------------------------------ device memory */

void emu_set_memory(size_t bytes)
{
    device.memory_bytes = bytes;
}

/* The process fails when it ends well and leaves memory of the device behind. */
static void tell_leaks()
{
    const char *asked = getenv("SHEAF_EMU_LEAKS");
    if (!asked || device.live.empty())
        return;
    fprintf(stderr,
            "cuda-emu: %zu allocations of device memory were never freed, one of %zu bytes\n",
            device.live.size(), device.live.begin()->second);
    fflush(nullptr);
    _exit(1);
}

void *device_alloc(size_t bytes)
{
    void *p = nullptr;
    static const int leaks_are_told = atexit(tell_leaks);
    if (capture_forbids("device_alloc()"))
        return nullptr;
    pthread_mutex_lock(&device.lock);
    if (leaks_are_told == 0 && bytes <= device.memory_bytes &&
        device.counts.bytes_allocated <= device.memory_bytes - bytes)
        p = guarded_alloc(bytes);
    if (p) {
        device.live[(const char *)p] = bytes;
        device.n_changes++;
        device.counts.allocations++;
        device.counts.bytes_allocated += bytes;
    } else {
        error_set("out of memory: %zu bytes asked for, %zu of %zu left", bytes,
                  device.memory_bytes - (size_t)device.counts.bytes_allocated,
                  device.memory_bytes);
    }
    pthread_mutex_unlock(&device.lock);
    return p;
}

static void check_allocation(const char *begin, size_t bytes)
{
    char what[64];
    snprintf(what, sizeof(what), "%zu bytes of device memory at %p", bytes,
             (const void *)begin);
    guarded_check(begin, bytes, what);
}

void device_free(void *p)
{
    if (!p || capture_forbids("device_free()"))
        return;
    pthread_mutex_lock(&device.lock);
    const auto found = device.live.find((const char *)p);
    if (found == device.live.end())
        emu_fail({}, "device_free() of %p, which device_alloc() did not give", p);
    check_allocation(found->first, found->second);
    device.counts.allocations--;
    device.counts.bytes_allocated -= found->second;
    guarded_free(p, found->second);
    device.live.erase(found);
    device.n_changes++;
    pthread_mutex_unlock(&device.lock);
}

bool is_device_memory(const void *p, size_t bytes)
{
    const char *begin = (const char *)p;
    static const char *last;
    static size_t last_bytes;
    static uint64_t last_change;
    if (last_change != device.n_changes || begin < last || begin + bytes > last + last_bytes) {
        const auto after = device.live.upper_bound(begin);
        if (after == device.live.begin())
            return false;
        last = std::prev(after)->first;
        last_bytes = std::prev(after)->second;
        last_change = device.n_changes;
    }
    return begin + bytes <= last + last_bytes;
}

void device_check_range(const void *p, size_t bytes, const char *what)
{
    const char *begin = (const char *)p;
    pthread_mutex_lock(&device.lock);
    auto after = device.live.upper_bound(begin);
    if (after == device.live.begin())
        emu_fail({}, "%s: %p is not memory of the device", what, p);
    const auto holds = --after;
    const size_t offset = (size_t)(begin - holds->first);
    if (offset > holds->second || bytes > holds->second - offset)
        emu_fail({}, "%s: %zu bytes at %p, which lies %zu bytes into an allocation of %zu",
                 what, bytes, p, offset, holds->second);
    pthread_mutex_unlock(&device.lock);
}

void device_check_zones()
{
    pthread_mutex_lock(&device.lock);
    for (const auto &allocation : device.live)
        check_allocation(allocation.first, allocation.second);
    pthread_mutex_unlock(&device.lock);
}

/* ------------------------------------------------------------------ the device */

bool device_use(int ordinal, device_facts *out)
{
    if (ordinal != 0) {
        error_set("there is no device %d: the emulation is one device, 0", ordinal);
        return false;
    }
    *out = {};
    snprintf(out->name, sizeof(out->name), "cuda-emu");
    out->compute_capability = 90; /* with products in FP8 */
    out->n_processors = 4;
    out->shared_bytes_max = 163 << 10; /* as compute capability 8.0 has it */
    out->memory_bytes = device.memory_bytes;
    out->free_bytes = device.memory_bytes - (size_t)device.counts.bytes_allocated;
    return true;
}
