/*
 * The levers never change an answer: batch, chunk, step and pool size, threads, order of
 * submission, preemption, prefix cache, eviction, shared attention, speculation and kernel set
 * against one plain run (reference kernels, one sequence at a time, no cache, one thread).
 * Tokens and text are compared byte for byte; each lever must be seen to have worked.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/limits.h"
#include "base/rng.h"
#include "engine/kvpool.h"
#include "golden.h"
#include "heads_make.h"

enum { N_JOBS = 24, N_OUT = 24, TEXT_MAX = 4096, LONGEST = 4 * KV_PAGE_TOKENS + 1 };

/* The first shared tokens of a prompt are its document's, the rest its own. */
static const struct {
    size_t document, shared, length;
} prompts[N_JOBS] = {
    /* nothing shared; around the borders of pages */
    {0, 0, 1},
    {0, 0, 31},
    {0, 0, 32},
    {0, 0, 33},
    {0, 0, 63},
    {0, 0, 64},
    {0, 0, 65},
    {0, 0, 96},
    {0, 0, 127},
    {0, 0, LONGEST},
    /* a document, shared up to around the borders of pages */
    {1, 31, 45},
    {1, 32, 47},
    {1, 33, 49},
    {1, 63, 70},
    {1, 64, 71},
    {1, 65, 97},
    {1, 95, 96},
    {1, 96, 97},
    {1, 97, LONGEST},
    /* the same prompt as a whole, off and on a border; one is the head of the other */
    {2, 80, 80},
    {2, 80, 80},
    {2, 96, 96},
    {2, 96, 96},
    {2, 97, 97},
};

struct answer {
    enum finish_reason reason;
    size_t n_tokens, n_preempted, text_bytes;
    int32_t tokens[N_OUT];
    char text[TEXT_MAX];
};

struct answers {
    struct answer job[N_JOBS];
    size_t n_preempted;
    struct engine_counters counters;
};

enum sign { CACHES = 1, EVICTS = 2, PREEMPTS = 4, DRAFTS = 8 };

struct lever {
    const char *name;
    struct engine_options options;
    bool shuffled;
    size_t pool_tokens; /* 0: the pool is large enough for all */
    int signs;          /* what must be seen to have happened; in a large pool nothing else */
};

static const struct lever plain = {
    .name = "plain",
    .options = {.n_threads = 1, .batch = 1, .step_tokens = 512, .chunk_tokens = 512}};

#define CACHE  .prefix_cache = true, .prefix_tokens_min = 1, .evicts_by_demand = true
#define SHARED CACHE, .shared_attention = true
#define LOOKUP .speculation = SPECULATION_LOOKUP, .draft_always = true
#define MODEL  .speculation = SPECULATION_MODEL, .draft_always = true

static const struct lever levers[] = {
    {"chunk 1",
     {.n_threads = 1, .batch = 1, .step_tokens = 16, .chunk_tokens = 1},
     false,
     0,
     0},
    {"batch 3, chunk 16",
     {.n_threads = 1, .batch = 3, .step_tokens = 24, .chunk_tokens = 16},
     false,
     0,
     0},
    {"batch 16, step 16, two threads",
     {.n_threads = 2, .batch = 16, .step_tokens = 16, .chunk_tokens = 512},
     false,
     0,
     0},
    {"batch 24, all at once, two threads, shuffled",
     {.n_threads = 2, .batch = 24, .step_tokens = 2048, .chunk_tokens = 512},
     true,
     0,
     0},
    {"batch 24, whole prompts",
     {.n_threads = 2,
      .batch = 24,
      .step_tokens = 32,
      .chunk_tokens = 16,
      .whole_prompts = true},
     false,
     0,
     0},
    {"preempted",
     {.n_threads = 1, .batch = 16, .step_tokens = 512, .chunk_tokens = 512},
     false,
     LONGEST + N_OUT + 2 * KV_PAGE_TOKENS,
     PREEMPTS},
    {"cache, one after another",
     {.n_threads = 1, .batch = 1, .step_tokens = 512, .chunk_tokens = 512, CACHE},
     false,
     0,
     CACHES},
    {"cache, chunk 1, two threads, shuffled",
     {.n_threads = 2, .batch = 24, .step_tokens = 64, .chunk_tokens = 1, CACHE},
     true,
     0,
     CACHES},
    {"cache, chunk 16, evicted",
     {.n_threads = 1, .batch = 2, .step_tokens = 32, .chunk_tokens = 16, CACHE},
     true,
     LONGEST + N_OUT + 2 * KV_PAGE_TOKENS,
     CACHES | EVICTS | PREEMPTS},
    {"cache, least recently used, evicted",
     {.n_threads = 2,
      .batch = 1,
      .step_tokens = 512,
      .chunk_tokens = 512,
      .prefix_cache = true,
      .prefix_tokens_min = 32},
     false,
     LONGEST + N_OUT + KV_PAGE_TOKENS,
     CACHES | EVICTS},
    {"cache, a single idle page kept",
     {.n_threads = 1,
      .batch = 3,
      .step_tokens = 64,
      .chunk_tokens = 16,
      .prefix_bytes = 1,
      CACHE},
     true,
     0,
     CACHES | EVICTS},
    {"shared attention, all at once",
     {.n_threads = 2, .batch = 24, .step_tokens = 2048, .chunk_tokens = 512, SHARED},
     false,
     0,
     CACHES},
    {"shared attention, chunk 16, shuffled",
     {.n_threads = 1, .batch = 16, .step_tokens = 48, .chunk_tokens = 16, SHARED},
     true,
     0,
     CACHES},
    {"shared attention, whole prompts",
     {.n_threads = 2,
      .batch = 24,
      .step_tokens = 64,
      .chunk_tokens = 64,
      .whole_prompts = true,
      SHARED},
     false,
     0,
     CACHES},
    {"shared attention, evicted and preempted, two threads, shuffled",
     {.n_threads = 2, .batch = 16, .step_tokens = 32, .chunk_tokens = 16, SHARED},
     true,
     LONGEST + N_OUT + 2 * KV_PAGE_TOKENS,
     CACHES | EVICTS | PREEMPTS},
    {"lookup, one after another",
     {.n_threads = 1, .batch = 1, .step_tokens = 512, .chunk_tokens = 512, LOOKUP},
     false,
     0,
     DRAFTS},
    {"lookup, cache, chunk 16, two threads, shuffled",
     {.n_threads = 2, .batch = 16, .step_tokens = 48, .chunk_tokens = 16, CACHE, LOOKUP},
     true,
     0,
     CACHES | DRAFTS},
    {"lookup, shared attention, few drafts, all at once",
     {.n_threads = 2,
      .batch = 24,
      .step_tokens = 2048,
      .chunk_tokens = 512,
      .draft_tokens = 30,
      SHARED,
      LOOKUP},
     false,
     0,
     CACHES | DRAFTS},
    {"lookup, preempted",
     {.n_threads = 1, .batch = 16, .step_tokens = 512, .chunk_tokens = 512, LOOKUP},
     false,
     LONGEST + N_OUT + 2 * KV_PAGE_TOKENS,
     PREEMPTS | DRAFTS},
    {"lookup, shared attention, evicted, two threads, shuffled",
     {.n_threads = 2, .batch = 16, .step_tokens = 32, .chunk_tokens = 16, SHARED, LOOKUP},
     true,
     LONGEST + N_OUT + 2 * KV_PAGE_TOKENS,
     CACHES | EVICTS | DRAFTS},
    {"lookup, whole prompts, what pays",
     {.n_threads = 2,
      .batch = 8,
      .step_tokens = 64,
      .chunk_tokens = 64,
      .whole_prompts = true,
      .speculation = SPECULATION_LOOKUP,
      SHARED},
     true,
     0,
     CACHES},
    {"heads, two threads, shuffled",
     {.n_threads = 2,
      .batch = 8,
      .step_tokens = 64,
      .chunk_tokens = 16,
      .speculation = SPECULATION_HEADS,
      .draft_always = true,
      .draft_tokens = 100},
     true,
     0,
     0},
    {"heads and lookup, shared attention, preempted",
     {.n_threads = 2,
      .batch = 16,
      .step_tokens = 512,
      .chunk_tokens = 512,
      .speculation = SPECULATION_LOOKUP | SPECULATION_HEADS,
      .draft_always = true,
      SHARED},
     false,
     LONGEST + N_OUT + 2 * KV_PAGE_TOKENS,
     CACHES | PREEMPTS | DRAFTS},
    {"draft model, one after another",
     {.n_threads = 1, .batch = 1, .step_tokens = 512, .chunk_tokens = 512, MODEL},
     false,
     0,
     DRAFTS},
    {"draft model, shared attention, chunk 16, two threads, shuffled",
     {.n_threads = 2, .batch = 16, .step_tokens = 48, .chunk_tokens = 16, SHARED, MODEL},
     true,
     0,
     CACHES | DRAFTS},
    {"draft model, preempted, few pages",
     {.n_threads = 1,
      .batch = 16,
      .step_tokens = 512,
      .chunk_tokens = 512,
      .draft_kv_bytes = 1 << 17,
      MODEL},
     false,
     LONGEST + N_OUT + 2 * KV_PAGE_TOKENS,
     PREEMPTS | DRAFTS},
    {"draft model and lookup, evicted, shuffled",
     {.n_threads = 2,
      .batch = 16,
      .step_tokens = 32,
      .chunk_tokens = 16,
      .speculation = SPECULATION_LOOKUP | SPECULATION_MODEL,
      .draft_always = true,
      SHARED},
     true,
     LONGEST + N_OUT + 2 * KV_PAGE_TOKENS,
     CACHES | EVICTS | DRAFTS},
    {"draft model, what pays",
     {.n_threads = 1,
      .batch = 8,
      .step_tokens = 64,
      .chunk_tokens = 64,
      .speculation = SPECULATION_MODEL,
      SHARED},
     false,
     0,
     CACHES},
};

static const char *const models[] = {"tiny-llama-q4_1.gguf", "tiny-llama-mix.gguf",
                                     "tiny-qwen2-q8_0.gguf", "tiny-qwen3-q8_0.gguf"};

/* Nearly the same, or quite. */
static const char *draft_model_of(const char *model)
{
    if (strcmp(model, "tiny-llama-q4_1.gguf") == 0)
        return "tiny-llama-q8_0.gguf";
    return strcmp(model, "tiny-qwen2-q8_0.gguf") == 0 ? "tiny-qwen2-f32.gguf" : model;
}

static const struct model *drafting; /* the draft model of what check_model checks */

/* A sanitizer looks at one model and one kernel set here; the other tests show it the rest. So
 * does a build of nothing but the reference kernels, which the other builds have too. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { N_MODELS = 1, IS_SLOW = 1 };
#elif defined(SHEAF_REF_ONLY)
enum { N_MODELS = 2, IS_SLOW = 0 };
#else
enum { N_MODELS = sizeof models / sizeof models[0], IS_SLOW = 0 };
#endif

/* Half of the jobs are greedy, half are sampled with everything on. */
static void submit_job(struct engine *eng, size_t index, uint64_t seed)
{
    static size_t ids[N_JOBS];
    int32_t prompt[LONGEST];
    for (size_t i = 0; i < prompts[index].length; i++) {
        const bool is_shared = i < prompts[index].shared;
        const uint64_t stream = is_shared ? 100 + prompts[index].document : index;
        prompt[i] = (int32_t)(rng_bits(5, stream, i) % 300);
    }
    ids[index] = index;
    struct seq_request req = {.prompt = prompt,
                              .n_prompt = prompts[index].length,
                              .max_tokens = N_OUT,
                              .ignore_eos = index % 3 != 0,
                              .sample = sample_params_greedy(),
                              .user = &ids[index]};
    if (index % 2 == 1) {
        req.sample.temperature = 0.9f;
        req.sample.top_p = 0.9f;
        req.sample.repetition_penalty = 1.1f;
        req.sample.presence_penalty = 0.2f;
        req.sample.frequency_penalty = 0.3f;
        req.sample.seed = seed;
        req.sample.stream = index;
    }
    struct err e = {0};
    if (engine_submit(eng, &req, &e) != 0)
        fail_msg("%s", e.text);
}

static void keep(struct answers *out, const struct seq_result *r)
{
    struct answer *a = &out->job[*(const size_t *)r->user];
    a->reason = r->reason;
    a->n_tokens = r->n_tokens;
    a->text_bytes = r->text_bytes;
    assert_true(r->n_tokens <= N_OUT && r->text_bytes < TEXT_MAX);
    memcpy(a->tokens, r->tokens, r->n_tokens * sizeof r->tokens[0]);
    memcpy(a->text, r->text, r->text_bytes);
    out->n_preempted += r->n_preempted;
}

static struct answers *answer_all(const struct model *m, const char *isa, enum kv_type kv,
                                  const struct lever *lever, uint64_t seed)
{
    struct answers *out = calloc(1, sizeof *out);
    assert_non_null(out);
    struct engine_options o = lever->options;
    const struct kvpool_shape shape = {.n_layers = m->config.n_layers,
                                       .n_kv_heads = m->config.n_kv_heads,
                                       .head_dim = m->config.head_dim,
                                       .type = kv};
    o.context = 256;
    o.draft_model = drafting;
    const size_t tokens = lever->pool_tokens ? lever->pool_tokens : N_JOBS * o.context;
    o.kv_bytes = (tokens + KV_PAGE_TOKENS - 1) / KV_PAGE_TOKENS * kvpool_page_bytes(&shape);
    const struct heads_shape shape_of_heads = {
        .n_heads = 3, .n_blocks = 1, .n_draft = 100, .scale = 0.03125f};
    struct heads *heads = heads_make(m, &shape_of_heads);
    o.heads = heads;
    struct engine *eng = golden_open_engine(m, isa, ACT_INT8, kv, &o);
    heads_close(heads);
    assert_string_equal(engine_kernels(eng)->name, isa);
    for (size_t i = 0; i < N_JOBS; i++) /* 7 and 24 have no common factor: every job once */
        submit_job(eng, lever->shuffled ? (i * 7 + 3) % N_JOBS : i, seed);
    size_t n = 0;
    struct seq_result r;
    while (n < N_JOBS) {
        if (engine_collect(eng, &r)) {
            keep(out, &r);
            n++;
            continue;
        }
        bool worked;
        struct err e = {0};
        assert_int_equal(engine_step(eng, &worked, &e), 0);
        assert_true(worked);
    }
    out->counters = engine_counters(eng);
    engine_close(eng);
    return out;
}

static int signs_of(const struct answers *a)
{
    return (a->counters.cached_tokens > 0 ? CACHES : 0) |
           (a->counters.prefix.pages_evicted > 0 ? EVICTS : 0) |
           (a->n_preempted > 0 ? PREEMPTS : 0) | (a->counters.drafts.accepted > 0 ? DRAFTS : 0);
}

/* The first job whose answers differ, or -1. */
static int first_difference(const struct answers *a, const struct answers *b)
{
    for (int i = 0; i < N_JOBS; i++) {
        const struct answer *x = &a->job[i], *y = &b->job[i];
        if (x->reason != y->reason || x->n_tokens != y->n_tokens ||
            x->text_bytes != y->text_bytes ||
            memcmp(x->tokens, y->tokens, x->n_tokens * sizeof x->tokens[0]) != 0 ||
            memcmp(x->text, y->text, x->text_bytes) != 0)
            return i;
    }
    return -1;
}

static void check_model(const char *name, enum kv_type kv)
{
    struct model *m = golden_open_tiny(name);
    struct model *draft_model = golden_open_tiny(draft_model_of(name));
    drafting = draft_model;
    const char *isas[3];
    const size_t n_isas = golden_isas(isas);
    struct answers *want = answer_all(m, "ref", kv, &plain, 42);
    for (size_t k = 0; k < n_isas; k++) {
        for (size_t i = 0; i < sizeof levers / sizeof levers[0]; i++) {
            if (k + 1 < n_isas &&
                (IS_SLOW || i % 4 != k)) /* the twins' bits are equal: a sample */
                continue;
            struct answers *got = answer_all(m, isas[k], kv, &levers[i], 42);
            const int job = first_difference(want, got);
            if (job >= 0)
                fail_msg("%s, %s kernels, %s: job %d differs", name, isas[k], levers[i].name,
                         job);
            const int missing = levers[i].signs & ~signs_of(got);
            const int allowed = levers[i].signs | (levers[i].options.speculation ? DRAFTS : 0);
            const int surplus = levers[i].pool_tokens ? 0 : signs_of(got) & ~allowed;
            if (missing || surplus)
                fail_msg("%s: signs %d, not %d", levers[i].name, signs_of(got),
                         levers[i].signs);
            free(got);
        }
    }
    free(want);
    drafting = NULL;
    model_close(draft_model);
    model_close(m);
}

static void no_lever_changes_an_answer_over_a_bf16_cache(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_MODELS; i++)
        check_model(models[i], KV_BF16);
}

static void no_lever_changes_an_answer_over_a_f32_cache(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_MODELS; i++)
        if (!strstr(models[i],
                    "mix")) /* the large one: its weights know nothing of the cache */
            check_model(models[i], KV_F32);
}

/* One model: what it adds to the others is the same for all. */
static void no_lever_changes_an_answer_over_an_int8_cache(void **state)
{
    (void)state;
    check_model("tiny-llama-q4_1.gguf", KV_INT8);
}

/* The twin: what must differ is seen to differ, and only there. */
static void the_comparison_sees_another_seed(void **state)
{
    (void)state;
    struct model *m = golden_open_tiny(models[0]);
    struct answers *a = answer_all(m, "ref", KV_BF16, &plain, 42);
    struct answers *b = answer_all(m, "ref", KV_BF16, &plain, 43);
    assert_int_equal(first_difference(a, b), 1); /* job 0 is greedy */
    memcpy(b, a, sizeof *b);
    assert_int_equal(first_difference(a, b), -1);
    b->job[7].tokens[b->job[7].n_tokens - 1] ^= 1;
    assert_int_equal(first_difference(a, b), 7);
    free(a);
    free(b);
    model_close(m);
}

/* Rows of one chunk are bounded by the batch. */
static void logits_are_the_same_bits_for_every_chunk(void **state)
{
    (void)state;
    enum { N = 101 };
    int32_t ids[N];
    for (size_t i = 0; i < N; i++)
        ids[i] = (int32_t)(rng_bits(6, 0, i) % 300);
    for (size_t i = 0; i < sizeof models / sizeof models[0]; i++) {
        struct model *m = golden_open_tiny(models[i]);
        const size_t n = N * m->config.n_vocab;
        float *logits[3];
        static const size_t chunks[3] = {1, 64, 13};
        for (size_t k = 0; k < 3; k++) {
            const struct engine_options o = {
                .n_threads = 1 + k % 2, .batch = 64, .chunk_tokens = chunks[k]};
            const char *isas[3];
            const size_t n_isas = golden_isas(isas);
            struct engine *eng = golden_open_engine(m, isas[k % n_isas], ACT_INT8, KV_BF16, &o);
            struct err e = {0};
            logits[k] = malloc(n * sizeof(float));
            assert_int_equal(engine_logits(eng, ids, N, logits[k], &e), 0);
            engine_close(eng);
        }
        assert_memory_equal(logits[0], logits[1], n * sizeof(float));
        assert_memory_equal(logits[0], logits[2], n * sizeof(float));
        for (size_t k = 0; k < 3; k++)
            free(logits[k]);
        model_close(m);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_lever_changes_an_answer_over_a_bf16_cache),
        cmocka_unit_test(no_lever_changes_an_answer_over_a_f32_cache),
        cmocka_unit_test(no_lever_changes_an_answer_over_an_int8_cache),
        cmocka_unit_test(the_comparison_sees_another_seed),
        cmocka_unit_test(logits_are_the_same_bits_for_every_chunk),
    };
    return cmocka_run_group_tests_name("equality", tests, NULL, NULL);
}
