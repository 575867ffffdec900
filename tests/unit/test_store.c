/* The database of answers: what is kept, what is refused, who may open it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <sqlite3.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "store_make.h"

static struct store *open_owner(const char *path)
{
    struct err e = {0};
    struct store *s = NULL;
    if (store_open(path, STORE_OWNER, &s, &e) != 0)
        fail_msg("%s", e.text);
    return s;
}

static struct store *open_with_run(const char *path)
{
    struct err e = {0};
    struct store *s = open_owner(path);
    if (store_begin_run(s, &made_run, &e) != 0)
        fail_msg("%s", e.text);
    return s;
}

/* The first column of the first row as text; an independent statement, not the store's. */
static const char *ask(struct store *s, const char *sql)
{
    static char answers[8][256];
    static int next;
    char *answer = answers[next++ % 8];
    sqlite3_stmt *st = NULL;
    if (sqlite3_prepare_v2(store_handle(s), sql, -1, &st, NULL) != SQLITE_OK)
        fail_msg("%s: %s", sql, sqlite3_errmsg(store_handle(s)));
    snprintf(answer, sizeof answers[0], "none");
    if (sqlite3_step(st) == SQLITE_ROW) {
        const char *text = (const char *)sqlite3_column_text(st, 0);
        snprintf(answer, sizeof answers[0], "%s", text ? text : "NULL");
    }
    sqlite3_finalize(st);
    return answer;
}

static void put_ok(struct store *s, const char *run_id, struct made *m)
{
    struct err e = {0};
    if (put_made(s, run_id, m, &e) != 0)
        fail_msg("%s", e.text);
}

static void run_sql(const char *path, const char *sql)
{
    sqlite3 *db;
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    assert_int_equal(sqlite3_exec(db, sql, NULL, NULL, NULL), SQLITE_OK);
    sqlite3_close(db);
}

static void a_result_comes_back_column_by_column(void **state)
{
    struct store *s = open_with_run(path_in(state, "a.db"));
    struct made m;
    make_result(&m, "jobs", false, 7);
    m.job.metadata = (char *)"{\"k\":1}";
    m.job.expect = (char *)"[\"x\"]";
    m.job.warnings = (char *)"unknown field foo";
    put_ok(s, "night", &m);
    const struct {
        const char *sql, *expected;
    } cases[] = {
        {"SELECT custom_id FROM jobs", "q-7"},
        {"SELECT topic || '/' || partition || '/' || offset || '/' || is_file FROM jobs",
         "jobs/0/7/0"},
        {"SELECT status || finish_reason || stop_reason FROM jobs", "succeededstopeos"},
        {"SELECT dialect || model || worker_id || result_id FROM jobs",
         "nativetinyw1batch_req_7"},
        {"SELECT queue_us FROM jobs", "1000007"},
        {"SELECT group_wait_us || ',' || prefill_us || ',' || ttft_us FROM jobs",
         "70,1000,1070"},
        {"SELECT decode_us || ',' || e2e_us || ',' || gap_us_max FROM jobs", "63000,64070,70"},
        {"SELECT tpot_us FROM jobs", "7000"}, /* 63000 / 9 */
        {"SELECT prompt_tokens || ',' || cached_tokens || ',' || computed_tokens FROM jobs",
         "107,7,100"},
        {"SELECT completion_tokens || ',' || draft_tokens || ',' || accepted_tokens FROM jobs",
         "10,7,3"},
        {"SELECT engine_steps || ',' || prefill_chunks || ',' || preemptions || ',' || "
         "kv_pages_peak FROM jobs",
         "11,2,1,4"},
        {"SELECT metadata_json FROM jobs", "{\"k\":1}"},
        {"SELECT warnings FROM jobs", "unknown field foo"},
        {"SELECT error_code FROM jobs", "NULL"},
        {"SELECT printf('%.6f', submitted_at) FROM jobs", "1700000000.000000"},
        {"SELECT printf('%.6f', admitted_at) FROM jobs", "1700000001.000007"},
        {"SELECT printf('%.6f', finished_at) FROM jobs", "1700000001.064077"},
        {"SELECT text || question || expect_json FROM outputs", "answer 7question 7?[\"x\"]"},
        {"SELECT doc_id || bytes FROM job_documents", "doc-18"},
        {"SELECT line FROM outbox WHERE published_at IS NULL", "{\"custom_id\":\"q-7\"}"},
        {"SELECT answer FROM v_jobs WHERE custom_id = 'q-7'", "answer 7"},
        {"SELECT e2e_ms FROM v_jobs", "64.07"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        assert_string_equal(ask(s, cases[i].sql), cases[i].expected);
    store_close(s);
}

static void a_document_without_an_id_is_stored_under_its_reference(void **state)
{
    struct store *s = open_with_run(path_in(state, "a.db"));
    struct made m;
    make_result(&m, "jobs", false, 7);
    m.document.id = NULL;
    m.document.ref = m.doc_id;
    put_ok(s, "night", &m);
    assert_string_equal(ask(s, "SELECT doc_id FROM job_documents"), "doc-1");
    store_close(s);
}

static void a_source_is_stored_once(void **state)
{
    struct store *s = open_with_run(path_in(state, "a.db"));
    struct made m;
    struct err e = {0};
    for (int i = 0; i < 3; i++) {
        make_result(&m, "jobs", false, 7);
        snprintf(m.line, sizeof m.line, "line %d", i);
        put_ok(s, "night", &m);
    }
    assert_string_equal(ask(s, "SELECT count(*) FROM jobs"), "1");
    assert_string_equal(ask(s, "SELECT line FROM outbox"), "line 0");
    char *line;
    bool published;
    assert_int_equal(store_find(s, &m.job.source, m.job.payload_sha256, &line, &published, &e),
                     0);
    assert_string_equal(line, "line 0");
    assert_false(published);
    free(line);
    store_close(s);
}

static void what_is_stored_is_found_after_reopening(void **state)
{
    const char *path = path_in(state, "a.db");
    struct store *s = open_with_run(path);
    struct made m[3];
    struct err e = {0};
    char *line;
    bool published;
    for (int i = 0; i < 3; i++) {
        make_result(&m[i], "in.jsonl", true, i + 1);
        if (i < 2)
            put_ok(s, "night", &m[i]);
    }
    const struct job_source *sources[] = {&m[0].job.source};
    assert_int_equal(store_mark_published(s, sources, 1, &e), 0);
    store_close(s);
    s = open_with_run(path);
    const struct {
        bool stored, published;
    } expected[] = {{true, true}, {true, false}, {false, false}};
    for (int i = 0; i < 3; i++) {
        assert_int_equal(
            store_find(s, &m[i].job.source, m[i].job.payload_sha256, &line, &published, &e), 0);
        assert_int_equal(line != NULL, expected[i].stored);
        assert_int_equal(published, expected[i].published);
        free(line);
    }
    assert_string_equal(ask(s, "SELECT starts FROM runs"), "2");
    store_close(s);
}

static void another_payload_in_the_same_run_replaces_the_answer(void **state)
{
    struct store *s = open_with_run(path_in(state, "a.db"));
    struct made m;
    struct err e = {0};
    make_result(&m, "in.jsonl", true, 1);
    put_ok(s, "night", &m);
    memset(m.job.payload_sha256, 'f', 64);
    char *line;
    bool published;
    assert_int_equal(store_find(s, &m.job.source, m.job.payload_sha256, &line, &published, &e),
                     0);
    assert_null(line);
    snprintf(m.line, sizeof m.line, "edited");
    put_ok(s, "night", &m);
    assert_string_equal(ask(s, "SELECT count(*) FROM jobs"), "1");
    assert_string_equal(ask(s, "SELECT attempt FROM jobs"), "2");
    assert_string_equal(ask(s, "SELECT group_concat(line) FROM outbox"), "edited");
    assert_string_equal(ask(s, "SELECT count(*) FROM outputs"), "1");
    store_close(s);
}

static void a_topic_made_anew_keeps_the_earlier_run_as_history(void **state)
{
    struct store *s = open_with_run(path_in(state, "a.db"));
    struct made m;
    struct err e = {0};
    make_result(&m, "jobs", false, 1);
    put_ok(s, "night", &m);
    struct store_run second = made_run;
    second.run_id = "second";
    assert_int_equal(store_begin_run(s, &second, &e), 0);
    char *line;
    bool published;
    assert_int_equal(store_find(s, &m.job.source, m.job.payload_sha256, &line, &published, &e),
                     0);
    assert_non_null(line); /* the same payload: answered, whatever the run */
    free(line);
    memset(m.job.payload_sha256, 'f', 64);
    put_ok(s, "second", &m);
    assert_string_equal(ask(s, "SELECT count(*) FROM jobs"), "2");
    assert_string_equal(ask(s, "SELECT jobs FROM v_runs WHERE run_id = 'night'"), "1");
    assert_string_equal(ask(s, "SELECT count(*) FROM outbox"), "1");
    assert_string_equal(ask(s, "SELECT run_id FROM jobs WHERE is_current"), "second");
    store_close(s);
}

static void a_second_run_over_the_same_file_stands_beside_the_first(void **state)
{
    struct store *s = open_with_run(path_in(state, "a.db"));
    struct made m;
    struct err e = {0};
    make_result(&m, "in.jsonl", true, 1);
    put_ok(s, "night", &m);
    struct store_run second = made_run;
    second.run_id = "second";
    second.model_sha256 = "bb";
    assert_int_equal(store_begin_run(s, &second, &e), 0);
    char *line;
    bool published;
    assert_int_equal(store_find(s, &m.job.source, m.job.payload_sha256, &line, &published, &e),
                     0);
    assert_null(line);
    put_ok(s, "second", &m);
    assert_string_equal(ask(s, "SELECT group_concat(jobs) FROM v_runs"), "1,1");
    store_close(s);
}

static void a_run_that_goes_on_has_no_end_and_no_counters(void **state)
{
    static const char sql[] = "SELECT status || ',' || (ended_at IS NULL) || ',' || "
                              "(counters_json IS NULL) FROM runs";
    struct store *s = open_with_run(path_in(state, "a.db"));
    struct err e = {0};
    assert_int_equal(store_end_run(s, "night", "completed", "{}", &e), 0);
    assert_string_equal(ask(s, sql), "completed,0,0");
    assert_int_equal(store_begin_run(s, &made_run, &e), 0);
    assert_string_equal(ask(s, sql), "in_progress,1,1");
    store_close(s);
}

static void a_run_keeps_its_model(void **state)
{
    struct store *s = open_with_run(path_in(state, "a.db"));
    struct store_run other = made_run;
    struct err e = {0};
    other.model_sha256 = "bb";
    assert_int_equal(store_begin_run(s, &other, &e), ERR_STATE);
    assert_non_null(strstr(e.text, "night"));
    err_clear(&e);
    assert_int_equal(store_end_run(s, "night", "completed", "{}", &e), 0);
    assert_string_equal(ask(s, "SELECT status FROM runs"), "completed");
    assert_int_equal(store_end_run(s, "nobody", "completed", NULL, &e), ERR_NOTFOUND);
    err_clear(&e);
    assert_int_equal(store_end_run(s, "night", "splendid", NULL, &e), ERR_DB);
    store_close(s);
}

static void the_file_and_its_companions_are_private(void **state)
{
    const char *path = path_in(state, "a.db");
    struct store *s = open_with_run(path);
    const char *const suffixes[] = {"", "-wal", "-shm", ".lock"};
    for (int i = 0; i < 4; i++) {
        char name[4700];
        struct stat st;
        snprintf(name, sizeof name, "%s%s", path, suffixes[i]);
        assert_int_equal(stat(name, &st), 0);
        assert_int_equal(st.st_mode & 0777, 0600);
    }
    store_close(s);
    assert_int_not_equal(access(path_in(state, "a.db-wal"), F_OK), 0);
    assert_int_not_equal(access(path_in(state, "a.db.lock"), F_OK), 0);
}

static void refused(const char *path, enum store_mode mode, int code, const char *words)
{
    struct err e = {0};
    struct store *s = NULL;
    assert_int_equal(store_open(path, mode, &s, &e), code);
    assert_null(s);
    if (!strstr(e.text, words))
        fail_msg("'%s' does not say '%s'", e.text, words);
}

static void a_newer_schema_is_refused_with_both_numbers(void **state)
{
    const char *path = path_in(state, "a.db");
    store_close(open_owner(path));
    run_sql(path, "PRAGMA user_version = 99");
    refused(path, STORE_OWNER, ERR_STATE, "schema 99");
    refused(path, STORE_OWNER, ERR_STATE, "up to 5");
    refused(path, STORE_READER, ERR_STATE, "schema 99");
}

static void a_foreign_database_is_refused_and_left_alone(void **state)
{
    const char *path = path_in(state, "a.db");
    run_sql(path, "CREATE TABLE t (x); PRAGMA application_id = 5");
    struct stat before, after;
    stat(path, &before);
    refused(path, STORE_OWNER, ERR_STATE, "another program");
    stat(path, &after);
    assert_int_equal(before.st_size, after.st_size);
    assert_int_equal(before.st_mtim.tv_nsec, after.st_mtim.tv_nsec);
    assert_int_not_equal(access(path_in(state, "a.db.lock"), F_OK), 0);
}

static void what_is_no_database_is_refused(void **state)
{
    const char *path = path_in(state, "a.db");
    FILE *f = fopen(path, "w");
    for (int i = 0; i < 500; i++)
        fputs("{\"custom_id\": \"a job line, not a database\"}\n", f);
    fclose(f);
    refused(path, STORE_OWNER, ERR_DB, "not a database");
    refused(path_in(state, "missing.db"), STORE_READER, ERR_NOTFOUND, "no such");
    refused(path_in(state, ""), STORE_OWNER, ERR_INVALID, "not a file");
    refused("", STORE_OWNER, ERR_INVALID, "file name");
    refused(path_in(state, "no/such/folder.db"), STORE_OWNER, ERR_IO, "cannot open");
}

static void a_second_owner_is_refused_with_the_pid(void **state)
{
    const char *path = path_in(state, "a.db");
    struct store *s = open_owner(path);
    char pid[32];
    snprintf(pid, sizeof pid, "process %ld;", (long)getpid());
    refused(path, STORE_OWNER, ERR_STATE, pid);
    store_close(s);
    store_close(open_owner(path));
}

static void a_killed_owner_leaves_a_lock_that_can_be_taken(void **state)
{
    const char *path = path_in(state, "a.db");
    const pid_t pid = fork();
    if (pid == 0) {
        struct made m;
        struct err e = {0};
        struct store *s = NULL;
        if (store_open(path, STORE_OWNER, &s, &e) != 0 ||
            store_begin_run(s, &made_run, &e) != 0)
            _exit(1);
        make_result(&m, "jobs", false, 1);
        _exit(put_made(s, "night", &m, &e) == 0 ? 77 : 1);
    }
    int status;
    waitpid(pid, &status, 0);
    assert_int_equal(WEXITSTATUS(status), 77);
    assert_int_equal(access(path_in(state, "a.db.lock"), F_OK), 0);
    struct store *s = open_with_run(path);
    assert_string_equal(ask(s, "SELECT count(*) FROM jobs"), "1");
    store_close(s);
}

static void damage_is_told_at_opening(void **state)
{
    const char *path = path_in(state, "a.db");
    struct store *s = open_with_run(path);
    struct made m;
    for (int i = 1; i < 40; i++) {
        make_result(&m, "jobs", false, i);
        put_ok(s, "night", &m);
    }
    const long root =
        strtol(ask(s, "SELECT rootpage FROM sqlite_schema WHERE name = 'jobs_by_custom_id'"),
               NULL, 10);
    store_close(s);
    FILE *f = fopen(path, "r+");
    fseek(f, (root - 1) * 4096 + 3, SEEK_SET);
    fputs("\377\377\377\377", f);
    fclose(f);
    refused(path, STORE_OWNER, ERR_DB, "a.db");
}

static void readers_see_a_live_writer_and_write_nothing(void **state)
{
    const char *path = path_in(state, "a.db");
    struct err e = {0};
    struct store *writer = open_with_run(path), *reader = NULL;
    struct made m;
    assert_int_equal(store_open(path, STORE_READER, &reader, &e), 0);
    sqlite3_stmt *held;
    sqlite3_prepare_v2(store_handle(reader), "SELECT * FROM runs", -1, &held, NULL);
    assert_int_equal(sqlite3_step(held), SQLITE_ROW); /* a long read transaction */
    for (int i = 1; i <= 50; i++) {
        make_result(&m, "jobs", false, i);
        put_ok(writer, "night", &m);
    }
    assert_string_equal(ask(reader, "SELECT count(*) FROM jobs"), "0");
    sqlite3_finalize(held);
    assert_string_equal(ask(reader, "SELECT count(*) FROM jobs"), "50");
    assert_int_equal(put_made(reader, "night", &m, &e), ERR_STATE);
    store_close(writer);
    assert_string_equal(ask(reader, "SELECT count(*) FROM v_jobs"), "50");
    store_close(reader);
}

static void a_mark_needs_a_row(void **state)
{
    struct store *s = open_with_run(path_in(state, "a.db"));
    struct made m[2];
    struct err e = {0};
    make_result(&m[0], "jobs", false, 1);
    make_result(&m[1], "jobs", false, 2);
    put_ok(s, "night", &m[0]);
    const struct job_source *sources[] = {&m[0].job.source, &m[1].job.source};
    assert_int_equal(store_mark_published(s, sources, 2, &e), ERR_NOTFOUND);
    assert_string_equal(ask(s, "SELECT published_at FROM outbox"), "NULL");
    store_close(s);
}

struct collected {
    struct store *s;
    char text[256];
    int stop_after;
};

static int collect(void *ctx, const struct job_source *source, const char *custom_id,
                   const char *line, struct err *e)
{
    struct collected *c = ctx;
    (void)line;
    snprintf(c->text + strlen(c->text), sizeof c->text - strlen(c->text), "%s%lld:%s ",
             source->topic, (long long)source->offset, custom_id);
    if (c->stop_after && --c->stop_after == 0)
        return ERR_SET(e, ERR_CANCELLED, "enough");
    return store_mark_published(c->s, &source, 1, e);
}

static void unpublished_lines_come_in_the_order_of_their_sources(void **state)
{
    struct store *s = open_with_run(path_in(state, "a.db"));
    const struct {
        const char *topic;
        int n;
    } puts[] = {{"b", 2}, {"a", 10}, {"b", 1}, {"a", 9}};
    struct err e = {0};
    for (int i = 0; i < 4; i++) {
        struct made m;
        make_result(&m, puts[i].topic, false, puts[i].n);
        put_ok(s, "night", &m);
    }
    struct collected c = {.s = s, .stop_after = 2};
    assert_int_equal(store_each_unpublished(s, collect, &c, &e), ERR_CANCELLED);
    assert_string_equal(c.text, "a9:q-9 a10:q-10 ");
    err_clear(&e);
    c = (struct collected){.s = s};
    assert_int_equal(store_each_unpublished(s, collect, &c, &e), 0);
    assert_string_equal(c.text, "a10:q-10 b1:q-1 b2:q-2 "); /* the second was not marked */
    c.text[0] = '\0';
    assert_int_equal(store_each_unpublished(s, collect, &c, &e), 0);
    assert_string_equal(c.text, "");
    store_close(s);
}

static void a_batch_is_stored_whole_or_not_at_all(void **state)
{
    struct store *s = open_with_run(path_in(state, "a.db"));
    struct made m[3];
    struct err e = {0};
    const struct result *results[3];
    const char *lines[3];
    for (int i = 0; i < 3; i++) {
        results[i] = make_result(&m[i], "jobs", false, i + 1);
        lines[i] = m[i].line;
    }
    m[2].result.metrics.cached_tokens++;
    assert_int_equal(store_put(s, "night", results, lines, 3, &e), ERR_DB);
    assert_string_equal(ask(s, "SELECT count(*) FROM jobs"), "0");
    m[2].result.metrics.cached_tokens--;
    err_clear(&e);
    assert_int_equal(store_put(s, "night", results, lines, 3, &e), 0);
    assert_string_equal(ask(s, "SELECT count(*) FROM jobs"), "3");
    store_close(s);
}

static void numbers_that_do_not_add_up_are_refused(void **state)
{
    struct store *s = open_with_run(path_in(state, "a.db"));
    const struct {
        size_t field;
        const char *words;
    } cases[] = {
        {offsetof(struct result_metrics, prompt_tokens), "prompt_is_cached_plus_computed"},
        {offsetof(struct result_metrics, ttft_us), "ttft_is_wait_plus_prefill"},
        {offsetof(struct result_metrics, e2e_us), "e2e_is_ttft_plus_decode"},
        {offsetof(struct result_metrics, accepted_tokens), "accepted_at_most_drafted"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct made m;
        struct err e = {0};
        make_result(&m, "jobs", false, 1);
        *(int64_t *)((char *)&m.result.metrics + cases[i].field) += 1000;
        assert_int_equal(put_made(s, "night", &m, &e), ERR_DB);
        if (!strstr(e.text, cases[i].words) || !strstr(e.text, "q-1"))
            fail_msg("%s", e.text);
        assert_int_equal(e.flags & ERR_RETRY, 0);
    }
    store_close(s);
}

static void odd_but_possible_results_are_stored(void **state)
{
    struct store *s = open_with_run(path_in(state, "a.db"));
    struct made m;
    make_failure(&m, "jobs", false, 1, "invalid_json_line");
    put_ok(s, "night", &m);
    assert_string_equal(ask(s, "SELECT error_code || error_status FROM jobs"),
                        "invalid_json_line400");
    assert_string_equal(ask(s, "SELECT ttft_us FROM jobs"), "NULL");
    make_result(&m, "jobs", false, 2);
    m.result.status = RESULT_CANCELLED; /* no error code was given */
    put_ok(s, "night", &m);
    assert_string_equal(ask(s, "SELECT error_code FROM jobs WHERE offset = 2"), "cancelled");
    make_result(&m, "jobs", false, 3);
    m.result.metrics.queue_us = -5; /* the submitter's clock is ahead */
    m.job.source.timestamp_us = INT64_C(4000000000000000);
    m.job.metadata = (char *)"{not json";
    m.result.text = (char *)"a\0b";
    m.result.text_length = 3;
    put_ok(s, "night", &m);
    assert_string_equal(ask(s, "SELECT queue_us FROM jobs WHERE offset = 3"), "NULL");
    assert_string_equal(ask(s, "SELECT turnaround_us FROM jobs WHERE offset = 3"), "NULL");
    assert_string_equal(ask(s, "SELECT metadata_json FROM jobs WHERE offset = 3"), "NULL");
    assert_string_equal(ask(s, "SELECT hex(text) FROM outputs JOIN jobs USING (job_id) "
                               "WHERE offset = 3"),
                        "610062");
    store_close(s);
}

static void a_long_question_is_cut_between_characters(void **state)
{
    struct store *s = open_with_run(path_in(state, "a.db"));
    struct made m;
    char question[4001];
    for (int i = 0; i < 4000; i += 2)
        memcpy(question + i, "\303\244", 2);
    question[4000] = '\0';
    question[0] = 'x'; /* now the characters straddle byte 2000 */
    memmove(question + 1, question + 2, 3999);
    make_result(&m, "jobs", false, 1);
    m.message.content = question;
    m.message.length = 3999;
    put_ok(s, "night", &m);
    assert_string_equal(ask(s, "SELECT length(CAST(question AS BLOB)) FROM outputs"), "1999");
    assert_string_equal(ask(s, "SELECT hex(substr(question, -1)) FROM outputs"), "C3A4");
    store_close(s);
}

static void metrics_def_and_the_table_name_the_same_columns(void **state)
{
    struct store *s = open_owner(path_in(state, "a.db"));
    int rows = 0;
#define METRIC(column, field, unit, help)                                                      \
    assert_string_equal(                                                                       \
        ask(s, "SELECT count(*) FROM pragma_table_info('jobs') WHERE name = '" #column "'"),   \
        "1");                                                                                  \
    rows++;
#include "schema/metrics.def"
#undef METRIC
    /* Every measured column is a metric, but for the one that the store derives. */
    char expected[16];
    snprintf(expected, sizeof expected, "%d", rows + 1);
    assert_string_equal(
        ask(s, "SELECT count(*) FROM pragma_table_info('jobs') WHERE name GLOB '*_us' OR name "
               "GLOB '*_us_max' OR name GLOB '*_tokens' OR name IN ('engine_steps', "
               "'draft_steps', "
               "'prefill_chunks', 'preemptions', 'kv_pages_peak', 'miss_at', 'group_jobs')"),
        expected);
    store_close(s);
}

static void pragmas_are_as_promised(void **state)
{
    struct store *s = open_owner(path_in(state, "a.db"));
    assert_string_equal(ask(s, "PRAGMA journal_mode"), "wal");
    assert_string_equal(ask(s, "PRAGMA synchronous"), "2");
    assert_string_equal(ask(s, "PRAGMA foreign_keys"), "1");
    assert_string_equal(ask(s, "PRAGMA busy_timeout"), "5000");
    assert_string_equal(ask(s, "PRAGMA trusted_schema"), "0");
    assert_string_equal(ask(s, "PRAGMA user_version"), "5");
    assert_string_equal(ask(s, "PRAGMA application_id"), "1397244230");
    assert_string_equal(ask(s, "SELECT count(*) FROM pragma_table_list WHERE schema = 'main' "
                               "AND type = 'table' AND name NOT LIKE 'sqlite%' AND NOT strict"),
                        "0");
    store_close(s);
}

int main(void)
{
#define IN_FOLDER(test) cmocka_unit_test_setup_teardown(test, make_folder, remove_folder)
    const struct CMUnitTest tests[] = {
        IN_FOLDER(a_result_comes_back_column_by_column),
        IN_FOLDER(a_document_without_an_id_is_stored_under_its_reference),
        IN_FOLDER(a_source_is_stored_once),
        IN_FOLDER(what_is_stored_is_found_after_reopening),
        IN_FOLDER(another_payload_in_the_same_run_replaces_the_answer),
        IN_FOLDER(a_topic_made_anew_keeps_the_earlier_run_as_history),
        IN_FOLDER(a_second_run_over_the_same_file_stands_beside_the_first),
        IN_FOLDER(a_run_that_goes_on_has_no_end_and_no_counters),
        IN_FOLDER(a_run_keeps_its_model),
        IN_FOLDER(the_file_and_its_companions_are_private),
        IN_FOLDER(a_newer_schema_is_refused_with_both_numbers),
        IN_FOLDER(a_foreign_database_is_refused_and_left_alone),
        IN_FOLDER(what_is_no_database_is_refused),
        IN_FOLDER(a_second_owner_is_refused_with_the_pid),
        IN_FOLDER(a_killed_owner_leaves_a_lock_that_can_be_taken),
        IN_FOLDER(damage_is_told_at_opening),
        IN_FOLDER(readers_see_a_live_writer_and_write_nothing),
        IN_FOLDER(a_mark_needs_a_row),
        IN_FOLDER(unpublished_lines_come_in_the_order_of_their_sources),
        IN_FOLDER(a_batch_is_stored_whole_or_not_at_all),
        IN_FOLDER(numbers_that_do_not_add_up_are_refused),
        IN_FOLDER(odd_but_possible_results_are_stored),
        IN_FOLDER(a_long_question_is_cut_between_characters),
        IN_FOLDER(metrics_def_and_the_table_name_the_same_columns),
        IN_FOLDER(pragmas_are_as_promised),
    };
    return cmocka_run_group_tests_name("store", tests, NULL, NULL);
}
