#include "heads_make.h"

#include <stdlib.h>

#include "base/check.h"
#include "base/rng.h"

struct dice {
    uint64_t seed, n;
};

/* Multiples of scale / 64 in (-2, 2) * scale. */
static float *make_floats(struct dice *d, size_t n, float scale)
{
    float *out = malloc(n * sizeof out[0]);
    ASSERT(out);
    for (size_t i = 0; i < n; i++)
        out[i] = (float)((int)(rng_bits(d->seed, 1, d->n++) % 255) - 127) * scale / 64;
    return out;
}

/* Every so many ids, from one on that is not the first. */
static int32_t *make_vocab(size_t n_draft, size_t n_vocab)
{
    int32_t *out = malloc(n_draft * sizeof out[0]);
    ASSERT(out && n_draft < n_vocab);
    for (size_t i = 0; i < n_draft; i++)
        out[i] = (int32_t)((i * n_vocab + n_vocab - 1) / n_draft);
    return out;
}

struct heads *heads_make(const struct model *m, const struct heads_shape *s)
{
    struct dice d = {.seed = s->seed};
    const size_t dim = m->config.dim, n_vocab = m->config.n_vocab;
    struct heads *h = calloc(1, sizeof *h);
    ASSERT(h && s->n_heads <= HEADS_MAX && s->n_blocks <= HEADS_BLOCKS_MAX);
    *h = (struct heads){.n_heads = s->n_heads,
                        .n_blocks = s->n_blocks,
                        .dim = dim,
                        .n_draft = s->n_draft ? s->n_draft : n_vocab};
    if (s->n_draft)
        h->draft_vocab = make_vocab(s->n_draft, n_vocab);
    for (size_t i = 0; i < s->n_heads; i++) {
        for (size_t k = 0; k < s->n_blocks; k++) {
            h->heads[i].blocks[k].weight = make_floats(&d, dim * dim, s->scale);
            h->heads[i].blocks[k].bias = make_floats(&d, dim, s->scale);
        }
        if (s->has_output)
            h->heads[i].output = make_floats(&d, h->n_draft * dim, s->scale);
    }
    return h;
}
