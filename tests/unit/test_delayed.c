/* Outputs that wait for others: in order, each offset once, whatever the order of adding. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "delayed.h"
#include "job.h"

static void add(struct delayed *d, char *topic, int32_t partition, int64_t offset,
                uint64_t lease, const char *line)
{
    const struct job_source source = {
        .topic = topic, .partition = partition, .offset = offset, .lease = lease};
    const struct transport_output output = {.source = &source, .custom_id = "id", .line = line};
    assert_int_equal(delayed_add(d, &output, NULL), 0);
}

static void expect(const struct delayed *d, const char *wanted)
{
    char text[256] = "";
    size_t length = 0;
    for (size_t i = 0; i < d->n; i++) {
        const struct job_source *source = d->outputs[i].source;
        length +=
            (size_t)snprintf(text + length, sizeof text - length, "%s/%d/%d#%d=%s ",
                             source->topic, (int)source->partition, (int)source->offset,
                             (int)source->lease, d->outputs[i].line ? d->outputs[i].line : "-");
    }
    assert_string_equal(text, wanted);
}

static void they_come_out_in_the_order_of_the_topic(void **state)
{
    (void)state;
    struct delayed d = {0};
    char topic[] = "b"; /* copied: the caller's goes */
    add(&d, topic, 1, 7, 1, "one");
    add(&d, topic, 0, 9, 1, "two");
    topic[0] = 'a';
    add(&d, topic, 1, 3, 1, NULL);
    topic[0] = 'b';
    add(&d, topic, 1, 5, 1, "four");
    topic[0] = 'x';
    expect(&d, "a/1/3#1=- b/0/9#1=two b/1/5#1=four b/1/7#1=one ");
    delayed_fini(&d);
    expect(&d, "");
}

static void an_offset_is_there_once_and_the_later_one_counts(void **state)
{
    (void)state;
    struct delayed d = {0};
    for (int64_t offset = 200; offset > 0; offset--)
        add(&d, "t", 0, offset, 1, "x");
    for (int64_t offset = 1; offset <= 200; offset++)
        add(&d, "t", 0, offset, 2, "y");
    assert_int_equal(d.n, 200);
    bool is_kept[200] = {false};
    is_kept[4] = is_kept[199] = true;
    delayed_keep(&d, is_kept);
    expect(&d, "t/0/5#2=y t/0/200#2=y ");
    delayed_fini(&d);
}

/* The job goes; its record and its error are kept for the dead letter. */
static void a_failure_keeps_its_record(void **state)
{
    (void)state;
    struct delayed d = {0};
    char name[] = "trace", value[] = "a\0b", body[] = "{\"x\":1}";
    struct job_header headers[] = {{name, value, 3}, {name, NULL, 0}};
    struct job_record record = {
        .value = body, .value_length = 7, .headers = headers, .n_headers = 2};
    struct job_error error = {.status = 400, .code = "invalid"};
    const struct job_source source = {.topic = name};
    const struct transport_output output = {.source = &source,
                                            .custom_id = "id",
                                            .line = "{}",
                                            .record = &record,
                                            .error = &error,
                                            .stage = "intake",
                                            .attempts = 2};
    assert_int_equal(delayed_add(&d, &output, NULL), 0);
    memset(name, 'x', sizeof name - 1);
    memset(value, 'x', sizeof value);
    memset(body, 'x', sizeof body - 1);
    error.status = 0;
    const struct transport_output *kept = &d.outputs[0];
    assert_null(kept->record->key);
    assert_int_equal(kept->record->value_length, 7);
    assert_string_equal(kept->record->value, "{\"x\":1}");
    assert_int_equal(kept->record->n_headers, 2);
    assert_string_equal(kept->record->headers[0].name, "trace");
    assert_memory_equal(kept->record->headers[0].value, "a\0b", 4);
    assert_null(kept->record->headers[1].value);
    assert_int_equal(kept->error->status, 400);
    assert_string_equal(kept->error->code, "invalid");
    assert_string_equal(kept->stage, "intake");
    assert_int_equal(kept->attempts, 2);
    delayed_fini(&d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(they_come_out_in_the_order_of_the_topic),
        cmocka_unit_test(an_offset_is_there_once_and_the_later_one_counts),
        cmocka_unit_test(a_failure_keeps_its_record),
    };
    return cmocka_run_group_tests_name("delayed", tests, NULL, NULL);
}
