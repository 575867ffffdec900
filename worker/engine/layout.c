#include "engine/layout.h"

void *layout_take(struct layout *l, size_t bytes)
{
    void *at = l->base ? l->base + l->used : NULL;
    l->used += (bytes + KERNELS_ALIGN - 1) / KERNELS_ALIGN * KERNELS_ALIGN;
    return at;
}

void layout_act(struct layout *l, struct act *a, size_t n_rows, size_t n_cols,
                enum act_kind kind)
{
    a->kind = n_cols % ACT_BLOCK == 0 ? kind : ACT_F32;
    a->n_rows = n_rows;
    a->n_cols = n_cols;
    a->f32 = layout_take(l, n_rows * n_cols * sizeof(float));
    if (a->kind != ACT_INT8)
        return;
    a->q = layout_take(l, n_rows * n_cols);
    a->scale = layout_take(l, n_rows * (n_cols / ACT_BLOCK) * sizeof(float));
    a->sum = layout_take(l, n_rows * (n_cols / ACT_BLOCK) * sizeof(int32_t));
    a->scaled_sum = layout_take(l, n_rows * (n_cols / ACT_BLOCK) * sizeof(float));
}
