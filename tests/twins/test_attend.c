/* Attention: the reference against softmax in double, the twins against the reference. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "twins.h"

typedef void attend_fn(const struct attend *a);
typedef void attend_finish_fn(const struct attend *a, float *const *out);

static attend_fn *const attend_twins[] = TWINS_OF(attend);
static attend_finish_fn *const finish_twins[] = TWINS_OF(attend_finish);

enum row_pattern { ROWS_SEE_ALL, ROWS_STAIRCASE, ROWS_SPREAD, ROWS_SEE_NOTHING };
enum { N_PATTERNS = ROWS_SPREAD + 1 }; /* that see something */

/* One question to attention with its own memory; state and answer included. */
struct problem {
    struct attend a;
    float *key;   /* [n_keys, HD] */
    float *value; /* [n_keys, HD] */
    float *q;     /* [R, HD] */
    const float **q_rows;
    int32_t *row_pos;
    void **pages;
    size_t n_pages;
    float *out; /* [R, HD] */
};

/* A multiple of 1/16 below 4 in size has at most 6 significant bits: exact in bfloat16. */
static float random_short_float(uint64_t stream, size_t i)
{
    return floorf(random_float(stream, i, 64.0f)) / 16.0f;
}

static int32_t choose_row_pos(enum row_pattern pattern, const struct attend *a, size_t row)
{
    const int32_t end = a->first_pos + (int32_t)a->n_keys;
    switch (pattern) {
    case ROWS_SEE_ALL: return end - 1 + (int32_t)row;
    case ROWS_STAIRCASE: return end - 1 - (int32_t)((a->n_rows - 1 - row) / 3);
    case ROWS_SPREAD:
        return a->first_pos - 2 + (int32_t)(rng_bits(1, 9, row) % (uint64_t)(a->n_keys + 4));
    case ROWS_SEE_NOTHING: return a->first_pos - 1;
    }
    return 0;
}

static void reset_state(struct problem *p)
{
    for (size_t r = 0; r < p->a.n_rows; r++)
        p->a.m[r] = -INFINITY;
    memset(p->a.d, 0, p->a.n_rows * LANES * sizeof(float));
    memset(p->a.o, 0, p->a.n_rows * p->a.head_dim * sizeof(float));
}

/* Slots that no key was written to hold filler in every byte: 0xff makes them NaN. */
static void write_pages(struct problem *p, int filler)
{
    const size_t hd = p->a.head_dim;
    for (size_t i = 0; i < p->n_pages; i++)
        memset(p->pages[i], filler, kv_page_bytes(p->a.kv_type, hd));
    for (size_t j = 0; j < p->a.n_keys; j++)
        kv_write_ref(p->a.kv_type, hd, p->pages[j / 32], j % 32, p->key + j * hd,
                     p->value + j * hd);
}

static struct problem *new_problem(enum kv_type type, size_t head_dim, size_t n_rows,
                                   size_t n_keys, int32_t first_pos, enum row_pattern pattern,
                                   float q_range)
{
    struct problem *p = calloc(1, sizeof *p);
    p->key = new_floats(n_keys * head_dim);
    p->value = new_floats(n_keys * head_dim);
    p->q = new_floats(n_rows * head_dim);
    p->q_rows = calloc(n_rows, sizeof *p->q_rows);
    p->row_pos = calloc(n_rows, sizeof *p->row_pos);
    p->n_pages = (n_keys + 31) / 32;
    p->pages = calloc(p->n_pages, sizeof *p->pages);
    p->out = new_floats(n_rows * head_dim);
    p->a = (struct attend){
        .kv_type = type,
        .head_dim = head_dim,
        .scale = 1.0f / sqrtf((float)head_dim),
        .n_rows = n_rows,
        .q = p->q_rows,
        .row_pos = p->row_pos,
        .pages = (const void *const *)p->pages,
        .first_pos = first_pos,
        .n_keys = n_keys,
        .m = new_floats(n_rows),
        .d = new_floats(n_rows * LANES),
        .o = new_floats(n_rows * head_dim),
    };
    for (size_t i = 0; i < n_keys * head_dim; i++) {
        p->key[i] = random_short_float(1, i);
        p->value[i] = random_short_float(2, i);
    }
    fill_random(3, q_range, n_rows * head_dim, p->q);
    for (size_t r = 0; r < n_rows; r++) {
        p->q_rows[r] = p->q + r * head_dim;
        p->row_pos[r] = choose_row_pos(pattern, &p->a, r);
    }
    for (size_t i = 0; i < p->n_pages; i++)
        p->pages[i] = new_floats(kv_page_bytes(type, head_dim) / sizeof(float));
    write_pages(p, 0xff);
    reset_state(p);
    return p;
}

static void free_problem(struct problem *p)
{
    for (size_t i = 0; i < p->n_pages; i++)
        free(p->pages[i]);
    free(p->a.m);
    free(p->a.d);
    free(p->a.o);
    free(p->key);
    free(p->value);
    free(p->q);
    free(p->q_rows);
    free(p->row_pos);
    free(p->pages);
    free(p->out);
    free(p);
}

static void finish(struct problem *p, size_t isa)
{
    float **out = calloc(p->a.n_rows, sizeof *out);
    for (size_t r = 0; r < p->a.n_rows; r++)
        out[r] = p->out + r * p->a.head_dim;
    finish_twins[isa](&p->a, out);
    free(out);
}

static void solve(struct problem *p, size_t isa)
{
    reset_state(p);
    attend_twins[isa](&p->a);
    finish(p, isa);
}

static bool is_row_blind(const struct problem *p, size_t row)
{
    return p->a.n_keys == 0 || p->row_pos[row] < p->a.first_pos;
}

/* A blind row's answer is 0 * (1 / 0), a NaN of any bits; its state still has to agree. */
static void assert_same_solution(const struct problem *want, const struct problem *got)
{
    const size_t n_rows = want->a.n_rows;
    const size_t hd = want->a.head_dim;
    assert_true(same_bits("m", want->a.m, got->a.m, n_rows));
    assert_true(same_bits("d", want->a.d, got->a.d, n_rows * LANES));
    assert_true(same_bits("o", want->a.o, got->a.o, n_rows * hd));
    for (size_t r = 0; r < n_rows; r++)
        if (!is_row_blind(want, r))
            assert_true(same_bits("out", want->out + r * hd, got->out + r * hd, hd));
}

static void check_twins(enum kv_type type, size_t head_dim, size_t n_rows, size_t n_keys,
                        int32_t first_pos, enum row_pattern pattern, float q_range)
{
    struct problem *want =
        new_problem(type, head_dim, n_rows, n_keys, first_pos, pattern, q_range);
    struct problem *got =
        new_problem(type, head_dim, n_rows, n_keys, first_pos, pattern, q_range);
    solve(want, KERNELS_REF);
    for (size_t isa = 1; isa < N_TWINS; isa++)
        if (twin_runs(isa)) {
            solve(got, isa);
            assert_same_solution(want, got);
        }
    free_problem(want);
    free_problem(got);
}

static const size_t head_dims[] = {16, 32, 64, 80, 96, 128, 256};
static const enum kv_type kv_types[] = {KV_F32, KV_BF16, KV_INT8};

#define N_OF(array) (sizeof(array) / sizeof((array)[0]))

static void twins_give_the_bits_of_the_reference(void **state)
{
    (void)state;
    static const size_t row_counts[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 31};
    static const size_t key_counts[] = {1, 2, 31, 32, 33, 64, 95};
    for (size_t t = 0; t < N_OF(kv_types); t++)
        for (size_t h = 0; h < N_OF(head_dims); h++)
            for (size_t r = 0; r < N_OF(row_counts); r++)
                for (size_t k = 0; k < N_OF(key_counts); k++)
                    for (int pattern = ROWS_SEE_ALL; pattern <= ROWS_SPREAD; pattern++)
                        check_twins(kv_types[t], head_dims[h], row_counts[r], key_counts[k],
                                    pattern == ROWS_SPREAD ? 64 : 0, (enum row_pattern)pattern,
                                    2.0f);
}

static void twins_agree_on_a_long_shared_prefix(void **state)
{
    (void)state;
    static const struct {
        enum kv_type type;
        size_t head_dim, n_rows, n_keys;
        enum row_pattern pattern;
    } cases[] = {
        {KV_BF16, 64, 1, 2048, ROWS_SEE_ALL},    {KV_BF16, 64, 3, 2048, ROWS_SEE_ALL},
        {KV_BF16, 64, 96, 2048, ROWS_SEE_ALL},   {KV_F32, 64, 13, 2048, ROWS_SPREAD},
        {KV_BF16, 128, 96, 700, ROWS_STAIRCASE}, {KV_F32, 256, 7, 2048, ROWS_SEE_ALL},
        {KV_BF16, 512, 5, 333, ROWS_SPREAD},     {KV_BF16, 64, 96, 40, ROWS_STAIRCASE},
        {KV_INT8, 64, 1, 2048, ROWS_SEE_ALL},    {KV_INT8, 64, 3, 2048, ROWS_SEE_ALL},
        {KV_INT8, 64, 96, 2048, ROWS_SEE_ALL},   {KV_INT8, 64, 13, 2048, ROWS_SPREAD},
        {KV_INT8, 512, 5, 333, ROWS_SPREAD},     {KV_INT8, 128, 96, 700, ROWS_STAIRCASE},
    };
    for (size_t i = 0; i < N_OF(cases); i++)
        check_twins(cases[i].type, cases[i].head_dim, cases[i].n_rows, cases[i].n_keys, 128,
                    cases[i].pattern, 1.0f);
}

/* Scores of some +-1e4: all weight on one key, the others at the lower clamp of exp. */
static void twins_agree_on_extreme_scores(void **state)
{
    (void)state;
    for (size_t t = 0; t < N_OF(kv_types); t++) {
        check_twins(kv_types[t], 64, 13, 95, 0, ROWS_SEE_ALL, 3000.0f);
        check_twins(kv_types[t], 64, 12, 70, 0, ROWS_STAIRCASE, 3000.0f);
        check_twins(kv_types[t], 64, 12, 70, 0, ROWS_SEE_ALL, 0.0f);
    }
}

static void comparison_notices_one_flipped_bit(void **state)
{
    (void)state;
    struct problem *p = new_problem(KV_BF16, 64, 3, 40, 0, ROWS_SEE_ALL, 1.0f);
    solve(p, KERNELS_REF);
    float *copy = new_floats(3 * 64);
    memcpy(copy, p->out, 3 * 64 * sizeof(float));
    assert_int_equal(first_difference(p->out, copy, 3 * 64), 3 * 64);
    uint32_t bits;
    memcpy(&bits, &copy[100], sizeof bits);
    bits ^= 1;
    memcpy(&copy[100], &bits, sizeof bits);
    assert_int_equal(first_difference(p->out, copy, 3 * 64), 100);
    copy[7] = NAN;
    assert_int_equal(first_difference(p->out, copy, 3 * 64), 7);
    free(copy);
    free_problem(p);
}

/* Softmax of one row, written plainly: all scores, then weights of sum 1. Returns how many. */
static size_t weigh_plainly(const struct problem *p, size_t row, double *weight)
{
    const size_t hd = p->a.head_dim;
    double greatest = -INFINITY, sum = 0;
    size_t n = 0;
    for (; n < p->a.n_keys && p->a.first_pos + (int32_t)n <= p->row_pos[row]; n++) {
        weight[n] = 0;
        for (size_t i = 0; i < hd; i++)
            weight[n] += (double)p->q[row * hd + i] * (double)p->key[n * hd + i];
        weight[n] /= sqrt((double)hd);
        greatest = fmax(greatest, weight[n]);
    }
    for (size_t j = 0; j < n; j++)
        sum += weight[j] = exp(weight[j] - greatest);
    for (size_t j = 0; j < n; j++)
        weight[j] /= sum;
    return n;
}

static double value_scale(const struct problem *p, size_t j)
{
    double largest = 0;
    for (size_t i = 0; i < p->a.head_dim; i++)
        largest = fmax(largest, fabs((double)p->value[j * p->a.head_dim + i]));
    return largest / 127;
}

/*
 * What the codes of weights may move a dim by: of each value's code at most half a code of the
 * greatest weight of its page, a 65,534th of it.
 */
static double slack_of_weights(const struct problem *p, const double *weight,
                               const double *scale, size_t n, size_t dim)
{
    double slack = 0;
    for (size_t begin = 0; begin < n; begin += 32) {
        const size_t end = begin + 32 < n ? begin + 32 : n;
        double greatest = 0, codes = 0;
        for (size_t j = begin; j < end; j++) {
            greatest = fmax(greatest, weight[j] * scale[j]);
            if (scale[j] > 0)
                codes += fabs((double)p->value[j * p->a.head_dim + dim]) / scale[j] + 0.5;
        }
        slack += codes * greatest / 65534;
    }
    return slack;
}

static void check_plainly(const struct problem *p, double tolerance)
{
    const size_t hd = p->a.head_dim;
    double *weight = calloc(p->a.n_keys, sizeof *weight);
    double *scale = calloc(p->a.n_keys, sizeof *scale);
    for (size_t j = 0; j < p->a.n_keys; j++)
        scale[j] = value_scale(p, j);
    for (size_t r = 0; r < p->a.n_rows; r++) {
        if (is_row_blind(p, r))
            continue;
        const size_t n = weigh_plainly(p, r, weight);
        for (size_t i = 0; i < hd; i++) {
            double want = 0, slack = tolerance;
            for (size_t j = 0; j < n; j++)
                want += weight[j] * (double)p->value[j * hd + i];
            if (p->a.kv_type == KV_INT8)
                slack += slack_of_weights(p, weight, scale, n, i);
            if (!(fabs((double)p->out[r * hd + i] - want) <= slack))
                fail_msg("row %zu dim %zu: %g, not %g +- %g", r, i, (double)p->out[r * hd + i],
                         want, slack);
        }
    }
    free(weight);
    free(scale);
}

/*
 * Vectors that codes hold exactly: whole multiples of a power of two, code_max times it among
 * them. The power differs from vector to vector.
 */
static void make_exact_codes(uint64_t stream, size_t n_vectors, size_t hd, int code_max,
                             float unit, float *x)
{
    for (size_t j = 0; j < n_vectors; j++)
        for (size_t i = 0; i < hd; i++) {
            const uint64_t n_codes = 2 * (uint64_t)code_max + 1;
            int code = (int)(rng_bits(stream, j, i) % n_codes) - code_max;
            if (i == (j * 7 + stream) % hd)
                code = j % 2 == 0 ? code_max : -code_max;
            x[j * hd + i] = (float)code * ldexpf(unit, -(int)(j % 3));
        }
}

/* Values stay below 4, queries near q_range. */
static void make_exact_for_int8(struct problem *p, float q_range)
{
    const size_t hd = p->a.head_dim;
    int q_log2;
    frexpf(q_range, &q_log2);
    const float q_unit = q_range == 0.0f ? 0.0f : ldexpf(0x1p-15f, q_log2);
    make_exact_codes(1, p->a.n_keys, hd, 127, 0x1p-5f, p->key);
    make_exact_codes(2, p->a.n_keys, hd, 127, 0x1p-5f, p->value);
    make_exact_codes(3, p->a.n_rows, hd, 32767, q_unit, p->q);
    write_pages(p, 0xff);
}

/* Values lie in [-4, 4); scores of size s carry a relative error of some s * 2^-24. */
static void every_twin_computes_softmax_attention(void **state)
{
    (void)state;
    static const struct {
        size_t head_dim, n_rows, n_keys;
        int32_t first_pos;
        enum row_pattern pattern;
        float q_range;
        double tolerance;
    } cases[] = {
        {64, 3, 2048, 0, ROWS_SEE_ALL, 1.0f, 1e-5},
        {64, 36, 100, 0, ROWS_STAIRCASE, 1.0f, 1e-5},
        {128, 13, 300, 96, ROWS_SPREAD, 1.0f, 1e-5},
        {16, 5, 33, 0, ROWS_SEE_ALL, 4.0f, 1e-5},
        {64, 12, 95, 0, ROWS_SEE_ALL, 3000.0f, 2e-2},
        {64, 12, 95, 0, ROWS_SEE_ALL, 0.0f, 1e-5},
    };
    for (size_t isa = 0; isa < N_TWINS; isa++)
        for (size_t t = 0; twin_runs(isa) && t < N_OF(kv_types); t++)
            for (size_t i = 0; i < N_OF(cases); i++) {
                struct problem *p = new_problem(kv_types[t], cases[i].head_dim, cases[i].n_rows,
                                                cases[i].n_keys, cases[i].first_pos,
                                                cases[i].pattern, cases[i].q_range);
                if (kv_types[t] == KV_INT8)
                    make_exact_for_int8(p, cases[i].q_range);
                solve(p, isa);
                check_plainly(p, cases[i].tolerance);
                free_problem(p);
            }
}

/*
 * Numbers that codes do not hold. A key or value is off by at most half a scale, 4 / 254, a
 * query hardly: a weight is then off by a factor of at most exp(2 * error of a score).
 */
static void int8_attention_is_as_near_as_its_scales_allow(void **state)
{
    (void)state;
    enum { HD = 64 };
    const double half = 4.0 / 254, q_half = 0.25 / 65534;
    const double score_error = HD * (half * 0.25 + q_half * (4.0 + half)) / sqrt(HD);
    const double bound = (exp(2 * score_error) - 1) * 4 + half;
    assert_true(bound < 1); /* says something about values below 4 */
    for (size_t isa = 0; isa < N_TWINS; isa++) {
        if (!twin_runs(isa))
            continue;
        struct problem *p = new_problem(KV_INT8, HD, 7, 300, 0, ROWS_SEE_ALL, 0.25f);
        solve(p, isa);
        check_plainly(p, bound);
        free_problem(p);
    }
}

/* Scores of zero weigh all values alike, whatever the query. */
static void keys_of_zeros_give_the_mean_of_the_values(void **state)
{
    (void)state;
    enum { HD = 32, KEYS = 45 };
    for (size_t isa = 0; isa < N_TWINS; isa++)
        for (size_t t = 0; twin_runs(isa) && t < N_OF(kv_types); t++) {
            struct problem *p = new_problem(kv_types[t], HD, 4, KEYS, 0, ROWS_SEE_ALL, 2.0f);
            if (kv_types[t] == KV_INT8)
                make_exact_for_int8(p, 2.0f);
            memset(p->key, 0, KEYS * HD * sizeof(float));
            write_pages(p, 0xff);
            solve(p, isa);
            for (size_t i = 0; i < HD; i++) {
                double mean = 0;
                for (size_t j = 0; j < KEYS; j++)
                    mean += (double)p->value[j * HD + i] / KEYS;
                const double slack = kv_types[t] == KV_INT8 ? 4.0 / 65534 : 0;
                for (size_t r = 0; r < 4; r++)
                    assert_true(fabs((double)p->out[r * HD + i] - mean) < 1e-5 + slack);
            }
            free_problem(p);
        }
}

/* Code code of a value with scale scale: exact when both have few bits. */
static void put_value(struct problem *p, size_t j, size_t dim, int code, float scale)
{
    p->value[j * p->a.head_dim + dim] = (float)code * scale;
}

/*
 * Keys of zeros weigh all values alike, so that the weights are the values' scales: 32,767 for
 * token 0 and a half more than a whole number for the others. Their sums in integers.
 */
static void weights_half_way_between_codes_become_the_even_one(void **state)
{
    (void)state;
    enum { HD = 48, KEYS = 32, ROWS = 13 };
    for (size_t isa = 0; isa < N_TWINS; isa++) {
        if (!twin_runs(isa))
            continue;
        struct problem *p = new_problem(KV_INT8, HD, ROWS, KEYS, 0, ROWS_SEE_ALL, 1.0f);
        memset(p->key, 0, KEYS * HD * sizeof(float));
        int64_t sum[HD] = {0};
        for (size_t j = 0; j < KEYS; j++) {
            const int whole = j == 1 ? 0 : j == 2 ? 32766 : (int)(rng_bits(8, j, 0) % 32767);
            const int nearest = j == 0 ? 32767 : whole + whole % 2;
            const float scale = (j == 0 ? 32767.0f : (float)whole + 0.5f) * 0x1p-10f;
            for (size_t i = 0; i < HD; i++) {
                const int code = i == j % HD ? 127 : (int)(rng_bits(9, j, i) % 255) - 127;
                put_value(p, j, i, code, scale);
                sum[i] += nearest * code;
            }
        }
        write_pages(p, 0xff);
        solve(p, isa);
        for (size_t r = 0; r < ROWS; r++)
            for (size_t i = 0; i < HD; i++) {
                const float want = (float)((double)sum[i] * 0x1p-10);
                assert_true(same_bits("o", &want, &p->a.o[r * HD + i], 1));
            }
        free_problem(p);
    }
}

/* 2^-112 is where a page's weights stop having codes. */
static void values_of_any_size_give_the_bits_of_the_reference(void **state)
{
    (void)state;
    enum { HD = 64, KEYS = 45 };
    static const float sizes[] = {0x1p-126f, 0x1p-112f, 0x1p-106f, 0x1p-60f, 0x1p60f, 0x1p120f};
    for (size_t t = 0; t < N_OF(kv_types); t++)
        for (size_t i = 0; i < N_OF(sizes); i++) {
            struct problem *p[N_TWINS];
            for (size_t isa = 0; isa < N_TWINS; isa++) {
                p[isa] = new_problem(kv_types[t], HD, 5, KEYS, 0, ROWS_STAIRCASE, 1.0f);
                for (size_t k = 0; k < KEYS * HD; k++)
                    p[isa]->value[k] *= sizes[i];
                write_pages(p[isa], 0xff);
                if (twin_runs(isa))
                    solve(p[isa], isa);
                if (twin_runs(isa))
                    assert_same_solution(p[0], p[isa]);
            }
            const bool has_codes = kv_types[t] != KV_INT8 || sizes[i] > 0x1p-112f;
            assert_true((p[0]->out[0] != 0) == has_codes);
            for (size_t isa = 0; isa < N_TWINS; isa++)
                free_problem(p[isa]);
        }
}

static void set_value_scale(struct problem *p, size_t j, float scale)
{
    const size_t at = 2 * 32 * p->a.head_dim + (32 + j % 32) * 4;
    memcpy((char *)p->pages[j / 32] + at, &scale, sizeof scale);
}

/* Row r sees keys 0 .. r + 25; the scales after the last are what nobody should meet. */
static void scales_of_unseen_values_take_no_part(void **state)
{
    (void)state;
    enum { HD = 32, KEYS = 64, ROWS = 13, SEEN = 25 + ROWS };
    static const float bad[] = {INFINITY, -INFINITY, NAN, 0x1.fffffep127f, -0.0f};
    for (size_t isa = 0; isa < N_TWINS; isa++)
        for (size_t i = 0; twin_runs(isa) && i < N_OF(bad); i++) {
            struct problem *want = new_problem(KV_INT8, HD, ROWS, KEYS, 0, ROWS_SEE_ALL, 1.0f);
            struct problem *got = new_problem(KV_INT8, HD, ROWS, KEYS, 0, ROWS_SEE_ALL, 1.0f);
            for (size_t r = 0; r < ROWS; r++)
                want->row_pos[r] = got->row_pos[r] = (int32_t)r + 25;
            for (size_t j = SEEN; j < KEYS; j++)
                set_value_scale(got, j, bad[i]);
            solve(want, isa);
            solve(got, isa);
            assert_same_solution(want, got);
            const bool is_written = isnan(bad[i]) || bad[i] == INFINITY; /* or could be */
            if (is_written)
                set_value_scale(got, SEEN - 1, bad[i]);
            solve(got, isa);
            for (size_t k = 0; k < ROWS * HD; k++)
                assert_int_equal(isnan(got->out[k]) != 0, is_written && k >= (ROWS - 1) * HD);
            free_problem(want);
            free_problem(got);
        }
}

/* As for activations: better no answer than a plausible one. */
static void an_infinity_or_a_nan_makes_what_sees_it_nan(void **state)
{
    (void)state;
    enum { HD = 32, KEYS = 40, LATE = 35 };
    static const float bad[] = {INFINITY, -INFINITY, NAN};
    for (size_t isa = 0; isa < N_TWINS; isa++)
        for (size_t i = 0; twin_runs(isa) && i < 3 * N_OF(bad); i++) {
            struct problem *p = new_problem(KV_INT8, HD, 2, KEYS, 0, ROWS_SEE_ALL, 1.0f);
            float *const where[] = {p->key + LATE * HD + 3, p->value + LATE * HD + 3,
                                    p->q + HD + 3};
            *where[i % 3] = bad[i / 3];
            p->row_pos[0] = LATE - 1;
            write_pages(p, 0xff);
            solve(p, isa);
            for (size_t k = 0; k < HD; k++) {
                assert_true(isfinite(p->out[k]));
                assert_true(isnan(p->out[HD + k]));
            }
            free_problem(p);
        }
}

/* Pages of the problem cut into calls that end after the given pages. */
static void solve_in_calls(struct problem *p, size_t isa, const size_t *ends, size_t n_calls)
{
    reset_state(p);
    size_t begin = 0;
    for (size_t i = 0; i < n_calls; i++) {
        struct attend part = p->a;
        part.pages += begin;
        part.first_pos += (int32_t)(begin * 32);
        part.n_keys =
            ends[i] * 32 < p->a.n_keys ? (ends[i] - begin) * 32 : p->a.n_keys - begin * 32;
        attend_twins[isa](&part);
        begin = ends[i];
    }
    finish(p, isa);
}

static void state_carried_over_calls_equals_one_call(void **state)
{
    (void)state;
    static const size_t ends[] = {1, 4, 5, 10};
    for (size_t isa = 0; isa < N_TWINS; isa++)
        for (size_t i = 0; twin_runs(isa) && i < N_OF(kv_types) * N_PATTERNS; i++) {
            const enum row_pattern rows = (enum row_pattern)(i % N_PATTERNS);
            const enum kv_type type = kv_types[i / N_PATTERNS];
            struct problem *want = new_problem(type, 64, 14, 300, 32, rows, 2.0f);
            struct problem *got = new_problem(type, 64, 14, 300, 32, rows, 2.0f);
            solve(want, isa);
            solve_in_calls(got, isa, ends, N_OF(ends));
            assert_same_solution(want, got);
            free_problem(want);
            free_problem(got);
        }
}

/* Row r of the problem in a call of its own. */
static void solve_row(struct problem *p, size_t isa, size_t r)
{
    struct attend one = p->a;
    float *out = p->out + r * p->a.head_dim;
    one.n_rows = 1;
    one.q += r;
    one.row_pos += r;
    one.m += r;
    one.d += r * LANES;
    one.o += r * p->a.head_dim;
    attend_twins[isa](&one);
    finish_twins[isa](&one, &out);
}

static void stacked_rows_equal_each_row_alone(void **state)
{
    (void)state;
    for (size_t isa = 0; isa < N_TWINS; isa++)
        for (size_t i = 0; twin_runs(isa) && i < N_OF(kv_types) * N_PATTERNS; i++)
            for (size_t n_rows = 2; n_rows <= 29; n_rows += 3) {
                const enum row_pattern rows = (enum row_pattern)(i % N_PATTERNS);
                const enum kv_type type = kv_types[i / N_PATTERNS];
                struct problem *want = new_problem(type, 64, n_rows, 90, 0, rows, 2.0f);
                struct problem *got = new_problem(type, 64, n_rows, 90, 0, rows, 2.0f);
                solve(want, isa);
                for (size_t r = 0; r < n_rows; r++)
                    solve_row(got, isa, r);
                assert_same_solution(want, got);
                free_problem(want);
                free_problem(got);
            }
}

static void unwritten_slots_may_hold_anything(void **state)
{
    (void)state;
    static const int fillers[] = {0xff, 0x7f, 0x80, 0x3c};
    for (size_t isa = 0; isa < N_TWINS; isa++)
        for (size_t t = 0; twin_runs(isa) && t < N_OF(kv_types); t++)
            for (size_t n_keys = 1; n_keys < 40; n_keys++) {
                struct problem *want =
                    new_problem(kv_types[t], 32, 4, n_keys, 0, ROWS_SEE_ALL, 1.0f);
                struct problem *got =
                    new_problem(kv_types[t], 32, 4, n_keys, 0, ROWS_SEE_ALL, 1.0f);
                if (kv_types[t] == KV_INT8) {
                    make_exact_for_int8(want, 1.0f);
                    make_exact_for_int8(got, 1.0f);
                }
                write_pages(want, 0);
                solve(want, isa);
                check_plainly(want, 1e-5);
                for (size_t i = 0; i < N_OF(fillers); i++) {
                    write_pages(got, fillers[i]);
                    solve(got, isa);
                    assert_same_solution(want, got);
                }
                free_problem(want);
                free_problem(got);
            }
}

/* Row r sees keys 0 .. r; every key after its last one is an infinity. */
static void later_tokens_do_not_leak_into_a_row(void **state)
{
    (void)state;
    enum { HD = 32, ROWS = 64 };
    for (size_t isa = 0; isa < N_TWINS; isa++)
        for (size_t cut = 1; twin_runs(isa) && cut < ROWS; cut += 5) {
            const enum kv_type type = cut % 2 == 0 ? KV_INT8 : KV_F32;
            struct problem *p = new_problem(type, HD, ROWS, ROWS, 0, ROWS_SEE_ALL, 1.0f);
            for (size_t r = 0; r < ROWS; r++)
                p->row_pos[r] = (int32_t)r;
            for (size_t i = cut * HD; i < ROWS * HD; i++)
                p->value[i] = INFINITY;
            write_pages(p, 0xff);
            solve(p, isa);
            for (size_t i = 0; i < ROWS * HD; i++)
                assert_int_equal(isfinite(p->out[i]) != 0, i < cut * HD);
            free_problem(p);
        }
}

static void pages_out_of_sight_leave_the_state_untouched(void **state)
{
    (void)state;
    for (size_t isa = 0; isa < N_TWINS; isa++) {
        if (!twin_runs(isa))
            continue;
        struct problem *p = new_problem(KV_BF16, 64, 13, 80, 64, ROWS_SEE_NOTHING, 1.0f);
        float *was = new_floats(13 * 64);
        fill_random(5, 1.0f, 13 * 64, was);
        was[3] = -0.0f;
        memcpy(p->a.o, was, 13 * 64 * sizeof(float));
        fill_random(6, 1.0f, 13 * LANES, p->a.d);
        fill_random(7, 1.0f, 13, p->a.m);
        const float m = p->a.m[12];
        const float d = p->a.d[12 * LANES + 15];
        attend_twins[isa](&p->a);
        assert_true(same_bits("o", was, p->a.o, 13 * 64));
        assert_true(same_bits("m", &m, &p->a.m[12], 1));
        assert_true(same_bits("d", &d, &p->a.d[12 * LANES + 15], 1));
        free(was);
        free_problem(p);
    }
}

/* Of a tile in which other rows do see something. */
static void rows_that_see_nothing_keep_their_state_beside_others(void **state)
{
    (void)state;
    enum { HD = 64, ROWS = 13 };
    for (size_t isa = 0; isa < N_TWINS; isa++)
        for (size_t t = 0; twin_runs(isa) && t < N_OF(kv_types); t++) {
            struct problem *p = new_problem(kv_types[t], HD, ROWS, 80, 64, ROWS_SEE_ALL, 1.0f);
            struct problem *was = new_problem(kv_types[t], HD, ROWS, 0, 0, ROWS_SEE_ALL, 1.0f);
            fill_random(5, 1.0f, ROWS * HD, was->a.o);
            fill_random(6, 1.0f, ROWS * LANES, was->a.d);
            fill_random(7, 1.0f, ROWS, was->a.m);
            for (size_t r = 0; r < ROWS; r += 2) {
                p->row_pos[r] = 63;
                was->a.o[r * HD + r] = -0.0f;
            }
            memcpy(p->a.o, was->a.o, ROWS * HD * sizeof(float));
            memcpy(p->a.d, was->a.d, ROWS * LANES * sizeof(float));
            memcpy(p->a.m, was->a.m, ROWS * sizeof(float));
            attend_twins[isa](&p->a);
            for (size_t r = 0; r < ROWS; r++) {
                const bool same_o =
                    first_difference(was->a.o + r * HD, p->a.o + r * HD, HD) == HD;
                const bool same_d =
                    first_difference(was->a.d + r * LANES, p->a.d + r * LANES, LANES) == LANES;
                assert_int_equal(same_o, r % 2 == 0);
                assert_int_equal(same_d, r % 2 == 0);
                assert_true(was->a.m[r] == p->a.m[r] || r % 2 == 1);
            }
            free_problem(was);
            free_problem(p);
        }
}

static void no_rows_and_no_keys_are_no_work(void **state)
{
    (void)state;
    for (size_t isa = 0; isa < N_TWINS; isa++) {
        if (!twin_runs(isa))
            continue;
        struct problem *p = new_problem(KV_BF16, 64, 2, 40, 0, ROWS_SEE_ALL, 1.0f);
        struct attend none = p->a;
        none.n_keys = 0;
        attend_twins[isa](&none);
        none = p->a;
        none.n_rows = 0;
        attend_twins[isa](&none);
        finish_twins[isa](&none, NULL);
        assert_true(isinf(p->a.m[0]) && isinf(p->a.m[1]));
        free_problem(p);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(twins_give_the_bits_of_the_reference),
        cmocka_unit_test(twins_agree_on_a_long_shared_prefix),
        cmocka_unit_test(twins_agree_on_extreme_scores),
        cmocka_unit_test(comparison_notices_one_flipped_bit),
        cmocka_unit_test(every_twin_computes_softmax_attention),
        cmocka_unit_test(int8_attention_is_as_near_as_its_scales_allow),
        cmocka_unit_test(keys_of_zeros_give_the_mean_of_the_values),
        cmocka_unit_test(weights_half_way_between_codes_become_the_even_one),
        cmocka_unit_test(values_of_any_size_give_the_bits_of_the_reference),
        cmocka_unit_test(scales_of_unseen_values_take_no_part),
        cmocka_unit_test(an_infinity_or_a_nan_makes_what_sees_it_nan),
        cmocka_unit_test(state_carried_over_calls_equals_one_call),
        cmocka_unit_test(stacked_rows_equal_each_row_alone),
        cmocka_unit_test(unwritten_slots_may_hold_anything),
        cmocka_unit_test(later_tokens_do_not_leak_into_a_row),
        cmocka_unit_test(pages_out_of_sight_leave_the_state_untouched),
        cmocka_unit_test(rows_that_see_nothing_keep_their_state_beside_others),
        cmocka_unit_test(no_rows_and_no_keys_are_no_work),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
