/*
 * The products of a layer, each with what follows it column by column, so that a thread goes on
 * with what it has just computed instead of meeting the others:
 *
 *     q|k|v    an item is a head: its columns, its bias, norm and rotation, its page writes
 *     gate|up  an item is the same run of columns of both: silu, product, quantisation
 *
 * A head is whole panels, because head dims are multiples of 16; a run of gate and up columns
 * is whole blocks of activations.
 */
#include "base/check.h"
#include "base/limits.h"
#include "base/size.h"
#include "engine/forward_int.h"

enum {
    PANELS_PER_ITEM = 6, /* large enough that taking an item costs nothing */
    INNER_PANELS = 4,    /* of gate, and as many of up */
    INNER_COLS = INNER_PANELS * PANEL_COLS,
};
static_assert(INNER_COLS % ACT_BLOCK == 0, "an item's columns are whole blocks");

size_t forward_products_tile_floats(const struct forward *f)
{
    return f->options.n_rows_max * 2 * INNER_COLS;
}

float *forward_tile(const struct forward *f, size_t thread)
{
    return f->tiles + thread * f->tile_floats;
}

struct act forward_first_rows(const struct act *a, size_t n_rows)
{
    struct act rows = *a;
    rows.n_rows = n_rows;
    return rows;
}

void forward_quantize(const struct forward *f, struct act *a, size_t row_begin, size_t row_end,
                      size_t col_begin, size_t col_end)
{
    if (a->kind == ACT_INT8)
        f->kernels->quantize(a, row_begin, row_end, col_begin, col_end);
}

/* ------------------------------------------------------------------ plain products */

struct product {
    const struct forward *f;
    const struct weight *weight;
    struct act x;
    float *y; /* [rows, weight->n_rows] */
};

static void product_item(void *ctx, size_t item, size_t thread)
{
    (void)thread;
    const struct product *p = ctx;
    const size_t begin = item * PANELS_PER_ITEM;
    const size_t end = size_min(begin + PANELS_PER_ITEM, p->weight->n_panels);
    p->f->kernels->matmul(p->weight, &p->x, begin, end, MATMUL_ADD, p->y, p->weight->n_rows);
}

void forward_add_product(struct forward *f, const struct linear *linear, const struct act *a)
{
    ASSERT(linear->n_parts == 1);
    const size_t n_rows = f->plan->n_rows;
    struct product p = {
        .f = f, .weight = &linear->parts[0], .x = forward_first_rows(a, n_rows), .y = f->x};
    pool_run(f->threads, product_item, &p, size_divide_up(p.weight->n_panels, PANELS_PER_ITEM));
    if (linear->bias)
        f->kernels->bias_add(f->x, linear->n_rows, linear->bias, n_rows, linear->n_rows);
}

/* ------------------------------------------------------------------ heads */

enum qkv_part { PART_Q, PART_K, PART_V };

/* One head's columns of q, k or v for all rows; they lie qkv.n_rows apart. */
static float *project_head(const struct forward *f, enum qkv_part part, size_t head)
{
    const struct linear *l = &f->layer->qkv;
    const size_t head_dim = f->config->head_dim;
    const size_t n_panels = head_dim / PANEL_COLS;
    const size_t column = l->offsets[part] + head * head_dim;
    const struct act x = forward_first_rows(&f->hidden, f->plan->n_rows);
    f->kernels->matmul(&l->parts[part], &x, head * n_panels, (head + 1) * n_panels, MATMUL_SET,
                       f->qkv + l->offsets[part], l->n_rows);
    if (l->bias)
        f->kernels->bias_add(f->qkv + column, l->n_rows, l->bias + column, x.n_rows, head_dim);
    return f->qkv + column;
}

/* norm is that of q or k heads, or NULL. */
static void rotate_head(const struct forward *f, const float *norm, float *head)
{
    const struct model_config *c = f->config;
    const size_t stride = f->layer->qkv.n_rows;
    const size_t n_rows = f->plan->n_rows;
    for (size_t i = 0; norm && i < n_rows; i++)
        f->kernels->rmsnorm(head + i * stride, norm, c->rms_eps, 1, c->head_dim,
                            head + i * stride);
    f->kernels->rope(head, stride, n_rows, 1, c->head_dim, c->n_rot, f->cos_sin,
                     c->rope_pairing);
}

static void write_kv(const struct forward *f, size_t kv_head, const float *keys,
                     const float *values)
{
    const size_t stride = f->layer->qkv.n_rows;
    for (size_t k = 0; k < f->plan->n_segments; k++) {
        const struct step_segment *s = &f->plan->segments[k];
        for (size_t i = 0; i < s->n_rows; i++) {
            const size_t slot = s->position + i;
            const int32_t page = s->seq->pages[slot / KV_PAGE_TOKENS];
            f->kernels->kv_write(f->options.kv_type, f->config->head_dim,
                                 kvpool_block(f->kvpool, f->layer_index, page, kv_head),
                                 slot % KV_PAGE_TOKENS, keys + (s->row + i) * stride,
                                 values + (s->row + i) * stride);
        }
    }
}

/* The KV heads come first: they are twice as long. */
static void head_item(void *ctx, size_t item, size_t thread)
{
    (void)thread;
    const struct forward *f = ctx;
    const size_t n_kv_heads = f->config->n_kv_heads;
    if (item >= n_kv_heads) {
        rotate_head(f, f->layer->q_norm, project_head(f, PART_Q, item - n_kv_heads));
        return;
    }
    float *keys = project_head(f, PART_K, item);
    rotate_head(f, f->layer->k_norm, keys);
    write_kv(f, item, keys, project_head(f, PART_V, item));
}

void forward_project_heads(struct forward *f)
{
    pool_run(f->threads, head_item, f, f->config->n_kv_heads + f->config->n_heads);
}

/* ------------------------------------------------------------------ gate and up */

static void inner_item(void *ctx, size_t item, size_t thread)
{
    struct forward *f = ctx;
    const struct weight *parts = f->layer->gate_up.parts;
    const size_t begin = item * INNER_PANELS;
    const size_t end = size_min(begin + INNER_PANELS, parts[0].n_panels);
    const struct weight gate = weights_panels(&parts[0], begin, end);
    const struct weight up = weights_panels(&parts[1], begin, end);
    const struct act x = forward_first_rows(&f->hidden, f->plan->n_rows);
    float *tile = forward_tile(f, thread); /* rows of gate columns, then up columns */
    f->kernels->matmul(&gate, &x, 0, gate.n_panels, MATMUL_SET, tile, 2 * INNER_COLS);
    f->kernels->matmul(&up, &x, 0, up.n_panels, MATMUL_SET, tile + INNER_COLS, 2 * INNER_COLS);
    const size_t column = begin * PANEL_COLS;
    for (size_t i = 0; i < x.n_rows; i++) {
        const float *row = tile + i * 2 * INNER_COLS;
        f->kernels->silu_mul(row, row + INNER_COLS, gate.n_rows,
                             f->inner.f32 + i * f->inner.n_cols + column);
    }
    forward_quantize(f, &f->inner, 0, x.n_rows, column, column + gate.n_rows);
}

void forward_gate_up(struct forward *f)
{
    const size_t n_panels = f->layer->gate_up.parts[0].n_panels;
    pool_run(f->threads, inner_item, f, size_divide_up(n_panels, INNER_PANELS));
}
