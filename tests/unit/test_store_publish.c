/* What becomes of stored answers on their way to a topic. */
#include <setjmp.h>
#include <sqlite3.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "store_make.h"

enum { N = 8 };

/* Answers to records 0..N-1 of topic "jobs", partition 0. */
static struct store *open_with_answers(void **state, struct made *made)
{
    struct store *s;
    assert_int_equal(store_open(path_in(state, "a.db"), STORE_OWNER, &s, NULL), 0);
    assert_int_equal(store_begin_run(s, &made_run, NULL), 0);
    for (int n = 0; n < N; n++) {
        make_result(&made[n], "jobs", false, n);
        assert_int_equal(put_made(s, "night", &made[n], NULL), 0);
    }
    return s;
}

/* "published/superseded/waiting" as a reader of the tables counts them. */
static const char *count(struct store *s)
{
    static char text[64];
    sqlite3_stmt *st;
    assert_int_equal(sqlite3_prepare_v2(store_handle(s),
                                        "SELECT sum(published_at IS NOT NULL), "
                                        "sum(published_at IS NULL AND superseded_at IS NOT "
                                        "NULL), sum(published_at IS NULL AND superseded_at IS "
                                        "NULL) FROM outbox",
                                        -1, &st, NULL),
                     SQLITE_OK);
    assert_int_equal(sqlite3_step(st), SQLITE_ROW);
    snprintf(text, sizeof text, "%d/%d/%d", sqlite3_column_int(st, 0),
             sqlite3_column_int(st, 1), sqlite3_column_int(st, 2));
    sqlite3_finalize(st);
    return text;
}

static int64_t ask_run(struct store *s, const char *column)
{
    char sql[128];
    snprintf(sql, sizeof sql, "SELECT %s FROM v_runs", column);
    return ask_s64(s, sql);
}

/* 0, 1 and 2 are below the committed offset, 5 above it is settled too. */
static struct offset_bits settled_of_group(void)
{
    struct offset_bits settled = {.base = 3};
    offset_bits_settle(&settled, 5);
    return settled;
}

static void what_was_offered_and_is_settled_was_published(void **state)
{
    struct made made[N];
    struct store *s = open_with_answers(state, made);
    const struct job_source *offered[] = {&made[1].job.source, &made[5].job.source,
                                          &made[6].job.source};
    assert_int_equal(store_mark_offered(s, offered, 3, NULL), 0);
    assert_string_equal(count(s), "0/0/8");
    const struct job_source *taken_back[] = {&made[2].job.source};
    assert_int_equal(store_mark_offered(s, taken_back, 1, NULL), 0);
    assert_int_equal(store_mark_withdrawn(s, taken_back, 1, NULL), 0);

    const struct offset_bits settled = settled_of_group();
    struct store_reconciled done;
    assert_int_equal(store_reconcile(s, "jobs", 0, &settled, &done, NULL), 0);
    assert_int_equal(done.n_published, 2);  /* 1 and 5 */
    assert_int_equal(done.n_superseded, 2); /* 0 and 2: another worker's answers are visible */
    assert_string_equal(count(s), "2/2/4");
    assert_int_equal(ask_run(s, "unpublished"), 4);
    assert_int_equal(ask_run(s, "superseded"), 2);

    assert_int_equal(store_reconcile(s, "jobs", 0, &settled, &done, NULL), 0);
    assert_int_equal(done.n_published + done.n_superseded, 0);
    store_close(s);
}

static void only_that_partition_of_that_topic_is_looked_at(void **state)
{
    struct made made[N];
    struct store *s = open_with_answers(state, made);
    const struct offset_bits all = {.base = 1000};
    struct store_reconciled done;
    assert_int_equal(store_reconcile(s, "jobs", 1, &all, &done, NULL), 0);
    assert_int_equal(store_reconcile(s, "other", 0, &all, &done, NULL), 0);
    assert_string_equal(count(s), "0/0/8");
    store_close(s);
}

static void lines_of_files_are_no_records(void **state)
{
    struct made made[N], line;
    struct store *s = open_with_answers(state, made);
    make_result(&line, "jobs", true, 0);
    assert_int_equal(put_made(s, "night", &line, NULL), 0);
    const struct offset_bits all = {.base = 1000};
    struct store_reconciled done;
    assert_int_equal(store_reconcile(s, "jobs", 0, &all, &done, NULL), 0);
    assert_int_equal(done.n_superseded, N);
    assert_string_equal(count(s), "0/8/1");
    store_close(s);
}

static int refuse_line(void *ctx, const struct job_source *source, const char *custom_id,
                       const char *line, struct err *e)
{
    (void)ctx, (void)custom_id, (void)line;
    return ERR_SET(e, ERR_STATE, "%lld waits", (long long)source->offset);
}

static void what_is_superseded_waits_no_more_until_it_is_published_after_all(void **state)
{
    struct made made[N];
    struct store *s = open_with_answers(state, made);
    const struct job_source *sources[N];
    for (int n = 0; n < N; n++)
        sources[n] = &made[n].job.source;
    assert_int_equal(store_mark_superseded(s, sources, N, NULL), 0);
    assert_string_equal(count(s), "0/8/0");
    assert_int_equal(store_each_unpublished(s, refuse_line, NULL, NULL), 0);
    assert_int_equal(store_mark_published(s, sources, 1, NULL), 0);
    assert_string_equal(count(s), "1/7/0");
    assert_int_equal(ask_run(s, "superseded"), 7);
    store_close(s);
}

static void a_mark_without_a_row_marks_nothing(void **state)
{
    struct made made[N], missing;
    struct store *s = open_with_answers(state, made);
    make_result(&missing, "jobs", false, 99);
    const struct job_source *sources[] = {&made[0].job.source, &missing.job.source};
    struct err e = {0};
    assert_int_equal(store_mark_superseded(s, sources, 2, &e), ERR_NOTFOUND);
    assert_non_null(strstr(e.text, "jobs-0-99"));
    assert_string_equal(count(s), "0/0/8");
    store_close(s);
}

static void a_stored_error_is_found_again(void **state)
{
    struct made made[N], bad;
    struct store *s = open_with_answers(state, made);
    make_failure(&bad, "jobs", false, 20, "invalid_json_line");
    assert_int_equal(put_made(s, "night", &bad, NULL), 0);
    struct job_error error;
    assert_int_equal(store_find_error(s, &bad.job.source, &error, NULL), 0);
    assert_int_equal(error.status, 400);
    assert_string_equal(error.code, "invalid_json_line");
    assert_string_equal(error.message, "line 20: invalid_json_line");
    assert_int_equal(store_find_error(s, &made[0].job.source, &error, NULL), 0);
    assert_int_equal(error.status, 0);
    store_close(s);
}

static void answers_belong_to_one_group_of_one_cluster(void **state)
{
    struct store *s;
    const char *path = path_in(state, "a.db");
    assert_int_equal(store_open(path, STORE_OWNER, &s, NULL), 0);
    assert_int_equal(store_claim_topic(s, "jobs", "c1", "night", NULL), 0);
    assert_int_equal(store_claim_topic(s, "others", "c2", "day", NULL), 0);
    store_close(s);
    assert_int_equal(store_open(path, STORE_OWNER, &s, NULL), 0);
    assert_int_equal(store_claim_topic(s, "jobs", "c1", "night", NULL), 0);
    assert_int_equal(store_claim_topic(s, "jobs", NULL, "night", NULL), 0);
    struct err e = {0};
    assert_int_equal(store_claim_topic(s, "jobs", "c1", "day", &e), ERR_STATE);
    assert_non_null(strstr(e.text, "jobs of the group night, and this is day"));
    assert_non_null(strstr(e.text, "use another database"));
    err_clear(&e);
    assert_int_equal(store_claim_topic(s, "jobs", "c2", "night", &e), ERR_STATE);
    assert_non_null(strstr(e.text, "cluster c1, and this is c2"));
    store_close(s);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, make_folder, remove_folder)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(what_was_offered_and_is_settled_was_published),
        TEST(only_that_partition_of_that_topic_is_looked_at),
        TEST(lines_of_files_are_no_records),
        TEST(what_is_superseded_waits_no_more_until_it_is_published_after_all),
        TEST(a_mark_without_a_row_marks_nothing),
        TEST(a_stored_error_is_found_again),
        TEST(answers_belong_to_one_group_of_one_cluster),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
