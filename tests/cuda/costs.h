/* What an operation counted, against what its shapes say; behind cmocka.h. */
#ifndef SHEAF_TESTS_COSTS_H
#define SHEAF_TESTS_COSTS_H

#include "count.cuh"

static void assert_cost(const device_cost &cost, uint64_t launches, uint64_t bytes_read,
                        uint64_t bytes_written, uint64_t flops)
{
    assert_int_equal(cost.launches, launches);
    assert_int_equal(cost.bytes_read, bytes_read);
    assert_int_equal(cost.bytes_written, bytes_written);
    assert_int_equal(cost.flops, flops);
}

#endif
