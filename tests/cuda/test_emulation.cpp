/*
 * The emulation that kernels are tested on (kernels/cuda/emu/): what it computes, and what it
 * refuses.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

extern "C" {
#include <cmocka.h>
}

#include "port.cuh"

/* Each block adds up its numbers: lanes by shuffles, warps through shared memory. */
KERNEL void sum_kernel(const float *x, int n, float *sums)
{
    SHARED(float, partial, 32);
    float sum = 0;
    for (int i = (int)threadIdx.x; i < n; i += (int)blockDim.x)
        sum += x[(size_t)blockIdx.x * (size_t)n + (size_t)i];
    for (int mask = 16; mask; mask /= 2)
        sum += shuffle_xor(sum, mask);
    if (threadIdx.x % 32 == 0)
        partial[threadIdx.x / 32] = sum;
    sync_block();
    if (threadIdx.x != 0)
        return;
    sum = 0;
    for (unsigned i = 0; i < blockDim.x / 32; i++)
        sum += partial[i];
    sums[blockIdx.x] = sum;
}

static void blocks_add_up_their_numbers(void **)
{
    enum { N = 1000, BLOCKS = 7 };
    float numbers[BLOCKS * N], sums[BLOCKS];
    for (int i = 0; i < BLOCKS * N; i++)
        numbers[i] = (float)(i % 17);
    float *x = (float *)device_alloc(sizeof(numbers)), *y = (float *)device_alloc(sizeof(sums));
    copy_to_device(nullptr, x, numbers, sizeof(numbers));
    LAUNCH(sum_kernel, BLOCKS, 128, 0, nullptr, x, N, y);
    copy_to_host(nullptr, sums, y, sizeof(sums));
    stream_wait(nullptr);
    for (int b = 0; b < BLOCKS; b++) {
        int expected = 0;
        for (int i = 0; i < N; i++)
            expected += (b * N + i) % 17;
        assert_int_equal((int)sums[b], expected);
    }
    device_free(x);
    device_free(y);
    assert_null(last_error());
}

int main()
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(blocks_add_up_their_numbers),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
