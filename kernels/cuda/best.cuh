/*
 * What is greater, and which of equals comes first: logits and their places as (key, index).
 * Keys are in the order of the floats, with one key for both zeros and 0 for NaN.
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

#endif
