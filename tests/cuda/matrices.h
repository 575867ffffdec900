/* Matrices as load_matrix_x4() and its transposed form give them to the lanes of a warp. */
#ifndef SHEAF_TESTS_MATRICES_H
#define SHEAF_TESTS_MATRICES_H

#include "port.cuh"

struct loaded {
    uint32_t plain[4], transposed[4];
};

/* Row r of matrix m holds 100 m + 10 r + column; lane 8 m + r says where it is. */
KERNEL void load_matrices_of(loaded *out)
{
    SHARED(uint16_t, rows, 32 * 8);
    const unsigned lane = threadIdx.x;
    for (unsigned column = 0; column < 8; column++)
        rows[8 * lane + column] = (uint16_t)(lane / 8 * 100 + lane % 8 * 10 + column);
    sync_warp();
    load_matrix_x4(out[lane].plain, &rows[8 * lane]);
    load_matrix_x4_transposed(out[lane].transposed, &rows[8 * lane]);
}

#endif
