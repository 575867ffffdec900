/*
 * Large products: y (=|+=) x w^T + bias of bfloat16 x and w, added up in float32. Two twins:
 * lt_cuda.cu asks cuBLASLt, lt_emu.cpp computes on the host, each output in the order of k.
 *
 * cuBLASLt picks another algorithm for another number of rows, and nothing is said about
 * the bits of two algorithms, nor of one under two shapes: exact mode stays away from here.
 *
 * Thread: one at a time for each struct lt.
 */
#ifndef SHEAF_CUDA_LT_H
#define SHEAF_CUDA_LT_H

#include "products_int.h"

struct lt;

/* Takes LT_WORKSPACE_BYTES of device memory. */
int lt_open(lt **out, struct err *e);
void lt_close(lt *l);
/* a.w are bfloat16 rows. Asks for no memory once a shape is known, but when it is tried: the
 * first product of a shape outside of a capture tries several algorithms and waits for them. */
int lt_multiply(lt *l, stream_t s, const product_args &a, struct err *e);

/* Has the shape known and tried already; y holds anything then, but not what is added to. A
 * shape that fails is left for lt_multiply() to say so. */
void lt_prepare(lt *l, stream_t s, const product_args &a);

enum { LT_WORKSPACE_BYTES = 32 << 20 };

#endif
