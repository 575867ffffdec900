/*
 * Heads on a device: what it is told of them when it is opened. medusa_device.c also has the
 * run there (medusa.h: medusa_run_kept).
 *
 * A head's own matrices are its floats, which the device rounds to bfloat16 as medusa.h does;
 * outputs of tied heads are the model's rows in their own type, gathered where the draft
 * vocabulary is not the whole one.
 */
#ifndef SHEAF_MEDUSA_DEVICE_H
#define SHEAF_MEDUSA_DEVICE_H

#include "base/err.h"
#include "device.h"
#include "model/heads.h"

struct medusa_device {
    struct device_heads heads; /* points into the heads, the model and rows */
    void *rows;                /* owned, or NULL */
};

/* ERR_NOMEM only. Close it when the device has copied them. */
int medusa_device_open(const struct heads *h, const struct model *m, struct medusa_device *out,
                       struct err *e);
void medusa_device_close(struct medusa_device *md);

#endif
