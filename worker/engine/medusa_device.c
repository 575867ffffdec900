#include "engine/medusa_device.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "engine/engine_device.h"
#include "engine/medusa_int.h"
#include "quant.h"

static_assert((int)HEADS_MAX == (int)DEVICE_HEADS_MAX &&
                  (int)HEADS_BLOCKS_MAX == (int)DEVICE_HEAD_BLOCKS_MAX &&
                  (int)MEDUSA_RANKS == (int)DEVICE_GUESSES,
              "a device takes any heads and says as much of them");

/* ------------------------------------------------------------------ what it is told */

static struct device_tensor floats(const float *data, size_t n_rows, size_t n_cols)
{
    return (struct device_tensor){
        .type = QUANT_F32, .n_rows = n_rows, .n_cols = n_cols, .data = data};
}

static int gather_rows(const struct heads *h, const struct tensor *output, void **out,
                       struct err *e)
{
    const size_t row_bytes = quant_row_bytes(output->type, h->dim);
    uint8_t *rows = malloc(h->n_draft * row_bytes);
    if (!rows)
        return ERR_SET(e, ERR_NOMEM, "no memory for a draft vocabulary of %zu rows",
                       h->n_draft);
    for (size_t i = 0; i < h->n_draft; i++)
        memcpy(rows + i * row_bytes,
               (const uint8_t *)output->data + (size_t)h->draft_vocab[i] * row_bytes,
               row_bytes);
    *out = rows;
    return 0;
}

static struct device_tensor output_of(const struct medusa_device *md, const struct heads *h,
                                      const struct tensor *output, size_t head)
{
    if (h->heads[head].output)
        return floats(h->heads[head].output, h->n_draft, h->dim);
    return (struct device_tensor){.type = output->type,
                                  .n_rows = h->n_draft,
                                  .n_cols = h->dim,
                                  .data = md->rows ? md->rows : output->data};
}

/* Neighbours over the same weights are one product, as on the CPU. */
static void add_outputs(struct medusa_device *md, const struct heads *h,
                        const struct tensor *output)
{
    struct device_heads *d = &md->heads;
    for (size_t i = 0; i < h->n_heads; i++) {
        if (i > 0 && h->heads[i].output == h->heads[i - 1].output)
            d->outputs[d->n_outputs - 1].n_heads++;
        else
            d->outputs[d->n_outputs++] = (struct device_head_output){
                .weight = output_of(md, h, output, i), .first_head = i, .n_heads = 1};
    }
}

int medusa_device_open(const struct heads *h, const struct model *m, struct medusa_device *out,
                       struct err *e)
{
    *out = (struct medusa_device){
        .heads = {.n_heads = h->n_heads, .n_blocks = h->n_blocks, .n_draft = h->n_draft}};
    ASSERT(h->dim == m->config.dim && h->n_draft <= m->config.n_vocab);
    if (!h->heads[0].output && h->draft_vocab)
        TRY(gather_rows(h, &m->output, &out->rows, e));
    for (size_t i = 0; i < h->n_heads; i++)
        for (size_t k = 0; k < h->n_blocks; k++) {
            const struct heads_block *block = &h->heads[i].blocks[k];
            out->heads.weights[k][i] = floats(block->weight, h->dim, h->dim);
            out->heads.biases[k][i] = block->bias;
        }
    add_outputs(out, h, &m->output);
    return 0;
}

void medusa_device_close(struct medusa_device *md)
{
    free(md->rows);
    md->rows = NULL;
}

/* ------------------------------------------------------------------ a run */

/* A failed device has nothing to say; that it has failed comes out with the step. */
void medusa_run_kept(struct medusa *md, const int32_t *places, size_t n,
                     struct medusa_guesses *out)
{
    ASSERT(md->device && n <= md->n_rows_max);
    const bool is_well = engine_device_guess(md->device, n, places, md->guesses);
    for (size_t k = 0; k < n; k++)
        out[k].n_heads = is_well ? md->n_heads : 0;
    for (size_t i = 0; is_well && i < md->n_heads * n; i++) {
        struct medusa_best bests[MEDUSA_RANKS];
        for (size_t r = 0; r < MEDUSA_RANKS; r++) {
            const struct device_guess *g = &md->guesses[i * MEDUSA_RANKS + r];
            const bool is_token = g->index >= 0 && (size_t)g->index < md->n_draft;
            bests[r] = (struct medusa_best){g->value, is_token ? g->index : MEDUSA_NO_BEST};
        }
        medusa_guess(md, bests, out[i % n].guesses[i / n]);
    }
}
