/* Queries, keys and values of rows: norms and rotation against their formulas, and every
 * element of the pages that nobody writes against what was there. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

extern "C" {
#include <cmocka.h>
}

#include "arrays.h"
#include "count.cuh"
#include "emu/emu.h"
#include "ops.cuh"

enum { N_LAYERS = 2, N_PAGES = 5, PAGE_TOKENS = 32, LAYER = 1 };
static const double EPS = 1e-5;

struct shape {
    int n_heads, n_kv_heads, head_dim, n_rot;
};
static const shape SHAPES[] = {
    {4, 2, 16, 16}, {4, 1, 16, 14},   {9, 3, 64, 64},    {8, 1, 128, 128},
    {3, 3, 96, 48}, {2, 1, 256, 250}, {5, 5, 32, 0},     {2, 2, 80, 32},
    {1, 1, 64, 2},  {14, 2, 64, 64},  {32, 8, 128, 128}, {2, 1, 512, 512},
};

struct step_case {
    shape of;
    int n_rows;
    rope_pairing pairing;
    bool has_q_norm, has_k_norm;
    kv_type type;
};

struct step_inputs {
    host_array<float> qkv, cos_sin, q_norm, k_norm;
    host_array<int32_t> slots;
};

/* Row t stands at any angles, and goes to a slot of its own: 70 rows of 160. */
static step_inputs inputs_of(const step_case &c)
{
    const size_t rows = (size_t)c.n_rows;
    const size_t n_all = (size_t)(c.of.n_heads + 2 * c.of.n_kv_heads);
    step_inputs in;
    in.qkv = random_floats(1, 3.0f, rows * n_all * (size_t)c.of.head_dim);
    for (size_t i = 0; i < rows * (size_t)c.of.n_rot / 2; i++) {
        const double angle = (double)i * 0.7;
        in.cos_sin.push_back((float)cos(angle));
        in.cos_sin.push_back((float)sin(angle));
    }
    in.q_norm = random_floats(2, 2.0f, (size_t)c.of.head_dim);
    in.k_norm = random_floats(3, 2.0f, (size_t)c.of.head_dim);
    for (size_t t = 0; t < rows; t++)
        in.slots.push_back((int32_t)((t * 37 + 159) % (N_PAGES * PAGE_TOKENS)));
    return in;
}

static size_t kv_elems(const shape &s)
{
    return (size_t)N_LAYERS * N_PAGES * (size_t)s.n_kv_heads * 2 * PAGE_TOKENS *
           (size_t)s.head_dim;
}

static size_t elem_bytes(kv_type type)
{
    return type == KV_BF16 ? 2 : 4;
}

struct step_out {
    host_array<bf16> q;
    host_array<uint8_t> kv;
};

/* Rows [first, first + n) of the step alone, on a pool full of 0x5a. */
static step_out split_rows(const step_case &c, const step_inputs &in, int first, int n)
{
    const shape &s = c.of;
    const size_t width = (size_t)((s.n_heads + 2 * s.n_kv_heads) * s.head_dim);
    const device_array<float> qkv(in.qkv), cos_sin(in.cos_sin), q_norm(in.q_norm),
        k_norm(in.k_norm);
    const device_array<int32_t> slots(in.slots);
    device_array<uint8_t> kv(host_array<uint8_t>(kv_elems(s) * elem_bytes(c.type), 0x5a));
    device_array<bf16> q((size_t)(n * s.n_heads * s.head_dim));
    split_heads(NULL, {qkv.at + (size_t)first * width,
                       n,
                       s.n_heads,
                       s.n_kv_heads,
                       s.head_dim,
                       s.n_rot,
                       c.pairing,
                       cos_sin.at + first * s.n_rot,
                       c.has_q_norm ? q_norm.at : NULL,
                       c.has_k_norm ? k_norm.at : NULL,
                       (float)EPS,
                       slots.at + first,
                       LAYER,
                       {c.type, kv.at, N_LAYERS, N_PAGES, s.n_kv_heads, s.head_dim},
                       q.at});
    return {q.read(), kv.read()};
}

/* ---- the formulas, in double */

static host_array<double> normed_head(const float *x, const float *norm, int head_dim)
{
    host_array<double> y(x, x + head_dim);
    double squares = 0.0;
    for (double value : y)
        squares += value * value;
    for (size_t i = 0; norm && i < y.size(); i++)
        y[i] *= (double)norm[i] / sqrt(squares / (double)head_dim + EPS);
    return y;
}

/* A rotation is a complex product. */
static void rotate(host_array<double> &x, const float *cos_sin, int n_rot, rope_pairing pairing)
{
    for (int p = 0; p < n_rot / 2; p++) {
        double &a = x[(size_t)(pairing == ROPE_NORM ? 2 * p : p)];
        double &b = x[(size_t)(pairing == ROPE_NORM ? 2 * p + 1 : p + n_rot / 2)];
        const double c = (double)cos_sin[2 * p], s = (double)cos_sin[2 * p + 1];
        const double turned = a * c - b * s;
        b = a * s + b * c;
        a = turned;
    }
}

/* Of head `head` of row t, counted over queries, keys and values. */
static host_array<double> head_of(const step_case &c, const step_inputs &in, int t, int head)
{
    const shape &s = c.of;
    const int n_all = s.n_heads + 2 * s.n_kv_heads;
    const float *x = &in.qkv[(size_t)(t * n_all + head) * (size_t)s.head_dim];
    const bool is_query = head < s.n_heads;
    const bool is_value = head >= s.n_heads + s.n_kv_heads;
    const float *norm = NULL;
    if (is_query && c.has_q_norm)
        norm = in.q_norm.data();
    if (!is_query && !is_value && c.has_k_norm)
        norm = in.k_norm.data();
    host_array<double> y = normed_head(x, norm, s.head_dim);
    if (!is_value)
        rotate(y, in.cos_sin.data() + t * s.n_rot, s.n_rot, c.pairing);
    return y;
}

/* Twice what float arithmetic may lose of numbers as large as a head's; bfloat16 is told by
 * its own width. */
static bool is_head(const host_array<double> &want, kv_type type, const uint8_t *got)
{
    for (size_t i = 0; i < want.size(); i++) {
        float value;
        bf16 stored;
        if (type == KV_BF16) {
            memcpy(&stored, got + 2 * i, 2);
            value = to_float(stored);
        } else {
            memcpy(&value, got + 4 * i, 4);
        }
        const double within = type == KV_BF16 ? fabs(want[i]) / 256 + 4e-6 : 4e-6;
        if (!is_near("head", i, want[i], (double)value, within))
            return false;
    }
    return true;
}

/* ---- whole steps */

/* [L][P][KVH][2][32][HD] as the array type that it is, one bracket after the other. */
static size_t kv_place(const shape &s, int layer, int page, int head, int which, int slot)
{
    size_t at = (size_t)layer;
    at = at * N_PAGES + (size_t)page;
    at = at * (size_t)s.n_kv_heads + (size_t)head;
    at = at * 2 + (size_t)which;
    at = at * PAGE_TOKENS + (size_t)slot;
    return at * (size_t)s.head_dim;
}

/* Takes each key and value out of the pages, so that what is left must be as it was. */
static bool are_keys_and_values(const step_case &c, const step_inputs &in, step_out &out)
{
    const shape &s = c.of;
    const size_t bytes = (size_t)s.head_dim * elem_bytes(c.type);
    for (int t = 0; t < c.n_rows; t++)
        for (int head = 0; head < 2 * s.n_kv_heads; head++) {
            const int32_t slot = in.slots[(size_t)t];
            const size_t at = kv_place(s, LAYER, slot / 32, head % s.n_kv_heads,
                                       head / s.n_kv_heads, slot % 32) *
                              elem_bytes(c.type);
            if (!is_head(head_of(c, in, t, s.n_heads + head), c.type, &out.kv[at]))
                return false;
            memset(&out.kv[at], 0x5a, bytes);
        }
    return same_bytes("pages", host_array<uint8_t>(out.kv.size(), 0x5a), out.kv);
}

static bool are_queries(const step_case &c, const step_inputs &in, const step_out &out)
{
    const shape &s = c.of;
    for (int t = 0; t < c.n_rows; t++)
        for (int head = 0; head < s.n_heads; head++) {
            const bf16 *got = &out.q[(size_t)((t * s.n_heads + head) * s.head_dim)];
            if (!is_head(head_of(c, in, t, head), KV_BF16, (const uint8_t *)got))
                return false;
        }
    return true;
}

static void check_step(const step_case &c)
{
    const step_inputs in = inputs_of(c);
    step_out out = split_rows(c, in, 0, c.n_rows);
    assert_true(are_queries(c, in, out));
    assert_true(are_keys_and_values(c, in, out));
}

static void heads_are_their_formula_in_every_shape(void **)
{
    for (const shape &s : SHAPES)
        for (rope_pairing pairing : {ROPE_NORM, ROPE_NEOX})
            for (kv_type type : {KV_F32, KV_BF16}) {
                check_step({s, 1, pairing, false, false, type});
                check_step({s, 6, pairing, true, true, type});
            }
}

static void heads_are_their_formula_in_every_number_of_rows(void **)
{
    for (int n_rows = 1; n_rows <= 70; n_rows += n_rows < 10 ? 1 : 15)
        check_step({{4, 2, 16, 16}, n_rows, ROPE_NEOX, true, false, KV_BF16});
    check_step({{9, 3, 64, 64}, 70, ROPE_NORM, false, true, KV_F32});
}

static void other_formulas_are_not_taken_for_the_right_one(void **)
{
    const step_case c = {{4, 2, 64, 32}, 3, ROPE_NEOX, true, true, KV_F32};
    const step_inputs in = inputs_of(c);
    step_out out = split_rows(c, in, 0, 3);
    step_case other = c;
    other.pairing = ROPE_NORM;
    ASSERT_DIFFERS(are_queries(other, in, out));
    other = c;
    other.of.n_rot = 16;
    ASSERT_DIFFERS(are_queries(other, in, out));
    other = c;
    other.has_q_norm = false;
    ASSERT_DIFFERS(are_queries(other, in, out));
    other = c;
    other.has_k_norm = false;
    ASSERT_DIFFERS(are_keys_and_values(other, in, out));
}

static void a_stray_write_to_a_page_is_seen(void **)
{
    const step_case c = {{4, 2, 16, 16}, 3, ROPE_NEOX, false, false, KV_BF16};
    const step_inputs in = inputs_of(c);
    step_out out = split_rows(c, in, 0, 3);
    out.kv[kv_place(c.of, 0, 3, 1, 1, 17) * 2] ^= 1;
    ASSERT_DIFFERS(are_keys_and_values(c, in, out));
}

/* A row alone, with others, and in every order in which threads may run. */
static void bits_of_a_row_do_not_depend_on_other_rows(void **)
{
    for (const shape &s : {SHAPES[0], SHAPES[2], SHAPES[5]}) {
        const step_case c = {s, 70, ROPE_NEOX, true, true, KV_F32};
        const step_inputs in = inputs_of(c);
        const step_out all = split_rows(c, in, 0, 70);
        for (uint64_t seed : {0, 1, 99}) {
            emu_set_seed(seed);
            const step_out again = split_rows(c, in, 0, 70);
            assert_true(same_bytes("queries", all.q, again.q));
            assert_true(same_bytes("pages", all.kv, again.kv));
        }
        const size_t width = (size_t)(s.n_heads * s.head_dim);
        for (int t : {0, 1, 33, 69}) {
            const step_out one = split_rows(c, in, t, 1);
            const host_array<bf16> row(&all.q[(size_t)t * width],
                                       &all.q[(size_t)t * width] + width);
            assert_true(same_bytes("query", row, one.q));
            const int32_t slot = in.slots[(size_t)t];
            const size_t at = kv_place(s, LAYER, slot / 32, 0, 0, slot % 32) * 4;
            assert_memory_equal(&all.kv[at], &one.kv[at], (size_t)s.head_dim * 4);
        }
    }
}

/* What is not finite stays in its head: a NaN in a rotated pair, an infinity in a value. */
static void what_is_not_finite_stays_where_it_is(void **)
{
    const step_case c = {{2, 1, 64, 64}, 2, ROPE_NEOX, false, false, KV_BF16};
    step_inputs in = inputs_of(c);
    in.qkv[3] = NAN;                      /* row 0, query head 0, its pair (3, 35) */
    in.qkv[3 * 64 + 5] = INFINITY;        /* row 0, value */
    in.qkv[(4 + 2) * 64 + 9] = -INFINITY; /* row 1, key, its pair (9, 41) */
    step_out out = split_rows(c, in, 0, 2);
    for (size_t i = 0; i < 2 * 64; i++)
        assert_int_equal(isnan(to_float(out.q[i])), i == 3 || i == 35);
    assert_true(are_queries(c, in, out));
    assert_true(are_keys_and_values(c, in, out));
}

static void a_row_whose_slot_is_none_writes_its_query_alone(void **)
{
    const step_case c = {{4, 2, 64, 32}, 3, ROPE_NEOX, true, true, KV_BF16};
    step_inputs in = inputs_of(c);
    in.slots[2] = -1;
    step_out out = split_rows(c, in, 0, 3);
    assert_true(are_queries(c, in, out));
    step_case two = c;
    two.n_rows = 2;
    assert_true(are_keys_and_values(two, in, out));
}

/* Rows of 4 query heads, 2 keys and 2 values of 64 elements, 32 of which turn in 16 pairs. */
static void heads_count_what_they_cost(void **)
{
    device_counters counters = {};
    const step_case c = {{4, 2, 64, 32}, 3, ROPE_NEOX, true, false, KV_BF16};
    count_into(&counters);
    split_rows(c, inputs_of(c), 0, 3);
    count_into(NULL);
    const device_cost &cost = counters.of[DEVICE_SPLIT_HEADS];
    assert_int_equal(cost.launches, 1);
    assert_int_equal(cost.bytes_read, (3 * 8 * 64 + 3 * 32 + 64 + 3) * 4);
    assert_int_equal(cost.bytes_written, 3 * 8 * 64 * 2);
    assert_int_equal(cost.flops, 3 * (4 + 2) * 16 * 6 + 3 * 4 * 64 * 4);
}

static void no_rows_are_no_launch(void **)
{
    const step_case c = {{2, 1, 64, 64}, 1, ROPE_NEOX, false, false, KV_BF16};
    const uint64_t before = emu_count().launches;
    split_rows(c, inputs_of(c), 0, 0);
    assert_int_equal(emu_count().launches, before);
    assert_null(last_error());
}

int main()
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(heads_are_their_formula_in_every_shape),
        cmocka_unit_test(heads_are_their_formula_in_every_number_of_rows),
        cmocka_unit_test(other_formulas_are_not_taken_for_the_right_one),
        cmocka_unit_test(a_stray_write_to_a_page_is_seen),
        cmocka_unit_test(bits_of_a_row_do_not_depend_on_other_rows),
        cmocka_unit_test(what_is_not_finite_stays_where_it_is),
        cmocka_unit_test(a_row_whose_slot_is_none_writes_its_query_alone),
        cmocka_unit_test(heads_count_what_they_cost),
        cmocka_unit_test(no_rows_are_no_launch),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
