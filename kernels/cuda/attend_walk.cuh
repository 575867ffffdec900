/*
 * What the kernels of attention share: the queries of a thread block's tile and the pages that
 * it goes over.
 */
#ifndef SHEAF_CUDA_ATTEND_WALK_CUH
#define SHEAF_CUDA_ATTEND_WALK_CUH

#include "ops.cuh"

extern "C" {
#include "base/limits.h"
}

/* A launch: what was asked for, and how it is cut. */
struct attend_launch {
    attend_args a;
    int heads;        /* query heads of a KV head */
    int warp_queries; /* of a tile, that a warp takes: whole rows if they fit */
    int tile_queries;
    int n_tiles;                              /* of a block at most */
    int block_queries_min, block_queries_max; /* of the blocks that this launch is for */
    int split_pages;  /* positions' pages that a thread block goes over; all: INT32_MAX */
    float scale_log2; /* scores in powers of two */
    float *partial;   /* attend_merge.cuh; NULL: not split */
};

struct attend_tile {
    int first_row; /* of the block, of all rows */
    int first_span, n_spans;
    int first_query, n_queries; /* of the block's (row, query head) pairs */
    int kv_head;
    int page_begin, page_end; /* of positions / 32 */
};

/* False: there is nothing to do. Grid: x tiles of blocks, y KV heads, z splits. */
DEVICE bool attend_tile_open(const attend_launch &l, attend_tile *t)
{
    const device_block block = l.a.blocks[blockIdx.x / (unsigned)l.n_tiles];
    const int block_queries = block.n_rows * l.heads;
    if (block_queries < l.block_queries_min || block_queries > l.block_queries_max)
        return false;
    t->first_row = block.first_row;
    t->first_span = block.first_span;
    t->n_spans = block.n_spans;
    t->first_query = (int)(blockIdx.x % (unsigned)l.n_tiles) * l.tile_queries;
    t->n_queries = block_queries - t->first_query;
    if (t->n_queries > l.tile_queries)
        t->n_queries = l.tile_queries;
    t->kv_head = (int)blockIdx.y;
    t->page_begin = l.partial ? (int)blockIdx.z * l.split_pages : 0;
    t->page_end = l.partial ? t->page_begin + l.split_pages : INT32_MAX;
    return t->n_queries > 0;
}

DEVICE int attend_row_of(const attend_launch &l, const attend_tile &t, int query)
{
    return t.first_row + (t.first_query + query) / l.heads;
}

DEVICE int attend_head_of(const attend_launch &l, const attend_tile &t, int query)
{
    return t.kv_head * l.heads + (t.first_query + query) % l.heads;
}

/* Where a query stands in q, and its answer in mixed. */
DEVICE size_t attend_place_of(const attend_launch &l, const attend_tile &t, int query)
{
    const size_t row = (size_t)l.a.rows[attend_row_of(l, t, query)].row;
    const size_t head = (size_t)attend_head_of(l, t, query);
    return (row * (size_t)l.a.n_heads + head) * (size_t)l.a.head_dim;
}

/* ------------------------------------------------------------------ pages */

/* Whose spans a walk goes over: those that queries of several warps share, or those of one. */
enum { WALK_SHARED = -1 };

/*
 * Pages of spans in order, parents first. A span below another one has no rows but its own, so
 * that each query meets all its shared pages before its warp's own ones, and both in the order
 * of positions.
 */
struct attend_walk {
    int who; /* WALK_SHARED or a warp */
    int span;
    int page, n_pages; /* of the span */
    int branch;        /* of its rows, or -1 */
    device_span at;
};

/* Queries of the tile that a span's rows are; n = end - begin may be less than 1. */
DEVICE int attend_span_begin(const attend_launch &l, const attend_tile &t, const device_span &s)
{
    const int begin = s.first_row * l.heads - t.first_query;
    return begin > 0 ? begin : 0;
}

DEVICE int attend_span_end(const attend_launch &l, const attend_tile &t, const device_span &s)
{
    const int end = (s.first_row + s.n_rows) * l.heads - t.first_query;
    return end < t.n_queries ? end : t.n_queries;
}

DEVICE bool attend_is_walked(const attend_launch &l, const attend_tile &t, const attend_walk &w)
{
    const int begin = attend_span_begin(l, t, w.at), end = attend_span_end(l, t, w.at);
    if (begin >= end)
        return false;
    const int first = begin / l.warp_queries, last = (end - 1) / l.warp_queries;
    return w.who == WALK_SHARED ? first != last : first == w.who && last == w.who;
}

DEVICE attend_walk attend_walk_open(const attend_tile &t, int who)
{
    attend_walk w;
    w.who = who;
    w.span = t.first_span - 1;
    w.page = w.n_pages = 0;
    w.branch = -1;
    w.at = {0, 0, 0, 0, 0};
    return w;
}

DEVICE void attend_walk_open_span(const attend_launch &l, const attend_tile &t, attend_walk *w)
{
    w->at = l.a.spans[w->span];
    w->page = w->n_pages = 0;
    if (!attend_is_walked(l, t, *w))
        return;
    w->branch = l.a.rows[t.first_row + w->at.first_row].branch;
    const int begin = t.page_begin - w->at.first_page, end = t.page_end - w->at.first_page;
    const int n_pages = (w->at.n_keys + KV_PAGE_TOKENS - 1) / KV_PAGE_TOKENS;
    w->page = begin > 0 ? begin : 0;
    w->n_pages = end < n_pages ? end : n_pages;
}

/* To the next page; false: there is none, nor will there be one. */
DEVICE bool attend_walk_next(const attend_launch &l, const attend_tile &t, attend_walk *w)
{
    const int end = t.first_span + t.n_spans;
    w->page++;
    while (w->page >= w->n_pages) {
        if (w->span + 1 >= end) {
            w->n_pages = 0;
            return false;
        }
        w->span++;
        attend_walk_open_span(l, t, w);
    }
    return true;
}

/* A page under way: who goes over it, and which keys it has. */
struct attend_page {
    int begin, end; /* queries of the tile */
    int first_position;
    int n_keys; /* that some row sees; 0: there is no page */
};

DEVICE attend_page attend_page_of(const attend_launch &l, const attend_tile &t,
                                  const attend_walk &w)
{
    attend_page p;
    p.begin = attend_span_begin(l, t, w.at);
    p.end = attend_span_end(l, t, w.at);
    p.first_position = (w.at.first_page + w.page) * KV_PAGE_TOKENS;
    const int n_keys = w.at.n_keys - w.page * KV_PAGE_TOKENS;
    p.n_keys = n_keys < KV_PAGE_TOKENS ? n_keys : KV_PAGE_TOKENS;
    return p;
}

/* Keys of a page of the launch's layer, values behind them. */
template <class T>
DEVICE const T *attend_page_data(const attend_launch &l, const attend_tile &t, int head_dim,
                                 int page)
{
    const kv_memory &kv = l.a.kv;
    const size_t index =
        ((size_t)l.a.layer * (size_t)kv.n_pages + (size_t)page) * (size_t)kv.n_kv_heads +
        (size_t)t.kv_head;
    return static_cast<const T *>(kv.data) + index * (size_t)(2 * KV_PAGE_TOKENS * head_dim);
}

/* Where a page's tokens are: side by side, or, where a branch is not NULL, those of its
 * positions wherever their slots are. */
template <class T> struct attend_source {
    const T *page;
    const device_branch *branch;
    int first_position;
    int n_keys; /* that some row sees */
};

template <class T>
DEVICE attend_source<T> attend_source_of(const attend_launch &l, const attend_tile &t,
                                         const attend_walk &w, int head_dim)
{
    attend_source<T> s;
    s.n_keys = w.at.n_keys - w.page * KV_PAGE_TOKENS;
    s.first_position = (w.at.first_page + w.page) * KV_PAGE_TOKENS;
    s.page = attend_page_data<T>(l, t, head_dim, l.a.pages[w.at.pages + w.page]);
    s.branch = w.branch >= 0 ? l.a.branches + w.branch : nullptr;
    if (s.branch && s.first_position + KV_PAGE_TOKENS <= s.branch->first_position)
        s.branch = nullptr;
    return s;
}

/* The key of a token of the page. */
template <class T>
DEVICE const T *attend_token_of(const attend_launch &l, const attend_tile &t,
                                const attend_source<T> &s, int head_dim, int token)
{
    if (s.branch) {
        const int i = s.first_position + token - s.branch->first_position;
        if (i >= 0 && i < s.branch->n_positions) {
            const int slot = l.a.slots[s.branch->first_slot + i];
            const int page = l.a.pages[s.branch->pages + slot / KV_PAGE_TOKENS];
            return attend_page_data<T>(l, t, head_dim, page) + slot % KV_PAGE_TOKENS * head_dim;
        }
    }
    return s.page + token * head_dim;
}

#endif
