/*
 * A cuBLASLt that has no products of E4M3 rows, which no emulation is: the large products here
 * are this file's, in the place of lt_emu.cpp.
 */
#include "emu/emu.h"
#include "lt.h"
#include "product_rig.h"

struct lt {
    int n_products;
};

static lt only;
static bool has_fp8;

int lt_open(lt **out, struct err *)
{
    only = {};
    *out = &only;
    return 0;
}

void lt_close(lt *)
{
}

int lt_multiply(lt *l, stream_t, const product_args &a, struct err *e)
{
    l->n_products++;
    if (a.x_codes && !has_fp8)
        return ERR_SET(e, ERR_UNSUPPORTED, "no algorithm for it");
    return 0;
}

void lt_prepare(lt *, stream_t, const product_args &)
{
}

static int open_products(int n_inputs_max, struct err *e)
{
    products_options o = {};
    o.n_rows_max = 64;
    o.fp8_inputs_max = n_inputs_max;
    o.fp8_outputs_max = n_inputs_max;
    products *p = nullptr;
    const int code = products_open(o, &p, e);
    products_close(p);
    return code;
}

static void it_is_known_at_open_and_says_what_to_do(void **)
{
    struct err e = {};
    has_fp8 = false;
    assert_int_equal(open_products(64, &e), ERR_UNSUPPORTED);
    assert_string_equal(e.text, "the device has no products in FP8 (no algorithm for it): take "
                                "device.weights=stored");
    has_fp8 = true;
    assert_int_equal(open_products(64, &e), 0);
}

static void who_wants_none_asks_for_none(void **)
{
    struct err e = {};
    has_fp8 = false;
    assert_int_equal(open_products(0, &e), 0);
    assert_int_equal(only.n_products, 0);
}

int main()
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_is_known_at_open_and_says_what_to_do),
        cmocka_unit_test(who_wants_none_asks_for_none),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
