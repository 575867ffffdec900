#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "engine/kvpool.h"
#include "engine/pool.h"

enum { P = 7 };

static struct kvpool *open_pool(enum kv_type type)
{
    const struct kvpool_shape shape = {
        .n_pages = P, .n_layers = 3, .n_kv_heads = 2, .head_dim = 32, .type = type};
    struct kvpool *pool = NULL;
    assert_int_equal(kvpool_open(&shape, &pool, NULL), 0);
    return pool;
}

static void each_page_is_given_once_then_none(void **state)
{
    (void)state;
    struct kvpool *pool = open_pool(KV_BF16);
    bool taken[P] = {false};
    for (int i = 0; i < P; i++) {
        assert_int_equal(kvpool_free_pages(pool), P - i);
        const int32_t page = kvpool_acquire_page(pool);
        assert_in_range(page, 0, P - 1);
        assert_false(taken[page]);
        taken[page] = true;
        assert_true(kvpool_check(pool));
    }
    assert_int_equal(kvpool_acquire_page(pool), KVPOOL_NO_PAGE);
    assert_int_equal(kvpool_free_pages(pool), 0);
    kvpool_release_page(pool, 4);
    assert_int_equal(kvpool_acquire_page(pool), 4);
    assert_int_equal(kvpool_acquire_page(pool), KVPOOL_NO_PAGE);
    assert_true(kvpool_check(pool));
    kvpool_close(pool);
}

static void a_shared_page_is_free_after_its_last_holder(void **state)
{
    (void)state;
    struct kvpool *pool = open_pool(KV_F32);
    const int32_t page = kvpool_acquire_page(pool);
    kvpool_share_page(pool, page);
    kvpool_share_page(pool, page);
    for (int i = 0; i < 2; i++) {
        kvpool_release_page(pool, page);
        assert_int_equal(kvpool_free_pages(pool), P - 1);
        assert_true(kvpool_check(pool));
    }
    kvpool_release_page(pool, page);
    assert_int_equal(kvpool_free_pages(pool), P);
    kvpool_close(pool);
}

static void blocks_fill_the_pool_without_overlap(void **state)
{
    (void)state;
    /* 32 keys and 32 values of 32 dims; int8 with a float32 scale each. */
    static const size_t block_bytes[] = {
        [KV_F32] = 2 * 32 * 32 * 4, [KV_BF16] = 2 * 32 * 32 * 2, [KV_INT8] = 2 * 32 * (32 + 4)};
    for (int type = KV_F32; type <= KV_INT8; type++) {
        struct kvpool *pool = open_pool((enum kv_type)type);
        const size_t bytes = block_bytes[type];
        assert_int_equal(kvpool_bytes(pool), bytes * 3 * 2 * P);
        uint8_t n = 0;
        for (size_t layer = 0; layer < 3; layer++)
            for (int32_t page = 0; page < P; page++)
                for (size_t head = 0; head < 2; head++)
                    memset(kvpool_block(pool, layer, page, head), ++n, bytes);
        n = 0;
        for (size_t layer = 0; layer < 3; layer++)
            for (int32_t page = 0; page < P; page++)
                for (size_t head = 0; head < 2; head++) {
                    const uint8_t *block = kvpool_block(pool, layer, page, head);
                    assert_int_equal((uintptr_t)block % KERNELS_ALIGN, 0);
                    n++;
                    for (size_t i = 0; i < bytes; i++)
                        if (block[i] != n)
                            fail_msg("layer %zu page %d head %zu is overwritten", layer, page,
                                     head);
                }
        kvpool_close(pool);
    }
}

static void a_cached_page_stays_until_it_is_neither_held_nor_cached(void **state)
{
    (void)state;
    struct kvpool *pool = open_pool(KV_BF16);
    const int32_t page = kvpool_acquire_page(pool);
    kvpool_cache_page(pool, page);
    assert_false(kvpool_is_idle(pool, page));
    for (int i = 0; i < 2; i++) {
        memset(kvpool_block(pool, 1, page, 1), 0x5a, 64);
        kvpool_release_page(pool, page);
        assert_true(kvpool_is_idle(pool, page));
        assert_int_equal(kvpool_idle_pages(pool), 1);
        assert_int_equal(kvpool_free_pages(pool), P - 1);
        assert_true(kvpool_check(pool));
        assert_int_equal(*(uint8_t *)kvpool_block(pool, 1, page, 1), 0x5a);
        kvpool_share_page(pool, page);
        assert_int_equal(kvpool_idle_pages(pool), 0);
    }
    kvpool_uncache_page(pool, page); /* still held */
    assert_int_equal(kvpool_free_pages(pool), P - 1);
    kvpool_cache_page(pool, page);
    kvpool_release_page(pool, page);
    kvpool_uncache_page(pool, page);
    assert_int_equal(kvpool_free_pages(pool), P);
    assert_int_equal(kvpool_idle_pages(pool), 0);
    assert_true(kvpool_check(pool));
    kvpool_close(pool);
}

/* Every byte of a page gets a value of its own page, layer, head and place. */
static void fill(struct kvpool *pool, int32_t page, size_t bytes)
{
    for (size_t layer = 0; layer < 3; layer++)
        for (size_t head = 0; head < 2; head++)
            for (size_t i = 0; i < bytes; i++)
                ((uint8_t *)kvpool_block(pool, layer, page, head))[i] =
                    (uint8_t)rng_bits((uint64_t)page, layer * 2 + head, i);
}

static void a_copy_has_all_bytes_and_changes_no_other_page(void **state)
{
    (void)state;
    static const size_t block_bytes[] = {
        [KV_F32] = 2 * 32 * 32 * 4, [KV_BF16] = 2 * 32 * 32 * 2, [KV_INT8] = 2 * 32 * (32 + 4)};
    struct pool *threads = NULL;
    assert_int_equal(pool_open(2, &threads, NULL), 0);
    for (int run = 0; run < 2 * (KV_INT8 + 1); run++) {
        const enum kv_type type = (enum kv_type)(run / 2);
        struct kvpool *pool = open_pool(type);
        if (run % 2 == 1)
            kvpool_copy_with(pool, threads);
        const size_t bytes = block_bytes[type];
        for (int32_t page = 0; page < P; page++)
            fill(pool, kvpool_acquire_page(pool), bytes);
        kvpool_copy_page(pool, 2, 5);
        for (size_t i = 0; i < 3 * 2 * P * bytes; i++) {
            const size_t at = i % bytes, head = i / bytes % 2, layer = i / bytes / 2 % 3;
            const int32_t page = (int32_t)(i / bytes / 6);
            const uint8_t *block = kvpool_block(pool, layer, page, head);
            const uint64_t origin = page == 2 ? 5 : (uint64_t)page;
            if (block[at] != (uint8_t)rng_bits(origin, layer * 2 + head, at))
                fail_msg("page %d layer %zu head %zu byte %zu", page, layer, head, at);
        }
        kvpool_close(pool);
    }
    pool_close(threads);
}

static void random_use_agrees_with_plain_counting(void **state)
{
    (void)state;
    struct kvpool *pool = open_pool(KV_BF16);
    unsigned held[P] = {0};
    for (uint64_t i = 0; i < 20000; i++) {
        const int32_t page = (int32_t)(rng_bits(1, 0, i) % P);
        switch (rng_bits(1, 1, i) % 3) {
        case 0: {
            const int32_t got = kvpool_acquire_page(pool);
            if (got == KVPOOL_NO_PAGE) {
                for (int k = 0; k < P; k++)
                    assert_true(held[k] > 0);
            } else {
                assert_int_equal(held[got], 0);
                held[got] = 1;
            }
            break;
        }
        case 1:
            if (held[page] > 0 && held[page] < 5) {
                kvpool_share_page(pool, page);
                held[page]++;
            }
            break;
        default:
            if (held[page] > 0) {
                kvpool_release_page(pool, page);
                held[page]--;
            }
        }
        size_t n_free = 0;
        for (int k = 0; k < P; k++)
            n_free += held[k] == 0;
        assert_int_equal(kvpool_free_pages(pool), n_free);
        assert_true(kvpool_check(pool));
    }
    kvpool_close(pool);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_page_is_given_once_then_none),
        cmocka_unit_test(a_shared_page_is_free_after_its_last_holder),
        cmocka_unit_test(blocks_fill_the_pool_without_overlap),
        cmocka_unit_test(a_cached_page_stays_until_it_is_neither_held_nor_cached),
        cmocka_unit_test(a_copy_has_all_bytes_and_changes_no_other_page),
        cmocka_unit_test(random_use_agrees_with_plain_counting),
    };
    return cmocka_run_group_tests_name("kvpool", tests, NULL, NULL);
}
