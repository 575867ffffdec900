/*
 * What training heads computes: the loss of a batch and its gradient, and on text that is held
 * out, which rank each label has. Heads are of one block and tied (model/heads.h):
 *
 *     a = W h + b;  x = h + silu(a);  logits = E x;  loss = -log softmax(logits)[label]
 *
 * E, the model's output rows of the draft vocabulary, is frozen: the gradient goes through it
 * to x and on to W and b. Of all rows and heads:
 *
 *     dx = E^T (share_i / n) (softmax(logits) - label);   da = dx . silu'(a)
 *     dW = sum over rows of da h^T;                       db = sum over rows of da
 *
 * All products are the kernel table's in float32. Work is cut by blocks of rows and of outputs
 * whose size is fixed, and every sum is taken in the order of the rows, so that the number of
 * threads changes no bit.
 *
 * Parameters and gradients lie as one run of floats: for each head W [D, D], then b [D].
 * Thread: the pool's owner.
 */
#ifndef SHEAF_HEADS_MATH_H
#define SHEAF_HEADS_MATH_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "engine/pool.h"
#include "kernels.h"

struct heads_math;

enum { HEADS_NO_LABEL = -1 };

struct heads_math_options {
    size_t n_heads; /* HEADS_MAX at most */
    size_t dim;     /* D */
    size_t n_draft;
    size_t n_rows_max;             /* of a batch */
    const float *output;           /* E [n_draft, D]; read in heads_math_open only */
    const double *shares;          /* [n_heads] of the loss; copied */
    const struct kernels *kernels; /* borrowed, as is the pool */
    struct pool *threads;
};

int heads_math_open(const struct heads_math_options *o, struct heads_math **out, struct err *e);
void heads_math_close(struct heads_math *m); /* accepts NULL */

static inline size_t heads_math_stride(size_t dim)
{
    return dim * dim + dim;
}

/* The parameters from now on; borrowed until the next call. */
void heads_math_set(struct heads_math *m, const float *params);

/*
 * rows [n, D]; labels [n_heads, n]: places in the draft vocabulary, or HEADS_NO_LABEL, which
 * counts for nothing. gradient [n_heads * stride] is that of the sum over heads of share *
 * (sum of the rows' losses) / n. losses[i] becomes the mean loss of head i's labels, 0 without
 * any.
 */
void heads_math_gradient(struct heads_math *m, const float *rows, size_t n,
                         const int32_t *labels, float *gradient, double *losses);

/* ranks [n_heads, n]: how many tokens of the draft vocabulary have a greater logit than the
 * label, or an equal one and a lower id; n_draft without a label. */
void heads_math_ranks(struct heads_math *m, const float *rows, size_t n, const int32_t *labels,
                      int32_t *ranks);

#endif
