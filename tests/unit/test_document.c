/* Documents outside of jobs: read from lines, values and files, and lifted out of lines. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "base/limits.h"
#include "document.h"
#include "job_parse.h"
#include "prompt.h"

struct value_case {
    const char *bytes, *title, *text; /* text NULL: refused */
};

static void a_value_is_json_with_a_text_or_the_text_itself(void **state)
{
    (void)state;
    static const struct value_case cases[] = {
        {"{\"title\": \"T\", \"text\": \"a\\u00e9\"}", "T", "a\xc3\xa9"},
        {" \n{\"text\": \"\", \"title\": null, \"more\": 1}", NULL, ""},
        {"plain\r\ntext \n", NULL, "plain\r\ntext \n"},
        {"", NULL, ""},
        {"\xef\xbb\xbfwith a BOM", NULL, "with a BOM"},
        /* Looks like JSON, and is a text. */
        {"{\"text\": 5}", NULL, "{\"text\": 5}"},
        {"{\"title\": \"T\"}", NULL, "{\"title\": \"T\"}"},
        {"{ not JSON", NULL, "{ not JSON"},
        {"\"text\"", NULL, "\"text\""},
        {"[{\"text\": \"a\"}]", NULL, "[{\"text\": \"a\"}]"},
        {"caf\xe9", NULL, NULL},
        {"{\"text\": \"a\", \"title\": 5}", NULL, NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct document d;
        struct err e = {0};
        const int rc = document_parse_value(cases[i].bytes, strlen(cases[i].bytes), &d, &e);
        if (!cases[i].text) {
            assert_int_equal(rc, ERR_FORMAT);
            assert_int_equal(e.code, ERR_FORMAT);
            assert_null(d.text);
            continue;
        }
        assert_int_equal(rc, 0);
        assert_string_equal(d.text, cases[i].text);
        assert_int_equal(d.length, strlen(cases[i].text));
        assert_int_equal(d.title != NULL, cases[i].title != NULL);
        if (d.title)
            assert_string_equal(d.title, cases[i].title);
        document_fini(&d);
    }
    struct document d;
    struct err e = {0};
    assert_int_equal(document_parse_value("a\0b", 3, &d, &e), ERR_FORMAT);
}

static void a_line_needs_an_id_and_a_text(void **state)
{
    (void)state;
    static const char *const bad[] = {
        "",
        "[]",
        "{\"text\": \"a\"}",
        "{\"id\": 5, \"text\": \"a\"}",
        "{\"id\": \"\", \"text\": \"a\"}",
        "{\"id\": \"a\"}",
        "{\"id\": \"a\", \"text\": null}",
        "{\"id\": \"a\", \"text\": \"a\", \"title\": []}",
        "{\"id\": \"a\", \"text\": \"a\\u0000\"}",
        "{\"id\": \"a\", \"text\": \"a\"} x",
        "{\"id\": \"a\", \"id\": \"b\", \"text\": \"a\"}",
    };
    struct document d;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct err e = {0};
        if (document_parse_line(bad[i], strlen(bad[i]), &d, &e) != ERR_FORMAT)
            fail_msg("%s is no document", bad[i]);
        assert_null(d.text);
    }
    static const char good[] = "{\"text\": \"a\", \"more\": {}, \"id\": \"x/y\"}\r";
    struct err e = {0};
    assert_int_equal(document_parse_line(good, sizeof good - 1, &d, &e), 0);
    assert_string_equal(d.id, "x/y");
    assert_string_equal(d.text, "a");
    document_fini(&d);
}

static void a_document_has_a_size_limit(void **state)
{
    (void)state;
    struct document d;
    struct err e = {0};
    char *bytes = malloc(JOB_BYTES_MAX + 1);
    memset(bytes, 'x', JOB_BYTES_MAX + 1);
    assert_int_equal(document_parse_text(bytes, JOB_BYTES_MAX + 1, &d, &e), ERR_LIMIT);
    assert_int_equal(document_parse_text(bytes, JOB_BYTES_MAX, &d, &e), 0);
    document_fini(&d);
    free(bytes);
}

static struct job *job_of(const char *line)
{
    static const struct job_parse_options options = {.max_tokens_default = 16};
    const struct job_source source = {.offset = 1, .is_file = true};
    struct job *job = NULL;
    struct err e = {0};
    assert_int_equal(job_parse(line, strlen(line), &source, &options, &job, &e), 0);
    if (job->error.status != 0)
        fail_msg("%s: %s", line, job->error.message);
    return job;
}

/* sha256sum of "abc", as FIPS 180-2 prints it. */
static void the_name_of_a_text_is_its_hash(void **state)
{
    (void)state;
    char ref[DOCUMENT_REF_BYTES];
    struct err e = {0};
    assert_int_equal(document_make_ref("abc", 3, ref, &e), 0);
    assert_string_equal(
        ref, "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

/* Every document with an index in the mask gets the reference "R". */
static void check_lift(const char *line, unsigned mask, const char *lifted)
{
    struct job *job = job_of(line);
    const char *refs[8] = {0};
    char *out = NULL;
    struct err e = {0};
    for (size_t i = 0; i < job->n_documents; i++)
        refs[i] = mask >> i & 1 ? "R" : NULL;
    assert_int_equal(document_lift_line(line, strlen(line), job, refs, &out, &e), 0);
    assert_string_equal(out, lifted);
    job_free(job_of(out));
    free(out);
    job_free(job);
}

static void a_lifted_line_keeps_all_but_the_texts(void **state)
{
    (void)state;
    check_lift("{\"question\":\"Q\",\"documents\":[\"a\",\"b\"]}", 2,
               "{\"question\":\"Q\",\"documents\":[\"a\",{\"ref\":\"R\"}]}");
    check_lift("\xef\xbb\xbf{ \"documents\" : [{\"id\":7,\"title\":\"T\",\"text\":\"a\","
               "\"odd\":1}], \"question\":\"Q\", \"metadata\":{\"x\":1.0,\"y\":0.1} }",
               1,
               "{\"documents\":[{\"id\":7,\"title\":\"T\",\"odd\":1,\"ref\":\"R\"}],"
               "\"question\":\"Q\",\"metadata\":{\"x\":1.0,\"y\":0.1}}");
    /* A title inside of data heads the prompt, so it stays in the line. */
    check_lift("{\"documents\":[{\"data\":{\"title\":\"T\",\"k\":\"v\"}}],\"question\":\"Q\"}",
               1, "{\"documents\":[{\"ref\":\"R\",\"title\":\"T\"}],\"question\":\"Q\"}");
    check_lift("{\"documents\":[{\"ref\":\"local\"}],\"question\":\"Q\"}", 1,
               "{\"documents\":[{\"ref\":\"R\"}],\"question\":\"Q\"}");
    check_lift("{\"custom_id\":\"a\",\"body\":{\"messages\":[{\"role\":\"user\",\"content\":"
               "\"\xc3\xa9\"}],\"documents\":[\"a\"]}}",
               1,
               "{\"custom_id\":\"a\",\"body\":{\"messages\":[{\"role\":\"user\",\"content\":"
               "\"\xc3\xa9\"}],\"documents\":[{\"ref\":\"R\"}]}}");
}

/* What lift.c and a worker do, without Kafka: the value that is sent, read again. */
static void put_back(const struct job *inline_job, struct job *lifted)
{
    struct err e = {0};
    for (size_t i = 0; i < inline_job->n_documents; i++) {
        const struct job_document *from = &inline_job->documents[i];
        char *value = NULL;
        struct document d;
        assert_int_equal(document_make_value(from->text, from->length, &value, &e), 0);
        assert_int_equal(document_parse_value(value, strlen(value), &d, &e), 0);
        assert_null(lifted->documents[i].text);
        lifted->documents[i].text = d.text;
        lifted->documents[i].length = d.length;
        assert_null(d.title);
        free(value);
    }
}

static void lifted_and_put_back_the_prompt_is_the_same(void **state)
{
    (void)state;
    static const char line[] =
        "{\"system\":\"S\",\"documents\":[\"{\\\"text\\\":\\\"inner\\\"}\",{\"title\":\"T\","
        "\"text\":\"\\t\\\"\\\\ \\u0001\\ud83d\\ude00\"},{\"data\":{\"title\":\"D\",\"a\":[1,"
        "2.5]}},\"\\ufeffBOM inside of JSON\"],\"question\":\"Q\"}";
    static const char *const refs[] = {"a", "b", "c", "d"};
    struct job *job = job_of(line);
    char *out = NULL;
    struct err e = {0};
    assert_int_equal(document_lift_line(line, sizeof line - 1, job, refs, &out, &e), 0);
    struct job *lifted = job_of(out);
    assert_true(job_has_unresolved(lifted));
    put_back(job, lifted);
    assert_false(job_has_unresolved(lifted));
    struct prompt one, other;
    assert_int_equal(prompt_build(job, &one, &e), 0);
    assert_int_equal(prompt_build(lifted, &other, &e), 0);
    assert_int_equal(one.n_messages, other.n_messages);
    for (size_t i = 0; i < one.n_messages; i++)
        assert_string_equal(one.messages[i].text, other.messages[i].text);
    assert_string_equal(one.group, other.group);
    prompt_fini(&other);
    /* The group does see a text that differs. */
    lifted->documents[1].text[0] = 'x';
    assert_int_equal(prompt_build(lifted, &other, &e), 0);
    assert_string_not_equal(one.group, other.group);
    prompt_fini(&one);
    prompt_fini(&other);
    free(out);
    job_free(job);
    job_free(lifted);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_value_is_json_with_a_text_or_the_text_itself),
        cmocka_unit_test(a_line_needs_an_id_and_a_text),
        cmocka_unit_test(a_document_has_a_size_limit),
        cmocka_unit_test(the_name_of_a_text_is_its_hash),
        cmocka_unit_test(a_lifted_line_keeps_all_but_the_texts),
        cmocka_unit_test(lifted_and_put_back_the_prompt_is_the_same),
    };
    return cmocka_run_group_tests_name("document", tests, NULL, NULL);
}
