/*
 * The emulation: CUDA kernels on the host, one fibre for each thread of a block, blocks one
 * after another. This header is what port_emu.h builds on and what tests may ask; kernels see
 * port.cuh only.
 *
 * A fibre runs until it has to wait for others. Who goes on is drawn from a seed, so that
 * orders differ between seeds and not between runs. What a real device leaves undefined is
 * filled with EMU_POISON, which is NaN as a float and as a bfloat16 and -1 as an integer:
 * shared memory when a block begins, device memory when it is allocated, the target of an
 * asynchronous copy until it has been waited for. What would hang or be undefined there (a
 * barrier that not all reach, lanes at different places) ends the process with a sentence.
 *
 * Thread: any, but launches exclude each other.
 */
#ifndef SHEAF_EMU_H
#define SHEAF_EMU_H

#include <stddef.h>
#include <stdint.h>

enum { EMU_POISON = 0xff, EMU_WARP = 32, EMU_THREADS_MAX = 1024 };

struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned a = 1, unsigned b = 1, unsigned c = 1) : x(a), y(b), z(c)
    {
    }
};

/* A line of the source of a kernel. */
struct emu_place {
    const char *file;
    int line;
};

/* What a kernel sees of the thread that runs. */
struct emu_thread {
    dim3 index;
    unsigned linear;
};
extern emu_thread *emu_now;
extern dim3 emu_block_index, emu_block_size, emu_grid_size;

/* One launch: body(argument) is the kernel with its arguments, run once by each thread. */
struct emu_launch {
    const char *kernel;
    void (*body)(const void *argument);
    const void *argument;
    size_t argument_bytes;
    dim3 grid, block;
    size_t dynamic_bytes;
};
struct emu_stream;
struct emu_event;
struct emu_graph;
/* Now, or where the stream is captured, when its graph is launched. */
void emu_run(emu_stream *s, const emu_launch &launch);

/* ---- called by kernels */

/* Grows with every block that runs; never 0. */
extern uint64_t emu_block_serial;
void emu_shared_begin(uint64_t *serial, void *array, size_t bytes);
void *emu_dynamic_shared();

void emu_sync_block(emu_place place);
void emu_sync_warp(emu_place place);
/* The bits that the lane `source` gave. */
uint32_t emu_shuffle(uint32_t bits, unsigned source, emu_place place);
uint32_t emu_vote(bool predicate, emu_place place);
void emu_load_matrix(uint32_t r[4], const void *row, bool transposed, emu_place place);
void emu_mma_16816(float d[4], const uint32_t a[4], const uint32_t b[2], emu_place place);

int32_t emu_atomic_add(int32_t *p, int32_t value);
float emu_atomic_add(float *p, float value);
int32_t emu_atomic_max(int32_t *p, int32_t value);
void emu_fence();

void emu_copy_async(void *shared, const void *global, emu_place place);
void emu_copy_async_commit();
void emu_copy_async_wait(unsigned n_under_way);

/* Ends the process: where it happened if a kernel runs, and what is wrong. */
[[noreturn]] void emu_fail(emu_place place, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* ---- what tests may ask */

/* Order of fibres, blocks and lanes from here on; 0: as they are numbered. Begins as
 * SHEAF_EMU_SEED says, or as 1. */
void emu_set_seed(uint64_t seed);

struct emu_counts {
    uint64_t launches, copies, bytes_copied; /* those of graphs, too */
    uint64_t graph_launches;
    uint64_t allocations, bytes_allocated; /* of device memory, live now */
};
emu_counts emu_count();

/* So many captures from now on end without a graph, as where the device has no memory for it.
 */
void emu_refuse_graphs(unsigned n);

/* Memory that the device has; allocations beyond it fail. */
void emu_set_memory(size_t bytes);

#endif
