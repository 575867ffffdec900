/*
 * The marks of delivery_world.h stand for a database: the real one, asked after each step of
 * many random ones, says the same.
 */
#include <setjmp.h>
#include <sqlite3.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "../unit/store_make.h"
#include "base/rng.h"
#include "delivery_world.h"

enum { N_JOBS = 4, N_STEPS = 200, SEED = 20 };

static struct store *open_store(void **state, const char *name)
{
    struct store *s;
    assert_int_equal(store_open(path_in(state, name), STORE_OWNER, &s, NULL), 0);
    assert_int_equal(store_begin_run(s, &made_run, NULL), 0);
    return s;
}

/* Bit i: job i. */
static uint8_t ask(struct store *s, const char *condition)
{
    char sql[256];
    sqlite3_stmt *st;
    uint8_t jobs = 0;
    snprintf(sql, sizeof sql,
             "SELECT j.offset FROM outbox b JOIN jobs j ON j.job_id = b.job_id WHERE %s",
             condition);
    assert_int_equal(sqlite3_prepare_v2(store_handle(s), sql, -1, &st, NULL), SQLITE_OK);
    while (sqlite3_step(st) == SQLITE_ROW)
        jobs |= (uint8_t)(1u << sqlite3_column_int(st, 0));
    sqlite3_finalize(st);
    return jobs;
}

static void expect_same(struct store *s, const struct marks *m, struct made *made)
{
    for (int n = 0; n < N_JOBS; n++) {
        char *line;
        bool published;
        assert_int_equal(store_find(s, &made[n].job.source, made[n].job.payload_sha256, &line,
                                    &published, NULL),
                         0);
        assert_int_equal(line != NULL, m->stored >> n & 1);
        assert_int_equal(published, m->published >> n & 1);
        free(line);
    }
    assert_int_equal(ask(s, "b.published_at IS NULL AND b.superseded_at IS NOT NULL"),
                     m->superseded);
    assert_int_equal(ask(s, "b.published_at IS NULL AND b.offered_at IS NOT NULL"),
                     m->offered & ~m->published);
}

/* The program marks only what is stored. */
static void step(struct store *s, struct marks *m, struct made *made, uint64_t kind, int n)
{
    const uint8_t bit = (uint8_t)(1u << n);
    const struct job_source *source = &made[n].job.source;
    if (kind == 0 || !(m->stored & bit)) {
        assert_int_equal(put_made(s, "night", &made[n], NULL), 0);
        marks_store(m, bit);
    } else if (kind == 1) {
        assert_int_equal(store_mark_offered(s, &source, 1, NULL), 0);
        marks_offer(m, bit);
    } else if (kind == 2) {
        assert_int_equal(store_mark_published(s, &source, 1, NULL), 0);
        marks_publish(m, bit);
    } else {
        assert_int_equal(store_mark_superseded(s, &source, 1, NULL), 0);
        marks_supersede(m, bit);
    }
}

/* All below base, and one more. */
static void reconcile(struct store *s, struct marks *m, int base, int above)
{
    struct offset_bits settled = {.base = base};
    struct store_reconciled done;
    if (above >= base)
        offset_bits_settle(&settled, above);
    uint8_t jobs = 0;
    for (int n = 0; n < N_JOBS; n++)
        jobs |= (uint8_t)((n < base || n == above) << n);
    assert_int_equal(store_reconcile(s, "jobs", 0, &settled, &done, NULL), 0);
    marks_reconcile(m, jobs);
}

static void the_real_database_says_the_same(void **state)
{
    struct made made[N_JOBS];
    for (int n = 0; n < N_JOBS; n++)
        make_result(&made[n], "jobs", false, n);
    char name[32] = "0.db";
    struct store *s = open_store(state, name);
    struct marks m = {0};
    for (uint64_t i = 0; i < N_STEPS; i++) {
        const int n = (int)(rng_bits(SEED, i, 0) % N_JOBS);
        const uint64_t kind = rng_bits(SEED, i, 1) % 16;
        if (kind == 15) { /* a new database */
            store_close(s);
            snprintf(name, sizeof name, "%d.db", (int)i);
            s = open_store(state, name);
            m = (struct marks){0};
        } else if (kind == 14) { /* a restart */
            store_close(s);
            s = open_store(state, name);
        } else if (kind >= 12) {
            reconcile(s, &m, n, (int)(rng_bits(SEED, i, 2) % N_JOBS));
        } else {
            step(s, &m, made, kind % 4, n);
        }
        expect_same(s, &m, made);
    }
    store_close(s);
}

/* The twin: a mark that only one of both has is seen. */
static void a_difference_is_seen(void **state)
{
    struct made made;
    make_result(&made, "jobs", false, 0);
    struct store *s = open_store(state, "a.db");
    assert_int_equal(put_made(s, "night", &made, NULL), 0);
    const struct job_source *source = &made.job.source;
    assert_int_equal(store_mark_superseded(s, &source, 1, NULL), 0);
    assert_int_equal(ask(s, "b.superseded_at IS NOT NULL"), 1);
    assert_int_equal(ask(s, "b.offered_at IS NOT NULL"), 0);
    store_close(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(the_real_database_says_the_same, make_folder,
                                        remove_folder),
        cmocka_unit_test_setup_teardown(a_difference_is_seen, make_folder, remove_folder),
    };
    return cmocka_run_group_tests_name("delivery_store", tests, NULL, NULL);
}
