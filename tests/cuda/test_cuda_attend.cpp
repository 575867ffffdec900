/*
 * Attention of CUDA against softmax in double, and its rows' bits against each other: stacking,
 * cutting, order and page numbers change none of them.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

extern "C" {
#include <cmocka.h>
}

#include "attend_rig.h"
#include "emu/emu.h"

static rig make_rig(int n_heads, int n_kv_heads, int head_dim)
{
    rig r;
    r.n_heads = n_heads;
    r.n_kv_heads = n_kv_heads;
    r.head_dim = head_dim;
    return r;
}

static rig_way alone()
{
    rig_way way;
    way.block_rows = 1;
    return way;
}

static const int lengths[] = {1,  2,  15, 16,  17,  31,  32,  33,  63,  64, 65,
                              95, 96, 97, 127, 128, 129, 159, 160, 161, 200};

/* Rows at the ends of sequences of their own. */
static void add_lone_rows(rig *r)
{
    for (int n : lengths)
        rig_add_row(r, rig_add_sequence(r, n), n - 1);
}

/* A prefix that n rows go on from, each with a suffix of another length. */
static void add_group(rig *r, int n_prefix, int n_rows)
{
    const int parent = rig_add_sequence(r, n_prefix);
    for (int i = 0; i < n_rows; i++) {
        const int n = n_prefix + 1 + i * 7 % 71;
        rig_add_row(r, rig_add_sequence(r, n, parent, n_prefix), n - 1);
    }
}

static void add_chunk(rig *r, int first, int end)
{
    const int s = rig_add_sequence(r, end);
    for (int p = first; p < end; p++)
        rig_add_row(r, s, p);
}

/* Groups over a common root, a chunk, and lone rows. */
static rig mixed_rig(int n_heads, int n_kv_heads, int head_dim)
{
    rig r = make_rig(n_heads, n_kv_heads, head_dim);
    add_group(&r, 96, 11);
    const int parent = rig_add_sequence(&r, 160, 0, 64);
    for (int i = 0; i < 5; i++)
        rig_add_row(&r, rig_add_sequence(&r, 161 + i * 20, parent, 160), 160 + i * 20);
    add_chunk(&r, 20, 75);
    add_lone_rows(&r);
    return r;
}

static const struct {
    int n_heads, n_kv_heads, head_dim;
} shapes[] = {{2, 2, 16}, {3, 1, 32},  {8, 2, 64}, {8, 1, 64},
              {4, 1, 96}, {6, 2, 128}, {2, 1, 256}};

static void lone_rows_are_softmax_attention(void **)
{
    for (const auto &s : shapes) {
        rig r = make_rig(s.n_heads, s.n_kv_heads, s.head_dim);
        add_lone_rows(&r);
        rig_check(r, rig_run(r, alone()));
    }
}

static void stacked_rows_are_softmax_attention(void **)
{
    for (const auto &s : shapes) {
        const rig r = mixed_rig(s.n_heads, s.n_kv_heads, s.head_dim);
        rig_check(r, rig_run(r, rig_way()));
    }
}

static void no_company_changes_a_bit(void **)
{
    static const int block_rows[] = {2, 3, 8, 16, 33};
    for (const auto &s : shapes) {
        const rig r = mixed_rig(s.n_heads, s.n_kv_heads, s.head_dim);
        const std::vector<uint16_t> want = rig_run(r, alone());
        rig_way way;
        rig_same(r, want, rig_run(r, way));
        way.shared_bytes_max = 0;
        rig_same(r, want, rig_run(r, way));
        for (int n : block_rows) {
            way.block_rows = n;
            way.pages_seed++;
            way.is_shared = n % 2 == 0;
            rig_same(r, want, rig_run(r, way));
        }
    }
}

int main()
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lone_rows_are_softmax_attention),
        cmocka_unit_test(stacked_rows_are_softmax_attention),
        cmocka_unit_test(no_company_changes_a_bit),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
