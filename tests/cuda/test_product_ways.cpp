/*
 * Which way a product takes, what it costs, what is refused, and matrices that are dequantised
 * as a whole.
 */
#include "count.cuh"
#include "emu/emu.h"
#include "product_rig.h"

static product_case case_of(quant_type type, bool has_blocks, bool has_rows, int n_rows)
{
    product_case c = {};
    c.type = type;
    c.has_blocks = has_blocks;
    c.has_rows = has_rows;
    c.n_rows = n_rows;
    return c;
}

static void the_way_follows_rows_and_forms(void **)
{
    product_case c = case_of(QUANT_Q4_0, true, false, 64);
    c.has_scratch = true;
    assert_int_equal(product_way_of(c), WAY_OWN_BLOCKS);
    c.n_rows = 65;
    assert_int_equal(product_way_of(c), WAY_LT_SCRATCH);
    c.has_scratch = false;
    assert_int_equal(product_way_of(c), WAY_OWN_BLOCKS);
    c.has_rows = true;
    assert_int_equal(product_way_of(c), WAY_LT_ROWS);

    assert_int_equal(product_way_of(case_of(QUANT_BF16, false, true, 16)), WAY_OWN_ROWS);
    assert_int_equal(product_way_of(case_of(QUANT_BF16, false, true, 17)), WAY_LT_ROWS);
    assert_int_equal(product_way_of(case_of(QUANT_Q6_K, true, true, 1)), WAY_OWN_ROWS);
    assert_int_equal(product_way_of(case_of(QUANT_Q6_K, true, false, 1)), WAY_NONE);

    c.bias_to_bf16 = true;
    assert_int_equal(product_way_of(c), WAY_OWN_BLOCKS);
}

static void exact_mode_has_one_way_for_all_rows(void **)
{
    for (quant_type type : ALL_TYPES) {
        for (int forms = 1; forms < 4; forms++) {
            product_case c = case_of(type, forms & 1, forms & 2, 1);
            c.has_scratch = true;
            c.exact = true;
            const product_way way = product_way_of(c);
            assert_true(way == WAY_OWN_BLOCKS || way == WAY_OWN_ROWS || way == WAY_OWN_SCRATCH);
            for (c.n_rows = 2; c.n_rows < 5000; c.n_rows += 7)
                assert_int_equal(product_way_of(c), way);
        }
    }
}

static products *open_products(size_t scratch_bytes)
{
    products_options o = {};
    o.n_rows_max = 100;
    o.scratch_bytes = scratch_bytes;
    products *p = nullptr;
    struct err e = {};
    assert_int_equal(products_open(o, &p, &e), 0);
    return p;
}

static int try_product(products *p, quant_type type, int n_outputs, int n_inputs, int n_rows,
                       product_out kind, struct err *e)
{
    stored w = make_stored(type, n_outputs, n_inputs, false);
    inputs x = make_inputs(n_rows, n_inputs);
    outputs y = make_outputs(n_rows, n_outputs, kind);
    const int code = multiply_rows(p, w, x, 0, nullptr, &y, e);
    free_stored(&w);
    free_inputs(&x);
    free_outputs(&y);
    return code;
}

static void what_cannot_be_done_is_told(void **)
{
    products *none = open_products(0);
    products *small = open_products(1000);
    struct err width = {};
    assert_int_equal(try_product(none, QUANT_F32, 8, 40, 1, PRODUCT_F32, &width),
                     ERR_UNSUPPORTED);
    assert_non_null(strstr(width.text, "40 inputs"));
    struct err form = {};
    assert_int_equal(try_product(none, QUANT_Q5_K, 8, 256, 1, PRODUCT_F32, &form),
                     ERR_UNSUPPORTED);
    assert_non_null(strstr(form.text, "Q5_K"));
    struct err room = {};
    assert_int_equal(try_product(small, QUANT_Q5_K, 8, 256, 1, PRODUCT_F32, &room), ERR_LIMIT);
    assert_non_null(strstr(room.text, "1000 bytes"));
    products_close(none);
    products_close(small);
}

/* 32 outputs are fewer than a slice has, and all of the matrix. */
static void a_small_matrix_fits_a_scratch_of_its_size(void **)
{
    products *p = open_products(32 * 64 * 2);
    struct err e = {};
    if (try_product(p, QUANT_Q8_0, 32, 64, 70, PRODUCT_F32, &e) != 0)
        fail_msg("%s", e.text);
    assert_int_equal(try_product(p, QUANT_Q8_0, 33, 64, 70, PRODUCT_F32, &e), ERR_LIMIT);
    products_close(p);
}

static void no_rows_are_no_work(void **)
{
    products *p = open_products(0);
    struct err e = {};
    const uint64_t launches = emu_count().launches;
    matrix w = {};
    w.type = QUANT_Q4_0;
    w.n_rows = w.n_cols = 32;
    assert_int_equal(product(p, nullptr, w, nullptr, 0, nullptr, PRODUCT_F32, nullptr, 32, &e),
                     0);
    assert_int_equal(emu_count().launches, launches);
    products_close(p);
}

/* Neither launched nor counted, whichever way the product goes. */
static void what_is_only_prepared_is_not_computed(void **)
{
    products *p = open_products(64 * 64 * 2);
    stored w = make_stored(QUANT_Q8_0, 64, 64, false);
    bf16 *x = (bf16 *)device_alloc(70 * 64 * sizeof(bf16));
    float *y = (float *)device_alloc(70 * 64 * sizeof(float));
    device_counters counters = {}, none = {};
    struct err e = {};
    const uint64_t launches = emu_count().launches;
    count_into(&counters);
    const int rows[] = {1, 70};
    for (int n_rows : rows)
        assert_int_equal(
            product_prepare(p, nullptr, w.m, x, n_rows, nullptr, PRODUCT_F32, y, 64, &e), 0);
    assert_int_equal(emu_count().launches, launches);
    assert_memory_equal(&counters, &none, sizeof counters);
    assert_int_equal(product(p, nullptr, w.m, x, 70, nullptr, PRODUCT_F32, y, 64, &e), 0);
    count_into(nullptr);
    assert_int_equal(emu_count().launches - launches,
                     2); /* the twin: blocks to rows, product */
    device_free(x);
    device_free(y);
    free_stored(&w);
    products_close(p);
}

/* 100 x 64 weights of 18 bytes each 32, 7 rows of x, all by hand. */
static void a_product_says_what_it_costs(void **)
{
    products *p = open_products(100 * 256 * 2);
    device_counters counters = {};
    struct err e = {};
    count_into(&counters);
    assert_int_equal(try_product(p, QUANT_Q4_0, 100, 64, 7, PRODUCT_F32_ADD, &e), 0);
    const device_cost *cost = &counters.of[DEVICE_PRODUCT];
    assert_int_equal(cost->launches, 1);
    assert_int_equal(cost->bytes_read, 100 * 36 + 7 * 64 * 2 + 7 * 100 * 4);
    assert_int_equal(cost->bytes_written, 7 * 100 * 4);
    assert_int_equal(cost->flops, 2 * 7 * 100 * 64);

    counters = {};
    assert_int_equal(try_product(p, QUANT_Q8_0, 64, 64, 70, PRODUCT_BF16, &e), 0);
    assert_int_equal(cost->bytes_read, 64 * 64 * 2 + 70 * 64 * 2);
    assert_int_equal(cost->bytes_written, 70 * 64 * 2);
    assert_int_equal(counters.of[DEVICE_DEQUANTIZE].launches, 1);
    assert_int_equal(counters.of[DEVICE_DEQUANTIZE].bytes_read, 64 * 68);
    assert_int_equal(counters.of[DEVICE_DEQUANTIZE].bytes_written, 64 * 64 * 2);
    count_into(nullptr);
    products_close(p);
}

static void assert_dequantised(quant_type type, int n_rows, int n_cols)
{
    stored w = make_stored(type, n_rows, n_cols, false);
    const size_t bytes = (size_t)n_rows * (size_t)n_cols * sizeof(uint16_t);
    bf16 *rows = (bf16 *)device_alloc(bytes);
    uint16_t *got = (uint16_t *)malloc(bytes);
    dequantize(nullptr, w.m, rows);
    copy_to_host(nullptr, got, rows, bytes);
    stream_wait(nullptr);
    assert_memory_equal(got, w.rounded, bytes);
    free(got);
    device_free(rows);
    free_stored(&w);
}

static void dequantised_rows_are_the_exact_values_rounded(void **)
{
    for (quant_type type : ALL_TYPES)
        assert_dequantised(type, 13, 768);
    assert_dequantised(QUANT_Q8_0, 5, 32);
    assert_dequantised(QUANT_F32, 5, 2056);
    assert_dequantised(QUANT_F32, 7, 99);
    assert_dequantised(QUANT_F16, 7, 99);
    assert_dequantised(QUANT_BF16, 7, 99);
}

int main()
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_way_follows_rows_and_forms),
        cmocka_unit_test(exact_mode_has_one_way_for_all_rows),
        cmocka_unit_test(what_cannot_be_done_is_told),
        cmocka_unit_test(a_small_matrix_fits_a_scratch_of_its_size),
        cmocka_unit_test(no_rows_are_no_work),
        cmocka_unit_test(what_is_only_prepared_is_not_computed),
        cmocka_unit_test(a_product_says_what_it_costs),
        cmocka_unit_test(dequantised_rows_are_the_exact_values_rounded),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
