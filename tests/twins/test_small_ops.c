/* The small operations: formulas in double, and the twins against the reference bit by bit. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "twins.h"

typedef void rmsnorm_fn(const float *x, const float *weight, float eps, size_t n_rows,
                        size_t n_cols, float *y);
typedef void silu_mul_fn(const float *gate, const float *up, size_t n, float *y);
typedef size_t argmax_fn(const float *x, size_t n);
typedef void rope_fn(float *x, size_t x_stride, size_t n_rows, size_t n_heads, size_t head_dim,
                     size_t n_rot, const float *cos_sin, enum rope_pairing pairing);
typedef void kv_write_fn(enum kv_type type, size_t head_dim, void *page, size_t slot,
                         const float *key, const float *value);

static rmsnorm_fn *const rmsnorm_twins[] = TWINS_OF(rmsnorm);
static silu_mul_fn *const silu_mul_twins[] = TWINS_OF(silu_mul);
static argmax_fn *const argmax_twins[] = TWINS_OF(argmax);
static rope_fn *const rope_twins[] = TWINS_OF(rope);
static kv_write_fn *const kv_write_twins[] = TWINS_OF(kv_write);

#define N_OF(array) (sizeof(array) / sizeof((array)[0]))

static void assert_near(double got, double want, double tolerance)
{
    if (!(fabs(got - want) <= tolerance))
        fail_msg("%.9g is not %.9g within %g", got, want, tolerance);
}

/* ---- exp */

static void exp_is_within_2e_7_of_the_c_library(void **state)
{
    (void)state;
    double worst = 0.0;
    for (double x = -87.33; x < 88.37; x += 1.7e-4) {
        const double want = exp((double)(float)x);
        const double off = fabs((double)kernels_exp((float)x) / want - 1.0);
        if (!(off <= worst))
            worst = off;
    }
    assert_true(worst <= 2e-7);
    assert_true(worst > 1e-9); /* a float cannot be that good: the comparison measures */
}

static void exp_of_special_values_is_as_promised(void **state)
{
    (void)state;
    assert_true(kernels_exp(0.0f) == 1.0f);
    assert_true(kernels_exp(-0.0f) == 1.0f);
    assert_true(kernels_exp(-INFINITY) == 0.0f);
    assert_true(isnan(kernels_exp(NAN)));
    assert_true(isfinite(kernels_exp(INFINITY)) && kernels_exp(INFINITY) > 2e38f);
    assert_true(kernels_exp(-1e30f) == kernels_exp(-87.33f));
    assert_true(isnormal(kernels_exp(-87.33f)));
    assert_true(kernels_exp(1e30f) == kernels_exp(88.37f));
}

/* ---- rmsnorm */

static void check_rmsnorm_row(const float *x, const float *weight, double eps, size_t n,
                              const float *y)
{
    double squares = 0.0;
    for (size_t i = 0; i < n; i++)
        squares += (double)x[i] * (double)x[i];
    for (size_t i = 0; i < n; i++) {
        const double want = (double)x[i] * (double)weight[i] / sqrt(squares / (double)n + eps);
        assert_near((double)y[i], want, 2e-6 * fabs(want));
    }
}

static void check_rmsnorm(size_t n_rows, size_t n_cols)
{
    const size_t n = n_rows * n_cols;
    float *x = new_floats(n);
    float *weight = new_floats(n_cols);
    float *want = new_floats(n);
    float *got = new_floats(n);
    fill_random(1, 3.0f, n, x);
    fill_random(2, 2.0f, n_cols, weight);
    rmsnorm_ref(x, weight, 1e-5f, n_rows, n_cols, want);
    for (size_t t = 0; t < n_rows; t++)
        check_rmsnorm_row(x + t * n_cols, weight, 1e-5, n_cols, want + t * n_cols);
    for (size_t isa = 0; isa < N_TWINS; isa++)
        if (twin_runs(isa)) {
            memcpy(got, x, n * sizeof(float)); /* in place, as the contract allows */
            rmsnorm_twins[isa](got, weight, 1e-5f, n_rows, n_cols, got);
            assert_true(same_bits("rmsnorm", want, got, n));
        }
    free(x);
    free(weight);
    free(want);
    free(got);
}

static void rmsnorm_is_its_formula_in_every_twin(void **state)
{
    (void)state;
    static const size_t widths[] = {1, 15, 16, 17, 33, 576, 1536, 4096};
    for (size_t i = 0; i < N_OF(widths); i++)
        for (size_t n_rows = 0; n_rows <= 3; n_rows++)
            check_rmsnorm(n_rows, widths[i]);
}

static void rmsnorm_of_zeros_is_zeros(void **state)
{
    (void)state;
    const float x[17] = {0};
    float weight[17];
    fill_random(1, 1.0f, 17, weight);
    for (size_t isa = 0; isa < N_TWINS; isa++) {
        float y[17];
        if (!twin_runs(isa))
            continue;
        rmsnorm_twins[isa](x, weight, 1e-5f, 1, 17, y);
        for (size_t i = 0; i < 17; i++)
            assert_true(y[i] == 0.0f);
    }
}

/* ---- silu */

static void check_silu_mul(size_t n, float range)
{
    float *gate = new_floats(n);
    float *up = new_floats(n);
    float *want = new_floats(n);
    float *got = new_floats(n);
    fill_random(1, range, n, gate);
    fill_random(2, 2.0f, n, up);
    silu_mul_ref(gate, up, n, want);
    for (size_t i = 0; i < n; i++) {
        const double x = (double)gate[i];
        const double y = x / (1.0 + exp(-x)) * (double)up[i];
        assert_near((double)want[i], y, 1e-6 * fabs(y) + 1e-30);
    }
    for (size_t isa = 0; isa < N_TWINS; isa++)
        if (twin_runs(isa)) {
            memcpy(got, gate, n * sizeof(float)); /* y may be gate */
            silu_mul_twins[isa](got, up, n, got);
            assert_true(same_bits("silu_mul", want, got, n));
        }
    free(gate);
    free(up);
    free(want);
    free(got);
}

static void silu_mul_is_its_formula_in_every_twin(void **state)
{
    (void)state;
    static const size_t sizes[] = {0, 1, 15, 16, 17, 31, 1536, 10001};
    for (size_t i = 0; i < N_OF(sizes); i++) {
        check_silu_mul(sizes[i], 10.0f);
        check_silu_mul(sizes[i], 80.0f);
    }
}

/* On exp's clamps, beyond them, and around every rounding of n. */
static void exp_has_the_same_bits_in_every_twin(void **state)
{
    (void)state;
    enum { N = 1 << 20 };
    float *gate = new_floats(N);
    float *up = new_floats(N);
    float *want = new_floats(N);
    float *got = new_floats(N);
    for (size_t i = 0; i < N; i++) {
        gate[i] = -95.0f + (float)i * (190.0f / N);
        up[i] = 1.0f;
    }
    static const float special[] = {0.0f, -0.0f, 87.33f, -88.37f, 1e30f, -1e30f, INFINITY};
    memcpy(gate + 5, special, sizeof special);
    silu_mul_ref(gate, up, N, want);
    for (size_t isa = 1; isa < N_TWINS; isa++)
        if (twin_runs(isa)) {
            silu_mul_twins[isa](gate, up, N, got);
            assert_true(same_bits("silu_mul", want, got, N));
        }
    free(gate);
    free(up);
    free(want);
    free(got);
}

/* ---- bias */

static void bias_is_added_to_rows_and_not_between_them(void **state)
{
    (void)state;
    float y[2 * 5] = {1, 2, 3, 99, 98, 4, 5, 6, 97, 96};
    const float bias[3] = {0.5f, -1.0f, 2.0f};
    const float want[2 * 5] = {1.5f, 1, 5, 99, 98, 4.5f, 4, 8, 97, 96};
    bias_add_ref(y, 5, bias, 2, 3);
    assert_true(same_bits("bias_add", want, y, 10));
    bias_add_ref(y, 5, bias, 0, 3);
    assert_true(same_bits("bias_add of no rows", want, y, 10));
}

/* ---- rope */

enum { ROPE_ROWS = 3, ROPE_HEADS = 2, ROPE_HEAD_DIM = 16, ROPE_STRIDE = 40 };

/* A rotation is a complex product: dim_a + i dim_b times cos + i sin, at angle t / (i + 1). */
static void check_rope(size_t n_rot, enum rope_pairing pairing)
{
    float x[ROPE_ROWS * ROPE_STRIDE], y[ROPE_ROWS * ROPE_STRIDE];
    float cos_sin[ROPE_ROWS * ROPE_HEAD_DIM];
    fill_random(1, 2.0f, N_OF(x), x);
    memcpy(y, x, sizeof x);
    const size_t n_pairs = n_rot / 2;
    for (size_t t = 0; t < ROPE_ROWS; t++)
        for (size_t i = 0; i < n_pairs; i++) {
            const double angle = (double)(t + 1) / (double)(i + 1);
            cos_sin[(t * n_pairs + i) * 2] = (float)cos(angle);
            cos_sin[(t * n_pairs + i) * 2 + 1] = (float)sin(angle);
        }
    rope_ref(y, ROPE_STRIDE, ROPE_ROWS, ROPE_HEADS, ROPE_HEAD_DIM, n_rot, cos_sin, pairing);
    bool rotated[ROPE_ROWS * ROPE_STRIDE] = {false};
    for (size_t t = 0; t < ROPE_ROWS; t++)
        for (size_t h = 0; h < ROPE_HEADS; h++)
            for (size_t i = 0; i < n_pairs; i++) {
                const double angle = (double)(t + 1) / (double)(i + 1);
                const size_t head = t * ROPE_STRIDE + h * ROPE_HEAD_DIM;
                const size_t first = head + (pairing == ROPE_NORM ? 2 * i : i);
                const size_t second = head + (pairing == ROPE_NORM ? 2 * i + 1 : i + n_pairs);
                const double a = (double)x[first];
                const double b = (double)x[second];
                assert_near((double)y[first], a * cos(angle) - b * sin(angle), 1e-6);
                assert_near((double)y[second], a * sin(angle) + b * cos(angle), 1e-6);
                rotated[first] = rotated[second] = true;
            }
    for (size_t i = 0; i < N_OF(x); i++)
        if (!rotated[i])
            assert_true(same_bits("a dim outside n_rot", &x[i], &y[i], 1));
}

static void rope_rotates_pairs_and_leaves_the_rest(void **state)
{
    (void)state;
    static const size_t n_rots[] = {0, 2, 8, 14, 16};
    for (size_t i = 0; i < N_OF(n_rots); i++) {
        check_rope(n_rots[i], ROPE_NORM);
        check_rope(n_rots[i], ROPE_NEOX);
    }
}

/* The last head ends where the array ends, so that nothing behind it may be touched. */
static void check_rope_twins(size_t head_dim, size_t n_rot, enum rope_pairing pairing)
{
    enum { ROWS = 3, HEADS = 2 };
    const size_t stride = HEADS * head_dim + 5;
    const size_t n = (ROWS - 1) * stride + HEADS * head_dim;
    float *x = new_floats(n);
    float *want = new_floats(n);
    float *got = new_floats(n);
    float *cos_sin = new_floats(ROWS * n_rot);
    fill_random(n_rot, 3.0f, n, x);
    fill_random(n_rot + 1, 1.0f, ROWS * n_rot, cos_sin);
    memcpy(want, x, n * sizeof *x);
    rope_ref(want, stride, ROWS, HEADS, head_dim, n_rot, cos_sin, pairing);
    assert_int_equal(n_rot == 0, memcmp(want, x, n * sizeof *x) == 0);
    for (size_t isa = 1; isa < N_TWINS; isa++)
        if (twin_runs(isa)) {
            memcpy(got, x, n * sizeof *x);
            rope_twins[isa](got, stride, ROWS, HEADS, head_dim, n_rot, cos_sin, pairing);
            assert_true(same_bits("rope", want, got, n));
        }
    free(x);
    free(want);
    free(got);
    free(cos_sin);
}

static void rope_has_the_same_bits_in_every_twin(void **state)
{
    (void)state;
    static const struct {
        size_t head_dim, n_rot;
    } cases[] = {{16, 0},  {16, 2},  {16, 14}, {16, 16}, {32, 18},   {32, 30},   {32, 32},
                 {64, 48}, {64, 64}, {96, 96}, {96, 66}, {128, 128}, {256, 250}, {256, 256}};
    for (size_t i = 0; i < N_OF(cases); i++) {
        check_rope_twins(cases[i].head_dim, cases[i].n_rot, ROPE_NORM);
        check_rope_twins(cases[i].head_dim, cases[i].n_rot, ROPE_NEOX);
    }
}

/* ---- KV pages */

static void page_bytes_are_keys_and_values_of_32_tokens(void **state)
{
    (void)state;
    assert_int_equal(kv_page_bytes(KV_BF16, 64), 32 * 64 * 2 * 2);
    assert_int_equal(kv_page_bytes(KV_F32, 64), 32 * 64 * 4 * 2);
    assert_int_equal(kv_page_bytes(KV_F32, 16), 4096);
    assert_int_equal(kv_page_bytes(KV_INT8, 64), 32 * (64 + 4) * 2);
    for (size_t head_dim = 16; head_dim <= 512; head_dim += 16)
        assert_int_equal(kv_page_bytes(KV_INT8, head_dim) % KERNELS_ALIGN, 0);
}

/* The declared layout as array types: keys [HD/2][32][2], values [16][HD][2]. */
static void kv_write_puts_every_element_where_the_layout_says(void **state)
{
    (void)state;
    enum { HD = 48 };
    static struct {
        float key[HD / 2][32][2];
        float value[16][HD][2];
    } page;
    float key[HD], value[HD];
    assert_int_equal(sizeof page, kv_page_bytes(KV_F32, HD));
    for (size_t slot = 0; slot < 32; slot++) {
        memset(&page, 0, sizeof page);
        for (size_t i = 0; i < HD; i++) {
            key[i] = 1.0f + (float)i;
            value[i] = -1.0f - (float)i;
        }
        kv_write_ref(KV_F32, HD, &page, slot, key, value);
        size_t n_written = 0;
        for (size_t i = 0; i < HD; i++) {
            assert_true(page.key[i / 2][slot][i % 2] == key[i]);
            assert_true(page.value[slot / 2][i][slot % 2] == value[i]);
        }
        const float *all = (const float *)&page;
        for (size_t i = 0; i < sizeof page / sizeof *all; i++)
            n_written += all[i] != 0.0f;
        assert_int_equal(n_written, 2 * HD);
    }
}

static void kv_write_rounds_to_bfloat16_nearest_even(void **state)
{
    (void)state;
    /* In units of 2^-7, the distance of bfloat16 numbers between 1 and 2. */
    static const struct {
        float value;
        uint16_t want;
    } cases[] = {
        {1.0f, 0x3f80},
        {1.0f + 0x0.80p-7f, 0x3f80}, /* half way: to the even one below */
        {1.0f + 0x0.81p-7f, 0x3f81},
        {1.0f + 0x1.80p-7f, 0x3f82}, /* half way: to the even one above */
        {-2.0f, 0xc000},
        {-0.0f, 0x8000},
        {INFINITY, 0x7f80},
        {3.4e38f, 0x7f80}, /* beyond the greatest bfloat16 by more than half a step */
        {0x1p-149f, 0x0000},
    };
    uint16_t page[2 * 32 * 16] = {0};
    float key[16] = {0};
    for (size_t i = 0; i < N_OF(cases); i++) {
        key[3] = cases[i].value;
        kv_write_ref(KV_BF16, 16, page, 9, key, key);
        assert_int_equal(page[(1 * 32 + 9) * 2 + 1], cases[i].want);
        assert_int_equal(page[32 * 16 + (4 * 16 + 3) * 2 + 1], cases[i].want);
    }
    const uint32_t nan_of_low_bits = 0x7f800001u;
    memcpy(&key[3], &nan_of_low_bits, sizeof key[3]);
    kv_write_ref(KV_BF16, 16, page, 9, key, key);
    assert_int_equal(page[(1 * 32 + 9) * 2 + 1] & 0x7f80, 0x7f80);
    assert_int_not_equal(page[(1 * 32 + 9) * 2 + 1] & 0x7f, 0);
}

/* Every upper half with lower halves on, below and above the middle; all kinds of NaN too. */
static float float_around_a_tie(size_t i)
{
    static const uint32_t lower[] = {0x0000, 0x0001, 0x7fff, 0x8000, 0x8001, 0xffff};
    const uint32_t bits = (uint32_t)(i / N_OF(lower)) << 16 | lower[i % N_OF(lower)];
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* A page full of a pattern is written to; all of it is compared, so strays show. */
static void check_kv_write_twins(enum kv_type type, size_t head_dim, size_t slot, size_t from)
{
    const size_t page_bytes = kv_page_bytes(type, head_dim);
    const size_t page_floats = page_bytes / sizeof(float);
    float *key = new_floats(head_dim);
    float *value = new_floats(head_dim);
    float *want = new_floats(page_floats);
    float *got = new_floats(page_floats);
    for (size_t i = 0; i < head_dim; i++) {
        key[i] = float_around_a_tie(from + i);
        value[i] = float_around_a_tie(from + head_dim + i);
    }
    memset(want, 0x5a, page_bytes);
    kv_write_ref(type, head_dim, want, slot, key, value);
    for (size_t isa = 1; isa < N_TWINS; isa++)
        if (twin_runs(isa)) {
            memset(got, 0x5a, page_bytes);
            kv_write_twins[isa](type, head_dim, got, slot, key, value);
            assert_true(same_bits("kv_write", want, got, page_floats));
        }
    free(key);
    free(value);
    free(want);
    free(got);
}

/* A token written into one slot and copied to another one, of the same page too, stands there
 * as if it had been written there; nothing else changes. */
static void a_copied_token_is_the_one_that_was_written(void **state)
{
    (void)state;
    static const enum kv_type types[] = {KV_F32, KV_BF16, KV_INT8};
    static const size_t head_dims[] = {16, 64, 96};
    for (size_t i = 0; i < N_OF(types) * N_OF(head_dims) * 32; i++) {
        const enum kv_type type = types[i % N_OF(types)];
        const size_t head_dim = head_dims[i / N_OF(types) % N_OF(head_dims)];
        const size_t from = i / N_OF(types) / N_OF(head_dims), to = (5 * from + 3) % 32;
        const size_t page_bytes = kv_page_bytes(type, head_dim);
        const size_t page_floats = page_bytes / sizeof(float);
        float *key = new_floats(head_dim), *value = new_floats(head_dim);
        float *source = new_floats(page_floats), *want = new_floats(page_floats);
        float *got = new_floats(page_floats);
        for (size_t k = 0; k < head_dim; k++) {
            key[k] = (float)(k + from) * 0.37f - 3;
            value[k] = 5 - (float)(k * from) * 0.011f;
        }
        memset(source, 0x5a, page_bytes);
        kv_write_ref(type, head_dim, source, from, key, value);
        memset(want, 0x3c, page_bytes);
        kv_write_ref(type, head_dim, want, to, key, value);
        memset(got, 0x3c, page_bytes);
        kv_copy_token(type, head_dim, got, to, source, from);
        assert_true(same_bits("kv_copy_token", want, got, page_floats));
        memcpy(want, source, page_bytes);
        kv_write_ref(type, head_dim, want, to, key, value);
        kv_copy_token(type, head_dim, source, to, source, from);
        assert_true(same_bits("kv_copy_token", want, source, page_floats));
        free(key);
        free(value);
        free(source);
        free(want);
        free(got);
    }
}

static void kv_write_has_the_same_bits_in_every_twin(void **state)
{
    (void)state;
    static const size_t head_dims[] = {16, 32, 64, 96, 128, 256};
    for (size_t i = 0; i < N_OF(head_dims); i++)
        for (size_t slot = 0; slot < 32; slot++) {
            check_kv_write_twins(KV_BF16, head_dims[i], slot, 6 * 0x3f00);
            check_kv_write_twins(KV_F32, head_dims[i], slot, 6 * 0x3f00);
            check_kv_write_twins(KV_INT8, head_dims[i], slot, 6 * 0x3f00);
        }
    for (size_t from = 0; from < 6 * 0x10000; from += 2 * 256)
        check_kv_write_twins(KV_BF16, 256, from / 512 % 32, from);
}

/* The declared layout of int8 as array types; codes in float64, by the rule in the header. */
static void kv_write_puts_codes_and_scales_where_the_layout_says(void **state)
{
    (void)state;
    enum { HD = 48 };
    static struct {
        uint8_t key[HD / 4][32][4];
        int8_t value[16][HD][2];
        float key_scale[32], value_scale[32];
    } page, before;
    float key[HD], value[HD];
    assert_int_equal(sizeof page, kv_page_bytes(KV_INT8, HD));
    for (size_t slot = 0; slot < 32; slot++) {
        fill_random(slot, 3.0f, HD, key);
        fill_random(100 + slot, 0.01f, HD, value);
        double key_max = 0, value_max = 0;
        for (size_t i = 0; i < HD; i++) {
            key_max = fmax(key_max, fabs((double)key[i]));
            value_max = fmax(value_max, fabs((double)value[i]));
        }
        memset(&before, (int)(40 + slot), sizeof before);
        page = before;
        kv_write_ref(KV_INT8, HD, &page, slot, key, value);
        assert_true(fabs((double)page.key_scale[slot] * 127 / key_max - 1) < 1e-6);
        assert_true(fabs((double)page.value_scale[slot] * 127 / value_max - 1) < 1e-6);
        for (size_t i = 0; i < HD; i++) {
            const double k = (double)key[i] * 127 / key_max;
            const double v = (double)value[i] * 127 / value_max;
            assert_true(fabs(page.key[i / 4][slot][i % 4] - 128 - k) <= 0.5001);
            assert_true(fabs(page.value[slot / 2][i][slot % 2] - v) <= 0.5001);
        }
        /* With the slot's own places set back, nothing else has changed. */
        for (size_t i = 0; i < HD; i++) {
            page.key[i / 4][slot][i % 4] = before.key[0][0][0];
            page.value[slot / 2][i][slot % 2] = before.value[0][0][0];
        }
        page.key_scale[slot] = before.key_scale[slot];
        page.value_scale[slot] = before.value_scale[slot];
        assert_memory_equal(&page, &before, sizeof page);
    }
}

static void int8_codes_round_to_nearest_even(void **state)
{
    (void)state;
    /* The largest is 127, so that a code is the number itself, rounded. */
    static const struct {
        float value;
        int want;
    } cases[] = {{0.5f, 0},     {1.5f, 2},       {2.5f, 2},     {-0.5f, 0},    {-1.5f, -2},
                 {-2.5f, -2},   {0.50001f, 1},   {126.5f, 126}, {125.5f, 126}, {-126.5f, -126},
                 {127.0f, 127}, {-127.0f, -127}, {1e-30f, 0}};
    static uint8_t page[2 * 32 * (16 + 4)] __attribute__((aligned(64)));
    float x[16] = {[0] = 127.0f};
    for (size_t i = 0; i < N_OF(cases); i++) {
        x[5] = cases[i].value;
        kv_write_ref(KV_INT8, 16, page, 9, x, x);
        assert_int_equal(page[(1 * 32 + 9) * 4 + 1] - 128, cases[i].want);
        assert_int_equal((int8_t)page[32 * 16 + (4 * 16 + 5) * 2 + 1], cases[i].want);
    }
}

static void int8_vectors_without_a_code_have_a_scale_that_says_so(void **state)
{
    (void)state;
    static const struct {
        float value;
        bool is_nan;
    } cases[] = {{0.0f, false}, {-0.0f, false},   {0x1.fp-113f, false},
                 {NAN, true},   {INFINITY, true}, {-INFINITY, true}};
    static struct {
        uint8_t key[4][32][4];
        int8_t value[16][16][2];
        float key_scale[32], value_scale[32];
    } page;
    for (size_t i = 0; i < N_OF(cases); i++) {
        float x[16] = {[7] = cases[i].value};
        if (cases[i].is_nan)
            x[8] = 3.0f;
        memset(&page, 0x55, sizeof page);
        kv_write_ref(KV_INT8, 16, &page, 31, x, x);
        for (size_t d = 0; d < 16; d++) {
            assert_int_equal(page.key[d / 4][31][d % 4], 128);
            assert_int_equal(page.value[15][d][1], 0);
        }
        assert_int_equal(isnan(page.key_scale[31]) != 0, cases[i].is_nan);
        assert_int_equal(isnan(page.value_scale[31]) != 0, cases[i].is_nan);
        if (!cases[i].is_nan)
            assert_true(page.key_scale[31] == 0.0f && page.value_scale[31] == 0.0f);
    }
}

/* ---- argmax */

static void argmax_takes_the_first_of_the_greatest(void **state)
{
    (void)state;
    static const struct {
        float x[20];
        size_t n, want;
    } cases[] = {
        {{5}, 1, 0},
        {{NAN}, 1, 0},
        {{-INFINITY}, 1, 0},
        {{1, 3, 3, 2}, 4, 1},
        {{NAN, -INFINITY}, 2, 1},
        {{NAN, NAN, NAN, -7, NAN}, 5, 3},
        {{NAN, NAN}, 2, 0},
        {{-INFINITY, -INFINITY, NAN}, 3, 0},
        {{-0.0f, 0.0f}, 2, 0},
        {{0.0f, -0.0f}, 2, 0},
        {{1, 2, INFINITY, 3, INFINITY}, 5, 2},
        {{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1}, 20, 19},
        {{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9, 9, 0, 0, 9}, 20, 15},
        {{-1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1}, 17, 0},
    };
    for (size_t isa = 0; isa < N_TWINS; isa++)
        for (size_t i = 0; twin_runs(isa) && i < N_OF(cases); i++) {
            float *x = new_floats(cases[i].n); /* nothing behind the last one may be read */
            memcpy(x, cases[i].x, cases[i].n * sizeof *x);
            assert_int_equal(argmax_twins[isa](x, cases[i].n), cases[i].want);
            free(x);
        }
}

/* Few different values, so that the greatest stands in many places. */
static void argmax_twins_agree_on_ties_and_nan(void **state)
{
    (void)state;
    for (size_t n = 1; n < 200; n++) {
        float *x = new_floats(n);
        for (size_t i = 0; i < n; i++) {
            const float value = floorf(random_float(n, i, 4.0f));
            x[i] = value == 3.0f ? NAN : value == -4.0f ? -INFINITY : value;
        }
        const size_t want = argmax_ref(x, n);
        for (size_t i = 0; i < n; i++)
            assert_false(x[i] > x[want] || (i < want && x[i] == x[want]));
        for (size_t isa = 1; isa < N_TWINS; isa++)
            if (twin_runs(isa))
                assert_int_equal(argmax_twins[isa](x, n), want);
        free(x);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exp_is_within_2e_7_of_the_c_library),
        cmocka_unit_test(exp_of_special_values_is_as_promised),
        cmocka_unit_test(exp_has_the_same_bits_in_every_twin),
        cmocka_unit_test(rmsnorm_is_its_formula_in_every_twin),
        cmocka_unit_test(rmsnorm_of_zeros_is_zeros),
        cmocka_unit_test(silu_mul_is_its_formula_in_every_twin),
        cmocka_unit_test(bias_is_added_to_rows_and_not_between_them),
        cmocka_unit_test(rope_rotates_pairs_and_leaves_the_rest),
        cmocka_unit_test(rope_has_the_same_bits_in_every_twin),
        cmocka_unit_test(page_bytes_are_keys_and_values_of_32_tokens),
        cmocka_unit_test(kv_write_puts_every_element_where_the_layout_says),
        cmocka_unit_test(kv_write_rounds_to_bfloat16_nearest_even),
        cmocka_unit_test(kv_write_has_the_same_bits_in_every_twin),
        cmocka_unit_test(a_copied_token_is_the_one_that_was_written),
        cmocka_unit_test(kv_write_puts_codes_and_scales_where_the_layout_says),
        cmocka_unit_test(int8_codes_round_to_nearest_even),
        cmocka_unit_test(int8_vectors_without_a_code_have_a_scale_that_says_so),
        cmocka_unit_test(argmax_takes_the_first_of_the_greatest),
        cmocka_unit_test(argmax_twins_agree_on_ties_and_nan),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
