/*
 * Sampled tokens on a device: drawn from its candidates where those suffice, from the row where
 * they do not, and distributed as the softmax of the device's own logits says (chi-square
 * against doubles). What crosses to the host is counted.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "device.h"
#include "engine/engine_int.h"
#include "golden.h"

enum { PROMPT = 4, BATCH = 32, DRAWS = 1600 };
/* Of a normal distribution: one in a thousand lies beyond. */
static const double BEYOND = 3.09;
static const double EXPECTED_MIN = 8; /* cells of fewer draws are counted together */

static void make_prompt(int32_t *prompt)
{
    for (size_t i = 0; i < PROMPT; i++)
        prompt[i] = (int32_t)(rng_bits(21, 0, i) % 300);
}

static struct engine *open_engine(const struct model *m, size_t batch)
{
    const struct engine_options o = {.n_threads = 2,
                                     .batch = batch,
                                     .step_tokens = 256,
                                     .chunk_tokens = 32,
                                     .context = 64,
                                     .kv_bytes = 8 << 20,
                                     .device = "cuda-emu",
                                     .device_exact = true};
    return golden_open_engine(m, "ref", ACT_INT8, KV_BF16, &o);
}

static void submit(struct engine *eng, const struct sample_params *sample, size_t max_tokens,
                   size_t min_tokens, uint64_t stream)
{
    int32_t prompt[PROMPT];
    struct err e = {0};
    make_prompt(prompt);
    struct seq_request req = {.prompt = prompt,
                              .n_prompt = PROMPT,
                              .max_tokens = max_tokens,
                              .min_tokens = min_tokens,
                              .ignore_eos = true,
                              .sample = *sample};
    req.sample.stream = stream;
    if (engine_submit(eng, &req, &e) != 0)
        fail_msg("%s", e.text);
}

/* The last tokens of all that was submitted are counted, by id. */
static void count_tokens(struct engine *eng, size_t *counts)
{
    struct seq_result r;
    struct err e = {0};
    bool worked;
    while (engine_active(eng) > 0) {
        if (engine_collect(eng, &r))
            counts[r.tokens[r.n_tokens - 1]]++;
        else
            assert_int_equal(engine_step(eng, &worked, &e), 0);
    }
}

static struct device_counters counters_of(const struct engine *eng)
{
    struct device_counters c;
    assert_true(engine_device_counters(eng, &c));
    return c;
}

static struct sample_params params(float temperature, float top_p, int32_t top_k)
{
    struct sample_params p = sample_params_greedy();
    p.temperature = temperature;
    p.top_p = top_p;
    p.top_k = top_k;
    p.seed = 5;
    return p;
}

/* ------------------------------------------------------------------ the distribution */

/* Softmax of the device's logits behind the prompt, in doubles. */
static void expect(struct engine *eng, double temperature, double *p)
{
    const size_t n_vocab = eng->model->config.n_vocab;
    int32_t prompt[PROMPT];
    make_prompt(prompt);
    float *logits = malloc(PROMPT * n_vocab * sizeof logits[0]);
    struct err e = {0};
    assert_non_null(logits);
    if (engine_logits(eng, prompt, PROMPT, logits, &e) != 0)
        fail_msg("%s", e.text);
    double total = 0;
    for (size_t i = 0; i < n_vocab; i++)
        total += p[i] = exp((double)logits[(PROMPT - 1) * n_vocab + i] / temperature);
    for (size_t i = 0; i < n_vocab; i++)
        p[i] /= total;
    free(logits);
}

static bool follows(const size_t *counts, const double *p, size_t n_vocab)
{
    double chi = 0, rest = 0, n_rest = 0;
    size_t n_cells = 0;
    for (size_t i = 0; i < n_vocab; i++) {
        const double expected = p[i] * DRAWS, n = (double)counts[i];
        if (expected < EXPECTED_MIN) {
            rest += expected;
            n_rest += n;
            continue;
        }
        chi += (n - expected) * (n - expected) / expected;
        n_cells++;
    }
    if (rest > 0) {
        chi += (n_rest - rest) * (n_rest - rest) / rest;
        n_cells++;
    }
    /* Wilson and Hilferty 1931 */
    const double freedom = (double)n_cells - 1, v = 2 / (9 * freedom);
    const double limit = freedom * pow(1 - v + BEYOND * sqrt(v), 3);
    print_message("%zu cells, chi-square %.1f of at most %.1f\n", n_cells, chi, limit);
    return chi <= limit;
}

static void tokens_follow_the_distribution_of_the_devices_logits(void **state)
{
    (void)state;
    static const float temperatures[] = {0.8f, 1.5f};
    struct model *m = golden_open_tiny("tiny-llama-q8_0.gguf");
    struct engine *eng = open_engine(m, BATCH);
    const size_t n_vocab = m->config.n_vocab;
    double *p = calloc(n_vocab, sizeof p[0]);
    for (size_t i = 0; i < 2; i++) {
        size_t *counts = calloc(n_vocab, sizeof counts[0]);
        const struct sample_params sample = params(temperatures[i], 1, 0);
        for (uint64_t stream = 0; stream < DRAWS;) {
            for (size_t k = 0; k < BATCH; k++)
                submit(eng, &sample, 1, 0, stream++);
            count_tokens(eng, counts);
        }
        expect(eng, (double)temperatures[i], p);
        assert_true(follows(counts, p, n_vocab));
        expect(eng, (double)temperatures[i] * 1.3, p);
        assert_false(follows(counts, p, n_vocab));
        free(counts);
    }
    free(p);
    engine_close(eng);
    model_close(m);
}

/* ------------------------------------------------------------------ what crosses */

enum { TOKENS = 8 };

/* Bytes a token of BATCH jobs that run side by side. */
static double bytes_of(const struct model *m, const struct sample_params *sample,
                       size_t min_tokens)
{
    size_t *counts = calloc(m->config.n_vocab, sizeof counts[0]);
    struct engine *eng = open_engine(m, BATCH);
    for (size_t k = 0; k < BATCH; k++)
        submit(eng, sample, TOKENS, min_tokens, k);
    count_tokens(eng, counts);
    const struct device_counters c = counters_of(eng);
    engine_close(eng);
    free(counts);
    return (double)c.bytes_to_host / (BATCH * TOKENS);
}

static void a_sampled_row_crosses_only_where_candidates_do_not_do(void **state)
{
    (void)state;
    struct model *m = golden_open_tiny("tiny-llama-q8_0.gguf");
    const double token = sizeof(int32_t), candidates = 8 + 64 * 8;
    const double row = (double)(m->config.n_vocab * sizeof(float));
    const struct sample_params greedy = sample_params_greedy();
    const struct sample_params narrow = params(1, 1, 20), wide = params(2, 1, 0);
    struct sample_params penalised = narrow;
    penalised.presence_penalty = 0.1f;
    assert_true(bytes_of(m, &greedy, 0) == token);
    assert_true(bytes_of(m, &narrow, 0) == token + candidates);
    assert_true(bytes_of(m, &penalised, 0) == token + row);
    const double mixed = bytes_of(m, &wide, 0);
    print_message("a token takes %g bytes, of which %g are rows of %g\n", mixed,
                  mixed - token - candidates, row);
    assert_true(mixed > token + candidates && mixed < token + candidates + row);
    /* Ends are forbidden in the first half. */
    assert_true(bytes_of(m, &narrow, TOKENS / 2) == token + candidates / 2 + row / 2);
    model_close(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tokens_follow_the_distribution_of_the_devices_logits),
        cmocka_unit_test(a_sampled_row_crosses_only_where_candidates_do_not_do),
    };
    return cmocka_run_group_tests_name("sampling on a device", tests, NULL, NULL);
}
