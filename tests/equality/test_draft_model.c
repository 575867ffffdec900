/*
 * A draft model: the target for its own draft model is always right, at any temperature,
 * whatever its sampling; another one changes no answer; few pages do no harm; a document that
 * jobs share is computed once. The twin: keys left of refused drafts would be seen.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/limits.h"
#include "base/rng.h"
#include "engine/draft_model_int.h"
#include "engine/engine_int.h"
#include "golden.h"
#include "model_edit.h"

enum {
    PAGE = KV_PAGE_TOKENS,
    CONTEXT = 256,
    JOBS = 6,
    OUT = 64,
    DEPTH = DRAFT_MODEL_DEPTH_MAX
};

struct job {
    int32_t prompt[CONTEXT];
    size_t n_prompt;
    struct sample_params sample;
    size_t min_tokens;
    bool ignore_eos;

    int32_t tokens[OUT];
    size_t n_tokens, n_steps, n_drafted, n_accepted, n_preempted;
};

/* The first tokens of all prompts are the document's. */
static void make_jobs(struct job *jobs, size_t n_document, size_t n_own)
{
    static const float temperatures[] = {0, 0.7f, 1.2f};
    for (size_t k = 0; k < JOBS; k++) {
        struct job *job = &jobs[k];
        *job = (struct job){.n_prompt = n_document + n_own + k,
                            .sample = sample_params_greedy(),
                            .ignore_eos = k % 2 == 0,
                            .min_tokens = k == 5 ? 10 : 0};
        for (size_t i = 0; i < job->n_prompt; i++)
            job->prompt[i] = (int32_t)(rng_bits(3, i < n_document ? 100 : k, i) % 300);
        job->sample.temperature = temperatures[k % 3];
        job->sample.seed = 40 + k;
        job->sample.stream = k;
        if (k >= 3) {
            job->sample.repetition_penalty = 1.3f;
            job->sample.presence_penalty = 0.4f;
            job->sample.frequency_penalty = 0.2f;
            job->sample.top_p = 0.95f;
            job->sample.top_k = 60;
        }
    }
}

static size_t page_bytes(const struct model *m)
{
    const struct kvpool_shape shape = {.n_layers = m->config.n_layers,
                                       .n_kv_heads = m->config.n_kv_heads,
                                       .head_dim = m->config.head_dim,
                                       .type = KV_BF16};
    return kvpool_page_bytes(&shape);
}

static struct engine_options options_for(const struct model *m, const struct model *drafting)
{
    return (struct engine_options){.n_threads = 1,
                                   .batch = JOBS,
                                   .step_tokens = 512,
                                   .chunk_tokens = 256,
                                   .context = CONTEXT,
                                   .kv_bytes = JOBS * (CONTEXT / PAGE) * page_bytes(m),
                                   .prefix_cache = true,
                                   .prefix_tokens_min = 1,
                                   .evicts_by_demand = true,
                                   .speculation =
                                       drafting ? SPECULATION_MODEL : SPECULATION_OFF,
                                   .draft_model = drafting,
                                   .draft_always = true};
}

static struct engine *open_engine(const struct model *m, const struct engine_options *o)
{
    const char *isas[3];
    const size_t n = golden_isas(isas);
    return golden_open_engine(m, isas[n - 1], ACT_INT8, KV_BF16, o);
}

static void submit(struct engine *eng, struct job *job)
{
    const struct seq_request req = {.prompt = job->prompt,
                                    .n_prompt = job->n_prompt,
                                    .max_tokens = OUT,
                                    .min_tokens = job->min_tokens,
                                    .ignore_eos = job->ignore_eos,
                                    .sample = job->sample,
                                    .user = job};
    struct err e = {0};
    if (engine_submit(eng, &req, &e) != 0)
        fail_msg("%s", e.text);
}

static void step(struct engine *eng)
{
    bool worked;
    struct err e = {0};
    if (engine_step(eng, &worked, &e) != 0)
        fail_msg("%s", e.text);
    assert_true(worked);
    if (eng->draft_model)
        assert_true(prefix_check(eng->draft_model->prefixes));
}

static void keep(const struct seq_result *r)
{
    struct job *job = r->user;
    memcpy(job->tokens, r->tokens, r->n_tokens * sizeof r->tokens[0]);
    job->n_tokens = r->n_tokens;
    job->n_steps = r->n_steps;
    job->n_drafted = r->n_drafted;
    job->n_accepted = r->n_accepted;
    job->n_preempted = r->n_preempted;
}

static void collect_all(struct engine *eng)
{
    struct seq_result r;
    while (engine_active(eng) > 0)
        if (engine_collect(eng, &r))
            keep(&r);
        else
            step(eng);
}

static void answer(struct engine *eng, struct job *jobs, size_t n)
{
    for (size_t i = 0; i < n; i++)
        submit(eng, &jobs[i]);
    collect_all(eng);
}

static void answer_plainly(const struct model *m, struct job *jobs)
{
    const struct engine_options o = options_for(m, NULL);
    struct engine *eng = open_engine(m, &o);
    answer(eng, jobs, JOBS);
    engine_close(eng);
}

static void check_answers(const struct job *want, const struct job *got)
{
    for (size_t k = 0; k < JOBS; k++) {
        assert_int_equal(got[k].n_tokens, want[k].n_tokens);
        assert_memory_equal(got[k].tokens, want[k].tokens,
                            want[k].n_tokens * sizeof want[k].tokens[0]);
    }
}

/* All of them plainly and then with drafts; false when nothing was drafted. */
static void compare(const struct model *m, const struct engine_options *o, size_t n_document,
                    size_t n_own, struct job got[JOBS])
{
    struct job want[JOBS];
    make_jobs(want, n_document, n_own);
    make_jobs(got, n_document, n_own);
    answer_plainly(m, want);
    struct engine *eng = open_engine(m, o);
    answer(eng, got, JOBS);
    check_answers(want, got);
    engine_close(eng);
}

static size_t sum_drafted(const struct job jobs[JOBS])
{
    size_t n = 0;
    for (size_t k = 0; k < JOBS; k++)
        n += jobs[k].n_drafted;
    return n;
}

static size_t sum_accepted(const struct job jobs[JOBS])
{
    size_t n = 0;
    for (size_t k = 0; k < JOBS; k++)
        n += jobs[k].n_accepted;
    return n;
}

/* ------------------------------------------------------------------ always right */

/* The prompt's step yields one token, every other one a token more than the depth. */
static void a_model_that_drafts_for_itself_gains_its_depth_in_every_step(void **state)
{
    (void)state;
    struct model *m = golden_open_tiny("tiny-llama-q4_1.gguf");
    struct job jobs[JOBS];
    make_jobs(jobs, 0, 30);
    for (size_t k = 0; k < JOBS; k++) {
        const struct engine_options o = options_for(m, m);
        struct engine *eng = open_engine(m, &o);
        jobs[k].ignore_eos = true;
        answer(eng, &jobs[k], 1);
        assert_int_equal(jobs[k].n_tokens, OUT);
        assert_int_equal(jobs[k].n_steps, 1 + (OUT - 1 + DEPTH) / (DEPTH + 1));
        assert_int_equal(jobs[k].n_accepted, jobs[k].n_drafted);
        assert_int_equal(jobs[k].n_accepted + jobs[k].n_steps, OUT);
        engine_close(eng);
    }
    model_close(m);
}

/* Together, in chunks, out of the cache, and some of them ending at once. */
static void it_is_right_in_company_too(void **state)
{
    (void)state;
    static const char *const names[] = {"tiny-llama-mix.gguf", "tiny-qwen2-q8_0.gguf",
                                        "tiny-qwen3-q8_0.gguf"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        struct model *m = golden_open_tiny(names[i]);
        struct engine_options o = options_for(m, m);
        struct job jobs[JOBS];
        o.chunk_tokens = 20;
        o.n_threads = 2;
        o.prefix_cache = o.shared_attention = i != 1;
        compare(m, &o, 70, 50, jobs);
        for (size_t k = 0; k < JOBS; k++)
            if (jobs[k].n_tokens < OUT)
                assert_true(jobs[k].n_accepted <= jobs[k].n_drafted);
            else
                assert_int_equal(jobs[k].n_accepted, jobs[k].n_drafted);
        assert_true(sum_accepted(jobs) > JOBS * OUT / 2);
        model_close(m);
    }
}

/* ------------------------------------------------------------------ another model */

static void another_model_changes_no_answer(void **state)
{
    (void)state;
    static const char *const pairs[][2] = {
        {"tiny-llama-q4_1.gguf", "tiny-llama-q8_0.gguf"},
        {"tiny-llama-q8_0.gguf", "tiny-qwen3-f32.gguf"},
        {"tiny-qwen2-q8_0.gguf", "tiny-qwen2-f32.gguf"},
    };
    size_t n_drafted = 0, n_accepted = 0;
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++) {
        struct model *m = golden_open_tiny(pairs[i][0]);
        struct model *drafting = golden_open_tiny(pairs[i][1]);
        struct job jobs[JOBS];
        struct engine_options o = options_for(m, drafting);
        compare(m, &o, 40, 20, jobs);
        o.speculation |= SPECULATION_LOOKUP;
        o.batch = 3;
        compare(m, &o, 40, 20, jobs);
        n_drafted += sum_drafted(jobs);
        n_accepted += sum_accepted(jobs);
        model_close(drafting);
        model_close(m);
    }
    assert_true(n_accepted > 0 && n_accepted < n_drafted);
}

static void a_preempted_sequence_is_drafted_for_again(void **state)
{
    (void)state;
    struct model *m = golden_open_tiny("tiny-llama-q4_1.gguf");
    struct engine_options o = options_for(m, m);
    struct job jobs[JOBS];
    size_t n_preempted = 0;
    o.kv_bytes = 8 * page_bytes(m);
    for (int cached = 0; cached < 2; cached++) {
        o.prefix_cache = cached;
        compare(m, &o, 0, 20, jobs);
        for (size_t k = 0; k < JOBS; k++) {
            n_preempted += jobs[k].n_preempted;
            if (jobs[k].n_tokens == OUT)
                assert_int_equal(jobs[k].n_accepted, jobs[k].n_drafted);
        }
        assert_true(sum_accepted(jobs) > 0);
    }
    assert_true(n_preempted > 0);
    model_close(m);
}

/* ------------------------------------------------------------------ pages */

static void few_pages_do_no_harm(void **state)
{
    (void)state;
    struct model *m = golden_open_tiny("tiny-llama-q4_1.gguf");
    struct engine_options o = options_for(m, m);
    struct job jobs[JOBS];
    size_t before = 0;
    for (size_t n_pages = 1; n_pages <= 16; n_pages += 3) {
        o.draft_kv_bytes = n_pages * page_bytes(m);
        compare(m, &o, 0, 50, jobs);
        const size_t n = sum_drafted(jobs);
        if (n_pages == 1) /* no prompt fits */
            assert_int_equal(n, 0);
        else if (n_pages >= 4)
            assert_true(n > 0);
        before = n;
    }
    assert_true(before > 0);
    model_close(m);
}

/* Had one computed it for itself, it would have given its pages back for the other's. */
static void a_document_is_computed_once_for_all_that_share_it(void **state)
{
    (void)state;
    struct model *m = golden_open_tiny("tiny-llama-q4_1.gguf");
    struct engine_options o = options_for(m, m);
    struct job jobs[JOBS];
    make_jobs(jobs, 3 * PAGE, 5);
    o.chunk_tokens = 40; /* when the others begin, the first is not done with it */
    struct engine *eng = open_engine(m, &o);
    for (size_t k = 0; k < JOBS; k++) {
        jobs[k].ignore_eos = true;
        submit(eng, &jobs[k]);
    }
    while (eng->draft_model->n_held < JOBS)
        step(eng);
    const struct prefix_counters c = prefix_counters(eng->draft_model->prefixes);
    assert_int_equal(c.pages_adopted, 0);
    for (size_t k = 1; k < JOBS; k++)
        for (size_t page = 0; page < 3; page++)
            assert_int_equal(eng->draft_model->held[k]->own->pages[page],
                             eng->draft_model->held[0]->own->pages[page]);
    engine_close(eng);
    model_close(m);
}

/* On a page's border and off it. */
static void a_shorter_context_is_drafted_for_to_its_end(void **state)
{
    (void)state;
    struct model *m = golden_open_tiny("tiny-llama-q8_0.gguf");
    for (size_t context = 94; context <= 97; context++) {
        const struct model_edit edit = {LLAMA, "llama.context_length", EDIT_U32,
                                        (double)context, NULL};
        struct gguf_bytes file = model_edit_apply(&edit);
        struct model *drafting = NULL;
        struct err e = {0};
        assert_int_equal(model_edit_open(&file, false, &drafting, &e), 0);
        free(file.data);
        const struct engine_options o = options_for(m, drafting);
        struct job jobs[JOBS];
        compare(m, &o, 0, 50, jobs);
        assert_int_equal(sum_accepted(jobs), sum_drafted(jobs));
        assert_true(sum_drafted(jobs) > JOBS * 20);
        compare(m, &o, 0, 90, jobs); /* some prompts just fit, some do not */
        model_close(drafting);
    }
    model_close(m);
}

/* ------------------------------------------------------------------ the twin */

/* Tokens that were drawn stand where they were guessed, as if the guesses had been right. */
static void overlook_refusals(const struct seq *seq)
{
    struct draft_twin *twin = seq->twin;
    for (size_t i = twin->own->n_tokens; i < seq->n_tokens && i < twin->own->n_computed; i++)
        twin->own->tokens[i] = seq->tokens[i];
}

/*
 * Drafts are drawn with another seed and refused; some steps without drafts follow, so that
 * the keys left of them would lie behind the sequence's end no longer; then drafts are drawn
 * with its own seed, and are right if all keys are. -> how many were not
 */
static size_t count_wrong(const struct model *m, bool overlooks)
{
    enum { TURN = 5 };
    const struct engine_options o = options_for(m, m);
    struct engine *eng = open_engine(m, &o);
    struct spec *spec = eng->spec;
    struct job job;
    struct job jobs[JOBS];
    struct seq_result r;
    size_t n_wrong = 0, n_refused = 0;
    make_jobs(jobs, 0, 30);
    job = jobs[2];
    submit(eng, &job);
    step(eng); /* the prompt's */
    for (size_t turn = 0; !engine_collect(eng, &r); turn = (turn + 1) % TURN) {
        const struct seq *seq = sched_at(eng->sched, 0);
        const struct draft_counters before = spec_counters(spec);
        seq->twin->own->req.sample.seed = job.sample.seed + (turn == 0);
        eng->spec = turn == 0 || turn == TURN - 1 ? spec : NULL;
        if (overlooks && turn == TURN - 1)
            overlook_refusals(seq);
        const bool is_last = seq->capacity - seq->n_tokens <= DEPTH + 1;
        step(eng);
        const struct draft_counters after = spec_counters(spec);
        const size_t n = (size_t)(after.rejected - before.rejected);
        n_refused += turn == 0 ? n : 0;
        n_wrong += turn == TURN - 1 && !is_last ? n : 0;
    }
    assert_true(n_refused > 10);
    eng->spec = spec;
    engine_close(eng);
    return n_wrong;
}

static void keys_left_of_refused_drafts_are_computed_over(void **state)
{
    (void)state;
    struct model *m = golden_open_tiny("tiny-llama-q4_1.gguf");
    assert_int_equal(count_wrong(m, false), 0);
    assert_true(count_wrong(m, true) > 5);
    model_close(m);
}

/* ------------------------------------------------------------------ what is refused */

static void a_foreign_vocabulary_is_refused(void **state)
{
    (void)state;
    struct model *m = golden_open_tiny("tiny-llama-q4_1.gguf");
    char *path = golden_path("golden/tokenizers/ggml-vocab-gpt-2.gguf");
    struct model *foreign = NULL;
    struct engine *eng = NULL;
    struct err e = {0};
    assert_int_equal(model_open_vocab(path, &foreign, &e), 0);
    const struct engine_options o = options_for(m, foreign);
    assert_int_equal(engine_open(m, &o, &eng, &e), ERR_CONFIG);
    assert_non_null(strstr(e.text, "the draft model has another vocabulary: token "));
    assert_null(eng);
    free(path);
    model_close(foreign);
    model_close(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_model_that_drafts_for_itself_gains_its_depth_in_every_step),
        cmocka_unit_test(it_is_right_in_company_too),
        cmocka_unit_test(another_model_changes_no_answer),
        cmocka_unit_test(a_preempted_sequence_is_drafted_for_again),
        cmocka_unit_test(few_pages_do_no_harm),
        cmocka_unit_test(a_document_is_computed_once_for_all_that_share_it),
        cmocka_unit_test(a_shorter_context_is_drafted_for_to_its_end),
        cmocka_unit_test(keys_left_of_refused_drafts_are_computed_over),
        cmocka_unit_test(a_foreign_vocabulary_is_refused),
    };
    return cmocka_run_group_tests_name("draft_model", tests, NULL, NULL);
}
