#include "kernels_int.h"

/* Pair i of a head is (2i, 2i + 1) or (i, i + n_rot / 2): first = i * step, second = first +
 * apart. */
static void rotate_head(float *head, size_t n_pairs, size_t step, size_t apart,
                        const float *cos_sin)
{
    for (size_t i = 0; i < n_pairs; i++) {
        const float c = cos_sin[2 * i];
        const float s = cos_sin[2 * i + 1];
        float *first = head + i * step;
        float *second = first + apart;
        const float a = *first;
        const float b = *second;
        *first = a * c - b * s;
        *second = a * s + b * c;
    }
}

void rope_ref(float *x, size_t x_stride, size_t n_rows, size_t n_heads, size_t head_dim,
              size_t n_rot, const float *cos_sin, enum rope_pairing pairing)
{
    const size_t n_pairs = n_rot / 2;
    const size_t step = pairing == ROPE_NORM ? 2 : 1;
    const size_t apart = pairing == ROPE_NORM ? 1 : n_pairs;
    for (size_t t = 0; t < n_rows; t++, x += x_stride, cos_sin += 2 * n_pairs)
        for (size_t h = 0; h < n_heads; h++)
            rotate_head(x + h * head_dim, n_pairs, step, apart, cos_sin);
}
