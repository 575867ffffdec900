/* References of a job resolved from files and folders; documents in bounded memory. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/limits.h"
#include "io/documents.h"
#include "io/documents_int.h"
#include "job_parse.h"
#include "prompt.h"

static char folder[] = "/tmp/test_documents.XXXXXX";

static const char *path_of(const char *name)
{
    static char path[256];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static void write_file(const char *name, const char *bytes, size_t length)
{
    FILE *file = fopen(path_of(name), "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, length, file), length);
    fclose(file);
}

static int set_up(void **state)
{
    (void)state;
    if (!mkdtemp(folder))
        return -1;
    mkdir(path_of("docs"), 0700);
    write_file("docs/mill", "Built in 1786.", 14);
    write_file("docs/latin1", "caf\xe9", 4);
    write_file("outside", "secret", 6);
    char link[300];
    snprintf(link, sizeof link, "%s/docs/out", folder);
    if (symlink("../outside", link) != 0)
        return -1;
    snprintf(link, sizeof link, "%s/docs/in", folder);
    return symlink("mill", link);
}

static int tear_down(void **state)
{
    (void)state;
    static const char *const names[] = {"docs/mill", "docs/latin1", "docs/out",  "docs/in",
                                        "docs/big",  "outside",     "docs.jsonl"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        unlink(path_of(names[i]));
    rmdir(path_of("docs"));
    return rmdir(folder);
}

static struct job *job_of(const char *line)
{
    static const struct job_parse_options options = {.max_tokens_default = 16};
    const struct job_source source = {.offset = 1, .is_file = true};
    struct job *job = NULL;
    struct err e = {0};
    assert_int_equal(job_parse(line, strlen(line), &source, &options, &job, &e), 0);
    return job;
}

static struct documents *open_at(const char *name)
{
    const struct documents_options o = {.path = path_of(name), .bytes_max = 1 << 20};
    struct documents *d = NULL;
    struct err e = {0};
    if (documents_open(&o, &d, &e) != 0)
        fail_msg("%s", e.text);
    return d;
}

static void resolve(struct documents *d, struct job *job)
{
    bool waits = true;
    struct err e = {0};
    assert_int_equal(documents_resolve(d, job, 0, &waits, &e), 0);
    assert_false(waits);
}

static void a_reference_gives_the_prompt_and_the_group_of_the_text(void **state)
{
    (void)state;
    static const char lines[] = "{\"id\": \"a\", \"title\": \"Own\", \"text\": \"A\\n\"}\n"
                                "{\"id\": \"b\", \"text\": \"B\"}\n";
    static const struct {
        const char *inlined, *referring;
    } cases[] = {
        {"{\"documents\":[{\"title\":\"Own\",\"text\":\"A\\n\"},\"x\",\"B\"],\"question\":"
         "\"Q\"}",
         "{\"documents\":[{\"ref\":\"a\"},\"x\",{\"ref\":\"b\"}],\"question\":\"Q\"}"},
        {"{\"documents\":[{\"title\":\"Mine\",\"text\":\"A\\n\"}],\"question\":\"Q\"}",
         "{\"documents\":[{\"ref\":\"a\",\"title\":\"Mine\"}],\"question\":\"Q\"}"},
        {"{\"custom_id\":\"c\",\"body\":{\"messages\":[{\"role\":\"user\",\"content\":\"Q\"}],"
         "\"documents\":[\"B\"]}}",
         "{\"custom_id\":\"c\",\"body\":{\"messages\":[{\"role\":\"user\",\"content\":\"Q\"}],"
         "\"documents\":[{\"ref\":\"b\"}]}}"},
    };
    write_file("docs.jsonl", lines, sizeof lines - 1);
    struct documents *d = open_at("docs.jsonl");
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct job *one = job_of(cases[i].inlined), *other = job_of(cases[i].referring);
        struct prompt p, q;
        struct err e = {0};
        assert_true(job_has_unresolved(other));
        resolve(d, one);
        resolve(d, other);
        assert_int_equal(other->error.status, 0);
        assert_false(job_has_unresolved(other));
        assert_int_equal(prompt_build(one, &p, &e), 0);
        assert_int_equal(prompt_build(other, &q, &e), 0);
        assert_string_equal(p.messages[0].text, q.messages[0].text);
        assert_string_equal(p.group, q.group);
        assert_int_equal(strlen(p.group), 32);
        prompt_fini(&p);
        prompt_fini(&q);
        job_free(one);
        job_free(other);
    }
    documents_close(d);
}

static void check_error(struct documents *d, const char *ref, int status, const char *code)
{
    char line[1024];
    snprintf(line, sizeof line, "{\"documents\":[\"x\",{\"ref\":\"%s\"}],\"question\":\"Q\"}",
             ref);
    struct job *job = job_of(line);
    resolve(d, job);
    if (job->error.status != status || strcmp(job->error.code, code) != 0)
        fail_msg("%s: %d %s", ref, job->error.status, job->error.code);
    if (status != 0)
        assert_string_equal(job->error.param, "documents[1].ref");
    assert_null(strstr(job->error.message, "secret"));
    job_free(job);
}

/* Of the system's own: a regular file whose first byte gives EIO. */
static void a_file_that_cannot_be_read_now_is_no_error_of_the_job(void **state)
{
    (void)state;
    if (access("/proc/self/mem", F_OK) != 0)
        skip();
    const struct documents_options o = {.path = "/proc/self", .bytes_max = 1 << 20};
    struct documents *d = NULL;
    struct err e = {0};
    bool waits;
    assert_int_equal(documents_open(&o, &d, &e), 0);
    struct job *job = job_of("{\"documents\":[{\"ref\":\"mem\"}],\"question\":\"Q\"}");
    assert_int_equal(documents_resolve(d, job, 0, &waits, &e), ERR_IO);
    assert_int_equal(e.flags, ERR_RETRY);
    assert_non_null(strstr(e.text, "mem"));
    assert_non_null(strstr(e.text, strerror(EIO)));
    assert_int_equal(job->error.status, 0);
    job_free(job);
    documents_close(d);
}

static void a_folder_gives_its_own_files_and_nothing_else(void **state)
{
    (void)state;
    static const char *const hostile[] = {
        "../outside",  "mill/../../outside",
        "/etc/passwd", "out",
        ".",           "..",
        "/",           "mill/",
        "./mill",      "//mill",
        "latin1",
    };
    struct documents *d = open_at("docs");
    check_error(d, "mill", 0, "");
    check_error(d, "in", 0, "");
    check_error(d, "gone", 404, "document_not_found");
    check_error(d, "mill/gone", 404, "document_not_found");
    for (size_t i = 0; i < sizeof hostile / sizeof hostile[0]; i++)
        check_error(d, hostile[i], 400, "document_invalid");
    documents_close(d);
}

static void without_documents_no_reference_is_found(void **state)
{
    (void)state;
    check_error(NULL, "mill", 404, "document_not_found");
    struct job *job = job_of("{\"documents\":[\"text\"],\"question\":\"Q\"}");
    resolve(NULL, job);
    assert_int_equal(job->error.status, 0);
    job_free(job);
}

static void errors_quote_little_of_a_reference(void **state)
{
    (void)state;
    char line[600], ref[500];
    memset(ref, 's', sizeof ref - 1);
    ref[sizeof ref - 1] = '\0';
    snprintf(line, sizeof line, "{\"documents\":[{\"ref\":\"\\n%s\"}],\"question\":\"Q\"}",
             ref);
    struct job *job = job_of(line);
    resolve(NULL, job);
    ref[42] = '\0';
    assert_null(strstr(job->error.message, ref));
    assert_null(strchr(job->error.message, '\n'));
    job_free(job);
}

static void the_texts_of_a_job_have_a_limit_together(void **state)
{
    (void)state;
    const size_t length = JOB_BYTES_MAX / 2;
    char *bytes = malloc(length);
    memset(bytes, 'x', length);
    write_file("docs/big", bytes, length);
    free(bytes);
    struct documents *d = open_at("docs");
    struct job *two =
        job_of("{\"documents\":[{\"ref\":\"big\"},{\"ref\":\"big\"}],\"question\":\"Q\"}");
    resolve(d, two);
    assert_int_equal(two->error.status, 0);
    struct job *more = job_of(
        "{\"documents\":[{\"ref\":\"big\"},\"x\",{\"ref\":\"big\"}],\"question\":\"Q\"}");
    resolve(d, more);
    assert_int_equal(more->error.status, 413);
    assert_string_equal(more->error.code, "documents_too_large");
    job_free(two);
    job_free(more);
    documents_close(d);
}

/* Nobody listens there: what is not in the file may still come, for all that is known. */
static struct documents *open_with_topic(const char *name)
{
    static const struct kafka_options kafka = {.brokers = "127.0.0.1:1", .group = "g"};
    const struct documents_options o = {
        .path = path_of(name), .topic = "documents", .kafka = &kafka, .bytes_max = 1 << 20};
    struct documents *d = NULL;
    struct err e = {0};
    if (documents_open(&o, &d, &e) != 0)
        fail_msg("%s", e.text);
    return d;
}

static void a_job_that_waits_for_one_text_holds_none(void **state)
{
    (void)state;
    static const char line[] = "{\"id\": \"a\", \"title\": \"T\", \"text\": \"A\"}\n";
    write_file("docs.jsonl", line, sizeof line - 1);
    struct documents *d = open_with_topic("docs.jsonl");
    struct job *whole = job_of("{\"documents\":[{\"ref\":\"a\"}],\"question\":\"Q\"}");
    struct job *waiting =
        job_of("{\"documents\":[{\"ref\":\"a\"},{\"ref\":\"late\"}],\"question\":\"Q\"}");
    bool waits = true;
    struct err e = {0};
    resolve(d, whole);
    assert_string_equal(whole->documents[0].text, "A");
    assert_int_equal(documents_resolve(d, waiting, clock_mono_us(), &waits, &e), 0);
    assert_true(waits);
    assert_int_equal(waiting->error.status, 0);
    assert_null(waiting->documents[0].text);
    assert_null(waiting->documents[0].title);
    job_free(whole);
    job_free(waiting);
    documents_close(d);
}

static void what_no_file_is_called_may_be_in_the_topic(void **state)
{
    (void)state;
    static const struct {
        const char *ref;
        bool waits;
    } cases[] = {{"https://a//b", true}, {"../outside", true}, {"/etc/passwd", true},
                 {"gone", true},         {"out", false},       {"latin1", false}};
    struct documents *d = open_with_topic("docs");
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char line[200];
        snprintf(line, sizeof line, "{\"documents\":[{\"ref\":\"%s\"}],\"question\":\"Q\"}",
                 cases[i].ref);
        struct job *job = job_of(line);
        bool waits = !cases[i].waits;
        struct err e = {0};
        assert_int_equal(documents_resolve(d, job, clock_mono_us(), &waits, &e), 0);
        if (waits != cases[i].waits || (job->error.status == 400) == waits)
            fail_msg("%s: %d", cases[i].ref, job->error.status);
        job_free(job);
    }
    documents_close(d);
}

static void a_name_longer_than_a_file_may_have_is_not_found(void **state)
{
    (void)state;
    char ref[400];
    memset(ref, 'n', sizeof ref - 1);
    ref[sizeof ref - 1] = '\0';
    struct documents *d = open_at("docs");
    check_error(d, ref, 404, "document_not_found");
    documents_close(d);
}

static int put(struct documents_table *t, const char *ref, size_t length)
{
    struct document document = {.text = calloc(1, length + 1), .length = length};
    memset(document.text, 'x', length);
    const int rc = documents_table_put_take(t, ref, &document, NULL);
    document_fini(&document);
    return rc;
}

static enum find_answer answer_of(const struct documents_table *t, const char *ref)
{
    struct document found = {0};
    struct err why = {0}, e = {0};
    enum find_answer answer;
    assert_int_equal(documents_table_read(t, ref, &answer, &found, &why, &e), 0);
    document_fini(&found);
    return answer;
}

static void what_does_not_fit_is_let_go_and_known_as_such(void **state)
{
    (void)state;
    struct documents_table t = {.bytes_max = 4096};
    assert_int_equal(put(&t, "a", 1000), 0);
    assert_int_equal(put(&t, "b", 1000), 0);
    assert_int_equal(put(&t, "c", 3000), ERR_LIMIT);
    assert_int_equal(answer_of(&t, "a"), FIND_HERE);
    assert_int_equal(answer_of(&t, "c"), FIND_LET_GO);
    assert_int_equal(answer_of(&t, "d"), FIND_NOWHERE);
    assert_true(t.bytes <= t.bytes_max);
    /* An old text is no substitute for a new one. */
    assert_int_equal(put(&t, "a", 3000), ERR_LIMIT);
    assert_int_equal(answer_of(&t, "a"), FIND_LET_GO);
    /* Room that a tombstone makes is used. */
    documents_table_remove(&t, "b");
    assert_int_equal(answer_of(&t, "b"), FIND_NOWHERE);
    assert_int_equal(t.bytes, 0);
    assert_int_equal(put(&t, "c", 3000), 0);
    assert_int_equal(answer_of(&t, "c"), FIND_HERE);
    assert_int_equal(documents_table_put_invalid(&t, "bad", "why", NULL), 0);
    assert_int_equal(answer_of(&t, "bad"), FIND_INVALID);
    documents_table_fini(&t);
}

static void the_names_of_what_was_let_go_have_a_limit(void **state)
{
    (void)state;
    struct documents_table t = {.bytes_max = 8};
    char ref[16];
    for (int i = 0; i <= DOCUMENTS_LET_GO_MAX; i++) {
        snprintf(ref, sizeof ref, "n%d", i);
        assert_int_equal(put(&t, ref, 1), ERR_LIMIT);
    }
    assert_int_equal(answer_of(&t, "n0"), FIND_LET_GO);
    assert_int_equal(answer_of(&t, ref), FIND_NOWHERE);
    assert_int_equal(t.let_go.length, DOCUMENTS_LET_GO_MAX);
    documents_table_fini(&t);
}

/* Against a plain array that holds what should be there. */
static void a_table_holds_the_latest_of_each_name(void **state)
{
    (void)state;
    enum { NAMES = 1000, STEPS = 20000 };
    static size_t lengths[NAMES]; /* 0: not there */
    struct documents_table t = {.bytes_max = SIZE_MAX / 2};
    uint32_t draw = 1;
    size_t n = 0;
    for (size_t step = 0; step < STEPS; step++) {
        draw = draw * 1664525 + 1013904223;
        const size_t name = draw >> 16 & 1023;
        char ref[16];
        if (name >= NAMES)
            continue;
        snprintf(ref, sizeof ref, "n%zu", name);
        n -= lengths[name] > 0;
        lengths[name] = draw % 5;
        n += lengths[name] > 0;
        if (lengths[name] == 0)
            documents_table_remove(&t, ref);
        else
            assert_int_equal(put(&t, ref, lengths[name]), 0);
    }
    assert_int_equal(t.n, n);
    for (size_t name = 0; name < NAMES; name++) {
        char ref[16];
        snprintf(ref, sizeof ref, "n%zu", name);
        const struct table_entry *entry = documents_table_find(&t, ref);
        assert_int_equal(entry ? entry->length : 0, lengths[name]);
        documents_table_remove(&t, ref);
    }
    assert_int_equal(t.bytes, 0);
    documents_table_fini(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_reference_gives_the_prompt_and_the_group_of_the_text),
        cmocka_unit_test(a_file_that_cannot_be_read_now_is_no_error_of_the_job),
        cmocka_unit_test(a_folder_gives_its_own_files_and_nothing_else),
        cmocka_unit_test(without_documents_no_reference_is_found),
        cmocka_unit_test(errors_quote_little_of_a_reference),
        cmocka_unit_test(the_texts_of_a_job_have_a_limit_together),
        cmocka_unit_test(a_job_that_waits_for_one_text_holds_none),
        cmocka_unit_test(what_no_file_is_called_may_be_in_the_topic),
        cmocka_unit_test(a_name_longer_than_a_file_may_have_is_not_found),
        cmocka_unit_test(what_does_not_fit_is_let_go_and_known_as_such),
        cmocka_unit_test(the_names_of_what_was_let_go_have_a_limit),
        cmocka_unit_test(a_table_holds_the_latest_of_each_name),
    };
    return cmocka_run_group_tests_name("documents", tests, set_up, tear_down);
}
