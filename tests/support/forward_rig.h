/* What a forward pass stands on, without an engine around it. Whatever cannot be opened fails
 * the test with its sentence. */
#ifndef SHEAF_TEST_FORWARD_RIG_H
#define SHEAF_TEST_FORWARD_RIG_H

#include <stdbool.h>
#include <stddef.h>

#include "engine/forward.h"

struct forward_rig {
    struct model *model;
    enum kv_type kv_type;
    struct kernels kernels;
    struct weights weights;
    struct kvpool *kv;
    struct pool *threads;
};

/* The rig takes the model. isa: one of golden_isas. */
void forward_rig_open(struct forward_rig *r, struct model *m, const char *isa, size_t n_threads,
                      enum kv_type kv_type, size_t n_pages);
void forward_rig_close(struct forward_rig *r);
/* A pass of as many rows and logits; close it before the rig. */
struct forward *forward_rig_pass(struct forward_rig *r, size_t n_rows_max,
                                 enum act_kind activations, bool shared_attention);
/* Rows [begin, end) of one sequence, alone in their step; the last n_logits want logits. */
void forward_rig_run(struct forward *f, struct seq *seq, size_t begin, size_t end,
                     size_t n_logits);
/* A sequence of n tokens, which may grow to n_max; without pages. */
struct seq *forward_rig_seq(const int32_t *tokens, size_t n, size_t n_max);

#endif
