/* Sums over the 16 lanes of a float reduction, as every contract in kernels.h orders them. */
#ifndef SHEAF_LANES_INT_H
#define SHEAF_LANES_INT_H

#include "kernels.h"

/* Lanes 8 apart are added first, then 4, 2, 1. */
static inline float lanes_sum_tree(const float lane[LANES])
{
    float part[LANES / 2];
    for (size_t i = 0; i < 8; i++)
        part[i] = lane[i] + lane[i + 8];
    for (size_t apart = 4; apart > 0; apart /= 2)
        for (size_t i = 0; i < apart; i++)
            part[i] = part[i] + part[i + apart];
    return part[0];
}

#endif
