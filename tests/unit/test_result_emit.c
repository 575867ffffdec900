/* Result lines against objects written by hand from OpenAI's and our own schema. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "job_parse.h"
#include "result.h"

static struct job *job_of(const char *line)
{
    static const struct job_parse_options options = {.max_tokens_default = 16};
    char topic[] = "jobs.jsonl";
    const struct job_source source = {.topic = topic, .offset = 7, .is_file = true};
    struct job *job = NULL;
    struct err e = {0};
    assert_int_equal(job_parse(line, strlen(line), &source, &options, &job, &e), 0);
    return job;
}

/* A finished job; text NULL: a failed one with the job's own error. */
static struct result *result_of(const char *line, const char *text)
{
    struct result *r = calloc(1, sizeof *r);
    r->job = job_of(line);
    r->status = text ? RESULT_SUCCEEDED : RESULT_FAILED;
    r->error = r->job->error;
    if (text) {
        r->text = strdup(text);
        r->text_length = strlen(text);
        r->finish_reason = "stop";
        strcpy(r->stop_reason, "eos");
    }
    r->metrics = (struct result_metrics){.queue_us = 1500000,
                                         .group_wait_us = 250,
                                         .prefill_us = 12345,
                                         .ttft_us = 12595,
                                         .decode_us = 1000001,
                                         .e2e_us = 1012596,
                                         .gap_us_max = 1,
                                         .prompt_tokens = 100,
                                         .cached_tokens = 64,
                                         .computed_tokens = 36,
                                         .completion_tokens = 20,
                                         .draft_tokens = 9,
                                         .accepted_tokens = 5,
                                         .accepted_prediction_tokens = 3,
                                         .rejected_prediction_tokens = 1,
                                         .engine_steps = 21,
                                         .prefill_chunks = 2,
                                         .preemptions = 1,
                                         .kv_pages_peak = 4};
    r->created_s = 1767225600;
    r->model = "tiny";
    r->worker_id = "w1";
    strcpy(r->id, "batch_req_0123abcd");
    return r;
}

/* SHEAF_EMIT_DUMP names a file that gets every line, for a check against the schema. */
static void dump_line(const char *line)
{
    const char *path = getenv("SHEAF_EMIT_DUMP");
    FILE *file = path ? fopen(path, "a") : NULL;
    if (!file)
        return;
    fprintf(file, "%s\n", line);
    fclose(file);
}

static void assert_emits_take(struct result *r, const char *expected_text)
{
    struct buf out = {0};
    struct err e = {0};
    json_error_t error;
    assert_int_equal(result_emit(r, &out, &e), 0);
    result_free(r);
    assert_null(strchr(buf_str(&out), '\n'));
    dump_line(buf_str(&out));
    json_t *found =
        json_loadb(out.data, out.length, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, NULL);
    json_t *expected =
        json_loads(expected_text, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &error);
    if (!expected)
        fail_msg("%s in %s", error.text, expected_text);
    if (!json_equal(found, expected))
        fail_msg("wanted %s\n found %s", expected_text, buf_str(&out));
    json_decref(found);
    json_decref(expected);
    buf_fini(&out);
}

#define USAGE                                                                                  \
    "{\"prompt_tokens\":100,\"completion_tokens\":20,\"total_tokens\":120,"                    \
    "\"prompt_tokens_details\":{\"cached_tokens\":64},\"completion_tokens_details\":{"         \
    "\"reasoning_tokens\":0}}"
#define METRICS                                                                                \
    "{\"queue_ms\":1500.0,\"group_wait_ms\":0.25,\"prefill_ms\":12.345,\"ttft_ms\":12.595,"    \
    "\"decode_ms\":1000.001,\"e2e_ms\":1012.596,\"gap_max_ms\":0.001,\"computed_tokens\":36,"  \
    "\"engine_steps\":21,\"prefill_chunks\":2,\"preemptions\":1,\"kv_pages_peak\":4}"

static void a_chat_answer_has_openai_shape(void **state)
{
    (void)state;
    assert_emits_take(
        result_of("{\"custom_id\":\"r-1\",\"method\":\"POST\",\"url\":\"/v1/chat/completions\","
                  "\"body\":{\"model\":\"gpt-x\",\"messages\":[{\"role\":\"user\",\"content\":"
                  "\"Hi\"}],\"metadata\":{\"k\":\"v\"}}}",
                  "Hello \"you\"\n\xf0\x9f\x98\x80"),
        "{\"id\":\"batch_req_0123abcd\",\"custom_id\":\"r-1\",\"response\":{\"status_code\":"
        "200,"
        "\"request_id\":\"req_0123abcd\",\"body\":{\"id\":\"chatcmpl-0123abcd\",\"object\":"
        "\"chat.completion\",\"created\":1767225600,\"model\":\"tiny\",\"choices\":[{\"index\":"
        "0,"
        "\"message\":{\"role\":\"assistant\",\"content\":\"Hello "
        "\\\"you\\\"\\n\\ud83d\\ude00\","
        "\"refusal\":null},\"logprobs\":null,\"finish_reason\":\"stop\",\"stop_reason\":"
        "\"eos\"}],"
        "\"usage\":" USAGE ",\"system_fingerprint\":null,\"metadata\":{\"k\":\"v\"}}},"
        "\"error\":null}");
}

static void a_completion_echoes_its_prompt_when_asked(void **state)
{
    (void)state;
    static const char *const lines[] = {
        "{\"custom_id\":\"c\",\"body\":{\"prompt\":\"Once\",\"echo\":true}}",
        "{\"custom_id\":\"c\",\"body\":{\"prompt\":\"Once\"}}",
    };
    static const char *const texts[] = {"Once upon", " upon"};
    for (size_t i = 0; i < 2; i++) {
        char expected[2048];
        snprintf(
            expected, sizeof expected,
            "{\"id\":\"batch_req_0123abcd\",\"custom_id\":\"c\",\"response\":{"
            "\"status_code\":200,\"request_id\":\"req_0123abcd\",\"body\":{\"id\":"
            "\"cmpl-0123abcd\",\"object\":\"text_completion\",\"created\":1767225600,"
            "\"model\":\"tiny\",\"choices\":[{\"index\":0,\"text\":\"%s\",\"logprobs\":null,"
            "\"finish_reason\":\"length\",\"stop_reason\":null}],\"usage\":" USAGE
            ",\"system_fingerprint\":null}},\"error\":null}",
            texts[i]);
        struct result *r = result_of(lines[i], " upon");
        r->finish_reason = "length";
        r->stop_reason[0] = '\0';
        assert_emits_take(r, expected);
    }
}

static void assert_prediction_counts(const char *line, const char *text, const char *path,
                                     const char *expected)
{
    struct buf out = {0};
    struct err e = {0};
    struct result *r = result_of(line, text);
    assert_int_equal(result_emit(r, &out, &e), 0);
    dump_line(buf_str(&out));
    assert_non_null(strstr(buf_str(&out), path));
    const char *details = strstr(buf_str(&out), "\"completion_tokens_details\":");
    assert_non_null(details);
    details += strlen("\"completion_tokens_details\":");
    assert_int_equal(strncmp(details, expected, strlen(expected)), 0);
    buf_fini(&out);
    result_free(r);
}

/* Not other drafts: 9 were made, 5 of them accepted. */
static void tokens_of_a_prediction_are_counted_where_there_is_one(void **state)
{
    (void)state;
    static const char with[] = "{\"reasoning_tokens\":0,\"accepted_prediction_tokens\":3,"
                               "\"rejected_prediction_tokens\":1}";
    static const char without[] = "{\"reasoning_tokens\":0}";
    static const char openai[] =
        "{\"custom_id\":\"p\",\"body\":{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],"
        "\"prediction\":%s}}";
    char line[512];
    snprintf(line, sizeof line, openai, "{\"type\":\"content\",\"content\":\"yes\"}");
    assert_prediction_counts(line, "yes", "\"chat.completion\"", with);
    snprintf(line, sizeof line, openai, "{\"type\":\"content\",\"content\":\"\"}");
    assert_prediction_counts(line, "yes", "\"chat.completion\"", without);
    snprintf(line, sizeof line, openai, "null");
    assert_prediction_counts(line, "yes", "\"chat.completion\"", without);
    static const char native[] = "{\"question\":\"Q\",\"prediction\":\"yes\"}";
    assert_prediction_counts(native, "yes", "\"answer\":\"yes\"", with);
    assert_prediction_counts(native, NULL, "\"status\":\"failed\"", with);
}

static void a_refused_openai_job_has_the_error_in_the_body(void **state)
{
    (void)state;
    assert_emits_take(
        result_of(
            "{\"custom_id\":\"bad\",\"body\":{\"messages\":[{\"role\":\"user\",\"content\":"
            "\"x\"}],\"temperature\":3}}",
            NULL),
        "{\"id\":\"batch_req_0123abcd\",\"custom_id\":\"bad\",\"response\":{\"status_code\":"
        "400,"
        "\"request_id\":\"req_0123abcd\",\"body\":{\"error\":{\"message\":\"temperature must "
        "be "
        "at least 0 and at most 2, not 3\",\"type\":\"invalid_request_error\",\"param\":"
        "\"temperature\",\"code\":\"invalid_value\"}}},\"error\":null}");
}

static void a_job_that_never_ran_has_a_null_response(void **state)
{
    (void)state;
    static const char line[] = "{\"custom_id\":\"e\",\"body\":{\"prompt\":\"x\"}}";
    struct result *r = result_of(line, NULL);
    r->status = RESULT_EXPIRED;
    assert_emits_take(r,
                      "{\"id\":\"batch_req_0123abcd\",\"custom_id\":\"e\",\"response\":null,"
                      "\"error\":{\"code\":\"batch_expired\",\"message\":\"the job passed its "
                      "deadline before it ran\"}}");
    r = result_of(line, NULL);
    r->status = RESULT_CANCELLED;
    strcpy(r->error.message, "stopped by a person");
    assert_emits_take(r, "{\"id\":\"batch_req_0123abcd\",\"custom_id\":\"e\",\"response\":null,"
                         "\"error\":{\"code\":\"batch_cancelled\",\"message\":\"stopped by a "
                         "person\"}}");
}

static void a_native_answer_has_metrics_in_ms_and_its_own_metadata(void **state)
{
    (void)state;
    struct result *r = result_of(
        "{\"custom_id\":\"n\",\"run_id\":\"night\",\"documents\":[{\"id\":\"d1\",\"text\":"
        "\"t\"},"
        "\"u\",{\"ref\":\"r3\"},{\"id\":\"d4\",\"ref\":\"r4\"}],\"question\":\"Q\","
        "\"metadata\":{\"row\":12,\"x\":0.1},\"odd\":1,\"params\":{"
        "\"even\":2}}",
        "yes");
    r->job->prefix_group = strdup("00ff");
    assert_emits_take(
        r,
        "{\"id\":\"batch_req_0123abcd\",\"custom_id\":\"n\",\"run_id\":\"night\",\"status\":"
        "\"succeeded\",\"answer\":\"yes\",\"finish_reason\":\"stop\",\"stop_reason\":\"eos\","
        "\"model\":\"tiny\",\"created\":1767225600,\"usage\":" USAGE ",\"metrics\":" METRICS
        ",\"error\":null,\"documents\":[\"d1\",null,\"r3\",\"d4\"],\"prefix_group\":\"00ff\","
        "\"metadata\":{"
        "\"row\":12,\"x\":0.1},\"warnings\":[\"odd\",\"params.even\"],\"source\":{\"topic\":"
        "\"jobs.jsonl\",\"partition\":0,\"offset\":7},\"worker\":\"w1\"}");
}

#define NATIVE_FAILED(STATUS, ERROR)                                                           \
    "{\"id\":\"batch_req_0123abcd\",\"custom_id\":\"line-7\",\"run_id\":null,\"status\":"      \
    "\"" STATUS "\",\"answer\":null,\"finish_reason\":null,\"stop_reason\":null,\"model\":"    \
    "\"tiny\",\"created\":1767225600,\"usage\":" USAGE ",\"metrics\":" METRICS                 \
    ",\"error\":" ERROR ",\"documents\":[],\"prefix_group\":null,\"metadata\":null,"           \
    "\"warnings\":[],\"source\":{\"topic\":\"jobs.jsonl\",\"partition\":0,\"offset\":7},"      \
    "\"worker\":\"w1\"}"

static void a_line_that_is_no_json_gets_a_native_error(void **state)
{
    (void)state;
    assert_emits_take(
        result_of("nonsense", NULL),
        NATIVE_FAILED("failed",
                      "{\"message\":\"line 7, byte 8: invalid token near "
                      "\\\"nonsense\\\"\",\"type\":\"invalid_request_error\","
                      "\"param\":null,\"code\":\"invalid_json_line\",\"status\":400}"));
    struct result *r = result_of("{\"question\":\"Q\"}", NULL);
    r->status = RESULT_CANCELLED;
    assert_emits_take(r, NATIVE_FAILED("cancelled",
                                       "{\"message\":\"the job was cancelled before it ran\","
                                       "\"type\":\"invalid_request_error\",\"param\":null,"
                                       "\"code\":\"batch_cancelled\",\"status\":499}"));
}

static void a_message_cut_inside_a_character_is_still_json(void **state)
{
    (void)state;
    struct result *r = result_of("{\"question\":\"Q\"}", NULL);
    char message[600];
    for (size_t i = 0; i < 598; i += 2)
        memcpy(message + i, "\xc3\xa9", 3);
    job_fail(r->job, 500, "internal_error", "", "x%s", message);
    job_fail(r->job, 400, "second", "", "is not kept");
    assert_string_equal(r->job->error.type, "server_error");
    r->error = r->job->error;
    struct buf out = {0};
    struct err e = {0};
    assert_int_equal(result_emit(r, &out, &e), 0);
    dump_line(buf_str(&out));
    json_t *line = json_loads(buf_str(&out), 0, NULL);
    assert_non_null(line);
    json_decref(line);
    buf_fini(&out);
    result_free(r);
}

/* Counts of U+FFFD from the tables in chapter 3.9 of the Unicode standard ("U+FFFD
 * substitution of maximal subparts"). R stands for one. */
static void bad_bytes_become_one_replacement_for_each_maximal_subpart(void **state)
{
    (void)state;
    static const struct {
        const char *bytes;
        size_t length;
        const char *expected;
    } cases[] = {
        {"", 0, ""},
        {"plain \xc3\xa9", 8, "plain \xc3\xa9"},
        {"\xc0\xaf\xe0\x80\xbf\xf0\x81\x82\x41", 9, "RRRRRRRRA"},
        {"\xed\xa0\x80\xed\xbf\xbf\xed\xaf\x41", 9, "RRRRRRRRA"},
        {"\xf4\x91\x92\x93\xff\x41\x80\xbf\x42", 9, "RRRRRARRB"},
        {"\xe1\x80\xe2\xf0\x91\x92\xf1\xbf\x41", 9, "RRRRA"},
        {"end\xf0\x9f\x98", 6, "endR"},
        {"\xf0\x9f\x98\x80\x80", 5, "\xf0\x9f\x98\x80R"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char expected[128] = "";
        for (const char *c = cases[i].expected; *c; c++)
            sprintf(expected + strlen(expected), *c == 'R' ? "\xef\xbf\xbd" : "%c", *c);
        char *bytes = malloc(cases[i].length ? cases[i].length : 1);
        memcpy(bytes, cases[i].bytes, cases[i].length);
        size_t length = 0;
        char *clean = result_clean_utf8(bytes, cases[i].length, &length);
        assert_string_equal(clean, expected);
        assert_int_equal(length, strlen(expected));
        free(clean);
        free(bytes);
    }
}

static void a_nul_in_an_answer_is_escaped(void **state)
{
    (void)state;
    struct result *r = result_of("{\"custom_id\":\"c\",\"body\":{\"prompt\":\"x\"}}", "a?b");
    r->text[1] = '\0';
    struct buf out = {0};
    struct err e = {0};
    assert_int_equal(result_emit(r, &out, &e), 0);
    assert_non_null(strstr(buf_str(&out), "\"text\":\"a\\u0000b\""));
    dump_line(buf_str(&out));
    buf_fini(&out);
    result_free(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_chat_answer_has_openai_shape),
        cmocka_unit_test(a_completion_echoes_its_prompt_when_asked),
        cmocka_unit_test(tokens_of_a_prediction_are_counted_where_there_is_one),
        cmocka_unit_test(a_refused_openai_job_has_the_error_in_the_body),
        cmocka_unit_test(a_job_that_never_ran_has_a_null_response),
        cmocka_unit_test(a_native_answer_has_metrics_in_ms_and_its_own_metadata),
        cmocka_unit_test(a_line_that_is_no_json_gets_a_native_error),
        cmocka_unit_test(a_message_cut_inside_a_character_is_still_json),
        cmocka_unit_test(bad_bytes_become_one_replacement_for_each_maximal_subpart),
        cmocka_unit_test(a_nul_in_an_answer_is_escaped),
    };
    return cmocka_run_group_tests_name("result_emit", tests, NULL, NULL);
}
