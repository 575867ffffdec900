/* Opening heads: their weights in the form that the kernels read, and the buffers of a run. */
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/size.h"
#include "engine/layout.h"
#include "engine/medusa_int.h"
#include "engine/memory.h"

/* Half the bytes to read; what heads say need not be exact. */
static const enum quant_type FLOATS_TYPE = QUANT_BF16;

enum { SLICE_ROWS = 16 * PANEL_COLS }; /* that are made ready for packing at once */

/* Stored rows of a matrix: a head's own, or some of the model's output. */
struct rows {
    enum quant_type type;
    size_t n_rows, n_cols, row_bytes;
    const float *floats; /* or NULL: */
    const uint8_t *stored;
    const int32_t *ids; /* of the stored rows, or NULL: all in turn */
};

static struct rows float_rows(const float *floats, size_t n_rows, size_t n_cols)
{
    return (struct rows){.type = FLOATS_TYPE,
                         .n_rows = n_rows,
                         .n_cols = n_cols,
                         .row_bytes = quant_row_bytes(FLOATS_TYPE, n_cols),
                         .floats = floats};
}

static struct rows tied_rows(const struct heads *h, const struct tensor *output)
{
    return (struct rows){.type = output->type,
                         .n_rows = h->n_draft,
                         .n_cols = h->dim,
                         .row_bytes = quant_row_bytes(output->type, h->dim),
                         .stored = output->data,
                         .ids = h->draft_vocab};
}

static void read_row(const struct rows *rows, size_t i, uint8_t *out)
{
    if (!rows->floats) {
        const size_t id = rows->ids ? (size_t)rows->ids[i] : i;
        memcpy(out, rows->stored + id * rows->row_bytes, rows->row_bytes);
        return;
    }
    for (size_t k = 0; k < rows->n_cols; k++) {
        const uint16_t bits = quant_f32_to_bf16(rows->floats[i * rows->n_cols + k]);
        memcpy(out + k * sizeof bits, &bits, sizeof bits);
    }
}

static int pack(const struct rows *rows, struct weight *w, struct err *e)
{
    uint8_t *slice = malloc(SLICE_ROWS * rows->row_bytes);
    if (!slice)
        return ERR_SET(e, ERR_NOMEM, "no memory for rows of heads");
    int rc = 0;
    for (size_t first = 0; first < rows->n_rows && rc == 0; first += SLICE_ROWS) {
        const size_t n = size_min(SLICE_ROWS, rows->n_rows - first);
        for (size_t i = 0; i < n; i++)
            read_row(rows, first + i, slice + i * rows->row_bytes);
        struct weight part;
        rc = weight_pack(&part, rows->type, n, rows->n_cols, slice,
                         w->data + first / PANEL_COLS * w->panel_bytes, e);
    }
    free(slice);
    return rc;
}

/* ------------------------------------------------------------------ layout */

static void lay_weight(struct layout *l, const struct rows *rows, struct weight *w)
{
    *w = weight_shape(rows->type, rows->n_rows, rows->n_cols);
    w->data = layout_take(l, weight_packed_bytes(rows->type, rows->n_rows, rows->n_cols));
}

static struct rows output_rows(const struct medusa_options *o, size_t head)
{
    const float *own = o->heads->heads[head].output;
    return own ? float_rows(own, o->heads->n_draft, o->heads->dim)
               : tied_rows(o->heads, &o->model->output);
}

/* Neighbours over the same weights, as tied heads are, are one product. */
static void lay_outputs(struct layout *l, const struct medusa_options *o, struct medusa *md)
{
    md->n_outputs = 0;
    for (size_t i = 0; i < md->n_heads; i++) {
        if (i > 0 && o->heads->heads[i].output == o->heads->heads[i - 1].output) {
            md->outputs[md->n_outputs - 1].n_heads++;
            continue;
        }
        struct medusa_output *output = &md->outputs[md->n_outputs++];
        *output = (struct medusa_output){.first_head = i, .n_heads = 1};
        const struct rows rows = output_rows(o, i);
        lay_weight(l, &rows, &output->weight);
    }
}

static void lay_weights(struct layout *l, const struct medusa_options *o, struct medusa *md)
{
    for (size_t i = 0; i < md->n_heads; i++)
        for (size_t k = 0; k < md->n_blocks; k++) {
            const struct rows rows =
                float_rows(o->heads->heads[i].blocks[k].weight, md->dim, md->dim);
            lay_weight(l, &rows, &md->blocks[i][k]);
            md->biases[i][k] = layout_take(l, md->dim * sizeof(float));
        }
    lay_outputs(l, o, md);
}

static void lay_buffers(struct layout *l, const struct medusa_options *o, struct medusa *md)
{
    const size_t n_threads = pool_threads(md->threads);
    const size_t n_rows = md->n_heads * md->n_rows_max;
    for (size_t i = 0; i < 2; i++)
        layout_act(l, &md->states[i], n_rows, md->dim,
                   &md->states[i] == medusa_last(md) ? o->activations : ACT_F32);
    md->ones = layout_take(l, MEDUSA_COLS * sizeof md->ones[0]);
    md->tiles =
        layout_take(l, n_threads * MEDUSA_TILE_ROWS * MEDUSA_COLS * sizeof md->tiles[0]);
    md->bests = layout_take(l, n_threads * n_rows * MEDUSA_RANKS * sizeof md->bests[0]);
}

static struct medusa shape_of(const struct medusa_options *o)
{
    return (struct medusa){.kernels = o->kernels,
                           .threads = o->threads,
                           .n_rows_max = o->n_rows_max,
                           .device = o->device,
                           .n_heads = o->heads->n_heads,
                           .n_blocks = o->heads->n_blocks,
                           .dim = o->heads->dim,
                           .n_draft = o->heads->n_draft};
}

static size_t lay_all(const struct medusa_options *o, struct medusa *md)
{
    struct layout l = {.base = md->block};
    md->vocab =
        o->heads->draft_vocab ? layout_take(&l, md->n_draft * sizeof md->vocab[0]) : NULL;
    if (md->device) {
        md->guesses = layout_take(&l, md->n_heads * md->n_rows_max * MEDUSA_RANKS *
                                          sizeof md->guesses[0]);
        return l.used;
    }
    lay_weights(&l, o, md);
    lay_buffers(&l, o, md);
    return l.used;
}

size_t medusa_bytes(const struct medusa_options *o)
{
    struct medusa md = shape_of(o);
    return lay_all(o, &md);
}

/* ------------------------------------------------------------------ opening */

static int fill_weights(struct medusa *md, const struct medusa_options *o, struct err *e)
{
    const struct heads *h = o->heads;
    for (size_t i = 0; i < md->n_heads; i++)
        for (size_t k = 0; k < md->n_blocks; k++) {
            const struct heads_block *block = &h->heads[i].blocks[k];
            const struct rows rows = float_rows(block->weight, md->dim, md->dim);
            TRY(pack(&rows, &md->blocks[i][k], e));
            memcpy(md->biases[i][k], block->bias, md->dim * sizeof(float));
        }
    for (size_t i = 0; i < md->n_outputs; i++) {
        const struct rows rows = output_rows(o, md->outputs[i].first_head);
        TRY(pack(&rows, &md->outputs[i].weight, e));
    }
    for (size_t i = 0; i < MEDUSA_COLS; i++)
        md->ones[i] = 1;
    return 0;
}

static int fill(struct medusa *md, const struct medusa_options *o, struct err *e)
{
    if (md->vocab)
        memcpy(md->vocab, o->heads->draft_vocab, md->n_draft * sizeof md->vocab[0]);
    return md->device ? 0 : fill_weights(md, o, e);
}

int medusa_open(const struct medusa_options *o, struct medusa **out, struct err *e)
{
    *out = NULL;
    ASSERT(o->model->output.data && o->heads->dim == o->model->config.dim);
    struct medusa *md = malloc(sizeof *md);
    if (!md)
        return ERR_SET(e, ERR_NOMEM, "no memory for heads");
    *md = shape_of(o);
    md->block_bytes = medusa_bytes(o);
    int rc = memory_take(md->block_bytes, "heads", &md->block, e);
    if (rc == 0) {
        lay_all(o, md);
        rc = fill(md, o, e);
    }
    if (rc != 0) {
        medusa_close(md);
        return rc;
    }
    *out = md;
    return 0;
}

void medusa_close(struct medusa *md)
{
    if (!md)
        return;
    memory_give_back(md->block, md->block_bytes);
    free(md);
}
