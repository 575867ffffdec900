/*
 * The tiles of few_rows.cu: how a block of threads lies over a product, what a stage of shared
 * memory holds, and how stored weights and rows of x get there.
 */
#ifndef SHEAF_CUDA_FEW_TILES_CUH
#define SHEAF_CUDA_FEW_TILES_CUH

#include "blocks.cuh"
#include "products_int.h"

enum {
    WARPS_LOG2 = 3,
    WARPS = 1 << WARPS_LOG2,
    THREADS = WARPS * 32,
    TILE_OUTPUTS_LOG2 = 4,
    TILE_OUTPUTS = 1 << TILE_OUTPUTS_LOG2, /* of a warp */
    SLICES_MAX = 4,
    COLUMNS = 8, /* rows of x in one tensor core product */
    PIECE = 16,
    TILES_MIN = 2,
    WIDE_OUTPUTS = 8192, /* from here on a block has four tiles, not two */
    STAGES_MAX = 4,
    SHARED_BYTES_MAX = 96 << 10 /* sm_120 has 99 KB for a block */
};

struct few_args {
    product_args p;
    int64_t row_bytes;
    int tiles_log2; /* of a block: 2 or 4 tiles */
};

/* ------------------------------------------------------------------ layout of a stage */

/* 32 codes; rows are whole pieces. */
template <> struct block_of<ROWS_E4M3> {
    enum { ELEMS = GROUP_ELEMS, BYTES = GROUP_ELEMS, ALIGN = PIECE, ZERO = 0, HAS_MIN = 0 };
};

/* 32 weights of a row and how many such blocks of a row one step takes. */
template <quant_type Q> struct few_layout {
    enum {
        IS_BF16 = Q == QUANT_BF16,
        BLOCK_BYTES = IS_BF16 ? 64 : block_of<Q>::BYTES,
        STEP_BLOCKS = IS_BF16 || Q == QUANT_Q8_0 || Q == ROWS_E4M3 ? 2 : 4,
        SLACK = IS_BF16 ? 0 : PIECE - block_of<Q>::ALIGN, /* before a row's first block */
        PIECES = (STEP_BLOCKS * BLOCK_BYTES + SLACK + PIECE - 1) / PIECE,
        ROW_STRIDE = (PIECES | 1) * PIECE,
        WEIGHT_BYTES = TILE_OUTPUTS * ROW_STRIDE, /* of a warp */
        X_PIECES = STEP_BLOCKS * GROUP_ELEMS * 2 / PIECE,
        X_STRIDE = (X_PIECES | 1) * PIECE
    };
};

/* All warps' weights, then all slices' rows of x. */
template <quant_type Q, int NT> struct few_stage {
    enum {
        X_BYTES = NT * COLUMNS * few_layout<Q>::X_STRIDE, /* of a slice */
        BYTES = WARPS * few_layout<Q>::WEIGHT_BYTES + SLICES_MAX * X_BYTES,
        FIT = SHARED_BYTES_MAX / BYTES,
        COUNT = FIT < STAGES_MAX ? FIT : STAGES_MAX
    };
    static_assert(COUNT >= 2, "one stage is copied while another is read");
};

/* Where a thread stands. */
struct few_place {
    int warp, lane, tile, slice;
    int first_output;           /* of the warp */
    bool is_last;               /* the matrix ends with or in its outputs */
    int first_row, n_rows;      /* of the block */
    int first_block, end_block; /* of the slice, in 32-element blocks of K */
    int n_steps;                /* the same for all slices: they share barriers */
};

template <quant_type Q, int NT> DEVICE few_place place_of(const few_args &a)
{
    few_place at;
    at.warp = (int)threadIdx.x / 32;
    at.lane = (int)threadIdx.x % 32;
    at.tile = at.warp & ((1 << a.tiles_log2) - 1);
    at.slice = at.warp >> a.tiles_log2;
    at.first_output = (((int)blockIdx.x << a.tiles_log2) + at.tile) * TILE_OUTPUTS;
    at.is_last = at.first_output + TILE_OUTPUTS >= a.p.n_outputs;
    at.first_row = (int)blockIdx.y * NT * COLUMNS;
    const int rows_left = a.p.n_rows - at.first_row;
    at.n_rows = rows_left < NT * COLUMNS ? rows_left : NT * COLUMNS;
    const int n_blocks = a.p.n_inputs / GROUP_ELEMS;
    const int slices_log2 = WARPS_LOG2 - a.tiles_log2;
    const int blocks_of_slice = (n_blocks + (1 << slices_log2) - 1) >> slices_log2;
    const int first = at.slice * blocks_of_slice;
    at.first_block = first < n_blocks ? first : n_blocks;
    const int end = at.first_block + blocks_of_slice;
    at.end_block = end < n_blocks ? end : n_blocks;
    at.n_steps =
        (blocks_of_slice + few_layout<Q>::STEP_BLOCKS - 1) / few_layout<Q>::STEP_BLOCKS;
    return at;
}

/* ------------------------------------------------------------------ global to shared */

/* What a lane copies in each step: N pieces of its warp's weights, and one column of pieces of
 * the rows of x, which the warps of a slice share. */
template <quant_type Q, int NT> struct few_copier {
    typedef few_layout<Q> L;
    enum {
        N = TILE_OUTPUTS * L::PIECES / 32,
        X_ROWS_MAX = NT * COLUMNS * L::X_PIECES / (TILES_MIN * 32)
    };
    static_assert(N * 32 == TILE_OUTPUTS * L::PIECES, "all lanes have as many");
    const uint8_t *w; /* of the warp's first row */
    int from[N];      /* after there the row's first blocks, had they no slack */
    int slack[N];     /* bytes by which they start after a 16-byte boundary */
    int offset[N];    /* of the piece */
    int to[N];        /* in the warp's part of a stage */
    const bf16 *x;
    int64_t x_stride; /* from one of its rows to the next, in elements */
    int x_piece, x_to, x_to_stride, n_x_rows;
    int n_passed; /* bytes of every row that steps have copied */
    int n_left;   /* blocks of the slice that none has */
};

template <quant_type Q, int NT>
DEVICE void set_up_x(few_copier<Q, NT> *c, const few_args &a, const few_place &at)
{
    typedef few_layout<Q> L;
    const int me = at.tile * 32 + at.lane;
    const int row = me / L::X_PIECES;
    const int rows_at_once = (32 / L::X_PIECES) << a.tiles_log2;
    c->x_piece = me % L::X_PIECES;
    c->x = a.p.x + (int64_t)(at.first_row + row) * a.p.n_inputs + at.first_block * GROUP_ELEMS +
           c->x_piece * (PIECE / 2);
    c->x_stride = (int64_t)rows_at_once * a.p.n_inputs;
    c->x_to = row * L::X_STRIDE + c->x_piece * PIECE;
    c->x_to_stride = rows_at_once * L::X_STRIDE;
    c->n_x_rows = row < at.n_rows ? (at.n_rows - row - 1) / rows_at_once + 1 : 0;
}

template <quant_type Q, int NT>
DEVICE few_copier<Q, NT> copier_of(const few_args &a, const few_place &at)
{
    typedef few_layout<Q> L;
    few_copier<Q, NT> c;
    const int64_t first = at.first_output * a.row_bytes;
    c.w = a.p.w + first;
    for (int i = 0; i < few_copier<Q, NT>::N; i++) {
        const int row = (i * 32 + at.lane) / L::PIECES;
        const int piece = (i * 32 + at.lane) % L::PIECES;
        const int64_t start =
            (at.first_output + row) * a.row_bytes + (int64_t)at.first_block * L::BLOCK_BYTES;
        c.slack[i] = L::SLACK > 0 ? (int)(start & (PIECE - 1)) : 0;
        c.offset[i] = piece * PIECE;
        c.from[i] = (int)(start - first) - c.slack[i] + piece * PIECE;
        c.to[i] = row * L::ROW_STRIDE + piece * PIECE;
    }
    set_up_x<Q, NT>(&c, a, at);
    c.n_passed = 0;
    c.n_left = at.end_block - at.first_block;
    return c;
}

/* Rows that all exist, and are not the last: what follows them may be read. */
template <quant_type Q, int NT>
DEVICE void copy_weights(uint8_t *shared, const few_copier<Q, NT> &c, int n_bytes)
{
    for (int i = 0; i < few_copier<Q, NT>::N; i++) {
        const int start = c.slack[i] + c.n_passed;
        copy_async_16_near_if(c.offset[i] < (start & (PIECE - 1)) + n_bytes, shared + c.to[i],
                              c.w + (c.from[i] + (start & -PIECE)));
    }
}

/* The same where rows or the matrix end. Its last piece may end beyond it; what is there is
 * copied. */
template <quant_type Q>
DEVICE void copy_last_weights(uint8_t *shared, int n_passed, int n_bytes, const few_args &a,
                              const few_place &at)
{
    typedef few_layout<Q> L;
    const int64_t matrix_end = a.p.n_outputs * a.row_bytes;
    for (int i = at.lane; i < TILE_OUTPUTS * L::PIECES; i += 32) {
        const int row = i / L::PIECES;
        const int piece = i % L::PIECES;
        const int64_t start = (at.first_output + row) * a.row_bytes +
                              (int64_t)at.first_block * L::BLOCK_BYTES + n_passed;
        const int64_t from = (start & -PIECE) + piece * PIECE;
        uint8_t *to = shared + row * L::ROW_STRIDE + piece * PIECE;
        if (at.first_output + row >= a.p.n_outputs || from >= start + n_bytes)
            continue;
        if (from + PIECE <= matrix_end)
            copy_async_16(to, a.p.w + from);
        else
            for (int j = 0; from + j < matrix_end; j += 2)
                *(uint16_t *)(to + j) = load_u16(a.p.w + from + j);
    }
}

template <quant_type Q, int NT>
DEVICE void copy_x(uint8_t *shared, const few_copier<Q, NT> &c, int n_blocks)
{
    const bool has_piece = c.x_piece < n_blocks * GROUP_ELEMS * 2 / PIECE;
    const bf16 *from = c.x;
    uint8_t *to = shared + c.x_to;
    for (int i = 0; i < few_copier<Q, NT>::X_ROWS_MAX; i++) {
        copy_async_16_if(has_piece && i < c.n_x_rows, to, from);
        from += c.x_stride;
        to += c.x_to_stride;
    }
}

/* The next step's blocks, if there are any left. */
template <quant_type Q, int NT>
DEVICE void copy_step(uint8_t *stage, few_copier<Q, NT> *c, const few_args &a,
                      const few_place &at)
{
    typedef few_layout<Q> L;
    if (c->n_left <= 0)
        return;
    const int n_blocks = c->n_left < L::STEP_BLOCKS ? c->n_left : (int)L::STEP_BLOCKS;
    uint8_t *w = stage + at.warp * L::WEIGHT_BYTES;
    if (at.is_last)
        copy_last_weights<Q>(w, c->n_passed, n_blocks * L::BLOCK_BYTES, a, at);
    else
        copy_weights<Q, NT>(w, *c, n_blocks * L::BLOCK_BYTES);
    copy_x<Q, NT>(stage + WARPS * L::WEIGHT_BYTES + at.slice * few_stage<Q, NT>::X_BYTES, *c,
                  n_blocks);
    c->x += L::STEP_BLOCKS * GROUP_ELEMS;
    c->n_passed += L::STEP_BLOCKS * L::BLOCK_BYTES;
    c->n_left -= L::STEP_BLOCKS;
}

#endif
