/*
 * What tests ask of the emulation, on a device: orders of threads are the device's own, and
 * nobody counts launches, so what is compared before and after is equal.
 */
#ifndef SHEAF_GPU_EMU_H
#define SHEAF_GPU_EMU_H

#include <stdint.h>

struct emu_counts {
    uint64_t launches, copies, bytes_copied;
    uint64_t allocations, bytes_allocated;
};

static inline void emu_set_seed(uint64_t)
{
}

static inline void emu_refuse_graphs(unsigned)
{
}

static inline emu_counts emu_count()
{
    return emu_counts();
}

#endif
