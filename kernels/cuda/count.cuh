/*
 * What operations cost, as their launchers say: launches, bytes and floating point operations
 * (an addition and a multiplication are two) go to the counters of the device whose step is
 * being computed. struct device_counters says what a byte is.
 *
 * Nothing is counted where nobody wants it: tests of single operations set no counters. A graph
 * that is replayed costs what its capture counted; the device adds that itself.
 *
 * Thread: each has counters of its own; launchers count on the thread that calls them.
 */
#ifndef SHEAF_CUDA_COUNT_CUH
#define SHEAF_CUDA_COUNT_CUH

#include <stdint.h>

#include "ops.cuh"

inline thread_local device_counters *counters_of_thread = nullptr;

/* Borrowed until the next call; NULL: nothing is counted from here on. */
inline void count_into(device_counters *counters)
{
    counters_of_thread = counters;
}

inline void count_op(device_family family, uint64_t launches, uint64_t bytes_read,
                     uint64_t bytes_written, uint64_t flops)
{
    if (!counters_of_thread)
        return;
    device_cost *cost = &counters_of_thread->of[family];
    cost->launches += launches;
    cost->bytes_read += bytes_read;
    cost->bytes_written += bytes_written;
    cost->flops += flops;
}

/* Keys that the blocks of a step read in one layer (a span once for each block that goes over
 * it) and that its rows see. A key is read with its value: 2 * KVH * HD elements; a row that
 * sees it costs 4 * H * HD operations. */
struct attend_keys {
    uint64_t read, seen;
};

inline attend_keys attend_keys_of(const device_step &s)
{
    attend_keys keys = {0, 0};
    for (size_t i = 0; i < s.n_spans; i++)
        keys.read += (uint64_t)s.spans[i].n_keys;
    for (size_t i = 0; i < s.n_attend_rows; i++)
        keys.seen += (uint64_t)s.attend_rows[i].position + 1;
    return keys;
}

/* What attention of so many layers costs for its keys. They are counted once a step, since a
 * graph that is replayed knows shapes, but not the keys of its step. attend.cu. */
void attend_count_keys(const kv_memory &kv, int n_heads, const attend_keys &keys,
                       uint64_t n_layers);

#endif
