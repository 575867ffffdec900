/*
 * What a token can be drawn from without all of its logits: the best of a row and the sum of
 * all weights.
 *
 * A row is cut into parts of a fixed length, a block each, whatever rows stand beside it. A
 * part's thread keeps its values in registers, so that memory is read once:
 *
 *     the best of each thread; the N-th best of those is a bound: N values at least are not
 *     below it, and only N threads have any, so that all that are not fit into shared memory;
 *     the place of each among them is how many are better.
 *
 * The bests of a row's parts go the same way once more. Values meet as one number, key of the
 * logit above, id's complement below: no two are equal, and 0 is none.
 *
 * Bound by memory: V * 4 bytes a row. Ranks cost 256 comparisons a thread and part, about as
 * long as the reading; a histogram of keys would have all of a row's logits in a few bins.
 */
#include "best.cuh"
#include "count.cuh"
#include "ops.cuh"

extern "C" {
#include "base/check.h"
#include "exp.h"
}

enum {
    SAMPLE_THREADS = 256,
    THREAD_QUADS = 8,
    THREAD_VALUES = 4 * THREAD_QUADS,
    PART_VALUES = SAMPLE_THREADS * THREAD_VALUES,
    PARTS_MAX =
        PART_VALUES / DEVICE_CANDIDATES, /* whose bests are no more than a part's values */
    FOUND_MAX = DEVICE_CANDIDATES * THREAD_VALUES,
};
static_assert((int)DEVICE_CANDIDATES_VOCAB_MAX <= (int)PARTS_MAX * (int)PART_VALUES,
              "the parts of the longest row are merged at once");
static_assert((int)DEVICE_CANDIDATES <= (int)SAMPLE_THREADS, "one thread writes one");

struct part_candidates {
    double sum;
    uint64_t best[DEVICE_CANDIDATES]; /* best first; 0: none */
};

/* ---- values as numbers */

DEVICE uint64_t packed_of(float value, int id)
{
    return value > -INFINITY ? (uint64_t)key_of(value) << 32 | (0xffffffffu - (uint32_t)id) : 0;
}

DEVICE device_candidate unpacked(uint64_t packed)
{
    if (packed == 0)
        return {0.0f, -1};
    return {value_of((uint32_t)(packed >> 32)), (int32_t)(0xffffffffu - (uint32_t)packed)};
}

/* ---- the best of a block's values, some of them each thread's */

struct selection {
    uint64_t of_thread[SAMPLE_THREADS];
    uint64_t found[FOUND_MAX];
    uint64_t bound;
    int32_t n_found;
};

DEVICE int n_better(const uint64_t *all, int n, uint64_t than)
{
    int n_found = 0;
    for (int i = 0; i < n; i++)
        n_found += all[i] > than;
    return n_found;
}

/* From the best value of each thread; all threads come here. */
DEVICE uint64_t bound_of_best(selection *s, uint64_t best)
{
    s->of_thread[threadIdx.x] = best;
    if (threadIdx.x == 0) {
        s->bound = 1;
        s->n_found = 0;
    }
    sync_block();
    if (best > 0 && n_better(s->of_thread, SAMPLE_THREADS, best) == DEVICE_CANDIDATES - 1)
        s->bound = best;
    sync_block();
    return s->bound;
}

DEVICE void keep_value(selection *s, uint64_t bound, uint64_t packed)
{
    if (packed >= bound)
        s->found[atomic_add(&s->n_found, 1)] = packed;
}

/* All threads come here when they have kept their values. */
DEVICE void write_best(const selection *s, uint64_t *out)
{
    sync_block();
    const int n = s->n_found;
    for (int i = (int)threadIdx.x; i < n; i += SAMPLE_THREADS) {
        const int place = n_better(s->found, n, s->found[i]);
        if (place < DEVICE_CANDIDATES)
            out[place] = s->found[i];
    }
    for (int i = n + (int)threadIdx.x; i < DEVICE_CANDIDATES; i += SAMPLE_THREADS)
        out[i] = 0;
}

/* ---- weights */

/* exp_scalar of exp.h to the bit: the host weighs candidates, and their share of the total has
 * to be right. */
DEVICE float weight_of(float x)
{
    if (x == -INFINITY)
        return 0.0f;
    x = EXP_MIN > x ? EXP_MIN : x;
    const float rounded = add_rounded(mul_rounded(x, EXP_LOG2_E), EXP_ROUNDER);
    const float n = rounded - EXP_ROUNDER;
    float r = fmaf(n, -EXP_LN2_HI, x);
    r = fmaf(n, -EXP_LN2_LO, r);
    float p = EXP_C5;
    p = fmaf(p, r, EXP_C4);
    p = fmaf(p, r, EXP_C3);
    p = fmaf(p, r, EXP_C2);
    p = fmaf(p, r, EXP_C1);
    p = fmaf(p, r, 1.0f);
    uint32_t bits, exponent;
    memcpy(&bits, &p, sizeof bits);
    memcpy(&exponent, &rounded, sizeof exponent);
    bits += exponent << 23;
    memcpy(&p, &bits, sizeof bits);
    return p;
}

/* What roundings took off is summed apart (Knuth's two-sum): as good as a double, which some
 * devices add at a hundredth of the speed. */
struct weight_sum {
    float sum, lost;
};

DEVICE void add_weight(weight_sum *s, float weight)
{
    const float sum = s->sum + weight;
    const float added = sum - s->sum;
    s->lost += (s->sum - (sum - added)) + (weight - added);
    s->sum = sum;
}

/* In thread 0. */
DEVICE double sum_of_block(double *of_thread, const weight_sum &mine)
{
    const int thread = (int)threadIdx.x;
    of_thread[thread] = (double)mine.sum + (double)mine.lost;
    for (int n = SAMPLE_THREADS / 2; n > 0; n /= 2) {
        sync_block();
        if (thread < n)
            of_thread[thread] += of_thread[thread + n];
    }
    return of_thread[0];
}

/* ---- kernels */

DEVICE int value_id(int quad, int i)
{
    return 4 * (quad + i / 4 * SAMPLE_THREADS) + i % 4;
}

/* Places behind the row's end get NaN. */
DEVICE void load_values(const float *row, int n_vocab, bool is_wide, int first_quad,
                        float values[THREAD_VALUES])
{
#pragma unroll
    for (int k = 0; k < THREAD_QUADS; k++) {
        const int q = first_quad + k * SAMPLE_THREADS;
        quad_f32 quad = {{NAN, NAN, NAN, NAN}};
        if (4 * q < n_vocab)
            quad = load_quad(row, q, n_vocab, is_wide);
#pragma unroll
        for (int i = 0; i < 4; i++)
            values[4 * k + i] = 4 * q + i < n_vocab ? quad.v[i] : NAN;
    }
}

/* Block (c, t): part c of row t. */
KERNEL __launch_bounds__(SAMPLE_THREADS) void candidates_of_part(const float *logits,
                                                                 const int32_t *best,
                                                                 const float *temperatures,
                                                                 int n_vocab, bool is_wide,
                                                                 part_candidates *parts)
{
    SHARED(selection, chosen, 1);
    SHARED(double, sums, SAMPLE_THREADS);
    const float temperature = temperatures[blockIdx.y];
    if (!(temperature > 0.0f))
        return;
    const float *row = logits + (int64_t)blockIdx.y * n_vocab;
    const float max = row[best[blockIdx.y]];
    const int first_quad = (int)blockIdx.x * (PART_VALUES / 4) + (int)threadIdx.x;
    float values[THREAD_VALUES];
    load_values(row, n_vocab, is_wide, first_quad, values);
    weight_sum sum = {0.0f, 0.0f};
    uint64_t mine = 0;
#pragma unroll
    for (int i = 0; i < THREAD_VALUES; i++) {
        const uint64_t packed = packed_of(values[i], value_id(first_quad, i));
        mine = packed > mine ? packed : mine;
        if (packed != 0)
            add_weight(&sum, weight_of((values[i] - max) / temperature));
    }
    part_candidates *out = &parts[blockIdx.y * gridDim.x + blockIdx.x];
    const double of_block = sum_of_block(sums, sum);
    if (threadIdx.x == 0)
        out->sum = of_block;
    const uint64_t bound = bound_of_best(chosen, mine);
    if (mine >= bound)
#pragma unroll
        for (int i = 0; i < THREAD_VALUES; i++)
            keep_value(chosen, bound, packed_of(values[i], value_id(first_quad, i)));
    write_best(chosen, out->best);
}

/* Value i of thread t is number t + 256 i of the parts' bests. */
DEVICE uint64_t best_of_parts(const part_candidates *parts, int i)
{
    return parts[i / DEVICE_CANDIDATES].best[i % DEVICE_CANDIDATES];
}

KERNEL __launch_bounds__(SAMPLE_THREADS) void candidates_of_row(const part_candidates *parts,
                                                                int n_parts,
                                                                const float *temperatures,
                                                                device_candidates *all)
{
    SHARED(selection, chosen, 1);
    SHARED(uint64_t, sorted, DEVICE_CANDIDATES);
    if (!(temperatures[blockIdx.x] > 0.0f))
        return;
    const int thread = (int)threadIdx.x;
    const int n = n_parts * DEVICE_CANDIDATES;
    parts += (int64_t)blockIdx.x * n_parts;
    device_candidates *out = &all[blockIdx.x];
    uint64_t mine = 0;
    for (int i = thread; i < n; i += SAMPLE_THREADS) {
        const uint64_t packed = best_of_parts(parts, i);
        mine = packed > mine ? packed : mine;
    }
    const uint64_t bound = bound_of_best(chosen, mine);
    for (int i = thread; i < n && mine >= bound; i += SAMPLE_THREADS)
        keep_value(chosen, bound, best_of_parts(parts, i));
    write_best(chosen, sorted);
    sync_block();
    if (thread < DEVICE_CANDIDATES)
        out->best[thread] = unpacked(sorted[thread]);
    if (thread != 0)
        return;
    double total = 0.0;
    for (int i = 0; i < n_parts; i++)
        total += parts[i].sum;
    out->total = total;
}

/* ---- launches */

size_t candidates_scratch_bytes(size_t n_rows, size_t n_vocab)
{
    return n_rows * ((n_vocab + PART_VALUES - 1) / PART_VALUES) * sizeof(part_candidates);
}

void find_candidates(stream_t s, const float *logits, const int32_t *best,
                     const float *temperatures, int n_rows, int n_wanted, int n_vocab,
                     void *scratch, device_candidates *out)
{
    ASSERT(n_wanted >= 0 && n_wanted <= n_rows && n_rows <= GRID_Y_MAX && n_vocab > 0);
    if (n_wanted == 0)
        return;
    ASSERT(n_vocab <= DEVICE_CANDIDATES_VOCAB_MAX);
    const int n_parts = divide_up(n_vocab, PART_VALUES);
    const bool is_wide = n_vocab % 4 == 0 && is_on(logits, 16);
    part_candidates *parts = (part_candidates *)scratch;
    const dim3 grid((unsigned)n_parts, (unsigned)n_rows);
    LAUNCH(candidates_of_part, grid, SAMPLE_THREADS, 0, s, logits, best, temperatures, n_vocab,
           is_wide, parts);
    LAUNCH(candidates_of_row, n_rows, SAMPLE_THREADS, 0, s, parts, n_parts, temperatures, out);
    const uint64_t n = (uint64_t)n_wanted;
    count_op(DEVICE_SAMPLE, 2, n * ((uint64_t)n_vocab * sizeof *logits + 2 * sizeof(float)),
             n * sizeof *out, 16 * n * (uint64_t)n_vocab);
}
