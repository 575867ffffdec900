/* rope over the type lanes of the twin that includes this. */
#ifndef SHEAF_ROPE_LANES_H
#define SHEAF_ROPE_LANES_H

#include <string.h>

#include "kernels_int.h"

/* Pairs (2i, 2i + 1): dims and angles lie alike. */
static inline void rope_neighbours(float *head, size_t n_pairs, const float *cos_sin)
{
    const size_t n = 2 * n_pairs;
    size_t i = 0;
    for (; i + LANES <= n; i += LANES)
        lanes_store(head + i,
                    lanes_rotate_pairs(lanes_load(head + i), lanes_load(cos_sin + i)));
    if (i < n)
        lanes_store_first(head + i, n - i,
                          lanes_rotate_pairs(lanes_load_first(head + i, n - i),
                                             lanes_load_first(cos_sin + i, n - i)));
}

/* Up to 16 pairs whose firsts and seconds lie n_pairs apart. */
static inline void rope_some_halves(float *first, size_t n_pairs, const float *cos_sin,
                                    size_t n)
{
    float angles[2 * LANES] = {0};
    memcpy(angles, cos_sin, 2 * n * sizeof angles[0]);
    lanes c, s;
    lanes_load_pairs_f32(angles, &c, &s);
    const lanes a = lanes_load_first(first, n);
    const lanes b = lanes_load_first(first + n_pairs, n);
    lanes_store_first(first, n, lanes_sub(lanes_mul(a, c), lanes_mul(b, s)));
    lanes_store_first(first + n_pairs, n, lanes_add(lanes_mul(a, s), lanes_mul(b, c)));
}

static inline void rope_halves(float *head, size_t n_pairs, const float *cos_sin)
{
    size_t i = 0;
    for (; i + LANES <= n_pairs; i += LANES) {
        lanes c, s;
        lanes_load_pairs_f32(cos_sin + 2 * i, &c, &s);
        const lanes a = lanes_load(head + i);
        const lanes b = lanes_load(head + n_pairs + i);
        lanes_store(head + i, lanes_sub(lanes_mul(a, c), lanes_mul(b, s)));
        lanes_store(head + n_pairs + i, lanes_add(lanes_mul(a, s), lanes_mul(b, c)));
    }
    if (i < n_pairs)
        rope_some_halves(head + i, n_pairs, cos_sin + 2 * i, n_pairs - i);
}

static inline void rope_all(float *x, size_t x_stride, size_t n_rows, size_t n_heads,
                            size_t head_dim, size_t n_rot, const float *cos_sin,
                            enum rope_pairing pairing)
{
    const size_t n_pairs = n_rot / 2;
    for (size_t t = 0; t < n_rows; t++, x += x_stride, cos_sin += 2 * n_pairs)
        for (size_t h = 0; h < n_heads; h++) {
            if (pairing == ROPE_NORM)
                rope_neighbours(x + h * head_dim, n_pairs, cos_sin);
            else
                rope_halves(x + h * head_dim, n_pairs, cos_sin);
        }
}

#endif
