/*
 * sheaf bench engine: prefill and decode speed beside what the machine can do at most.
 *
 * The peaks are read in the same process, right before each figure. Prefill: one prompt, its
 * chunks alone. Decode: n sequences of that prompt length, from the step in which all have
 * their first token. Operations are those of the weight products, 2 for each weight a row
 * meets; attention is not counted, so the ratios are what is left to gain, not more.
 *
 * A device's speed has no ratio: the peaks are the CPU's. ops/gpu-check measures both.
 */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/rng.h"
#include "bench.h"
#include "bench_median.h"
#include "cli.h"
#include "peak.h"
#include "roofline.h"
#include "setup.h"

enum { REPEATS = 3, DECODE_SIZES = 3, PROMPT_TOKENS = 512 };

static const size_t decode_sizes[DECODE_SIZES] = {1, 8, 32};

struct bench {
    const struct model *model;
    struct engine *engine;
    int32_t *prompt;
    size_t n_prompt, n_answer;
    double layer_weights, head_weights; /* weights that a row meets */
    double read_bytes;                  /* weights that a step reads */
};

struct figure {
    size_t sequences; /* 0: prefill */
    double tok_s;
    double peak_ratio;      /* with a device these two are 0 */
    double bandwidth_ratio; /* 0 for prefill */
};

static void count_weights(struct bench *b)
{
    const struct roofline_model m = roofline_count(b->model, true);
    b->layer_weights = m.layer_byte_weights + m.layer_float_weights;
    b->head_weights = m.head_byte_weights + m.head_float_weights;
    b->read_bytes = (double)engine_plan(b->engine).weights_bytes;
}

static int submit(struct bench *b, size_t max_tokens, struct err *e)
{
    const struct seq_request req = {.prompt = b->prompt,
                                    .n_prompt = b->n_prompt,
                                    .max_tokens = max_tokens,
                                    .ignore_eos = true,
                                    .sample = sample_params_greedy()};
    return engine_submit(b->engine, &req, e);
}

/* Steps until everything is collected; the time of decoding counts from the step after which
 * generated holds a token of each sequence. */
static int drain(struct bench *b, struct err *e)
{
    struct seq_result r;
    while (engine_active(b->engine) > 0) {
        bool worked;
        TRY(engine_step(b->engine, &worked, e));
        while (engine_collect(b->engine, &r))
            ;
    }
    return 0;
}

static int time_prefill(struct bench *b, double *seconds, struct err *e)
{
    TRY(submit(b, 1, e));
    const int64_t began = clock_mono_us();
    TRY(drain(b, e));
    *seconds = (double)(clock_mono_us() - began) / 1e6;
    return 0;
}

static int refuse_lengths(const struct bench *b, size_t n, struct err *e)
{
    return ERR_SET(
        e, ERR_LIMIT,
        "%zu sequences of %zu and %zu tokens do not fit the context or the KV cache; "
        "lower --prompt-tokens or --answer-tokens, or raise --kv-mb",
        n, b->n_prompt, b->n_answer);
}

/* Prompts go in one step budget after another; once all decode, a step has a row for each. */
static int time_decode(struct bench *b, size_t n, double *seconds, size_t *tokens,
                       struct err *e)
{
    for (size_t i = 0; i < n; i++)
        TRY(submit(b, b->n_answer + n * b->n_prompt, e));
    uint64_t rows;
    do {
        rows = engine_counters(b->engine).rows;
        bool worked;
        struct seq_result early;
        TRY(engine_step(b->engine, &worked, e));
        if (!worked || engine_collect(b->engine, &early))
            return refuse_lengths(b, n, e);
    } while (engine_counters(b->engine).rows - rows != n ||
             engine_counters(b->engine).computed_tokens % b->n_prompt != 0);
    rows = engine_counters(b->engine).rows;
    const int64_t began = clock_mono_us();
    for (size_t i = 0; i < b->n_answer; i++) {
        bool worked;
        TRY(engine_step(b->engine, &worked, e));
    }
    *seconds = (double)(clock_mono_us() - began) / 1e6;
    *tokens = n * b->n_answer;
    if (engine_counters(b->engine).rows - rows != *tokens)
        return refuse_lengths(b, n, e); /* some were at their end before */
    engine_cancel_all(b->engine);
    return drain(b, e);
}

static bool is_on_device(const struct bench *b)
{
    return engine_plan(b->engine).device != NULL;
}

static int read_peaks(const struct bench *b, double *peak, double *read, struct err *e)
{
    const size_t threads = engine_plan(b->engine).n_threads;
    if (is_on_device(b))
        return 0;
    TRY(peak_int8(engine_kernels(b->engine)->isa, threads, peak, e));
    return peak_read(threads, read, e);
}

static int measure(struct bench *b, size_t n, struct figure *out, struct err *e)
{
    double tok_s[REPEATS], peaks[REPEATS], reads[REPEATS];
    for (int i = 0; i < REPEATS; i++) {
        double seconds;
        size_t tokens = b->n_prompt;
        TRY(read_peaks(b, &peaks[i], &reads[i], e));
        if (n == 0)
            TRY(time_prefill(b, &seconds, e));
        else
            TRY(time_decode(b, n, &seconds, &tokens, e));
        tok_s[i] = (double)tokens / seconds;
    }
    const double weights = b->layer_weights + (n == 0 ? 0 : b->head_weights);
    const double speed = median_of(tok_s, REPEATS).value;
    *out = (struct figure){.sequences = n, .tok_s = speed};
    if (is_on_device(b))
        return 0;
    out->peak_ratio = 2 * weights * speed / median_of(peaks, REPEATS).value;
    if (n > 0)
        out->bandwidth_ratio =
            b->read_bytes * speed / (double)n / median_of(reads, REPEATS).value;
    return 0;
}

static json_t *figure_json(const struct bench *b, const struct figure *f)
{
    json_t *o = json_pack("{s:f}", "tok_s", f->tok_s);
    if (!is_on_device(b))
        json_object_set_new(o, "peak_ratio", json_real(f->peak_ratio));
    if (f->sequences > 0)
        json_object_set_new(o, "sequences", json_integer((json_int_t)f->sequences));
    if (f->sequences > 0 && !is_on_device(b))
        json_object_set_new(o, "bandwidth_ratio", json_real(f->bandwidth_ratio));
    return o;
}

static void print_json(const struct bench *b, const struct figure *prefill,
                       const struct figure *decode)
{
    json_t *rows = json_array();
    for (size_t i = 0; i < DECODE_SIZES; i++)
        json_array_append_new(rows, figure_json(b, &decode[i]));
    json_t *root =
        json_pack("{s:s, s:s, s:s, s:I, s:I, s:I, s:o, s:o}", "model", b->model->name, "quant",
                  b->model->quant, "kernels", engine_plan(b->engine).kernels, "threads",
                  (json_int_t)engine_plan(b->engine).n_threads, "prompt_tokens",
                  (json_int_t)b->n_prompt, "answer_tokens", (json_int_t)b->n_answer, "prefill",
                  figure_json(b, prefill), "decode", rows);
    json_dumpf(root, stdout, JSON_INDENT(2));
    putchar('\n');
    json_decref(root);
}

static void print_ratios(const struct bench *b, const struct figure *f)
{
    if (!is_on_device(b))
        printf("   %.2f of the int8 peak", f->peak_ratio);
    if (!is_on_device(b) && f->sequences > 0)
        printf(", %.2f of the read bandwidth", f->bandwidth_ratio);
    putchar('\n');
}

static void print_text(const struct bench *b, const struct figure *prefill,
                       const struct figure *decode)
{
    printf("%s (%s), %s kernels, %zu threads, prompts of %zu tokens, answers of %zu; median of "
           "%d\n",
           b->model->name, b->model->quant, engine_plan(b->engine).kernels,
           engine_plan(b->engine).n_threads, b->n_prompt, b->n_answer, REPEATS);
    printf("prefill                %8.1f tok/s", prefill->tok_s);
    print_ratios(b, prefill);
    for (size_t i = 0; i < DECODE_SIZES; i++) {
        printf("decode, %2zu sequences   %8.1f tok/s", decode[i].sequences, decode[i].tok_s);
        print_ratios(b, &decode[i]);
    }
}

static int measure_and_print(struct bench *b, const struct cli *cli, struct err *e)
{
    count_weights(b);
    b->prompt = calloc(b->n_prompt, sizeof b->prompt[0]);
    if (!b->prompt)
        return ERR_SET(e, ERR_NOMEM, "no memory for a prompt");
    for (size_t i = 0; i < b->n_prompt; i++)
        b->prompt[i] = (int32_t)(rng_bits(1, 0, i) % b->model->config.n_vocab);
    struct figure prefill, decode[DECODE_SIZES];
    double ignored;
    TRY(time_prefill(b, &ignored, e)); /* the first touch of the memory */
    TRY(measure(b, 0, &prefill, e));
    for (size_t i = 0; i < DECODE_SIZES; i++)
        TRY(measure(b, decode_sizes[i], &decode[i], e));
    if (cli->json)
        print_json(b, &prefill, decode);
    else
        print_text(b, &prefill, decode);
    return 0;
}

static int open_and_bench(struct cli *cli, struct err *e)
{
    struct bench b = {.n_prompt =
                          cli->prompt_tokens < 0 ? PROMPT_TOKENS : (size_t)cli->prompt_tokens,
                      .n_answer = (size_t)cli->answer_tokens};
    if (b.n_prompt < 1 || b.n_answer < 1)
        return ERR_SET(e, ERR_USAGE, "prompts and answers need at least one token");
    struct model *m = NULL;
    struct engine_options options;
    TRY(setup_engine_options(&cli->settings, &options, e));
    options.batch = decode_sizes[DECODE_SIZES - 1];
    options.prefix_cache = false; /* every prompt is the same and is to be computed */
    options.speculation = SPECULATION_OFF;
    int rc = setup_open_model(&cli->settings, &m, e);
    if (rc == 0)
        rc = engine_open(m, &options, &b.engine, e);
    b.model = m;
    if (rc == 0)
        rc = measure_and_print(&b, cli, e);
    free(b.prompt);
    engine_close(b.engine);
    model_close(m);
    return rc;
}

static int bench_engine(struct cli *cli, struct err *e)
{
    return open_and_bench(cli, e) == 0 ? 0 : cli_exit_code(e);
}

static const struct {
    const char *name;
    size_t n_args; /* with the name, at most */
    int (*run)(struct cli *cli, struct err *e);
} kinds[] = {{"engine", 1, bench_engine},
             {"kernels", 2, bench_kernels},
             {"roofline", 1, bench_roofline},
             {"levers", 1, bench_levers}};

static int run(struct cli *cli, struct err *e)
{
    for (size_t i = 0; cli->n_args > 0 && i < sizeof kinds / sizeof kinds[0]; i++)
        if (strcmp(cli->args[0], kinds[i].name) == 0 && cli->n_args <= kinds[i].n_args)
            return kinds[i].run(cli, e);
    ERR_SET(
        e, ERR_USAGE,
        "usage: sheaf bench engine, kernels [WORD], roofline, or levers (sheaf bench --help "
        "tells more)");
    return EXIT_USAGE;
}

const struct command cmd_bench = {
    .name = "bench",
    .summary = "measure the engine beside the machine's peaks, and what each lever is worth",
    .usage = "engine | kernels [WORD] | roofline | levers --lever LEVER [-i FILE | "
             "--experiment NAME]",
    .text =
        "engine: tokens a second of prefill and of decoding 1, 8 and 32 sequences, as "
        "ratios to\n"
        "the byte-product peak and the read bandwidth measured in the same process; of a "
        "device\n"
        "without ratios, which ops/gpu-check has.\n\n"
        "kernels: products and attention beside their instruction's peak and the read\n"
        "bandwidth; only those with WORD in their name. Medians of --repeats.\n\n"
        "roofline: prefill of 2,000 tokens, and 1, 8 and 32 sequences that decode on a prefix\n"
        "of 2,048, beside the least time that the measured peaks leave. Medians of "
        "--repeats.\n\n"
        "levers: the same jobs with a lever off, on, on, off, and so on: prefix_cache, "
        "grouping,\n"
        "chunked_prefill, shared_attention or speculation. Jobs are those of FILE, or an\n"
        "experiment:\n"
        "  prefix    20 questions on a prefix of 4,000 tokens, one at a time\n"
        "  chunk     8 prompts of 8,000 tokens among 24 of 200, 8 at a time\n"
        "  document  32 questions on a prefix of 2,000 tokens, all at a time\n"
        "  shared    the same with 2,048 tokens and longer answers\n"
        "  spec      copying from a document, answers of a fixed form, stories, each apart, "
        "at\n"
        "            the setting batch; says which of them the lever pays for\n"
        "Speculation is on as it is set; where it is set off: lookup, and heads if their file\n"
        "is given.\n"
        "Each half is a row of table experiments; v_ab has the medians. Exits with 1 when an\n"
        "answer was not the same byte for byte.\n\n"
        "Examples:\n"
        "  sheaf bench engine\n"
        "  sheaf bench engine --prompt-tokens 2048 --json\n"
        "  sheaf bench kernels 'Q4_1 576'\n"
        "  sheaf bench roofline --json\n"
        "  sheaf bench levers --lever prefix_cache --experiment prefix --db bench.db\n"
        "  sheaf bench levers --lever speculation --experiment spec --batch 1\n"
        "  sheaf bench levers --lever chunked_prefill --experiment chunk --sweep",
    .takes = CLI_INPUT | CLI_JSON | CLI_PROMPT_TOKENS | CLI_LEVERS,
    .settings =
        "model db chat_template threads batch step_tokens prefill.chunk_tokens context kv.mb "
        "kv.type activations device device.ordinal device.exact device.graphs "
        "device.ahead device.weights max_tokens seed strict chunked_prefill prefix_cache "
        "prefix_cache.min_tokens prefix_cache.mb prefix_cache.evict shared_attention grouping "
        "speculation speculation.heads "
        "group.open group.max_wait_s window.jobs window.tokens documents documents.mb",
    .args_max = 2,
    .run = run,
};
