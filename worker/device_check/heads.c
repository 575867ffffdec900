/* Heads for any model: random ones, which guess badly. What counts is that no answer changes.
 */
#include <math.h>
#include <stdlib.h>

#include "base/rng.h"
#include "device_check/check.h"

enum { N_HEADS = 2, SEED = 5 };

static float *random_floats(size_t n, float range, uint64_t stream)
{
    float *out = malloc(n * sizeof out[0]);
    for (size_t i = 0; out && i < n; i++)
        out[i] = (float)(2 * rng_uniform(SEED, stream, i) - 1) * range;
    return out;
}

int check_heads_open(const struct model *m, struct heads **out, struct err *e)
{
    const size_t dim = m->config.dim;
    const float range = 1 / sqrtf((float)dim);
    struct heads *h = *out = calloc(1, sizeof *h);
    if (!h)
        return ERR_SET(e, ERR_NOMEM, "no memory for heads");
    *h = (struct heads){
        .n_heads = N_HEADS, .n_blocks = 1, .dim = dim, .n_draft = m->config.n_vocab};
    for (size_t i = 0; i < N_HEADS; i++) {
        struct heads_block *block = &h->heads[i].blocks[0];
        block->weight = random_floats(dim * dim, range, 2 * i);
        block->bias = random_floats(dim, range, 2 * i + 1);
        if (!block->weight || !block->bias)
            return ERR_SET(e, ERR_NOMEM, "no memory for heads");
    }
    return 0;
}
