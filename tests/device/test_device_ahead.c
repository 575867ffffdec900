/*
 * One step ahead (engine_ahead.h): jobs come, stop, are cancelled and preempted as they like,
 * and each answer is that of the job alone on the same device without it. Between the engine
 * and the emulated device stands a table that sees in which order steps are given and read, and
 * that can get tokens wrong, to show that the answers would tell. SHEAF_DEVICE_FULL: more
 * nights.
 */
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
#include "model/random_model.h"

enum { N_JOBS = 12, N_OUT = 40, PROMPT_MAX = 100, CONTEXT = 160, BATCH = 6, N_VOCAB = 300 };

#if defined(__SANITIZE_ADDRESS__)
enum { N_NIGHTS = 1 };
#else
enum { N_NIGHTS = 4 };
#endif

/* ------------------------------------------------------------------ the table between */

static const struct device_backend *real;
static size_t n_read_behind; /* results that were read while a later step had been given */
static size_t n_behind;      /* steps whose tokens the step before gives */
static enum { NO_FLAW, FIRST_ROWS_TOKEN, LAST_RESULTS } flaw;

static int step(struct device *d, const struct device_step *s, struct err *e)
{
    int32_t tokens[256];
    assert_true(s->n_rows <= 256);
    bool is_behind = false;
    for (size_t i = 0; i < s->n_rows; i++) {
        tokens[i] = s->tokens[i];
        is_behind = is_behind || tokens[i] < 0;
        if (tokens[i] < 0 && flaw == FIRST_ROWS_TOKEN)
            tokens[i] = device_best_of(0);
    }
    n_behind += is_behind;
    struct device_step given = *s;
    given.tokens = tokens;
    return real->step(d, &given, e);
}

static int read_best(struct device *d, size_t n_later, int32_t *out, struct err *e)
{
    n_read_behind += n_later;
    return real->read_best(d, flaw == LAST_RESULTS ? 0 : n_later, out, e);
}

/* By way of the linker (--wrap). */
int __real_device_load(const char *name, const struct device_backend **out, struct err *e);
int __wrap_device_load(const char *name, const struct device_backend **out, struct err *e);

int __wrap_device_load(const char *name, const struct device_backend **out, struct err *e)
{
    static struct device_backend table;
    TRY(__real_device_load(name, &real, e));
    table = *real;
    table.step = step;
    table.read_best = read_best;
    *out = &table;
    return 0;
}

/* ------------------------------------------------------------------ jobs */

static struct model *model;

struct job {
    int32_t prompt[PROMPT_MAX];
    size_t n_prompt, max_tokens, min_tokens;
    int32_t stop_token; /* or TOKEN_NONE */
    bool is_sampled;

    enum finish_reason reason;
    int32_t tokens[N_OUT];
    size_t n_tokens, n_steps;
    bool is_done;
};

static struct engine *open_engine(bool is_ahead, size_t batch, size_t n_pages)
{
    const struct kvpool_shape shape = kvpool_shape_of(&model->config, KV_BF16);
    const struct engine_options o = {.n_threads = 1,
                                     .batch = batch,
                                     .step_tokens = 64,
                                     .chunk_tokens = 48,
                                     .context = CONTEXT,
                                     .kv_bytes = n_pages * kvpool_page_bytes(&shape),
                                     .prefix_cache = true,
                                     .prefix_tokens_min = 1,
                                     .evicts_by_demand = true,
                                     .shared_attention = true,
                                     .device = "cuda-emu",
                                     .device_exact = true,
                                     .device_graphs = true,
                                     .device_ahead = is_ahead};
    return golden_open_engine(model, "ref", ACT_INT8, KV_BF16, &o);
}

enum { PAGES_PLENTY = 64, PAGES_FEW = 6 };

static void submit(struct engine *eng, struct job *job)
{
    struct seq_request req = {.prompt = job->prompt,
                              .n_prompt = job->n_prompt,
                              .max_tokens = job->max_tokens,
                              .min_tokens = job->min_tokens,
                              .ignore_eos = true,
                              .stop_tokens = &job->stop_token,
                              .n_stop_tokens = job->stop_token != TOKEN_NONE,
                              .sample = sample_params_greedy(),
                              .user = job};
    if (job->is_sampled)
        req.sample.temperature = 0.8f;
    struct err e = {0};
    if (engine_submit(eng, &req, &e) != 0)
        fail_msg("%s", e.text);
}

static size_t collect(struct engine *eng)
{
    struct seq_result r;
    size_t n = 0;
    for (; engine_collect(eng, &r); n++) {
        struct job *job = r.user;
        assert_false(job->is_done);
        assert_true(r.n_tokens <= N_OUT);
        job->reason = r.reason;
        job->n_tokens = r.n_tokens;
        job->n_steps = r.n_steps;
        memcpy(job->tokens, r.tokens, r.n_tokens * sizeof r.tokens[0]);
        job->is_done = true;
    }
    return n;
}

static bool make_step(struct engine *eng)
{
    bool worked;
    struct err e = {0};
    if (engine_step(eng, &worked, &e) != 0)
        fail_msg("%s", e.text);
    return worked;
}

static void answer_all(struct engine *eng, struct job *jobs, size_t n)
{
    for (size_t i = 0; i < n; i++)
        submit(eng, &jobs[i]);
    for (size_t n_done = 0; n_done < n; n_done += collect(eng))
        assert_true(make_step(eng));
}

/* The answer ends with that token where it comes first. */
static void stop_halfway(struct job *job)
{
    size_t n = 0;
    job->stop_token = job->tokens[job->n_tokens / 2];
    while (job->tokens[n++] != job->stop_token)
        ;
    job->n_tokens = n;
    job->reason = FINISH_STOP;
}

enum kind_of_jobs {
    ALL_GREEDY,
    MIXED /* short, so that many start where there are few pages; some want their logits */
};

/* Half of a document or all their own; a third of them stop at a token of their answers. */
static void make_jobs(uint64_t seed, enum kind_of_jobs kind, struct job *jobs)
{
    for (size_t i = 0; i < N_JOBS; i++) {
        struct job *job = &jobs[i];
        const size_t longest = kind == MIXED ? KV_PAGE_TOKENS : PROMPT_MAX;
        *job = (struct job){.n_prompt = 1 + rng_bits(seed, i, 1000) % longest,
                            .max_tokens = N_OUT - rng_bits(seed, i, 1001) % (N_OUT / 2),
                            .min_tokens = kind == MIXED && i == 4 ? 3 : 0,
                            .is_sampled = kind == MIXED && i == 5,
                            .stop_token = TOKEN_NONE};
        for (size_t k = 0; k < job->n_prompt; k++)
            job->prompt[k] = (int32_t)(rng_bits(seed, i % 2 && k < 20 ? 99 : i, k) % N_VOCAB);
    }
    struct engine *alone = open_engine(false, 1, PAGES_PLENTY);
    answer_all(alone, jobs, N_JOBS);
    engine_close(alone);
    for (size_t i = 0; i < N_JOBS; i += 3)
        stop_halfway(&jobs[i]);
}

static size_t count_stopped(const struct job *jobs)
{
    size_t n = 0;
    for (size_t i = 0; i < N_JOBS; i++)
        n += jobs[i].reason == FINISH_STOP;
    return n;
}

static bool is_same(const struct job *want, const struct job *got)
{
    return want->reason == got->reason && want->n_tokens == got->n_tokens &&
           memcmp(want->tokens, got->tokens, want->n_tokens * sizeof want->tokens[0]) == 0;
}

static size_t count_different(const struct job *want, const struct job *got)
{
    size_t n = 0;
    for (size_t i = 0; i < N_JOBS; i++)
        n += !is_same(&want[i], &got[i]);
    return n;
}

/* ------------------------------------------------------------------ one after another */

static void take_copies(const struct job *jobs, struct job *out)
{
    memcpy(out, jobs, N_JOBS * sizeof jobs[0]);
    for (size_t i = 0; i < N_JOBS; i++)
        out[i].is_done = false;
}

static struct engine_counters answer_together(const struct job *jobs, bool is_ahead,
                                              size_t n_pages, struct job *out)
{
    struct engine *eng = open_engine(is_ahead, N_JOBS, n_pages);
    take_copies(jobs, out);
    n_behind = n_read_behind = 0;
    answer_all(eng, out, N_JOBS);
    const struct engine_counters c = engine_counters(eng);
    engine_close(eng);
    return c;
}

static void answers_and_counts_are_those_of_steps_one_after_another(void **state)
{
    (void)state;
    struct job jobs[N_JOBS], apart[N_JOBS], ahead[N_JOBS];
    make_jobs(1, ALL_GREEDY, jobs);
    const struct engine_counters want = answer_together(jobs, false, PAGES_PLENTY, apart);
    assert_int_equal(want.steps_ahead + want.rows_wasted + n_behind, 0);
    const struct engine_counters got = answer_together(jobs, true, PAGES_PLENTY, ahead);
    assert_int_equal(count_different(jobs, ahead), 0);
    for (size_t i = 0; i < N_JOBS; i++)
        assert_int_equal(ahead[i].n_steps, apart[i].n_steps);
    assert_int_equal(got.steps, want.steps);
    assert_int_equal(got.rows, want.rows);
    assert_int_equal(got.generated_tokens, want.generated_tokens);
    assert_int_equal(got.computed_tokens, want.computed_tokens);
    /* A row too many at most for each that stopped by what it said; it happens, and often. */
    assert_true(count_stopped(ahead) >= 3);
    assert_true(got.rows_wasted > 0 && got.rows_wasted <= count_stopped(ahead));
    assert_true(2 * got.steps_ahead > got.steps);
    printf("    %zu of %zu steps were begun ahead, %zu rows for nothing\n",
           (size_t)got.steps_ahead, (size_t)got.steps, (size_t)got.rows_wasted);
}

static void a_step_is_given_before_the_one_before_is_read(void **state)
{
    (void)state;
    struct job jobs[N_JOBS], ahead[N_JOBS];
    make_jobs(2, ALL_GREEDY, jobs);
    const struct engine_counters c = answer_together(jobs, true, PAGES_PLENTY, ahead);
    assert_int_equal(n_behind, c.steps_ahead);
    assert_int_equal(n_read_behind, c.steps_ahead);
}

static void no_row_is_wasted_where_all_end_by_length(void **state)
{
    (void)state;
    struct job jobs[N_JOBS], ahead[N_JOBS];
    make_jobs(3, ALL_GREEDY, jobs);
    for (size_t i = 0; i < N_JOBS; i++)
        jobs[i].stop_token = TOKEN_NONE;
    const struct engine_counters c = answer_together(jobs, true, PAGES_PLENTY, ahead);
    assert_true(c.steps_ahead > 0);
    assert_int_equal(c.rows_wasted, 0);
}

static void a_device_that_gets_tokens_wrong_shows(void **state)
{
    (void)state;
    struct job jobs[N_JOBS], ahead[N_JOBS];
    make_jobs(4, ALL_GREEDY, jobs);
    flaw = FIRST_ROWS_TOKEN;
    answer_together(jobs, true, PAGES_PLENTY, ahead);
    assert_true(count_different(jobs, ahead) > 0);
    flaw = LAST_RESULTS;
    answer_together(jobs, true, PAGES_PLENTY, ahead);
    assert_true(count_different(jobs, ahead) > 0);
    flaw = NO_FLAW;
    answer_together(jobs, true, PAGES_PLENTY, ahead);
    assert_int_equal(count_different(jobs, ahead), 0);
}

static void sampled_rows_are_read_before_the_next_step(void **state)
{
    (void)state;
    struct job jobs[N_JOBS], ahead[N_JOBS];
    make_jobs(5, ALL_GREEDY, jobs);
    for (size_t i = 0; i < N_JOBS; i++)
        jobs[i].is_sampled = true;
    const struct engine_counters c = answer_together(jobs, true, PAGES_PLENTY, ahead);
    assert_int_equal(c.steps_ahead + n_behind, 0);
}

/* ------------------------------------------------------------------ what comes in between */

/* Steps until one has been begun ahead. */
static void get_ahead(struct engine *eng)
{
    const uint64_t before = engine_counters(eng).steps_ahead;
    while (engine_counters(eng).steps_ahead == before)
        assert_true(make_step(eng));
}

static struct job long_job(uint64_t seed)
{
    struct job job = {.n_prompt = 40, .max_tokens = N_OUT, .stop_token = TOKEN_NONE};
    for (size_t k = 0; k < job.n_prompt; k++)
        job.prompt[k] = (int32_t)(rng_bits(seed, 7, k) % N_VOCAB);
    return job;
}

static void a_new_prompt_waits_for_one_step(void **state)
{
    (void)state;
    struct job first = long_job(1), second = long_job(2);
    struct engine *eng = open_engine(true, BATCH, PAGES_PLENTY);
    submit(eng, &first);
    get_ahead(eng);
    submit(eng, &second);
    const uint64_t before = engine_counters(eng).computed_tokens;
    make_step(eng); /* that one was on its way */
    assert_int_equal(engine_counters(eng).computed_tokens, before);
    make_step(eng);
    assert_int_equal(engine_counters(eng).computed_tokens, before + second.n_prompt);
    for (size_t n = 0; n < 2; n += collect(eng))
        assert_true(make_step(eng));
    engine_close(eng);
}

static void what_is_cancelled_meanwhile_ends_at_the_next_step(void **state)
{
    (void)state;
    struct job jobs[2] = {long_job(1), long_job(2)}, alone = long_job(2);
    struct engine *eng = open_engine(true, BATCH, PAGES_PLENTY);
    answer_all(eng, &alone, 1);
    submit(eng, &jobs[0]);
    submit(eng, &jobs[1]);
    get_ahead(eng);
    assert_true(engine_cancel(eng, &jobs[0]));
    make_step(eng);
    assert_int_equal(collect(eng), 1);
    assert_int_equal(jobs[0].reason, FINISH_CANCELLED);
    assert_int_equal(engine_counters(eng).rows_wasted, 1);
    while (collect(eng) == 0)
        assert_true(make_step(eng));
    assert_true(is_same(&alone, &jobs[1]));
    engine_close(eng);
}

/* Nobody waits for a step that nobody wants, and what comes next finds nothing of it. */
static void when_all_are_cancelled_the_step_ahead_is_forgotten(void **state)
{
    (void)state;
    struct job job = long_job(1), again = long_job(1), alone = long_job(1);
    float *logits = malloc(again.n_prompt * N_VOCAB * sizeof *logits);
    struct engine *eng = open_engine(true, BATCH, PAGES_PLENTY);
    struct err e = {0};
    answer_all(eng, &alone, 1);
    submit(eng, &job);
    get_ahead(eng);
    engine_cancel_all(eng);
    assert_false(make_step(eng));
    assert_int_equal(collect(eng), 1);
    assert_int_equal(engine_logits(eng, again.prompt, again.n_prompt, logits, &e), 0);
    assert_int_equal(golden_argmax(logits + (again.n_prompt - 1) * N_VOCAB, N_VOCAB),
                     alone.tokens[0]);
    answer_all(eng, &again, 1);
    assert_true(is_same(&alone, &again));
    submit(eng, &job);
    get_ahead(eng);
    engine_close(eng); /* with one on its way */
    free(logits);
}

/* ------------------------------------------------------------------ nights */

/* Jobs come when there is room, or later; some are cancelled; a few want their logits. */
static struct engine_counters live_through(uint64_t seed, const struct job *jobs,
                                           size_t n_pages, struct job *out)
{
    struct engine *eng = open_engine(true, BATCH, n_pages);
    take_copies(jobs, out);
    size_t n_submitted = 0, n_done = 0;
    for (uint64_t turn = 0; n_done < N_JOBS; turn++) {
        const uint64_t dice = rng_bits(seed, 500, turn);
        if (n_submitted < N_JOBS && (dice % 2 == 0 || engine_active(eng) == 0))
            submit(eng, &out[n_submitted++]);
        if (n_submitted > 0 && dice / 8 % 64 == 0)
            engine_cancel(eng, &out[dice / 512 % n_submitted]);
        make_step(eng);
        n_done += collect(eng);
    }
    const struct engine_counters c = engine_counters(eng);
    engine_close(eng);
    return c;
}

static void check_night(uint64_t seed, size_t n_pages, struct engine_counters *sum)
{
    struct job jobs[N_JOBS], got[N_JOBS];
    make_jobs(seed, MIXED, jobs);
    const struct engine_counters c = live_through(seed, jobs, n_pages, got);
    size_t n_cancelled = 0;
    for (size_t i = 0; i < N_JOBS; i++) {
        n_cancelled += got[i].reason == FINISH_CANCELLED;
        if (got[i].reason != FINISH_CANCELLED && !is_same(&jobs[i], &got[i]))
            fail_msg("night %zu, job %zu differs", (size_t)seed, i);
    }
    assert_true(c.rows_wasted <= count_stopped(got) + n_cancelled);
    sum->steps_ahead += c.steps_ahead;
    sum->rows_wasted += c.rows_wasted;
    sum->preemptions += c.preemptions;
    sum->steps += c.steps;
}

static void no_night_changes_an_answer(void **state)
{
    (void)state;
    struct engine_counters sum = {0};
    const uint64_t n_nights = getenv("SHEAF_DEVICE_FULL") ? 40 : N_NIGHTS;
    for (uint64_t seed = 10; seed < 10 + n_nights; seed++)
        check_night(seed, seed % 2 ? PAGES_FEW : PAGES_PLENTY, &sum);
    assert_true(sum.preemptions > 0 || n_nights == 1);
    assert_true(5 * sum.steps_ahead > sum.steps);
    printf("    %zu of %zu steps were begun ahead, %zu rows for nothing, %zu preemptions\n",
           (size_t)sum.steps_ahead, (size_t)sum.steps, (size_t)sum.rows_wasted,
           (size_t)sum.preemptions);
}

static int open_all(void **state)
{
    (void)state;
    const struct random_shape shape = {"small", 1,       64,      4,   2,   16,
                                       64,      N_VOCAB, CONTEXT, 1e4, true};
    char path[] = "/tmp/sheaf-ahead-XXXXXX";
    struct err e = {0};
    const int fd = mkstemp(path);
    if (fd < 0 || close(fd) != 0 ||
        random_model_write(path, &shape, QUANT_F32, RANDOM_SEED, &e) != 0 ||
        model_open(path, &model, &e) != 0)
        return -1;
    return unlink(path);
}

static int close_all(void **state)
{
    (void)state;
    model_close(model);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(answers_and_counts_are_those_of_steps_one_after_another),
        cmocka_unit_test(a_step_is_given_before_the_one_before_is_read),
        cmocka_unit_test(no_row_is_wasted_where_all_end_by_length),
        cmocka_unit_test(a_device_that_gets_tokens_wrong_shows),
        cmocka_unit_test(sampled_rows_are_read_before_the_next_step),
        cmocka_unit_test(a_new_prompt_waits_for_one_step),
        cmocka_unit_test(what_is_cancelled_meanwhile_ends_at_the_next_step),
        cmocka_unit_test(when_all_are_cancelled_the_step_ahead_is_forgotten),
        cmocka_unit_test(no_night_changes_an_answer),
    };
    return cmocka_run_group_tests_name("a device's step ahead", tests, open_all, close_all);
}
