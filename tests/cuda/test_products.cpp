/*
 * Products on the device: every way and every type against sums in double, and what exact mode
 * promises about bits. A number as first argument seeds the random data.
 */
#include "emu/emu.h"
#include "product_rig.h"

static const product_way WAYS[] = {WAY_OWN_BLOCKS, WAY_OWN_ROWS, WAY_OWN_SCRATCH, WAY_LT_ROWS,
                                   WAY_LT_SCRATCH};
static const product_out KINDS[] = {PRODUCT_F32, PRODUCT_F32_ADD, PRODUCT_BF16};

enum { ROWS_MAX = 80, SCRATCH_BYTES = 4 << 20 };

static products *open_products(bool exact, size_t scratch_bytes)
{
    products_options o = {};
    o.exact = exact;
    o.n_rows_max = ROWS_MAX;
    o.scratch_bytes = scratch_bytes;
    products *p = nullptr;
    struct err e = {};
    assert_int_equal(products_open(o, &p, &e), 0);
    return p;
}

static float *make_bias(int n)
{
    float *bias = (float *)malloc((size_t)n * sizeof(float));
    for (int i = 0; i < n; i++)
        bias[i] = random_float(-1, 1);
    return bias;
}

/* cuBLASLt takes no float32 bias under a bfloat16 result. */
static bool has_way(quant_type type, product_way way, product_out kind, bool with_bias)
{
    const bool is_large = way == WAY_LT_ROWS || way == WAY_LT_SCRATCH;
    return (way != WAY_OWN_BLOCKS || few_rows_takes(type)) &&
           !(is_large && with_bias && kind == PRODUCT_BF16);
}

static bool is_rounded_by(quant_type type, product_way way)
{
    return way != WAY_OWN_BLOCKS && type != QUANT_BF16;
}

/* One product by one way against double; how many outputs are wrong. */
static int wrong_by_way(products *p, product_way way, const stored &w, const inputs &x,
                        int n_rows, product_out kind, bool with_bias, int padding)
{
    const int n = w.m.n_rows;
    float *bias = with_bias ? make_bias(n) : nullptr;
    float *bias_there =
        with_bias ? (float *)on_device(bias, (size_t)n * sizeof(float)) : nullptr;
    outputs y = make_outputs(n_rows, n + padding, kind);
    struct err e = {};
    products_force(p, way);
    assert_int_equal(multiply_rows(p, w, x, 0, bias_there, &y, &e), 0);
    const int n_wrong = count_wrong(w, is_rounded_by(w.m.type, way), x, bias, y);
    free_outputs(&y);
    free(bias);
    device_free(bias_there);
    return n_wrong;
}

/* A type has kinds, biases and paddings in turn, so that all meet without a product of all. */
static void ways_agree_with_double(void **)
{
    static const struct {
        int n_outputs, n_inputs, n_rows;
    } SHAPES[] = {{1, 256, 1}, {16, 256, 3}, {37, 256, 8}, {70, 512, 9}, {33, 768, 17}};
    products *p = open_products(false, SCRATCH_BYTES);
    int turn = 0;
    for (quant_type type : ALL_TYPES) {
        for (const auto &shape : SHAPES) {
            stored w = make_stored(type, shape.n_outputs, shape.n_inputs, true);
            inputs x = make_inputs(shape.n_rows, shape.n_inputs);
            for (product_way way : WAYS) {
                turn++;
                const product_out kind = KINDS[turn % 3];
                const bool with_bias = turn % 2;
                if (has_way(type, way, kind, with_bias))
                    assert_int_equal(
                        wrong_by_way(p, way, w, x, shape.n_rows, kind, with_bias, turn % 5), 0);
            }
            free_stored(&w);
            free_inputs(&x);
        }
    }
    products_close(p);
}

/* The demo model's widths, outputs that fill no tile, more rows than one tile. */
static void types_with_kernels_agree_on_larger_shapes(void **)
{
    static const struct {
        quant_type type;
        int n_outputs, n_inputs, n_rows;
    } CASES[] = {
        {QUANT_Q4_1, 97, 576, 70}, {QUANT_Q8_0, 131, 576, 2}, {QUANT_Q4_0, 65, 64, 33},
        {QUANT_Q4_0, 2000, 96, 1}, {QUANT_Q4_1, 31, 1536, 5}, {QUANT_BF16, 97, 576, 70},
        {QUANT_BF16, 129, 96, 16}, {QUANT_Q8_0, 50, 160, 40}, {QUANT_Q4_0, 35, 576, 13},
        {QUANT_Q8_0, 8195, 64, 1}, {QUANT_Q4_0, 8193, 64, 10}};
    products *p = open_products(false, SCRATCH_BYTES);
    for (const auto &c : CASES) {
        stored w = make_stored(c.type, c.n_outputs, c.n_inputs, true);
        inputs x = make_inputs(c.n_rows, c.n_inputs);
        for (product_out kind : KINDS)
            assert_int_equal(
                wrong_by_way(p, WAY_OWN_BLOCKS, w, x, c.n_rows, kind, kind != PRODUCT_F32, 3),
                0);
        assert_int_equal(wrong_by_way(p, WAY_LT_SCRATCH, w, x, c.n_rows, PRODUCT_F32, true, 0),
                         0);
        free_stored(&w);
        free_inputs(&x);
    }
    products_close(p);
}

/* The twin of the checks above: one weight of 64 by one step of its code is seen. */
static void a_wrong_weight_is_seen(void **)
{
    products *p = open_products(false, 0);
    stored w = make_stored(QUANT_Q4_0, 20, 64, false);
    inputs x = make_inputs(1, 64);
    for (size_t i = 0; i < 64; i++)
        x.host[i] = 0x3f80;
    copy_to_device(nullptr, x.device, x.host, 64 * sizeof(uint16_t));
    w.blocks[7 * 36 + 18 + 5] ^= 0x10;
    read_values(&w); /* the device has the old ones */
    is_mistake_wanted = true;
    assert_int_equal(wrong_by_way(p, WAY_OWN_BLOCKS, w, x, 1, PRODUCT_F32, false, 0), 1);
    is_mistake_wanted = false;
    free_stored(&w);
    free_inputs(&x);
    products_close(p);
}

/* ---- bits */

/* Rows of x alone and in company, at every place of a tile, against all of them at once. */
static void assert_rows_keep_their_bits(products *p, const stored &w, const inputs &x)
{
    static const struct {
        int first, n;
    } PARTS[] = {{0, 1}, {1, 1},   {41, 1}, {69, 1},  {2, 2},  {5, 7}, {9, 8},
                 {3, 9}, {20, 16}, {7, 17}, {36, 32}, {1, 33}, {4, 66}};
    const int n = w.m.n_rows;
    struct err e = {};
    outputs all = make_outputs(x.n_rows, n, PRODUCT_F32);
    assert_int_equal(multiply_rows(p, w, x, 0, nullptr, &all, &e), 0);
    for (const auto &part : PARTS) {
        outputs some = make_outputs(part.n, n, PRODUCT_F32);
        assert_int_equal(multiply_rows(p, w, x, part.first, nullptr, &some, &e), 0);
        const size_t row_bytes = (size_t)n * sizeof(float);
        assert_memory_equal(some.after, all.after + (size_t)part.first * row_bytes, some.bytes);
        free_outputs(&some);
    }
    free_outputs(&all);
}

static void bits_of_a_row_do_not_depend_on_its_company(void **)
{
    static const quant_type TYPES[] = {QUANT_Q4_0, QUANT_Q4_1, QUANT_Q8_0, QUANT_BF16};
    products *p = open_products(false, 0);
    products_force(p, WAY_OWN_BLOCKS);
    for (quant_type type : TYPES) {
        stored w = make_stored(type, 35, 192, false);
        inputs x = make_inputs(70, 192);
        assert_rows_keep_their_bits(p, w, x);
        free_stored(&w);
        free_inputs(&x);
    }
    products_close(p);
}

/* The twin of the checks above and below: another way is another order of sums, and seen. */
static void another_way_has_other_bits(void **)
{
    products *p = open_products(false, 0);
    struct err e = {};
    stored w = make_stored(QUANT_BF16, 70, 576, true);
    inputs x = make_inputs(9, 576);
    outputs own = make_outputs(9, 70, PRODUCT_F32);
    outputs other = make_outputs(9, 70, PRODUCT_F32);
    products_force(p, WAY_OWN_ROWS);
    assert_int_equal(multiply_rows(p, w, x, 0, nullptr, &own, &e), 0);
    products_force(p, WAY_LT_ROWS);
    assert_int_equal(multiply_rows(p, w, x, 0, nullptr, &other, &e), 0);
    assert_memory_not_equal(own.after, other.after, own.bytes);
    free_outputs(&own);
    free_outputs(&other);
    free_stored(&w);
    free_inputs(&x);
    products_close(p);
}

static void exact_mode_keeps_bits_for_every_type(void **)
{
    products *p = open_products(true, 64 * 256 * 2);
    for (quant_type type : ALL_TYPES) {
        for (int with_rows = 0; with_rows < 2; with_rows++) {
            stored w = make_stored(type, 70, 256, with_rows);
            inputs x = make_inputs(70, 256);
            assert_rows_keep_their_bits(p, w, x);
            free_stored(&w);
            free_inputs(&x);
        }
    }
    products_close(p);
}

/* Orders of threads and blocks are drawn anew; nothing may depend on them. */
static void bits_do_not_depend_on_the_order_of_threads(void **)
{
    static const quant_type TYPES[] = {QUANT_Q4_1, QUANT_Q8_0, QUANT_BF16};
    products *p = open_products(false, SCRATCH_BYTES);
    struct err e = {};
    products_force(p, WAY_OWN_BLOCKS);
    for (quant_type type : TYPES) {
        stored w = make_stored(type, 70, 320, false);
        inputs x = make_inputs(11, 320);
        outputs first = make_outputs(11, 70, PRODUCT_F32);
        emu_set_seed(0);
        assert_int_equal(multiply_rows(p, w, x, 0, nullptr, &first, &e), 0);
        for (uint64_t seed = 1; seed < 5; seed++) {
            outputs other = make_outputs(11, 70, PRODUCT_F32);
            emu_set_seed(seed);
            assert_int_equal(multiply_rows(p, w, x, 0, nullptr, &other, &e), 0);
            assert_memory_equal(first.after, other.after, first.bytes);
            free_outputs(&other);
        }
        free_outputs(&first);
        free_stored(&w);
        free_inputs(&x);
    }
    products_close(p);
}

/* A scratch of 64 rows takes a matrix of 150 in three parts; the own kernel's bits stay, while
 * cuBLASLt may take another algorithm for a part. */
static void a_small_scratch_does_as_well(void **)
{
    products *whole = open_products(false, SCRATCH_BYTES);
    products *sliced = open_products(false, 64 * 256 * 2 + 100);
    struct err e = {};
    stored w = make_stored(QUANT_Q6_K, 150, 256, false);
    inputs x = make_inputs(5, 256);
    outputs a = make_outputs(5, 150, PRODUCT_F32);
    outputs b = make_outputs(5, 150, PRODUCT_F32);
    products_force(whole, WAY_OWN_SCRATCH);
    products_force(sliced, WAY_OWN_SCRATCH);
    assert_int_equal(multiply_rows(whole, w, x, 0, nullptr, &a, &e), 0);
    assert_int_equal(multiply_rows(sliced, w, x, 0, nullptr, &b, &e), 0);
    assert_memory_equal(a.after, b.after, a.bytes);
    for (product_out kind : KINDS) {
        const product_way way = kind == PRODUCT_BF16 ? WAY_OWN_SCRATCH : WAY_LT_SCRATCH;
        assert_int_equal(wrong_by_way(sliced, way, w, x, 5, kind, true, 3), 0);
    }
    free_outputs(&a);
    free_outputs(&b);
    free_stored(&w);
    free_inputs(&x);
    products_close(whole);
    products_close(sliced);
}

int main(int argc, char **argv)
{
    if (argc > 1)
        random_seed = strtoull(argv[1], nullptr, 10);
    print_message("random data of seed %llu\n", (unsigned long long)random_seed);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ways_agree_with_double),
        cmocka_unit_test(types_with_kernels_agree_on_larger_shapes),
        cmocka_unit_test(a_wrong_weight_is_seen),
        cmocka_unit_test(bits_of_a_row_do_not_depend_on_its_company),
        cmocka_unit_test(another_way_has_other_bits),
        cmocka_unit_test(exact_mode_keeps_bits_for_every_type),
        cmocka_unit_test(bits_do_not_depend_on_the_order_of_threads),
        cmocka_unit_test(a_small_scratch_does_as_well),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
