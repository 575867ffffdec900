/*
 * Every folder of tests/fixtures/job/{valid,invalid} holds input.jsonl and expected.json:
 * {options?: {strict, max_tokens_default}, jobs: [...]}. Each line that is not blank gives one
 * job; of it, what its entry names must be as the entry says (error.message: must contain).
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <dirent.h>
#include <jansson.h>

#include "base/limits.h"
#include "job_parse.h"

static const char *const role_names[] = {"system", "user", "assistant"};

static json_t *view_ids(const int32_t *ids, size_t n)
{
    json_t *list = json_array();
    for (size_t i = 0; i < n; i++)
        json_array_append_new(list, json_integer(ids[i]));
    return list;
}

static json_t *view_params(const struct job_params *params)
{
    json_t *stops = json_array();
    for (size_t i = 0; i < params->n_stops; i++)
        json_array_append_new(stops, json_string(params->stops[i]));
    json_t *bias = json_array();
    for (size_t i = 0; i < params->n_bias; i++)
        json_array_append_new(
            bias, json_pack("[i, f]", (int)params->bias[i].id, params->bias[i].bias));
    return json_pack(
        "{sI sI sf sf sf sI sf sf sf sb sb sb sI sb sb so so so}", "max_tokens",
        (json_int_t)params->max_tokens, "min_tokens", (json_int_t)params->min_tokens,
        "temperature", params->temperature, "top_p", params->top_p, "min_p", params->min_p,
        "top_k", (json_int_t)params->top_k, "repetition_penalty", params->repetition_penalty,
        "presence_penalty", params->presence_penalty, "frequency_penalty",
        params->frequency_penalty, "has_temperature", params->has_temperature, "has_top_p",
        params->has_top_p, "has_seed", params->has_seed, "seed", (json_int_t)params->seed,
        "ignore_eos", params->ignore_eos, "include_stop", params->include_stop, "stops", stops,
        "stop_tokens", view_ids(params->stop_tokens, params->n_stop_tokens), "bias", bias);
}

static json_t *view_messages(const struct job *job)
{
    json_t *list = json_array();
    for (size_t i = 0; i < job->n_messages; i++) {
        const struct job_message *m = &job->messages[i];
        assert_int_equal(strlen(m->content), m->length);
        json_array_append_new(
            list, json_pack("{ss ss}", "role", role_names[m->role], "content", m->content));
    }
    return list;
}

static json_t *view_documents(const struct job *job)
{
    json_t *list = json_array();
    for (size_t i = 0; i < job->n_documents; i++) {
        const struct job_document *d = &job->documents[i];
        assert_int_equal(d->text ? strlen(d->text) : 0, d->length);
        json_array_append_new(list, json_pack("{ss? ss? ss? ss?}", "id", d->id, "title",
                                              d->title, "ref", d->ref, "text", d->text));
    }
    return list;
}

static json_t *view_error(const struct job_error *error)
{
    if (error->status == 0)
        return json_null();
    return json_pack("{si ss ss ss ss}", "status", error->status, "code", error->code, "type",
                     error->type, "param", error->param, "message", error->message);
}

static json_t *view_job(const struct job *job)
{
    json_t *view = json_pack(
        "{ss ss sb ss? ss? ss? so so ss? sb so ss? ss? sI sI ss? so sI}", "dialect",
        job_dialect_name(job->dialect), "custom_id", job->custom_id, "has_custom_id",
        job->has_custom_id, "run_id", job->run_id, "model", job->model, "url", job->url,
        "messages", view_messages(job), "documents", view_documents(job), "prompt", job->prompt,
        "echo", job->echo, "params", view_params(&job->params), "metadata", job->metadata,
        "expect", job->expect, "priority", (json_int_t)job->priority, "deadline_us",
        (json_int_t)job->deadline_us, "warnings", job->warnings, "error",
        view_error(&job->error), "line", (json_int_t)job->source.offset);
    json_object_set_new(view, "prompt_tokens",
                        job->prompt_tokens ? view_ids(job->prompt_tokens, job->n_prompt_tokens)
                                           : json_null());
    assert_int_equal(job->prediction ? strlen(job->prediction) : 0, job->prediction_length);
    json_object_set_new(view, "prediction",
                        job->prediction ? json_string(job->prediction) : json_null());
    json_object_set_new(view, "cache_salt",
                        job->cache_salt ? json_string(job->cache_salt) : json_null());
    assert_non_null(view);
    return view;
}

/* Numbers by value, objects by the keys that are expected, the rest exactly. */
static bool matches(const char *key, const json_t *wanted, const json_t *found)
{
    if (!found)
        return false;
    if (json_is_number(wanted) && json_is_number(found))
        return json_is_integer(wanted) && json_is_integer(found)
                   ? json_integer_value(wanted) == json_integer_value(found)
                   : json_number_value(wanted) == json_number_value(found);
    if (json_is_object(wanted) && json_is_object(found)) {
        const char *name;
        json_t *value;
        json_object_foreach(
            (json_t *)wanted, name,
            value) if (!matches(name, value, json_object_get(found, name))) return false;
        return true;
    }
    if (json_is_array(wanted) && json_is_array(found)) {
        if (json_array_size(wanted) != json_array_size(found))
            return false;
        for (size_t i = 0; i < json_array_size(wanted); i++)
            if (!matches(key, json_array_get(wanted, i), json_array_get(found, i)))
                return false;
        return true;
    }
    if (key && strcmp(key, "message") == 0 && json_is_string(wanted) && json_is_string(found))
        return strstr(json_string_value(found), json_string_value(wanted)) != NULL;
    return json_equal(wanted, found);
}

static char *read_file(const char *path, size_t *length)
{
    FILE *file = fopen(path, "rb");
    if (!file)
        fail_msg("no file %s", path);
    char *bytes = malloc(1u << 20);
    *length = fread(bytes, 1, 1u << 20, file);
    fclose(file);
    return bytes;
}

/* The exact bytes on the heap, so that a read past them is seen by a sanitizer. */
static struct job *parse_exactly(const char *bytes, size_t length, int64_t line,
                                 const struct job_parse_options *options)
{
    char *copy = malloc(length ? length : 1);
    memcpy(copy, bytes, length);
    char topic[] = "in.jsonl";
    const struct job_source source = {.topic = topic, .offset = line, .is_file = true};
    struct err e = {0};
    struct job *job = NULL;
    assert_int_equal(job_parse(copy, length, &source, options, &job, &e), 0);
    assert_non_null(job);
    free(copy);
    return job;
}

static void compare(const char *name, const json_t *wanted, const struct job *job)
{
    if (!wanted)
        fail_msg("%s: more jobs than expected", name);
    json_t *found = view_job(job);
    if (!matches(NULL, wanted, found)) {
        char *wanted_text = json_dumps(wanted, 0);
        char *found_text = json_dumps(found, 0);
        fail_msg("%s: wanted %.1500s\n found %.3000s", name, wanted_text, found_text);
    }
    json_decref(found);
}

static void run_lines(const char *name, const char *bytes, size_t length, const json_t *jobs,
                      const struct job_parse_options *options, bool good)
{
    size_t n_jobs = 0;
    int64_t line = 0;
    for (size_t at = 0; at < length;) {
        const char *end = memchr(bytes + at, '\n', length - at);
        const size_t n = end ? (size_t)(end - bytes) - at : length - at;
        line++;
        if (!job_line_is_blank(bytes + at, n)) {
            struct job *job = parse_exactly(bytes + at, n, line, options);
            if (good != (job->error.status == 0))
                fail_msg("%s: %s: %s", name, job->error.code, job->error.message);
            compare(name, json_array_get(jobs, n_jobs++), job);
            job_free(job);
        }
        at += n + 1;
    }
    if (n_jobs != json_array_size(jobs))
        fail_msg("%s: %zu jobs", name, n_jobs);
}

static void run_case(const char *folder, const char *name, bool good)
{
    char path[1024];
    size_t length = 0;
    snprintf(path, sizeof path, "%s/%s/expected.json", folder, name);
    json_t *expected = json_load_file(path, 0, NULL);
    if (!expected)
        fail_msg("cannot read %s", path);
    snprintf(path, sizeof path, "%s/%s/input.jsonl", folder, name);
    char *bytes = read_file(path, &length);
    const json_t *options_value = json_object_get(expected, "options");
    const struct job_parse_options options = {
        .strict = json_is_true(json_object_get(options_value, "strict")),
        .max_tokens_default =
            json_integer_value(json_object_get(options_value, "max_tokens_default"))};
    run_lines(name, bytes, length, json_object_get(expected, "jobs"), &options, good);
    free(bytes);
    json_decref(expected);
}

static size_t run_folder(const char *folder, bool good)
{
    DIR *dir = opendir(folder);
    size_t n = 0;
    assert_non_null(dir);
    for (struct dirent *entry; (entry = readdir(dir)) != NULL;) {
        if (entry->d_name[0] == '.')
            continue;
        run_case(folder, entry->d_name, good);
        n++;
    }
    closedir(dir);
    return n;
}

static void good_lines_give_the_jobs_they_describe(void **state)
{
    (void)state;
    assert_true(run_folder(SHEAF_TEST_DATA "/fixtures/job/valid", true) >= 50);
}

static void bad_lines_give_jobs_with_code_param_and_message(void **state)
{
    (void)state;
    assert_true(run_folder(SHEAF_TEST_DATA "/fixtures/job/invalid", false) >= 100);
}

static const struct job_parse_options plain = {.strict = false, .max_tokens_default = 256};

static void a_line_over_the_limit_keeps_its_id(void **state)
{
    (void)state;
    const size_t length = 20u << 20;
    char *bytes = malloc(length);
    memset(bytes, 'x', length);
    static const char head[] = "{\"custom_id\":\"big\",\"question\":\"";
    memcpy(bytes, head, sizeof head - 1);
    memcpy(bytes + length - 2, "\"}", 2);
    struct job *job = parse_exactly(bytes, length, 3, &plain);
    assert_int_equal(job->error.status, 413);
    assert_string_equal(job->error.code, "line_too_long");
    assert_non_null(strstr(job->error.message, "20971520"));
    assert_non_null(strstr(job->error.message, "16777216"));
    assert_string_equal(job->custom_id, "big");
    assert_int_equal(job->n_messages, 0);
    job_free(job);
    free(bytes);
}

static void a_line_of_the_limit_is_read(void **state)
{
    (void)state;
    static const char head[] = "{\"question\":\"";
    const size_t length = 16u << 20;
    char *bytes = malloc(length);
    memset(bytes, 'x', length);
    memcpy(bytes, head, sizeof head - 1);
    memcpy(bytes + length - 2, "\"}", 2);
    struct job *job = parse_exactly(bytes, length, 1, &plain);
    assert_int_equal(job->error.status, 0);
    assert_int_equal(job->messages[0].length, length - (sizeof head - 1) - 2);
    job_free(job);
    free(bytes);
}

static void a_record_without_id_is_named_by_its_place(void **state)
{
    (void)state;
    char topic[] = "sheaf.jobs";
    const struct job_source source = {.topic = topic, .partition = 3, .offset = 12345678901};
    struct job *job = NULL;
    struct err e = {0};
    static const char bytes[] = "{\"question\":\"Q\"} x";
    assert_int_equal(job_parse(bytes, sizeof bytes - 1, &source, &plain, &job, &e), 0);
    assert_string_equal(job->custom_id, "sheaf.jobs-3-12345678901");
    assert_false(job->has_custom_id);
    assert_ptr_not_equal(job->source.topic, topic);
    /* A record has no line number. */
    assert_memory_equal(job->error.message, "byte ", 5);
    job_free(job);
    /* Zero bytes are no job; sha256sum of nothing. */
    assert_int_equal(job_parse("", 0, &source, &plain, &job, &e), 0);
    assert_string_equal(job->error.code, "invalid_json_line");
    assert_string_equal(job->payload_sha256,
                        "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    job_free(job);
}

static void every_cut_of_a_line_is_a_bad_job_that_keeps_a_complete_id(void **state)
{
    (void)state;
    static const char line[] =
        "{\"custom_id\":\"id-7\",\"system\":\"S\",\"documents\":[{\"id\":\"d\",\"text\":"
        "\"caf\xc3\xa9 \\u00e9 \\ud83d\\ude00\"}],\"question\":\"Q\",\"params\":{\"stop\":["
        "\"a\",\"b\"],\"logit_bias\":{\"3\":-1.5e0},\"seed\":-7},\"metadata\":{\"a\":null}}";
    const size_t id_end = strlen("{\"custom_id\":\"id-7\"");
    for (size_t n = 0; n < sizeof line - 1; n++) {
        struct job *job = parse_exactly(line, n, 1, &plain);
        assert_int_equal(job->error.status, 400);
        assert_string_equal(job->custom_id, n >= id_end ? "id-7" : "line-1");
        job_free(job);
    }
    struct job *job = parse_exactly(line, sizeof line - 1, 1, &plain);
    assert_int_equal(job->error.status, 0);
    job_free(job);
}

static void errors_carry_little_of_the_job_text(void **state)
{
    (void)state;
    /* A secret in each place that errors quote from. */
    static const char *const lines[] = {
        "{\"question\":\"Q\",\"params\":{\"logit_bias\":{\"%s\":1}}}",
        "{\"custom_id\":\"a\",\"body\":{\"messages\":[{\"role\":\"%s\",\"content\":\"\"}]}}",
        "{\"custom_id\":\"a\",\"url\":\"%s\",\"body\":{}}",
        "{\"question\":\"Q\",\"deadline\":\"%s\"}",
        "{\"question\":\"Q\",\"%s\":1}",
        "{\"question\":\"Q\" \"%s\"}",
        "{\"question\":\"Q\", %s}",
    };
    char secret[400];
    memset(secret, 's', sizeof secret - 1);
    secret[sizeof secret - 1] = '\0';
    char some[42];
    memset(some, 's', sizeof some - 1);
    some[sizeof some - 1] = '\0';
    static const struct job_parse_options strict = {.strict = true};
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++) {
        char line[1024];
        snprintf(line, sizeof line, "%.*s%s%s", (int)(strstr(lines[i], "%s") - lines[i]),
                 lines[i], secret, strstr(lines[i], "%s") + 2);
        struct job *job = parse_exactly(line, strlen(line), 1, &strict);
        assert_int_equal(job->error.status, 400);
        assert_null(strstr(job->error.message, some));
        assert_null(strstr(job->error.param, some));
        job_free(job);
    }
}

static char *repeat_items(const char *head, const char *item, size_t n, const char *tail)
{
    char *text = malloc(strlen(head) + n * (strlen(item) + 1) + strlen(tail) + 1);
    char *at = stpcpy(text, head);
    for (size_t i = 0; i < n; i++) {
        at = stpcpy(at, i ? "," : "");
        at = stpcpy(at, item);
    }
    stpcpy(at, tail);
    return text;
}

static void lists_have_limits(void **state)
{
    (void)state;
    static const struct {
        const char *head, *item, *tail, *param;
        size_t max;
    } cases[] = {
        {"{\"question\":\"Q\",\"documents\":[", "\"d\"", "]}", "documents", JOB_DOCUMENTS_MAX},
        {"{\"custom_id\":\"a\",\"body\":{\"messages\":[",
         "{\"role\":\"user\",\"content\":\"\"}", "]}}", "messages", JOB_MESSAGES_MAX},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        for (size_t more = 0; more < 2; more++) {
            char *line =
                repeat_items(cases[i].head, cases[i].item, cases[i].max + more, cases[i].tail);
            struct job *job = parse_exactly(line, strlen(line), 1, &plain);
            assert_int_equal(job->error.status, more ? 400 : 0);
            assert_string_equal(job->error.param, more ? cases[i].param : "");
            job_free(job);
            free(line);
        }
    }
}

static void only_spaces_tabs_and_line_ends_are_blank(void **state)
{
    (void)state;
    assert_true(job_line_is_blank("", 0));
    assert_true(job_line_is_blank(" \t\r", 3));
    assert_false(job_line_is_blank("\0", 1));
    assert_false(job_line_is_blank("\xef\xbb\xbf", 3));
    assert_false(job_line_is_blank(" x", 2));
}

static void warnings_do_not_grow_without_end(void **state)
{
    (void)state;
    char line[65536] = "{\"question\":\"Q\"";
    for (int i = 0; i < 2000; i++)
        sprintf(line + strlen(line), ",\"unknown_field_%d\":1", i);
    strcat(line, "}");
    struct job *job = parse_exactly(line, strlen(line), 1, &plain);
    assert_int_equal(job->error.status, 0);
    assert_true(strlen(job->warnings) <= 1024);
    assert_memory_equal(job->warnings, "unknown_field_0,unknown_field_1,", 32);
    job_free(job);
}

/* The examples say in their ids which lines are bad. */
static size_t run_example(const char *file, size_t *n_bad)
{
    size_t length = 0;
    size_t n_jobs = 0;
    int64_t line = 0;
    char *bytes = read_file(file, &length);
    *n_bad = 0;
    for (size_t at = 0; at < length;) {
        const char *end = memchr(bytes + at, '\n', length - at);
        const size_t n = end ? (size_t)(end - bytes) - at : length - at;
        line++;
        if (!job_line_is_blank(bytes + at, n)) {
            struct job *job = parse_exactly(bytes + at, n, line, &plain);
            const bool bad = strncmp(job->custom_id, "bad-", 4) == 0 || !job->has_custom_id;
            if (bad != (job->error.status != 0))
                fail_msg("%s: %s: %s", file, job->custom_id, job->error.message);
            *n_bad += bad;
            n_jobs++;
            job_free(job);
        }
        at += n + 1;
    }
    free(bytes);
    return n_jobs;
}

static void the_examples_are_good_and_bad_where_they_say_so(void **state)
{
    (void)state;
    size_t n_bad = 0;
    assert_int_equal(run_example(SHEAF_TEST_DATA "/../jobs/examples/library.jsonl", &n_bad),
                     78);
    assert_int_equal(n_bad, 0);
    assert_int_equal(run_example(SHEAF_TEST_DATA "/../jobs/examples/mixed.jsonl", &n_bad), 20);
    assert_int_equal(n_bad, 10);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(good_lines_give_the_jobs_they_describe),
        cmocka_unit_test(bad_lines_give_jobs_with_code_param_and_message),
        cmocka_unit_test(a_line_over_the_limit_keeps_its_id),
        cmocka_unit_test(a_line_of_the_limit_is_read),
        cmocka_unit_test(a_record_without_id_is_named_by_its_place),
        cmocka_unit_test(every_cut_of_a_line_is_a_bad_job_that_keeps_a_complete_id),
        cmocka_unit_test(errors_carry_little_of_the_job_text),
        cmocka_unit_test(lists_have_limits),
        cmocka_unit_test(only_spaces_tabs_and_line_ends_are_blank),
        cmocka_unit_test(the_examples_are_good_and_bad_where_they_say_so),
        cmocka_unit_test(warnings_do_not_grow_without_end),
    };
    return cmocka_run_group_tests_name("job_parse", tests, NULL, NULL);
}
