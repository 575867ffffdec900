/*
 * Several workers' databases in one. What must come out is written down by hand or summed up
 * here from what went in; the store's own functions only fill the inputs.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#include <sqlite3.h>

#include "base/sha256.h"
#include "io/store_merge.h"
#include "io/store_upkeep.h"
#include "store_make.h"

static struct store *open_run(const char *path, const struct store_run *run)
{
    struct err e = {0};
    struct store *s = NULL;
    if (store_open(path, STORE_OWNER, &s, &e) != 0 || store_begin_run(s, run, &e) != 0)
        fail_msg("%s", e.text);
    return s;
}

static void run_sql(struct store *s, const char *sql)
{
    if (sqlite3_exec(store_handle(s), sql, NULL, NULL, NULL) != SQLITE_OK)
        fail_msg("%s: %s", sql, sqlite3_errmsg(store_handle(s)));
}

static struct made made;

/* The answer of `worker` to record n. */
static void answer(struct store *s, const char *run_id, int n, const char *worker, bool publish)
{
    struct err e = {0};
    const struct job_source *sources[] = {&made.job.source};
    make_result(&made, "jobs", false, n);
    made.result.worker_id = worker;
    snprintf(made.line, sizeof made.line, "{\"custom_id\":\"q-%d\",\"by\":\"%s\"}", n, worker);
    if (put_made(s, run_id, &made, &e) != 0 ||
        (publish && store_mark_published(s, sources, 1, &e) != 0))
        fail_msg("%s", e.text);
}

static void merge_ok(struct store *into, const char *path, struct merge_counts *counts)
{
    struct err e = {0};
    *counts = (struct merge_counts){0};
    if (store_merge(into, path, counts, &e) != 0)
        fail_msg("%s", e.text);
}

static void note_fault(void *ctx, const char *sentence)
{
    (void)ctx;
    print_error("%s\n", sentence);
}

static size_t faults(struct store *s)
{
    struct store_census census;
    struct err e = {0};
    size_t n = 0;
    if (store_check(s, note_fault, NULL, &n, &census, &e) != 0)
        fail_msg("%s", e.text);
    return n;
}

static struct store *open_out(void **state, const char *name)
{
    struct err e = {0};
    struct store *s = NULL;
    if (store_open(path_in(state, name), STORE_OWNER, &s, &e) != 0)
        fail_msg("%s", e.text);
    return s;
}

/* Everything that people see of all jobs, as one hash. */
static void digest(struct store *s, char hex[SHA256_HEX_BYTES])
{
    static const char sql[] =
        "SELECT group_concat(quote(custom_id) || quote(run_id) || quote(worker_id) || "
        "quote(answer) || quote(published_at IS NULL) || quote(prompt_tokens) || "
        "quote(stored_at) || quote(attempt), ';') FROM (SELECT * FROM v_jobs ORDER BY topic, "
        "partition, offset, payload_sha256)";
    sqlite3_stmt *st = NULL;
    struct err e = {0};
    assert_int_equal(sqlite3_prepare_v2(store_handle(s), sql, -1, &st, NULL), SQLITE_OK);
    assert_int_equal(sqlite3_step(st), SQLITE_ROW);
    assert_int_equal(
        sha256_hex(sqlite3_column_text(st, 0), (size_t)sqlite3_column_bytes(st, 0), hex, &e),
        0);
    sqlite3_finalize(st);
}

static void file_digest(const char *path, char hex[SHA256_HEX_BYTES])
{
    struct err e = {0};
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    assert_int_equal(sha256_hex_stream(f, hex, &e), 0);
    fclose(f);
}

/*
 * a: 1..20 published, 21..25 waiting, 26 superseded.
 * b: 16..30 published, but 21 and 22 are there only waiting.
 * So of a remain 1..20, 21 and 22 (first there); of b 23..30.
 */
static void make_two(void **state)
{
    struct store *a = open_run(path_in(state, "a.db"), &made_run);
    struct store_run later = made_run;
    later.started_s += 50;
    struct store *b = open_run(path_in(state, "b.db"), &later);
    for (int n = 1; n <= 26; n++)
        answer(a, "night", n, "a", n <= 20);
    run_sql(a, "UPDATE outbox SET superseded_at = 1.5 WHERE line LIKE '%q-26\"%'");
    for (int n = 16; n <= 30; n++)
        answer(b, "night", n, "b", n != 21 && n != 22);
    store_close(a);
    store_close(b);
}

static void each_job_is_there_once_and_the_published_answer_stays(void **state)
{
    struct merge_counts counts;
    make_two(state);
    struct store *out = open_out(state, "out.db");
    merge_ok(out, path_in(state, "a.db"), &counts);
    assert_int_equal(counts.added, 26);
    merge_ok(out, path_in(state, "b.db"), &counts);
    assert_int_equal(counts.added, 4);    /* 27..30 */
    assert_int_equal(counts.replaced, 4); /* 23..26 */
    assert_int_equal(counts.kept, 7);     /* 16..22 */
    assert_int_equal(ask_s64(out, "SELECT count(*) FROM jobs"), 30);
    assert_int_equal(ask_s64(out, "SELECT count(DISTINCT offset) FROM jobs"), 30);
    assert_int_equal(ask_s64(out, "SELECT count(*) FROM jobs WHERE worker_id = 'a'"), 22);
    assert_int_equal(ask_s64(out, "SELECT count(*) FROM jobs JOIN outbox USING (job_id) "
                                  "WHERE worker_id = 'b' AND offset >= 23 AND line LIKE "
                                  "'%\"by\":\"b\"%' AND published_at IS NOT NULL"),
                     8);
    assert_int_equal(ask_s64(out, "SELECT count(*) FROM outputs"), 30);
    assert_int_equal(ask_s64(out, "SELECT count(*) FROM job_documents"), 30);
    assert_int_equal(ask_s64(out, "SELECT unpublished FROM v_runs"), 2);
    int64_t prompt_tokens = 0;
    for (int n = 1; n <= 30; n++)
        prompt_tokens += 100 + n;
    assert_int_equal(ask_s64(out, "SELECT prompt_tokens FROM v_runs"), prompt_tokens);
    assert_int_equal(ask_s64(out, "SELECT jobs FROM v_runs WHERE run_id = 'night' "
                                  "AND started_at = 1700000000"),
                     30);
    assert_int_equal(faults(out), 0);
    run_sql(out, "DELETE FROM outputs WHERE job_id = 3"); /* the check can fail */
    assert_int_equal(faults(out), 1);
    store_close(out);
}

static void merging_again_or_in_another_order_changes_nothing(void **state)
{
    static const char *const orders[][4] = {{"a.db", "b.db", "a.db", "b.db"},
                                            {"a.db", "b.db", "b.db", "b.db"}};
    char hex[2][SHA256_HEX_BYTES], reversed[SHA256_HEX_BYTES];
    struct merge_counts counts;
    make_two(state);
    for (int i = 0; i < 2; i++) {
        struct store *out = open_out(state, i ? "1.db" : "0.db");
        for (int k = 0; k < 4; k++)
            merge_ok(out, path_in(state, orders[i][k]), &counts);
        digest(out, hex[i]);
        store_close(out);
    }
    assert_string_equal(hex[0], hex[1]);
    /* of answers that are as good as each other the first stays, and only they differ */
    struct store *out = open_out(state, "reversed.db");
    merge_ok(out, path_in(state, "b.db"), &counts);
    merge_ok(out, path_in(state, "a.db"), &counts);
    digest(out, reversed);
    assert_string_not_equal(hex[0], reversed);
    assert_int_equal(ask_s64(out, "SELECT count(*) FROM jobs"), 30);
    assert_int_equal(ask_s64(out, "SELECT unpublished FROM v_runs"), 2);
    assert_int_equal(ask_s64(out, "SELECT count(*) FROM jobs WHERE worker_id = 'a'"), 15);
    assert_int_equal(faults(out), 0);
    store_close(out);
}

static void the_inputs_stay_as_they_are(void **state)
{
    char before[2][SHA256_HEX_BYTES], after[2][SHA256_HEX_BYTES];
    struct merge_counts counts;
    make_two(state);
    struct store *out = open_out(state, "out.db");
    file_digest(path_in(state, "a.db"), before[0]);
    file_digest(path_in(state, "b.db"), before[1]);
    merge_ok(out, path_in(state, "a.db"), &counts);
    merge_ok(out, path_in(state, "b.db"), &counts);
    store_close(out);
    file_digest(path_in(state, "a.db"), after[0]);
    file_digest(path_in(state, "b.db"), after[1]);
    assert_string_equal(before[0], after[0]);
    assert_string_equal(before[1], after[1]);
}

static void a_database_in_use_can_be_merged(void **state)
{
    struct merge_counts counts;
    struct store *a = open_run(path_in(state, "a.db"), &made_run);
    struct store *out = open_out(state, "out.db");
    for (int n = 1; n <= 5; n++)
        answer(a, "night", n, "a", true);
    merge_ok(out, path_in(state, "a.db"), &counts);
    answer(a, "night", 6, "a", true);
    merge_ok(out, path_in(state, "a.db"), &counts);
    assert_int_equal(counts.added, 1);
    assert_int_equal(counts.kept, 5);
    store_close(a);
    store_close(out);
}

/* SQLite keeps the log beside the file that the link leads to. */
static void a_link_to_a_database_in_use_leads_to_its_log_too(void **state)
{
    struct merge_counts counts;
    struct store *a = open_run(path_in(state, "a.db"), &made_run);
    struct store *out = open_out(state, "out.db");
    answer(a, "night", 1, "a", true);
    assert_int_equal(symlink("a.db", path_in(state, "link.db")), 0);
    merge_ok(out, path_in(state, "link.db"), &counts);
    assert_int_equal(counts.added, 1);
    store_close(a);
    store_close(out);
}

static void other_payloads_at_one_place_become_history(void **state)
{
    struct merge_counts counts;
    struct store *a = open_run(path_in(state, "a.db"), &made_run);
    struct store *b = open_run(path_in(state, "b.db"), &made_run);
    answer(a, "night", 1, "a", true);
    answer(b, "night", 1, "b", true);
    run_sql(b, "UPDATE jobs SET payload_sha256 = printf('%064d', 77), stored_at = 3e9, "
               "result_id = 'another'");
    store_close(a);
    store_close(b);
    for (int order = 0; order < 2; order++) {
        struct store *out = open_out(state, order ? "1.db" : "0.db");
        for (int round = 0; round < 2; round++) {
            merge_ok(out, path_in(state, order ? "a.db" : "b.db"), &counts);
            merge_ok(out, path_in(state, order ? "b.db" : "a.db"), &counts);
        }
        assert_int_equal(ask_s64(out, "SELECT count(*) FROM jobs"), 2);
        assert_int_equal(ask_s64(out, "SELECT count(*) FROM jobs WHERE is_current = 1 "
                                      "AND worker_id = 'b'"),
                         1);
        assert_int_equal(ask_s64(out, "SELECT count(*) FROM jobs WHERE is_current = 0 "
                                      "AND worker_id = 'a'"),
                         1);
        assert_int_equal(faults(out), 0);
        store_close(out);
    }
}

/* A line without headers left only the first digits of the payload, and no place. */
static void a_job_that_a_sink_knows_in_part_is_the_same_job(void **state)
{
    static const char id[] = "UPDATE jobs SET result_id = 'batch_req_' || printf('%032d', 7)";
    struct merge_counts counts;
    struct store *worker = open_run(path_in(state, "worker.db"), &made_run);
    struct store *sink = open_run(path_in(state, "sink.db"), &made_run);
    answer(worker, "night", 7, "a", true);
    answer(sink, "night", 7, "a", true);
    run_sql(worker, id);
    run_sql(sink, id);
    run_sql(sink, "UPDATE jobs SET topic = 'results', offset = 99, payload_sha256 = "
                  "printf('%064d', 0)");
    store_close(worker);
    store_close(sink);
    for (int order = 0; order < 2; order++) {
        struct store *out = open_out(state, order ? "1.db" : "0.db");
        merge_ok(out, path_in(state, order ? "sink.db" : "worker.db"), &counts);
        merge_ok(out, path_in(state, order ? "worker.db" : "sink.db"), &counts);
        assert_int_equal(ask_s64(out, "SELECT count(*) FROM jobs"), 1);
        assert_int_equal(ask_s64(out, "SELECT count(*) FROM jobs WHERE topic = 'jobs'"), 1);
        store_close(out);
    }
}

static void refused(struct store *out, const char *path, int code, const char *words)
{
    struct merge_counts counts = {0};
    struct err e = {0};
    assert_int_equal(store_merge(out, path, &counts, &e), code);
    if (!strstr(e.text, words))
        fail_msg("'%s' does not say '%s'", e.text, words);
    assert_int_equal(ask_s64(out, "SELECT count(*) FROM jobs"), 0);
    assert_int_equal(counts.added, 0);
}

static void what_cannot_be_merged_leaves_nothing(void **state)
{
    struct store_run other_model = made_run;
    struct merge_counts counts;
    other_model.model_sha256 = "bb";
    make_two(state);
    struct store *a = open_out(state, "a.db");
    run_sql(a, "DELETE FROM outputs WHERE job_id = 3");
    store_close(a);
    struct store *out = open_out(state, "out.db");
    refused(out, path_in(state, "a.db"), ERR_FORMAT, "is damaged (job 3 has no output)");
    refused(out, path_in(state, "no.db"), ERR_NOTFOUND, "no such database");
    refused(out, path_in(state, "out.db"), ERR_USAGE, "into itself");
    store_close(out);

    struct store *c = open_run(path_in(state, "c.db"), &other_model);
    answer(c, "night", 50, "c", true);
    store_close(c);
    out = open_out(state, "out2.db");
    merge_ok(out, path_in(state, "b.db"), &counts);
    struct err e = {0};
    assert_int_equal(store_merge(out, path_in(state, "c.db"), &counts, &e), ERR_STATE);
    assert_non_null(strstr(e.text, "run night is of model"));
    assert_int_equal(ask_s64(out, "SELECT count(*) FROM jobs"), 15);
    store_close(out);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, make_folder, remove_folder)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(each_job_is_there_once_and_the_published_answer_stays),
        TEST(merging_again_or_in_another_order_changes_nothing),
        TEST(the_inputs_stay_as_they_are),
        TEST(a_database_in_use_can_be_merged),
        TEST(a_link_to_a_database_in_use_leads_to_its_log_too),
        TEST(other_payloads_at_one_place_become_history),
        TEST(a_job_that_a_sink_knows_in_part_is_the_same_job),
        TEST(what_cannot_be_merged_leaves_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
