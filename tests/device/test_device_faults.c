/*
 * A device that fails: whichever call it is, the step says so, nothing that was computed after
 * it is used, what had finished may be collected, the rest can be cancelled, and what the
 * folder of KV files holds is good. Between the engine and the emulated device stands a table
 * that fails from the n-th call on.
 *
 * And what is refused before anything is computed.
 */
#include <glob.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/limits.h"
#include "base/rng.h"
#include "device.h"
#include "engine/kvpool.h"
#include "golden.h"
#include "heads_make.h"
#include "model/random_model.h"

enum { N_JOBS = 5, N_OUT = 6, CONTEXT = 128, PROMPT_MAX = 100 };

/* Of the calls that are made to fail: all of the first, then one in so many. */
#if defined(__SANITIZE_ADDRESS__)
enum { N_FIRST = 1, STRIDE = 11 };
#else
enum { N_FIRST = 12, STRIDE = 5 };
#endif

/* ------------------------------------------------------------------ the table between */

static const struct device_backend *real;
static long n_calls, first_failure;        /* first_failure 0: none */
static size_t n_hidden, n_kept, n_guessed; /* rows that crossed, and that did not */
static bool is_absent;

static int call(struct err *e)
{
    n_calls++;
    if (first_failure == 0 || n_calls < first_failure)
        return 0;
    return ERR_SET(e, ERR_IO, "planted at call %ld", first_failure);
}

#define PASS(...)                                                                              \
    const int rc = call(e);                                                                    \
    return rc != 0 ? rc : real->__VA_ARGS__

static int step(struct device *d, const struct device_step *s, struct err *e)
{
    PASS(step(d, s, e));
}

static int read_logits(struct device *d, const int32_t *rows, size_t n, float *out,
                       struct err *e)
{
    PASS(read_logits(d, rows, n, out, e));
}

static int read_best(struct device *d, size_t n_later, int32_t *out, struct err *e)
{
    PASS(read_best(d, n_later, out, e));
}

static int read_candidates(struct device *d, struct device_candidates *out, struct err *e)
{
    PASS(read_candidates(d, out, e));
}

static int read_hidden(struct device *d, size_t row, float *out, struct err *e)
{
    n_hidden++;
    PASS(read_hidden(d, row, out, e));
}

static int wait(struct device *d, struct err *e)
{
    PASS(wait(d, e));
}

static int copy_page(struct device *d, int32_t to, int32_t from, struct err *e)
{
    PASS(copy_page(d, to, from, e));
}

static int move_token(struct device *d, int32_t to, size_t to_slot, int32_t from,
                      size_t from_slot, struct err *e)
{
    PASS(move_token(d, to, to_slot, from, from_slot, e));
}

static int read_page(struct device *d, int32_t page, void *out, struct err *e)
{
    PASS(read_page(d, page, out, e));
}

static int write_page(struct device *d, int32_t page, const void *in, struct err *e)
{
    PASS(write_page(d, page, in, e));
}

static int keep_hidden(struct device *d, size_t n, const int32_t *logits_rows,
                       const int32_t *places, struct err *e)
{
    n_kept += n;
    PASS(keep_hidden(d, n, logits_rows, places, e));
}

static int guess(struct device *d, size_t n, const int32_t *places, struct device_guess *out,
                 struct err *e)
{
    n_guessed += n;
    PASS(guess(d, n, places, out, e));
}

/* By way of the linker (--wrap). */
int __real_device_load(const char *name, const struct device_backend **out, struct err *e);
int __wrap_device_load(const char *name, const struct device_backend **out, struct err *e);

int __wrap_device_load(const char *name, const struct device_backend **out, struct err *e)
{
    static struct device_backend table;
    if (is_absent)
        return ERR_SET(e, ERR_UNSUPPORTED, "there is no %s here", name);
    TRY(__real_device_load("cuda-emu", &real, e)); /* whatever was asked for */
    table = *real;
    table.step = step;
    table.read_logits = read_logits;
    table.read_best = read_best;
    table.read_candidates = read_candidates;
    table.read_hidden = read_hidden;
    table.wait = wait;
    table.copy_page = copy_page;
    table.move_token = move_token;
    table.read_page = read_page;
    table.write_page = write_page;
    table.keep_hidden = keep_hidden;
    table.guess = guess;
    *out = &table;
    return 0;
}

/* ------------------------------------------------------------------ jobs */

static struct model *model;
static struct heads *heads;
static char folder[] = "/tmp/sheaf-device-XXXXXX";

struct job {
    int32_t tokens[N_OUT];
    size_t n_tokens;
    bool is_done;
};

static struct engine_options options_of(const char *device)
{
    const struct kvpool_shape shape = kvpool_shape_of(&model->config, KV_BF16);
    return (struct engine_options){.n_threads = 1,
                                   .batch = 3,
                                   .step_tokens = 64,
                                   .chunk_tokens = 64,
                                   .context = CONTEXT,
                                   .kv_bytes = 24 * kvpool_page_bytes(&shape),
                                   .prefix_cache = true,
                                   .prefix_tokens_min = 1,
                                   .evicts_by_demand = true,
                                   .shared_attention = true,
                                   .kv_disk = folder,
                                   .kv_disk_bytes = 1 << 24,
                                   .kv_disk_tokens_min = KV_PAGE_TOKENS,
                                   .kv_disk_always = true,
                                   .speculation = SPECULATION_HEADS,
                                   .heads = heads,
                                   .draft_always = true,
                                   .draft_tokens = 12,
                                   .device = device,
                                   .device_exact = true,
                                   .device_graphs = true,
                                   .device_ahead = true};
}

/* Two of five share most of a document. One is sampled with a penalty, so that whole logits are
 * read; one from candidates, which do not always do. */
static void submit(struct engine *eng, struct job *jobs)
{
    static size_t ids[N_JOBS];
    static const size_t lengths[N_JOBS] = {97, 80, 99, 20, 33};
    for (size_t i = 0; i < N_JOBS; i++) {
        int32_t prompt[PROMPT_MAX];
        for (size_t k = 0; k < lengths[i]; k++)
            prompt[k] = (int32_t)(rng_bits(3, i < 3 && k < 70 ? 9 : i, k) % 300);
        ids[i] = i;
        jobs[i] = (struct job){0};
        struct seq_request req = {.prompt = prompt,
                                  .n_prompt = lengths[i],
                                  .max_tokens = N_OUT,
                                  .ignore_eos = true,
                                  .sample = sample_params_greedy(),
                                  .user = &ids[i]};
        if (i == 1 || i == 3)
            req.sample.temperature = i == 1 ? 0.8f : 3;
        if (i == 1)
            req.sample.presence_penalty = 0.1f;
        struct err e = {0};
        if (engine_submit(eng, &req, &e) != 0)
            fail_msg("%s", e.text);
    }
}

static size_t collect(struct engine *eng, struct job *jobs, bool may_be_cancelled)
{
    struct seq_result r;
    size_t n = 0;
    while (engine_collect(eng, &r)) {
        struct job *job = &jobs[*(const size_t *)r.user];
        n++;
        if (may_be_cancelled && r.reason == FINISH_CANCELLED)
            continue;
        assert_int_equal(r.reason, FINISH_LENGTH);
        assert_int_equal(r.n_tokens, N_OUT);
        memcpy(job->tokens, r.tokens, sizeof job->tokens);
        job->is_done = true;
    }
    return n;
}

/* To the end, or to the first failure. */
static int answer(struct engine *eng, struct job *jobs, size_t *n_collected, struct err *e)
{
    submit(eng, jobs);
    *n_collected = 0;
    bool worked = true;
    int rc = 0;
    while (rc == 0 && *n_collected < N_JOBS) {
        rc = engine_step(eng, &worked, e);
        if (rc == 0)
            *n_collected += collect(eng, jobs, false);
    }
    return rc;
}

static void remove_files(void)
{
    char command[128];
    snprintf(command, sizeof command, "rm -rf %s/*", folder);
    assert_int_equal(system(command), 0);
}

/* Closing an engine has waited for them. */
static bool has_files(void)
{
    char pattern[128];
    glob_t found;
    snprintf(pattern, sizeof pattern, "%s/*.kv", folder);
    const int rc = glob(pattern, 0, NULL, &found);
    globfree(&found);
    return rc == 0;
}

static void check_same(const struct job *want, const struct job *got, bool all)
{
    for (size_t i = 0; i < N_JOBS; i++) {
        assert_true(got[i].is_done || !all);
        if (got[i].is_done)
            assert_memory_equal(want[i].tokens, got[i].tokens, sizeof want[i].tokens);
    }
}

static void answer_well(struct job *jobs, struct engine_counters *counters)
{
    const struct engine_options o = options_of("cuda-emu");
    struct engine *eng = golden_open_engine(model, "ref", ACT_INT8, KV_BF16, &o);
    struct err e = {0};
    size_t n;
    first_failure = 0;
    if (answer(eng, jobs, &n, &e) != 0)
        fail_msg("%s", e.text);
    *counters = engine_counters(eng);
    engine_close(eng);
}

/* What fails in a step without a result shows at the next one. */
static void check_failed(struct engine *eng, struct job *jobs, size_t n, const struct err *e)
{
    struct err again = {0};
    bool worked;
    assert_non_null(strstr(e->text, "cuda-emu"));
    assert_non_null(strstr(e->text, "planted at call"));
    assert_int_equal(engine_step(eng, &worked, &again), ERR_IO);
    engine_cancel_all(eng);
    assert_int_equal(engine_step(eng, &worked, NULL), 0);
    assert_int_equal(n + collect(eng, jobs, true), N_JOBS);
}

/* False: all jobs had finished before the call, which was for what comes after. */
static bool fail_at(long at, const struct job *want)
{
    struct job jobs[N_JOBS];
    const struct engine_options o = options_of("cuda-emu");
    struct engine *eng = golden_open_engine(model, "ref", ACT_INT8, KV_BF16, &o);
    struct err e = {0};
    size_t n;
    n_calls = 0;
    first_failure = at;
    const int rc = answer(eng, jobs, &n, &e);
    if (rc != 0) {
        assert_int_equal(rc, ERR_IO);
        check_failed(eng, jobs, n, &e);
    }
    assert_int_equal(engine_active(eng), 0);
    engine_close(eng);
    check_same(want, jobs, rc == 0);
    return rc != 0;
}

static void a_failure_at_any_call_ends_the_step_and_leaves_nothing_bad(void **state)
{
    (void)state;
    struct job want[N_JOBS], got[N_JOBS];
    struct engine_counters counters;
    n_calls = 0;
    answer_well(want, &counters);
    const long n = n_calls;
    assert_true(n > 20 && has_files() && counters.cached_tokens > 0);
    assert_true(n_guessed > 0 && n_kept >= n_guessed && n_hidden == 0);
    size_t n_made = 0, n_failed = 0;
    for (long at = 1; at <= n; at += at < N_FIRST ? 1 : STRIDE) {
        remove_files();
        n_failed += fail_at(at, want);
        if (++n_made % 4 != 1)
            continue;
        answer_well(got, &counters); /* over what the failed one left */
        check_same(want, got, true);
    }
    assert_true(n_failed > 0 && 2 * n_failed > n_made);
    printf("    %ld calls of the device, %zu made to fail, %zu while jobs ran\n", n, n_made,
           n_failed);
}

/* ------------------------------------------------------------------ KV files */

static void files_of_the_cpu_and_of_the_device_do_not_mix(void **state)
{
    (void)state;
    struct job jobs[N_JOBS], again[N_JOBS];
    struct engine_counters counters;
    struct err e = {0};
    size_t n;
    remove_files();
    const struct engine_options cpu = options_of("cpu");
    struct engine *eng = golden_open_engine(model, "ref", ACT_INT8, KV_BF16, &cpu);
    assert_int_equal(answer(eng, jobs, &n, &e), 0);
    engine_close(eng);
    assert_true(has_files());
    answer_well(jobs, &counters);
    assert_int_equal(counters.disk.tokens_loaded, 0);
    assert_int_equal(counters.disk.files_bad, 0);
    answer_well(again, &counters);
    assert_true(counters.disk.tokens_loaded > 0);
    check_same(jobs, again, true);
}

/* ------------------------------------------------------------------ refusals */

static void refused(const struct engine_options *o, int code, const char *text)
{
    struct engine *eng = NULL;
    struct err e = {0};
    assert_int_equal(engine_open(model, o, &eng, &e), code);
    if (!strstr(e.text, text))
        fail_msg("\"%s\" does not say \"%s\"", e.text, text);
}

static void what_a_device_does_not_do_is_said(void **state)
{
    (void)state;
    struct engine_options o = options_of("gpu");
    refused(&o, ERR_CONFIG, "device=gpu is not one of cpu, cuda, auto");
    o = options_of("cuda-emu");
    o.kv_type = KV_INT8;
    refused(&o, ERR_CONFIG, "kv.type=int8");
    o = options_of("cuda-emu");
    o.kv_type = KV_BF16;
    o.kv_bytes = (size_t)1 << 38;
    refused(&o, ERR_NOMEM, "lower kv.mb");
    refused(&o, ERR_NOMEM, "leave out the heads");
    o.speculation = SPECULATION_OFF;
    refused(&o, ERR_NOMEM, "; take a smaller model");
    o = options_of("cuda-emu");
    o.kv_type = KV_BF16;
    o.device_ordinal = 3;
    refused(&o, ERR_CONFIG, "there is no device 3");
    is_absent = true;
    o = options_of("cuda");
    o.kv_type = KV_BF16;
    refused(&o, ERR_CONFIG, "there is no cuda here");
    is_absent = false;
}

/* The products' inputs are multiples of 32, which three heads of 16 are not. */
static void a_shape_that_a_device_does_not_take_is_refused_when_it_is_opened(void **state)
{
    (void)state;
    const struct random_shape shape = {"odd", 1, 64, 3, 1, 16, 64, 300, CONTEXT, 1e4, true};
    char path[64];
    struct err e = {0};
    snprintf(path, sizeof path, "%s/odd.gguf", folder);
    if (random_model_write(path, &shape, QUANT_F32, RANDOM_SEED, &e) != 0)
        fail_msg("%s", e.text);
    struct model *usual = model;
    if (model_open(path, &model, &e) != 0)
        fail_msg("%s", e.text);
    struct engine_options o = options_of("cuda-emu");
    o.kv_type = KV_BF16;
    o.speculation = SPECULATION_OFF; /* the heads are the usual model's */
    refused(&o, ERR_CONFIG, "take --device cpu");
    o = options_of("cpu");
    o.speculation = SPECULATION_OFF;
    struct engine *eng = golden_open_engine(model, "ref", ACT_INT8, KV_BF16, &o);
    engine_close(eng);
    model_close(model);
    model = usual;
}

static void auto_takes_the_cpu_where_there_is_no_device(void **state)
{
    (void)state;
    const struct engine_options o = options_of("auto");
    is_absent = true;
    struct engine *eng = golden_open_engine(model, "ref", ACT_INT8, KV_INT8, &o);
    assert_string_equal(engine_plan(eng).kernels, "ref");
    assert_null(engine_plan(eng).device);
    engine_close(eng);
    is_absent = false;
    eng = golden_open_engine(model, "ref", ACT_INT8, KV_BF16, &o);
    assert_string_equal(engine_plan(eng).kernels, "cuda"); /* the name it was asked for by */
    assert_string_equal(engine_plan(eng).device, "cuda-emu");
    engine_close(eng);
}

static int open_all(void **state)
{
    (void)state;
    model = golden_open_tiny("tiny-llama-q8_0.gguf");
    const struct heads_shape shape = {.n_heads = 2, .n_blocks = 1, .n_draft = 40, .scale = 1};
    heads = heads_make(model, &shape);
    return mkdtemp(folder) ? 0 : -1;
}

static int close_all(void **state)
{
    (void)state;
    remove_files();
    rmdir(folder);
    heads_close(heads);
    model_close(model);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_failure_at_any_call_ends_the_step_and_leaves_nothing_bad),
        cmocka_unit_test(files_of_the_cpu_and_of_the_device_do_not_mix),
        cmocka_unit_test(what_a_device_does_not_do_is_said),
        cmocka_unit_test(a_shape_that_a_device_does_not_take_is_refused_when_it_is_opened),
        cmocka_unit_test(auto_takes_the_cpu_where_there_is_no_device),
    };
    return cmocka_run_group_tests_name("a device that fails", tests, open_all, close_all);
}
