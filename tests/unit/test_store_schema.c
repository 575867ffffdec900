/* What the schema grows by: the way up from an older database, and views worked by hand. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <sqlite3.h>

#include "io/store_experiment.h"
#include "report/experiment.h"
#include "store_make.h"

static struct store *open_as(const char *path, enum store_mode mode)
{
    struct err e = {0};
    struct store *s = NULL;
    if (store_open(path, mode, &s, &e) != 0)
        fail_msg("%s", e.text);
    return s;
}

static struct store *open_with_run(const char *path)
{
    struct err e = {0};
    struct store *s = open_as(path, STORE_OWNER);
    if (store_begin_run(s, &made_run, &e) != 0)
        fail_msg("%s", e.text);
    return s;
}

/* All rows of a query: columns joined by commas, rows by semicolons. */
static void expect(struct store *s, const char *sql, const char *expected)
{
    char rows[4096] = "";
    sqlite3_stmt *st = NULL;
    if (sqlite3_prepare_v2(store_handle(s), sql, -1, &st, NULL) != SQLITE_OK)
        fail_msg("%s: %s", sql, sqlite3_errmsg(store_handle(s)));
    while (sqlite3_step(st) == SQLITE_ROW) {
        if (rows[0])
            strcat(rows, ";");
        for (int i = 0; i < sqlite3_column_count(st); i++) {
            const char *text = (const char *)sqlite3_column_text(st, i);
            const size_t used = strlen(rows);
            snprintf(rows + used, sizeof rows - used, "%s%s", i ? "," : "",
                     text ? text : "NULL");
        }
    }
    sqlite3_finalize(st);
    if (strcmp(rows, expected) != 0)
        fail_msg("%s gives '%s', not '%s'", sql, rows, expected);
}

static void put_ok(struct store *s, struct made *m)
{
    struct err e = {0};
    if (put_made(s, "night", m, &e) != 0)
        fail_msg("%s", e.text);
}

/* ------------------------------------------------------------------ from older schemas */

static void make_version(const char *path, const char *fixture)
{
    static char text[65536];
    char name[256];
    snprintf(name, sizeof name, SHEAF_TEST_DATA "/fixtures/store/%s", fixture);
    FILE *f = fopen(name, "r");
    assert_non_null(f);
    text[fread(text, 1, sizeof text - 1, f)] = '\0';
    fclose(f);
    sqlite3 *db;
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    if (sqlite3_exec(db, text, NULL, NULL, NULL) != SQLITE_OK)
        fail_msg("%s", sqlite3_errmsg(db));
    sqlite3_close(db);
}

static void a_database_of_schema_1_is_brought_up_and_keeps_its_rows(void **state)
{
    const char *path = path_in(state, "old.db");
    make_version(path, "version1.sql");
    struct store *s = open_with_run(path);
    expect(s, "PRAGMA integrity_check", "ok");
    expect(s,
           "SELECT custom_id, status, prompt_tokens, miss_reason, miss_at, group_jobs, "
           "shared_tokens FROM v_jobs ORDER BY custom_id",
           "broken,failed,0,NULL,NULL,NULL,NULL;mill,succeeded,87,NULL,NULL,NULL,NULL");
    expect(s, "SELECT answer, tpot_ms FROM v_jobs WHERE custom_id = 'mill'", "In 1786.,1.845");
    expect(s, "SELECT jobs, succeeded FROM v_runs WHERE run_id = 'j.jsonl'", "2,1");
    expect(s, "SELECT count(*) FROM v_misses", "0");
    expect(s, "SELECT jobs, hit_ratio FROM v_doc_hits", "1,0.0");
    struct made m;
    make_result(&m, "jobs", false, 7);
    m.result.metrics.miss = "cold";
    put_ok(s, &m);
    expect(s, "SELECT miss_reason, miss_at FROM v_jobs WHERE run_id = 'night'", "cold,0");
    store_close(s);
    s = open_as(path, STORE_OWNER); /* nothing is done twice */
    expect(s, "SELECT count(*) FROM jobs", "3");
    store_close(s);
}

/* The experiments' table is made anew on the way: its rows, ids and figures stay. */
static void a_database_of_schema_3_is_brought_up_and_keeps_its_rows(void **state)
{
    const char *path = path_in(state, "old.db");
    make_version(path, "version3.sql");
    struct store *s = open_with_run(path);
    expect(s, "PRAGMA integrity_check", "ok");
    expect(s, "PRAGMA foreign_key_check", "");
    expect(s,
           "SELECT row_id, lever, name, job_kind, position, lever_on, wall_s, ttft_p50_ms, "
           "settings_json, decode_s FROM experiments ORDER BY row_id",
           "7,prefix_cache,prefix,all,0,0,12.0,4.0,{\"batch\":8},NULL;"
           "8,prefix_cache,prefix,all,1,1,3.0,NULL,{\"batch\":8},NULL");
    expect(s, "SELECT ratio, n_on, n_off, job_kind FROM v_ab WHERE metric = 'wall_s'",
           "4.0,1,1,all");
    expect(s,
           "SELECT custom_id, answer, draft_tokens, accepted_tokens, draft_steps, draft_ms, "
           "tokens_per_step, acceptance FROM v_jobs",
           "mill,In 1786.,5,4,NULL,NULL,1.8,0.8");
    expect(s, "SELECT count(*) FROM v_spec", "0");
    expect(s,
           "SELECT count(*) FROM sqlite_schema WHERE name LIKE 'experiments%' "
           "AND type = 'table'",
           "1");
    store_close(s);
    store_close(open_as(path, STORE_READER));
}

static void a_reader_of_an_older_schema_is_told_who_brings_it_up(void **state)
{
    const char *path = path_in(state, "old.db");
    struct err e = {0};
    struct store *s = NULL;
    make_version(path, "version1.sql");
    assert_int_equal(store_open(path, STORE_READER, &s, &e), ERR_STATE);
    assert_non_null(strstr(e.text, "schema 1,"));
    store_close(open_as(path, STORE_OWNER));
    store_close(open_as(path, STORE_READER));
}

/* ------------------------------------------------------------------ misses and groups */

static void what_is_not_known_of_a_prefix_is_null(void **state)
{
    struct store *s = open_with_run(path_in(state, "a.db"));
    struct made m;
    put_ok(s, (make_result(&m, "jobs", false, 1), &m));
    make_result(&m, "jobs", false, 2);
    m.result.metrics.miss = "differs";
    m.result.metrics.miss_at = 64;
    m.result.metrics.group_jobs = 3;
    m.result.metrics.shared_tokens = 96;
    put_ok(s, &m);
    make_result(&m, "jobs", false, 3); /* alone in the window, cold from its first token */
    m.result.metrics.miss = "cold";
    m.result.metrics.group_jobs = 1;
    put_ok(s, &m);
    expect(s,
           "SELECT miss_reason, miss_at, group_jobs, shared_tokens FROM v_jobs ORDER BY "
           "job_id",
           "NULL,NULL,NULL,NULL;differs,64,3,96;cold,0,1,0");
    store_close(s);
}

static void a_reason_without_a_name_is_refused(void **state)
{
    struct store *s = open_with_run(path_in(state, "a.db"));
    static const char *const names[] = {"none",    "off",    "cold",  "differs",
                                        "evicted", "window", "short", "salt"};
    struct made m;
    struct err e = {0};
    for (int i = 0; i < 8; i++) {
        make_result(&m, "jobs", false, i);
        m.result.metrics.miss = names[i];
        put_ok(s, &m);
    }
    make_result(&m, "jobs", false, 8);
    m.result.metrics.miss = "warm";
    assert_int_equal(put_made(s, "night", &m, &e), ERR_DB);
    expect(s, "SELECT count(*) FROM jobs", "8");
    store_close(s);
}

/*
 * Four answers and a failure. make_result(n) has 100 + n prompt tokens, n of them cached, and a
 * TTFT of 10 n + 1000 us; n names document n % 3, here set by hand.
 */
static void put_four(struct store *s)
{
    static const struct {
        int n;
        const char *group, *doc, *miss;
    } jobs[] = {{10, "aa", "d1", "cold"},
                {20, "aa", "d1", "cold"},
                {30, "aa", "d2", "differs"},
                {40, "bb", "d2", "none"}};
    struct made m;
    for (size_t i = 0; i < 4; i++) {
        make_result(&m, "jobs", false, jobs[i].n);
        m.job.prefix_group = (char *)jobs[i].group;
        m.document.id = (char *)jobs[i].doc;
        m.result.metrics.miss = jobs[i].miss;
        put_ok(s, &m);
    }
    make_failure(&m, "jobs", false, 50, "x");
    m.job.prefix_group = (char *)"aa";
    put_ok(s, &m);
}

static void groups_documents_and_misses_add_up(void **state)
{
    struct store *s = open_with_run(path_in(state, "a.db"));
    put_four(s);
    /* aa: 110 + 120 + 130 = 360 prompt tokens, 60 cached; TTFT 1.1, 1.2, 1.3 ms.
     * bb: 140 prompt tokens, 40 cached; TTFT 1.4 ms. */
    expect(s,
           "SELECT prefix_group, jobs, prompt_tokens, cached_tokens, computed_tokens, "
           "printf('%.4f', hit_ratio), printf('%.1f', mean_ttft_ms) FROM v_groups "
           "WHERE run_id = 'night' ORDER BY prefix_group",
           "aa,3,360,60,300,0.1667,1.2;bb,1,140,40,100,0.2857,1.4");
    /* Admitted at 1700000001 s + n us, answered 9010 n + 1000 us later: n = 10 and 30. */
    expect(s,
           "SELECT printf('%.6f', first_finished_at), printf('%.6f', last_finished_at) "
           "FROM v_groups WHERE prefix_group = 'aa'",
           "1700000001.091110,1700000001.271330");
    /* d1: 110 + 120, 30 cached; d2: 130 + 140, 70 cached. */
    expect(s,
           "SELECT doc_id, jobs, prompt_tokens, cached_tokens, printf('%.4f', hit_ratio) "
           "FROM v_doc_hits ORDER BY doc_id",
           "d1,2,230,30,0.1304;d2,2,270,70,0.2593");
    expect(s, "SELECT miss_reason, jobs, missed_tokens FROM v_misses ORDER BY miss_reason",
           "cold,2,200;differs,1,100;none,1,100");
    store_close(s);
}

static void a_document_named_twice_in_a_job_counts_once(void **state)
{
    struct store *s = open_with_run(path_in(state, "a.db"));
    struct made m;
    make_result(&m, "jobs", false, 10);
    struct job_document twice[2] = {m.document, m.document};
    m.job.documents = twice;
    m.job.n_documents = 2;
    put_ok(s, &m);
    expect(s, "SELECT count(*) FROM job_documents", "2");
    expect(s, "SELECT jobs, prompt_tokens FROM v_doc_hits", "1,110");
    store_close(s);
}

/* ------------------------------------------------------------------ drafts */

/* Ten tokens in 11 - 2 steps behind the first; 3 of 7 drafted tokens were accepted. */
static void drafts_of_a_job_are_kept_by_source_and_depth(void **state)
{
    struct store *s = open_with_run(path_in(state, "a.db"));
    struct result_draft drafts[] = {
        {"all", 1, 4, 2}, {"all", 2, 3, 1}, {"lookup", 1, 4, 2}, {"recycle", 2, 3, 1}};
    struct made m;
    make_result(&m, "jobs", false, 1);
    m.result.drafts = drafts;
    m.result.n_drafts = 4;
    m.result.metrics.draft_steps = 5;
    m.result.metrics.draft_us = 70;
    m.result.metrics.verify_us = 4000;
    m.result.metrics.expected_us = 3500;
    m.result.metrics.expected_tokens = 2.5;
    put_ok(s, &m);
    make_result(&m, "jobs", false, 2); /* nothing was drafted for this one */
    put_ok(s, &m);
    expect(s,
           "SELECT custom_id, source, depth, drafted, accepted, acceptance, tokens_per_step "
           "FROM v_spec WHERE run_id = 'night' ORDER BY source, depth",
           "q-1,all,1,4,2,0.5,1.0;q-1,all,2,3,1,0.333333333333333,1.0;"
           "q-1,lookup,1,4,2,0.5,1.0;q-1,recycle,2,3,1,0.333333333333333,1.0");
    /* Tokens of those steps, with the one that a step yields in any case: 5 + 2.5 in 3.5 ms
     * were expected, there were 5 + 3 in 4 ms. */
    expect(s,
           "SELECT custom_id, draft_steps, draft_ms, verify_ms, "
           "printf('%.3f', expected_tok_s), realised_tok_s FROM v_jobs ORDER BY custom_id",
           "q-1,5,0.07,4.0,2142.857,2000.0;q-2,0,NULL,NULL,0.000,NULL");
    expect(s,
           "SELECT draft_steps, draft_ms, verify_ms, printf('%.3f', expected_tok_s), "
           "printf('%.3f', acceptance) FROM v_runs",
           "5,0.07,4.0,2142.857,0.429");
    make_result(&m, "jobs", false, 1);
    memset(m.job.payload_sha256, 'f', 64); /* edited: its drafts go with the old row */
    put_ok(s, &m);
    expect(s, "SELECT count(*) FROM job_drafts", "0");
    store_close(s);
}

/* ------------------------------------------------------------------ experiments */

static void two_states_are_measured_in_the_order_a_b_b_a(void **state)
{
    (void)state;
    char order[13] = "";
    for (size_t i = 0; i < 12; i++)
        order[i] = "AB"[experiment_state(2, i)];
    assert_string_equal(order, "ABBAABBAABBA");
    for (size_t i = 0; i < 12; i++)
        order[i] = "PQR"[experiment_state(3, i)];
    assert_string_equal(order, "PQRRQPPQRRQP");
}

static void quantiles_are_values_that_were_measured(void **state)
{
    (void)state;
    int64_t us[100];
    for (int i = 0; i < 100; i++)
        us[i] = 1000 * (100 - i); /* 100 ms down to 1 ms */
    struct quantiles q = experiment_quantiles(us, 100);
    assert_true(q.p50 == 50 && q.p95 == 95 && q.p99 == 99);
    us[0] = 1500;
    q = experiment_quantiles(us, 1);
    assert_true(q.p50 == 1.5 && q.p95 == 1.5 && q.p99 == 1.5);
    q = experiment_quantiles(us, 0);
    assert_true(isnan(q.p50) && isnan(q.p95) && isnan(q.p99));
}

static void an_answer_is_the_same_only_byte_for_byte(void **state)
{
    (void)state;
    const struct experiment_answer a = {(char *)"ab\0c", 4, 2, 1};
    const struct experiment_answer refused = {0};
    struct experiment_answer b = {(char *)"ab\0c", 4, 2, 1};
    assert_true(experiment_is_same(&a, &b));
    assert_true(experiment_is_same(&refused, &refused));
    assert_false(experiment_is_same(&a, &refused));
    assert_false(experiment_is_same(&refused, &a));
    b.text = (char *)"ab\0d";
    assert_false(experiment_is_same(&a, &b));
    b = a;
    b.n_text = 2;
    assert_false(experiment_is_same(&a, &b));
    b = a;
    b.n_tokens = 3; /* the end token is no text */
    assert_false(experiment_is_same(&a, &b));
    b = a;
    b.reason = 2;
    assert_false(experiment_is_same(&a, &b));
}

/* Every figure is there: the n-th is n, so that no two columns can be mistaken. */
static struct store_experiment make_half(int64_t position)
{
    struct store_experiment x = {
        .experiment_id = "x1",
        .lever = "prefix_cache",
        .name = "prefix",
        .job_kind = "all",
        .repeat = position / 2,
        .position = position,
        .lever_on = experiment_state(2, (size_t)position) == 1,
        .started_us = 1700000000500000,
        .cpu = "cpu",
        .kernels = "ref",
        .model = "tiny",
        .model_sha256 = "aa",
        .quant = "F32",
        .version = "0.1.0",
        .settings_json = "{\"batch\":8}",
    };
    int n = 0;
#define FIGURE(column, kind, help) x.column = ++n;
#include "schema/experiments.def"
#undef FIGURE
    x.identical_share = 1;
    return x;
}

static void put_half(struct store *s, const struct store_experiment *x)
{
    struct err e = {0};
    if (store_put_experiment(s, x, &e) != 0)
        fail_msg("%s", e.text);
}

static void experiments_def_and_the_table_name_the_same_columns(void **state)
{
    struct store *s = open_as(path_in(state, "a.db"), STORE_OWNER);
    const struct store_experiment x = make_half(0);
    put_half(s, &x);
    char sql[128], expected[16];
    int n = 0;
#define FIGURE(column, kind, help)                                                             \
    snprintf(sql, sizeof sql, "SELECT CAST(" #column " AS INTEGER) FROM experiments");         \
    snprintf(expected, sizeof expected, "%d", ++n);                                            \
    if (strcmp(#column, "identical_share") != 0)                                               \
        expect(s, sql, expected);
#include "schema/experiments.def"
#undef FIGURE
    expect(
        s,
        "SELECT experiment_id, lever, name, job_kind, repeat, position, lever_on, started_at, "
        "cpu, kernels, model, model_sha256, quant, version, settings_json FROM experiments",
        "x1,prefix_cache,prefix,all,0,0,0,1700000000.5,cpu,ref,tiny,aa,F32,0.1.0,{\"batch\":"
        "8}");
    snprintf(expected, sizeof expected, "%d", n + 15 + 1); /* those, and row_id */
    expect(s, "SELECT count(*) FROM pragma_table_info('experiments')", expected);
    store_close(s);
}

static void what_was_not_measured_is_null(void **state)
{
    struct store *s = open_as(path_in(state, "a.db"), STORE_OWNER);
    struct store_experiment x = make_half(0);
    x.memory_peak_bytes = -1;
    x.ttft_short_p95_ms = NAN;
    x.identical_share = NAN;
    put_half(s, &x);
    expect(s, "SELECT memory_peak_bytes, ttft_short_p95_ms, identical_share FROM experiments",
           "NULL,NULL,NULL");
    expect(s,
           "SELECT count(*) FROM v_ab WHERE metric IN ('memory_peak_bytes', "
           "'ttft_short_p95_ms')",
           "0");
    struct err e = {0};
    x.lever = "gearbox";
    assert_int_equal(store_put_experiment(s, &x, &e), ERR_DB);
    store_close(s);
}

/*
 * Positions 0..9 are off, on, on, off, off, on, on, off, off, on. Wall times of the off halves
 * by hand: 10, 12, 11, 14, 10 (median 11, from 10 to 14: spread 4 / 11); of the on halves: 2,
 * 1, 2, 2, 3 (median 2, from 1 to 3: spread 1).
 */
static void on_and_off_are_set_side_by_side(void **state)
{
    static const double wall_s[] = {10, 2, 1, 12, 11, 2, 2, 14, 10, 3};
    struct store *s = open_as(path_in(state, "a.db"), STORE_OWNER);
    for (int i = 0; i < 10; i++) {
        struct store_experiment x = make_half(i);
        x.wall_s = wall_s[i];
        x.total_tok_s = x.lever_on ? 300 : 100;
        x.hit_ratio = x.lever_on ? 0.9 : 0;
        x.ttft_cold_p50_ms = NAN;
        x.identical_share = i == 0 ? NAN : i == 7 ? 0.75 : 1;
        put_half(s, &x);
    }
    expect(s,
           "SELECT n_on, n_off, median_on, median_off, ratio, spread, identical_share "
           "FROM v_ab WHERE experiment_id = 'x1' AND metric = 'wall_s'",
           "5,5,2.0,11.0,5.5,1.0,0.75");
    expect(s,
           "SELECT median_on, median_off, ratio, spread FROM v_ab WHERE metric = "
           "'total_tok_s'",
           "300.0,100.0,3.0,0.0");
    expect(s, "SELECT median_on, median_off, ratio FROM v_ab WHERE metric = 'hit_ratio'",
           "0.9,0.0,NULL");
    expect(s, "SELECT count(*) FROM v_ab WHERE metric = 'ttft_cold_p50_ms'", "0");
    expect(s, "SELECT count(*) FROM v_ab", "17");
    store_close(s);
}

static void kinds_of_jobs_are_kept_apart(void **state)
{
    struct store *s = open_as(path_in(state, "a.db"), STORE_OWNER);
    static const char *const kinds[] = {"copied", "open"};
    for (int i = 0; i < 4; i++) {
        struct store_experiment x = make_half(i % 2);
        x.lever = "speculation";
        x.job_kind = kinds[i / 2];
        x.wall_s = i == 1 ? 2 : 4;
        x.tokens_per_step = i == 1 ? 2.5 : 1;
        x.acceptance = x.lever_on ? 0.75 : NAN;
        put_half(s, &x);
    }
    expect(s,
           "SELECT job_kind, metric, n_on, n_off, ratio FROM v_ab WHERE metric IN ('wall_s', "
           "'tokens_per_step') ORDER BY job_kind, position",
           "copied,wall_s,1,1,2.0;copied,tokens_per_step,1,1,2.5;"
           "open,wall_s,1,1,1.0;open,tokens_per_step,1,1,1.0");
    expect(s,
           "SELECT median_off, median_on, ratio FROM v_ab WHERE metric = 'acceptance' "
           "AND job_kind = 'open'",
           "NULL,0.75,NULL");
    store_close(s);
}

static void points_of_a_sweep_are_kept_apart(void **state)
{
    struct store *s = open_as(path_in(state, "a.db"), STORE_OWNER);
    for (int i = 0; i < 6; i++) {
        struct store_experiment x = make_half(i);
        x.lever_on = true;
        x.step_tokens = 64 << experiment_state(3, (size_t)i);
        x.wall_s = (double)x.step_tokens;
        put_half(s, &x);
    }
    expect(s,
           "SELECT step_tokens, n_on, n_off, median_on, ratio FROM v_ab WHERE metric = "
           "'wall_s'",
           "64,2,NULL,64.0,NULL;128,2,NULL,128.0,NULL;256,2,NULL,256.0,NULL");
    store_close(s);
}

int main(void)
{
#define IN_FOLDER(test) cmocka_unit_test_setup_teardown(test, make_folder, remove_folder)
    const struct CMUnitTest tests[] = {
        IN_FOLDER(a_database_of_schema_1_is_brought_up_and_keeps_its_rows),
        IN_FOLDER(a_database_of_schema_3_is_brought_up_and_keeps_its_rows),
        IN_FOLDER(a_reader_of_an_older_schema_is_told_who_brings_it_up),
        IN_FOLDER(what_is_not_known_of_a_prefix_is_null),
        IN_FOLDER(a_reason_without_a_name_is_refused),
        IN_FOLDER(groups_documents_and_misses_add_up),
        IN_FOLDER(a_document_named_twice_in_a_job_counts_once),
        IN_FOLDER(drafts_of_a_job_are_kept_by_source_and_depth),
        cmocka_unit_test(two_states_are_measured_in_the_order_a_b_b_a),
        cmocka_unit_test(quantiles_are_values_that_were_measured),
        cmocka_unit_test(an_answer_is_the_same_only_byte_for_byte),
        IN_FOLDER(experiments_def_and_the_table_name_the_same_columns),
        IN_FOLDER(what_was_not_measured_is_null),
        IN_FOLDER(on_and_off_are_set_side_by_side),
        IN_FOLDER(kinds_of_jobs_are_kept_apart),
        IN_FOLDER(points_of_a_sweep_are_kept_apart),
    };
    return cmocka_run_group_tests_name("store schema", tests, NULL, NULL);
}
