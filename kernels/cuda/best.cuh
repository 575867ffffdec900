/*
 * What is greater, and which of equals comes first: logits and their places as (key, index).
 * Keys are in the order of the floats, with one key for both zeros and 0 for NaN. And how many
 * thread blocks look for it in a row.
 */
#ifndef SHEAF_CUDA_BEST_CUH
#define SHEAF_CUDA_BEST_CUH

#include "lines.cuh"

struct found {
    uint32_t key;
    int32_t index;
};

DEVICE uint32_t key_of(float value)
{
    if (value != value)
        return 0;
    const float one_zero = value + 0.0f;
    uint32_t bits;
    memcpy(&bits, &one_zero, sizeof bits);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

/* Of zeros the one without a sign; of the key 0 a NaN. */
DEVICE float value_of(uint32_t key)
{
    const uint32_t bits = key & 0x80000000u ? key & 0x7fffffffu : ~key;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

DEVICE found better_of(const found &a, const found &b)
{
    const bool is_b = b.key > a.key || (b.key == a.key && b.index < a.index);
    return is_b ? b : a;
}

DEVICE found best_of_warp(found mine)
{
    for (int mask = WARP_LANES / 2; mask > 0; mask /= 2) {
        const found other = {shuffle_xor(mine.key, mask), shuffle_xor(mine.index, mask)};
        mine = better_of(mine, other);
    }
    return mine;
}

/* Enough blocks for the device while there are few rows, each with a run worth a launch; no
 * more of a row than a warp has lanes, which merge them. */
enum { ROW_PARTS_BLOCKS = 256, ROW_PART_COLS_MIN = 8192 };

/* Of n_rows rows, 1 at least: thread blocks of each. All together have ROW_PARTS_BLOCKS parts
 * at most where there is more than one of a row. */
inline int row_parts(int n_rows, int n_cols)
{
    int n = divide_up(n_cols, ROW_PART_COLS_MIN);
    n = n < WARP_LANES ? n : WARP_LANES;
    n = n < ROW_PARTS_BLOCKS / n_rows ? n : ROW_PARTS_BLOCKS / n_rows;
    return n > 1 ? n : 1;
}

#endif
