/* Sigmoid and softmax for training: plain C that a compiler can put on vectors, with an
 * exponential and an order of sums of its own, so that no thread or machine changes a bit. */
#ifndef SHEAF_ACTIVATION_H
#define SHEAF_ACTIVATION_H

#include <stddef.h>

/* out[i] = 1 / (1 + exp(-x[i])) */
void activation_sigmoid(const float *x, size_t n, float *out);

/* x[i] becomes its probability. Returns the log of the sum of exp(x): that minus x[i] is the
 * loss of label i. n >= 1; nothing may be NaN. */
double activation_softmax(float *x, size_t n);

#endif
