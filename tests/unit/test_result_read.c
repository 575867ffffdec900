/* Records of a result topic: headers against values written by hand, lines of both dialects
 * and of other programs, and bytes that are neither. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "result_read.h"

#define PAYLOAD "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff"
#define USAGE                                                                                  \
    "\"usage\":{\"prompt_tokens\":100,\"completion_tokens\":20,\"total_tokens\":120,"          \
    "\"prompt_tokens_details\":{\"cached_tokens\":64}}"

static const char native_line[] =
    "{\"id\":\"batch_req_00000000000000010011223344556677\",\"custom_id\":\"q-1\","
    "\"run_id\":null,\"status\":\"succeeded\",\"answer\":\"In 1786.\","
    "\"finish_reason\":\"stop\",\"stop_reason\":\"eos\",\"model\":\"tiny\","
    "\"created\":1767225600," USAGE ",\"metrics\":{\"queue_ms\":1500.0,"
    "\"group_wait_ms\":0.25,\"prefill_ms\":12.345,\"ttft_ms\":12.595,\"decode_ms\":1000.001,"
    "\"e2e_ms\":1012.596,\"gap_max_ms\":0.001,\"computed_tokens\":36,\"engine_steps\":21,"
    "\"prefill_chunks\":2,\"preemptions\":1,\"kv_pages_peak\":4},\"error\":null,"
    "\"documents\":[\"d1\",null],\"prefix_group\":\"abc\",\"metadata\":{\"n\":1.0},"
    "\"warnings\":[\"x\",\"y\"],\"source\":{\"topic\":\"jobs\",\"partition\":3,\"offset\":17},"
    "\"worker\":\"w1\"}";

static int read_line(const char *line, const struct result_header *headers, size_t n,
                     struct result_record *out, struct err *e)
{
    *e = (struct err){0};
    return result_read(line, strlen(line), headers, n, out, e);
}

static void read_ok(const char *line, const struct result_header *headers, size_t n,
                    struct result_record *out)
{
    struct err e;
    if (read_line(line, headers, n, out, &e) != 0)
        fail_msg("%s: %s", line, e.text);
}

static void a_native_line_is_read_whole(void **state)
{
    (void)state;
    struct result_record record;
    read_ok(native_line, NULL, 0, &record);
    const struct result *r = record.result;
    const struct result_metrics *m = &r->metrics;
    assert_string_equal(r->job->custom_id, "q-1");
    assert_string_equal(r->text, "In 1786.");
    assert_string_equal(r->stop_reason, "eos");
    assert_string_equal(r->model, "tiny");
    assert_string_equal(r->worker_id, "w1");
    assert_string_equal(r->job->metadata, "{\"n\":1.0}");
    assert_string_equal(r->job->warnings, "x,y");
    assert_string_equal(r->job->prefix_group, "abc");
    assert_int_equal(r->job->n_documents, 2);
    assert_string_equal(r->job->documents[0].id, "d1");
    assert_null(r->job->documents[1].id);
    assert_true(record.has_source);
    assert_string_equal(r->job->source.topic, "jobs");
    assert_int_equal(r->job->source.partition, 3);
    assert_int_equal(r->job->source.offset, 17);
    assert_int_equal(m->queue_us, 1500000);
    assert_int_equal(m->group_wait_us, 250);
    assert_int_equal(m->prefill_us, 12345);
    assert_int_equal(m->decode_us, 1000001);
    assert_int_equal(m->e2e_us, 1012596);
    assert_int_equal(m->prompt_tokens, 100);
    assert_int_equal(m->computed_tokens, 36);
    assert_int_equal(m->engine_steps, 21);
    assert_null(record.run_id);
    assert_false(record.has_payload);
    assert_memory_equal(r->job->payload_sha256, "0011223344556677000000", 22);
    result_record_fini(&record);
}

static void openai_lines_are_read_in_each_of_their_forms(void **state)
{
    (void)state;
    static const struct {
        const char *line;
        enum job_dialect dialect;
        enum result_status status;
        const char *text, *code;
        int error_status;
    } cases[] = {
        {"{\"id\":null,\"custom_id\":\"a\",\"response\":{\"status_code\":200,\"body\":{"
         "\"model\":\"m\",\"choices\":[{\"message\":{\"content\":\"hi\"},"
         "\"finish_reason\":\"length\"}]," USAGE "}},\"error\":null}",
         DIALECT_OPENAI_CHAT, RESULT_SUCCEEDED, "hi", "", 0},
        {"{\"custom_id\":\"a\",\"response\":{\"body\":{\"choices\":[{\"text\":\"\"}]}}}",
         DIALECT_OPENAI_COMPLETION, RESULT_SUCCEEDED, "", "", 0},
        {"{\"custom_id\":\"a\",\"response\":{\"status_code\":413,\"body\":{\"error\":{"
         "\"message\":\"m\",\"code\":\"context_length_exceeded\"}}}}",
         DIALECT_OPENAI_CHAT, RESULT_FAILED, NULL, "context_length_exceeded", 413},
        {"{\"custom_id\":\"a\",\"response\":null,\"error\":{\"code\":\"batch_expired\","
         "\"message\":\"m\"}}",
         DIALECT_OPENAI_CHAT, RESULT_EXPIRED, NULL, "batch_expired", 0},
        {"{\"custom_id\":\"a\",\"response\":null,\"error\":{\"code\":\"batch_cancelled\"}}",
         DIALECT_OPENAI_CHAT, RESULT_CANCELLED, NULL, "batch_cancelled", 0},
        {"{\"custom_id\":\"a\",\"status\":\"failed\",\"response\":null,\"error\":{\"code\":"
         "\"result_too_large\",\"message\":\"m\"}}",
         DIALECT_OPENAI_CHAT, RESULT_FAILED, NULL, "result_too_large", 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct result_record record;
        read_ok(cases[i].line, NULL, 0, &record);
        const struct result *r = record.result;
        assert_int_equal(r->job->dialect, cases[i].dialect);
        assert_int_equal(r->status, cases[i].status);
        assert_string_equal(r->text ? r->text : "none", cases[i].text ? cases[i].text : "none");
        assert_string_equal(r->error.code, cases[i].code);
        assert_int_equal(r->error.status, cases[i].error_status);
        assert_false(record.has_source);
        assert_int_equal(r->metrics.e2e_us, -1);
        result_record_fini(&record);
    }
}

/* A model may say NUL. */
static void an_answer_may_hold_nul(void **state)
{
    (void)state;
    struct result_record record;
    read_ok("{\"custom_id\":\"a\",\"status\":\"succeeded\",\"answer\":\"x\\u0000y\"}", NULL, 0,
            &record);
    assert_int_equal(record.result->text_length, 3);
    assert_memory_equal(record.result->text, "x\0y", 4);
    result_record_fini(&record);
}

static void what_is_no_result_is_refused(void **state)
{
    (void)state;
    static const struct {
        const char *line, *words;
    } cases[] = {
        {"", "empty"},
        {"nonsense", "no JSON"},
        {"[1]", "no JSON object"},
        {"{}", "custom_id"},
        {"{\"custom_id\":\"\",\"status\":\"failed\"}", "custom_id"},
        {"{\"custom_id\":\"a\\u0000\",\"status\":\"failed\"}", "custom_id"},
        {"{\"custom_id\":7,\"status\":\"failed\"}", "custom_id"},
        {"{\"custom_id\":\"a\"}", "neither a status nor a response"},
        {"{\"custom_id\":\"a\",\"question\":\"a job, not its result\"}", "neither"},
        {"{\"custom_id\":\"a\",\"status\":\"done\"}", "status"},
        {"{\"custom_id\":\"a\",\"status\":\"succeeded\"}", "no answer"},
        {"{\"custom_id\":\"a\",\"status\":\"succeeded\",\"answer\":\"\",\"usage\":{"
         "\"prompt_tokens\":-1}}",
         "count"},
        {"{\"custom_id\":\"a\",\"status\":\"succeeded\",\"answer\":\"\",\"usage\":{"
         "\"prompt_tokens\":1,\"prompt_tokens_details\":{\"cached_tokens\":2}}}",
         "cached_tokens"},
        {"{\"custom_id\":\"a\",\"response\":{}}", "choices"},
        {"{\"custom_id\":\"a\",\"response\":null}", "error"},
        {"{\"custom_id\":\"a\",\"custom_id\":\"b\",\"status\":\"failed\"}", "JSON"},
        {"{\"custom_id\":\"\xff\",\"status\":\"failed\"}", "no result"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct result_record record;
        struct err e;
        assert_int_equal(read_line(cases[i].line, NULL, 0, &record, &e), ERR_FORMAT);
        if (!strstr(e.text, cases[i].words) || strstr(e.text, "nonsense"))
            fail_msg("'%s' says '%s'", cases[i].line, e.text);
        assert_null(record.result);
    }
}

#define H(name, value)                                                                         \
    {                                                                                          \
        (name), (value), sizeof(value) - 1                                                     \
    }

static void headers_add_what_the_line_does_not_say(void **state)
{
    (void)state;
    static const char line[] =
        "{\"id\":\"x\",\"custom_id\":\"a\",\"response\":{\"status_code\":200,\"body\":{"
        "\"choices\":[{\"message\":{\"content\":\"hi\"}}]," USAGE "}},\"error\":null}";
    static const struct result_header headers[] = {
        H("sheaf.source.topic", "jobs"),
        H("sheaf.source.partition", "2"),
        H("sheaf.source.offset", "9007199254740993"),
        H("sheaf.payload_sha256", PAYLOAD),
        H("sheaf.run_id", "night"),
        H("sheaf.worker", "host:7"),
        H("sheaf.worker", "host:8"),
        H("sheaf.attempt", "3"),
        H("sheaf.submitted_at", "1700000000.000001"),
        H("sheaf.admitted_at", "1700000001.5"),
        H("sheaf.stored_at", "1700000009.25"),
        H("sheaf.metrics",
          "{\"queue_us\":1,\"group_wait_us\":2,\"prefill_us\":3,\"ttft_us\":5,\"decode_us\":7,"
          "\"e2e_us\":12,\"miss_reason\":\"cold\",\"miss_at\":4,\"group_jobs\":6,"
          "\"draft_tokens\":9,\"accepted_tokens\":8,\"draft_steps\":2,\"expected_tokens\":1.5,"
          "\"drafts\":[[\"all\",1,5,4],[\"all\",1,5,4],[\"lookup\",2,4,4],[\"x\",0,1,1]]}"),
        H("sheaf.documents", "[[\"d1\",\"T\",12],[null,null,0]]"),
        H("sheaf.run", "{\"model_sha256\":\"aa\",\"quant\":\"Q4_0\",\"kernels\":\"ref\","
                       "\"version\":\"1\",\"started_at\":1700000000.5}"),
        H("sheaf.replay_of", "jobs/1/40"),
    };
    struct result_record record;
    read_ok(line, headers, sizeof headers / sizeof headers[0], &record);
    const struct result *r = record.result;
    assert_true(record.has_source && record.has_payload);
    assert_int_equal(r->job->source.partition, 2);
    assert_int_equal(r->job->source.offset, 9007199254740993);
    assert_string_equal(r->job->payload_sha256, PAYLOAD);
    assert_string_equal(record.run_id, "night");
    assert_string_equal(r->worker_id, "host:8");
    assert_int_equal(record.attempt, 3);
    assert_int_equal(r->job->source.timestamp_us, 1700000000000001);
    assert_int_equal(r->job->admitted_wall_us, 1700000001500000);
    assert_int_equal(record.stored_us, 1700000009250000);
    assert_int_equal(r->metrics.e2e_us, 12);
    assert_string_equal(r->metrics.miss, "cold");
    assert_int_equal(r->metrics.group_jobs, 6);
    assert_true(r->metrics.expected_tokens == 1.5);
    assert_int_equal(r->n_drafts, 2);
    assert_string_equal(r->drafts[1].source, "lookup");
    assert_int_equal(r->drafts[1].accepted, 4);
    assert_int_equal(r->job->n_documents, 2);
    assert_string_equal(r->job->documents[0].title, "T");
    assert_int_equal(r->job->documents[0].length, 12);
    assert_string_equal(record.quant, "Q4_0");
    assert_int_equal(record.run_started_us, 1700000000500000);
    assert_string_equal(record.replay_of.topic, "jobs");
    assert_int_equal(record.replay_of.offset, 40);
    result_record_fini(&record);
}

static void broken_headers_change_nothing(void **state)
{
    (void)state;
    static const struct result_header headers[] = {
        {"sheaf.run_id", NULL, 0},
        {"sheaf.worker", "a\0b", 3},
        H("sheaf.prefix_group", "\xc3"),
        H("sheaf.payload_sha256", "00"),
        H("sheaf.attempt", "-1"),
        H("sheaf.submitted_at", "nan"),
        H("sheaf.admitted_at", "1e300"),
        H("sheaf.stored_at", "12x"),
        H("sheaf.source.topic", "other"),
        H("sheaf.source.partition", "99999999999"),
        H("sheaf.source.offset", "1"),
        H("sheaf.metrics", "{\"queue_us\":-5,\"e2e_us\":\"x\",\"draft_tokens\":1e5,"
                           "\"miss_reason\":\"bad\",\"drafts\":[[1,2,3,4],[\"a\",1,1,2]]}"),
        H("sheaf.documents", "[1,2,3]"),
        H("sheaf.run", "[]"),
        H("sheaf.replay_of", "jobs/1"),
        {NULL, "x", 1},
    };
    struct result_record record, plain;
    read_ok(native_line, headers, sizeof headers / sizeof headers[0], &record);
    read_ok(native_line, NULL, 0, &plain);
    assert_memory_equal(&record.result->metrics, &plain.result->metrics,
                        sizeof plain.result->metrics);
    assert_null(record.run_id);
    assert_string_equal(record.worker_id, "w1");
    assert_string_equal(record.result->job->prefix_group, "abc");
    assert_string_equal(record.result->job->source.topic, "jobs");
    assert_int_equal(record.attempt, 1);
    assert_int_equal(record.stored_us, 0);
    assert_int_equal(record.result->job->source.timestamp_us, 0);
    assert_int_equal(record.result->n_drafts, 0);
    assert_null(record.replay_of.topic);
    assert_false(record.has_payload);
    result_record_fini(&record);
    result_record_fini(&plain);
}

static void figures_that_contradict_each_other_are_not_known(void **state)
{
    (void)state;
    static const struct result_header headers[] = {
        H("sheaf.metrics", "{\"group_wait_us\":2,\"prefill_us\":3,\"ttft_us\":6,"
                           "\"decode_us\":7,\"e2e_us\":12,\"prompt_tokens\":10,"
                           "\"cached_tokens\":11,\"computed_tokens\":3,\"draft_tokens\":1,"
                           "\"accepted_tokens\":2}"),
    };
    struct result_record record;
    read_ok(native_line, headers, 1, &record);
    const struct result_metrics *m = &record.result->metrics;
    assert_int_equal(m->group_wait_us, -1);
    assert_int_equal(m->prefill_us, -1);
    assert_int_equal(m->e2e_us, -1);
    assert_int_equal(m->prompt_tokens, m->cached_tokens + m->computed_tokens);
    assert_true(m->accepted_tokens <= m->draft_tokens);
    result_record_fini(&record);
}

static const char *header_of(const struct result_headers *h, const char *name)
{
    for (size_t i = 0; i < h->n; i++)
        if (strcmp(h->items[i].name, name) == 0) {
            assert_int_equal(strlen(h->items[i].value), h->items[i].length);
            return h->items[i].value;
        }
    return "none";
}

static void the_headers_of_a_result_are_its_facts_as_text(void **state)
{
    (void)state;
    struct job_document documents[] = {
        {.id = (char *)"d\"1", .title = (char *)"T", .length = 5},
        {.ref = (char *)"r", .length = 6},
        {.length = 7}};
    struct job job = {.dialect = DIALECT_OPENAI_COMPLETION,
                      .source = {.topic = (char *)"jobs",
                                 .partition = 2,
                                 .offset = 40,
                                 .timestamp_us = 1700000000000001},
                      .custom_id = (char *)"cut \xc3",
                      .documents = documents,
                      .n_documents = 3,
                      .payload_sha256 = PAYLOAD};
    struct result_draft draft = {"all", 1, 5, 4};
    struct result r = {
        .job = &job,
        .worker_id = "w",
        .id = "batch_req_1",
        .drafts = &draft,
        .n_drafts = 1,
        .metrics = {
            .queue_us = -1, .ttft_us = 5, .prompt_tokens = 9, .miss = "cold", .miss_at = 0}};
    const struct result_origin origin = {.run_id = "night",
                                         .attempt = 2,
                                         .quant = "Q4_0",
                                         .stored_us = 1700000009000000,
                                         .run_started_us = 1700000000500000};
    struct result_headers h;
    struct err e = {0};
    assert_int_equal(result_headers_make(&r, &origin, &h, &e), 0);
    assert_string_equal(header_of(&h, "sheaf.job_id"), "cut \xef\xbf\xbd");
    assert_string_equal(header_of(&h, "sheaf.result_id"), "batch_req_1");
    assert_string_equal(header_of(&h, "sheaf.status"), "succeeded");
    assert_string_equal(header_of(&h, "sheaf.dialect"), "openai-completion");
    assert_string_equal(header_of(&h, "sheaf.source.topic"), "jobs");
    assert_string_equal(header_of(&h, "sheaf.source.partition"), "2");
    assert_string_equal(header_of(&h, "sheaf.source.offset"), "40");
    assert_string_equal(header_of(&h, "sheaf.payload_sha256"), PAYLOAD);
    assert_string_equal(header_of(&h, "sheaf.attempt"), "2");
    assert_string_equal(header_of(&h, "sheaf.submitted_at"), "1700000000.000001");
    assert_string_equal(header_of(&h, "sheaf.admitted_at"), "none");
    assert_string_equal(header_of(&h, "sheaf.prefix_group"), "none");
    assert_string_equal(header_of(&h, "sheaf.documents"),
                        "[[\"d\\\"1\",\"T\",5],[\"r\",null,6],[null,null,7]]");
    assert_string_equal(header_of(&h, "sheaf.run"),
                        "{\"quant\":\"Q4_0\",\"started_at\":1700000000.5}");
    const char *metrics = header_of(&h, "sheaf.metrics");
    assert_null(strstr(metrics, "queue_us"));
    assert_null(strstr(metrics, "group_jobs"));
    assert_non_null(strstr(metrics, "\"ttft_us\":5,"));
    assert_non_null(strstr(metrics, "\"miss_reason\":\"cold\""));
    assert_non_null(strstr(metrics, "\"miss_at\":0"));
    assert_non_null(strstr(metrics, "\"drafts\":[[\"all\",1,5,4]]"));
    result_headers_fini(&h);
}

static void headers_of_very_many_documents_are_left_out(void **state)
{
    (void)state;
    static struct job_document documents[JOB_DOCUMENTS_MAX];
    static char title[64];
    memset(title, 't', sizeof title - 1);
    for (size_t i = 0; i < JOB_DOCUMENTS_MAX; i++)
        documents[i] = (struct job_document){.title = title};
    struct job job = {
        .custom_id = (char *)"a", .documents = documents, .n_documents = JOB_DOCUMENTS_MAX};
    struct result r = {.job = &job};
    struct result_headers h;
    struct err e = {0};
    assert_int_equal(result_headers_make(&r, &(struct result_origin){0}, &h, &e), 0);
    assert_string_equal(header_of(&h, "sheaf.documents"), "none");
    assert_string_equal(header_of(&h, "sheaf.run"), "none");
    result_headers_fini(&h);
    job.n_documents = 100;
    assert_int_equal(result_headers_make(&r, &(struct result_origin){0}, &h, &e), 0);
    assert_string_not_equal(header_of(&h, "sheaf.documents"), "none");
    result_headers_fini(&h);
}

/* Any bytes are read or refused; sanitizers watch. */
static void mangled_lines_and_headers_are_read_or_refused(void **state)
{
    (void)state;
    static const char header[] = "{\"queue_us\":1,\"drafts\":[[\"all\",1,5,4]],\"miss_at\":4}";
    char line[sizeof native_line], value[sizeof header];
    unsigned random = 12345;
    size_t n_read = 0;
    for (int round = 0; round < 4000; round++) {
        memcpy(line, native_line, sizeof line);
        memcpy(value, header, sizeof value);
        for (int flips = 0; flips <= round % 3; flips++) {
            random = random * 1103515245 + 12345;
            line[(random >> 8) % (sizeof line - 1)] ^= (char)(1u << (random >> 28) % 8);
            value[(random >> 4) % (sizeof value - 1)] ^= (char)(1u << (random >> 25) % 8);
        }
        const struct result_header headers[] = {{"sheaf.metrics", value, sizeof value - 1}};
        struct result_record record;
        const int code = result_read(line, sizeof line - 1 - (size_t)(round % 7 == 0) * 9,
                                     headers, 1, &record, NULL);
        assert_true(code == 0 || code == ERR_FORMAT);
        n_read += code == 0;
        if (code == 0)
            result_record_fini(&record);
    }
    assert_true(n_read > 400 && n_read < 4000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_native_line_is_read_whole),
        cmocka_unit_test(openai_lines_are_read_in_each_of_their_forms),
        cmocka_unit_test(an_answer_may_hold_nul),
        cmocka_unit_test(what_is_no_result_is_refused),
        cmocka_unit_test(headers_add_what_the_line_does_not_say),
        cmocka_unit_test(broken_headers_change_nothing),
        cmocka_unit_test(figures_that_contradict_each_other_are_not_known),
        cmocka_unit_test(the_headers_of_a_result_are_its_facts_as_text),
        cmocka_unit_test(headers_of_very_many_documents_are_left_out),
        cmocka_unit_test(mangled_lines_and_headers_are_read_or_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
