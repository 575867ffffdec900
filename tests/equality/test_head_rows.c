/*
 * Heads read the right rows. Verification hides every mistake in drafting: a sequence that is
 * drafted for from another one's hidden row answers the same, only slower. So here the rows
 * themselves are compared, byte for byte, with those of an engine that answers one job at a
 * time without speculation; and how much is accepted, by heads that were fitted to just these
 * answers, must be the same whatever runs beside a sequence.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/limits.h"
#include "base/rng.h"
#include "base/size.h"
#include "engine/engine_int.h"
#include "engine/head_drafts.h"
#include "golden.h"
#include "heads_make.h"

enum { CONTEXT = 160, JOBS = 12, ANSWER = 40, HEADS = 2, BATCH_MAX = 8 };

struct job {
    int32_t prompt[CONTEXT];
    struct seq_request req;
    /* The answer, and the hidden row that each of its tokens was drawn from. */
    int32_t tokens[ANSWER];
    size_t n_tokens;
    float *rows; /* [ANSWER, D] */
    size_t n_drafted, n_accepted;
};

/* A model, jobs with their answers, heads that know them. */
struct world {
    struct model *model;
    const char *isa;
    enum kv_type kv;
    enum act_kind activations;
    struct heads *heads;
    struct job jobs[JOBS];
};

static size_t roll(uint64_t seed, uint64_t *n, size_t limit)
{
    return rng_bits(seed, 3, (*n)++) % limit;
}

/* Some share their beginnings; half of them are drawn. */
static void make_jobs(struct world *w)
{
    uint64_t n = 0;
    for (size_t i = 0; i < JOBS; i++) {
        struct job *job = &w->jobs[i];
        const size_t n_prompt = 1 + roll(1, &n, CONTEXT - ANSWER - 1);
        const size_t n_shared = i % 3 == 0 ? n_prompt / 2 : 0;
        for (size_t k = 0; k < n_prompt; k++)
            job->prompt[k] = (int32_t)(rng_bits(k < n_shared ? 7 : 100 + i, 4, k) % 300);
        job->req = (struct seq_request){.prompt = job->prompt,
                                        .n_prompt = n_prompt,
                                        .max_tokens = ANSWER - i % 2,
                                        .ignore_eos = true,
                                        .sample = sample_params_greedy(),
                                        .user = job};
        if (i % 2) {
            job->req.sample.temperature = 0.9f;
            job->req.sample.seed = i;
        }
    }
}

static void submit(struct engine *eng, struct job *job)
{
    struct err e = {0};
    if (engine_submit(eng, &job->req, &e) != 0)
        fail_msg("%s", e.text);
}

static void step(struct engine *eng)
{
    bool worked;
    struct err e = {0};
    if (engine_step(eng, &worked, &e) != 0)
        fail_msg("%s", e.text);
    assert_true(worked);
}

static struct engine_options plain_options(void)
{
    return (struct engine_options){.n_threads = 1,
                                   .batch = 1,
                                   .step_tokens = 256,
                                   .chunk_tokens = 256,
                                   .context = CONTEXT};
}

static struct engine *open_engine(const struct world *w, const struct engine_options *o)
{
    return golden_open_engine(w->model, w->isa, w->activations, w->kv, o);
}

/* Each step but a prompt's first ones draws a token. */
static void answer_plainly(struct world *w, struct engine *plain, struct job *job)
{
    const size_t dim = w->model->config.dim;
    struct seq_result r;
    job->rows = malloc(ANSWER * dim * sizeof job->rows[0]);
    submit(plain, job);
    while (!engine_collect(plain, &r)) {
        step(plain);
        const struct step_segment *segment = &plain->plan.segments[0];
        if (segment->n_logits > 0)
            memcpy(job->rows + (seq_n_output(segment->seq) - 1) * dim,
                   forward_hidden(plain->forward, 0), dim * sizeof job->rows[0]);
    }
    job->n_tokens = r.n_tokens;
    memcpy(job->tokens, r.tokens, r.n_tokens * sizeof r.tokens[0]);
}

/* ------------------------------------------------------------------ fitted heads */

static size_t best_of(const float *output, size_t n, size_t dim, const float *x)
{
    size_t best = 0;
    float best_score = -1;
    for (size_t i = 0; i < n; i++) {
        float score = 0;
        for (size_t k = 0; k < dim; k++)
            score += output[i * dim + k] * x[k];
        if (i == 0 || score > best_score) {
            best = i;
            best_score = score;
        }
    }
    return best;
}

/* A perceptron: what is wrongly said moves away from the row, what is right towards it. */
static void fit_head(const struct world *w, size_t head, float *output)
{
    const size_t n = w->model->config.n_vocab, dim = w->model->config.dim;
    for (size_t round = 0; round < 30; round++)
        for (size_t i = 0; i < JOBS; i++) {
            const struct job *job = &w->jobs[i];
            for (size_t k = 0; k + 1 + head < job->n_tokens; k++) {
                const float *x = job->rows + k * dim;
                const size_t right = (size_t)job->tokens[k + 1 + head];
                const size_t said = best_of(output, n, dim, x);
                for (size_t d = 0; d < dim && said != right; d++) {
                    output[right * dim + d] += x[d];
                    output[said * dim + d] -= x[d];
                }
            }
        }
}

static struct heads *fit_heads(const struct world *w)
{
    const struct heads_shape shape = {.n_heads = HEADS, .has_output = true};
    struct heads *h = heads_make(w->model, &shape); /* of scale 0: all zero */
    for (size_t i = 0; i < HEADS; i++)
        fit_head(w, i, h->heads[i].output);
    return h;
}

static void open_world(struct world *w, const char *model, enum kv_type kv,
                       enum act_kind activations)
{
    const char *isas[3];
    *w = (struct world){.model = golden_open_tiny(model),
                        .isa = isas[golden_isas(isas) - 1],
                        .kv = kv,
                        .activations = activations};
    const struct engine_options o = plain_options();
    struct engine *plain = open_engine(w, &o);
    make_jobs(w);
    for (size_t i = 0; i < JOBS; i++)
        answer_plainly(w, plain, &w->jobs[i]);
    engine_close(plain);
    w->heads = fit_heads(w);
}

static void close_world(struct world *w)
{
    for (size_t i = 0; i < JOBS; i++)
        free(w->jobs[i].rows);
    heads_close(w->heads);
    model_close(w->model);
}

/* ------------------------------------------------------------------ watching */

/* Stands before the heads, where they are asked. */
struct watcher {
    const struct world *world;
    struct draft_proposer heads;
    bool swaps; /* gives each sequence the row of another */
    /* Each step is drafted for as the first is, so that what is proposed does not depend on
     * what came true for others; NULL: what is learned stays. */
    struct spec_stats *forgets;
    struct spec_stats first;
    size_t n_rows, n_wrong;
};

/* The row of the first goes to the last, every other one to the one before it. */
static void swap_rows(const struct watcher *w, struct seq *const *seqs, size_t n)
{
    const size_t dim = w->world->model->config.dim;
    float *first = malloc(dim * sizeof first[0]);
    memcpy(first, seqs[0]->heads->hidden, dim * sizeof first[0]);
    for (size_t i = 0; i < n; i++)
        memcpy(seqs[i]->heads->hidden, i + 1 < n ? seqs[i + 1]->heads->hidden : first,
               dim * sizeof first[0]);
    free(first);
}

static void watch(void *ctx, struct seq *const *seqs, size_t n_seqs)
{
    struct watcher *w = ctx;
    const size_t dim = w->world->model->config.dim;
    for (size_t i = 0; i < n_seqs; i++) {
        const struct head_seq *h = seqs[i]->heads;
        if (h->hidden_for != seqs[i]->n_tokens)
            continue;
        const struct job *job = seqs[i]->req.user;
        const float *row = job->rows + (seq_n_output(seqs[i]) - 1) * dim;
        w->n_rows++;
        w->n_wrong += memcmp(h->hidden, row, dim * sizeof row[0]) != 0;
    }
    if (w->swaps)
        swap_rows(w, seqs, n_seqs);
    w->heads.prepare(w->heads.ctx, seqs, n_seqs); /* which learns */
    if (w->forgets)
        *w->forgets = w->first;
}

static void pass_on(void *ctx, const struct seq *seq, size_t n_max, struct draft *out)
{
    const struct watcher *w = ctx;
    w->heads.propose(w->heads.ctx, seq, n_max, out);
}

/* Whatever is drafted is verified. */
static void install(struct engine *eng, struct watcher *w)
{
    struct spec_options o = {.batch = eng->options.batch,
                             .nodes_max = eng->options.draft_tokens,
                             .n_vocab = eng->model->config.n_vocab};
    o.n_proposers = drafters_proposers(eng->drafters, o.proposers);
    struct draft_proposer *heads = &o.proposers[o.n_proposers - 1];
    assert_int_equal(heads->sources, 1u << DRAFT_MEDUSA);
    w->heads = *heads;
    *heads = (struct draft_proposer){
        .propose = pass_on, .prepare = watch, .ctx = w, .sources = w->heads.sources};
    spec_close(eng->spec);
    assert_int_equal(spec_open(&o, eng->prefixes, eng->kvpool, &eng->spec, NULL), 0);
}

static void keep_counts(const struct seq_result *r)
{
    struct job *job = r->user;
    assert_int_equal(r->n_tokens, job->n_tokens);
    assert_memory_equal(r->tokens, job->tokens, r->n_tokens * sizeof r->tokens[0]);
    job->n_drafted = r->n_drafted;
    job->n_accepted = r->n_accepted;
}

static void answer(struct engine *eng, struct world *w)
{
    struct seq_result r;
    for (size_t i = 0; i < JOBS; i++)
        submit(eng, &w->jobs[i]);
    while (engine_active(eng) > 0) {
        if (engine_collect(eng, &r)) {
            keep_counts(&r);
            continue;
        }
        step(eng);
    }
}

static struct engine_options heads_options(const struct world *w, size_t batch)
{
    return (struct engine_options){.n_threads = 1,
                                   .batch = batch,
                                   .step_tokens = 256,
                                   .chunk_tokens = 64,
                                   .context = CONTEXT,
                                   .speculation = SPECULATION_HEADS,
                                   .heads = w->heads,
                                   .draft_always = true,
                                   .draft_tokens = 20 * batch};
}

static size_t count_accepted(const struct world *w)
{
    size_t n = 0;
    for (size_t i = 0; i < JOBS; i++)
        n += w->jobs[i].n_accepted;
    return n;
}

/* ------------------------------------------------------------------ tests */

static void acceptance_does_not_depend_on_what_runs_beside(void **state)
{
    (void)state;
    struct world w;
    size_t drafted[JOBS], accepted[JOBS];
    open_world(&w, "tiny-llama-q8_0.gguf", KV_BF16, ACT_INT8);
    static const size_t batches[] = {1, 3, BATCH_MAX};
    for (size_t n = 0; n < 3; n++) {
        const size_t batch = batches[n];
        struct engine_options o = heads_options(&w, batch);
        o.n_threads = 1 + batch % 2;
        o.chunk_tokens = 20 + batch;
        struct engine *eng = open_engine(&w, &o);
        struct watcher watcher = {.world = &w};
        install(eng, &watcher);
        watcher.forgets = drafters_stats(eng->drafters);
        watcher.first = *watcher.forgets;
        answer(eng, &w);
        assert_true(watcher.n_rows > 0);
        assert_int_equal(watcher.n_wrong, 0);
        for (size_t i = 0; i < JOBS; i++) {
            if (batch == 1) {
                drafted[i] = w.jobs[i].n_drafted;
                accepted[i] = w.jobs[i].n_accepted;
            }
            assert_int_equal(w.jobs[i].n_drafted, drafted[i]);
            assert_int_equal(w.jobs[i].n_accepted, accepted[i]);
        }
        engine_close(eng);
    }
    close_world(&w);
}

/* Two heads that know the answers let a step yield three tokens, two of them accepted. The
 * first token of an answer comes from a prompt's step. */
static void heads_that_know_the_answers_are_believed(void **state)
{
    (void)state;
    struct world w;
    open_world(&w, "tiny-llama-q8_0.gguf", KV_BF16, ACT_INT8);
    const struct engine_options o = heads_options(&w, BATCH_MAX);
    struct engine *eng = open_engine(&w, &o);
    answer(eng, &w);
    size_t n_tokens = 0;
    for (size_t i = 0; i < JOBS; i++)
        n_tokens += w.jobs[i].n_tokens - 1;
    print_message("%zu of %zu tokens accepted\n", count_accepted(&w), n_tokens);
    assert_true(count_accepted(&w) > n_tokens / 2);
    const struct draft_counters c = engine_counters(eng).drafts;
    assert_int_equal(c.drafted_by[DRAFT_MEDUSA], c.drafted); /* nothing is looked up */
    assert_int_equal(c.accepted_by[DRAFT_MEDUSA], count_accepted(&w));
    assert_true(c.accepted_at[2] > 0);
    assert_int_equal(c.accepted_at[3], 0);
    assert_true(c.asked[DRAFT_MEDUSA] > 0);
    assert_int_equal(c.unasked[DRAFT_MEDUSA] + c.asked[DRAFT_LOOKUP], 0);
    engine_close(eng);
    close_world(&w);
}

/* The twin: every sequence gets its neighbour's row; answers are the same, and it shows. */
static void a_wrong_row_is_seen_in_what_is_accepted(void **state)
{
    (void)state;
    struct world w;
    size_t accepted[2];
    open_world(&w, "tiny-llama-q8_0.gguf", KV_BF16, ACT_INT8);
    for (size_t swaps = 0; swaps < 2; swaps++) {
        const struct engine_options o = heads_options(&w, BATCH_MAX);
        struct engine *eng = open_engine(&w, &o);
        struct watcher watcher = {.world = &w, .swaps = swaps};
        install(eng, &watcher);
        watcher.forgets = drafters_stats(eng->drafters);
        watcher.first = *watcher.forgets;
        answer(eng, &w);
        accepted[swaps] = count_accepted(&w);
        engine_close(eng);
    }
    assert_true(accepted[1] * 2 < accepted[0]);
    close_world(&w);
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || defined(SHEAF_REF_ONLY)
enum { SEEDS = 4 };
#else
enum { SEEDS = 14 };
#endif

/* Preempted and resumed, in chunks, out of the cache, beside lookup, on a path or a branch. */
static void rows_are_right_whatever_happens_to_a_sequence(void **state)
{
    (void)state;
    static const struct {
        const char *model;
        enum kv_type kv;
        enum act_kind activations;
    } tellers[] = {{"tiny-llama-q4_1.gguf", KV_BF16, ACT_INT8},
                   {"tiny-qwen3-q8_0.gguf", KV_INT8, ACT_INT8},
                   {"tiny-qwen2-f32.gguf", KV_F32, ACT_F32}};
    static const size_t chunks[] = {1, 7, 33, 256};
    size_t n_preempted = 0, n_cached = 0, n_rows = 0, n_accepted = 0;
    for (size_t teller = 0; teller < 3; teller++) {
        struct world w;
        open_world(&w, tellers[teller].model, tellers[teller].kv, tellers[teller].activations);
        for (uint64_t seed = 0; seed < SEEDS; seed++) {
            uint64_t n = 0;
            struct engine_options o = heads_options(&w, 1 + roll(seed, &n, BATCH_MAX));
            o.n_threads = 1 + roll(seed, &n, 3);
            o.chunk_tokens = chunks[roll(seed, &n, 4)];
            o.whole_prompts = roll(seed, &n, 4) == 0;
            o.prefix_cache = roll(seed, &n, 3) > 0;
            o.prefix_tokens_min = 1;
            o.shared_attention = roll(seed, &n, 2);
            o.draft_tokens = 1 + roll(seed, &n, 40);
            o.speculation |= roll(seed, &n, 2) ? SPECULATION_LOOKUP : 0;
            const struct kvpool_shape shape = {.n_layers = w.model->config.n_layers,
                                               .n_kv_heads = w.model->config.n_kv_heads,
                                               .head_dim = w.model->config.head_dim,
                                               .type = w.kv};
            const size_t n_pages = CONTEXT / KV_PAGE_TOKENS + roll(seed, &n, 12);
            o.kv_bytes = n_pages * kvpool_page_bytes(&shape);
            struct engine *eng = open_engine(&w, &o);
            struct watcher watcher = {.world = &w};
            install(eng, &watcher);
            answer(eng, &w);
            answer(eng, &w);
            assert_int_equal(watcher.n_wrong, 0);
            n_rows += watcher.n_rows;
            n_accepted += count_accepted(&w);
            n_preempted += engine_counters(eng).preemptions;
            n_cached += engine_counters(eng).cached_tokens;
            engine_close(eng);
        }
        close_world(&w);
    }
    print_message("%zu rows; %zu accepted, %zu preemptions, %zu tokens from the cache\n",
                  n_rows, n_accepted, n_preempted, n_cached);
    assert_true(n_rows > 1000 && n_accepted > 1000 && n_preempted > 0 && n_cached > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(heads_that_know_the_answers_are_believed),
        cmocka_unit_test(acceptance_does_not_depend_on_what_runs_beside),
        cmocka_unit_test(a_wrong_row_is_seen_in_what_is_accepted),
        cmocka_unit_test(rows_are_right_whatever_happens_to_a_sequence),
    };
    return cmocka_run_group_tests_name("head_rows", tests, NULL, NULL);
}
