#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "engine/pool.h"

enum { ITEMS_MAX = 5000 };

/* Plain memory on purpose: a missing join is a data race that ThreadSanitizer reports. */
struct tally {
    unsigned seen[ITEMS_MAX];
    size_t n_items, n_threads;
    unsigned busy[64]; /* by thread; two calls at once on one index would lose counts */
};

static void count_item(void *ctx, size_t item, size_t thread)
{
    struct tally *t = ctx;
    if (item >= t->n_items || thread >= t->n_threads)
        abort();
    t->seen[item]++;
    t->busy[thread]++;
}

static const size_t thread_counts[] = {1, 2, 3, 8};

static void every_item_runs_exactly_once(void **state)
{
    (void)state;
    static const size_t sizes[] = {0, 1, 2, 3, 7, 8, 9, 64, 1000, ITEMS_MAX};
    for (size_t k = 0; k < sizeof thread_counts / sizeof thread_counts[0]; k++) {
        struct pool *p = NULL;
        assert_int_equal(pool_open(thread_counts[k], &p, NULL), 0);
        assert_int_equal(pool_threads(p), thread_counts[k]);
        for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
            static struct tally t;
            t = (struct tally){.n_items = sizes[i], .n_threads = thread_counts[k]};
            pool_run(p, count_item, &t, sizes[i]);
            size_t sum = 0;
            for (size_t item = 0; item < ITEMS_MAX; item++)
                assert_int_equal(t.seen[item], item < sizes[i]);
            for (size_t thread = 0; thread < thread_counts[k]; thread++)
                sum += t.busy[thread];
            assert_int_equal(sum, sizes[i]);
        }
        pool_close(p);
    }
}

/* Each job reads what the one before wrote: one that starts too early would see old values. */
struct chain {
    uint64_t cells[2][4];
    int from;
};

static void advance(void *ctx, size_t item, size_t thread)
{
    (void)thread;
    struct chain *c = ctx;
    const uint64_t *old = c->cells[c->from];
    c->cells[1 - c->from][item] = old[0] + old[1] + old[2] + old[3] + item;
}

static void thousands_of_tiny_jobs_see_each_other_complete(void **state)
{
    (void)state;
    for (size_t k = 0; k < sizeof thread_counts / sizeof thread_counts[0]; k++) {
        struct pool *p = NULL;
        assert_int_equal(pool_open(thread_counts[k], &p, NULL), 0);
        struct chain c = {{{1, 1, 1, 1}, {0}}, 0};
        uint64_t sum = 4; /* of all four cells: each round makes it 4 * sum + 0 + 1 + 2 + 3 */
        const int rounds = thread_counts[k] > 2 ? 2000 : 20000;
        for (int i = 0; i < rounds; i++) {
            pool_run(p, advance, &c, 4);
            c.from = 1 - c.from;
            sum = 4 * sum + 6;
        }
        const uint64_t *last = c.cells[c.from];
        assert_true(last[0] + last[1] + last[2] + last[3] == sum);
        pool_close(p);
    }
}

static void helpers_that_fell_asleep_wake_for_the_next_job(void **state)
{
    (void)state;
    struct pool *p = NULL;
    assert_int_equal(pool_open(3, &p, NULL), 0);
    for (int i = 0; i < 20; i++) {
        static struct tally t;
        usleep(2000);
        t = (struct tally){.n_items = 50, .n_threads = 3};
        pool_run(p, count_item, &t, 50);
        for (size_t item = 0; item < 50; item++)
            assert_int_equal(t.seen[item], 1);
    }
    pool_close(p);
}

static void a_pool_that_never_ran_closes(void **state)
{
    (void)state;
    for (int i = 0; i < 100; i++) {
        struct pool *p = NULL;
        assert_int_equal(pool_open(4, &p, NULL), 0);
        pool_close(p);
    }
    pool_close(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_item_runs_exactly_once),
        cmocka_unit_test(thousands_of_tiny_jobs_see_each_other_complete),
        cmocka_unit_test(helpers_that_fell_asleep_wake_for_the_next_job),
        cmocka_unit_test(a_pool_that_never_ran_closes),
    };
    return cmocka_run_group_tests_name("pool", tests, NULL, NULL);
}
