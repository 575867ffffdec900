/* Stored blocks against the values that gguf (Python) and ggml give for them, bit for bit. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "kernels/quant.h"

enum { BLOCK_ELEMS_MAX = 256, BLOCK_BYTES_MAX = 256 };

static const uint32_t OURS[] = {QUANT_F16,  QUANT_Q4_0, QUANT_Q4_1,  QUANT_Q5_0,
                                QUANT_Q5_1, QUANT_Q8_0, QUANT_Q4_K,  QUANT_Q5_K,
                                QUANT_Q6_K, QUANT_BF16, QUANT_IQ4_NL};

static unsigned digit(char c)
{
    return (unsigned)(c <= '9' ? c - '0' : c - 'a' + 10);
}

static size_t unhex(const char *text, uint8_t *out, size_t out_bytes)
{
    const size_t n = strlen(text) / 2;
    assert_true(n <= out_bytes);
    for (size_t i = 0; i < n; i++)
        out[i] = (uint8_t)(digit(text[2 * i]) << 4 | digit(text[2 * i + 1]));
    return n;
}

static void check_block(const char *name, const struct quant_info *info, const json_t *block)
{
    uint8_t raw[BLOCK_BYTES_MAX];
    uint32_t want[BLOCK_ELEMS_MAX];
    float got[BLOCK_ELEMS_MAX];
    const char *hex = json_string_value(json_object_get(block, "hex"));
    const char *f32_hex = json_string_value(json_object_get(block, "f32_hex"));
    assert_non_null(hex);
    assert_non_null(f32_hex);
    const size_t raw_bytes = unhex(hex, raw, sizeof raw);
    const size_t n = unhex(f32_hex, (uint8_t *)want, sizeof want) / 4;
    assert_int_equal(raw_bytes / info->block_bytes * info->block_elems, n);
    quant_dequantize_row(info->type, raw, got, n);
    for (size_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, &got[i], sizeof bits);
        if (bits != want[i])
            fail_msg("%s element %zu: %08x, golden %08x", name, i, bits, want[i]);
    }
}

static json_t *load_types(json_t **root)
{
    json_error_t where;
    *root = json_load_file(SHEAF_TEST_DATA "/golden/dequant.json", 0, &where);
    assert_non_null(*root);
    return json_object_get(*root, "types");
}

static void every_type_of_ours_dequantises_to_the_golden_bits(void **state)
{
    (void)state;
    json_t *root;
    json_t *types = load_types(&root);
    for (size_t i = 0; i < sizeof OURS / sizeof *OURS; i++) {
        const struct quant_info *info = quant_find(OURS[i]);
        assert_non_null(info);
        const json_t *type = json_object_get(types, info->name);
        assert_non_null(type);
        assert_int_equal(json_integer_value(json_object_get(type, "id")), OURS[i]);
        assert_int_equal(json_integer_value(json_object_get(type, "block_elements")),
                         info->block_elems);
        assert_int_equal(json_integer_value(json_object_get(type, "block_bytes")),
                         info->block_bytes);
        const json_t *blocks = json_object_get(type, "blocks");
        assert_true(json_array_size(blocks) > 0);
        for (size_t b = 0; b < json_array_size(blocks); b++)
            check_block(info->name, info, json_array_get(blocks, b));
    }
    json_decref(root);
}

static void golden_types_beyond_ours_are_named_but_not_found(void **state)
{
    (void)state;
    json_t *root;
    json_t *types = load_types(&root);
    const char *name;
    json_t *type;
    size_t n_foreign = 0;
    json_object_foreach(types, name, type)
    {
        const uint32_t id = (uint32_t)json_integer_value(json_object_get(type, "id"));
        assert_string_equal(quant_foreign_name(id), name);
        n_foreign += quant_find(id) == NULL;
    }
    assert_int_equal(n_foreign, json_object_size(types) - sizeof OURS / sizeof *OURS);
    assert_null(quant_find(UINT32_MAX));
    assert_null(quant_foreign_name(43));
    json_decref(root);
}

/* The definition of a half float, written with ldexp. */
static float half_by_definition(uint16_t bits)
{
    const int exponent = bits >> 10 & 31;
    const int mantissa = bits & 1023;
    double value = 0;
    for (int i = 0; i < 10; i++)
        value += mantissa >> i & 1 ? 1.0 / (double)(1 << (10 - i)) : 0.0;
    value += exponent ? 1.0 : 0.0;
    for (int e = exponent ? exponent : 1; e < 15; e++)
        value /= 2;
    for (int e = 15; e < exponent; e++)
        value *= 2;
    return (float)(bits & 0x8000 ? -value : value);
}

static void every_half_float_is_read_and_written_back(void **state)
{
    (void)state;
    for (uint32_t bits = 0; bits < 0x10000; bits++) {
        const float value = quant_f16_to_f32((uint16_t)bits);
        if ((bits & 0x7c00) == 0x7c00) {
            assert_true((bits & 0x3ff) ? value != value : value - value != 0);
        } else {
            const float want = half_by_definition((uint16_t)bits);
            assert_memory_equal(&value, &want, sizeof value);
        }
        if ((bits & 0x7fff) <= 0x7c00)
            assert_int_equal(quant_f32_to_f16(value), bits);
        else
            assert_true(quant_f16_to_f32(quant_f32_to_f16(value)) != 0.0f);
    }
}

static void rounding_to_half_goes_to_the_nearest_even(void **state)
{
    (void)state;
    for (uint32_t bits = 0; bits < 0x7bff; bits++) {
        const float low = quant_f16_to_f32((uint16_t)bits);
        const float high = quant_f16_to_f32((uint16_t)(bits + 1));
        const float middle = (low + high) / 2;
        const uint32_t even = bits + (bits & 1);
        assert_int_equal(quant_f32_to_f16(middle), even);
        assert_int_equal(quant_f32_to_f16(-middle), even | 0x8000);
        assert_int_equal(quant_f32_to_f16(low + (high - low) * 0.375f), bits);
        assert_int_equal(quant_f32_to_f16(low + (high - low) * 0.625f), bits + 1);
    }
    assert_int_equal(quant_f32_to_f16(65519.0f), 0x7bff);
    assert_int_equal(quant_f32_to_f16(65520.0f), 0x7c00);
    assert_int_equal(quant_f32_to_f16(0x1p-25f), 0);
    assert_int_equal(quant_f32_to_f16(0x1.8p-25f), 1);
}

static void rounding_to_bfloat_goes_to_the_nearest_even(void **state)
{
    (void)state;
    static const struct {
        uint32_t bits;
        uint16_t want;
    } cases[] = {
        {0x3f800000, 0x3f80}, {0x3f808000, 0x3f80}, {0x3f808001, 0x3f81}, {0x3f818000, 0x3f82},
        {0xbf818000, 0xbf82}, {0x7f7fffff, 0x7f80}, {0x7f800000, 0x7f80}, {0xff800000, 0xff80},
        {0x80000000, 0x8000}, {0x00008001, 0x0001}, {0x00018000, 0x0002}, {0x7f800001, 0x7fc0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        float value;
        memcpy(&value, &cases[i].bits, sizeof value);
        assert_int_equal(quant_f32_to_bf16(value), cases[i].want);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_type_of_ours_dequantises_to_the_golden_bits),
        cmocka_unit_test(golden_types_beyond_ours_are_named_but_not_found),
        cmocka_unit_test(every_half_float_is_read_and_written_back),
        cmocka_unit_test(rounding_to_half_goes_to_the_nearest_even),
        cmocka_unit_test(rounding_to_bfloat_goes_to_the_nearest_even),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
