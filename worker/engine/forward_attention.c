/*
 * Attention of one layer: the blocks and spans of the plan, for each KV head.
 *
 * An item is a block's rows with all query heads that share the KV head. It takes them over
 * their pages span by span, the softmax state of every query being carried along.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/limits.h"
#include "engine/forward_int.h"

enum { IMAGES_MAX = (DRAFT_NODES_MAX + 2 * KV_PAGE_TOKENS - 2) / KV_PAGE_TOKENS };

/* Per thread; R = queries of the largest block. */
struct attention_scratch {
    const float **q;    /* [R] */
    float **out;        /* [R] */
    int32_t *row_pos;   /* [R] */
    const void **pages; /* [pages of the longest sequence] */
    float *m;           /* [R] */
    float *d;           /* [R, LANES] */
    float *o;           /* [R, HD] */
    uint8_t *images;    /* [IMAGES_MAX] pages of a branch; NULL: there are no drafts */
    uint64_t n_pages_read;
};

static float *aligned_floats(size_t n)
{
    const size_t bytes =
        (n * sizeof(float) + KERNELS_ALIGN - 1) / KERNELS_ALIGN * KERNELS_ALIGN;
    return aligned_alloc(KERNELS_ALIGN, bytes);
}

static bool scratch_open(struct attention_scratch *s, size_t n_queries, size_t n_pages,
                         size_t head_dim, size_t image_bytes)
{
    s->q = calloc(n_queries, sizeof s->q[0]);
    s->out = calloc(n_queries, sizeof s->out[0]);
    s->row_pos = calloc(n_queries, sizeof s->row_pos[0]);
    s->pages = calloc(n_pages, sizeof s->pages[0]);
    s->m = aligned_floats(n_queries);
    s->d = aligned_floats(n_queries * LANES);
    s->o = aligned_floats(n_queries * head_dim);
    if (image_bytes > 0)
        s->images = aligned_alloc(KERNELS_ALIGN, IMAGES_MAX * image_bytes);
    return s->q && s->out && s->row_pos && s->pages && s->m && s->d && s->o &&
           (s->images || image_bytes == 0);
}

/* Of one layer and head, and where the next one begins. */
static size_t image_bytes(const struct forward *f)
{
    const size_t bytes = kv_page_bytes(f->options.kv_type, f->config->head_dim);
    return (bytes + KERNELS_ALIGN - 1) / KERNELS_ALIGN * KERNELS_ALIGN;
}

int forward_attention_open(struct forward *f, struct err *e)
{
    const size_t n_threads = pool_threads(f->threads);
    const size_t n_queries = attention_rows_max(f) * attention_heads(f);
    const size_t n_branches_max = f->options.drafts ? f->options.n_rows_max : 0;
    TRY(attention_plan_open(&f->attention, f->options.n_rows_max, n_branches_max, e));
    f->scratch = calloc(n_threads, sizeof f->scratch[0]);
    if (!f->scratch)
        return ERR_SET(e, ERR_NOMEM, "no memory for attention");
    for (size_t i = 0; i < n_threads; i++)
        if (!scratch_open(&f->scratch[i], n_queries, kvpool_pages(f->kvpool),
                          f->config->head_dim, f->options.drafts ? image_bytes(f) : 0))
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
        free(s->images);
    }
    free(f->scratch);
    attention_plan_close(&f->attention);
}

uint64_t forward_attention_pages(const struct forward *f)
{
    uint64_t n = 0;
    ASSERT(f->scratch);
    for (size_t i = 0; i < pool_threads(f->threads); i++)
        n += f->scratch[i].n_pages_read;
    return n;
}

/* Points the scratch at the block's queries and outputs, and clears their state. */
static size_t gather_queries(const struct forward *f, const struct attention_block *block,
                             size_t kv_head, struct attention_scratch *s)
{
    const struct model_config *c = f->config;
    const size_t n_heads = attention_heads(f);
    const size_t qkv_stride = f->layer->qkv.n_rows;
    size_t n = 0;
    for (size_t i = 0; i < block->n_rows; i++) {
        const struct attention_row *r = &f->attention.rows[block->first_row + i];
        for (size_t g = 0; g < n_heads; g++, n++) {
            const size_t column = (kv_head * n_heads + g) * c->head_dim;
            s->q[n] = f->qkv + r->row * qkv_stride + column;
            s->out[n] = f->mixed.f32 + r->row * f->mixed.n_cols + column;
            s->row_pos[n] = r->position;
            s->m[n] = -INFINITY;
        }
    }
    memset(s->d, 0, n * LANES * sizeof s->d[0]);
    memset(s->o, 0, n * c->head_dim * sizeof s->o[0]);
    return n;
}

/* A branch's keys and values of a page, each at its position's place. */
static const void *make_image(const struct forward *f, const struct attention_branch *branch,
                              size_t page, size_t kv_head, struct attention_scratch *s)
{
    const struct step_segment *segment = branch->segment;
    const struct draft *draft = segment->draft;
    const int32_t *pages = segment->seq->pages;
    const size_t first_node = segment_root(segment) + 1; /* its row */
    const size_t first_slot = segment->position + first_node;
    uint8_t *image = s->images + (page - branch->first_page) * image_bytes(f);
    if (page == branch->first_page)
        memcpy(image, kvpool_block(f->kvpool, f->layer_index, pages[page], kv_head),
               kv_page_bytes(f->options.kv_type, f->config->head_dim));
    for (int node = (int)branch->last_node;
         node != DRAFT_ROOT && !attention_is_in_place(draft, (size_t)node);
         node = draft->nodes[node].parent) {
        const size_t position = segment_position(segment, first_node + (size_t)node);
        const size_t slot = first_slot + (size_t)node;
        if (position / KV_PAGE_TOKENS == page)
            kv_copy_token(
                f->options.kv_type, f->config->head_dim, image, position % KV_PAGE_TOKENS,
                kvpool_block(f->kvpool, f->layer_index, pages[slot / KV_PAGE_TOKENS], kv_head),
                slot % KV_PAGE_TOKENS);
    }
    return image;
}

/* Returns the pages that it went over. */
static size_t attend_span(const struct forward *f, const struct attention_block *block,
                          const struct attention_span *span, size_t kv_head,
                          struct attention_scratch *s)
{
    const size_t head_dim = f->config->head_dim;
    const size_t query = span->first_row * attention_heads(f);
    const struct attention_row *row = &f->attention.rows[block->first_row + span->first_row];
    const size_t n_pages = seq_pages_for(span->n_keys);
    for (size_t i = 0; i < n_pages; i++) {
        const size_t page = span->first_page + i;
        if (attention_is_image(row, page))
            s->pages[i] = make_image(f, row->branch, page, kv_head, s);
        else
            s->pages[i] = kvpool_block(f->kvpool, f->layer_index, row->pages[page], kv_head);
    }
    const struct attend a = {
        .kv_type = f->options.kv_type,
        .head_dim = head_dim,
        .scale = (float)(1.0 / sqrt((double)head_dim)),
        .n_rows = span->n_rows * attention_heads(f),
        .q = s->q + query,
        .row_pos = s->row_pos + query,
        .pages = s->pages,
        .first_pos = (int32_t)(span->first_page * KV_PAGE_TOKENS),
        .n_keys = span->n_keys,
        .m = s->m + query,
        .d = s->d + query * LANES,
        .o = s->o + query * head_dim,
    };
    f->kernels->attend(&a);
    return n_pages;
}

/* Is what the heads of a KV head put out whole blocks of activations? */
static bool is_whole_blocks(const struct forward *f)
{
    return attention_heads(f) * f->config->head_dim % ACT_BLOCK == 0;
}

static void quantize_block(struct forward *f, const struct attention_block *block,
                           size_t kv_head)
{
    const size_t n_cols = attention_heads(f) * f->config->head_dim;
    for (size_t i = 0; i < block->n_rows; i++) {
        const size_t row = f->attention.rows[block->first_row + i].row;
        forward_quantize(f, &f->mixed, row, row + 1, kv_head * n_cols, (kv_head + 1) * n_cols);
    }
}

static void attend_block(void *ctx, size_t item, size_t thread)
{
    struct forward *f = ctx;
    const struct attention_plan *p = &f->attention;
    const struct attention_block *block = &p->blocks[item / f->config->n_kv_heads];
    const size_t kv_head = item % f->config->n_kv_heads;
    struct attention_scratch *s = &f->scratch[thread];
    const size_t n_queries = gather_queries(f, block, kv_head, s);
    uint64_t n_pages = 0;
    for (size_t i = 0; i < block->n_spans; i++)
        n_pages += attend_span(f, block, &p->spans[block->first_span + i], kv_head, s);
    s->n_pages_read += n_pages;
    const struct attend a = {
        .head_dim = f->config->head_dim, .n_rows = n_queries, .d = s->d, .o = s->o};
    f->kernels->attend_finish(&a, s->out);
    if (is_whole_blocks(f))
        quantize_block(f, block, kv_head);
}

void forward_attention_run(struct forward *f)
{
    pool_run(f->threads, attend_block, f, f->attention.n_blocks * f->config->n_kv_heads);
    if (!is_whole_blocks(f))
        forward_quantize(f, &f->mixed, 0, f->plan->n_rows, 0, f->mixed.n_cols);
}
