/*
 * The least time that a step can take on a device of which two ceilings are known:
 *
 *     seconds = layers' products + head + attention
 *     each    = max(operations / product ceiling, bytes / copy ceiling)
 *
 * Bytes: the file's weights once a step, and the keys and values that have to be read, once.
 * Operations: 2 for each weight and row, 4 * H * HD * L for each row and key that it sees.
 * The three are one after another on a device, so none hides behind another one; norms,
 * rotation, activations and launches count as nothing.
 */
#ifndef SHEAF_ROOF_H
#define SHEAF_ROOF_H

#include <stdbool.h>

#include "device.h"
#include "device_check/rig.h"
#include "model/model.h"

struct roof {
    double layer_weights, layer_bytes;
    double head_weights, head_bytes;
    double attention_ops;  /* of a row and a key */
    double kv_token_bytes; /* of all layers */
};

struct roof roof_of(const struct model *m, enum kv_type kv_type);
/* Of what a sample computed once; *is_read_bound: more than half of it is reading. */
double roof_seconds(const struct roof *r, const struct rig_sample *step,
                    const struct device_peaks *peaks, bool *is_read_bound);
/* Bytes that this reads at least. */
double roof_bytes(const struct roof *r, const struct rig_sample *step);

#endif
