/*
 * Products of few rows: weights are read once as they are stored, turned into exact bfloat16
 * integers in registers and multiplied on tensor cores; a block's scale (and minimum) is
 * applied in float32 to the sum over its 32 elements. So weights lose nothing, and whatever
 * the number of rows up to 8, a step costs the same.
 *
 * A block of eight warps has 32 outputs and cuts K in four slices (64 and two where N is
 * large): warp = slice * tiles + tile, a tile being 16 outputs. Each slice goes over its
 * 32-element blocks in order, in steps of a few blocks that are copied ahead into shared
 * memory; at the end the slices are added in order. The cut depends on N and K alone, and a
 * column of a matrix product depends on nothing beside it: an output's bits depend neither on
 * T nor on where its row stands.
 *
 * Rows of stored blocks start at any even address. What is copied is the 16-byte pieces that
 * a step's blocks touch; where in the first piece they start is worked out again by the reader.
 * Rows in shared memory are an odd number of 16-byte pieces apart, so that the eight rows that
 * a warp reads at once are in different banks.
 *
 * Bound by bytes up to some 50 rows (see product_way.cu): 92 KB of shared memory in two blocks
 * a multiprocessor keep about 70 KB under way. Instructions for a weight: about 2.6 of 3.9
 * that an H200 can issue while its 0.56 bytes arrive.
 */
#include "blocks.cuh"
#include "count.cuh"
#include "products_int.h"

extern "C" {
#include "base/check.h"
}

enum {
    WARPS = 8,
    THREADS = WARPS * 32,
    TILE_OUTPUTS = 16, /* of a warp */
    SLICES_MAX = 4,
    COLUMNS = 8, /* rows of x in one tensor core product */
    PIECE = 16,
    WIDE_OUTPUTS = 8192, /* from here on a block has four tiles, not two */
    STAGES_MAX = 4,
    SHARED_BYTES_MAX = 96 << 10 /* sm_120 has 99 KB for a block */
};

struct few_args {
    product_args p;
    int64_t row_bytes;
    int n_tiles; /* of a block: 2 or 4 */
};

/* ------------------------------------------------------------------ layout of a stage */

/* 32 weights of a row and how many such blocks of a row one step takes. */
template <quant_type Q> struct few_layout {
    enum {
        IS_BF16 = Q == QUANT_BF16,
        BLOCK_BYTES = IS_BF16 ? 64 : block_of<Q>::BYTES,
        STEP_BLOCKS = IS_BF16 || Q == QUANT_Q8_0 ? 2 : 4,
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
    int warp, lane, tile, slice, n_slices;
    int first_output;           /* of the warp */
    int first_row;              /* of the block */
    int first_block, end_block; /* of the slice, in 32-element blocks of K */
    int n_steps;                /* the same for all slices: they share barriers */
};

template <quant_type Q, int NT> DEVICE few_place place_of(const few_args &a)
{
    few_place at;
    at.warp = (int)threadIdx.x / 32;
    at.lane = (int)threadIdx.x % 32;
    at.n_slices = WARPS / a.n_tiles;
    at.tile = at.warp % a.n_tiles;
    at.slice = at.warp / a.n_tiles;
    at.first_output = ((int)blockIdx.x * a.n_tiles + at.tile) * TILE_OUTPUTS;
    at.first_row = (int)blockIdx.y * NT * COLUMNS;
    const int n_blocks = a.p.n_inputs / GROUP_ELEMS;
    const int blocks_of_slice = (n_blocks + at.n_slices - 1) / at.n_slices;
    const int first = at.slice * blocks_of_slice;
    at.first_block = first < n_blocks ? first : n_blocks;
    const int end = at.first_block + blocks_of_slice;
    at.end_block = end < n_blocks ? end : n_blocks;
    at.n_steps =
        (blocks_of_slice + few_layout<Q>::STEP_BLOCKS - 1) / few_layout<Q>::STEP_BLOCKS;
    return at;
}

/* A step's blocks of a slice. */
struct few_step {
    int first, count;
};

template <quant_type Q> DEVICE few_step step_of(const few_place &at, int step)
{
    const int first = at.first_block + step * few_layout<Q>::STEP_BLOCKS;
    const int left = at.end_block - first;
    const int most = few_layout<Q>::STEP_BLOCKS;
    return {first, left < 0 ? 0 : left < most ? left : most};
}

/* ------------------------------------------------------------------ global to shared */

/* The last piece of the matrix may end beyond it; what is there is copied. */
DEVICE void copy_piece(uint8_t *to, const uint8_t *w, int64_t from, int64_t end)
{
    if (from + PIECE <= end) {
        copy_async_16(to, w + from);
        return;
    }
    for (int i = 0; from + i < end; i += 2)
        *(uint16_t *)(to + i) = load_u16(w + from + i);
}

template <quant_type Q>
DEVICE void copy_weights(uint8_t *shared, const few_args &a, const few_place &at, few_step step)
{
    typedef few_layout<Q> L;
    if (step.count == 0)
        return;
    const int64_t matrix_end = a.p.n_outputs * a.row_bytes;
    for (int i = at.lane; i < TILE_OUTPUTS * L::PIECES; i += 32) {
        const int row = i / L::PIECES;
        const int piece = i % L::PIECES;
        const int64_t start =
            (at.first_output + row) * a.row_bytes + (int64_t)step.first * L::BLOCK_BYTES;
        const int64_t from = start / PIECE * PIECE + piece * PIECE;
        const bool is_wanted = from < start + step.count * L::BLOCK_BYTES;
        if (is_wanted && at.first_output + row < a.p.n_outputs)
            copy_piece(shared + row * L::ROW_STRIDE + piece * PIECE, a.p.w, from, matrix_end);
    }
}

/* The warps of a slice share the work. */
template <quant_type Q, int NT>
DEVICE void copy_x(uint8_t *shared, const few_args &a, const few_place &at, few_step step)
{
    typedef few_layout<Q> L;
    const int n_pieces = step.count * GROUP_ELEMS * 2 / PIECE;
    for (int i = at.tile * 32 + at.lane; i < NT * COLUMNS * L::X_PIECES; i += a.n_tiles * 32) {
        const int row = i / L::X_PIECES;
        const int piece = i % L::X_PIECES;
        if (piece >= n_pieces || at.first_row + row >= a.p.n_rows)
            continue;
        const bf16 *from = a.p.x + (int64_t)(at.first_row + row) * a.p.n_inputs +
                           step.first * GROUP_ELEMS + piece * (PIECE / 2);
        copy_async_16(shared + row * L::X_STRIDE + piece * PIECE, from);
    }
}

template <quant_type Q, int NT>
DEVICE void copy_step(uint8_t *shared, const few_args &a, const few_place &at, int step)
{
    typedef few_stage<Q, NT> S;
    uint8_t *stage = shared + step % S::COUNT * S::BYTES;
    const few_step blocks = step_of<Q>(at, step);
    copy_weights<Q>(stage + at.warp * few_layout<Q>::WEIGHT_BYTES, a, at, blocks);
    uint8_t *x = stage + WARPS * few_layout<Q>::WEIGHT_BYTES + at.slice * S::X_BYTES;
    copy_x<Q, NT>(x, a, at, blocks);
}

/* ------------------------------------------------------------------ weights to fragments */

/* A lane's part of 32 weights of one row, as pairs of bfloat16: with q = lane % 4, elements
 * 2 q and 2 q + 8 (and the next) of the first 16, then of the second 16. */
struct few_fragment {
    uint32_t pair[4];
    float scale, min;
};

DEVICE uint32_t bytes_to_halves(uint32_t two)
{
    return (two | two << 8) & 0x00ff00ffu;
}

/* Two numbers of 0..127 become 128 + n, of which a bfloat16 has room for all digits. */
DEVICE uint32_t plus_128(uint32_t two)
{
    return two | 0x43004300u;
}

template <quant_type Q> DEVICE uint32_t nibbles_to_pair(uint32_t halves)
{
    const uint32_t zero = Q == QUANT_Q4_0 ? 0x43084308u : 0x43004300u; /* 136, 128 */
    return subtract_pairs(plus_128(halves & 0x000f000fu), zero);
}

/* n = low seven bits - 128 * sign. */
DEVICE uint32_t signed_bytes_to_pair(uint32_t halves)
{
    return subtract_pairs(plus_128(halves & 0x007f007fu), plus_128(halves & 0x00800080u));
}

template <quant_type Q> DEVICE few_fragment read_fragment(const uint8_t *block, int q)
{
    static_assert(Q == QUANT_Q4_0 || Q == QUANT_Q4_1 || Q == QUANT_Q8_0, "has a decoder");
    few_fragment f;
    f.scale = load_half(block);
    f.min = Q == QUANT_Q4_1 ? load_half(block + 2) : 0.0f;
    const uint8_t *qs = block + (Q == QUANT_Q4_1 ? 4 : 2) + 2 * q;
    for (int i = 0; i < 2; i++) {
        const uint32_t halves = bytes_to_halves(load_u16(qs + 8 * i));
        if constexpr (Q == QUANT_Q8_0) {
            f.pair[i] = signed_bytes_to_pair(halves);
            f.pair[2 + i] = signed_bytes_to_pair(bytes_to_halves(load_u16(qs + 16 + 8 * i)));
        } else {
            f.pair[i] = nibbles_to_pair<Q>(halves);
            f.pair[2 + i] = nibbles_to_pair<Q>(halves >> 4);
        }
    }
    return f;
}

/* ------------------------------------------------------------------ products */

template <int NT> struct few_sums {
    float at[NT][4]; /* as mma_16816 lays them out: outputs x rows of x */
};

/* x of one 32-element block, as fragments of both halves. */
DEVICE void read_x(const uint8_t *x, int stride, int block, int lane, uint32_t r[4])
{
    load_matrix_x4(r, x + lane % 8 * stride + block * GROUP_ELEMS * 2 + lane / 8 * PIECE);
}

DEVICE void multiply_block(float d[4], const uint32_t a0[4], const uint32_t a1[4],
                           const uint32_t x[4])
{
    mma_16816(d, a0, x);
    mma_16816(d, a1, x + 2);
}

template <quant_type Q, int NT>
DEVICE void add_scaled(few_sums<NT> &sums, const few_fragment &low, const few_fragment &high,
                       const uint8_t *x, int block, int lane)
{
    const uint32_t a0[4] = {low.pair[0], high.pair[0], low.pair[1], high.pair[1]};
    const uint32_t a1[4] = {low.pair[2], high.pair[2], low.pair[3], high.pair[3]};
    const uint32_t ones[4] = {0x3f803f80u, 0x3f803f80u, 0x3f803f80u, 0x3f803f80u};
    for (int t = 0; t < NT; t++) {
        uint32_t b[4];
        read_x(x + t * COLUMNS * few_layout<Q>::X_STRIDE, few_layout<Q>::X_STRIDE, block, lane,
               b);
        float d[4] = {0.0f, 0.0f, 0.0f, 0.0f};
        multiply_block(d, a0, a1, b);
        float *sum = sums.at[t];
        for (int i = 0; i < 4; i++)
            sum[i] += (i < 2 ? low.scale : high.scale) * d[i];
        if constexpr (Q == QUANT_Q4_1) {
            float total[4] = {0.0f, 0.0f, 0.0f, 0.0f};
            multiply_block(total, ones, ones, b);
            for (int i = 0; i < 4; i++)
                sum[i] += (i < 2 ? low.min : high.min) * total[i];
        }
    }
}

/* Bytes by which a row's blocks start after a 16-byte boundary. */
template <quant_type Q>
DEVICE int slack_of(const few_args &a, const few_place &at, int row, int first_block)
{
    const int64_t start = (at.first_output + row) * a.row_bytes +
                          (int64_t)first_block * few_layout<Q>::BLOCK_BYTES;
    return (int)(start % PIECE);
}

template <quant_type Q, int NT>
DEVICE void multiply_blocks(few_sums<NT> &sums, const uint8_t *w, const uint8_t *x,
                            const few_args &a, const few_place &at, few_step step)
{
    typedef few_layout<Q> L;
    const int g = at.lane / 4;
    const uint8_t *low = w + g * L::ROW_STRIDE + slack_of<Q>(a, at, g, step.first);
    const uint8_t *high = w + (g + 8) * L::ROW_STRIDE + slack_of<Q>(a, at, g + 8, step.first);
    for (int b = 0; b < L::STEP_BLOCKS; b++) {
        if (b >= step.count)
            break;
        const few_fragment first = read_fragment<Q>(low + b * L::BLOCK_BYTES, at.lane % 4);
        const few_fragment second = read_fragment<Q>(high + b * L::BLOCK_BYTES, at.lane % 4);
        add_scaled<Q, NT>(sums, first, second, x, b, at.lane);
    }
}

template <int NT>
DEVICE void multiply_bf16(few_sums<NT> &sums, const uint8_t *w, const uint8_t *x, int lane,
                          few_step step)
{
    typedef few_layout<QUANT_BF16> L;
    const uint8_t *at = w + lane % 16 * L::ROW_STRIDE + lane / 16 * PIECE;
    for (int b = 0; b < L::STEP_BLOCKS; b++) {
        if (b >= step.count)
            break;
        uint32_t a0[4];
        uint32_t a1[4];
        load_matrix_x4(a0, at + b * L::BLOCK_BYTES);
        load_matrix_x4(a1, at + b * L::BLOCK_BYTES + 2 * PIECE);
        for (int t = 0; t < NT; t++) {
            uint32_t c[4];
            read_x(x + t * COLUMNS * L::X_STRIDE, L::X_STRIDE, b, lane, c);
            multiply_block(sums.at[t], a0, a1, c);
        }
    }
}

template <quant_type Q, int NT>
DEVICE void multiply_step(few_sums<NT> &sums, const uint8_t *shared, const few_args &a,
                          const few_place &at, int step)
{
    typedef few_stage<Q, NT> S;
    const uint8_t *stage = shared + step % S::COUNT * S::BYTES;
    const uint8_t *w = stage + at.warp * few_layout<Q>::WEIGHT_BYTES;
    const uint8_t *x = stage + WARPS * few_layout<Q>::WEIGHT_BYTES + at.slice * S::X_BYTES;
    if constexpr (Q == QUANT_BF16)
        multiply_bf16<NT>(sums, w, x, at.lane, step_of<Q>(at, step));
    else
        multiply_blocks<Q, NT>(sums, w, x, a, at, step_of<Q>(at, step));
}

/* ------------------------------------------------------------------ results */

DEVICE void store_output(const product_args &p, int row, int output, float sum)
{
    const float value = p.bias ? sum + p.bias[output] : sum;
    const int64_t at = row * p.y_stride + output;
    if (p.kind == PRODUCT_BF16)
        ((bf16 *)p.y)[at] = to_bf16(value);
    else if (p.kind == PRODUCT_F32_ADD)
        ((float *)p.y)[at] += value;
    else
        ((float *)p.y)[at] = value;
}

/* Slices' sums go through shared memory, [slice][row of x][output], rows four floats apart
 * from a multiple of 32 so that a warp's stores hit all banks. */
template <int NT>
DEVICE void store_sums(float *shared, const few_sums<NT> &sums, const few_args &a,
                       const few_place &at)
{
    const int n_outputs = a.n_tiles * TILE_OUTPUTS;
    const int stride = n_outputs + 4;
    float *mine = shared + at.slice * NT * COLUMNS * stride + at.tile * TILE_OUTPUTS;
    for (int t = 0; t < NT; t++)
        for (int i = 0; i < 4; i++) {
            const int row = t * COLUMNS + at.lane % 4 * 2 + i % 2;
            mine[row * stride + at.lane / 4 + i / 2 * 8] = sums.at[t][i];
        }
    sync_block();
    for (int i = (int)threadIdx.x; i < NT * COLUMNS * n_outputs; i += THREADS) {
        const int row = i / n_outputs;
        const int output = (int)blockIdx.x * n_outputs + i % n_outputs;
        if (at.first_row + row >= a.p.n_rows || output >= a.p.n_outputs)
            continue;
        const float *of_slice = shared + row * stride + i % n_outputs;
        float sum = of_slice[0];
        for (int slice = 1; slice < at.n_slices; slice++)
            sum += of_slice[slice * NT * COLUMNS * stride];
        store_output(a.p, at.first_row + row, output, sum);
    }
}

/* Grid: x = outputs, y = rows of x. */
template <quant_type Q, int NT> KERNEL void __launch_bounds__(THREADS, 2) few_rows(few_args a)
{
    typedef few_stage<Q, NT> S;
    DYNAMIC_SHARED(uint8_t, shared);
    const few_place at = place_of<Q, NT>(a);
    few_sums<NT> sums = {};
    for (int step = 0; step < S::COUNT - 1; step++) {
        copy_step<Q, NT>(shared, a, at, step);
        copy_async_commit();
    }
    for (int step = 0; step < at.n_steps; step++) {
        copy_async_wait<S::COUNT - 2>();
        sync_block(); /* all copies of this step are there, the step before has been read */
        copy_step<Q, NT>(shared, a, at, step + S::COUNT - 1);
        copy_async_commit();
        multiply_step<Q, NT>(sums, shared, a, at, step);
    }
    copy_async_wait<0>();
    sync_block();
    store_sums<NT>((float *)shared, sums, a, at);
}

/* ------------------------------------------------------------------ host */

template <quant_type Q, int NT> static void launch(stream_t s, const few_args &a)
{
    const unsigned outputs = (unsigned)(a.n_tiles * TILE_OUTPUTS);
    const unsigned rows = NT * COLUMNS;
    const dim3 grid(((unsigned)a.p.n_outputs + outputs - 1) / outputs,
                    ((unsigned)a.p.n_rows + rows - 1) / rows);
    const size_t bytes = (size_t)few_stage<Q, NT>::BYTES * few_stage<Q, NT>::COUNT;
    LAUNCH((few_rows<Q, NT>), grid, dim3(THREADS), bytes, s, a);
}

template <quant_type Q> static void launch_for_rows(stream_t s, const few_args &a)
{
    if (a.p.n_rows <= COLUMNS)
        launch<Q, 1>(s, a);
    else if (a.p.n_rows <= 2 * COLUMNS)
        launch<Q, 2>(s, a);
    else
        launch<Q, 4>(s, a);
}

bool few_rows_takes(quant_type type)
{
    return type == QUANT_Q4_0 || type == QUANT_Q4_1 || type == QUANT_Q8_0 || type == QUANT_BF16;
}

void few_rows_multiply(stream_t s, quant_type type, const product_args &p)
{
    ASSERT(few_rows_takes(type) && p.n_inputs % GROUP_ELEMS == 0);
    ASSERT((uintptr_t)p.w % PIECE == 0 && (uintptr_t)p.x % PIECE == 0);
    if (p.n_rows == 0 || p.n_outputs == 0)
        return;
    const few_args a = {p, (int64_t)quant_row_bytes(type, (size_t)p.n_inputs),
                        p.n_outputs >= WIDE_OUTPUTS ? 4 : 2};
    switch (type) {
    case QUANT_Q4_0: launch_for_rows<QUANT_Q4_0>(s, a); break;
    case QUANT_Q4_1: launch_for_rows<QUANT_Q4_1>(s, a); break;
    case QUANT_Q8_0: launch_for_rows<QUANT_Q8_0>(s, a); break;
    default: launch_for_rows<QUANT_BF16>(s, a); break;
    }
    count_product(p, (uint64_t)a.row_bytes);
}
