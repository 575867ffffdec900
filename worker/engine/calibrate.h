/*
 * How long a step of so many rows takes on this machine, measured at start; and the chunk that
 * follows from it: the smallest number of rows that computes nearly as many tokens a second as
 * any, so that prompts cost no throughput and decoding waits no longer than it must.
 *
 * A few of the model's n_layers layers are run and stand for all. The pool is empty and is so
 * again after.
 */
#ifndef SHEAF_CALIBRATE_H
#define SHEAF_CALIBRATE_H

#include "engine/forward.h"
#include "engine/spec_time.h"

/* Steps of one prompt with 16, 32, 64, ... rows, at most n_rows_max, without the head, until
 * neither twice nor four times as many gain anything worth having. */
int calibrate_steps(struct forward *f, size_t n_layers, struct kvpool *pool, size_t n_rows_max,
                    struct calibration *out, struct err *e);

/* Steps of 1, 2, 3, ... rows that all want logits, as those that decode and verify drafts do;
 * n_rows_max at most, which the forward pass has logits for. */
int calibrate_decoding(struct forward *f, size_t n_layers, struct kvpool *pool,
                       size_t n_rows_max, struct spec_time *out, struct err *e);

size_t calibration_chunk(const struct calibration *c);

#endif
