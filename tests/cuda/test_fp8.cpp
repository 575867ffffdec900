/*
 * E4M3 rows: the format itself against a table in double, rounding to it, and products of it by
 * both ways. A number as first argument seeds the random data.
 */
#include <math.h>

#include "count.cuh"
#include "device_int.cuh"
#include "e4m3.cuh"
#include "emu/emu.h"
#include "product_rig.h"

enum { CODES = 256 };

/* By the format's words: sign, four bits of exponent, three of mantissa. */
static double value_of_code(int code)
{
    const int exponent = code >> 3 & 15;
    const int mantissa = code & 7;
    if (exponent == 15 && mantissa == 7)
        return NAN;
    const double size =
        exponent == 0 ? ldexp(mantissa, -9) : ldexp(8 + mantissa, exponent - 10);
    return code & 0x80 ? -size : size;
}

/* By search: the nearest code, of two as near the one with an even mantissa. */
static int nearest_code(double value)
{
    const int sign = signbit(value) ? 0x80 : 0;
    int best = 0;
    if (isnan(value))
        return 0x7f;
    for (int code = 1; code < 0x7f; code++) {
        const double off = fabs(fabs(value) - value_of_code(code));
        const double best_off = fabs(fabs(value) - value_of_code(best));
        if (off < best_off || (off == best_off && code % 2 == 0))
            best = code;
    }
    return sign | (isinf(value) ? 0x7e : best);
}

/* ------------------------------------------------------------------ the format */

KERNEL void decode_codes(float *floats, uint32_t *pairs)
{
    const int code = (int)threadIdx.x;
    floats[code] = float_of_e4m3((uint8_t)code);
    pairs[code] = bf16_pair_of_e4m3((uint32_t)(code | (255 - code) << 8));
}

static void every_code_is_the_number_that_it_says(void **)
{
    float got[CODES];
    uint32_t pairs[CODES];
    float *floats = (float *)device_alloc(sizeof(got));
    uint32_t *device_pairs = (uint32_t *)device_alloc(sizeof(pairs));
    LAUNCH(decode_codes, 1, CODES, 0, nullptr, floats, device_pairs);
    copy_to_host(nullptr, got, floats, sizeof(got));
    copy_to_host(nullptr, pairs, device_pairs, sizeof(pairs));
    stream_wait(nullptr);
    for (int code = 0; code < CODES; code++) {
        const double want = value_of_code(code);
        const double other = value_of_code(255 - code);
        assert_true(isnan(want) ? isnan(got[code]) : (double)got[code] == want);
        if (!isnan(want))
            assert_true((double)quant_bf16_to_f32((uint16_t)pairs[code]) == want);
        if (!isnan(other))
            assert_true((double)quant_bf16_to_f32((uint16_t)(pairs[code] >> 16)) == other);
    }
    device_free(floats);
    device_free(device_pairs);
}

KERNEL void encode_values(const float *values, int n, uint32_t *pairs)
{
    const int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (i < n)
        pairs[i] = to_e4m3_pair(values[i], values[n - 1 - i]);
}

static void assert_encoded(const float *values, int n)
{
    const size_t bytes = (size_t)n * sizeof(uint32_t);
    float *there = (float *)on_device(values, bytes);
    uint32_t *pairs_there = (uint32_t *)device_alloc(bytes);
    uint32_t *pairs = (uint32_t *)malloc(bytes);
    LAUNCH(encode_values, (n + 127) / 128, 128, 0, nullptr, there, n, pairs_there);
    copy_to_host(nullptr, pairs, pairs_there, bytes);
    stream_wait(nullptr);
    for (int i = 0; i < n; i++) {
        assert_int_equal(pairs[i] & 0xff, nearest_code((double)values[i]));
        assert_int_equal(pairs[i] >> 8, nearest_code((double)values[n - 1 - i]));
    }
    free(pairs);
    device_free(pairs_there);
    device_free(there);
}

/* Every number of the format, what lies midway between two, and a little to each side of both;
 * then the ends of the range, and numbers of all sizes. */
static void rounding_takes_the_nearest_and_the_even_one_of_two(void **)
{
    enum { N = 2 * 127 * 6 + 12 + 2000 };
    static float values[N];
    int n = 0;
    for (int sign = 0; sign < 2; sign++)
        for (int code = 0; code < 127; code++) {
            const double here = value_of_code(code);
            const double next = code == 126 ? 480 : value_of_code(code + 1);
            const float at[2] = {(float)here, (float)((here + next) / 2)};
            for (int i = 0; i < 2; i++) {
                const float value = sign ? -at[i] : at[i];
                values[n++] = value;
                values[n++] = nextafterf(value, INFINITY);
                values[n++] = nextafterf(value, -INFINITY);
            }
        }
    static const float ENDS[] = {464.0f, 465.0f, 1e38f, INFINITY, NAN, 1e-40f};
    for (const float end : ENDS) {
        values[n++] = end;
        values[n++] = -end;
    }
    while (n < N)
        values[n++] = random_float(-1, 1) * exp2f(random_float(-14, 12));
    assert_encoded(values, N);
}

/* ------------------------------------------------------------------ rows */

struct coded {
    matrix m; /* on the device */
    uint8_t *codes;
    float *scales;
};

static coded make_coded(const matrix &from)
{
    coded c = {from, nullptr, nullptr};
    const size_t bytes = (size_t)from.n_rows * (size_t)from.n_cols;
    const size_t scale_bytes = (size_t)from.n_rows * sizeof(float);
    c.m.codes = (uint8_t *)device_alloc(bytes);
    c.m.scales = (float *)device_alloc(scale_bytes);
    quantize_fp8(nullptr, from, (uint8_t *)c.m.codes, (float *)c.m.scales);
    c.codes = (uint8_t *)malloc(bytes);
    c.scales = (float *)malloc(scale_bytes);
    copy_to_host(nullptr, c.codes, c.m.codes, bytes);
    copy_to_host(nullptr, c.scales, c.m.scales, scale_bytes);
    stream_wait(nullptr);
    c.m.blocks = nullptr;
    c.m.rows = nullptr;
    return c;
}

static void free_coded(coded *c)
{
    device_free((void *)c->m.codes);
    device_free((void *)c->m.scales);
    free(c->codes);
    free(c->scales);
}

/* The scale is the largest over 448 to a float's precision, each code the nearest. */
static void assert_row_coded(const float *values, int n, const uint8_t *codes, float scale)
{
    double largest = 0;
    for (int i = 0; i < n; i++)
        largest = fmax(largest, fabs((double)values[i]));
    const double want = largest == 0 ? 1 : largest / 448;
    assert_true(fabs((double)scale - want) <= want * 0x1p-23);
    for (int i = 0; i < n; i++) {
        /* Rounded to float first, as the device does: a tie may come of it. */
        const float ratio = (float)((double)values[i] / (double)scale);
        assert_int_equal(codes[i], nearest_code((double)ratio));
    }
}

static void rows_of_every_type_are_coded_by_the_formula(void **)
{
    static const int WIDTHS[] = {256, 768, 2304};
    for (quant_type type : ALL_TYPES)
        for (int width : WIDTHS) {
            stored w = make_stored(type, 3, width, false);
            coded c = make_coded(w.m);
            for (size_t row = 0; row < 3; row++) {
                const size_t at = row * (size_t)width;
                assert_row_coded(w.values + at, width, c.codes + at, c.scales[row]);
            }
            free_coded(&c);
            free_stored(&w);
        }
}

static stored stored_floats(const float *values, int n_rows, int n_cols)
{
    stored w = make_stored(QUANT_F32, n_rows, n_cols, false);
    memcpy(w.blocks, values, w.bytes);
    read_values(&w);
    copy_to_device(nullptr, (void *)w.m.blocks, w.blocks, w.bytes);
    stream_wait(nullptr);
    return w;
}

static void rows_without_a_size_have_scales_all_the_same(void **)
{
    float values[4][32] = {};
    for (int i = 0; i < 32; i++)
        values[1][i] = i == 3 ? -0.0f : 1e-45f * (float)i;
    values[2][31] = NAN;
    values[3][7] = -1e30f;
    values[3][8] = 1.0f;
    stored w = stored_floats(values[0], 4, 32);
    coded c = make_coded(w.m);
    assert_true(c.scales[0] == 1.0f && c.scales[1] == 1.0f);
    for (int i = 0; i < 64; i++)
        assert_int_equal(c.codes[i] & 0x7f, 0);
    assert_true(isnan(c.scales[2]));
    assert_int_equal(c.codes[3 * 32 + 7], 0xfe);
    assert_int_equal(c.codes[3 * 32 + 8], 0);
    free_coded(&c);
    free_stored(&w);
}

/* ------------------------------------------------------------------ products */

static const product_way WAYS[] = {WAY_OWN_FP8, WAY_LT_FP8};
static const product_out KINDS[] = {PRODUCT_F32, PRODUCT_F32_ADD, PRODUCT_BF16};

/* A device before 8.9 has the own kernel alone. */
static bool has_way(product_way way)
{
    device_facts facts;
    return way == WAY_OWN_FP8 || (device_use(0, &facts) && facts.compute_capability >= 89);
}

static products *open_products(int n_rows_max, int n_inputs_max, int n_outputs_max)
{
    products_options o = {};
    o.n_rows_max = n_rows_max;
    o.fp8_inputs_max = n_inputs_max;
    o.fp8_outputs_max = n_outputs_max;
    products *p = nullptr;
    struct err e = {};
    assert_int_equal(products_open(o, &p, &e), 0);
    return p;
}

/* What a product multiplies, in double: x as it is, or coded. */
struct factors {
    const coded *w;
    const inputs *x;
    const coded *x_coded; /* or NULL */
};

static double x_at(const factors &f, int row, int k)
{
    const size_t at = (size_t)row * (size_t)f.x->n_cols + (size_t)k;
    if (!f.x_coded)
        return (double)quant_bf16_to_f32(f.x->host[at]);
    return value_of_code(f.x_coded->codes[at]) * (double)f.x_coded->scales[row];
}

static double w_at(const factors &f, int output, int k)
{
    const size_t at = (size_t)output * (size_t)f.w->m.n_cols + (size_t)k;
    return value_of_code(f.w->codes[at]) * (double)f.w->scales[output];
}

/* As product_rig.h's: sums of K terms in some order, tensor cores that cut off. */
static bool is_output_right(const factors &f, const float *bias, const outputs &y, int row,
                            int output)
{
    const int n_inputs = f.w->m.n_cols;
    const size_t at = (size_t)row * (size_t)y.y_stride + (size_t)output;
    double sum = 0;
    double size = 0;
    for (int k = 0; k < n_inputs; k++) {
        const double term = x_at(f, row, k) * w_at(f, output, k);
        sum += term;
        size += fabs(term);
    }
    const double added = (bias ? (double)bias[output] : 0) +
                         (y.kind == PRODUCT_F32_ADD ? output_at(y.before, y.kind, at) : 0);
    sum += added;
    size += fabs(added);
    const double rounding = y.kind == PRODUCT_BF16 ? 1.01 * 0x1p-8 * fabs(sum) : 0;
    const double off = fabs(output_at(y.after, y.kind, at) - sum);
    return off <= (double)(n_inputs + 40) * 0x1p-23 * size + rounding;
}

static int count_wrong_outputs(const factors &f, const float *bias, const outputs &y)
{
    const size_t bytes = element_bytes(y.kind);
    int n_wrong = 0;
    for (int row = 0; row < y.n_rows; row++)
        for (int output = 0; output < y.y_stride; output++) {
            const size_t at = ((size_t)row * (size_t)y.y_stride + (size_t)output) * bytes;
            const bool is_right = output < f.w->m.n_rows
                                      ? is_output_right(f, bias, y, row, output)
                                      : memcmp(y.before + at, y.after + at, bytes) == 0;
            n_wrong += !is_right;
        }
    return n_wrong;
}

static int multiply_coded(products *p, const coded &w, const inputs &x, int first_row,
                          const float *bias, outputs *y, struct err *e)
{
    stored view = {};
    view.m = w.m;
    return multiply_rows(p, view, x, first_row, bias, y, e);
}

static coded code_inputs(const inputs &x)
{
    matrix m = {};
    m.type = QUANT_BF16;
    m.n_rows = x.n_rows;
    m.n_cols = x.n_cols;
    m.blocks = (const uint8_t *)x.device;
    return make_coded(m);
}

/* How many outputs of one product are wrong. */
static int wrong_by(products *p, product_way way, const coded &w, const inputs &x,
                    product_out kind, bool with_bias, int padding)
{
    const int n = w.m.n_rows;
    float *bias = nullptr;
    float *bias_there = nullptr;
    if (with_bias) {
        bias = (float *)malloc((size_t)n * sizeof(float));
        for (int i = 0; i < n; i++)
            bias[i] = random_float(-1, 1);
        bias_there = (float *)on_device(bias, (size_t)n * sizeof(float));
    }
    coded x_coded = code_inputs(x);
    outputs y = make_outputs(x.n_rows, n + padding, kind);
    struct err e = {};
    products_force(p, way);
    assert_int_equal(multiply_coded(p, w, x, 0, bias_there, &y, &e), 0);
    const factors f = {&w, &x, way == WAY_LT_FP8 ? &x_coded : nullptr};
    const int n_wrong = count_wrong_outputs(f, bias, y);
    free_outputs(&y);
    free_coded(&x_coded);
    free(bias);
    device_free(bias_there);
    return n_wrong;
}

static void both_ways_agree_with_double(void **)
{
    static const struct {
        int n_outputs, n_inputs, n_rows;
    } SHAPES[] = {{16, 32, 1},  {16, 256, 3},  {48, 96, 8},   {80, 512, 9},
                  {32, 64, 17}, {96, 576, 40}, {8208, 64, 5}, {112, 1536, 33}};
    products *p = open_products(64, 2048, 8208);
    int turn = 0;
    for (const auto &shape : SHAPES)
        for (product_way way : WAYS) {
            if (!has_way(way))
                continue;
            stored w = make_stored(QUANT_F32, shape.n_outputs, shape.n_inputs, false);
            inputs x = make_inputs(shape.n_rows, shape.n_inputs);
            coded c = make_coded(w.m);
            const bool with_bias = turn % 4 < 2;
            assert_int_equal(wrong_by(p, way, c, x, KINDS[turn % 3], with_bias, turn % 5), 0);
            turn++;
            free_coded(&c);
            free_inputs(&x);
            free_stored(&w);
        }
    products_close(p);
}

/* All kinds with and without bias, on rows that are wide and on ones that are not. */
static void results_of_every_kind_are_finished(void **)
{
    if (!has_way(WAY_LT_FP8))
        skip();
    products *p = open_products(64, 64, 64);
    stored w = make_stored(QUANT_F16, 48, 64, false);
    inputs x = make_inputs(19, 64);
    coded c = make_coded(w.m);
    for (product_out kind : KINDS)
        for (int form = 0; form < 4; form++)
            assert_int_equal(wrong_by(p, WAY_LT_FP8, c, x, kind, form & 1, form & 2 ? 3 : 4),
                             0);
    free_coded(&c);
    free_inputs(&x);
    free_stored(&w);
    products_close(p);
}

/* The own kernel has no use for a multiple of 16. */
static void the_own_kernel_takes_any_number_of_outputs(void **)
{
    products *p = open_products(64, 64, 64);
    stored w = make_stored(QUANT_BF16, 37, 96, false);
    inputs x = make_inputs(5, 96);
    coded c = make_coded(w.m);
    struct err e = {};
    outputs y = make_outputs(5, 37, PRODUCT_F32);
    assert_int_equal(wrong_by(p, WAY_OWN_FP8, c, x, PRODUCT_F32_ADD, true, 1), 0);
    products_force(p, WAY_LT_FP8);
    assert_int_equal(multiply_coded(p, c, x, 0, nullptr, &y, &e), ERR_UNSUPPORTED);
    free_outputs(&y);
    free_coded(&c);
    free_inputs(&x);
    free_stored(&w);
    products_close(p);
}

/* The twin of the checks above: of one code, its next one is seen. */
static void a_wrong_code_is_seen(void **)
{
    products *p = open_products(16, 64, 32);
    stored w = make_stored(QUANT_F32, 32, 64, false);
    inputs x = make_inputs(2, 64);
    for (size_t i = 0; i < 128; i++)
        x.host[i] = 0x3f80;
    copy_to_device(nullptr, x.device, x.host, 128 * sizeof(uint16_t));
    coded c = make_coded(w.m);
    c.codes[7 * 64 + 5] ^= 0x08; /* the device has the old one */
    for (product_way way : WAYS)
        if (has_way(way))
            assert_int_equal(wrong_by(p, way, c, x, PRODUCT_F32, false, 0), 2);
    free_coded(&c);
    free_inputs(&x);
    free_stored(&w);
    products_close(p);
}

/* Sums of 256 outputs at once: a matrix of 608 goes over in three slices. */
static void slices_make_one_product(void **)
{
    if (!has_way(WAY_LT_FP8))
        skip();
    products *p = open_products(32, 64, 256);
    assert_int_equal(fp8_slice_outputs((size_t)32 * 256 * 4, 32, 608), 256);
    stored w = make_stored(QUANT_F32, 608, 64, false);
    inputs x = make_inputs(20, 64);
    coded c = make_coded(w.m);
    for (product_out kind : KINDS)
        assert_int_equal(wrong_by(p, WAY_LT_FP8, c, x, kind, true, 0), 0);
    free_coded(&c);
    free_inputs(&x);
    free_stored(&w);
    products_close(p);
}

/* An 8B model's gate and up: whole for few rows, slices of 32 MiB of sums for many. */
static void slices_follow_the_number_of_rows(void **)
{
    const size_t most = (size_t)32 << 20;
    products_options o = {};
    o.n_rows_max = 4096;
    o.fp8_inputs_max = 14336;
    o.fp8_outputs_max = 28672;
    assert_int_equal(fp8_scratch_bytes(o), (size_t)4096 * 14336 + 4096 * 4 + most);
    assert_int_equal(fp8_slice_outputs(most, 64, 28672), 28672);
    assert_int_equal(fp8_slice_outputs(most, 512, 28672), 16384);
    assert_int_equal(fp8_slice_outputs(most, 513, 28672), 8192);
    assert_int_equal(fp8_slice_outputs(most, 4096, 28672), 2048);
    o.fp8_inputs_max = 0;
    assert_int_equal(fp8_scratch_bytes(o), 0);
}

/* ------------------------------------------------------------------ bits */

/* Rows of x alone and in company against all of them at once. One row is far larger than the
 * others: a scale that it shared with them would show. */
static void assert_rows_keep_their_bits(product_way way, int n_rows)
{
    static const struct {
        int first, n;
    } PARTS[] = {{0, 1}, {9, 1}, {2, 7}, {3, 9}, {1, 17}, {4, 34}};
    products *p = open_products(64, 576, 80);
    stored w = make_stored(QUANT_Q8_0, 80, 576, false);
    inputs x = make_inputs(n_rows, 576);
    for (size_t i = 0; i < 576; i++)
        x.host[3 * 576 + i] = quant_f32_to_bf16(random_float(-3e4f, 3e4f));
    copy_to_device(nullptr, x.device, x.host, (size_t)n_rows * 576 * sizeof(uint16_t));
    coded c = make_coded(w.m);
    struct err e = {};
    products_force(p, way);
    outputs all = make_outputs(n_rows, 80, PRODUCT_F32);
    assert_int_equal(multiply_coded(p, c, x, 0, nullptr, &all, &e), 0);
    for (const auto &part : PARTS) {
        outputs y = make_outputs(part.n, 80, PRODUCT_F32);
        assert_int_equal(multiply_coded(p, c, x, part.first, nullptr, &y, &e), 0);
        assert_memory_equal(y.after, all.after + (size_t)part.first * 80 * sizeof(float),
                            y.bytes);
        free_outputs(&y);
    }
    free_outputs(&all);
    free_coded(&c);
    free_inputs(&x);
    free_stored(&w);
    products_close(p);
}

static void bits_of_a_row_do_not_depend_on_its_company(void **)
{
    assert_rows_keep_their_bits(WAY_OWN_FP8, 38);
}

/* cuBLASLt itself promises nothing of the kind, so this is for its twin alone. */
static void large_products_code_each_row_by_itself(void **)
{
    device_facts facts;
    if (!device_use(0, &facts) || strcmp(facts.name, "cuda-emu") != 0)
        skip();
    assert_rows_keep_their_bits(WAY_LT_FP8, 38);
}

/* ------------------------------------------------------------------ choices */

static void the_way_follows_rows(void **)
{
    product_case c = {};
    c.type = QUANT_F16;
    c.has_codes = true;
    c.n_rows = 32;
    assert_int_equal(product_way_of(c), WAY_OWN_FP8);
    c.n_rows = 33;
    assert_int_equal(product_way_of(c), WAY_LT_FP8);
    c.bias_to_bf16 = true;
    assert_int_equal(product_way_of(c), WAY_LT_FP8);
    c.exact = true;
    for (c.n_rows = 1; c.n_rows < 5000; c.n_rows += 7)
        assert_int_equal(product_way_of(c), WAY_OWN_FP8);
}

static kept_form form(quant_type type, size_t n_rows, bool fp8)
{
    device_options o = {};
    o.fp8 = fp8;
    const device_tensor t = {type, n_rows, 256, nullptr};
    return form_in_layer(&t, &o);
}

static void what_is_larger_than_fp8_becomes_fp8(void **)
{
    for (quant_type type : ALL_TYPES) {
        const bool has_kernel = type == QUANT_Q4_0 || type == QUANT_Q4_1 || type == QUANT_Q8_0;
        const bool is_small = type == QUANT_Q4_0 || type == QUANT_Q4_1;
        assert_int_equal(form(type, 64, false), has_kernel ? KEPT_BLOCKS : KEPT_ROWS);
        assert_int_equal(form(type, 64, true), is_small ? KEPT_BLOCKS : KEPT_FP8);
    }
    assert_int_equal(form(QUANT_F16, 72, true), KEPT_ROWS);
}

static void a_device_without_fp8_says_what_to_do(void **)
{
    device_options o = {};
    device_info info = {};
    struct err e = {};
    strcpy(info.name, "NVIDIA A100");
    info.compute_capability = 80;
    assert_int_equal(device_check_fp8(&o, &info, &e), 0);
    o.fp8 = true;
    assert_int_equal(device_check_fp8(&o, &info, &e), ERR_UNSUPPORTED);
    assert_non_null(strstr(e.text, "NVIDIA A100 has compute capability 8.0"));
    assert_non_null(strstr(e.text, "need 8.9 or more"));
    assert_non_null(strstr(e.text, "device.weights=stored"));
    info.compute_capability = 89;
    assert_int_equal(device_check_fp8(&o, &info, &e), 0);
}

/* 112 x 64 weights and 40 rows of x, by hand: x is coded, multiplied in 48 rows, finished. */
static void a_product_says_what_it_costs(void **)
{
    if (!has_way(WAY_LT_FP8))
        skip();
    products *p = open_products(64, 64, 112);
    stored w = make_stored(QUANT_F32, 112, 64, false);
    inputs x = make_inputs(40, 64);
    coded c = make_coded(w.m);
    device_counters counters = {};
    struct err e = {};
    outputs y = make_outputs(40, 112, PRODUCT_F32_ADD);
    count_into(&counters);
    assert_int_equal(multiply_coded(p, c, x, 0, nullptr, &y, &e), 0);
    count_into(nullptr);
    const device_cost *cost = &counters.of[DEVICE_PRODUCT];
    assert_int_equal(cost->launches, 3);
    assert_int_equal(cost->bytes_read, 40 * 64 * 2 + (112 * 64 + 48 * 64) +
                                           (40 * 112 + 112 + 40) * 4 + 40 * 112 * 4);
    assert_int_equal(cost->bytes_written, (40 * 64 + 40 * 4) + 48 * 112 * 4 + 40 * 112 * 4);
    assert_int_equal(cost->flops, 2 * 48 * 112 * 64);
    counters = {};
    outputs few = make_outputs(7, 112, PRODUCT_BF16);
    count_into(&counters);
    assert_int_equal(multiply_coded(p, c, x, 0, nullptr, &few, &e), 0);
    count_into(nullptr);
    assert_int_equal(cost->launches, 1);
    assert_int_equal(cost->bytes_read, 112 * (64 + 4) + 7 * 64 * 2);
    free_outputs(&few);
    free_outputs(&y);
    free_coded(&c);
    free_inputs(&x);
    free_stored(&w);
    products_close(p);
}

int main(int argc, char **argv)
{
    if (argc > 1)
        random_seed = strtoull(argv[1], nullptr, 10);
    print_message("random data of seed %llu\n", (unsigned long long)random_seed);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_code_is_the_number_that_it_says),
        cmocka_unit_test(rounding_takes_the_nearest_and_the_even_one_of_two),
        cmocka_unit_test(rows_of_every_type_are_coded_by_the_formula),
        cmocka_unit_test(rows_without_a_size_have_scales_all_the_same),
        cmocka_unit_test(both_ways_agree_with_double),
        cmocka_unit_test(results_of_every_kind_are_finished),
        cmocka_unit_test(the_own_kernel_takes_any_number_of_outputs),
        cmocka_unit_test(a_wrong_code_is_seen),
        cmocka_unit_test(slices_make_one_product),
        cmocka_unit_test(slices_follow_the_number_of_rows),
        cmocka_unit_test(bits_of_a_row_do_not_depend_on_its_company),
        cmocka_unit_test(large_products_code_each_row_by_itself),
        cmocka_unit_test(the_way_follows_rows),
        cmocka_unit_test(what_is_larger_than_fp8_becomes_fp8),
        cmocka_unit_test(a_device_without_fp8_says_what_to_do),
        cmocka_unit_test(a_product_says_what_it_costs),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
