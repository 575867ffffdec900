/*
 * Every allocation of opening a prefix tree and of wanting a path fails in turn: the answer is
 * ERR_NOMEM, nothing is left behind, and the tree goes on. No other operation takes memory. Our
 * own allocations are caught by the linker (--wrap).
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/limits.h"
#include "engine/prefix.h"
#include "failing_alloc.h"
#include "kv_stamps.h"

enum { PAGES = 12, PROMPT = 200 };

static const struct prefix_options options = {.enabled = true, .evicts_by_demand = true};

static void opening_fails_cleanly_at_every_allocation(void **state)
{
    (void)state;
    struct kvpool *pool = stamps_open_pool(PAGES);
    int rc = ERR_NOMEM;
    long n = 0;
    while (rc != 0) {
        struct prefix_tree *tree = NULL;
        failing_alloc_arm(++n, false);
        rc = prefix_open(&options, pool, &tree, NULL);
        failing_alloc_disarm();
        assert_true(rc == 0 || rc == ERR_NOMEM);
        assert_true((rc == 0) == (tree != NULL));
        prefix_close(tree);
    }
    assert_true(n > PAGES);
    kvpool_close(pool);
}

static void run(struct prefix_tree *tree, const int32_t *tokens, size_t n)
{
    struct prefix_path *path = NULL;
    struct prefix_hit hit;
    int32_t pages[PAGES];
    assert_int_equal(prefix_want(tree, "x", tokens, n, PREFIX_NEXT, &path, NULL), 0);
    failing_alloc_arm(0, false);
    assert_true(prefix_start(tree, path, tokens, n, 0, pages, &hit));
    prefix_commit(tree, path, tokens, n, true, pages);
    prefix_stop(tree, path, tokens, n, pages, (n + KV_PAGE_TOKENS - 1) / KV_PAGE_TOKENS, false);
    failing_alloc_disarm();
    assert_int_equal(failing_alloc_asked(), 0);
}

/* The first two blocks are kept by their pages alone, the others are new. */
static void wanting_fails_cleanly_at_every_allocation(void **state)
{
    (void)state;
    struct kvpool *pool = stamps_open_pool(PAGES);
    struct prefix_tree *tree = NULL;
    assert_int_equal(prefix_open(&options, pool, &tree, NULL), 0);
    int32_t tokens[PROMPT] = {0};
    run(tree, tokens, 70);
    for (int i = 0; i < 2; i++) { /* a salt of the tree, and one that it has not yet */
        int rc = ERR_NOMEM;
        long n = 0;
        while (rc != 0) {
            struct prefix_path *path = NULL;
            failing_alloc_arm(++n, false);
            rc =
                prefix_want(tree, i == 0 ? "x" : "y", tokens, PROMPT, PREFIX_NEXT, &path, NULL);
            failing_alloc_disarm();
            assert_true(rc == 0 || rc == ERR_NOMEM);
            assert_true(prefix_check(tree));
            assert_true((rc == 0) == (path != NULL));
            prefix_unwant(tree, path);
        }
        assert_true(n > PROMPT / KV_PAGE_TOKENS);
    }
    prefix_close(tree);
    assert_int_equal(kvpool_free_pages(pool), PAGES);
    kvpool_close(pool);
}

/* Wanted nodes outlive their pages; what is published meanwhile finds nodes all the same. */
static void no_page_lacks_a_node_while_others_are_only_wanted(void **state)
{
    (void)state;
    struct kvpool *pool = stamps_open_pool(PAGES);
    struct prefix_tree *tree = NULL;
    assert_int_equal(prefix_open(&options, pool, &tree, NULL), 0);
    struct prefix_path *queued[20];
    int32_t tokens[PROMPT];
    for (int32_t i = 0; i < 20; i++) {
        for (size_t k = 0; k < PROMPT; k++)
            tokens[k] = i;
        run(tree, tokens, PROMPT);
        assert_int_equal(prefix_want(tree, "x", tokens, PROMPT, PREFIX_NEXT, &queued[i], NULL),
                         0);
        assert_true(prefix_check(tree));
    }
    assert_int_equal(kvpool_free_pages(pool) + kvpool_idle_pages(pool), PAGES);
    for (int i = 0; i < 20; i++)
        prefix_unwant(tree, queued[i]);
    prefix_close(tree);
    kvpool_close(pool);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(opening_fails_cleanly_at_every_allocation),
        cmocka_unit_test(wanting_fails_cleanly_at_every_allocation),
        cmocka_unit_test(no_page_lacks_a_node_while_others_are_only_wanted),
    };
    return cmocka_run_group_tests_name("prefix_alloc", tests, NULL, NULL);
}
