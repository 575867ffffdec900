/*
 * The device that an engine computes on, and what went wrong on it.
 *
 * What the engine asks of a device in a step gives no codes back: the first call that fails is
 * remembered, later ones do nothing, and engine_device_check says it. So there is one place in
 * a step where a failure comes out, and nothing that was computed after it is used.
 *
 * Thread: the engine's.
 */
#ifndef SHEAF_ENGINE_DEVICE_H
#define SHEAF_ENGINE_DEVICE_H

#include <stdbool.h>

#include "base/err.h"
#include "device.h"
#include "engine/weights.h"
#include "model/model.h"

struct engine_device {
    const struct device_backend *backend;
    struct device *device;
    struct device_info info; /* as it was opened */
    struct err failure;      /* the first; code 0: none */
};

/* name: of a module (device.h). Weights, vectors and heads are borrowed until it returns; the
 * vectors are those of weights_open_vectors; heads may be NULL. The device's own errors. */
int engine_device_open(const char *name, const struct model *m, const struct weights *vectors,
                       const struct device_heads *heads, const struct device_options *o,
                       struct engine_device **out, struct err *e);
void engine_device_close(struct engine_device *d); /* accepts NULL */

/* 0, or ERR_IO with a sentence about the first failure. */
int engine_device_check(const struct engine_device *d, struct err *e);

void engine_device_step(struct engine_device *d, const struct device_step *s);
void engine_device_read_logits(struct engine_device *d, const int32_t *logits_rows, size_t n,
                               float *out);
void engine_device_read_best(struct engine_device *d, size_t n_later, int32_t *out);
void engine_device_read_candidates(struct engine_device *d, struct device_candidates *out);
void engine_device_read_hidden(struct engine_device *d, size_t logits_row, float *out);
void engine_device_wait(struct engine_device *d);

void engine_device_copy_page(struct engine_device *d, int32_t to, int32_t from);
void engine_device_move_token(struct engine_device *d, int32_t to, size_t to_slot, int32_t from,
                              size_t from_slot);
/* False: nothing was read, or written. */
bool engine_device_read_page(struct engine_device *d, int32_t page, void *out);
bool engine_device_write_page(struct engine_device *d, int32_t page, const void *in);

/* Of a device with heads. False: there are no guesses. */
void engine_device_keep_hidden(struct engine_device *d, size_t n, const int32_t *logits_rows,
                               const int32_t *places);
bool engine_device_guess(struct engine_device *d, size_t n, const int32_t *places,
                         struct device_guess *out);

#endif
