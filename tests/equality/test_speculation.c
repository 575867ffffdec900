/*
 * Speculation never changes an answer: random jobs, in random company, drafted for by whoever
 * knows the answer, by whoever knows nothing, by all between, by lookup and by heads, against
 * an engine without speculation. Tokens and text are compared byte for byte; each thing that
 * can happen must be seen to have happened.
 *
 * A case is a job. SHEAF_SPECULATION_CASES says how many, SHEAF_SEED where they begin.
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
#include "base/size.h"
#include "engine/engine_int.h"
#include "engine/forward_int.h"
#include "golden.h"
#include "heads_make.h"
#include "spec_rig.h"

enum { JOBS_MAX = 32, PAGE = KV_PAGE_TOKENS };

/* ------------------------------------------------------------------ worlds */

/* What must be seen to have happened in all worlds together. */
struct sights {
    size_t n_cases, n_stops, n_ends, n_lengths, n_contexts;
    size_t n_cut_stops, n_cut_ends;   /* in a step that had drawn more */
    size_t n_greedy, n_cool, n_hot;   /* by temperature, with and without penalties */
    size_t n_alone, n_many, n_biased; /* in batches of 1, of 32; with penalties */
    size_t n_preempted, n_cached, n_evicted, n_chunks;
    size_t n_drafted, n_accepted, n_by_known, n_lacked, n_deep;
    size_t n_predicted, n_predicted_accepted;
};

static size_t page_bytes(const struct model *m, enum kv_type kv)
{
    const struct kvpool_shape shape = {.n_layers = m->config.n_layers,
                                       .n_kv_heads = m->config.n_kv_heads,
                                       .head_dim = m->config.head_dim,
                                       .type = kv};
    return kvpool_page_bytes(&shape);
}

static struct engine *open_plain(const struct model *m, const char *isa, enum kv_type kv)
{
    const struct engine_options o = {.n_threads = 1,
                                     .batch = JOBS_MAX,
                                     .step_tokens = 512,
                                     .chunk_tokens = 512,
                                     .context = CONTEXT,
                                     .kv_bytes =
                                         JOBS_MAX * (CONTEXT / PAGE + 1) * page_bytes(m, kv)};
    return golden_open_engine(m, isa, ACT_INT8, kv, &o);
}

static struct engine_options random_options(struct dice *d, const struct model *m,
                                            enum kv_type kv, struct sources *sources)
{
    static const size_t batches[] = {1, 2, 3, 5, 8, 16, 32};
    static const size_t chunks[] = {1, 7, 16, 64, 512};
    static const size_t drafts[] = {0, 1, 5, 40, 200};
    const size_t one = CONTEXT / PAGE;
    struct engine_options o = {.n_threads = 1 + (spec_rig_roll(d, 4) == 0),
                               .batch = batches[spec_rig_roll(d, 7)],
                               .chunk_tokens = chunks[spec_rig_roll(d, 5)],
                               .context = CONTEXT,
                               .prefix_cache = spec_rig_roll(d, 3) > 0,
                               .prefix_tokens_min = 1,
                               .evicts_by_demand = true,
                               .shared_attention = spec_rig_roll(d, 2),
                               .whole_prompts = spec_rig_roll(d, 5) == 0,
                               .draft_tokens = drafts[spec_rig_roll(d, 5)],
                               .proposer = {.propose = spec_rig_propose, .ctx = sources}};
    if (sources->heads) {
        static const unsigned kinds[] = {SPECULATION_LOOKUP, SPECULATION_HEADS,
                                         SPECULATION_LOOKUP | SPECULATION_HEADS};
        o.proposer.propose = NULL;
        o.speculation = kinds[spec_rig_roll(d, 3)];
        o.heads = sources->heads;
        o.draft_always = spec_rig_roll(d, 4) > 0;
    }
    o.step_tokens = o.batch + spec_rig_roll(d, 64);
    /* Fewer worlds have to show preemptions where the engine drafts by itself. */
    const size_t n_spare = spec_rig_roll(d, 2 + o.batch / (sources->heads ? 16 : 2));
    const size_t n_pages = spec_rig_roll(d, 2) ? one + n_spare : JOBS_MAX * one;
    o.kv_bytes = n_pages * page_bytes(m, kv);
    return o;
}

/* A step yields what was accepted and one token more, unless one of them ends the answer. */
static bool was_cut(const struct seq_result *r)
{
    return r->n_preempted == 0 && r->n_tokens < r->n_steps - r->n_chunks + 1 + r->n_accepted;
}

static void look_at_job(struct sights *all, const struct engine *eng, const struct job *job)
{
    const struct sample_params *p = &job->req.sample;
    all->n_greedy += p->temperature == 0;
    all->n_cool += p->temperature > 0 && p->temperature < 1;
    all->n_hot += p->temperature > 1;
    all->n_biased += p->repetition_penalty != 1;
    all->n_alone += eng->options.batch == 1;
    all->n_many += eng->options.batch == 32;
}

static void look(struct sights *all, const struct job *job, const struct seq_result *r)
{
    all->n_cases++;
    all->n_cut_stops += r->reason == FINISH_STOP && was_cut(r);
    all->n_cut_ends += r->reason == FINISH_EOS && was_cut(r);
    all->n_stops += r->reason == FINISH_STOP;
    all->n_ends += r->reason == FINISH_EOS;
    all->n_lengths += r->reason == FINISH_LENGTH;
    all->n_contexts += r->reason == FINISH_CONTEXT;
    all->n_preempted += r->n_preempted;
    all->n_cached += r->n_cached > 0;
    all->n_chunks += r->n_chunks > 1;
    all->n_drafted += r->n_drafted;
    all->n_accepted += r->n_accepted;
    all->n_by_known += job->drafter == KNOWS && r->n_accepted > 0;
    all->n_predicted += r->n_predicted;
    all->n_predicted_accepted += r->n_predicted_accepted;
    assert_true(r->n_predicted <= r->n_drafted);
    assert_true(r->n_predicted_accepted <= r->n_predicted);
    assert_true(r->n_predicted_accepted <= r->n_accepted);
}

/* Each node is drafted by somebody and stands at some depth. */
static void check_tally(const struct seq_result *r)
{
    uint64_t drafted[TALLY_SOURCES] = {0}, accepted[TALLY_SOURCES] = {0};
    uint64_t by_source = 0;
    for (size_t source = 0; source < TALLY_SOURCES; source++) {
        for (size_t at = 0; at < TALLY_DEPTHS; at++) {
            drafted[source] += r->drafts->drafted[source][at];
            accepted[source] += r->drafts->accepted[source][at];
        }
        by_source += source == TALLY_ALL ? 0 : drafted[source];
        assert_true(accepted[source] <= drafted[source]);
    }
    assert_int_equal(drafted[TALLY_ALL], r->n_drafted);
    assert_int_equal(accepted[TALLY_ALL], r->n_accepted);
    assert_true(by_source >= r->n_drafted);
    assert_true(r->drafts->steps <= r->n_steps);
}

/* Returns false at the first answer that differs. */
static bool compare_answers(struct engine *eng, struct job *jobs, size_t n, struct sights *all)
{
    struct seq_result r;
    bool same = true;
    size_t n_drafted = 0, n_accepted = 0;
    const struct draft_counters before = engine_counters(eng).drafts;
    for (size_t i = 0; i < n; i++)
        spec_rig_submit(eng, &jobs[i]);
    while (engine_active(eng) > 0) {
        if (!engine_collect(eng, &r)) {
            spec_rig_step(eng);
            continue;
        }
        const struct job *job = r.user;
        same = same && spec_rig_is_same_answer(job, &r);
        check_tally(&r);
        look(all, job, &r);
        look_at_job(all, eng, job);
        n_drafted += r.n_drafted;
        n_accepted += r.n_accepted;
        if (same && job->drafter == KNOWS && r.n_preempted == 0)
            assert_int_equal(r.n_accepted, r.n_drafted);
        if (same && job->drafter == ERRS)
            assert_int_equal(r.n_accepted, 0);
    }
    const struct draft_counters after = engine_counters(eng).drafts;
    assert_int_equal(after.drafted, after.accepted + after.rejected);
    assert_int_equal(after.drafted - before.drafted, n_drafted);
    assert_int_equal(after.accepted - before.accepted, n_accepted);
    return same;
}

static void note_counters(struct sights *all, const struct engine *eng)
{
    const struct engine_counters c = engine_counters(eng);
    uint64_t drafted = 0, accepted = 0;
    for (size_t depth = 1; depth <= DRAFT_NODES_MAX; depth++) {
        drafted += c.drafts.drafted_at[depth];
        accepted += c.drafts.accepted_at[depth];
        all->n_deep += depth > PAGE ? c.drafts.accepted_at[depth] : 0;
    }
    assert_int_equal(drafted, c.drafts.drafted);
    assert_int_equal(accepted, c.drafts.accepted);
    all->n_lacked += c.drafts.lacked_pages;
    all->n_evicted += c.prefix.pages_evicted;
}

enum kind { DRAFTERS, OWN_SOURCES, MISPLACED };

/* The engine's own sources ask nobody, whatever a job's drafter is. */
static void forget_drafters(struct job *jobs, size_t n)
{
    for (size_t i = 0; i < n; i++)
        jobs[i].drafter = GUESSES;
}

/* Two rounds: jobs, then heirs of some of them. False when an answer differs. */
static bool run_world(const struct model *m, struct engine *plain, const char *isa,
                      enum kv_type kv, uint64_t seed, enum kind kind, struct sights *all)
{
    static struct job jobs[JOBS_MAX], heirs[JOBS_MAX];
    struct dice d = {.seed = seed};
    const struct heads_shape shape = {.seed = seed,
                                      .n_heads = 1 + seed % 3,
                                      .n_blocks = 1,
                                      .n_draft = seed % 2 ? 200 : 0,
                                      .scale = 0.03125f};
    struct heads *heads = kind == OWN_SOURCES ? heads_make(m, &shape) : NULL;
    struct sources sources = {.model = m,
                              .dice = {.seed = seed + 1000000},
                              .misplaces = kind == MISPLACED,
                              .heads = heads};
    const struct engine_options o = random_options(&d, m, kv, &sources);
    struct engine *eng = golden_open_engine(m, isa, ACT_INT8, kv, &o);
    heads_close(heads);
    sources.engine = eng;
    const size_t n = 1 + spec_rig_roll(&d, size_min(JOBS_MAX, 2 * o.batch));
    for (size_t i = 0; i < n; i++)
        spec_rig_make_job(&d, m, &jobs[i]);
    spec_rig_answer_plainly(plain, jobs, n);
    if (kind == OWN_SOURCES)
        forget_drafters(jobs, n);
    for (size_t i = 0; kind == OWN_SOURCES && i < n; i++)
        spec_rig_predict(&sources.dice, m, &jobs[i]);
    bool same = compare_answers(eng, jobs, n, all);
    for (size_t i = 0; i < n; i++)
        spec_rig_make_heir(&d, m, &jobs[spec_rig_roll(&d, n)], &heirs[i]);
    spec_rig_answer_plainly(plain, heirs, n);
    if (kind == OWN_SOURCES)
        forget_drafters(heirs, n);
    for (size_t i = 0; kind == OWN_SOURCES && i < n; i++)
        spec_rig_predict(&sources.dice, m, &heirs[i]);
    same = compare_answers(eng, heirs, n, all) && same;
    note_counters(all, eng);
    engine_close(eng);
    return same;
}

static uint64_t number_from(const char *name, uint64_t otherwise)
{
    const char *given = getenv(name);
    return given ? strtoull(given, NULL, 10) : otherwise;
}

static const struct {
    const char *model;
    enum kv_type kv;
} tellers[] = {
    {"tiny-llama-q4_1.gguf", KV_BF16}, {"tiny-llama-q4_1.gguf", KV_INT8},
    {"tiny-qwen3-q8_0.gguf", KV_BF16}, {"tiny-qwen2-q8_0.gguf", KV_F32},
    {"tiny-qwen3-q8_0.gguf", KV_INT8}, {"tiny-llama-q8_0.gguf", KV_F32},
};
enum { N_TELLERS = sizeof tellers / sizeof tellers[0] };

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || defined(SHEAF_REF_ONLY)
enum { N_CASES = 600, N_OWN_CASES = 600 };
#else
enum { N_CASES = 10000, N_OWN_CASES = 3000 };
#endif

/* ------------------------------------------------------------------ tests */

static struct sights run_worlds(enum kind kind, uint64_t n_cases)
{
    const uint64_t first = number_from("SHEAF_SEED", 1);
    const char *isas[3];
    const size_t n_isas = golden_isas(isas);
    struct sights all = {0};
    for (size_t i = 0; i < N_TELLERS; i++) {
        struct model *m = golden_open_tiny(tellers[i].model);
        const char *isa = isas[i == 2 && n_isas > 1 ? n_isas - 2 : n_isas - 1];
        struct engine *plain = open_plain(m, isa, tellers[i].kv);
        const uint64_t until = n_cases * (i + 1) / N_TELLERS;
        for (uint64_t seed = first; all.n_cases < until; seed++)
            if (!run_world(m, plain, isa, tellers[i].kv, seed, kind, &all))
                fail_msg("%s, KV type %d, SHEAF_SEED=%llu: an answer differs", tellers[i].model,
                         tellers[i].kv, (unsigned long long)seed);
        engine_close(plain);
        model_close(m);
    }
    print_message("%zu cases: %zu stopped (%zu in a drafted run), %zu ended (%zu), %zu at "
                  "max_tokens, %zu at the context's end; %zu greedy, %zu at 0.7, %zu at 1.2; "
                  "%zu preemptions, %zu from the cache, %zu pages evicted, %zu in chunks; "
                  "%zu drafted, %zu accepted, %zu for want of pages, %zu deeper than a page\n",
                  all.n_cases, all.n_stops, all.n_cut_stops, all.n_ends, all.n_cut_ends,
                  all.n_lengths, all.n_contexts, all.n_greedy, all.n_cool, all.n_hot,
                  all.n_preempted, all.n_cached, all.n_evicted, all.n_chunks, all.n_drafted,
                  all.n_accepted, all.n_lacked, all.n_deep);
    return all;
}

static void no_draft_changes_an_answer(void **state)
{
    (void)state;
    const struct sights all =
        run_worlds(DRAFTERS, number_from("SHEAF_SPECULATION_CASES", N_CASES));
    assert_true(all.n_stops > 0 && all.n_ends > 0 && all.n_lengths > 0 && all.n_contexts > 0);
    assert_true(all.n_preempted > 0 && all.n_cached > 0 && all.n_evicted > 0);
    assert_true(all.n_chunks > 0 && all.n_by_known > 0 && all.n_lacked > 0 && all.n_deep > 0);
    assert_true(all.n_cut_stops > 0 && all.n_cut_ends > 0);
    assert_true(all.n_greedy > 0 && all.n_cool > 0 && all.n_hot > 0 && all.n_biased > 0);
    assert_true(all.n_alone > 0 && all.n_many > 0);
}

static void neither_do_lookup_and_heads(void **state)
{
    (void)state;
    const struct sights all =
        run_worlds(OWN_SOURCES, number_from("SHEAF_SPECULATION_CASES", N_OWN_CASES));
    assert_true(all.n_stops > 0 && all.n_ends > 0 && all.n_lengths > 0 && all.n_contexts > 0);
    assert_true(all.n_preempted > 0 && all.n_cached > 0 && all.n_evicted > 0);
    assert_true(all.n_chunks > 0 && all.n_accepted > 0 && all.n_accepted < all.n_drafted);
    assert_true(all.n_predicted_accepted > 0 && all.n_predicted_accepted < all.n_predicted);
}

/* The twin: keys out of their places are seen in most worlds. */
static void the_comparison_sees_a_misplaced_key(void **state)
{
    (void)state;
    const char *isas[3];
    const char *isa = isas[golden_isas(isas) - 1];
    struct model *m = golden_open_tiny(tellers[0].model);
    struct engine *plain = open_plain(m, isa, tellers[0].kv);
    struct sights all = {0};
    size_t n_seen = 0;
    for (uint64_t seed = 1; seed <= 20; seed++)
        n_seen += !run_world(m, plain, isa, tellers[0].kv, seed, MISPLACED, &all);
    assert_true(n_seen >= 10);
    engine_close(plain);
    model_close(m);
}

/* ------------------------------------------------------------------ steps */

struct lone {
    struct model *model;
    struct engine *plain;
    const char *isa;
    struct job job;
};

static void open_lone(struct lone *l, size_t n_prompt, size_t max_tokens)
{
    const char *isas[3];
    *l = (struct lone){.model = golden_open_tiny(tellers[0].model),
                       .isa = isas[golden_isas(isas) - 1]};
    l->plain = open_plain(l->model, l->isa, KV_BF16);
    l->job.req = (struct seq_request){
        .max_tokens = max_tokens, .ignore_eos = true, .sample = sample_params_greedy()};
    l->job.req.stops = l->job.stops;
    l->job.n_prompt = n_prompt;
    for (size_t i = 0; i < n_prompt; i++)
        l->job.prompt[i] = (int32_t)(rng_bits(9, 0, i) % 300);
    spec_rig_answer_plainly(l->plain, &l->job, 1);
}

static void close_lone(struct lone *l)
{
    engine_close(l->plain);
    model_close(l->model);
}

static struct engine *open_alone(const struct lone *l, size_t draft_tokens,
                                 struct draft_proposer proposer, bool prefix_cache)
{
    const struct engine_options o = {.n_threads = 1,
                                     .batch = 1,
                                     .step_tokens = 64,
                                     .chunk_tokens = 64,
                                     .context = CONTEXT,
                                     .kv_bytes = 16 * page_bytes(l->model, KV_BF16),
                                     .prefix_cache = prefix_cache,
                                     .prefix_tokens_min = 1,
                                     .evicts_by_demand = true,
                                     .draft_tokens = draft_tokens,
                                     .proposer = proposer};
    return golden_open_engine(l->model, l->isa, ACT_INT8, KV_BF16, &o);
}

static struct seq_result answer_with(struct engine *eng, struct job *job)
{
    struct seq_result r;
    spec_rig_submit(eng, job);
    while (!engine_collect(eng, &r))
        spec_rig_step(eng);
    assert_true(spec_rig_is_same_answer(job, &r));
    return r;
}

/* The prompt's step yields one token, every other one as many as were drafted and one more. */
static void a_perfect_drafter_gains_its_depth_in_every_step(void **state)
{
    (void)state;
    struct lone l;
    open_lone(&l, 20, 61);
    l.job.drafter = KNOWS;
    for (size_t depth = 1; depth <= 30; depth++) {
        struct sources sources = {.model = l.model};
        struct engine *eng = open_alone(
            &l, depth, (struct draft_proposer){.propose = spec_rig_propose, .ctx = &sources},
            false);
        const struct seq_result r = answer_with(eng, &l.job);
        assert_int_equal(r.n_steps, 1 + (60 + depth) / (depth + 1));
        assert_int_equal(r.n_accepted, r.n_drafted);
        assert_int_equal(r.n_accepted + r.n_steps, r.n_tokens);
        engine_close(eng);
    }
    close_lone(&l);
}

static void propose_nothing(void *ctx, const struct seq *seq, size_t n_max, struct draft *out)
{
    (void)seq;
    (void)n_max;
    (void)out;
    ++*(size_t *)ctx;
}

/* Without drafts the same rows are computed in the same steps, with or without a proposer. */
static void off_is_off(void **state)
{
    (void)state;
    struct lone l;
    open_lone(&l, 40, 50);
    size_t n_asked = 0;
    struct engine *off = open_alone(&l, 0, (struct draft_proposer){0}, true);
    struct engine *idle = open_alone(
        &l, 0, (struct draft_proposer){.propose = propose_nothing, .ctx = &n_asked}, true);
    const struct seq_result a = answer_with(off, &l.job), b = answer_with(idle, &l.job);
    assert_null(off->spec);
    assert_null(off->drafters);
    assert_int_equal(off->forward->attention.n_branches_max, 0);
    assert_int_equal(engine_plan(off).drafts_bytes, 0);
    assert_int_equal(n_asked, 48); /* not for the token of the prompt's step, nor the last */
    assert_int_equal(a.n_steps, 50);
    assert_int_equal(b.n_steps, 50);
    assert_int_equal(a.kv_pages_peak, b.kv_pages_peak);
    const struct engine_counters x = engine_counters(off), y = engine_counters(idle);
    assert_int_equal(x.steps, y.steps);
    assert_int_equal(x.rows, y.rows);
    assert_int_equal(x.drafts.drafted + y.drafts.drafted, 0);
    assert_int_equal(x.prefix.pages_published, y.prefix.pages_published);
    engine_close(off);
    engine_close(idle);
    close_lone(&l);
}

static struct engine_options lookup_options(const struct lone *l)
{
    return (struct engine_options){.n_threads = 1,
                                   .batch = 1,
                                   .step_tokens = 64,
                                   .chunk_tokens = 64,
                                   .context = CONTEXT,
                                   .kv_bytes = 16 * page_bytes(l->model, KV_BF16),
                                   .speculation = SPECULATION_LOOKUP,
                                   .draft_always = true};
}

static struct engine *open_lookup(const struct lone *l, const struct engine_options *o)
{
    return golden_open_engine(l->model, l->isa, ACT_INT8, KV_BF16, o);
}

/* The prompt says five times what the model says behind its beginning. */
static void open_echo(struct lone *l)
{
    open_lone(l, 20, 40);
    l->job.n_prompt = CONTEXT - 41;
    for (size_t i = 20; i < l->job.n_prompt; i++)
        l->job.prompt[i] = l->job.tokens[(i - 20) % 20];
    spec_rig_answer_plainly(l->plain, &l->job, 1);
}

/* Every node comes from somewhere. */
static void lookup_drafts_what_was_said_before(void **state)
{
    (void)state;
    struct lone l;
    open_echo(&l);
    const struct engine_options o = lookup_options(&l);
    struct engine *eng = open_lookup(&l, &o);
    assert_true(engine_plan(eng).drafts_bytes >= SPEC_PROMPTS_BYTES_MAX);
    const struct seq_result first = answer_with(eng, &l.job);
    const struct seq_result r = answer_with(eng, &l.job); /* what was recycled is known now */
    assert_true(first.n_drafted > 0 && r.n_accepted > 0);
    assert_true(r.n_steps < r.n_tokens);
    const struct draft_counters c = engine_counters(eng).drafts;
    uint64_t by_source = 0;
    for (size_t i = 0; i < DRAFT_SOURCES; i++)
        by_source += c.drafted_by[i];
    assert_true(by_source >= c.drafted);
    assert_true(c.drafted_by[DRAFT_LOOKUP] > 0 && c.drafted_by[DRAFT_RECYCLE] > 0);
    assert_int_equal(c.drafted_by[DRAFT_MEDUSA] + c.drafted_by[DRAFT_MODEL], 0);
    engine_close(eng);
    close_lone(&l);
}

static void what_one_salt_says_drafts_nothing_under_another(void **state)
{
    (void)state;
    struct lone l;
    open_lone(&l, 20, 40);
    const struct engine_options o = lookup_options(&l);
    struct engine *eng = open_lookup(&l, &o);
    answer_with(eng, &l.job);
    const uint64_t before = engine_counters(eng).drafts.drafted_by[DRAFT_RECYCLE];
    l.job.req.salt = "a";
    answer_with(eng, &l.job);
    l.job.req.salt = "b";
    answer_with(eng, &l.job);
    assert_int_equal(engine_counters(eng).drafts.drafted_by[DRAFT_RECYCLE], before);
    l.job.req.salt = NULL;
    answer_with(eng, &l.job);
    assert_true(engine_counters(eng).drafts.drafted_by[DRAFT_RECYCLE] > before);
    engine_close(eng);
    close_lone(&l);
}

static void step_times_are_measured_from_one_row_to_the_most(void **state)
{
    (void)state;
    struct lone l;
    open_lone(&l, 20, 2);
    struct engine_options o = lookup_options(&l);
    o.draft_always = false;
    o.batch = 4;
    o.draft_tokens = 20;
    struct engine *eng = open_lookup(&l, &o);
    const struct spec_time *t = &eng->decoding_time;
    assert_int_equal(t->points[0].n_rows, 1);
    assert_int_equal(t->points[t->n_points - 1].n_rows, 24);
    assert_int_equal(engine_plan(eng).calibration.n_points, 0); /* the chunk was given */
    engine_close(eng);
    close_lone(&l);
}

/* A table in which the second row takes so much and the 64th as much; the first takes what it
 * does. proposer NULL: the engine's own. */
static void give_times(struct engine *eng, const struct draft_proposer *proposer, double second,
                       double last, double vain_share)
{
    const double us = eng->decoding_time.points[0].us;
    struct spec_time time;
    spec_time_init(&time,
                   (struct spec_time_point[]){{1, us}, {2, second * us}, {64, last * us}}, 3);
    struct spec_options options = {.n_proposers = 1,
                                   .batch = eng->options.batch,
                                   .nodes_max = DRAFT_NODES_MAX,
                                   .n_vocab = eng->model->config.n_vocab,
                                   .time = &time,
                                   .vain_share = vain_share};
    if (proposer)
        options.proposers[0] = *proposer;
    else
        options.n_proposers = drafters_proposers(eng->drafters, options.proposers);
    spec_close(eng->spec);
    assert_int_equal(spec_open(&options, eng->prefixes, eng->kvpool, &eng->spec, NULL), 0);
}

/* However long this machine is kept from asking. */
static const double ANY_SHARE = 1e9;

static struct seq_result answer_by_times(struct lone *l, double second, double last)
{
    struct engine_options o = lookup_options(l);
    o.draft_always = false;
    struct engine *eng = open_lookup(l, &o);
    give_times(eng, NULL, second, last, ANY_SHARE);
    const struct seq_result r = answer_with(eng, &l->job);
    engine_close(eng);
    return r;
}

static void drafts_are_made_where_rows_are_cheap_and_nowhere_else(void **state)
{
    (void)state;
    struct lone l;
    open_echo(&l);
    const struct seq_result dear = answer_by_times(&l, 8, 512);
    assert_int_equal(dear.n_drafted, 0);
    assert_int_equal(dear.n_steps, 2 + dear.n_tokens - 1); /* two of the prompt's */
    const struct seq_result cheap = answer_by_times(&l, 1.001, 1.01);
    assert_true(cheap.n_accepted > 0);
    assert_true(cheap.n_steps < dear.n_steps);
    close_lone(&l);
}

static void ponder(void *ctx, const struct seq *seq, size_t n_max, struct draft *out)
{
    propose_nothing(ctx, seq, n_max, out);
    usleep(20000);
}

/* Each time takes as long as many steps do. */
static void sources_are_seldom_asked_in_vain(void **state)
{
    (void)state;
    struct lone l;
    open_lone(&l, 20, 60);
    struct engine_options o = lookup_options(&l);
    o.draft_always = false;
    struct engine *eng = open_lookup(&l, &o);
    size_t n_asked = 0;
    const struct draft_proposer slow = {.propose = ponder, .ctx = &n_asked};
    give_times(eng, &slow, 1.001, 1.01, 0.01);
    const struct seq_result r = answer_with(eng, &l.job);
    assert_int_equal(r.n_drafted, 0);
    assert_true(n_asked >= 1 && n_asked <= 6);
    engine_close(eng);
    close_lone(&l);
}

/* Answers that end around a page's border, drafts beyond it that are refused; then a job that
 * goes on from there out of the cache. */
static void refused_drafts_never_reach_the_cache(void **state)
{
    (void)state;
    for (size_t n_tokens = 25; n_tokens <= 40; n_tokens++) {
        struct lone l;
        open_lone(&l, PAGE, n_tokens);
        struct sources sources = {.model = l.model, .dice = {.seed = n_tokens}};
        struct engine *eng = open_alone(
            &l, 20, (struct draft_proposer){.propose = spec_rig_propose, .ctx = &sources},
            true);
        l.job.drafter = n_tokens % 2 ? ERRS : KNOWS_BADLY;
        const struct seq_result r = answer_with(eng, &l.job);
        assert_true(r.n_drafted > r.n_accepted);
        struct job heir = l.job;
        heir.n_prompt = PAGE + n_tokens + 1;
        memcpy(heir.prompt + PAGE, l.job.tokens, n_tokens * sizeof heir.prompt[0]);
        heir.prompt[PAGE + n_tokens] = 5;
        heir.req.max_tokens = 20;
        spec_rig_answer_plainly(l.plain, &heir, 1);
        const struct seq_result s = answer_with(eng, &heir);
        assert_int_equal(s.n_cached, PAGE + n_tokens - 1); /* the last token has no keys */
        engine_close(eng);
        close_lone(&l);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_draft_changes_an_answer),
        cmocka_unit_test(neither_do_lookup_and_heads),
        cmocka_unit_test(the_comparison_sees_a_misplaced_key),
        cmocka_unit_test(a_perfect_drafter_gains_its_depth_in_every_step),
        cmocka_unit_test(off_is_off),
        cmocka_unit_test(lookup_drafts_what_was_said_before),
        cmocka_unit_test(what_one_salt_says_drafts_nothing_under_another),
        cmocka_unit_test(step_times_are_measured_from_one_row_to_the_most),
        cmocka_unit_test(drafts_are_made_where_rows_are_cheap_and_nowhere_else),
        cmocka_unit_test(sources_are_seldom_asked_in_vain),
        cmocka_unit_test(refused_drafts_never_reach_the_cache),
    };
    return cmocka_run_group_tests_name("speculation", tests, NULL, NULL);
}
