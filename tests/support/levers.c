#include "levers.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/limits.h"
#include "base/rng.h"
#include "device.h"
#include "engine/kvpool.h"
#include "golden.h"
#include "heads_make.h"

enum { LONGEST = 4 * KV_PAGE_TOKENS + 1 };

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

const struct lever lever_plain = {
    .name = "plain",
    .options = {.n_threads = 1, .batch = 1, .step_tokens = 512, .chunk_tokens = 512}};

#define CACHE  .prefix_cache = true, .prefix_tokens_min = 1, .evicts_by_demand = true
#define SHARED CACHE, .shared_attention = true
#define LOOKUP .speculation = SPECULATION_LOOKUP, .draft_always = true
#define MODEL  .speculation = SPECULATION_MODEL, .draft_always = true

const struct lever levers[] = {
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

const size_t n_levers = sizeof levers / sizeof levers[0];

const char *levers_draft_model(const char *model)
{
    if (strcmp(model, "tiny-llama-q4_1.gguf") == 0)
        return "tiny-llama-q8_0.gguf";
    return strcmp(model, "tiny-qwen2-q8_0.gguf") == 0 ? "tiny-qwen2-f32.gguf" : model;
}

/* Of plain sampling, from which a device gives candidates: drawn from all of a flat
 * distribution too, where they often do not do, and from a place on where the end is no longer
 * forbidden. */
static const struct {
    float temperature, top_p, min_p;
    int32_t top_k;
    size_t min_tokens;
} plain[] = {
    {0.9f, 0.9f, 0, 0, 0}, {3, 1, 0, 0, 0},        {1, 1, 0, 20, 0},
    {2, 1, 0.05f, 0, 9},   {1.5f, 0.97f, 0, 0, 0}, {0.6f, 1, 0, 0, 4},
};

static void sample_plainly(struct seq_request *req, size_t kind)
{
    req->sample.temperature = plain[kind].temperature;
    req->sample.top_p = plain[kind].top_p;
    req->sample.min_p = plain[kind].min_p;
    req->sample.top_k = plain[kind].top_k;
    req->min_tokens = plain[kind].min_tokens;
}

static void sample_with_penalties(struct sample_params *p)
{
    p->temperature = 0.9f;
    p->top_p = 0.9f;
    p->repetition_penalty = 1.1f;
    p->presence_penalty = 0.2f;
    p->frequency_penalty = 0.3f;
}

/* Half of the jobs are greedy, half are sampled, half of those with everything on. */
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
    req.sample.seed = seed;
    req.sample.stream = index;
    if (index % 4 == 1)
        sample_with_penalties(&req.sample);
    else if (index % 4 == 3)
        sample_plainly(&req, index / 4);
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

struct answers *levers_answer(const struct model *m, const struct model *drafting,
                              const char *isa, const char *device, enum kv_type kv,
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
    o.device = device;
    o.device_exact = true;
    o.device_ahead = strcmp(lever->name, lever_plain.name) != 0;
    struct engine *eng = golden_open_engine(m, isa, ACT_INT8, kv, &o);
    heads_close(heads);
    assert_string_equal(engine_plan(eng).kernels, device ? device : isa);
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
    engine_device_counters(eng, &out->device);
    engine_close(eng);
    return out;
}

static int signs_of(const struct answers *a)
{
    return (a->counters.cached_tokens > 0 ? CACHES : 0) |
           (a->counters.prefix.pages_evicted > 0 ? EVICTS : 0) |
           (a->n_preempted > 0 ? PREEMPTS : 0) | (a->counters.drafts.accepted > 0 ? DRAFTS : 0);
}

int levers_first_difference(const struct answers *a, const struct answers *b)
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

bool levers_shows_signs(const struct lever *lever, const struct answers *a)
{
    return (lever->signs & ~signs_of(a)) == 0;
}

void levers_check_signs(const struct lever *lever, const struct answers *a)
{
    const int allowed = lever->signs | (lever->options.speculation ? DRAFTS : 0);
    const int surplus = lever->pool_tokens ? 0 : signs_of(a) & ~allowed;
    if (surplus || !levers_shows_signs(lever, a))
        fail_msg("%s: signs %d, not %d", lever->name, signs_of(a), lever->signs);
}
