/* What engine.c and engine_open.c share. */
#ifndef SHEAF_ENGINE_INT_H
#define SHEAF_ENGINE_INT_H

#include "engine/draft_model.h"
#include "engine/drafters.h"
#include "engine/engine.h"
#include "engine/engine_ahead.h"
#include "engine/engine_device.h"
#include "engine/forward.h"
#include "engine/kv_disk.h"
#include "engine/sched.h"
#include "engine/spec.h"
#include "engine/weights.h"

struct engine {
    const struct model *model;
    struct engine_options options; /* with every 0 replaced by what was chosen */
    struct calibration calibration;
    struct kernels kernels;
    struct weights weights;       /* with a device: the vectors alone */
    struct engine_device *device; /* or NULL: the CPU computes */
    const char *device_module;    /* its module's name, a constant */
    struct pool *threads;
    struct kvpool *kvpool;
    struct prefix_tree *prefixes;
    struct kv_disk *disk; /* or NULL */
    struct sched *sched;
    struct drafters *drafters;       /* or NULL: no speculation, or another's proposer */
    struct draft_model *draft_model; /* or NULL: it has no part in it */
    struct spec_time decoding_time;  /* at start, for both */
    struct spec *spec;               /* or NULL: no speculation */
    size_t drafts_bytes;             /* of it, at most */
    struct forward *forward;
    struct sampler **samplers; /* [threads] */
    struct step_plan plan;     /* of the step that engine_step works on */
    struct ahead ahead;        /* and of the one that a device computes behind it */

    struct seq **done; /* finished, not yet collected; in order of finishing */
    size_t n_done;
    size_t done_capacity;
    struct seq *collected; /* whose result the caller may still look at */
    size_t n_active;
    bool cancel; /* some sequence is cancelled */
    struct engine_counters counters;
};

/* Outside the queue: computes the next chunk of a sequence, whose pages hold it. All of its
 * rows have logits, or only the place of the greatest; *n_rows is how many they are. A device's
 * errors. */
int engine_run_chunk(struct engine *eng, struct seq *seq, bool is_greedy, size_t *n_rows,
                     struct err *e);

/* By this source of the engine's own; a proposer of the options stands in their place. */
bool engine_drafts_by(const struct engine_options *o, enum speculation source);

/* Opens the device of the options and the vectors of the weights with it, or neither
 * (engine_open_device.c). The shape says the pages that are wanted, and then those it has. */
int engine_open_device(struct engine *eng, struct kvpool_shape *shape, struct err *e);
size_t engine_page_refs_max(const struct engine_options *o); /* of a step */

#endif
