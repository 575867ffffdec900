/*
 * Attention of one layer over the paged KV pool, for a step of mixed rows: prefill chunks,
 * decode rows, groups over a common prefix, drafts to verify.
 *
 * Tiles. The queries of a block of rows and a KV head, (row, query head) pairs, are the rows of
 * a matrix: 16 to a fragment, STACK fragments to a warp, WARPS warps to a thread block. With four
 * heads to a KV head, 32 sequences of a group fill a tile of 128. A block with more queries takes
 * several tiles. Heads of a row stay in one warp wherever they fit.
 *
 *     queries of the largest block      WARPS  STACK  rows
 *     1 .. 16   (decode rows alone)       1      1      16
 *     17 .. 64, and large head dims       4      1      64   (head dim 256: 2 warps)
 *     more                                4      2     128
 *
 * Pages are the key blocks: 32 keys, always cut at multiples of 32 positions, so that a span,
 * which is whole pages, begins and ends with a key block. For every page each warp computes
 * S = Q K^T for its rows, the new maximum, P = 2^(S - maximum) and O = O * fade + P V with O, the
 * maximum and the sum of weights in registers: from the first page of the first span to the last
 * of the row's last span, without a merge. What is done to a row depends on its own pages only:
 * a page that the row does not see adds weights of zero and fades by one. So a row has the same
 * bits in every tile, shape and block, and in every company. The order of operations is written
 * out with fmaf where a product is added, since a compiler may fuse what it likes elsewhere.
 *
 * Who goes over what. Spans whose rows belong to several warps come first, in their order: all
 * warps load each page together, WARPS pages of keys and values in a ring, one barrier a page.
 * Then each warp goes alone over the spans of its own rows in its own slot of the ring, without
 * barriers: private suffixes and drafts of a group are that many walks side by side. A span's
 * children have no rows but the span's, so every row meets its pages in the order of positions.
 *
 * Shared memory: rows of HD bfloat16 and 16 bytes, which keeps load_matrix free of bank
 * conflicts. Keys and values of WARPS pages, then the queries, where the answers pass too.
 * HD 128: 34 KiB a tile of 16 rows, 85 KiB of 64, 102 KiB of 128.
 *
 * Masks are by position and only where a fragment needs one. Slots that no row sees are zeros in
 * shared memory, whatever the pool holds there.
 *
 * A page's arithmetic for a fragment: HD / 4 products on matrix units of scores and as many of
 * values, 16 powers of two a thread. Loads from shared memory for STACK fragments: HD / 8
 * matrices of four for keys, as many for values, HD / 16 a fragment for queries that are not held
 * in registers. Bound: matrix units from about 128 rows on, else bandwidth.
 *
 * Mode fast. Where tiles are fewer than the device can hold, the positions are cut into equal
 * runs of pages and the tiles into as many thread blocks; attend_merge.cuh brings them together.
 *
 * float32 keys, and head dims without a tile, go by attend_plain.cuh.
 */
#include "attend_merge.cuh"
#include "attend_plain.cuh"
#include "attend_tile.cuh"
#include "count.cuh"

extern "C" {
#include "base/check.h"
}

/* ------------------------------------------------------------------ shapes */

struct attend_choice {
    int warps, stack;
    size_t shared_bytes;
    void (*kernel)(attend_launch l);
};

template <int HD, int WARPS, int STACK> static attend_choice attend_choice_of()
{
    return {WARPS, STACK, attend_shape<HD, WARPS, STACK>::BYTES,
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
    default: ASSERT(head_dim <= 512); return head_dim <= 256 ? attend_plain<T, 8> : attend_plain<T, 16>;
    }
}

static attend_choice attend_choose_kernel(const attend_args &a)
{
    if (a.kv.type == KV_F32)
        return {1, 0, 0, attend_plain_of<float>(a.head_dim)};
    const size_t room = a.shared_bytes_max > 0 ? a.shared_bytes_max : ATTEND_SHARED_BYTES_MIN;
    switch (a.head_dim) {
    case 16: return attend_choose<16>(a.block_queries_max, room);
    case 32: return attend_choose<32>(a.block_queries_max, room);
    case 64: return attend_choose<64>(a.block_queries_max, room);
    case 96: return attend_choose<96>(a.block_queries_max, room);
    case 128: return attend_choose<128>(a.block_queries_max, room);
    case 256: return attend_choose<256>(a.block_queries_max, room);
    default: return {1, 0, 0, attend_plain_of<bf16>(a.head_dim)};
    }
}

/* ------------------------------------------------------------------ the launch */

/* Keys and values of all blocks' spans, queries in and answers out. */
static void attend_count(const attend_args &a)
{
    const uint64_t element_bytes = a.kv.type == KV_F32 ? 4 : 2;
    const uint64_t kv_width = (uint64_t)a.n_kv_heads * (uint64_t)a.head_dim;
    const uint64_t width = (uint64_t)a.n_heads * (uint64_t)a.head_dim;
    const uint64_t row_bytes = (uint64_t)a.n_attend_rows * width * sizeof(bf16);
    count_op(DEVICE_ATTEND, 1, a.keys_read * 2 * kv_width * element_bytes + row_bytes, row_bytes,
             a.row_keys * 4 * width);
}

void attend(stream_t s, const attend_args &a)
{
    ASSERT(a.kv.type == KV_F32 || a.kv.type == KV_BF16);
    ASSERT(a.n_heads % a.n_kv_heads == 0 && a.head_dim == a.kv.head_dim);
    if (a.n_blocks == 0)
        return;
    const attend_choice c = attend_choose_kernel(a);
    const int rows = c.stack > 0 ? ROWS * c.stack : 1;
    attend_launch l;
    l.a = a;
    l.heads = a.n_heads / a.n_kv_heads;
    l.warp_queries = l.heads <= rows ? rows - rows % l.heads : rows;
    l.tile_queries = l.warp_queries * c.warps;
    l.n_tiles = (a.block_queries_max + l.tile_queries - 1) / l.tile_queries;
    l.split_pages = INT32_MAX;
    l.scale_log2 = a.scale * 1.44269504f;
    l.partial = nullptr;
    const dim3 grid((unsigned)(a.n_blocks * l.n_tiles), (unsigned)a.n_kv_heads);
    LAUNCH(c.kernel, grid, dim3((unsigned)(32 * c.warps)), c.shared_bytes, s, l);
    attend_count(a);
}
