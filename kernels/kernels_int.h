/* The twins of every slot of struct kernels, and what they share. Only for kernels/. */
#ifndef SHEAF_KERNELS_INT_H
#define SHEAF_KERNELS_INT_H

#include "kernels.h"

#define KERNELS_DECLARE(suffix)                                                                \
    void rmsnorm_##suffix(const float *x, const float *weight, float eps, size_t n_rows,       \
                          size_t n_cols, float *y);                                            \
    void quantize_##suffix(struct act *x, size_t row_begin, size_t row_end, size_t col_begin,  \
                           size_t col_end);                                                    \
    void matmul_##suffix(const struct weight *w, const struct act *x, size_t panel_begin,      \
                         size_t panel_end, enum matmul_mode mode, float *y, size_t y_stride);  \
    void bias_add_##suffix(float *y, size_t y_stride, const float *bias, size_t n_rows,        \
                           size_t n_cols);                                                     \
    void rope_##suffix(float *x, size_t x_stride, size_t n_rows, size_t n_heads,               \
                       size_t head_dim, size_t n_rot, const float *cos_sin,                    \
                       enum rope_pairing pairing);                                             \
    void silu_mul_##suffix(const float *gate, const float *up, size_t n, float *y);            \
    void kv_write_##suffix(enum kv_type type, size_t head_dim, void *page, size_t slot,        \
                           const float *key, const float *value);                              \
    void attend_##suffix(const struct attend *a);                                              \
    void attend_finish_##suffix(const struct attend *a, float *const *out);                    \
    size_t argmax_##suffix(const float *x, size_t n)

KERNELS_DECLARE(ref);
KERNELS_DECLARE(avx2);
KERNELS_DECLARE(avx512);

#endif
