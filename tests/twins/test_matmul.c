/*
 * Weight products and activation quantisation. The vector twins must give the reference's bits
 * for every type, shape and number of rows; the reference itself is held against sums in
 * double over quant_dequantize_row. A number as first argument seeds the random data.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <math.h>

#include "base/rng.h"
#include "kernels/kernels_int.h"
#include "twin_runs.h"

static const enum quant_type TYPES[] = {QUANT_F32,  QUANT_F16,  QUANT_BF16, QUANT_Q4_0,
                                        QUANT_Q4_1, QUANT_Q5_0, QUANT_Q5_1, QUANT_Q8_0,
                                        QUANT_Q4_K, QUANT_Q5_K, QUANT_Q6_K, QUANT_IQ4_NL};
static const size_t ROWS[] = {0, 1, 2, 3, 4, 5, 6, 7, 13, 33, 64, 67, 130};
static const size_t OUTPUTS[] = {1, 8, 15, 16, 24, 48, 320};
static const size_t INPUTS[] = {32, 64, 256, 512, 576};

#define COUNT(array) (sizeof(array) / sizeof *(array))

/* What the activations of a case look like. */
enum values { PLAIN, ZEROS, LARGE, DENORMAL, OUTLIER, N_VALUES };

typedef void (*quantize_fn)(struct act *x, size_t row_begin, size_t row_end, size_t col_begin,
                            size_t col_end);
typedef void (*matmul_fn)(const struct weight *w, const struct act *x, size_t panel_begin,
                          size_t panel_end, enum matmul_mode mode, float *y, size_t y_stride);

struct twin {
    const char *name;
    quantize_fn quantize;
    matmul_fn matmul;
};

/* Those that this CPU can run; [0] is the reference. */
static struct twin twins[3];
static size_t n_twins;
static uint64_t seed = 20260711;
static uint64_t counter;

static void find_twins(void)
{
    twins[n_twins++] = (struct twin){"ref", quantize_ref, matmul_ref};
#ifndef SHEAF_REF_ONLY
    if (twin_runs(KERNELS_AVX2))
        twins[n_twins++] = (struct twin){"avx2", quantize_avx2, matmul_avx2};
    if (twin_runs(KERNELS_AVX512))
        twins[n_twins++] = (struct twin){"avx512", quantize_avx512, matmul_avx512};
#endif
}

/* ---- random data */

static float random_float(float low, float high)
{
    return low + (high - low) * (float)rng_uniform(seed, 0, counter++);
}

static void *alloc_aligned(size_t bytes)
{
    void *p = NULL;
    const size_t rounded = (bytes + KERNELS_ALIGN) & ~(size_t)(KERNELS_ALIGN - 1);
    assert_int_equal(posix_memalign(&p, KERNELS_ALIGN, rounded), 0);
    memset(p, 0xa5, rounded);
    return p;
}

static void put_half(uint8_t *at)
{
    const uint16_t bits = quant_f32_to_f16(random_float(-0.1f, 0.1f));
    memcpy(at, &bits, sizeof bits);
}

/* Random bits everywhere but in the half floats, which stay small numbers. */
static void random_block(const struct quant_info *info, uint8_t *block)
{
    for (size_t i = 0; i < info->block_bytes; i++)
        block[i] = (uint8_t)rng_bits(seed, 1, counter++);
    const float value = random_float(-1, 1);
    const uint16_t half = quant_f32_to_f16(value);
    const uint16_t bfloat = quant_f32_to_bf16(value);
    switch (info->type) {
    case QUANT_F32: memcpy(block, &value, sizeof value); break;
    case QUANT_F16: memcpy(block, &half, sizeof half); break;
    case QUANT_BF16: memcpy(block, &bfloat, sizeof bfloat); break;
    case QUANT_Q6_K: put_half(block + 208); break;
    case QUANT_Q4_1:
    case QUANT_Q5_1:
    case QUANT_Q4_K:
    case QUANT_Q5_K:
        put_half(block + 2);
        put_half(block);
        break;
    default: put_half(block); break;
    }
}

static void random_act(enum values values, float *x, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        x[i] = random_float(-1, 1);
        if (values == ZEROS)
            x[i] = i % 2 ? 0.0f : -0.0f;
        if (values == LARGE)
            x[i] *= 1e30f;
        if (values == DENORMAL)
            x[i] *= i / ACT_BLOCK % 2 ? 1e-39f : 1e-30f;
        if (values == OUTLIER)
            x[i] *= 1e-3f;
    }
    if (values == OUTLIER && n > 0)
        x[n / 2] = -7e4f;
}

/* ---- a case: one matrix and one set of rows */

struct matrix {
    const struct quant_info *info;
    size_t row_bytes;
    uint8_t *rows;
    struct weight w; /* owns data here */
};

static void matrix_init(struct matrix *m, enum quant_type type, size_t n, size_t k)
{
    struct err e = {0};
    m->info = quant_find(type);
    m->row_bytes = k / m->info->block_elems * m->info->block_bytes;
    m->rows = alloc_aligned(n * m->row_bytes);
    for (size_t at = 0; at < n * m->row_bytes; at += m->info->block_bytes)
        random_block(m->info, m->rows + at);
    const size_t bytes = weight_packed_bytes(type, n, k);
    assert_true(bytes > 0);
    if (weight_pack(&m->w, type, n, k, m->rows, alloc_aligned(bytes), &e) != 0)
        fail_msg("%s", e.text);
}

static void matrix_fini(struct matrix *m)
{
    free(m->rows);
    free(m->w.data);
}

static bool fits(enum quant_type type, size_t k)
{
    return k % quant_find(type)->block_elems == 0;
}

static void act_init(struct act *x, size_t t, size_t k, enum values values,
                     quantize_fn quantize)
{
    *x = (struct act){.kind = ACT_INT8, .n_rows = t, .n_cols = k};
    x->f32 = alloc_aligned(t * k * sizeof *x->f32);
    x->q = alloc_aligned(t * k);
    x->scale = alloc_aligned(t * k / ACT_BLOCK * sizeof *x->scale);
    x->sum = alloc_aligned(t * k / ACT_BLOCK * sizeof *x->sum);
    x->scaled_sum = alloc_aligned(t * k / ACT_BLOCK * sizeof *x->scaled_sum);
    random_act(values, x->f32, t * k);
    quantize(x, 0, t, 0, k);
}

static void act_fini(struct act *x)
{
    free(x->f32);
    free(x->q);
    free(x->scale);
    free(x->sum);
    free(x->scaled_sum);
}

/* Row t of x alone. */
static struct act act_row(const struct act *x, size_t t)
{
    struct act row = *x;
    row.n_rows = 1;
    row.f32 += t * x->n_cols;
    row.q += t * x->n_cols;
    row.scale += t * (x->n_cols / ACT_BLOCK);
    row.sum += t * (x->n_cols / ACT_BLOCK);
    row.scaled_sum += t * (x->n_cols / ACT_BLOCK);
    return row;
}

/* y[T][stride] that holds something before; stride > N leaves room to catch stray writes. */
static float *before(size_t t, size_t stride)
{
    float *y = alloc_aligned(t * stride * sizeof *y);
    for (size_t i = 0; i < t * stride; i++)
        y[i] = (float)(i % 97) * 0.125f - 6.0f;
    return y;
}

static bool same_bits(const float *a, const float *b, size_t n, size_t *where)
{
    for (*where = 0; *where < n; ++*where)
        if (memcmp(&a[*where], &b[*where], sizeof *a) != 0)
            return false;
    return true;
}

/* The whole range of panels at once, or in two pieces of which the second comes first. */
static void run_pieces(matmul_fn matmul, const struct matrix *m, const struct act *x,
                       enum matmul_mode mode, bool in_pieces, float *y, size_t stride)
{
    const size_t middle = in_pieces ? m->w.n_panels / 2 : 0;
    matmul(&m->w, x, middle, m->w.n_panels, mode, y, stride);
    matmul(&m->w, x, 0, middle, mode, y, stride);
}

static void check_twins(const struct matrix *m, const struct act *x, enum matmul_mode mode)
{
    const size_t n = m->w.n_rows;
    const size_t stride = n + 3;
    float *want = before(x->n_rows, stride);
    matmul_ref(&m->w, x, 0, m->w.n_panels, mode, want, stride);
    for (size_t i = 0; i < n_twins; i++) {
        float *got = before(x->n_rows, stride);
        size_t at;
        run_pieces(twins[i].matmul, m, x, mode, i == 0 || n % 2, got, stride);
        if (!same_bits(got, want, x->n_rows * stride, &at))
            fail_msg("%s %s %s T=%zu N=%zu K=%zu mode %d: row %zu output %zu is %a, ref %a",
                     twins[i].name, m->info->name, x->kind == ACT_F32 ? "f32" : "int8",
                     x->n_rows, n, m->w.n_cols, mode, at / stride, at % stride, (double)got[at],
                     (double)want[at]);
        free(got);
    }
    free(want);
}

static void check_shape(enum quant_type type, size_t n, size_t k)
{
    struct matrix m;
    matrix_init(&m, type, n, k);
    for (size_t i = 0; i < COUNT(ROWS); i++) {
        struct act x;
        act_init(&x, ROWS[i], k, PLAIN, quantize_ref);
        for (int kind = ACT_F32; kind <= ACT_INT8; kind++) {
            x.kind = (enum act_kind)kind;
            check_twins(&m, &x, MATMUL_SET);
            if (n < 64)
                check_twins(&m, &x, MATMUL_ADD);
        }
        act_fini(&x);
    }
    matrix_fini(&m);
}

static void twins_give_the_references_bits_for_every_type_and_shape(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(TYPES); i++)
        for (size_t n = 0; n < COUNT(OUTPUTS); n++)
            for (size_t k = 0; k < COUNT(INPUTS); k++)
                if (fits(TYPES[i], INPUTS[k]))
                    check_shape(TYPES[i], OUTPUTS[n], INPUTS[k]);
}

static void twins_agree_on_float_weights_of_odd_width(void **state)
{
    (void)state;
    for (size_t i = 0; i < 3; i++) {
        struct matrix m;
        struct act x = {.kind = ACT_F32, .n_rows = 9, .n_cols = 37};
        matrix_init(&m, TYPES[i], 21, 37);
        x.f32 = alloc_aligned(9 * 37 * sizeof *x.f32);
        random_act(PLAIN, x.f32, 9 * 37);
        check_twins(&m, &x, MATMUL_SET);
        act_fini(&x);
        matrix_fini(&m);
    }
}

static void twins_agree_on_zeros_large_denormal_and_outlying_values(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(TYPES); i++) {
        struct matrix m;
        matrix_init(&m, TYPES[i], 48, 512);
        for (int values = ZEROS; values < N_VALUES; values++) {
            struct act x;
            act_init(&x, 7, 512, (enum values)values, quantize_ref);
            check_twins(&m, &x, MATMUL_ADD);
            x.kind = ACT_F32;
            check_twins(&m, &x, MATMUL_SET);
            act_fini(&x);
        }
        matrix_fini(&m);
    }
}

/* Bytes of which all codes are the greatest or the least of their type. */
static const uint8_t FILLS[] = {0xff, 0x00, 0x7f, 0x80};

static void check_extreme_rows(const struct matrix *m, size_t n_rows)
{
    struct act x;
    act_init(&x, n_rows, m->w.n_cols, PLAIN, quantize_ref);
    for (size_t j = 0; j < n_rows * m->w.n_cols; j++)
        x.f32[j] = j / m->w.n_cols % 2 ? 1.0f : -1.0f;
    quantize_ref(&x, 0, n_rows, 0, x.n_cols);
    assert_int_equal(x.q[0], -127);
    check_twins(m, &x, MATMUL_SET);
    act_fini(&x);
}

/* Every code and every activation at the end of its range: where 16-bit sums would saturate. */
static void twins_agree_when_all_codes_are_extreme(void **state)
{
    (void)state;
    for (size_t i = 3; i < COUNT(TYPES); i++) {
        for (size_t f = 0; f < COUNT(FILLS); f++) {
            struct matrix m;
            struct err e = {0};
            matrix_init(&m, TYPES[i], 16, 256);
            memset(m.rows, FILLS[f], 16 * m.row_bytes);
            for (size_t at = 0; at < 16 * m.row_bytes; at += m.info->block_bytes) {
                uint8_t *half = m.rows + at + (TYPES[i] == QUANT_Q6_K ? 208 : 0);
                put_half(half);
                if (TYPES[i] != QUANT_Q8_0)
                    put_half(half + (TYPES[i] == QUANT_Q6_K ? 0 : 2));
            }
            assert_int_equal(weight_pack(&m.w, TYPES[i], 16, 256, m.rows, m.w.data, &e), 0);
            check_extreme_rows(&m, 3); /* one tile takes packed codes, several do not */
            check_extreme_rows(&m, 13);
            matrix_fini(&m);
        }
    }
}

static void a_row_alone_gives_the_bits_that_it_gives_among_others(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(TYPES); i++) {
        struct matrix m;
        struct act x;
        matrix_init(&m, TYPES[i], 48, 512);
        act_init(&x, 33, 512, PLAIN, quantize_ref);
        for (size_t t = 0; t < n_twins * 2; t++) {
            float *all = before(33, 48);
            float *alone = before(33, 48);
            size_t at;
            x.kind = t % 2 ? ACT_F32 : ACT_INT8;
            twins[t / 2].matmul(&m.w, &x, 0, 3, MATMUL_SET, all, 48);
            for (size_t row = 0; row < 33; row++) {
                const struct act one = act_row(&x, row);
                twins[t / 2].matmul(&m.w, &one, 0, 3, MATMUL_SET, alone + row * 48, 48);
            }
            if (!same_bits(all, alone, 33 * (size_t)48, &at))
                fail_msg("%s %s: row %zu differs alone", twins[t / 2].name, m.info->name,
                         at / 48);
            free(all);
            free(alone);
        }
        act_fini(&x);
        matrix_fini(&m);
    }
}

/* ---- the reference against double */

/*
 * What output n of row t should be, and how far float32 may be from it: a few roundings per
 * term or block, each at most 2^-24 of the largest weight of the block times the activation.
 */
static double expect(const struct act *x, const float *row, size_t t, double *tolerance)
{
    double sum = 0;
    double size = 0;
    for (size_t b = 0; b < x->n_cols / ACT_BLOCK; b++) {
        double largest = 0;
        double magnitude = 0;
        for (size_t i = 0; i < ACT_BLOCK; i++) {
            const size_t at = b * ACT_BLOCK + i;
            const double scale = (double)x->scale[t * (x->n_cols / ACT_BLOCK) + b];
            const double value = x->kind == ACT_F32 ? (double)x->f32[t * x->n_cols + at]
                                                    : scale * x->q[t * x->n_cols + at];
            sum += value * (double)row[at];
            magnitude += fabs(value);
            largest = fmax(largest, fabs((double)row[at]));
        }
        size += magnitude * largest;
    }
    *tolerance = (double)x->n_cols * 0x1p-24 * size + 1e-42;
    return sum;
}

static void check_against_double(enum quant_type type, enum act_kind kind, enum values values)
{
    enum { T = 3, N = 21, K = 512 };
    struct matrix m;
    struct act x;
    matrix_init(&m, type, N, K);
    act_init(&x, T, K, values, quantize_ref);
    x.kind = kind;
    float *y = before(T, N);
    matmul_ref(&m.w, &x, 0, m.w.n_panels, MATMUL_SET, y, N);
    if (quant_find(type)->block_elems == 1)
        x.kind = ACT_F32; /* float weights take the floats whatever else the rows carry */
    for (size_t n = 0; n < N; n++) {
        float row[K];
        quant_dequantize_row(type, m.rows + n * m.row_bytes, row, K);
        for (size_t t = 0; t < T; t++) {
            double tolerance;
            const double want = expect(&x, row, t, &tolerance);
            const double off = fabs((double)y[t * N + n] - want);
            if (!(off <= tolerance))
                fail_msg("%s kind %d values %d row %zu output %zu: %g, double says %g",
                         m.info->name, kind, values, t, n, (double)y[t * N + n], want);
        }
    }
    free(y);
    act_fini(&x);
    matrix_fini(&m);
}

static void reference_agrees_with_sums_in_double(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(TYPES); i++)
        for (int values = 0; values < N_VALUES; values++) {
            check_against_double(TYPES[i], ACT_F32, (enum values)values);
            check_against_double(TYPES[i], ACT_INT8, (enum values)values);
        }
}

/* A row of the unit matrix picks one weight out of the panels. */
static void packed_weights_are_the_files_weights_exactly(void **state)
{
    (void)state;
    enum { N = 19, K = 256 };
    for (size_t i = 0; i < COUNT(TYPES); i++) {
        struct matrix m;
        struct act x;
        matrix_init(&m, TYPES[i], N, K);
        act_init(&x, K, K, ZEROS, quantize_ref);
        x.kind = ACT_F32;
        for (size_t k = 0; k < K; k++)
            x.f32[k * K + k] = 1.0f;
        float *y = before(K, N);
        matmul_ref(&m.w, &x, 0, m.w.n_panels, MATMUL_SET, y, N);
        for (size_t n = 0; n < N; n++) {
            float row[K];
            quant_dequantize_row(TYPES[i], m.rows + n * m.row_bytes, row, K);
            for (size_t k = 0; k < K; k++)
                assert_true(y[k * N + n] == row[k]);
        }
        free(y);
        act_fini(&x);
        matrix_fini(&m);
    }
}

/* ---- quantisation */

static void check_quantized_block(const float *x, const int8_t *q, float scale, int32_t sum)
{
    double largest = 0;
    int32_t total = 0;
    for (size_t i = 0; i < ACT_BLOCK; i++)
        largest = fmax(largest, fabs((double)x[i]));
    if (largest < 1e-36)
        largest = 0;
    assert_true(fabs((double)scale - largest / 127) <= largest / 127 * 0x1p-24);
    for (size_t i = 0; i < ACT_BLOCK; i++) {
        const double exact = largest > 0 ? (double)x[i] * 127 / largest : 0.0;
        assert_true(fabs(exact - q[i]) <= 0.50001);
        total += q[i];
    }
    assert_int_equal(sum, total);
}

static void quantised_rows_are_the_nearest_steps_of_their_scale(void **state)
{
    (void)state;
    for (int values = 0; values < N_VALUES; values++) {
        struct act x;
        act_init(&x, 11, 96, (enum values)values, quantize_ref);
        for (size_t b = 0; b < (size_t)11 * 3; b++)
            check_quantized_block(x.f32 + b * ACT_BLOCK, x.q + b * ACT_BLOCK, x.scale[b],
                                  x.sum[b]);
        act_fini(&x);
    }
}

static void quantize_twins_give_the_references_bits(void **state)
{
    (void)state;
    for (int values = 0; values < N_VALUES; values++) {
        struct act want;
        act_init(&want, 13, 576, (enum values)values, quantize_ref);
        want.f32[160] = 127.0f; /* a step is 1: the rest of the block lies between two */
        for (size_t j = 1; j < ACT_BLOCK; j++)
            want.f32[160 + j] = (float)j - 15.5f;
        want.f32[40] = NAN;
        want.f32[80] = INFINITY;
        want.f32[120] = 0x1p-120f;
        quantize_ref(&want, 0, 13, 0, 576);
        for (size_t i = 1; i < n_twins; i++) {
            struct act got;
            const size_t n_blocks = 13 * 576 / ACT_BLOCK;
            act_init(&got, 13, 576, PLAIN, quantize_ref);
            memcpy(got.f32, want.f32, 13 * 576 * sizeof *got.f32);
            twins[i].quantize(&got, 0, 4, 0, 576);
            twins[i].quantize(&got, 4, 13, 96, 576);
            twins[i].quantize(&got, 4, 13, 0, 96);
            assert_memory_equal(got.q, want.q, 13 * 576);
            assert_memory_equal(got.scale, want.scale, n_blocks * sizeof *got.scale);
            assert_memory_equal(got.sum, want.sum, n_blocks * sizeof *got.sum);
            assert_memory_equal(got.scaled_sum, want.scaled_sum,
                                n_blocks * sizeof *got.scaled_sum);
            act_fini(&got);
        }
        act_fini(&want);
    }
}

static void quantize_fills_its_rows_and_columns_and_no_others(void **state)
{
    (void)state;
    for (size_t i = 0; i < n_twins; i++) {
        struct act x;
        act_init(&x, 4, 128, PLAIN, quantize_ref);
        memset(x.q, 0x55, 4 * 128);
        memset(x.scale, 0x55, 16 * sizeof *x.scale);
        memset(x.sum, 0x55, 16 * sizeof *x.sum);
        memset(x.scaled_sum, 0x55, 16 * sizeof *x.scaled_sum);
        twins[i].quantize(&x, 1, 3, 32, 96);
        for (size_t b = 0; b < 16; b++) {
            const bool is_inside = b / 4 >= 1 && b / 4 < 3 && b % 4 >= 1 && b % 4 < 3;
            uint32_t scale, scaled_sum;
            memcpy(&scale, &x.scale[b], sizeof scale);
            memcpy(&scaled_sum, &x.scaled_sum[b], sizeof scaled_sum);
            assert_int_equal(scale != 0x55555555, is_inside);
            assert_int_equal(scaled_sum != 0x55555555, is_inside);
            assert_int_equal(x.sum[b] != 0x55555555, is_inside);
            for (size_t j = 0; !is_inside && j < ACT_BLOCK; j++)
                assert_int_equal(x.q[b * ACT_BLOCK + j], 0x55);
        }
        act_fini(&x);
    }
}

static void a_nan_or_infinity_makes_its_row_nan_and_no_other(void **state)
{
    (void)state;
    for (size_t i = 0; i < n_twins; i++) {
        struct matrix m;
        struct act x;
        matrix_init(&m, QUANT_Q4_1, 16, 64);
        act_init(&x, 3, 64, PLAIN, quantize_ref);
        x.f32[64 + 9] = i % 2 ? NAN : -INFINITY;
        twins[i].quantize(&x, 0, 3, 0, 64);
        float *y = before(3, 16);
        twins[i].matmul(&m.w, &x, 0, 1, MATMUL_SET, y, 16);
        for (size_t j = 0; j < 48; j++)
            assert_int_equal(isnan(y[j]) != 0, j / 16 == 1);
        free(y);
        act_fini(&x);
        matrix_fini(&m);
    }
}

/* ---- packing */

static void shapes_that_cannot_be_packed_need_no_bytes(void **state)
{
    (void)state;
    assert_int_equal(weight_packed_bytes(QUANT_Q4_1, 1536, 576), (size_t)1536 * 576 * 5 / 8);
    assert_int_equal(weight_packed_bytes(QUANT_Q4_0, 16, 40), 0);
    assert_int_equal(weight_packed_bytes(QUANT_Q6_K, 16, 576), 0);
    assert_int_equal(weight_packed_bytes(QUANT_F32, 0, 32), 0);
    assert_int_equal(weight_packed_bytes(QUANT_F32, 16, 0), 0);
    assert_int_equal(weight_packed_bytes((enum quant_type)10, 16, 256), 0);
    assert_int_equal(weight_packed_bytes(QUANT_F32, SIZE_MAX, SIZE_MAX), 0);
    assert_int_equal(weight_packed_bytes(QUANT_Q8_0, SIZE_MAX / 2, 64), 0);
    assert_int_equal(weight_packed_bytes(QUANT_Q8_0, 16, SIZE_MAX / 32 * 32), 0);
    struct weight w;
    struct err e = {0};
    assert_int_equal(weight_pack(&w, QUANT_Q4_K, 16, 32, NULL, NULL, &e), ERR_UNSUPPORTED);
}

static void the_comparison_sees_one_changed_element(void **state)
{
    (void)state;
    struct matrix m;
    struct act x;
    size_t at;
    matrix_init(&m, QUANT_Q4_1, 48, 64);
    act_init(&x, 7, 64, PLAIN, quantize_ref);
    float *want = before(7, 48);
    float *got = before(7, 48);
    matmul_ref(&m.w, &x, 0, 3, MATMUL_SET, want, 48);
    x.q[3 * 64 + 5] ^= 1;
    matmul_ref(&m.w, &x, 0, 3, MATMUL_SET, got, 48);
    assert_false(same_bits(got, want, 7 * 48, &at));
    assert_int_equal(at / 48, 3);
    x.q[3 * 64 + 5] ^= 1;
    matmul_ref(&m.w, &x, 0, 3, MATMUL_SET, got, 48);
    assert_true(same_bits(got, want, 7 * 48, &at));
    free(want);
    free(got);
    act_fini(&x);
    matrix_fini(&m);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shapes_that_cannot_be_packed_need_no_bytes),
        cmocka_unit_test(packed_weights_are_the_files_weights_exactly),
        cmocka_unit_test(quantised_rows_are_the_nearest_steps_of_their_scale),
        cmocka_unit_test(quantize_twins_give_the_references_bits),
        cmocka_unit_test(quantize_fills_its_rows_and_columns_and_no_others),
        cmocka_unit_test(reference_agrees_with_sums_in_double),
        cmocka_unit_test(the_comparison_sees_one_changed_element),
        cmocka_unit_test(twins_give_the_references_bits_for_every_type_and_shape),
        cmocka_unit_test(twins_agree_on_float_weights_of_odd_width),
        cmocka_unit_test(twins_agree_on_zeros_large_denormal_and_outlying_values),
        cmocka_unit_test(twins_agree_when_all_codes_are_extreme),
        cmocka_unit_test(a_row_alone_gives_the_bits_that_it_gives_among_others),
        cmocka_unit_test(a_nan_or_infinity_makes_its_row_nan_and_no_other),
    };
    if (argc > 1)
        seed = strtoull(argv[1], NULL, 10);
    print_message("seed %llu\n", (unsigned long long)seed);
    find_twins();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
