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

#include <math.h>

#include "attend_rig.h"
#include "count.cuh"
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

/* Sequences, pages and blocks in another order, and blocks of other sizes. */
static void no_company_changes_a_bit(void **)
{
    static const int block_rows[] = {2, 3, 5, 8, 9, 16, 33, 40};
    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
        const rig r = mixed_rig(shapes[i].n_heads, shapes[i].n_kv_heads, shapes[i].head_dim);
        const std::vector<uint16_t> want = rig_run(r, alone());
        rig_way way;
        way.shared_bytes_max = i % 2 == 0 ? 0 : 227 << 10;
        rig_same(r, want, rig_run(r, way));
        way.block_rows = block_rows[i];
        way.pages_seed = i + 2;
        way.is_shared = i % 4 != 3;
        rig_same(r, want, rig_run(r, way));
    }
}

/* Rows of a root, of a line of drafts in their places, and of two branches: one from the root,
 * one from the first draft. */
static void add_tree(rig *r, int root, int n_line, int n_branch)
{
    const int n_slots = root + 1 + n_line + n_branch + 1;
    const int s = rig_add_sequence(r, n_slots);
    for (int i = 0; i <= n_line; i++)
        rig_add_row(r, s, root + i);
    std::vector<int> slots;
    for (int i = 0; i < n_branch; i++)
        slots.push_back(root + 1 + n_line + i);
    const int a = rig_add_branch(r, s, root + 1, slots);
    const int b = rig_add_branch(r, s, root + 2, {n_slots - 1});
    const int path_a = rig_add_path(r, a), path_b = rig_add_path(r, b);
    for (int i = 1; i <= n_branch; i++) {
        rig_add_row(r, s, root + i, a);
        rig_add_row(r, path_a, root + i);
    }
    rig_add_row(r, s, root + 2, b);
    rig_add_row(r, path_b, root + 2);
}

/* A branch's row stands before the plain row of its path. */
static void rows_of_branches_have_the_bits_of_plain_rows(void **)
{
    static const int roots[] = {0, 28, 29, 30, 31, 32, 33, 62};
    for (size_t k = 0; k < sizeof(shapes) / sizeof(shapes[0]); k++) {
        const auto &s = shapes[k];
        rig r = make_rig(s.n_heads, s.n_kv_heads, s.head_dim);
        add_tree(&r, roots[k], 3, k == 3 ? 40 : 4);
        add_tree(&r, 30, 3, 4);
        for (int n : {1, 7, 1000}) {
            rig_way way;
            way.block_rows = n;
            way.pages_seed = (uint64_t)n;
            const std::vector<uint16_t> got = rig_run(r, way);
            rig_check(r, got);
            for (size_t i = 0; i < r.rows.size(); i++)
                if (r.rows[i].branch >= 0 && !rig_is_same_row(r, got, i, got, i + 1))
                    fail_msg("row %zu of a branch differs from its path's", i);
        }
    }
}

/* What a position holds changes the rows that see it, and no others: neither those before it in
 * its own chunk nor those that only stand beside them. */
static void a_value_reaches_the_rows_that_see_it(void **)
{
    enum { CHANGED = 40 };
    static const float values[] = {100.0f, INFINITY, -INFINITY, NAN};
    for (size_t k = 0; k < sizeof(shapes) / sizeof(shapes[0]); k++) {
        rig r = make_rig(shapes[k].n_heads, shapes[k].n_kv_heads, shapes[k].head_dim);
        add_chunk(&r, 30, 52);
        add_group(&r, 64, 6);
        const std::vector<uint16_t> want = rig_run(r, rig_way());
        for (size_t i = k % 4; i < 8; i += 4) {
            rig_changed.sequence = 0;
            rig_changed.position = CHANGED;
            rig_changed.is_key = i % 2 == 1;
            rig_changed.x = values[i / 2];
            const std::vector<uint16_t> got = rig_run(r, rig_way());
            rig_changed = rig_change();
            for (size_t row = 0; row < r.rows.size(); row++) {
                const bool sees = r.rows[row].sequence == 0 && r.rows[row].position >= CHANGED;
                assert_int_equal(rig_is_same_row(r, want, row, got, row), !sees);
            }
        }
    }
}

static void a_value_that_is_no_number_makes_the_rows_that_see_it_nan(void **)
{
    rig r = make_rig(4, 2, 64);
    add_chunk(&r, 20, 75);
    for (float x : {INFINITY, NAN}) {
        rig_changed = {0, 40, false, x};
        const std::vector<uint16_t> got = rig_run(r, rig_way());
        assert_true(got == rig_run(r, alone()));
        rig_changed = rig_change();
        for (size_t i = 0; i < got.size(); i++)
            assert_int_equal(isnan(to_float(bf16{got[i]})) != 0,
                             r.rows[i / (4 * 64)].position >= 40);
    }
}

static void comparison_notices_a_wrong_answer(void **)
{
    rig r = make_rig(2, 1, 64);
    add_lone_rows(&r);
    std::vector<uint16_t> got = rig_run(r, alone());
    const std::vector<uint16_t> want = got;
    rig_check_row(r, 3, got);
    got[3 * 2 * 64 + 5] ^= 1;
    assert_false(rig_is_same_row(r, want, 3, got, 3));
    assert_true(rig_is_same_row(r, want, 2, got, 2));
}

static void long_sequences_are_softmax_attention(void **)
{
    rig r = make_rig(8, 2, 64);
    add_group(&r, 3968, 3);
    const std::vector<uint16_t> got = rig_run(r, rig_way());
    rig_check(r, got);
    rig_same(r, got, rig_run(r, alone()));
}

/* Queries of some size put all weight on few keys. */
static void sharp_scores_are_softmax_attention(void **)
{
    rig r = make_rig(4, 2, 64);
    add_group(&r, 128, 4);
    r.reach = 12.0f;
    rig_check(r, rig_run(r, rig_way()));
    r.reach = 0;
    rig_check(r, rig_run(r, rig_way()));
}

static void float_keys_and_other_head_dims_are_softmax_attention(void **)
{
    static const struct {
        kv_type type;
        int head_dim;
    } cases[] = {{KV_F32, 16}, {KV_F32, 128}, {KV_BF16, 80}, {KV_BF16, 512}};
    for (const auto &c : cases) {
        rig r = make_rig(4, 2, c.head_dim);
        r.type = c.type;
        add_group(&r, 64, 4);
        add_tree(&r, 30, 2, 3);
        const std::vector<uint16_t> got = rig_run(r, rig_way());
        rig_check(r, got);
        rig_same(r, got, rig_run(r, alone()));
    }
}

static void no_order_of_threads_changes_a_bit(void **)
{
    const rig r = mixed_rig(4, 1, 64);
    const std::vector<uint16_t> want = rig_run(r, rig_way());
    for (uint64_t seed = 0; seed < 4; seed++) {
        emu_set_seed(seed);
        rig_same(r, want, rig_run(r, rig_way()));
    }
    emu_set_seed(1);
}

/* ------------------------------------------------------------------ keys split over blocks */

static rig_way split_way(const rig &r, int block_rows)
{
    rig_way way;
    way.exact = false;
    way.block_rows = block_rows;
    way.n_processors = 40;
    way.scratch_bytes = attend_scratch_bytes(r.head_dim, way.n_processors);
    return way;
}

/* As attend() counts them: a device counts none. */
static uint64_t launches_of(const rig &r, const rig_way &way, std::vector<uint16_t> *got)
{
    device_counters counters = {};
    count_into(&counters);
    *got = rig_run(r, way);
    count_into(nullptr);
    return counters.of[DEVICE_ATTEND].launches;
}

static void split_keys_are_softmax_attention(void **)
{
    int block_rows = 1;
    for (const auto &s : shapes) {
        rig r = make_rig(s.n_heads, s.n_kv_heads, s.head_dim);
        add_group(&r, 608, 3);
        add_tree(&r, 255, 1, 2);
        std::vector<uint16_t> got;
        assert_int_equal(launches_of(r, split_way(r, block_rows), &got), 2);
        rig_check(r, got);
        block_rows = 5 - block_rows;
    }
}

/* A long sequence among many short ones would hold up the rest of the device. */
static void one_long_row_is_split_among_short_ones(void **)
{
    rig r = make_rig(2, 1, 32);
    rig_add_row(&r, rig_add_sequence(&r, 1500), 1499);
    for (int i = 0; i < 40; i++)
        rig_add_row(&r, rig_add_sequence(&r, 40), 39);
    rig_way way = split_way(r, 1);
    way.n_processors = 4;
    std::vector<uint16_t> got;
    assert_int_equal(launches_of(r, way, &got), 2);
    rig_check(r, got);
    r.rows.erase(r.rows.begin()); /* the twin */
    assert_int_equal(launches_of(r, way, &got), 1);
}

/* ------------------------------------------------------------------ blocks of two sizes */

/* A chunk in blocks of up to 16 rows, and 21 rows of sequences of their own. */
static rig_way beside_a_chunk(rig *r)
{
    add_chunk(r, 20, 75);
    add_lone_rows(r);
    rig_way way;
    way.is_shared = false;
    way.block_rows = 16;
    return way;
}

/* As a rule where more of them may stand in line than the device holds in the large shape: here
 * it has no processors. Shapes whose queries all fit one fragment have one launch. */
static void many_small_blocks_beside_large_ones_have_their_own_launch(void **)
{
    for (const auto &s : shapes) {
        rig r = make_rig(s.n_heads, s.n_kv_heads, s.head_dim);
        const rig_way way = beside_a_chunk(&r);
        const bool has_large = 16 * s.n_heads / s.n_kv_heads > 16;
        std::vector<uint16_t> got;
        assert_int_equal(launches_of(r, way, &got), has_large ? 2 : 1);
        rig_same(r, rig_run(r, alone()), got);
    }
}

/* 25 blocks, so that 24 at most are small, for two KV heads; a processor takes two. */
static void few_small_blocks_share_the_launch_of_the_large_ones(void **)
{
    rig r = make_rig(8, 2, 64);
    rig_way way = beside_a_chunk(&r);
    std::vector<uint16_t> want, got;
    way.n_processors = 24;
    assert_int_equal(launches_of(r, way, &want), 1);
    way.n_processors = 23;
    assert_int_equal(launches_of(r, way, &got), 2);
    rig_same(r, want, got);
    rig full = make_rig(8, 2, 64);
    add_chunk(&full, 20, 84); /* four blocks of 16 rows */
    way.n_processors = 0;
    assert_int_equal(launches_of(full, way, &got), 1);
}

static void blocks_of_two_sizes_are_split_by_the_same_cuts(void **)
{
    rig r = make_rig(8, 2, 64);
    add_chunk(&r, 590, 622);
    for (int i = 0; i < 40; i++)
        rig_add_row(&r, rig_add_sequence(&r, 40 + i), 39 + i);
    rig_way way = split_way(r, 16);
    way.is_shared = false;
    way.n_processors = 12;
    way.scratch_bytes = attend_scratch_bytes(64, 40);
    std::vector<uint16_t> got;
    assert_int_equal(launches_of(r, way, &got), 3);
    rig_check(r, got);
}

/* Rows of 97 and 104 keys, 96 of them in common: 105 keys or 201, of 2 * 2 * 64 numbers. */
static void a_shared_page_counts_once_for_a_block(void **)
{
    rig r = make_rig(4, 2, 64);
    add_group(&r, 96, 2);
    for (int is_stacked = 0; is_stacked < 2; is_stacked++) {
        device_counters counters = {};
        count_into(&counters);
        rig_run(r, is_stacked ? rig_way() : alone());
        count_into(nullptr);
        const device_cost &cost = counters.of[DEVICE_ATTEND];
        const uint64_t n_keys = is_stacked ? 105 : 201, row_bytes = 2 * 4 * 64 * 2;
        assert_int_equal(cost.launches, 1);
        assert_int_equal(cost.bytes_read, n_keys * 2 * 2 * 64 * 2 + row_bytes);
        assert_int_equal(cost.bytes_written, row_bytes);
        assert_int_equal(cost.flops, 201 * 4 * 4 * 64);
    }
}

static void a_block_of_the_right_size_fills_a_tile(void **)
{
    assert_int_equal(attend_block_rows(32, 8, 128, 227 << 10), 32);
    assert_int_equal(attend_block_rows(32, 8, 128, 0), 16); /* 64 queries */
    assert_int_equal(attend_block_rows(9, 3, 64, 0), 40);   /* 30 of a warp's 32 */
    assert_int_equal(attend_block_rows(16, 1, 256, 0), 2);
    assert_int_equal(attend_block_rows(71, 1, 64, 0), 1);
    assert_int_equal(attend_block_rows(8, 2, 80, 0), 1);
}

/* Launches of a graph, which serves many steps, are larger than each needs. */
static void counts_that_are_rounded_up_change_no_bit(void **)
{
    for (const auto &s : shapes) {
        const rig r = mixed_rig(s.n_heads, s.n_kv_heads, s.head_dim);
        rig_way way;
        const std::vector<uint16_t> want = rig_run(r, way);
        way.n_padding = 5;
        rig_same(r, want, rig_run(r, way));
    }
    rig plain = make_rig(4, 2, 80);
    add_group(&plain, 64, 5);
    rig_way way;
    const std::vector<uint16_t> want = rig_run(plain, way);
    way.n_padding = 3;
    rig_same(plain, want, rig_run(plain, way));
}

static void split_keys_are_softmax_attention_when_rounded_up(void **)
{
    for (int head_dim : {64, 80}) {
        rig r = make_rig(4, 2, head_dim);
        add_group(&r, 608, 3);
        rig_way way = split_way(r, 2);
        way.n_padding = 4;
        std::vector<uint16_t> got;
        assert_int_equal(launches_of(r, way, &got), 2);
        rig_check(r, got);
    }
}

/* 12 queries of four heads are a tile of 16, 36 one of 64, 132 two of 128; 700 keys of 24 pages
 * or 768 of 24. What does not split has no pages to differ by. */
static void steps_of_like_size_are_one_launch(void **)
{
    attend_args a = {};
    a.n_heads = 4;
    a.n_kv_heads = 1;
    a.head_dim = 64;
    a.kv = {KV_BF16, nullptr, 1, 1, 1, 64};
    a.exact = true;
    const int rounded[][2] = {{4, 16}, {12, 16}, {36, 64}, {64, 64}, {132, 256}, {520, 1024}};
    for (const auto &queries : rounded) {
        a.block_queries_max = queries[0];
        a.n_pages_max = 21;
        const attend_split split = attend_round(&a);
        assert_int_equal(a.block_queries_max, queries[1]);
        assert_int_equal(split.n_parts, 1);
    }
    float scratch;
    a.exact = false;
    a.n_attend_rows = a.n_blocks = 2;
    a.n_processors = 100;
    a.scratch = &scratch;
    a.scratch_bytes = 1 << 20;
    const auto split_of = [&a](int n_pages) {
        attend_args b = a;
        b.block_queries_max = 4;
        b.n_pages_max = n_pages;
        b.split_keys = (uint64_t)n_pages * 64;
        return attend_round(&b);
    };
    assert_int_equal(split_of(24).n_parts, 3); /* of 8 pages each */
    assert_int_equal(split_of(25).n_parts, 4);
    assert_int_equal(split_of(257).n_parts, split_of(272).n_parts);
    assert_int_equal(split_of(257).n_pages, split_of(272).n_pages);
}

/* An 8k prefix and what follows, for 86 pages each: 86 + 86 + 86 + 2 would take a third longer
 * than four times 65. */
static void runs_of_pages_are_even(void **)
{
    assert_int_equal(attend_run_pages(260, 0, 86, 32), 65);
    assert_int_equal(attend_run_pages(258, 0, 86, 32), 86);
    assert_int_equal(attend_run_pages(258, 0, 3, 32), 9);
    assert_int_equal(attend_run_pages(258, 0, 3, 4), 65);
    assert_int_equal(attend_run_pages(12, 0, 1, 32), INT32_MAX); /* 8 are worth a run */
    assert_int_equal(attend_run_pages(13, 0, 1, 32), 7);
    assert_int_equal(attend_run_pages(4096, 0, (uint64_t)1 << 40, 32), INT32_MAX);
    for (int n_pages = 13; n_pages < 600; n_pages++)
        for (int share : {1, 9, 20, 100}) {
            const int pages = attend_run_pages(n_pages, 0, (uint64_t)share, 32);
            if (pages == INT32_MAX)
                continue;
            const int n_runs = (n_pages + pages - 1) / pages;
            assert_true(n_runs >= 2 && n_runs <= 32);
            assert_true(pages * n_runs - n_pages < n_runs); /* none is a page too long */
        }
}

/* 27 pages of its own for each warp: 72 + 72 + 72 + 44, and 44 + 27 are 71. */
static void the_last_run_makes_room_for_pages_of_single_rows(void **)
{
    assert_int_equal(attend_run_pages(260, 27, 86, 32), 72);
    assert_int_equal(attend_run_pages(260, 1000, 86, 32), 73); /* half a run at most */
    for (int n_pages = 13; n_pages < 600; n_pages++)
        for (int n_tail : {1, 10, 1000}) {
            const int pages = attend_run_pages(n_pages, n_tail, 20, 32);
            const int even = attend_run_pages(n_pages, 0, 20, 32);
            assert_true(pages == INT32_MAX ? even == pages : pages < n_pages && pages >= even);
        }
}

static void plain_keys_split_too(void **)
{
    rig r = make_rig(2, 1, 80);
    r.type = KV_F32;
    add_group(&r, 608, 2);
    std::vector<uint16_t> got;
    assert_int_equal(launches_of(r, split_way(r, 1), &got), 2);
    rig_check(r, got);
}

/* With nothing to win or no room, the answer is the exact one. */
static void what_cannot_be_split_has_the_bits_of_the_exact_mode(void **)
{
    rig r = make_rig(4, 2, 64);
    add_group(&r, 608, 5);
    const std::vector<uint16_t> want = rig_run(r, rig_way());
    rig_way way = split_way(r, 1);
    way.n_processors = 1; /* its blocks are busy with ten tiles as they are */
    std::vector<uint16_t> got;
    rig_way small = split_way(r, 5);
    small.scratch_bytes = 4096;
    for (const rig_way &w : {way, small}) {
        assert_int_equal(launches_of(r, w, &got), 1);
        rig_same(r, want, got);
    }
    way.n_processors = 40; /* the twin: here it is split, and bits differ */
    assert_int_equal(launches_of(r, way, &got), 2);
    assert_false(want == got);
}

int main()
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lone_rows_are_softmax_attention),
        cmocka_unit_test(stacked_rows_are_softmax_attention),
        cmocka_unit_test(no_company_changes_a_bit),
        cmocka_unit_test(rows_of_branches_have_the_bits_of_plain_rows),
        cmocka_unit_test(a_value_reaches_the_rows_that_see_it),
        cmocka_unit_test(a_value_that_is_no_number_makes_the_rows_that_see_it_nan),
        cmocka_unit_test(comparison_notices_a_wrong_answer),
        cmocka_unit_test(long_sequences_are_softmax_attention),
        cmocka_unit_test(sharp_scores_are_softmax_attention),
        cmocka_unit_test(float_keys_and_other_head_dims_are_softmax_attention),
        cmocka_unit_test(no_order_of_threads_changes_a_bit),
        cmocka_unit_test(split_keys_are_softmax_attention),
        cmocka_unit_test(one_long_row_is_split_among_short_ones),
        cmocka_unit_test(runs_of_pages_are_even),
        cmocka_unit_test(the_last_run_makes_room_for_pages_of_single_rows),
        cmocka_unit_test(plain_keys_split_too),
        cmocka_unit_test(counts_that_are_rounded_up_change_no_bit),
        cmocka_unit_test(split_keys_are_softmax_attention_when_rounded_up),
        cmocka_unit_test(steps_of_like_size_are_one_launch),
        cmocka_unit_test(what_cannot_be_split_has_the_bits_of_the_exact_mode),
        cmocka_unit_test(many_small_blocks_beside_large_ones_have_their_own_launch),
        cmocka_unit_test(few_small_blocks_share_the_launch_of_the_large_ones),
        cmocka_unit_test(blocks_of_two_sizes_are_split_by_the_same_cuts),
        cmocka_unit_test(a_shared_page_counts_once_for_a_block),
        cmocka_unit_test(a_block_of_the_right_size_fills_a_tile),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
