/* Dead letters: the job's own bytes and headers, and what is added. The formats of the added
 * ones are those of the tools that read them: Kafka Connect's reporter (text) and Spring's
 * recoverer (numbers as Java's ByteBuffer writes them). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "dead_letter.h"

static struct job_header own_headers[] = {
    {.name = (char *)"traceparent", .value = (char *)"00-ab-cd-01", .length = 11},
    {.name = (char *)"bytes", .value = (char *)"\0\xff\n", .length = 3},
    {.name = (char *)"twice", .value = (char *)"1", .length = 1},
    {.name = (char *)"twice", .value = (char *)"2", .length = 1},
    {.name = (char *)"nothing"},
};
static const struct job_record record = {.key = (char *)"k\0y",
                                         .key_length = 3,
                                         .value = (char *)"not {json",
                                         .value_length = 9,
                                         .headers = own_headers,
                                         .n_headers = 5};
static const struct job_source source = {.topic = (char *)"night.jobs",
                                         .partition = 258,
                                         .offset = 4294967298,
                                         .timestamp_us = 1700000000123456};
static const struct job_error error = {
    .status = 400, .code = "invalid_json_line", .message = "it is no JSON"};
static const struct transport_output output = {.source = &source,
                                               .custom_id = "q-7",
                                               .line = "{}",
                                               .record = &record,
                                               .error = &error,
                                               .stage = "intake",
                                               .attempts = 2};

static struct kafka_message make(unsigned headers, struct dead_letter *letter)
{
    const struct dead_letters d = {
        .topic = "night.jobs.dlq", .group = "night", .worker = "host:1", .headers = headers};
    struct kafka_message m;
    assert_int_equal(dead_letter_make(&d, &output, letter, &m, NULL), 0);
    return m;
}

static const struct kafka_header *find(const struct kafka_message *m, const char *name)
{
    for (size_t i = 0; i < m->n_headers; i++)
        if (strcmp(m->headers[i].name, name) == 0)
            return &m->headers[i];
    return NULL;
}

static void has(const struct kafka_message *m, const char *name, const void *value, size_t n)
{
    const struct kafka_header *h = find(m, name);
    assert_non_null(h);
    assert_int_equal(h->length, n);
    assert_memory_equal(h->value, value, n);
}
#define HAS_TEXT(m, name, text) has(m, name, text, sizeof(text) - 1)

static void the_record_is_repeated_byte_for_byte(void **state)
{
    (void)state;
    struct dead_letter letter;
    const struct kafka_message m = make(DEAD_LETTER_OWN, &letter);
    assert_string_equal(m.topic, "night.jobs.dlq");
    assert_int_equal(m.key_length, 3);
    assert_memory_equal(m.key, "k\0y", 3);
    assert_int_equal(m.value_length, 9);
    assert_memory_equal(m.value, "not {json", 9);
    assert_null(m.custom_id); /* the record's own header says it, if any */
    static const char *const names[] = {"traceparent", "bytes", "twice", "twice", "nothing"};
    for (size_t i = 0; i < 5; i++)
        assert_string_equal(m.headers[i].name, names[i]);
    assert_int_equal(m.headers[1].length, 3);
    assert_memory_equal(m.headers[1].value, "\0\xff\n", 3);
    assert_memory_equal(m.headers[3].value, "2", 1);
    assert_null(m.headers[4].value);
    dead_letter_fini(&letter);
}

static void what_went_wrong_is_said_in_text(void **state)
{
    (void)state;
    struct dead_letter letter;
    const struct kafka_message m = make(DEAD_LETTER_OWN, &letter);
    HAS_TEXT(&m, "sheaf.error.code", "invalid_json_line");
    HAS_TEXT(&m, "sheaf.error.message", "it is no JSON");
    HAS_TEXT(&m, "sheaf.error.attempts", "2");
    HAS_TEXT(&m, "sheaf.error.worker", "host:1");
    HAS_TEXT(&m, "sheaf.error.topic", "night.jobs");
    HAS_TEXT(&m, "sheaf.error.partition", "258");
    HAS_TEXT(&m, "sheaf.error.offset", "4294967298");
    HAS_TEXT(&m, "sheaf.error.stage", "intake");
    HAS_TEXT(&m, "sheaf.error.group", "night");
    HAS_TEXT(&m, "sheaf.error.job_id", "q-7");
    const struct kafka_header *time = find(&m, "sheaf.error.timestamp");
    assert_int_equal(time->length, strlen("2026-01-02T03:04:05.678Z"));
    assert_memory_equal((const char *)time->value + 10, "T", 1);
    assert_int_equal(m.n_headers, 5 + 11);
    dead_letter_fini(&letter);
}

static void springs_tools_find_their_numbers(void **state)
{
    (void)state;
    struct dead_letter letter;
    const struct kafka_message m = make(DEAD_LETTER_SPRING, &letter);
    has(&m, "kafka_dlt-original-partition", "\0\0\1\2", 4);
    has(&m, "kafka_dlt-original-offset", "\0\0\0\1\0\0\0\2", 8);
    has(&m, "kafka_dlt-original-timestamp", "\x00\x00\x01\x8b\xcf\xe5\x68\x7b", 8);
    HAS_TEXT(&m, "kafka_dlt-original-topic", "night.jobs");
    HAS_TEXT(&m, "kafka_dlt-original-consumer-group", "night");
    HAS_TEXT(&m, "kafka_dlt-exception-message", "it is no JSON");
    assert_null(find(&m, "__connect.errors.topic"));
    dead_letter_fini(&letter);
}

static void connects_tools_find_their_texts(void **state)
{
    (void)state;
    struct dead_letter letter;
    const struct kafka_message m = make(DEAD_LETTER_CONNECT, &letter);
    HAS_TEXT(&m, "__connect.errors.topic", "night.jobs");
    HAS_TEXT(&m, "__connect.errors.partition", "258");
    HAS_TEXT(&m, "__connect.errors.offset", "4294967298");
    HAS_TEXT(&m, "__connect.errors.exception.message", "it is no JSON");
    assert_null(find(&m, "kafka_dlt-original-topic"));
    dead_letter_fini(&letter);
}

static void the_setting_takes_four_words(void **state)
{
    (void)state;
    unsigned headers = 99;
    struct err e = {0};
    assert_int_equal(dead_letter_parse_headers("own", &headers, &e), 0);
    assert_int_equal(headers, 0);
    assert_int_equal(dead_letter_parse_headers("all", &headers, &e), 0);
    assert_int_equal(headers, DEAD_LETTER_CONNECT | DEAD_LETTER_SPRING);
    assert_int_equal(dead_letter_parse_headers("Own", &headers, &e), ERR_CONFIG);
    assert_non_null(strstr(e.text, "own, connect, spring, all"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_record_is_repeated_byte_for_byte),
        cmocka_unit_test(what_went_wrong_is_said_in_text),
        cmocka_unit_test(springs_tools_find_their_numbers),
        cmocka_unit_test(connects_tools_find_their_texts),
        cmocka_unit_test(the_setting_takes_four_words),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
