/*
 * Results that went through a topic: what the sink's database has is compared with the worker's
 * by SQLite itself, column by column; and each rule about results that come again.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <sqlite3.h>

#include "io/store_receive.h"
#include "io/store_result_headers.h"
#include "io/store_upkeep.h"
#include "store_make.h"

static struct store *open_owner(const char *path)
{
    struct err e = {0};
    struct store *s = NULL;
    if (store_open(path, STORE_OWNER, &s, &e) != 0)
        fail_msg("%s", e.text);
    return s;
}

static void print_fault(void *ctx, const char *sentence)
{
    (void)ctx;
    print_error("%s\n", sentence);
}

static void is_whole(struct store *s)
{
    struct store_census census;
    struct err e = {0};
    size_t n = 1;
    assert_int_equal(store_check(s, print_fault, NULL, &n, &census, &e), 0);
    assert_int_equal(n, 0);
}

/* Gives a line with its headers to the sink as the record at `offset` of partition 0. */
static int give(struct store *sink, const char *line, const struct result_headers *headers,
                int64_t offset, struct receive_counts *counts)
{
    struct result_record record;
    struct err e = {0};
    if (result_read(line, strlen(line), headers ? headers->items : NULL,
                    headers ? headers->n : 0, &record, &e) != 0)
        fail_msg("%s: %s", line, e.text);
    const struct result_receipt receipt = {
        .record = &record, .line = line, .offset = offset, .timestamp_us = 1700000050000000};
    const struct result_position position = {
        .next = offset + 1, .last = offset, .last_sha256 = "x"};
    const int code = store_receive(sink, "results", &receipt, 1, &position, 1, counts, &e);
    if (code != 0)
        print_error("%s\n", e.text);
    result_record_fini(&record);
    return code;
}

/* What a worker does with a result: store it, make its line and headers. */
static char *work(struct store *worker, struct made *m, struct result_headers *headers)
{
    struct buf line = {0};
    struct err e = {0};
    const struct result *results[] = {&m->result};
    if (result_emit(&m->result, &line, &e) != 0)
        fail_msg("%s", e.text);
    char *text = buf_take(&line);
    const char *lines[] = {text};
    if (store_put(worker, "night", results, lines, 1, &e) != 0 ||
        store_result_headers(worker, &m->job.source, NULL, headers, &e) != 0)
        fail_msg("%s", e.text);
    return text;
}

static void pass_on(struct store *worker, struct store *sink, struct made *m, int64_t offset,
                    struct receive_counts *counts)
{
    struct result_headers headers;
    char *line = work(worker, m, &headers);
    assert_int_equal(give(sink, line, &headers, offset, counts), 0);
    result_headers_fini(&headers);
    free(line);
}

static void make_kind(struct made *m, int n)
{
    static const enum job_dialect dialects[] = {DIALECT_NATIVE, DIALECT_OPENAI_CHAT,
                                                DIALECT_OPENAI_COMPLETION};
    static struct result_draft drafts[] = {{"all", 1, 7, 3}, {"lookup", 2, 4, 0}};
    if (n % 5 == 4)
        make_failure(m, "jobs", false, n, "invalid_json_line");
    else
        make_result(m, "jobs", false, n);
    m->job.dialect = dialects[n % 3];
    m->document.title = n % 2 ? m->custom_id : NULL;
    snprintf(m->job.payload_sha256, sizeof m->job.payload_sha256, "%016d%048d", n, n);
    snprintf(m->result.id, sizeof m->result.id, "batch_req_%016x%.16s", n,
             m->job.payload_sha256);
    if (n % 4 != 0)
        return;
    m->result.drafts = drafts;
    m->result.n_drafts = 2;
    m->result.metrics.draft_steps = 2;
    m->result.metrics.expected_tokens = 1.25;
    m->result.metrics.verify_us = 17;
    m->result.metrics.miss = "cold";
    m->result.metrics.group_jobs = 4;
}

static const char jobs_differ[] =
    "WITH a AS (SELECT run_id, custom_id, topic, partition, offset, is_file, is_current, "
    "payload_sha256, attempt, result_id, worker_id, dialect, model, prefix_group, status, "
    "finish_reason, stop_reason, error_code, error_message, round(submitted_at * 1e6), "
    "round(admitted_at * 1e6), round(finished_at * 1e6), round(stored_at * 1e6), queue_us, "
    "group_wait_us, prefill_us, ttft_us, decode_us, e2e_us, gap_us_max, turnaround_us, "
    "prompt_tokens, cached_tokens, computed_tokens, completion_tokens, draft_tokens, "
    "accepted_tokens, engine_steps, prefill_chunks, preemptions, kv_pages_peak, miss_reason, "
    "miss_at, group_jobs, shared_tokens, draft_steps, draft_us, verify_us, expected_us, "
    "expected_tokens, text, line FROM %s.jobs JOIN %s.outputs USING (job_id) "
    "JOIN %s.outbox USING (job_id)), "
    "b AS (SELECT run_id, custom_id, topic, partition, offset, is_file, is_current, "
    "payload_sha256, attempt, result_id, worker_id, dialect, model, prefix_group, status, "
    "finish_reason, stop_reason, error_code, error_message, round(submitted_at * 1e6), "
    "round(admitted_at * 1e6), round(finished_at * 1e6), round(stored_at * 1e6), queue_us, "
    "group_wait_us, prefill_us, ttft_us, decode_us, e2e_us, gap_us_max, turnaround_us, "
    "prompt_tokens, cached_tokens, computed_tokens, completion_tokens, draft_tokens, "
    "accepted_tokens, engine_steps, prefill_chunks, preemptions, kv_pages_peak, miss_reason, "
    "miss_at, group_jobs, shared_tokens, draft_steps, draft_us, verify_us, expected_us, "
    "expected_tokens, text, line FROM %s.jobs JOIN %s.outputs USING (job_id) "
    "JOIN %s.outbox USING (job_id)) "
    "SELECT count(*) FROM (SELECT * FROM a EXCEPT SELECT * FROM b)";
static const char parts_differ[] =
    "SELECT count(*) FROM (SELECT custom_id, position, doc_id, title, bytes "
    "FROM %s.job_documents JOIN %s.jobs USING (job_id) EXCEPT SELECT custom_id, position, "
    "doc_id, title, bytes FROM %s.job_documents JOIN %s.jobs USING (job_id)) UNION ALL "
    "SELECT count(*) FROM (SELECT custom_id, source, depth, drafted, accepted "
    "FROM %s.job_drafts JOIN %s.jobs USING (job_id) EXCEPT SELECT custom_id, source, depth, "
    "drafted, accepted FROM %s.job_drafts JOIN %s.jobs USING (job_id)) ORDER BY 1 DESC";

static void nothing_differs(struct store *sink, const char *a, const char *b)
{
    char sql[6000];
    snprintf(sql, sizeof sql, jobs_differ, a, a, a, b, b, b);
    assert_int_equal(ask_s64(sink, sql), 0);
    snprintf(sql, sizeof sql, parts_differ, a, a, b, b, a, a, b, b);
    assert_int_equal(ask_s64(sink, sql), 0);
}

static void a_sink_has_what_the_worker_has(void **state)
{
    enum { JOBS = 60 };
    struct store *worker = open_owner(path_in(state, "worker.db"));
    struct store *sink = open_owner(path_in(state, "sink.db"));
    struct receive_counts counts = {0};
    struct err e = {0};
    char sql[4700];
    assert_int_equal(store_begin_run(worker, &made_run, &e), 0);
    for (int n = 1; n <= JOBS; n++) {
        struct made m;
        make_kind(&m, n);
        pass_on(worker, sink, &m, n, &counts);
    }
    store_close(worker);
    assert_int_equal(counts.stored, JOBS);
    snprintf(sql, sizeof sql, "ATTACH '%s' AS w", path_in(state, "worker.db"));
    assert_int_equal(sqlite3_exec(store_handle(sink), sql, NULL, NULL, NULL), SQLITE_OK);
    assert_int_equal(ask_s64(sink, "SELECT count(*) FROM main.jobs"), JOBS);
    nothing_differs(sink, "main", "w");
    nothing_differs(sink, "w", "main");
    assert_int_equal(ask_s64(sink, "SELECT count(*) FROM main.runs JOIN w.runs USING (run_id, "
                                   "model, model_sha256, quant, kernels, version, started_at)"),
                     1);
    assert_int_equal(
        ask_s64(sink, "SELECT count(*) FROM main.outbox WHERE published_at IS NULL"), 0);
    /* the comparison sees a difference */
    sqlite3_exec(store_handle(sink), "UPDATE main.jobs SET e2e_us = NULL WHERE job_id = 7",
                 NULL, NULL, NULL);
    snprintf(sql, sizeof sql, jobs_differ, "main", "main", "main", "w", "w", "w");
    assert_int_equal(ask_s64(sink, sql), 1);
    sqlite3_exec(store_handle(sink), "DETACH w", NULL, NULL, NULL);
    is_whole(sink);
    store_close(sink);
}

static void the_same_result_counts_once(void **state)
{
    struct store *worker = open_owner(path_in(state, "worker.db"));
    struct store *sink = open_owner(path_in(state, "sink.db"));
    struct receive_counts counts = {0};
    struct result_headers headers;
    struct err e = {0};
    struct made m;
    assert_int_equal(store_begin_run(worker, &made_run, &e), 0);
    make_kind(&m, 1);
    char *line = work(worker, &m, &headers);
    for (int64_t offset = 0; offset < 3; offset++)
        assert_int_equal(give(sink, line, &headers, offset, &counts), 0);
    assert_int_equal(counts.stored, 1);
    assert_int_equal(counts.repeated, 2);
    assert_int_equal(ask_s64(sink, "SELECT next_offset FROM result_offsets"), 3);

    /* another answer to the same job takes its place */
    snprintf(m.text, sizeof m.text, "another answer");
    m.result.text_length = strlen(m.text);
    struct buf other = {0};
    assert_int_equal(result_emit(&m.result, &other, &e), 0);
    assert_int_equal(give(sink, buf_str(&other), &headers, 3, &counts), 0);
    assert_int_equal(counts.replaced, 1);
    assert_int_equal(ask_s64(sink, "SELECT count(*) FROM jobs"), 1);
    assert_int_equal(
        ask_s64(sink, "SELECT count(*) FROM outputs WHERE text = 'another answer'"), 1);
    is_whole(sink);
    buf_fini(&other);
    result_headers_fini(&headers);
    free(line);
    store_close(worker);
    store_close(sink);
}

static void a_line_without_headers_gives_way_to_one_with(void **state)
{
    struct store *worker = open_owner(path_in(state, "worker.db"));
    struct store *sink = open_owner(path_in(state, "sink.db"));
    struct receive_counts counts = {0};
    struct err e = {0};
    assert_int_equal(store_begin_run(worker, &made_run, &e), 0);
    for (int n = 1; n <= 3; n++) { /* one of each dialect */
        struct result_headers headers;
        struct made m;
        make_kind(&m, n);
        char *line = work(worker, &m, &headers);
        assert_int_equal(give(sink, line, NULL, 10 * n, &counts), 0);
        assert_int_equal(give(sink, line, NULL, 10 * n + 1, &counts), 0);
        assert_int_equal(give(sink, line, &headers, 10 * n + 2, &counts), 0);
        assert_int_equal(give(sink, line, NULL, 10 * n + 3, &counts), 0);
        assert_int_equal(ask_s64(sink, "SELECT count(*) FROM jobs"), n);
        result_headers_fini(&headers);
        free(line);
    }
    assert_int_equal(counts.stored, 3);
    assert_int_equal(counts.repeated, 6);
    assert_int_equal(counts.replaced, 3);
    assert_int_equal(ask_s64(sink, "SELECT count(*) FROM jobs WHERE topic = 'jobs' "
                                   "AND run_id = 'night' AND payload_sha256 NOT GLOB '*0'"),
                     3);
    store_close(worker);
    store_close(sink);
}

static void another_job_at_an_old_place_is_another_job(void **state)
{
    struct store *worker = open_owner(path_in(state, "worker.db"));
    struct store *sink = open_owner(path_in(state, "sink.db"));
    struct store_run morning = made_run;
    struct receive_counts counts = {0};
    struct err e = {0};
    struct result_headers headers;
    struct made m;
    assert_int_equal(store_begin_run(worker, &made_run, &e), 0);
    make_kind(&m, 1);
    pass_on(worker, sink, &m, 1, &counts);
    /* the job topic was made anew: the same offset, another payload, a later run */
    morning.run_id = "morning";
    assert_int_equal(store_begin_run(worker, &morning, &e), 0);
    make_kind(&m, 2);
    m.job.source.offset = 1;
    const struct result *results[] = {&m.result};
    struct buf line = {0};
    assert_int_equal(result_emit(&m.result, &line, &e), 0);
    const char *lines[] = {buf_str(&line)};
    assert_int_equal(store_put(worker, "morning", results, lines, 1, &e), 0);
    assert_int_equal(store_result_headers(worker, &m.job.source, NULL, &headers, &e), 0);
    assert_int_equal(give(sink, buf_str(&line), &headers, 2, &counts), 0);
    assert_int_equal(ask_s64(sink, "SELECT count(*) FROM jobs"), 2);
    assert_int_equal(ask_s64(sink, "SELECT count(*) FROM jobs WHERE is_current = 1 "
                                   "AND run_id = 'morning'"),
                     1);
    is_whole(sink);
    result_headers_fini(&headers);
    buf_fini(&line);
    store_close(worker);
    store_close(sink);
}

static void a_repeated_job_takes_the_place_of_its_failure(void **state)
{
    struct store *worker = open_owner(path_in(state, "worker.db"));
    struct store *sink = open_owner(path_in(state, "sink.db"));
    struct receive_counts counts = {0};
    struct err e = {0};
    struct made m;
    struct result_headers headers;
    assert_int_equal(store_begin_run(worker, &made_run, &e), 0);
    make_kind(&m, 4); /* failed */
    pass_on(worker, sink, &m, 1, &counts);
    const char *payload = m.job.payload_sha256;
    struct made again;
    make_kind(&again, 16);
    memcpy(again.job.payload_sha256, payload, 65);
    char *line = work(worker, &again, &headers);
    result_headers_fini(&headers);
    assert_int_equal(store_result_headers(worker, &again.job.source, "jobs/0/4", &headers, &e),
                     0);
    assert_int_equal(give(sink, line, &headers, 2, &counts), 0);
    assert_int_equal(ask_s64(sink, "SELECT count(*) FROM jobs"), 1);
    assert_int_equal(ask_s64(sink, "SELECT count(*) FROM jobs WHERE status = 'succeeded'"), 1);
    result_headers_fini(&headers);
    free(line);
    store_close(worker);
    store_close(sink);
}

static void a_position_is_kept_with_its_rows_or_not_at_all(void **state)
{
    struct store *sink = open_owner(path_in(state, "sink.db"));
    struct receive_counts counts = {0};
    struct result_position position = {.partition = 0};
    struct err e = {0};
    static const char line[] = "{\"custom_id\":\"a\",\"status\":\"failed\"}";
    assert_int_equal(store_result_position(sink, "results", &position, &e), 0);
    assert_int_equal(position.next, 0);
    assert_int_equal(position.last, -1);
    assert_int_equal(sqlite3_exec(store_handle(sink),
                                  "CREATE TEMP TRIGGER full AFTER INSERT ON main.outbox BEGIN "
                                  "SELECT RAISE(ABORT, 'no'); END",
                                  NULL, NULL, NULL),
                     SQLITE_OK);
    assert_int_not_equal(give(sink, line, NULL, 4, &counts), 0);
    assert_int_equal(counts.stored, 0);
    assert_int_equal(ask_s64(sink, "SELECT (SELECT count(*) FROM jobs) + (SELECT count(*) FROM "
                                   "runs) + (SELECT count(*) FROM result_offsets)"),
                     0);
    sqlite3_exec(store_handle(sink), "DROP TRIGGER full", NULL, NULL, NULL);
    assert_int_equal(give(sink, line, NULL, 4, &counts), 0);
    assert_int_equal(store_result_position(sink, "results", &position, &e), 0);
    assert_int_equal(position.next, 5);
    assert_int_equal(ask_s64(sink, "SELECT count(*) FROM jobs"), 1);
    store_close(sink);
}

/* Every line that can be read can be stored, whatever it says. */
static void what_is_read_can_be_stored(void **state)
{
    static const char *const lines[] = {
        "{\"custom_id\":\"a\",\"status\":\"failed\",\"error\":null}",
        "{\"custom_id\":\"b\",\"status\":\"expired\",\"error\":{\"code\":7,\"status\":1e9}}",
        "{\"custom_id\":\"c\",\"status\":\"succeeded\",\"answer\":\"\",\"metrics\":{"
        "\"ttft_ms\":1,\"prefill_ms\":9,\"group_wait_ms\":-1,\"e2e_ms\":1e300},"
        "\"created\":-1,\"documents\":[1,null,\"d\"],\"warnings\":\"x\",\"metadata\":[]}",
        "{\"custom_id\":\"d\",\"status\":\"succeeded\",\"answer\":\"x\",\"source\":{"
        "\"topic\":\"t\",\"partition\":-1,\"offset\":1},\"finish_reason\":\"odd\"}",
        "{\"custom_id\":\"e\",\"id\":7,\"response\":{\"status_code\":\"x\",\"body\":{"
        "\"error\":{}}}}",
        "{\"custom_id\":\"f\",\"response\":{\"body\":{\"choices\":[{\"message\":{"
        "\"content\":\"\"}}],\"usage\":{\"prompt_tokens\":999999999999999}}}}",
    };
    struct store *sink = open_owner(path_in(state, "sink.db"));
    struct receive_counts counts = {0};
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++)
        assert_int_equal(give(sink, lines[i], NULL, (int64_t)i, &counts), 0);
    assert_int_equal(ask_s64(sink, "SELECT count(*) FROM jobs"), counts.stored);
    assert_int_equal(counts.stored, sizeof lines / sizeof lines[0]);
    is_whole(sink);
    store_close(sink);
}

/* Lines say U+FFFD where the bytes of a path are no character. */
static void a_path_that_is_no_utf8_is_no_damage(void **state)
{
    struct err e = {0};
    struct made m;
    struct buf line = {0};
    struct store *s = open_owner(path_in(state, "lines.db"));
    const struct result *results[] = {make_result(&m,
                                                  "b\xff"
                                                  "d.jsonl",
                                                  true, 1)};
    assert_int_equal(store_begin_run(s, &made_run, &e), 0);
    assert_int_equal(result_emit(results[0], &line, &e), 0);
    const char *lines[] = {buf_str(&line)};
    assert_int_equal(store_put(s, made_run.run_id, results, lines, 1, &e), 0);
    is_whole(s);
    buf_fini(&line);
    store_close(s);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, make_folder, remove_folder)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_path_that_is_no_utf8_is_no_damage),
        TEST(a_sink_has_what_the_worker_has),
        TEST(the_same_result_counts_once),
        TEST(a_line_without_headers_gives_way_to_one_with),
        TEST(another_job_at_an_old_place_is_another_job),
        TEST(a_repeated_job_takes_the_place_of_its_failure),
        TEST(a_position_is_kept_with_its_rows_or_not_at_all),
        TEST(what_is_read_can_be_stored),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
