/*
 * Attention of one layer: rows x pages, cut into tiles.
 *
 * A tile is a run of rows of one sequence and one KV head, at most TILE_ROWS of them with all
 * query heads that share the KV head. It reads the sequence's pages up to its last row's
 * position.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/limits.h"
#include "engine/forward_int.h"

enum { TILE_QUERIES = 96 }; /* (row, head) pairs of a tile, about */

struct attention_tile {
    const struct step_segment *segment;
    size_t first_row; /* of the segment */
    size_t n_rows;
    size_t kv_head;
};

/* Per thread; R = queries of the largest tile. */
struct attention_scratch {
    const float **q;    /* [R] */
    float **out;        /* [R] */
    int32_t *row_pos;   /* [R] */
    const void **pages; /* [pages of the longest sequence] */
    float *m;           /* [R] */
    float *d;           /* [R, LANES] */
    float *o;           /* [R, HD] */
};

static size_t heads_per_kv_head(const struct forward *f)
{
    return f->config->n_heads / f->config->n_kv_heads;
}

static size_t rows_per_tile(const struct forward *f)
{
    const size_t rows = TILE_QUERIES / heads_per_kv_head(f);
    return rows > 0 ? rows : 1;
}

static float *aligned_floats(size_t n)
{
    const size_t bytes =
        (n * sizeof(float) + KERNELS_ALIGN - 1) / KERNELS_ALIGN * KERNELS_ALIGN;
    return aligned_alloc(KERNELS_ALIGN, bytes);
}

static bool scratch_open(struct attention_scratch *s, size_t n_queries, size_t n_pages,
                         size_t head_dim)
{
    s->q = calloc(n_queries, sizeof s->q[0]);
    s->out = calloc(n_queries, sizeof s->out[0]);
    s->row_pos = calloc(n_queries, sizeof s->row_pos[0]);
    s->pages = calloc(n_pages, sizeof s->pages[0]);
    s->m = aligned_floats(n_queries);
    s->d = aligned_floats(n_queries * LANES);
    s->o = aligned_floats(n_queries * head_dim);
    return s->q && s->out && s->row_pos && s->pages && s->m && s->d && s->o;
}

int forward_attention_open(struct forward *f, struct err *e)
{
    const size_t n_threads = pool_threads(f->threads);
    const size_t n_queries = rows_per_tile(f) * heads_per_kv_head(f);
    f->tiles_max = f->options.n_rows_max * f->config->n_kv_heads;
    f->tiles = calloc(f->tiles_max, sizeof f->tiles[0]);
    f->scratch = calloc(n_threads, sizeof f->scratch[0]);
    if (!f->tiles || !f->scratch)
        return ERR_SET(e, ERR_NOMEM, "no memory for attention");
    for (size_t i = 0; i < n_threads; i++)
        if (!scratch_open(&f->scratch[i], n_queries, kvpool_pages(f->kvpool),
                          f->config->head_dim))
            return ERR_SET(e, ERR_NOMEM, "no memory for attention");
    return 0;
}

void forward_attention_close(struct forward *f)
{
    for (size_t i = 0; f->scratch && i < pool_threads(f->threads); i++) {
        struct attention_scratch *s = &f->scratch[i];
        free(s->q);
        free(s->out);
        free(s->row_pos);
        free(s->pages);
        free(s->m);
        free(s->d);
        free(s->o);
    }
    free(f->scratch);
    free(f->tiles);
}

void forward_attention_plan(struct forward *f)
{
    const size_t rows_max = rows_per_tile(f);
    f->n_tiles = 0;
    for (size_t i = 0; i < f->plan->n_segments; i++) {
        const struct step_segment *segment = &f->plan->segments[i];
        for (size_t head = 0; head < f->config->n_kv_heads; head++) {
            for (size_t row = 0; row < segment->n_rows; row += rows_max) {
                const size_t left = segment->n_rows - row;
                ASSERT(f->n_tiles < f->tiles_max);
                f->tiles[f->n_tiles++] = (struct attention_tile){
                    .segment = segment,
                    .first_row = row,
                    .n_rows = left < rows_max ? left : rows_max,
                    .kv_head = head,
                };
            }
        }
    }
}

/* Points the scratch at the tile's queries and outputs; returns how many there are. */
static size_t gather_queries(const struct forward *f, const struct attention_tile *tile,
                             struct attention_scratch *s)
{
    const struct model_config *c = f->config;
    const size_t n_group = heads_per_kv_head(f);
    const size_t qkv_stride = f->layer->qkv.n_rows;
    size_t n = 0;
    for (size_t i = 0; i < tile->n_rows; i++) {
        const size_t row = tile->segment->row + tile->first_row + i;
        for (size_t g = 0; g < n_group; g++, n++) {
            const size_t column = (tile->kv_head * n_group + g) * c->head_dim;
            s->q[n] = f->qkv + row * qkv_stride + column;
            s->out[n] = f->mixed.f32 + row * f->mixed.n_cols + column;
            s->row_pos[n] = (int32_t)(tile->segment->position + tile->first_row + i);
        }
    }
    return n;
}

static void attend_tile(void *ctx, size_t item, size_t thread)
{
    struct forward *f = ctx;
    const struct attention_tile *tile = &f->tiles[item];
    struct attention_scratch *s = &f->scratch[thread];
    const size_t head_dim = f->config->head_dim;
    const size_t n_queries = gather_queries(f, tile, s);
    const size_t n_keys = (size_t)s->row_pos[n_queries - 1] + 1;
    for (size_t i = 0; i < seq_pages_for(n_keys); i++)
        s->pages[i] = kvpool_block(f->kvpool, f->layer_index, tile->segment->seq->pages[i],
                                   tile->kv_head);
    for (size_t i = 0; i < n_queries; i++)
        s->m[i] = -INFINITY;
    memset(s->d, 0, n_queries * LANES * sizeof s->d[0]);
    memset(s->o, 0, n_queries * head_dim * sizeof s->o[0]);
    const struct attend a = {
        .kv_type = f->options.kv_type,
        .head_dim = head_dim,
        .scale = (float)(1.0 / sqrt((double)head_dim)),
        .n_rows = n_queries,
        .q = s->q,
        .row_pos = s->row_pos,
        .pages = s->pages,
        .first_pos = 0,
        .n_keys = n_keys,
        .m = s->m,
        .d = s->d,
        .o = s->o,
    };
    f->kernels->attend(&a);
    f->kernels->attend_finish(&a, s->out);
}

void forward_attention_run(struct forward *f)
{
    pool_run(f->threads, attend_tile, f, f->n_tiles);
}
