/*
 * Attention of one layer over the paged KV pool, for a step of mixed rows: prefill chunks,
 * decode rows, groups over a common prefix, drafts to verify.
 *
 * Tiles. The queries of a block of rows and a KV head, (row, query head) pairs, are the rows of
 * a matrix: 16 to a fragment, STACK fragments to a warp, WARPS warps to a thread block. With
 * four heads to a KV head, 32 sequences of a group fill a tile of 128. A block with more
 * queries takes several tiles. Heads of a row stay in one warp wherever they fit.
 *
 *     queries of the largest block      WARPS  STACK  rows
 *     1 .. 16   (decode rows alone)       1      1      16
 *     17 .. 64, and large head dims       4      1      64   (head dim 256: 2 warps)
 *     more                                4      2     128
 *
 * Pages are the key blocks: 32 keys, always cut at multiples of 32 positions, so that a span,
 * which is whole pages, begins and ends with a key block. For every page each warp computes
 * S = Q K^T for its rows, the new maximum, P = 2^(S - maximum) and O = O * fade + P V with O,
 * the maximum and the sum of weights in registers: from the first page of the first span to the
 * last of the row's last span, without a merge. What is done to a row depends on its own pages
 * only: a page that the row does not see adds weights of zero and fades by one. So a row has
 * the same bits in every tile, shape and block, and in every company, as long as a matrix unit
 * treats the rows of a fragment alike. The order of operations is written out with fmaf where a
 * product is added, since a compiler may fuse what it likes elsewhere.
 *
 * Who goes over what. Spans whose rows belong to several warps come first, in their order: all
 * warps load each page together, WARPS pages of keys and values in a ring, one barrier a page.
 * Then each warp goes alone over the spans of its own rows in its own slot of the ring, without
 * barriers: private suffixes and drafts of a group are that many walks side by side. A span's
 * children have no rows but the span's, so every row meets its pages in the order of positions.
 *
 * Shared memory: rows of HD bfloat16 and 16 bytes, which keeps load_matrix free of bank
 * conflicts. Keys and values of WARPS pages, then the queries, where the answers pass too.
 * HD 128: 21 KiB a tile of 16 rows, 85 KiB of 64, 102 KiB of 128.
 *
 * Masks are by position and only where a fragment needs one. Slots that no row sees are zeros
 * in shared memory, whatever the pool holds there. Values that are no numbers, but that some
 * row does see, are kept from the others by a second pass (attend_careful.cuh).
 *
 * A page costs a fragment HD / 4 products on matrix units for scores and as many for values,
 * and each thread 16 powers of two; STACK fragments together HD / 8 loads of four matrices for
 * keys, as many for values, and HD / 16 each for queries that are not held in registers. The
 * bound is the matrix units from about 64 queries on, else bandwidth. Counted in the machine
 * code for sm_90a, HD 128, 128 rows, a page that all rows see: some 580 instructions of a warp,
 * of which 128 are products, 48 matrix loads and 36 powers of two. At 6.5 clocks a product
 * (on Hopper they are known for 62 % of the peak) that is 830 clocks of matrix
 * unit beside 768 of shared memory and 580 of issue: close enough to each other that about two
 * thirds of it, 40 % of the peak, are to be hoped for. Not measured: there was no device.
 *
 * Mode fast. Where a tile would have much more to do than its share of the device, the
 * positions are cut into equal runs of pages and the tiles into as many thread blocks;
 * attend_merge.cuh brings them together.
 *
 * float32 keys, and head dims without a tile, go by attend_plain.cuh.
 */
#include "attend_merge.cuh"
#include "attend_plain.cuh"
#include "attend_tile.cuh"
#include "buckets.h"
#include "count.cuh"

extern "C" {
#include "base/check.h"
}

/* What the least of the architectures that are built for lets a thread block have. */
static const size_t ATTEND_SHARED_BYTES_MIN = 99 << 10;

/* A run of positions that is worth a thread block and its part of the merge. */
enum { ATTEND_SPLIT_PAGES_MIN = 8 };

/* ------------------------------------------------------------------ shapes */

struct attend_choice {
    int warps, stack;
    int per_processor; /* thread blocks that a processor holds, about */
    size_t shared_bytes;
    void (*kernel)(attend_launch l);
};

template <int HD, int WARPS, int STACK> static attend_choice attend_choice_of()
{
    return {WARPS, STACK, WARPS == 1 ? 8 : 2, attend_shape<HD, WARPS, STACK>::BYTES,
            attend_tiles<HD, WARPS, STACK>};
}

/* The smallest shape that takes all queries of a block; the largest that there is room for. */
template <int HD> static attend_choice attend_choose(int n_queries, size_t shared_bytes_max)
{
    const attend_choice narrow = attend_choice_of<HD, 1, 1>();
    if constexpr (HD > 128) {
        const attend_choice wide = attend_choice_of<HD, 2, 1>();
        return n_queries <= ROWS ? narrow : wide;
    } else {
        const attend_choice wide = attend_choice_of<HD, 4, 1>();
        const attend_choice widest = attend_choice_of<HD, 4, 2>();
        if (n_queries <= ROWS)
            return narrow;
        return n_queries <= 4 * ROWS || widest.shared_bytes > shared_bytes_max ? wide : widest;
    }
}

template <class T> static void (*attend_plain_of(int head_dim))(attend_launch l)
{
    switch ((head_dim + 31) / 32) {
    case 1: return attend_plain<T, 1>;
    case 2: return attend_plain<T, 2>;
    case 3: return attend_plain<T, 3>;
    case 4: return attend_plain<T, 4>;
    default: ASSERT(head_dim <= 512); return attend_plain<T, 16>;
    }
}

static attend_choice attend_choose_kernel(const attend_args &a)
{
    if (a.kv.type == KV_F32)
        return {1, 0, 16, 0, attend_plain_of<float>(a.head_dim)};
    const size_t room = a.shared_bytes_max > 0 ? a.shared_bytes_max : ATTEND_SHARED_BYTES_MIN;
    switch (a.head_dim) {
    case 16: return attend_choose<16>(a.block_queries_max, room);
    case 32: return attend_choose<32>(a.block_queries_max, room);
    case 64: return attend_choose<64>(a.block_queries_max, room);
    case 96: return attend_choose<96>(a.block_queries_max, room);
    case 128: return attend_choose<128>(a.block_queries_max, room);
    case 256: return attend_choose<256>(a.block_queries_max, room);
    default: return {1, 0, 16, 0, attend_plain_of<bf16>(a.head_dim)};
    }
}

/* ------------------------------------------------------------------ splits */

static size_t attend_split_bytes(const attend_args &a)
{
    return (size_t)a.n_attend_rows * (size_t)a.n_heads * (size_t)(a.head_dim + 2) *
           sizeof(float);
}

/* As many splits as there is room for. */
static int attend_splits_max(const attend_args &a)
{
    const size_t room = a.scratch_bytes / attend_split_bytes(a);
    return room < ATTEND_SPLITS_MAX ? (int)room : ATTEND_SPLITS_MAX;
}

/* Pages of a run of positions, so that no thread block has much more to do than its share of
 * all pages; INT32_MAX: no split. */
static int attend_split_pages(const attend_args &a, int per_processor)
{
    if (a.exact || !a.scratch || a.n_processors <= 0)
        return INT32_MAX;
    const int n_splits = attend_splits_max(a);
    if (n_splits < 2)
        return INT32_MAX;
    const uint64_t capacity = (uint64_t)a.n_processors * (uint64_t)per_processor;
    const uint64_t work = a.split_keys / KV_PAGE_TOKENS * (uint64_t)a.n_kv_heads;
    int pages = work / capacity < INT32_MAX / 2 ? (int)(work / capacity) + 1 : INT32_MAX / 2;
    if (pages < ATTEND_SPLIT_PAGES_MIN)
        pages = ATTEND_SPLIT_PAGES_MIN;
    if (pages < (a.n_pages_max + n_splits - 1) / n_splits)
        pages = (a.n_pages_max + n_splits - 1) / n_splits;
    return a.n_pages_max > pages + pages / 2 ? pages : INT32_MAX;
}

/* What tiles that fill the device hold, and are split into when there are fewer. */
enum { ATTEND_QUERIES_PER_PROCESSOR = 2 * 128 };

size_t attend_scratch_bytes(int head_dim, int n_processors)
{
    return (size_t)n_processors * ATTEND_QUERIES_PER_PROCESSOR * (size_t)(head_dim + 2) *
           sizeof(float);
}

/* ------------------------------------------------------------------ the launch */

static int attend_warp_queries(int heads, int rows)
{
    return heads <= rows ? rows - rows % heads : rows;
}

static int attend_tile_queries(const attend_args &a, const attend_choice &c)
{
    const int heads = a.n_heads / a.n_kv_heads;
    return c.stack > 0 ? c.warps * attend_warp_queries(heads, ROWS * c.stack) : c.warps;
}

static attend_split attend_split_of(const attend_args &a, const attend_choice &c)
{
    const int pages = attend_split_pages(a, c.per_processor);
    return {pages, pages < INT32_MAX ? (a.n_pages_max + pages - 1) / pages : 1};
}

static attend_launch attend_open_launch(const attend_args &a, const attend_choice &c)
{
    attend_launch l;
    l.a = a;
    l.heads = a.n_heads / a.n_kv_heads;
    l.tile_queries = attend_tile_queries(a, c);
    l.warp_queries = l.tile_queries / c.warps;
    l.n_tiles = (a.block_queries_max + l.tile_queries - 1) / l.tile_queries;
    l.split_pages = attend_split_of(a, c).n_pages;
    l.scale_log2 = a.scale * 1.44269504f;
    l.partial = l.split_pages < INT32_MAX ? a.scratch : nullptr;
    return l;
}

/* Queries in and answers out; splits go out and in. */
static void attend_count(const attend_args &a, int n_splits)
{
    const uint64_t width = (uint64_t)a.n_heads * (uint64_t)a.head_dim;
    const uint64_t row_bytes = (uint64_t)a.n_attend_rows * width * sizeof(bf16);
    const uint64_t split_bytes = n_splits > 1 ? (uint64_t)n_splits * attend_split_bytes(a) : 0;
    count_op(DEVICE_ATTEND, n_splits > 1 ? 2 : 1, row_bytes + split_bytes,
             row_bytes + split_bytes, 0);
}

void attend_count_keys(const kv_memory &kv, int n_heads, const attend_keys &keys,
                       uint64_t n_layers)
{
    const uint64_t element_bytes = kv.type == KV_F32 ? 4 : 2;
    const uint64_t kv_width = (uint64_t)kv.n_kv_heads * (uint64_t)kv.head_dim;
    const uint64_t width = (uint64_t)n_heads * (uint64_t)kv.head_dim;
    count_op(DEVICE_ATTEND, 0, n_layers * keys.read * 2 * kv_width * element_bytes, 0,
             n_layers * keys.seen * 4 * width);
}

void attend(stream_t s, const attend_args &a)
{
    ASSERT(a.kv.type == KV_F32 || a.kv.type == KV_BF16);
    ASSERT(a.n_heads % a.n_kv_heads == 0 && a.head_dim == a.kv.head_dim);
    if (a.n_blocks == 0)
        return;
    const attend_choice c = attend_choose_kernel(a);
    const attend_launch l = attend_open_launch(a, c);
    const int n_splits = attend_split_of(a, c).n_parts;
    const dim3 grid((unsigned)(a.n_blocks * l.n_tiles), (unsigned)a.n_kv_heads,
                    (unsigned)n_splits);
    LAUNCH(c.kernel, grid, dim3((unsigned)(32 * c.warps)), c.shared_bytes, s, l);
    if (l.partial)
        LAUNCH(attend_merge, dim3((unsigned)a.n_attend_rows, (unsigned)a.n_heads), dim3(32), 0,
               s, l, n_splits);
    attend_count(a, n_splits);
}

/* Tiles are counted in powers of two, for what is too many ends at once. Pages are not: they
 * say how long a thread block works. */
enum { ATTEND_ROUND_PARTS = 16 };

attend_split attend_round(attend_args *a)
{
    const int tile = attend_tile_queries(*a, attend_choose_kernel(*a));
    int n_tiles = 1;
    while (n_tiles * tile < a->block_queries_max)
        n_tiles *= 2;
    a->block_queries_max = n_tiles * tile;
    a->n_pages_max = (int)fine_bucket_of((uint64_t)a->n_pages_max, ATTEND_ROUND_PARTS);
    const uint64_t n_pages = (a->split_keys + KV_PAGE_TOKENS - 1) / KV_PAGE_TOKENS;
    a->split_keys = KV_PAGE_TOKENS * fine_bucket_of(n_pages, ATTEND_ROUND_PARTS);
    return attend_split_of(*a, attend_choose_kernel(*a));
}

int attend_block_rows(int n_heads, int n_kv_heads, int head_dim, size_t shared_bytes_max)
{
    attend_args a = {};
    a.n_heads = n_heads;
    a.n_kv_heads = n_kv_heads;
    a.head_dim = head_dim;
    a.kv.type = KV_BF16;
    a.block_queries_max = INT32_MAX;
    a.shared_bytes_max = shared_bytes_max;
    const attend_choice c = attend_choose_kernel(a);
    const int rows = c.stack > 0 ? attend_tile_queries(a, c) / (n_heads / n_kv_heads) : 1;
    return rows > 0 ? rows : 1;
}
