/*
 * Every allocation of parsing, layout and emission fails in turn, once and from then on for
 * good: the outcome is the same job, or ERR_NOMEM, and nothing leaks. Our own allocations are
 * caught by the linker (--wrap), Jansson's through its hooks.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "failing_alloc.h"
#include "job_parse.h"
#include "prompt.h"
#include "result.h"

static const char *const lines[] = {
    "{\"custom_id\":\"id-of-some-length-0123456789\",\"run_id\":\"r\",\"system\":\"S\",\"cache_"
    "salt\":\"s\","
    "\"model\":"
    "\"m\",\"documents\":[\"plain\",{\"id\":5,\"title\":\"T\",\"text\":\"text that is longer "
    "than "
    "any small buffer\"},{\"data\":{\"title\":\"t\",\"a\":[1,2.5],\"b\":\"c\"}}],\"question\":"
    "\"Why "
    "\\u00e9?\",\"params\":{\"stop\":[\"a\",\"b\"],\"stop_token_ids\":[1,2],\"logit_bias\":"
    "{\"3\":1.5}},\"metadata\":{\"k\":0.1},\"expect\":[\"x\"],\"odd\":1,\"even\":2}",
    "{\"custom_id\":\"a\",\"url\":\"/v1/chat/"
    "completions\",\"body\":{\"model\":\"m\",\"messages\":["
    "{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"one\"},{\"type\":\"text\","
    "\"text\":\"two\"}]}],\"metadata\":{\"a\":\"b\"},\"prediction\":{\"type\":\"content\","
    "\"content\":[{\"type\":\"text\",\"text\":\"1\"},{\"type\":\"text\",\"text\":\"2\"}],"
    "\"odd\":1}}}",
    "{\"question\":\"Q\",\"prediction\":\"yes\"}",
    "{\"custom_id\":\"a\",\"body\":{\"prompt\":[1,2,3],\"max_tokens\":4}}",
    /* Jansson's token buffer holds 15 bytes: here it grows for a closing quote. */
    "{\"question\":\"Q\",\"abcdefghijklmn\":1}",
    "{\"question\":\"Q\",\"documents\":[{\"ref\":\"elsewhere\",\"title\":\"T\"}]}",
    "{\"custom_id\":\"salvaged\",\"question\":\"\xff\"}",
    "{\"custom_id\":\"a\",\"body\":{\"messages\":[],\"n\":2}}",
};

struct outcome {
    char line[4096];
    char group[33];
};

static int answer_take(struct job *job, struct outcome *out, struct err *e)
{
    struct buf line = {0};
    struct result r = {.job = job, .created_s = 1, .model = "m"};
    r.status = job->error.status ? RESULT_FAILED : RESULT_SUCCEEDED;
    r.error = job->error;
    r.finish_reason = job->error.status ? NULL : "stop";
    strcpy(r.id, "batch_req_1");
    const int code = result_emit(&r, &line, e);
    snprintf(out->line, sizeof out->line, "%s", buf_str(&line));
    buf_fini(&line);
    job_free(job);
    return code;
}

static int run_line(const char *bytes, struct outcome *out, struct err *e)
{
    static const struct job_parse_options options = {.max_tokens_default = 3};
    char topic[] = "t";
    const struct job_source source = {.topic = topic, .offset = 1, .is_file = true};
    struct job *job = NULL;
    struct prompt p = {0};
    int code = job_parse(bytes, strlen(bytes), &source, &options, &job, e);
    if (code != 0) {
        if (job)
            abort();
        return code;
    }
    if (!job_has_unresolved(job))
        code = prompt_build(job, &p, e);
    memcpy(out->group, p.group, sizeof p.group);
    prompt_fini(&p);
    if (code != 0) {
        job_free(job);
        return code;
    }
    return answer_take(job, out, e);
}

static void fail_each_allocation(const char *bytes)
{
    struct outcome good = {0};
    struct err e = {0};
    assert_int_equal(run_line(bytes, &good, &e), 0);
    for (int mode = 0; mode < 2; mode++) {
        int code = ERR_NOMEM;
        long n = 0;
        while (code != 0) {
            struct outcome out = {0};
            err_clear(&e);
            failing_alloc_arm(++n, mode == 1);
            code = run_line(bytes, &out, &e);
            failing_alloc_disarm();
            if (code == 0) {
                assert_string_equal(out.line, good.line);
                assert_string_equal(out.group, good.group);
            } else {
                assert_int_equal(code, ERR_NOMEM);
                assert_int_equal(e.code, ERR_NOMEM);
            }
        }
        /* More than ours: Jansson's are among them. */
        assert_true(n > 20);
        assert_true(failing_alloc_asked() < (size_t)n); /* it was not reached */
    }
}

static void a_failed_allocation_is_nomem_and_never_another_job(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++)
        fail_each_allocation(lines[i]);
}

int main(void)
{
    /* Before the first parse, whose own hook goes on top of this one. */
    json_set_alloc_funcs(malloc, free);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_failed_allocation_is_nomem_and_never_another_job),
    };
    return cmocka_run_group_tests_name("job_alloc", tests, NULL, NULL);
}
