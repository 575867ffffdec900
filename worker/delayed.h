/*
 * Outputs that cannot be delivered before others: copies, in the order of topic, partition and
 * offset, each offset once. They are stored, so nothing is lost with this list.
 *
 * Thread: delivery.
 */
#ifndef SHEAF_DELAYED_H
#define SHEAF_DELAYED_H

#include "transport.h"

struct delayed {
    struct transport_output *outputs;
    size_t n, capacity;
};

/* An output of the same offset is replaced: its partition may have gone and come back. */
int delayed_add(struct delayed *d, const struct transport_output *output, struct err *e);
/* Drops those of which is_kept is false. */
void delayed_keep(struct delayed *d, const bool *is_kept);
void delayed_fini(struct delayed *d);

#endif
