/* KV pages and tokens that are moved: every byte of the pool, counted out one bracket of
 * [L][P][KVH][2][32][HD] after the other. */
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

enum { N_PAGES = 5, PAGE_TOKENS = 32 };

struct pool {
    kv_type type;
    int n_layers, n_kv_heads, head_dim;
};
static const pool POOLS[] = {
    {KV_BF16, 1, 1, 16}, {KV_F32, 2, 2, 16},   {KV_BF16, 3, 3, 64},
    {KV_F32, 3, 1, 96},  {KV_BF16, 2, 8, 128}, {KV_BF16, 1030, 1, 8},
};

static size_t token_bytes(const pool &p)
{
    return (size_t)p.head_dim * (p.type == KV_BF16 ? 2 : 4);
}

static size_t halves_of_page(const pool &p)
{
    return (size_t)p.n_kv_heads * 2;
}

static size_t page_bytes(const pool &p) /* of one layer */
{
    return halves_of_page(p) * PAGE_TOKENS * token_bytes(p);
}

static uint8_t *page_at(const pool &p, host_array<uint8_t> &bytes, int layer, int page)
{
    return &bytes[((size_t)layer * N_PAGES + (size_t)page) * page_bytes(p)];
}

static host_array<uint8_t> some_pool(const pool &p)
{
    return random_bytes(8, (size_t)p.n_layers * N_PAGES * page_bytes(p));
}

static kv_memory memory_of(const pool &p, const device_array<uint8_t> &bytes)
{
    return {p.type, bytes.at, p.n_layers, N_PAGES, p.n_kv_heads, p.head_dim};
}

static void a_copied_page_is_the_page_in_every_layer(void **)
{
    for (const pool &p : POOLS) {
        host_array<uint8_t> want = some_pool(p);
        const device_array<uint8_t> bytes(want);
        copy_page(NULL, memory_of(p, bytes), 4, 0);
        copy_page(NULL, memory_of(p, bytes), 1, 3);
        copy_page(NULL, memory_of(p, bytes), 2, 2);
        for (int l = 0; l < p.n_layers; l++) {
            memcpy(page_at(p, want, l, 4), page_at(p, want, l, 0), page_bytes(p));
            memcpy(page_at(p, want, l, 1), page_at(p, want, l, 3), page_bytes(p));
        }
        assert_true(same_bytes("pool", want, bytes.read()));
    }
}

static void move_in(const pool &p, host_array<uint8_t> &bytes, int to, size_t to_slot, int from,
                    size_t from_slot)
{
    for (int l = 0; l < p.n_layers; l++)
        for (size_t half = 0; half < halves_of_page(p); half++)
            memcpy(page_at(p, bytes, l, to) + (half * PAGE_TOKENS + to_slot) * token_bytes(p),
                   page_at(p, bytes, l, from) +
                       (half * PAGE_TOKENS + from_slot) * token_bytes(p),
                   token_bytes(p));
}

static void a_moved_token_is_the_token_in_every_layer_and_head(void **)
{
    static const struct {
        int to, to_slot, from, from_slot;
    } moves[] = {{0, 0, 4, 31}, {4, 31, 3, 1}, {2, 7, 2, 8}, {2, 8, 2, 7}, {1, 5, 1, 5}};
    for (const pool &p : POOLS) {
        host_array<uint8_t> want = some_pool(p);
        const device_array<uint8_t> bytes(want);
        for (const auto &m : moves) {
            move_token(NULL, memory_of(p, bytes), m.to, m.to_slot, m.from, m.from_slot);
            move_in(p, want, m.to, (size_t)m.to_slot, m.from, (size_t)m.from_slot);
        }
        assert_true(same_bytes("pool", want, bytes.read()));
    }
}

static void a_gathered_page_is_its_layers_in_a_row(void **)
{
    for (const pool &p : POOLS)
        for (int page : {0, 3, N_PAGES - 1}) {
            host_array<uint8_t> all = some_pool(p);
            const device_array<uint8_t> bytes(all);
            device_array<uint8_t> out((size_t)p.n_layers * page_bytes(p));
            gather_page(NULL, memory_of(p, bytes), page, out.at);
            host_array<uint8_t> want;
            for (int l = 0; l < p.n_layers; l++)
                want.insert(want.end(), page_at(p, all, l, page),
                            page_at(p, all, l, page) + page_bytes(p));
            assert_true(same_bytes("page", want, out.read()));
            assert_true(same_bytes("pool", all, bytes.read()));
        }
}

static void a_scattered_page_is_in_its_place_and_nowhere_else(void **)
{
    for (const pool &p : POOLS)
        for (int page : {0, 3, N_PAGES - 1}) {
            host_array<uint8_t> want = some_pool(p);
            const device_array<uint8_t> bytes(want);
            const host_array<uint8_t> in = random_bytes(9, (size_t)p.n_layers * page_bytes(p));
            const device_array<uint8_t> from(in);
            scatter_page(NULL, memory_of(p, bytes), page, from.at);
            for (int l = 0; l < p.n_layers; l++)
                memcpy(page_at(p, want, l, page), &in[(size_t)l * page_bytes(p)],
                       page_bytes(p));
            assert_true(same_bytes("pool", want, bytes.read()));
        }
}

static void pinned_memory_is_gathered_to_and_scattered_from(void **)
{
    const pool &p = POOLS[2];
    const size_t n = (size_t)p.n_layers * page_bytes(p);
    host_array<uint8_t> want = some_pool(p);
    const device_array<uint8_t> bytes(want);
    void *pinned = pinned_alloc(n);
    gather_page(NULL, memory_of(p, bytes), 1, pinned);
    scatter_page(NULL, memory_of(p, bytes), 4, pinned);
    stream_wait(NULL);
    pinned_free(pinned);
    for (int l = 0; l < p.n_layers; l++)
        memcpy(page_at(p, want, l, 4), page_at(p, want, l, 1), page_bytes(p));
    assert_true(same_bytes("pool", want, bytes.read()));
}

static void a_page_that_is_not_copied_is_seen(void **)
{
    const pool &p = POOLS[2];
    host_array<uint8_t> want = some_pool(p);
    const device_array<uint8_t> bytes(want);
    copy_page(NULL, memory_of(p, bytes), 4, 0);
    for (int l = 0; l < p.n_layers - 1; l++) /* as if the last layer were left out */
        memcpy(page_at(p, want, l, 4), page_at(p, want, l, 0), page_bytes(p));
    ASSERT_DIFFERS(same_bytes("pool", want, bytes.read()));
}

static void pages_count_the_bytes_that_they_move(void **)
{
    const pool &p = POOLS[2]; /* 3 layers, 3 KV heads of 64 elements of 2 bytes */
    const device_array<uint8_t> bytes(some_pool(p));
    device_counters counters = {};
    count_into(&counters);
    copy_page(NULL, memory_of(p, bytes), 1, 0);
    move_token(NULL, memory_of(p, bytes), 1, 3, 0, 5);
    count_into(NULL);
    const uint64_t token = 3 * 3 * 2 * 64 * 2;
    assert_int_equal(counters.of[DEVICE_PAGES].launches, 2);
    assert_int_equal(counters.of[DEVICE_PAGES].bytes_read, 33 * token);
    assert_int_equal(counters.of[DEVICE_PAGES].bytes_written, 33 * token);
}

static void what_stays_in_its_place_is_no_launch(void **)
{
    const pool &p = POOLS[0];
    const device_array<uint8_t> bytes(some_pool(p));
    const uint64_t before = emu_count().launches;
    copy_page(NULL, memory_of(p, bytes), 1, 1);
    move_token(NULL, memory_of(p, bytes), 1, 30, 1, 30);
    assert_int_equal(emu_count().launches, before);
    assert_null(last_error());
}

int main()
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_copied_page_is_the_page_in_every_layer),
        cmocka_unit_test(a_moved_token_is_the_token_in_every_layer_and_head),
        cmocka_unit_test(a_gathered_page_is_its_layers_in_a_row),
        cmocka_unit_test(a_scattered_page_is_in_its_place_and_nowhere_else),
        cmocka_unit_test(pinned_memory_is_gathered_to_and_scattered_from),
        cmocka_unit_test(a_page_that_is_not_copied_is_seen),
        cmocka_unit_test(pages_count_the_bytes_that_they_move),
        cmocka_unit_test(what_stays_in_its_place_is_no_launch),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
