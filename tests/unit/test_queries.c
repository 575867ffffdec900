/* Every query of ops/queries.sql against a database that the store made. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <sqlite3.h>

#include "store_make.h"

enum { GOOD = 40, BAD = 3 };

static struct store *fill(void **state)
{
    struct store *s = NULL;
    struct err e = {0};
    struct made m;
    struct store_run second = made_run;
    second.run_id = "second";
    second.started_s++;
    const struct store_run *runs[] = {&made_run, &second};
    if (store_open(path_in(state, "a.db"), STORE_OWNER, &s, &e) != 0)
        fail_msg("%s", e.text);
    for (int r = 0; r < 2; r++) {
        assert_int_equal(store_begin_run(s, runs[r], &e), 0);
        for (int n = 1; n <= GOOD + BAD; n++) {
            if (n <= GOOD)
                make_result(&m, "in.jsonl", true, n);
            else
                make_failure(&m, "in.jsonl", true, n, "invalid_json_line");
            struct result_draft drafts[] = {{"all", 1, 4, 2}, {"lookup", 1, 4, 2}};
            m.result.drafts = n == 1 ? drafts : NULL;
            m.result.n_drafts = n == 1 ? 2 : 0;
            if (n <= GOOD)
                m.result.metrics.miss = n % 2 ? "cold" : "differs";
            if (put_made(s, runs[r]->run_id, &m, &e) != 0)
                fail_msg("%s", e.text);
        }
    }
    return s;
}

static char *read_queries(void)
{
    FILE *f = fopen(SHEAF_TEST_DATA "/../ops/queries.sql", "r");
    assert_non_null(f);
    char *text = calloc(1, 65536);
    assert_true(fread(text, 1, 65535, f) > 0);
    fclose(f);
    return text;
}

/* The comment in front of each query is its name; the counts follow from fill(). */
static const struct {
    const char *name;
    int rows;
} expected[] = {
    {"The runs, newest first", 2},
    {"Latency percentiles of a run", 8},
    {"Which jobs failed and why, grouped", 2},
    {"Each failed job with its line", 2 * BAD},
    {"The slowest jobs of a run", 20},
    {"What was the answer to one job?", 2},
    {"Tokens per second over time", 2}, /* all within ten seconds, in each of two runs */
    {"How answers ended", 2},
    {"Answers that rest on each document", 3},
    {"Two runs side by side: the same job, another answer?", GOOD + BAD},
    {"Answers stored and not yet handed over", 2 * (GOOD + BAD)},
    {"What each group of jobs shared, the largest first", 2},
    {"How many drafted tokens were accepted, by who drafted them and how far ahead", 2 * 2},
    {"Why prompt tokens had to be computed", 4}, /* two reasons in each of two runs */
};

static int count_rows(sqlite3_stmt *st)
{
    int rows = 0, rc;
    while ((rc = sqlite3_step(st)) == SQLITE_ROW)
        rows++;
    assert_int_equal(rc, SQLITE_DONE);
    return rows;
}

static void every_query_runs_and_finds_what_is_there(void **state)
{
    struct store *s = fill(state);
    char *text = read_queries();
    const char *at = text;
    for (size_t i = 0; i < sizeof expected / sizeof expected[0]; i++) {
        sqlite3_stmt *st = NULL;
        const char *tail;
        if (sqlite3_prepare_v2(store_handle(s), at, -1, &st, &tail) != SQLITE_OK)
            fail_msg("%s: %s", expected[i].name, sqlite3_errmsg(store_handle(s)));
        assert_non_null(st);
        const char *name = strstr(at, expected[i].name);
        if (!name || name > tail)
            fail_msg("query %zu is not '%s'", i, expected[i].name);
        const int id = sqlite3_bind_parameter_index(st, ":id");
        if (id)
            sqlite3_bind_text(st, id, "q-7", -1, SQLITE_STATIC);
        const int rows = count_rows(st);
        if (rows != expected[i].rows)
            fail_msg("%s: %d rows, not %d", expected[i].name, rows, expected[i].rows);
        sqlite3_finalize(st);
        at = tail;
    }
    assert_int_equal(strspn(at, " \n"), strlen(at)); /* no query was left out */
    free(text);
    store_close(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(every_query_runs_and_finds_what_is_there, make_folder,
                                        remove_folder),
    };
    return cmocka_run_group_tests_name("queries", tests, NULL, NULL);
}
