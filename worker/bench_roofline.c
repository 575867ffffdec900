/*
 * sheaf bench roofline: whole steps of the engine beside the least time that they could take.
 *
 * Prefill: a prompt alone, in the engine's own chunks, beside one step that reads every weight
 * once. Decode: n sequences on one prefix, which is in the cache already, each with a few
 * tokens of its own; from the step in which all of them decode, a number of steps is timed
 * together. Formula and what it leaves out: roofline.h. The peaks are read beside each repeat,
 * and a ratio is the median of the repeats' ratios. Attention's operations are those that
 * kernels.h has: float32 FMAs for KV of bf16 and f32, products of words for int8.
 */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/limits.h"
#include "base/rng.h"
#include "bench.h"
#include "bench_median.h"
#include "peak.h"
#include "roofline.h"
#include "setup.h"

enum {
    REPEATS_MAX = 99,
    PROMPT_TOKENS = 2000,
    PREFIX_TOKENS = 2048,
    OWN_TOKENS = 8, /* of a sequence, behind the prefix */
};

static const size_t sizes[] = {1, 8, 32};
enum { N_SIZES = sizeof sizes / sizeof sizes[0] };

struct figure {
    size_t sequences; /* 0: prefill */
    double tok_s, roofline_tok_s, ratio, spread;
    bool is_read_bound;
};

struct bench {
    const struct model *model;
    struct engine *engine;
    enum kv_type kv_type;
    struct roofline_model counts;
    int32_t *prompt; /* owned; the longest one */
    size_t n_prompt, n_prefix, n_answer, repeats;
    uint64_t n_made; /* prompts so far: no two share a page */
    struct figure figures[1 + N_SIZES];
};

/* ------------------------------------------------------------------ one measurement */

struct sample {
    double seconds, roofline_s;
    double tokens;
    bool is_read_bound;
};

static void make_tokens(struct bench *b, size_t begin, size_t end)
{
    b->n_made++;
    for (size_t i = begin; i < end; i++)
        b->prompt[i] = (int32_t)(rng_bits(1, b->n_made, i) % b->model->config.n_vocab);
}

static int submit(struct bench *b, size_t n_prompt, size_t max_tokens, struct err *e)
{
    const struct seq_request req = {.prompt = b->prompt,
                                    .n_prompt = n_prompt,
                                    .max_tokens = max_tokens,
                                    .ignore_eos = true,
                                    .sample = sample_params_greedy()};
    return engine_submit(b->engine, &req, e);
}

/* Steps until everything is collected; *cached is the least number of cached tokens. */
static int drain(struct bench *b, size_t *cached, struct err *e)
{
    struct seq_result r;
    *cached = SIZE_MAX;
    while (engine_active(b->engine) > 0) {
        bool worked;
        TRY(engine_step(b->engine, &worked, e));
        while (engine_collect(b->engine, &r))
            if (r.n_cached < *cached)
                *cached = r.n_cached;
    }
    return 0;
}

static void finish_sample(const struct bench *b, const struct roofline_step *step,
                          const struct roofline_peaks *peaks, struct sample *out)
{
    out->roofline_s = roofline_s(&b->counts, step, peaks);
    out->is_read_bound = roofline_read_s(&b->counts, step, peaks) == out->roofline_s;
}

static int time_prefill(struct bench *b, const struct roofline_peaks *peaks, struct sample *out,
                        struct err *e)
{
    size_t cached;
    make_tokens(b, 0, b->n_prompt);
    TRY(submit(b, b->n_prompt, 1, e));
    const int64_t began_us = clock_mono_us();
    TRY(drain(b, &cached, e));
    out->seconds = (double)(clock_mono_us() - began_us) / 1e6;
    out->tokens = (double)b->n_prompt;
    if (cached != 0)
        return ERR_SET(e, ERR_STATE, "%zu tokens of a new prompt were in the cache", cached);
    const struct roofline_step step = roofline_prefill((double)b->n_prompt);
    finish_sample(b, &step, peaks, out);
    return 0;
}

static int refuse_lengths(const struct bench *b, size_t n, struct err *e)
{
    return ERR_SET(
        e, ERR_LIMIT,
        "%zu sequences on a prefix of %zu tokens with answers of %zu do not fit the "
        "context or the KV cache; lower --prompt-tokens or --answer-tokens, or raise "
        "--kv-mb",
        n, b->n_prefix, b->n_answer);
}

/* Steps until n rows decode and nothing else; *row_keys: the keys that they will see next. */
static int step_until_all_decode(struct bench *b, size_t n, double *row_keys, struct err *e)
{
    const struct engine_counters first = engine_counters(b->engine);
    struct engine_counters before, after = first;
    do {
        bool worked;
        struct seq_result early;
        before = after;
        TRY(engine_step(b->engine, &worked, e));
        after = engine_counters(b->engine);
        if (!worked || engine_collect(b->engine, &early))
            return refuse_lengths(b, n, e);
    } while (after.rows - before.rows != n || after.computed_tokens != before.computed_tokens);
    /* The last prompt row of each gave its first token, every other row one more. */
    const double generated = (double)n + (double)(after.rows - first.rows) -
                             (double)(after.computed_tokens - first.computed_tokens);
    *row_keys = (double)n * (double)(b->n_prefix + OWN_TOKENS) + generated;
    return 0;
}

static int time_decode(struct bench *b, size_t n, const struct roofline_peaks *peaks,
                       struct sample *out, struct err *e)
{
    double row_keys = 0;
    size_t cached;
    for (size_t i = 0; i < n; i++) {
        make_tokens(b, b->n_prefix, b->n_prefix + OWN_TOKENS);
        TRY(submit(b, b->n_prefix + OWN_TOKENS, b->n_answer + n * OWN_TOKENS + 2, e));
    }
    TRY(step_until_all_decode(b, n, &row_keys, e));
    const uint64_t first_row = engine_counters(b->engine).rows;
    const int64_t began_us = clock_mono_us();
    for (size_t i = 0; i < b->n_answer; i++) {
        bool worked;
        TRY(engine_step(b->engine, &worked, e));
    }
    const double steps = (double)b->n_answer;
    out->seconds = (double)(clock_mono_us() - began_us) / 1e6 / steps;
    out->tokens = (double)n;
    if (engine_counters(b->engine).rows - first_row != n * b->n_answer)
        return refuse_lengths(b, n, e); /* some were at their end before */
    /* Each step adds a key to every row, so the middle one stands for all. */
    row_keys += (double)n * (steps - 1) / 2;
    engine_cancel_all(b->engine);
    TRY(drain(b, &cached, e));
    if (cached + KV_PAGE_TOKENS <= b->n_prefix)
        return ERR_SET(e, ERR_STATE, "only %zu tokens of a prefix of %zu were shared", cached,
                       b->n_prefix);
    const struct roofline_step step = roofline_decode((double)n, row_keys, (double)b->n_prefix);
    finish_sample(b, &step, peaks, out);
    return 0;
}

/* ------------------------------------------------------------------ figures */

static int read_peaks(const struct bench *b, struct roofline_peaks *out, struct err *e)
{
    const size_t threads = engine_plan(b->engine).n_threads;
    const enum kernels_isa isa = engine_kernels(b->engine)->isa;
    TRY(peak_int8(isa, threads, &out->int8, e));
    TRY(peak_f32(isa, threads, &out->f32, e));
    out->attention = out->f32;
    if (b->kv_type == KV_INT8)
        TRY(peak_int16(isa, threads, &out->attention, e));
    return peak_read(threads, &out->read, e);
}

static int measure(struct bench *b, size_t n, struct figure *out, struct err *e)
{
    double ratios[REPEATS_MAX], speeds[REPEATS_MAX], roofs[REPEATS_MAX];
    struct sample s = {0};
    size_t n_read_bound = 0;
    for (size_t i = 0; i < b->repeats; i++) {
        struct roofline_peaks peaks;
        TRY(read_peaks(b, &peaks, e));
        TRY(n == 0 ? time_prefill(b, &peaks, &s, e) : time_decode(b, n, &peaks, &s, e));
        ratios[i] = s.roofline_s / s.seconds;
        speeds[i] = s.tokens / s.seconds;
        roofs[i] = s.tokens / s.roofline_s;
        n_read_bound += s.is_read_bound;
    }
    const struct median ratio = median_of(ratios, b->repeats);
    *out = (struct figure){.sequences = n,
                           .tok_s = median_of(speeds, b->repeats).value,
                           .roofline_tok_s = median_of(roofs, b->repeats).value,
                           .ratio = ratio.value,
                           .spread = ratio.spread,
                           .is_read_bound = 2 * n_read_bound > b->repeats};
    return 0;
}

static json_t *figure_json(const struct figure *f)
{
    return json_pack("{s:I, s:f, s:f, s:f, s:f, s:s}", "sequences", (json_int_t)f->sequences,
                     "tok_s", f->tok_s, "roofline_tok_s", f->roofline_tok_s, "ratio", f->ratio,
                     "spread", f->spread, "bound", f->is_read_bound ? "reading" : "computing");
}

static void print_json(const struct bench *b)
{
    json_t *decode = json_array();
    for (size_t i = 0; i < N_SIZES; i++)
        json_array_append_new(decode, figure_json(&b->figures[1 + i]));
    json_t *root =
        json_pack("{s:s, s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:o, s:o}", "model", b->model->name,
                  "quant", b->model->quant, "kernels", engine_kernels(b->engine)->name,
                  "threads", (json_int_t)engine_plan(b->engine).n_threads, "prompt_tokens",
                  (json_int_t)b->n_prompt, "prefix_tokens", (json_int_t)b->n_prefix,
                  "answer_tokens", (json_int_t)b->n_answer, "repeats", (json_int_t)b->repeats,
                  "prefill", figure_json(&b->figures[0]), "decode", decode);
    json_dumpf(root, stdout, JSON_INDENT(2));
    putchar('\n');
    json_decref(root);
}

static void print_text(const struct bench *b)
{
    printf("%s (%s), %s kernels, %zu threads; prefill of %zu tokens, decoding on a prefix of "
           "%zu; medians of %zu with (greatest - smallest) / median\n",
           b->model->name, b->model->quant, engine_kernels(b->engine)->name,
           engine_plan(b->engine).n_threads, b->n_prompt, b->n_prefix, b->repeats);
    for (size_t i = 0; i < 1 + N_SIZES; i++) {
        const struct figure *f = &b->figures[i];
        char name[48] = "prefill";
        if (f->sequences > 0)
            snprintf(name, sizeof name, "decode, %2zu sequences", f->sequences);
        printf("%-20s %8.1f tok/s   %.2f (%.2f) of %.1f, bound by %s\n", name, f->tok_s,
               f->ratio, f->spread, f->roofline_tok_s,
               f->is_read_bound ? "reading" : "computing");
    }
}

/* ------------------------------------------------------------------ all of it */

static int measure_all(struct bench *b, struct err *e)
{
    const struct engine_plan plan = engine_plan(b->engine);
    size_t cached;
    struct sample ignored;
    const struct roofline_peaks any = {1, 1, 1, 1};
    b->counts.weights_bytes = (double)plan.weights_bytes;
    b->counts.kv_token_bytes = (double)plan.kv_bytes / ((double)plan.kv_pages * KV_PAGE_TOKENS);
    TRY(time_prefill(b, &any, &ignored, e)); /* the first touch of the memory */
    TRY(measure(b, 0, &b->figures[0], e));
    make_tokens(b, 0, b->n_prefix + OWN_TOKENS);
    TRY(submit(b, b->n_prefix + OWN_TOKENS, 1, e)); /* puts the prefix into the cache */
    TRY(drain(b, &cached, e));
    for (size_t i = 0; i < N_SIZES; i++)
        TRY(measure(b, sizes[i], &b->figures[1 + i], e));
    return 0;
}

static int choose_sizes(struct bench *b, const struct cli *cli, struct err *e)
{
    const int64_t n = cli->prompt_tokens;
    b->n_prompt = n < 0 ? PROMPT_TOKENS : (size_t)n;
    b->n_prefix = n < 0 ? PREFIX_TOKENS : (size_t)n;
    b->n_answer = (size_t)cli->answer_tokens;
    b->repeats = (size_t)cli->repeats;
    if (b->n_prefix < KV_PAGE_TOKENS || b->n_answer < 1)
        return ERR_SET(e, ERR_USAGE, "a prefix has at least %d tokens, an answer one",
                       KV_PAGE_TOKENS);
    if (b->repeats < 1 || b->repeats > REPEATS_MAX)
        return ERR_SET(e, ERR_USAGE, "--repeats is 1 to %d", REPEATS_MAX);
    b->prompt = calloc(b->n_prompt + b->n_prefix + OWN_TOKENS, sizeof b->prompt[0]);
    return b->prompt ? 0 : ERR_SET(e, ERR_NOMEM, "no memory for a prompt");
}

static int refuse_device(const struct engine *eng, struct err *e)
{
    const char *device = engine_plan(eng).device;
    if (!device)
        return 0;
    return ERR_SET(e, ERR_CONFIG,
                   "the peaks of this roofline are the CPU's, and %s computes; ops/gpu-check "
                   "holds a device against its own, or take --device cpu",
                   device);
}

int bench_roofline(struct cli *cli, struct err *e)
{
    struct bench b = {0};
    struct model *m = NULL;
    struct engine_options options;
    int rc = 0;
    TRY_OUT(rc, choose_sizes(&b, cli, e));
    TRY_OUT(rc, setup_engine_options(&cli->settings, &options, e));
    options.batch = sizes[N_SIZES - 1];
    options.prefix_cache = true;
    options.shared_attention = true;
    options.speculation = SPECULATION_OFF;
    TRY_OUT(rc, setup_open_model(&cli->settings, &m, e));
    TRY_OUT(rc, engine_open(m, &options, &b.engine, e));
    TRY_OUT(rc, refuse_device(b.engine, e));
    b.model = m;
    b.kv_type = options.kv_type;
    b.counts = roofline_count(m, options.activations == ACT_INT8);
    TRY_OUT(rc, measure_all(&b, e));
    if (cli->json)
        print_json(&b);
    else
        print_text(&b);
out:
    free(b.prompt);
    engine_close(b.engine);
    model_close(m);
    return rc == 0 ? 0 : cli_exit_code(e);
}
