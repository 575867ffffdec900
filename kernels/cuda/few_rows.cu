/*
 * Products of few rows: weights are read once as they are stored, turned into exact bfloat16
 * numbers in registers and multiplied on tensor cores; a block's scale (and minimum) is applied
 * in float32 to the sum over its 32 elements, that of an E4M3 row to the whole sum. So weights
 * lose nothing, and up to eight rows cost what one does.
 *
 * A block of eight warps has 32 outputs and cuts K in four slices (64 and two where N is
 * large): warp = slice * tiles + tile, a tile being 16 outputs. Each slice goes over its
 * 32-element blocks in order, in steps of a few blocks that are copied ahead into shared
 * memory; at the end the slices are added in order. The cut depends on N and K alone, and a
 * column of a matrix product on nothing beside it: an output's bits depend neither on T nor on
 * where its row stands. Products that are added are written with fmaf, for a compiler may fuse
 * them in one of the shapes and not in another.
 *
 * Rows of stored blocks start at any even address. What is copied is the 16-byte pieces that
 * a step's blocks touch; where in the first piece they start (their slack) is worked out again
 * by the reader. Rows in shared memory are an odd number of pieces apart, so that the eight
 * rows that a warp reads at once are in different banks.
 *
 * Bound by bytes up to some 50 rows (product_way.cu). Two blocks a multiprocessor, of up to 96
 * KB of shared memory each, have 35 to 55 KB under way. Instructions a weight, counted in
 * what ptxas makes of Q4_0 for sm_90a: 2.3 to multiply eight rows and 1.8 to copy; an H200
 * issues 3.9 while a weight's 0.56 bytes arrive, so that Q4_0 can reach some 3/4 of its
 * bandwidth, Q8_0 and bfloat16 all of it. Not measured on a device yet.
 */
#include "count.cuh"
#include "e4m3.cuh"
#include "few_tiles.cuh"
#include "products_int.h"

extern "C" {
#include "base/check.h"
}

/* ------------------------------------------------------------------ weights to fragments */

/* A lane's part of 32 weights of one row, as pairs of bfloat16: with q = lane % 4, elements
 * 2 q and 2 q + 8 (and the next) of the first 16, then of the second 16. */
struct few_fragment {
    uint32_t pair[4];
    float scale, min;
};

/*
 * Eight bits in the low half of a bfloat16 whose sign and other exponent bits are 0 are the
 * number code * 2^-133: a subnormal one, or with the eighth bit one of the smallest exponent.
 * So codes need no shift and no conversion: one multiplication and addition, which is exact,
 * takes each to (code - zero) / 64, whether it stands in the low or in the high nibble.
 */
enum : uint32_t {
    TWO_TO_127 = 0x7f007f00u,
    TWO_TO_123 = 0x7d007d00u,
    MINUS_8 = 0xbe00be00u, /* over 64, like the next and all weights here */
    MINUS_128 = 0xc000c000u,
    ONES = 0x3c803c80u
};
#define WEIGHT_UNIT 64.0f

template <quant_type Q> DEVICE few_fragment read_fragment(const uint8_t *block, int q)
{
    static_assert(Q == QUANT_Q4_0 || Q == QUANT_Q4_1 || Q == QUANT_Q8_0, "has a decoder");
    few_fragment f;
    f.scale = load_half(block);
    f.min = Q == QUANT_Q4_1 ? load_half(block + 2) : 0.0f;
    const uint8_t *qs = block + (Q == QUANT_Q4_1 ? 4 : 2) + 2 * q;
    const uint32_t zero = Q == QUANT_Q4_0 ? (uint32_t)MINUS_8 : 0;
    for (int i = 0; i < 2; i++) {
        const uint32_t halves = bytes_to_halves(load_u16(qs + 8 * i));
        if constexpr (Q == QUANT_Q8_0) { /* two's complement: code = value ^ 128 */
            const uint32_t more = bytes_to_halves(load_u16(qs + 16 + 8 * i));
            f.pair[i] = multiply_add_pairs(halves ^ 0x00800080u, TWO_TO_127, MINUS_128);
            f.pair[2 + i] = multiply_add_pairs(more ^ 0x00800080u, TWO_TO_127, MINUS_128);
        } else {
            f.pair[i] = multiply_add_pairs(halves & 0x000f000fu, TWO_TO_127, zero);
            f.pair[2 + i] = multiply_add_pairs(halves & 0x00f000f0u, TWO_TO_123, zero);
        }
    }
    return f;
}

/* The same of 32 codes; the row's scale comes in at the end. */
DEVICE few_fragment fragment_of_codes(const uint8_t *codes, int q)
{
    few_fragment f;
    for (int i = 0; i < 4; i++)
        f.pair[i] = bf16_pair_of_e4m3(load_u16(codes + 2 * q + 8 * i));
    f.scale = 1.0f;
    f.min = 0.0f;
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

template <quant_type Q, int NT>
DEVICE void add_scaled(few_sums<NT> &sums, const few_fragment &low, const few_fragment &high,
                       const uint8_t *x, int block, int lane)
{
    const uint32_t a0[4] = {low.pair[0], high.pair[0], low.pair[1], high.pair[1]};
    const uint32_t a1[4] = {low.pair[2], high.pair[2], low.pair[3], high.pair[3]};
    const uint32_t ones[4] = {ONES, ONES, ONES, ONES};
    for (int t = 0; t < NT; t++) {
        uint32_t b[4];
        float d[4];
        read_x(x + t * COLUMNS * few_layout<Q>::X_STRIDE, few_layout<Q>::X_STRIDE, block, lane,
               b);
        mma_16816_first(d, a0, b);
        mma_16816(d, a1, b + 2);
        float *sum = sums.at[t];
        for (int i = 0; i < 4; i++)
            sum[i] = fmaf(i < 2 ? low.scale : high.scale, d[i], sum[i]);
        if constexpr (Q == QUANT_Q4_1) {
            float total[4];
            mma_16816_first(total, ones, b);
            mma_16816(total, ones, b + 2);
            for (int i = 0; i < 4; i++)
                sum[i] = fmaf(i < 2 ? low.min : high.min, total[i], sum[i]);
        }
    }
}

/* Weights that need no scale of their own go straight to the sums. */
template <quant_type Q, int NT>
DEVICE void add_plain(few_sums<NT> &sums, const uint32_t a0[4], const uint32_t a1[4],
                      const uint8_t *x, int block, int lane)
{
    typedef few_layout<Q> L;
    for (int t = 0; t < NT; t++) {
        uint32_t b[4];
        read_x(x + t * COLUMNS * L::X_STRIDE, L::X_STRIDE, block, lane, b);
        mma_16816(sums.at[t], a0, b);
        mma_16816(sums.at[t], a1, b + 2);
    }
}

/* A warp's rows in shared memory: a lane reads one of the first eight and one of the others.
 * Of bfloat16 rows, which load_matrix_x4 reads, only `low` is used. */
struct few_lines {
    const uint8_t *low, *high, *x;
};

template <quant_type Q, int NT>
DEVICE void multiply_block(few_sums<NT> &sums, const few_lines &lines, int b, int lane)
{
    typedef few_layout<Q> L;
    if constexpr (Q == QUANT_BF16) {
        uint32_t a0[4];
        uint32_t a1[4];
        load_matrix_x4(a0, lines.low + b * L::BLOCK_BYTES);
        load_matrix_x4(a1, lines.low + b * L::BLOCK_BYTES + 2 * PIECE);
        add_plain<Q, NT>(sums, a0, a1, lines.x, b, lane);
    } else if constexpr (Q == ROWS_E4M3) {
        const few_fragment low = fragment_of_codes(lines.low + b * L::BLOCK_BYTES, lane % 4);
        const few_fragment high = fragment_of_codes(lines.high + b * L::BLOCK_BYTES, lane % 4);
        const uint32_t a0[4] = {low.pair[0], high.pair[0], low.pair[1], high.pair[1]};
        const uint32_t a1[4] = {low.pair[2], high.pair[2], low.pair[3], high.pair[3]};
        add_plain<Q, NT>(sums, a0, a1, lines.x, b, lane);
    } else {
        const few_fragment low = read_fragment<Q>(lines.low + b * L::BLOCK_BYTES, lane % 4);
        const few_fragment high = read_fragment<Q>(lines.high + b * L::BLOCK_BYTES, lane % 4);
        add_scaled<Q, NT>(sums, low, high, lines.x, b, lane);
    }
}

/* Where a lane's rows start in its warp's part of a stage, and after how many bytes of slack
 * in the slice's first step. */
struct few_reader {
    int low, high, low_slack, high_slack;
    int n_passed, n_left; /* as few_copier's, of what has been read */
};

template <quant_type Q> DEVICE few_reader reader_of(const few_args &a, const few_place &at)
{
    typedef few_layout<Q> L;
    few_reader r = {};
    r.n_left = at.end_block - at.first_block;
    if constexpr (Q == QUANT_BF16) {
        r.low = at.lane % 16 * L::ROW_STRIDE + at.lane / 16 * PIECE;
    } else {
        const int g = at.lane / 4;
        const int64_t start =
            (at.first_output + g) * a.row_bytes + (int64_t)at.first_block * L::BLOCK_BYTES;
        r.low = g * L::ROW_STRIDE;
        r.high = (g + 8) * L::ROW_STRIDE;
        if constexpr (L::SLACK > 0) {
            r.low_slack = (int)(start & (PIECE - 1));
            r.high_slack = (int)((start + 8 * a.row_bytes) & (PIECE - 1));
        }
    }
    return r;
}

template <quant_type Q>
DEVICE few_lines lines_of(const uint8_t *w, const uint8_t *x, const few_reader &r)
{
    if constexpr (few_layout<Q>::SLACK == 0)
        return {w + r.low, w + r.high, x};
    return {w + r.low + ((r.low_slack + r.n_passed) & (PIECE - 1)),
            w + r.high + ((r.high_slack + r.n_passed) & (PIECE - 1)), x};
}

/* All steps of a slice but its last are whole, and known to be so when this is built. */
template <quant_type Q, int NT>
DEVICE void multiply_step(few_sums<NT> &sums, const uint8_t *stage, const few_place &at,
                          few_reader *r)
{
    typedef few_layout<Q> L;
    const uint8_t *w = stage + at.warp * L::WEIGHT_BYTES;
    const uint8_t *x = stage + WARPS * L::WEIGHT_BYTES + at.slice * few_stage<Q, NT>::X_BYTES;
    const few_lines lines = lines_of<Q>(w, x, *r);
    if (r->n_left >= L::STEP_BLOCKS) {
#pragma unroll NT == 1 ? L::STEP_BLOCKS : NT == 2 ? 2 : 1
        for (int b = 0; b < L::STEP_BLOCKS; b++)
            multiply_block<Q, NT>(sums, lines, b, at.lane);
    } else {
#pragma unroll 1
        for (int b = 0; b < r->n_left; b++)
            multiply_block<Q, NT>(sums, lines, b, at.lane);
    }
    r->n_passed += L::STEP_BLOCKS * L::BLOCK_BYTES;
    r->n_left -= L::STEP_BLOCKS;
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
DEVICE void store_sums(float *shared, const few_sums<NT> &sums, float unit_of_all,
                       const few_args &a, const few_place &at)
{
    const int outputs_log2 = a.tiles_log2 + TILE_OUTPUTS_LOG2;
    const int stride = (1 << outputs_log2) + 4;
    float *mine = shared + at.slice * NT * COLUMNS * stride + at.tile * TILE_OUTPUTS;
    for (int t = 0; t < NT; t++)
        for (int i = 0; i < 4; i++) {
            const int row = t * COLUMNS + at.lane % 4 * 2 + i % 2;
            mine[row * stride + at.lane / 4 + i / 2 * 8] = sums.at[t][i];
        }
    sync_block();
    const int column = (int)threadIdx.x & ((1 << outputs_log2) - 1);
    const int output = ((int)blockIdx.x << outputs_log2) + column;
    if (output >= a.p.n_outputs)
        return;
    const float unit = a.p.w_scales ? a.p.w_scales[output] : unit_of_all;
    for (int row = (int)threadIdx.x >> outputs_log2; row < at.n_rows;
         row += THREADS >> outputs_log2) {
        const float *of_slice = shared + row * stride + column;
        float sum = of_slice[0];
        for (int slice = 1; slice < WARPS >> a.tiles_log2; slice++)
            sum += of_slice[slice * NT * COLUMNS * stride];
        store_output(a.p, at.first_row + row, output, unit * sum);
    }
}

/* Grid: x = outputs, y = rows of x. */
template <quant_type Q, int NT> KERNEL void __launch_bounds__(THREADS, 2) few_rows(few_args a)
{
    typedef few_stage<Q, NT> S;
    DYNAMIC_SHARED(uint8_t, shared);
    const few_place at = place_of<Q, NT>(a);
    few_copier<Q, NT> copier = copier_of<Q, NT>(a, at);
    few_reader reader = reader_of<Q>(a, at);
    few_sums<NT> sums = {};
#pragma unroll 1
    for (int stage = 0; stage < S::COUNT - 1; stage++) {
        copy_step<Q, NT>(shared + stage * S::BYTES, &copier, a, at);
        copy_async_commit();
    }
    int read = 0;
    int write = S::COUNT - 1;
    for (int step = 0; step < at.n_steps; step++) {
        copy_async_wait<S::COUNT - 2>();
        sync_block(); /* all copies of this step are there, the step before has been read */
        copy_step<Q, NT>(shared + write * S::BYTES, &copier, a, at);
        copy_async_commit();
        multiply_step<Q, NT>(sums, shared + read * S::BYTES, at, &reader);
        write = read;
        read = read + 1 < S::COUNT ? read + 1 : 0;
    }
    copy_async_wait<0>();
    sync_block();
    const bool is_plain = Q == QUANT_BF16 || Q == ROWS_E4M3;
    store_sums<NT>((float *)shared, sums, is_plain ? 1.0f : WEIGHT_UNIT, a, at);
}

/* ------------------------------------------------------------------ host */

template <quant_type Q, int NT> static void launch(stream_t s, const few_args &a)
{
    const unsigned outputs = (unsigned)TILE_OUTPUTS << a.tiles_log2;
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
    return type == QUANT_Q4_0 || type == QUANT_Q4_1 || type == QUANT_Q8_0 ||
           type == QUANT_BF16 || type == ROWS_E4M3;
}

static int64_t row_bytes_of(quant_type type, int n_inputs)
{
    return type == ROWS_E4M3 ? n_inputs : (int64_t)quant_row_bytes(type, (size_t)n_inputs);
}

static void launch_stored(stream_t s, quant_type type, const few_args &a)
{
    switch (type) {
    case QUANT_Q4_0: launch_for_rows<QUANT_Q4_0>(s, a); break;
    case QUANT_Q4_1: launch_for_rows<QUANT_Q4_1>(s, a); break;
    case QUANT_Q8_0: launch_for_rows<QUANT_Q8_0>(s, a); break;
    default: launch_for_rows<QUANT_BF16>(s, a); break;
    }
}

void few_rows_multiply(stream_t s, quant_type type, const product_args &p)
{
    ASSERT(few_rows_takes(type) && p.n_inputs % GROUP_ELEMS == 0);
    ASSERT((uintptr_t)p.w % PIECE == 0 && (uintptr_t)p.x % PIECE == 0);
    ASSERT((type == ROWS_E4M3) == (p.w_scales != nullptr));
    if (p.n_rows == 0 || p.n_outputs == 0)
        return;
    const few_args a = {p, row_bytes_of(type, p.n_inputs), p.n_outputs >= WIDE_OUTPUTS ? 2 : 1};
    if (type == ROWS_E4M3)
        launch_for_rows<ROWS_E4M3>(s, a);
    else
        launch_stored(s, type, a);
    count_product(p, (uint64_t)a.row_bytes + (p.w_scales ? sizeof *p.w_scales : 0));
}
