/*
 * What heads say, in double and one row and head after another, over dequantised weights, with
 * everything sorted at the end. What is wrong fails the test. Free what is returned.
 */
#ifndef SHEAF_TEST_HEADS_PLAIN_H
#define SHEAF_TEST_HEADS_PLAIN_H

#include "engine/medusa.h"

/* [n_draft, D] rows of a head's output. */
double *heads_plain_output(const struct model *m, const struct heads *h, size_t head);
/* [n_draft] logits for a hidden row [D]. */
double *heads_plain_logits(const struct heads *h, size_t head, const double *output,
                           const float *hidden);
/* How far the logits of the tokens that were said, in their order, are from the greatest ones;
 * relative to the greatest. Infinite where a token is said twice. */
double heads_plain_distance(const struct heads *h, const double *logits,
                            const struct medusa_guess *said);
/* The right tokens in the right order, as far as their logits are further apart than the
 * tolerance, which is relative to the greatest logit; and their shares. */
void heads_plain_check(const struct heads *h, const double *logits,
                       const struct medusa_guess *said, double tolerance);

#endif
