/*
 * An engine on a device, and steps of it whose make-up is known: a prompt alone, and groups of
 * sequences that decode, each group on a prefix of its own. What such steps cost is measured by
 * the clock and by the device's own counters, and follows from their make-up as well, so each
 * can be held against the others.
 *
 * Thread: one.
 */
#ifndef SHEAF_RIG_H
#define SHEAF_RIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "device.h"
#include "engine/engine.h"
#include "model/model.h"

struct rig_options {
    const char *device; /* "cpu", "cuda", "cuda-emu" */
    size_t ordinal;
    bool exact;
    bool graphs;          /* steps of few rows are launched as one */
    bool shares;          /* rows of a group read their prefix together */
    size_t prefix_tokens; /* of a group, a multiple of 32 */
    size_t own_tokens;    /* of a sequence, behind the prefix */
    size_t n_groups, group_size;
    size_t n_steps; /* that decoding is timed over */
    size_t step_tokens;
};

struct rig {
    struct rig_options options;
    const struct model *model; /* borrowed */
    struct engine *engine;
    int32_t *tokens; /* owned */
    uint64_t n_made; /* sequences so far: no two have the same tokens of their own */
};

/* What was computed n_times (in the mean; a prompt once, decoding for each step), and what that
 * took in all. */
struct rig_sample {
    size_t n_times, n_steps;
    double seconds;
    double rows, logits_rows;
    double row_keys;  /* keys that each row sees, added up over the rows */
    double kv_tokens; /* tokens whose keys and values have to be read */
    bool has_cost;
    struct device_counters cost;
};

int rig_open(struct rig *r, const struct model *m, const struct rig_options *o, struct err *e);
void rig_close(struct rig *r); /* accepts a zeroed one */

/* Computes the prefix of a group, which nobody has computed before; its rows are those of all
 * its chunks together. */
int rig_prefill(struct rig *r, size_t group, struct rig_sample *out, struct err *e);
/* Decodes so many groups of so many sequences whose prefixes are computed already. */
int rig_decode(struct rig *r, size_t n_groups, size_t group_size, struct rig_sample *out,
               struct err *e);

#endif
