/* The prompt's text is a contract: every byte is written out here. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "job_parse.h"
#include "prompt.h"

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

static struct prompt prompt_of(const char *line)
{
    struct job *job = job_of(line);
    struct prompt p;
    struct err e = {0};
    assert_int_equal(prompt_build(job, &p, &e), 0);
    job_free(job);
    return p;
}

struct expected {
    const char *line;
    size_t n_messages;
    const char *texts[4];
    size_t shared_message;
    const char *shared_text; /* of that message; "" none */
    bool has_group;
};

static const struct expected cases[] = {
    {"{\"system\":\"Be brief.\",\"documents\":[{\"title\":\"Tides\",\"text\":\"High at six.\"},"
     "\"Low at noon.\\n\"],\"question\":\"When is high tide?\"}",
     2,
     {"Be brief.", "Document 1: Tides\nHigh at six.\n\nDocument 2\nLow at noon.\n\n\n"
                   "Question: When is high tide?"},
     1,
     "Document 1: Tides\nHigh at six.\n\nDocument 2\nLow at noon.\n\n\n",
     true},
    {"{\"documents\":[\"D\"],\"question\":\"Q\"}",
     1,
     {"Document 1\nD\n\nQuestion: Q"},
     0,
     "Document 1\nD\n\n",
     true},
    {"{\"documents\":[{\"title\":\"\",\"text\":\"\"}],\"question\":\"Q\"}",
     1,
     {"Document 1\n\n\nQuestion: Q"},
     0,
     "Document 1\n\n\n",
     true},
    /* No documents: text goes through untouched, nothing but the system text is shared. */
    {"{\"question\":\" Q \\n\"}", 1, {" Q \n"}, 0, "", false},
    {"{\"system\":\"S\",\"question\":\"Q\"}", 2, {"S", "Q"}, 1, "", true},
    /* Several turns: the documents stand in the first user message. */
    {"{\"documents\":[\"D\"],\"params\":{},\"messages\":[{\"role\":\"user\",\"content\":"
     "\"one\"},"
     "{\"role\":\"assistant\",\"content\":\"two\"},{\"role\":\"user\",\"content\":\"three\"}]}",
     3,
     {"Document 1\nD\n\nQuestion: one", "two", "three"},
     0,
     "Document 1\nD\n\n",
     true},
    /* OpenAI chat: as it is; shared is what stands before the last user message. */
    {"{\"custom_id\":\"a\",\"body\":{\"messages\":[{\"role\":\"system\",\"content\":\"S\"},"
     "{\"role\":\"user\",\"content\":\"one\"},{\"role\":\"assistant\",\"content\":\"two\"},"
     "{\"role\":\"user\",\"content\":\"three\"}]}}",
     4,
     {"S", "one", "two", "three"},
     3,
     "",
     true},
    {"{\"custom_id\":\"a\",\"body\":{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]}}",
     1,
     {"x"},
     0,
     "",
     false},
    {"{\"custom_id\":\"a\",\"body\":{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],"
     "\"documents\":[{\"title\":\"T\",\"text\":\"D\"}]}}",
     1,
     {"Document 1: T\nD\n\nQuestion: x"},
     0,
     "Document 1: T\nD\n\n",
     true},
    /* No user message at all. */
    {"{\"custom_id\":\"a\",\"body\":{\"messages\":[{\"role\":\"system\",\"content\":\"S\"}]}}",
     1,
     {"S"},
     0,
     "",
     false},
    {"{\"custom_id\":\"a\",\"body\":{\"prompt\":\"raw\"}}", 0, {NULL}, 0, "", false},
};

static void jobs_become_exactly_this_text(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const struct expected *c = &cases[i];
        struct prompt p = prompt_of(c->line);
        assert_int_equal(p.n_messages, c->n_messages);
        for (size_t m = 0; m < c->n_messages; m++) {
            assert_string_equal(p.messages[m].text, c->texts[m]);
            assert_int_equal(p.messages[m].length, strlen(c->texts[m]));
        }
        assert_int_equal(p.shared_message, c->shared_message);
        assert_int_equal(p.shared_bytes, strlen(c->shared_text));
        if (c->n_messages)
            assert_memory_equal(p.messages[p.shared_message].text, c->shared_text,
                                p.shared_bytes);
        assert_int_equal(strlen(p.group), c->has_group ? 32 : 0);
        prompt_fini(&p);
    }
}

static void assert_groups(const char *a, const char *b, bool same)
{
    struct prompt p = prompt_of(a);
    struct prompt q = prompt_of(b);
    if ((strcmp(p.group, q.group) == 0) != same)
        fail_msg("%s\n%s", a, b);
    prompt_fini(&p);
    prompt_fini(&q);
}

static void a_group_is_the_system_text_and_documents_and_nothing_else(void **state)
{
    (void)state;
    static const char base[] =
        "{\"system\":\"S\",\"documents\":[{\"title\":\"T\",\"text\":\"A\"},\"B\"],"
        "\"question\":\"Q\"}";
    assert_groups(base,
                  "{\"custom_id\":\"x\",\"question\":\"another\",\"params\":{\"seed\":4},"
                  "\"documents\":[{\"id\":\"i\",\"title\":\"T\",\"text\":\"A\"},\"B\"],"
                  "\"system\":\"S\",\"metadata\":{\"a\":1},\"model\":\"m\"}",
                  true);
    static const char *const others[] = {
        "{\"system\":\"s\",\"documents\":[{\"title\":\"T\",\"text\":\"A\"},\"B\"],\"question\":"
        "\"Q\"}",
        "{\"documents\":[{\"title\":\"T\",\"text\":\"A\"},\"B\"],\"question\":\"Q\"}",
        "{\"system\":\"S\",\"documents\":[\"B\",{\"title\":\"T\",\"text\":\"A\"}],\"question\":"
        "\"Q\"}",
        "{\"system\":\"S\",\"documents\":[{\"title\":\"U\",\"text\":\"A\"},\"B\"],\"question\":"
        "\"Q\"}",
        "{\"system\":\"S\",\"documents\":[{\"title\":\"T\",\"text\":\"A\"}],\"question\":"
        "\"Q\"}",
        "{\"system\":\"S\",\"documents\":[{\"title\":\"T\",\"text\":\"A\"},\"B\",\"\"],"
        "\"question\":\"Q\"}",
    };
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
        assert_groups(base, others[i], false);
    /* Text that moves across a border is another group. */
    assert_groups(
        "{\"params\":{},\"messages\":[{\"role\":\"user\",\"content\":\"ab\"},"
        "{\"role\":\"assistant\",\"content\":\"c\"},{\"role\":\"user\",\"content\":\"\"}]}",
        "{\"params\":{},\"messages\":[{\"role\":\"user\",\"content\":\"a\"},"
        "{\"role\":\"assistant\",\"content\":\"bc\"},{\"role\":\"user\",\"content\":\"\"}]}",
        false);
}

/* Printed by the xxhash package of Python: xxh3_128 of role (1 byte), length (8 bytes, little
 * endian) and bytes: b"\0" + (1).to_bytes(8, "little") + b"S". */
static void a_group_is_xxh3_of_framed_parts(void **state)
{
    (void)state;
    struct prompt p = prompt_of("{\"system\":\"S\",\"question\":\"Q\"}");
    assert_string_equal(p.group, "fcb9102a525e7620de34cfb1878fa8ff");
    prompt_fini(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(jobs_become_exactly_this_text),
        cmocka_unit_test(a_group_is_the_system_text_and_documents_and_nothing_else),
        cmocka_unit_test(a_group_is_xxh3_of_framed_parts),
    };
    return cmocka_run_group_tests_name("prompt", tests, NULL, NULL);
}
