/*
 * demo_texts [TEXTS [TOKENS [FORCED]]]: the demo model's golden texts on the emulated device,
 * for ops/claims/cuda-emu.
 *
 * Forced: the first FORCED texts are fed the exact ids, and the device's token must be the
 * exact one at every step but where two logits are nearly the same. Then both the reference's
 * gap and the device's between those two tokens are below the bound, and each such step is
 * counted. Free: the first TEXTS texts at once through the queue, TOKENS tokens of each, equal
 * up to the first step where the reference has a smaller gap than the bound.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/size.h"
#include "golden.h"

/* Of logits; twice what was measured. */
static const double BOUND = 0.25;

static struct model *model;
static size_t n_vocab;
static int n_failed;

static void fail(const char *what, size_t text, size_t step, double gap, double own_gap)
{
    printf("text %zu, token %zu: %s; the reference's gap is %.3f, the device's %.3f, the bound "
           "%.2f\n",
           text, step, what, gap, own_gap, BOUND);
    n_failed++;
}

static void stop(const char *what)
{
    printf("%s\n", what);
    exit(1);
}

static struct engine *open_engine(size_t n_rows)
{
    const struct engine_options o = {.n_threads = 1,
                                     .batch = n_rows,
                                     .step_tokens = n_rows,
                                     .chunk_tokens = n_rows,
                                     .context = 768,
                                     .kv_bytes = (size_t)96 << 20,
                                     .prefix_cache = true,
                                     .prefix_tokens_min = 32,
                                     .shared_attention = true,
                                     .device = "cuda-emu"};
    return golden_open_engine(model, "ref", ACT_INT8, KV_BF16, &o);
}

struct count {
    size_t steps, near_ties;
    double gap_max, own_gap_max; /* of the near-ties */
};

static void check_forced(struct engine *eng, const json_t *job, size_t text, struct count *c)
{
    size_t n_prompt, n_exact;
    int32_t *prompt = golden_ids(json_object_get(job, "prompt_ids"), &n_prompt);
    int32_t *exact = golden_ids(json_object_get(job, "exact_ids"), &n_exact);
    const size_t n = n_prompt + n_exact - 1;
    int32_t *both = malloc((n + 1) * sizeof both[0]);
    float *logits = malloc(n * n_vocab * sizeof logits[0]);
    if (!both || !logits)
        stop("no memory for logits");
    memcpy(both, prompt, n_prompt * sizeof both[0]);
    memcpy(both + n_prompt, exact, n_exact * sizeof both[0]);
    struct err e = {0};
    if (engine_logits(eng, both, n, logits, &e) != 0)
        stop(e.text);
    for (size_t i = 0; i < n_exact; i++) {
        const float *row = logits + (n_prompt - 1 + i) * n_vocab;
        const size_t best = golden_argmax(row, n_vocab);
        const double gap = golden_number(json_object_get(job, "gaps"), i);
        c->steps++;
        if (best == (size_t)exact[i])
            continue;
        const double own_gap = (double)row[best] - (double)row[exact[i]];
        c->near_ties++;
        c->gap_max = fmax(c->gap_max, gap);
        c->own_gap_max = fmax(c->own_gap_max, own_gap);
        if (!(gap < BOUND && own_gap < BOUND))
            fail("another token, and no near-tie", text, i, gap, own_gap);
    }
    free(logits);
    free(both);
    free(exact);
    free(prompt);
}

/* Of one text that came back: how many tokens are the reference's. */
static size_t check_free(const json_t *job, size_t text, const int32_t *tokens, size_t n)
{
    size_t n_exact, i = 0;
    int32_t *exact = golden_ids(json_object_get(job, "exact_ids"), &n_exact);
    double gap_min = INFINITY;
    for (; i < n && i < n_exact; i++) {
        gap_min = fmin(gap_min, golden_number(json_object_get(job, "gaps"), i));
        if (tokens[i] != exact[i])
            break;
    }
    if (i < n && i < n_exact && !(gap_min < BOUND))
        fail("leaves the reference without a near-tie", text, i, gap_min, NAN);
    free(exact);
    return i;
}

static void check_free_texts(const json_t *jobs, size_t n_texts, size_t n_tokens)
{
    struct engine *eng = open_engine(128);
    struct err e = {0};
    static size_t ids[64];
    for (size_t i = 0; i < n_texts; i++) {
        size_t n_prompt;
        int32_t *prompt =
            golden_ids(json_object_get(json_array_get(jobs, i), "prompt_ids"), &n_prompt);
        ids[i] = i;
        const struct seq_request req = {.prompt = prompt,
                                        .n_prompt = n_prompt,
                                        .max_tokens = n_tokens,
                                        .sample = sample_params_greedy(),
                                        .user = &ids[i]};
        if (engine_submit(eng, &req, &e) != 0)
            stop(e.text);
        free(prompt);
    }
    size_t n_done = 0, n_same = 0, n_all = 0;
    bool worked = true;
    while (n_done < n_texts) {
        struct seq_result r;
        if (engine_step(eng, &worked, &e) != 0)
            stop(e.text);
        for (; engine_collect(eng, &r); n_done++) {
            const size_t text = *(const size_t *)r.user;
            n_same += check_free(json_array_get(jobs, text), text, r.tokens, r.n_tokens);
            n_all += r.n_tokens;
        }
    }
    printf("free greedy: %zu texts, %zu of %zu tokens before the first near-tie's\n", n_texts,
           n_same, n_all);
    engine_close(eng);
}

int main(int argc, char **argv)
{
    json_t *jobs = golden_jsonl("golden/xquad/demo_greedy.jsonl");
    const size_t n_texts = size_min(argc > 1 ? strtoul(argv[1], NULL, 10) : 4, 24);
    const size_t n_tokens = argc > 2 ? strtoul(argv[2], NULL, 10) : 8;
    const size_t n_forced = size_min(argc > 3 ? strtoul(argv[3], NULL, 10) : 24, 24);
    model = golden_open_model(golden_demo_model());
    n_vocab = model->config.n_vocab;
    struct count c = {0};
    struct engine *eng = open_engine(128);
    for (size_t i = 0; i < n_forced; i++)
        check_forced(eng, json_array_get(jobs, i), i, &c);
    engine_close(eng);
    printf("forced greedy: %zu texts, %zu tokens, %zu near-ties with gaps of %.3f (the "
           "reference's) and %.3f (the device's) at most\n",
           n_forced, c.steps, c.near_ties, c.gap_max, c.own_gap_max);
    if (n_texts > 0)
        check_free_texts(jobs, n_texts, n_tokens);
    model_close(model);
    json_decref(jobs);
    return n_failed > 0;
}
