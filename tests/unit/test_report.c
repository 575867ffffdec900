/* Percentiles, tables, and what stats and results print. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>
#include <sqlite3.h>

#include "base/rng.h"
#include "report/answers.h"
#include "report/percentile.h"
#include "report/report.h"
#include "report/table.h"
#include "store_make.h"

static void the_rank_is_the_smallest_that_covers_p_percent(void **state)
{
    (void)state;
    for (size_t n = 1; n <= 1000; n++)
        for (int p = 1; p <= 100; p++) {
            const size_t rank = percentile_rank(n, p);
            assert_true(rank * 100 >= n * (size_t)p);
            assert_true((rank - 1) * 100 < n * (size_t)p);
            assert_true(rank >= 1 && rank <= n);
        }
}

static struct store *open_store(void **state)
{
    struct store *s = NULL;
    struct err e = {0};
    if (store_open(path_in(state, "a.db"), STORE_OWNER, &s, &e) != 0 ||
        store_begin_run(s, &made_run, &e) != 0)
        fail_msg("%s", e.text);
    return s;
}

static void put(struct store *s, struct made *m)
{
    struct err e = {0};
    if (put_made(s, "night", m, &e) != 0)
        fail_msg("%s", e.text);
}

static double ask(struct store *s, const char *column, const char *metric)
{
    char sql[256];
    sqlite3_stmt *st = NULL;
    snprintf(sql, sizeof sql, "SELECT %s FROM v_latency WHERE metric = '%s'", column, metric);
    assert_int_equal(sqlite3_prepare_v2(store_handle(s), sql, -1, &st, NULL), SQLITE_OK);
    const double value = sqlite3_step(st) == SQLITE_ROW ? sqlite3_column_double(st, 0) : -1;
    sqlite3_finalize(st);
    return value;
}

static void sql_and_c_agree_to_the_digit(void **state)
{
    struct store *s = open_store(state);
    int64_t e2e[300], queue[300];
    size_t n = 0;
    const size_t checks[] = {1, 2, 3, 19, 20, 21, 99, 100, 101, 300};
    for (size_t c = 0; c < sizeof checks / sizeof checks[0]; c++) {
        while (n < checks[c]) {
            struct made m;
            make_result(&m, "jobs", false, (int)n);
            struct result_metrics *x = &m.result.metrics;
            x->group_wait_us = (int64_t)(rng_bits(7, 0, n) % 50);
            x->prefill_us = (int64_t)(rng_bits(7, 1, n) % 3000000);
            x->decode_us = (int64_t)(rng_bits(7, 2, n) % 20); /* many equal values */
            x->ttft_us = x->group_wait_us + x->prefill_us;
            x->e2e_us = x->ttft_us + x->decode_us;
            x->queue_us = (int64_t)(rng_bits(7, 3, n) % 8);
            e2e[n] = x->e2e_us;
            queue[n++] = x->queue_us;
            put(s, &m);
        }
        struct made m; /* not counted: it did not succeed */
        put(s, (make_failure(&m, "jobs", false, 1000 + (int)c, "x"), &m));
        const int percents[] = {50, 90, 95, 99};
        int64_t sorted[300];
        for (int which = 0; which < 2; which++) {
            const char *metric = which ? "queue" : "e2e";
            memcpy(sorted, which ? queue : e2e, n * sizeof sorted[0]);
            percentile_sort(sorted, n);
            assert_true(ask(s, "n", metric) == (double)n);
            assert_true(ask(s, "max_ms", metric) == (double)sorted[n - 1] / 1000.0);
            for (int i = 0; i < 4; i++) {
                char column[16];
                snprintf(column, sizeof column, "p%d_ms", percents[i]);
                const double expected = (double)percentile_of(sorted, n, percents[i]) / 1000.0;
                assert_true(ask(s, column, metric) == expected);
            }
        }
    }
    store_close(s);
}

static void a_table_is_aligned_whatever_the_script(void **state)
{
    (void)state;
    const struct table_column columns[] = {
        {"id", false, 6}, {"n", true, 0}, {"text", false, 0}};
    const char *const cells[] = {
        "a",
        "1",
        "plain",
        "\xe6\x97\xa5\xe6\x9c\xac",
        "20",
        "wide", /* two characters, four columns */
        "e\xcc\x81",
        "300",
        "combining",
        "abcdefghi",
        "4000",
        "cut",
        "\x1b[31m",
        "5",
        "line\nend\ttab\x7f",
        "\xff",
        "6",
        "not UTF-8",
    };
    const char *expected = "id         n  text\n"
                           "a          1  plain\n"
                           "\xe6\x97\xa5\xe6\x9c\xac      20  wide\n"
                           "e\xcc\x81        300  combining\n"
                           "abcde\xe2\x80\xa6  4000  cut\n"
                           " [31m      5  line end tab \n"
                           "\xef\xbf\xbd          6  not UTF-8\n";
    struct table *t = table_open(columns, 3);
    for (size_t i = 0; i < sizeof cells / sizeof cells[0]; i++)
        table_add(t, cells[i]);
    char *text = NULL;
    size_t length;
    struct err e = {0};
    FILE *out = open_memstream(&text, &length);
    assert_int_equal(table_print(t, out, &e), 0);
    fclose(out);
    assert_string_equal(text, expected);
    free(text);
    table_close(t);
}

typedef int (*report)(struct store *store, const char *run_id, bool json, FILE *out,
                      struct err *e);

/* free() it. */
static char *print(report print_report, struct store *s, const char *run_id, bool json)
{
    char *text = NULL;
    size_t length;
    struct err e = {0};
    FILE *out = open_memstream(&text, &length);
    if (print_report(s, run_id, json, out, &e) != 0)
        fail_msg("%s", e.text);
    fclose(out);
    return text;
}

static struct store *three_good_two_bad(void **state)
{
    struct store *s = open_store(state);
    struct made m;
    for (int n = 1; n <= 3; n++)
        put(s, (make_result(&m, "in.jsonl", true, n), &m));
    for (int n = 4; n <= 5; n++)
        put(s, (make_failure(&m, "in.jsonl", true, n, "invalid_json_line"), &m));
    return s;
}

static void assert_says(const char *text, const char *words)
{
    if (!strstr(text, words))
        fail_msg("'%s' does not say '%s'", text, words);
}

static void the_summary_counts_and_names_the_failures(void **state)
{
    struct store *s = three_good_two_bad(state);
    char *text = print(report_stats, s, NULL, false);
    assert_says(text, "run     night (in_progress)\n");
    assert_says(text, "model   tiny, Q4_1, ref kernels\n");
    assert_says(text, "jobs    5: 3 succeeded, 2 failed, 5 not published\n");
    assert_says(text, "tokens  306 of prompts (6 from the cache), 30 of answers\n");
    assert_says(text, "invalid_json_line      2  q-4      line 4: invalid_json_line\n");
    /* e2e of 1, 2, 3: 10.01, 19.02, 28.03 ms */
    int n = 0;
    char mean[16], p50[16], p99[16];
    assert_int_equal(
        sscanf(strstr(text, "\ne2e"), " e2e %d %15s %15s %*s %*s %15s", &n, mean, p50, p99), 4);
    assert_int_equal(n, 3);
    assert_string_equal(mean, "19.0");
    assert_string_equal(p50, "19.0");
    assert_string_equal(p99, "28.0");
    free(text);
    store_close(s);
}

static void the_summary_says_how_long_steps_took_at_start(void **state)
{
    struct store *s = NULL;
    struct err e = {0};
    struct store_run run = made_run;
    run.engine_json = "{\"chunk_tokens\":32,\"calibration\":[{\"rows\":16,\"us\":8120},"
                      "{\"rows\":32,\"us\":12000}]}";
    assert_int_equal(store_open(path_in(state, "a.db"), STORE_OWNER, &s, &e), 0);
    assert_int_equal(store_begin_run(s, &run, &e), 0);
    char *text = print(report_stats, s, NULL, false);
    assert_says(text, "\nsteps   16 rows 8.1 ms, 32 rows 12.0 ms; prompts by 32\n");
    free(text);

    run.run_id = "given"; /* the chunk was given, nothing was measured */
    run.started_s++;
    run.engine_json = "{\"chunk_tokens\":64,\"calibration\":[]}";
    assert_int_equal(store_begin_run(s, &run, &e), 0);
    text = print(report_stats, s, NULL, false);
    assert_says(text, "run     given");
    assert_null(strstr(text, "steps"));
    free(text);
    store_close(s);
}

/* Nine tokens each behind the first, in nine and in six steps. */
static void the_summary_says_what_was_drafted(void **state)
{
    struct store *s = open_store(state);
    struct made m;
    make_result(&m, "in.jsonl", true, 1);
    put(s, &m);
    make_result(&m, "in.jsonl", true, 2);
    m.result.metrics.engine_steps = 8;
    struct result_draft drafts[] = {{"all", 1, 4, 2},
                                    {"all", 2, 3, 1},
                                    {"lookup", 1, 4, 2},
                                    {"lookup", 2, 1, 0},
                                    {"self", 2, 2, 1}};
    m.result.drafts = drafts;
    m.result.n_drafts = 5;
    put(s, &m);
    char *text = print(report_stats, s, NULL, false);
    assert_says(text,
                "\n        accepted of lookup 40 %, self 50 %; by depth 1: 50 %, 2: 33 %\n");
    assert_says(text, "\ndrafts  14 tokens: 6 accepted, 8 rejected; 1.20 tokens a step\n");
    free(text);
    store_close(s);
}

static void a_run_without_drafts_says_nothing_of_them(void **state)
{
    struct store *s = open_store(state);
    struct made m;
    make_result(&m, "in.jsonl", true, 1);
    m.result.metrics.draft_tokens = m.result.metrics.accepted_tokens = 0;
    put(s, &m);
    char *text = print(report_stats, s, NULL, false);
    assert_null(strstr(text, "drafts"));
    free(text);
    store_close(s);
}

static void stats_are_one_json_object(void **state)
{
    struct store *s = three_good_two_bad(state);
    char *text = print(report_stats, s, "night", true);
    json_t *root = json_loads(text, JSON_REJECT_DUPLICATES, NULL);
    assert_non_null(root);
    json_t *run = json_object_get(root, "run");
    assert_int_equal(json_integer_value(json_object_get(run, "succeeded")), 3);
    assert_string_equal(json_string_value(json_object_get(run, "run_id")), "night");
    json_t *metrics = json_object_get(root, "latency");
    assert_int_equal(json_array_size(metrics), 8);
    json_t *e2e = json_array_get(metrics, 6);
    assert_string_equal(json_string_value(json_object_get(e2e, "metric")), "e2e");
    assert_true(json_real_value(json_object_get(e2e, "p50_ms")) == 19.02);
    json_t *failures = json_object_get(root, "failures");
    assert_int_equal(json_array_size(failures), 1);
    assert_int_equal(json_integer_value(json_object_get(json_array_get(failures, 0), "count")),
                     2);
    assert_int_equal(json_array_size(json_object_get(root, "slowest")), 3);
    json_decref(root);
    free(text);
    text = print(report_latency, s, NULL, true);
    root = json_loads(text, 0, NULL);
    assert_true(json_is_array(root));
    json_decref(root);
    free(text);
    text = print(report_run_summary, s, NULL, true);
    root = json_loads(text, 0, NULL);
    assert_true(json_is_object(root));
    json_decref(root);
    free(text);
    store_close(s);
}

static void a_run_that_is_not_there_is_an_error(void **state)
{
    struct store *s = NULL;
    struct err e = {0};
    char *run = NULL;
    assert_int_equal(store_open(path_in(state, "a.db"), STORE_OWNER, &s, &e), 0);
    assert_int_equal(report_latest_run(s, &run, &e), ERR_NOTFOUND);
    FILE *out = fopen("/dev/null", "w");
    for (int json = 0; json < 2; json++) {
        err_clear(&e);
        assert_int_equal(report_stats(s, "nobody", json, out, &e), ERR_NOTFOUND);
        assert_says(e.text, "nobody");
    }
    fclose(out);
    store_close(s);
}

static char *results(struct store *s, struct report_results_options o, size_t expected)
{
    char *text = NULL;
    size_t length, n = 0;
    struct err e = {0};
    FILE *out = open_memstream(&text, &length);
    if (report_results(s, &o, out, &n, &e) != 0)
        fail_msg("%s", e.text);
    fclose(out);
    assert_int_equal(n, expected);
    return text;
}

static void results_come_in_four_forms(void **state)
{
    struct store *s = three_good_two_bad(state);
    char *text = results(s, (struct report_results_options){.form = REPORT_LINES}, 5);
    assert_string_equal(text, "{\"custom_id\":\"q-1\"}\n{\"custom_id\":\"q-2\"}\n"
                              "{\"custom_id\":\"q-3\"}\n{\"custom_id\":\"q-4\"}\n"
                              "{\"custom_id\":\"q-5\"}\n");
    free(text);
    text =
        results(s, (struct report_results_options){.form = REPORT_TEXT, .custom_id = "q-2"}, 1);
    assert_string_equal(text, "== q-2\nQ: question 2?\nA: answer 2\n\n");
    free(text);
    text = results(
        s,
        (struct report_results_options){.form = REPORT_TABLE, .status = "failed", .limit = 1},
        1);
    assert_says(text, "q-4        failed       0   -  question 4?  invalid_json_line: lin");
    free(text);
    text =
        results(s, (struct report_results_options){.form = REPORT_JSON, .run_id = "night"}, 5);
    json_t *first = json_loads(text, JSON_DISABLE_EOF_CHECK, NULL);
    assert_string_equal(json_string_value(json_object_get(first, "answer")), "answer 1");
    assert_true(json_is_null(json_object_get(first, "error_code")));
    json_decref(first);
    free(text);
    text = results(s, (struct report_results_options){.form = REPORT_JSON, .run_id = "x"}, 0);
    assert_string_equal(text, "");
    free(text);
    store_close(s);
}

static void an_answer_cannot_steer_the_terminal(void **state)
{
    struct store *s = open_store(state);
    struct made m;
    make_result(&m, "in.jsonl", true, 1);
    m.result.text = (char *)"a\033[2Jb\r\xc2\x9b"
                            "31mc\nd\xc3\xa9";
    m.result.text_length = strlen(m.result.text);
    put(s, &m);
    char *text = results(s, (struct report_results_options){.form = REPORT_TEXT}, 1);
    assert_says(text, "A: a [2Jb  31mc\nd\xc3\xa9\n");
    free(text);
    store_close(s);
}

static void runs_are_listed_in_order(void **state)
{
    struct store *s = three_good_two_bad(state);
    struct store_run later = made_run;
    struct err e = {0};
    later.run_id = "later";
    later.started_s++;
    assert_int_equal(store_begin_run(s, &later, &e), 0);
    char *run = NULL, *text = NULL;
    size_t length;
    assert_int_equal(report_latest_run(s, &run, &e), 0);
    assert_string_equal(run, "later");
    free(run);
    FILE *out = open_memstream(&text, &length);
    assert_int_equal(report_runs(s, false, out, &e), 0);
    fclose(out);
    assert_true(strstr(text, "night") < strstr(text, "later"));
    free(text);
    store_close(s);
}

struct told {
    size_t n, n_files;
    char first[65], last[64];
};

static int keep_told(void *ctx, const struct report_answer *answer, struct err *e)
{
    struct told *t = ctx;
    t->n++;
    t->n_files += answer->is_file;
    if (t->n == 1)
        snprintf(t->first, sizeof t->first, "%s", answer->payload_sha256);
    snprintf(t->last, sizeof t->last, "%.*s", (int)answer->length, answer->text);
    return t->n == 3 ? ERR_SET(e, ERR_LIMIT, "three are enough") : 0;
}

static void answers_are_told_of_with_their_payload_until_one_says_no(void **state)
{
    struct store *s = open_store(state);
    static struct made made[3];
    struct told told = {0};
    for (int i = 0; i < 3; i++) { /* a line, a record, and a failure, which is no answer */
        if (i < 2)
            make_result(&made[i], "in.jsonl", i == 0, 7 + i);
        else
            make_failure(&made[i], "in.jsonl", true, 9, "invalid_json_line");
        put(s, &made[i]);
    }
    assert_int_equal(report_answers(s, keep_told, &told, NULL), 0);
    assert_int_equal(told.n, 2);
    assert_int_equal(told.n_files, 1);
    assert_string_equal(told.first + 60, "0007");
    assert_string_equal(told.last, "answer 8");
    told.n = 1; /* the second of them is its third */
    assert_int_equal(report_answers(s, keep_told, &told, NULL), ERR_LIMIT);
    store_close(s);
}

int main(void)
{
#define IN_FOLDER(test) cmocka_unit_test_setup_teardown(test, make_folder, remove_folder)
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_rank_is_the_smallest_that_covers_p_percent),
        IN_FOLDER(sql_and_c_agree_to_the_digit),
        cmocka_unit_test(a_table_is_aligned_whatever_the_script),
        IN_FOLDER(the_summary_counts_and_names_the_failures),
        IN_FOLDER(the_summary_says_how_long_steps_took_at_start),
        IN_FOLDER(the_summary_says_what_was_drafted),
        IN_FOLDER(a_run_without_drafts_says_nothing_of_them),
        IN_FOLDER(stats_are_one_json_object),
        IN_FOLDER(a_run_that_is_not_there_is_an_error),
        IN_FOLDER(results_come_in_four_forms),
        IN_FOLDER(an_answer_cannot_steer_the_terminal),
        IN_FOLDER(runs_are_listed_in_order),
        IN_FOLDER(answers_are_told_of_with_their_payload_until_one_says_no),
    };
    return cmocka_run_group_tests_name("report", tests, NULL, NULL);
}
