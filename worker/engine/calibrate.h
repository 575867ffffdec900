/*
 * How long a step of so many rows takes on this machine, measured at start; and the chunk that
 * follows from it: the smallest number of rows that computes nearly as many tokens a second as
 * any, so that prompts cost no throughput and decoding waits no longer than it must.
 */
#ifndef SHEAF_CALIBRATE_H
#define SHEAF_CALIBRATE_H

#include "engine/forward.h"

/* Steps of one prompt with 16, 32, 64, ... rows, at most n_rows_max, until neither twice nor
 * four times as many gain anything worth having. A few of the model's n_layers layers are run
 * and stand for all, without the head. The pool is empty and is so again after. */
int calibrate_steps(struct forward *f, size_t n_layers, struct kvpool *pool, size_t n_rows_max,
                    struct calibration *out, struct err *e);

size_t calibration_chunk(const struct calibration *c);

#endif
