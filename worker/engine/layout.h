/* Buffers side by side in one block of memory. Laying out runs twice over the same code: once
 * without a base, to add sizes up, and once to say where each buffer is. */
#ifndef SHEAF_LAYOUT_H
#define SHEAF_LAYOUT_H

#include <stddef.h>
#include <stdint.h>

#include "kernels.h"

struct layout {
    uint8_t *base; /* or NULL */
    size_t used;
};

/* 64-byte aligned; NULL without a base. */
void *layout_take(struct layout *l, size_t bytes);
/* Widths that are no multiple of a block take no part in int8 products. */
void layout_act(struct layout *l, struct act *a, size_t n_rows, size_t n_cols,
                enum act_kind kind);

#endif
