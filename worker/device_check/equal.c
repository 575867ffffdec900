/*
 * The same jobs under many levers. With `exact`, every answer has to be the same, token for
 * token, as when each job runs alone. Without it, and beside the CPU, two answers may part
 * where two tokens are nearly as likely: at the first place where they do, the CPU's logits of
 * the two are at most twice the error of the device apart, and those errors are small. What
 * is more is a fault. Sampled answers are compared where they have to be the same.
 */
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/limits.h"
#include "base/rng.h"
#include "base/size.h"
#include "device_check/check.h"
#include "device_check/print.h"

enum {
    N_JOBS = 16,
    N_OUT = 24,
    PROMPT_MAX = 200,
    CONTEXT = 256,
    N_DOCUMENTS = 3,
    ERRORS_MAX = 2, /* between the two tokens of a tie */
};
/* Of a logit, as a share of the logits' spread. bfloat16 has 8 bits: 1/256 a product. */
static const double ERROR_MAX = 0.25, RMS_MAX = 0.05;

/* Prompts that end around page borders; the first `shared` tokens are of a document. */
static const struct {
    size_t length, shared, document;
} prompts[N_JOBS] = {
    {1, 0, 0},     {31, 0, 0},    {32, 0, 0},    {33, 0, 0},   {65, 64, 0},  {80, 64, 0},
    {97, 64, 0},   {70, 40, 1},   {128, 96, 1},  {129, 96, 1}, {150, 96, 1}, {200, 160, 2},
    {170, 160, 2}, {161, 160, 2}, {190, 160, 2}, {100, 31, 2},
};

struct answers {
    int32_t tokens[N_JOBS][N_OUT];
    size_t n[N_JOBS];
};

struct lever {
    const char *name;
    bool exact, is_cpu;
    struct engine_options options;
};

#define ALONE    .batch = 1, .step_tokens = 64, .chunk_tokens = 64
#define TOGETHER .batch = 16, .step_tokens = 256, .chunk_tokens = 128
#define GRAPHS   .device_graphs = true
#define SHARED                                                                                 \
    .prefix_cache = true, .prefix_tokens_min = KV_PAGE_TOKENS, .shared_attention = true
#define DRAFTS .speculation = SPECULATION_LOOKUP, .draft_always = true
#define HEADS  .speculation = SPECULATION_HEADS, .draft_always = true

/* The first is what the others are compared with. */
static const struct lever levers[] = {
    {"exact, one after another", true, false, {ALONE}},
    {"exact, one after another, graphs", true, false, {ALONE, GRAPHS}},
    {"exact, all at once, shared", true, false, {TOGETHER, SHARED}},
    {"exact, chunks of 16, shared, graphs",
     true,
     false,
     {.batch = 8, .step_tokens = 48, .chunk_tokens = 16, SHARED, GRAPHS}},
    {"exact, a step ahead, shared, graphs",
     true,
     false,
     {TOGETHER, SHARED, GRAPHS, .device_ahead = true}},
    {"exact, drafts, shared, graphs", true, false, {TOGETHER, SHARED, DRAFTS, GRAPHS}},
    {"exact, heads, shared, graphs", true, false, {TOGETHER, SHARED, HEADS, GRAPHS}},
    {"fast, one after another", false, false, {ALONE}},
    {"fast, all at once, shared, graphs", false, false, {TOGETHER, SHARED, GRAPHS}},
    {"fast, all at once, apart", false, false, {TOGETHER, .prefix_cache = true}},
    {"fast, chunks of 16, shared, graphs",
     false,
     false,
     {.batch = 8, .step_tokens = 48, .chunk_tokens = 16, SHARED, GRAPHS}},
    {"fast, drafts, shared, graphs", false, false, {TOGETHER, SHARED, DRAFTS, GRAPHS}},
    {"fast, heads, shared, graphs", false, false, {TOGETHER, SHARED, HEADS, GRAPHS}},
    {"the CPU in float32", false, true, {ALONE}},
};
static const struct lever sampled[] = {
    {"exact, sampled, one after another", true, false, {ALONE}},
    {"exact, sampled, all at once, shared, graphs", true, false, {TOGETHER, SHARED, GRAPHS}},
    {"exact, sampled, drafts, shared, graphs", true, false, {TOGETHER, SHARED, DRAFTS, GRAPHS}},
};
enum {
    N_LEVERS = sizeof levers / sizeof levers[0],
    N_SAMPLED = sizeof sampled / sizeof sampled[0],
};

struct equal {
    const struct check_options *options;
    const struct model *model;
    struct heads *heads;
    struct engine *cpu, *device;       /* for logits */
    float *cpu_logits, *device_logits; /* [PROMPT_MAX + N_OUT, V] owned */
    size_t n_unexplained;
};

static void make_prompt(const struct model *m, size_t job, int32_t *out)
{
    for (size_t i = 0; i < prompts[job].length; i++) {
        const bool is_shared = i < prompts[job].shared;
        const uint64_t stream = is_shared ? N_JOBS + prompts[job].document : job;
        out[i] = (int32_t)(rng_bits(3, stream, i) % m->config.n_vocab);
    }
}

static int open_engine(const struct equal *q, const struct lever *lever, struct engine **out,
                       struct err *e)
{
    const struct rig_options *rig = &q->options->rig;
    struct engine_options o = lever->options;
    o.device = lever->is_cpu ? "cpu" : rig->device;
    o.device_ordinal = rig->ordinal;
    o.device_exact = lever->exact;
    o.context = CONTEXT;
    o.kv_type = KV_BF16;
    o.activations = ACT_F32;
    o.heads = q->heads;
    return engine_open(q->model, &o, out, e);
}

/* ------------------------------------------------------------------ answers */

/* From a narrow cut, from a wide one, and from all tokens: of the last two some draws go beyond
 * a device's candidates. */
static struct sample_params sample_of(size_t job)
{
    static const float temperatures[] = {0.8f, 1, 1.5f}, top_p[] = {0.9f, 0.999f, 1};
    struct sample_params p = sample_params_greedy();
    p.temperature = temperatures[job % 3];
    p.top_p = top_p[job % 3];
    p.stream = job;
    return p;
}

static int submit_all(const struct equal *q, struct engine *eng, bool samples, struct err *e)
{
    static size_t ids[N_JOBS];
    int32_t prompt[PROMPT_MAX];
    for (size_t i = 0; i < N_JOBS; i++) {
        make_prompt(q->model, i, prompt);
        ids[i] = i;
        const struct seq_request req = {.prompt = prompt,
                                        .n_prompt = prompts[i].length,
                                        .max_tokens = N_OUT,
                                        .ignore_eos = true,
                                        .sample =
                                            samples ? sample_of(i) : sample_params_greedy(),
                                        .user = &ids[i]};
        TRY(engine_submit(eng, &req, e));
    }
    return 0;
}

/* A device that left them to the CPU would answer the same. */
static int check_ran_heads(const struct engine *eng, const struct lever *lever, struct err *e)
{
    struct device_counters counters;
    const bool has_heads = lever->options.speculation & SPECULATION_HEADS;
    if (!engine_device_counters(eng, &counters))
        return 0;
    if ((counters.of[DEVICE_GUESS].launches > 0) == has_heads)
        return 0;
    return ERR_SET(e, ERR_IO, "%s: the device has %s", lever->name,
                   has_heads ? "not run the heads" : "run heads that nobody asked");
}

static int answer_all(const struct equal *q, const struct lever *lever, bool samples,
                      struct answers *out, struct err *e)
{
    struct engine *eng = NULL;
    struct seq_result r;
    int rc = 0;
    TRY_OUT(rc, open_engine(q, lever, &eng, e));
    TRY_OUT(rc, submit_all(q, eng, samples, e));
    while (engine_active(eng) > 0) {
        bool worked;
        TRY_OUT(rc, engine_step(eng, &worked, e));
        while (engine_collect(eng, &r)) {
            const size_t job = *(const size_t *)r.user;
            out->n[job] = size_min(r.n_tokens, N_OUT);
            memcpy(out->tokens[job], r.tokens, out->n[job] * sizeof r.tokens[0]);
        }
    }
    TRY_OUT(rc, check_ran_heads(eng, lever, e));
out:
    engine_close(eng);
    return rc;
}

/* ------------------------------------------------------------------ explaining */

struct gap {
    double margin; /* of the two tokens' logits, the CPU's */
    double error;  /* the greatest of the device's logits */
    double spread; /* standard deviation of the CPU's */
};

/* Logits of all positions of a text, the CPU's and the device's. */
static int compute_logits(struct equal *q, const int32_t *text, size_t n, struct err *e)
{
    TRY(engine_logits(q->cpu, text, n, q->cpu_logits, e));
    return engine_logits(q->device, text, n, q->device_logits, e);
}

static struct gap gap_of(const struct equal *q, size_t row, int32_t a, int32_t b)
{
    const size_t n = q->model->config.n_vocab;
    const float *cpu = q->cpu_logits + row * n, *device = q->device_logits + row * n;
    struct gap gap = {.margin = fabs((double)cpu[a] - (double)cpu[b])};
    double sum = 0, squares = 0;
    for (size_t i = 0; i < n; i++) {
        const double error = fabs((double)device[i] - (double)cpu[i]);
        gap.error = error > gap.error || isnan(error) ? error : gap.error;
        sum += (double)cpu[i];
        squares += (double)cpu[i] * (double)cpu[i];
    }
    const double mean = sum / (double)n;
    gap.spread = sqrt(fmax(squares / (double)n - mean * mean, 0));
    return gap;
}

/* NaN explains nothing. */
static bool is_explained(const struct gap *g)
{
    return g->margin <= ERRORS_MAX * g->error && g->error <= ERROR_MAX * g->spread;
}

static int explain(struct equal *q, size_t job, size_t at, const struct answers *a,
                   const struct answers *b, bool *explained, struct err *e)
{
    int32_t text[PROMPT_MAX + N_OUT];
    const size_t n = prompts[job].length + at;
    make_prompt(q->model, job, text);
    memcpy(text + prompts[job].length, a->tokens[job], at * sizeof text[0]);
    TRY(compute_logits(q, text, n, e));
    const struct gap g = gap_of(q, n - 1, a->tokens[job][at], b->tokens[job][at]);
    *explained = is_explained(&g);
    return print_line(json_pack("{s:s, s:I, s:I, s:o, s:o, s:o, s:b}", "what", "difference",
                                "job", (json_int_t)job, "token", (json_int_t)at, "margin",
                                print_number(g.margin), "error", print_number(g.error),
                                "spread", print_number(g.spread), "explained", (int)*explained),
                      e);
}

/* ------------------------------------------------------------------ comparing */

static size_t first_difference(const struct answers *a, const struct answers *b, size_t job)
{
    size_t at = 0;
    while (at < N_OUT && a->tokens[job][at] == b->tokens[job][at])
        at++;
    return at;
}

static int compare(struct equal *q, const struct lever *lever, const struct answers *want,
                   const struct answers *got, struct err *e)
{
    size_t n_same = 0, n_explained = 0;
    for (size_t job = 0; job < N_JOBS; job++) {
        const size_t at = first_difference(want, got, job);
        bool explained = false;
        if (want->n[job] != N_OUT || got->n[job] != N_OUT)
            continue; /* an answer of another length is a fault */
        n_same += at == N_OUT;
        if (at == N_OUT || lever->exact)
            continue;
        TRY(explain(q, job, at, want, got, &explained, e));
        n_explained += explained;
    }
    q->n_unexplained += N_JOBS - n_same - n_explained;
    return print_line(json_pack("{s:s, s:s, s:I, s:I, s:I, s:I}", "what", "equality", "lever",
                                lever->name, "jobs", (json_int_t)N_JOBS, "same",
                                (json_int_t)n_same, "explained", (json_int_t)n_explained,
                                "unexplained", (json_int_t)(N_JOBS - n_same - n_explained)),
                      e);
}

/* Root of the mean square of the device's errors over that of the CPU's logits. */
static int compare_logits(struct equal *q, struct err *e)
{
    double errors = 0, squares = 0;
    for (size_t job = 0; job < N_JOBS; job++) {
        int32_t text[PROMPT_MAX];
        make_prompt(q->model, job, text);
        TRY(compute_logits(q, text, prompts[job].length, e));
        for (size_t i = 0; i < prompts[job].length * q->model->config.n_vocab; i++) {
            const double cpu = (double)q->cpu_logits[i];
            const double error = (double)q->device_logits[i] - cpu;
            errors += error * error;
            squares += cpu * cpu;
        }
    }
    const double rms = sqrt(errors / squares);
    q->n_unexplained += !(rms <= RMS_MAX);
    return print_line(json_pack("{s:s, s:o, s:o}", "what", "logits", "rms_error",
                                print_number(rms), "rms_max", print_number(RMS_MAX)),
                      e);
}

/* A token that is no near tie, in the middle of an answer. */
static void plant_error(const struct equal *q, struct answers *a)
{
    int32_t *token = &a->tokens[N_JOBS / 2][N_OUT / 2];
    *token =
        (int32_t)(((size_t)*token + q->model->config.n_vocab / 2) % q->model->config.n_vocab);
}

static int compare_answers(struct equal *q, const struct lever *all, size_t n, bool samples,
                           struct err *e)
{
    struct answers want = {0};
    TRY(answer_all(q, &all[0], samples, &want, e));
    for (size_t i = 1; i < n; i++) {
        struct answers got = {0};
        TRY(answer_all(q, &all[i], samples, &got, e));
        if (q->options->plants_error && !all[i].exact)
            plant_error(q, &got);
        TRY(compare(q, &all[i], &want, &got, e));
    }
    return 0;
}

static int compare_all(struct equal *q, struct err *e)
{
    TRY(compare_logits(q, e));
    TRY(compare_answers(q, levers, N_LEVERS, false, e));
    return compare_answers(q, sampled, N_SAMPLED, true, e);
}

static int open_logits(struct equal *q, struct err *e)
{
    static const struct lever cpu = {"", false, true, {TOGETHER}};
    static const struct lever device = {"", false, false, {TOGETHER}};
    const size_t n = (PROMPT_MAX + N_OUT) * q->model->config.n_vocab;
    q->cpu_logits = calloc(n, sizeof(float));
    q->device_logits = calloc(n, sizeof(float));
    if (!q->cpu_logits || !q->device_logits)
        return ERR_SET(e, ERR_NOMEM, "no memory for logits");
    TRY(open_engine(q, &cpu, &q->cpu, e));
    return open_engine(q, &device, &q->device, e);
}

int check_equal(const struct check_options *o, bool *differs, struct err *e)
{
    struct equal q = {.options = o};
    struct model *m = NULL;
    int rc = 0;
    TRY_OUT(rc, model_open(o->model, &m, e));
    q.model = m;
    TRY_OUT(rc, check_heads_open(m, &q.heads, e));
    TRY_OUT(rc, open_logits(&q, e));
    TRY_OUT(rc, compare_all(&q, e));
    *differs = q.n_unexplained > 0;
out:
    engine_close(q.cpu);
    engine_close(q.device);
    free(q.cpu_logits);
    free(q.device_logits);
    heads_close(q.heads);
    model_close(m);
    return rc;
}
