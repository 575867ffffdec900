/* Jobs that wait for documents: handed out one at a time, dropped when another worker has them.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "job_parse.h"
#include "parked.h"

static char path[] = "/tmp/test_parked.XXXXXX";

static int set_up(void **state)
{
    (void)state;
    static const char line[] = "{\"id\": \"here\", \"text\": \"T\"}\n";
    const int fd = mkstemp(path);
    if (fd < 0 || write(fd, line, sizeof line - 1) != (ssize_t)sizeof line - 1)
        return -1;
    return close(fd);
}

static int tear_down(void **state)
{
    (void)state;
    return unlink(path);
}

/* Nobody listens at its broker: what is not in the file may still come, for all that is known.
 */
static struct documents *open_documents(void)
{
    static const struct kafka_options kafka = {.brokers = "127.0.0.1:1", .group = "g"};
    const struct documents_options o = {
        .path = path, .topic = "documents", .kafka = &kafka, .bytes_max = 1 << 20};
    struct documents *d = NULL;
    struct err e = {0};
    if (documents_open(&o, &d, &e) != 0)
        fail_msg("%s", e.text);
    return d;
}

static void park(struct parked *p, int64_t offset, const char *ref)
{
    static const struct job_parse_options options = {.max_tokens_default = 16};
    const struct job_source source = {.topic = "jobs", .offset = offset};
    char line[200];
    const int n = snprintf(line, sizeof line,
                           "{\"documents\":[{\"ref\":\"%s\"}],\"question\":\"Q\"}", ref);
    struct job *job = NULL;
    struct err e = {0};
    assert_int_equal(job_parse(line, (size_t)n, &source, &options, &job, &e), 0);
    job->admitted_us = clock_mono_us();
    assert_int_equal(parked_add(p, job, &e), 0);
}

/* The offset of the next job, or -1. */
static int64_t next_of(struct parked *p, struct documents *d, const struct transport *t)
{
    struct job *job = NULL;
    struct err e = {0};
    assert_int_equal(parked_next(p, d, t, &job, &e), 0);
    if (!job)
        return -1;
    assert_string_equal(job->documents[0].text, "T");
    const int64_t offset = job->source.offset;
    job_free(job);
    return offset;
}

static bool holds_even(void *ctx, const struct job_source *source)
{
    (void)ctx;
    return source->offset % 2 == 0;
}

static void each_call_gives_one_job_and_passes_those_that_wait(void **state)
{
    (void)state;
    static const int64_t left[] = {0, 2, 5};
    static const struct transport all_held = {0};
    struct documents *d = open_documents();
    struct parked p = {0};
    park(&p, 0, "late");
    park(&p, 1, "here");
    park(&p, 2, "late");
    park(&p, 3, "here");
    assert_int_equal(next_of(&p, d, &all_held), 1);
    assert_true(p.is_passing);
    park(&p, 4, "here"); /* between two calls */
    park(&p, 5, "late");
    assert_int_equal(next_of(&p, d, &all_held), 3);
    assert_int_equal(next_of(&p, d, &all_held), 4);
    assert_int_equal(next_of(&p, d, &all_held), -1);
    assert_false(p.is_passing);
    assert_int_equal(p.n, 3);
    for (size_t i = 0; i < p.n; i++)
        assert_int_equal(p.jobs[i]->source.offset, left[i]);
    assert_int_equal(p.n_dropped, 0);
    parked_fini(&p);
    documents_close(d);
}

static void jobs_that_went_to_another_worker_are_dropped_waiting_or_whole(void **state)
{
    (void)state;
    static const struct transport even_held = {.holds = holds_even};
    struct documents *d = open_documents();
    struct parked p = {0};
    park(&p, 1, "late");
    park(&p, 2, "late");
    park(&p, 3, "here");
    park(&p, 4, "here");
    assert_int_equal(next_of(&p, d, &even_held), 4);
    assert_int_equal(next_of(&p, d, &even_held), -1);
    assert_int_equal(p.n_dropped, 2);
    assert_int_equal(p.n, 1);
    assert_int_equal(p.jobs[0]->source.offset, 2);
    parked_fini(&p);
    documents_close(d);
}

static void a_pass_that_is_left_midway_frees_every_job_once(void **state)
{
    (void)state;
    static const struct transport even_held = {.holds = holds_even};
    struct documents *d = open_documents();
    struct parked p = {0};
    park(&p, 1, "late");
    park(&p, 2, "late");
    park(&p, 4, "here");
    park(&p, 6, "here");
    assert_int_equal(next_of(&p, d, &even_held), 4);
    parked_fini(&p);
    assert_int_equal(p.n, 0);
    documents_close(d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_call_gives_one_job_and_passes_those_that_wait),
        cmocka_unit_test(jobs_that_went_to_another_worker_are_dropped_waiting_or_whole),
        cmocka_unit_test(a_pass_that_is_left_midway_frees_every_job_once),
    };
    return cmocka_run_group_tests_name("parked", tests, set_up, tear_down);
}
