#include "golden_tiny.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static json_t *expectations;
static float *last_logits;
static size_t n_last_logits;

static void check_last(const float *got, const float *want, size_t n,
                       const struct golden_tolerance *t, struct golden_worst *w)
{
    double square = 0;
    for (size_t i = 0; i < n; i++) {
        const double d = fabs((double)got[i] - (double)want[i]);
        if (!(d <= t->max_abs))
            fail_msg("logit %zu is off by %g", i, d);
        if (d > w->max_abs)
            w->max_abs = d;
        square += d * d;
    }
    const double rms = sqrt(square / (double)n);
    if (!(rms <= t->rms))
        fail_msg("rms of the last position is %g, allowed %g", rms, t->rms);
    if (rms > w->rms)
        w->rms = rms;
}

static void check_prompt(struct engine *eng, const json_t *prompt, size_t n_vocab,
                         const struct golden_tolerance *t, struct golden_worst *w)
{
    size_t n;
    int32_t *ids = golden_ids(json_object_get(prompt, "ids"), &n);
    float *logits = malloc(n * n_vocab * sizeof logits[0]);
    struct err e = {0};
    if (engine_logits(eng, ids, n, logits, &e) != 0)
        fail_msg("%s", e.text);
    const json_t *argmax = json_object_get(prompt, "argmax_all");
    const json_t *gaps = json_object_get(prompt, "gap_all");
    assert_int_equal(json_array_size(argmax), n);
    for (size_t i = 0; i < n; i++) {
        if (golden_number(gaps, i) < t->gap)
            continue;
        assert_int_equal(golden_argmax(logits + i * n_vocab, n_vocab),
                         (size_t)golden_number(argmax, i));
        w->compared++;
    }
    const size_t offset =
        (size_t)json_integer_value(json_object_get(prompt, "logits_offset_bytes")) / 4;
    assert_true(offset + n_vocab <= n_last_logits);
    check_last(logits + (n - 1) * n_vocab, last_logits + offset, n_vocab, t, w);
    free(logits);
    free(ids);
}

/* Free running, through the ordinary queue: equal up to the first gap that is too small. */
static void check_greedy(struct engine *eng, const json_t *entry, double gap_min)
{
    size_t n_prompt, n_want;
    const json_t *prompt =
        json_array_get(json_object_get(entry, "prompts"),
                       (size_t)json_integer_value(json_object_get(entry, "greedy_prompt")));
    int32_t *ids = golden_ids(json_object_get(prompt, "ids"), &n_prompt);
    int32_t *want = golden_ids(json_object_get(entry, "greedy_ids"), &n_want);
    const json_t *gaps = json_object_get(entry, "greedy_gaps");
    const struct seq_request req = {.prompt = ids,
                                    .n_prompt = n_prompt,
                                    .max_tokens = n_want,
                                    .ignore_eos = true,
                                    .sample = sample_params_greedy()};
    struct err e = {0};
    if (engine_submit(eng, &req, &e) != 0)
        fail_msg("%s", e.text);
    struct seq_result result;
    bool worked = true;
    while (!engine_collect(eng, &result)) {
        assert_int_equal(engine_step(eng, &worked, &e), 0);
        assert_true(worked);
    }
    assert_int_equal(result.n_tokens, n_want);
    for (size_t i = 0; i < n_want && golden_number(gaps, i) >= gap_min; i++)
        assert_int_equal(result.tokens[i], want[i]);
    free(ids);
    free(want);
}

const char *golden_tiny_name(const json_t *entry)
{
    return json_string_value(json_object_get(entry, "model"));
}

size_t golden_tiny_models(const json_t *entries[16])
{
    size_t n = 0, i;
    const json_t *entry;
    json_array_foreach(json_object_get(expectations, "models"), i, entry)
    {
        if (strcmp(json_string_value(json_object_get(entry, "arch")), "gemma3") == 0)
            continue; /* refused by name: tests/unit/test_model.c */
        assert_true(n < 16);
        entries[n++] = entry;
    }
    return n;
}

struct golden_worst golden_tiny_check(struct engine *eng, const struct model *m,
                                      const json_t *entry, const struct golden_tolerance *t)
{
    struct golden_worst w = {0};
    const json_t *prompts = json_object_get(entry, "prompts");
    assert_int_equal(json_array_size(prompts), 6);
    for (size_t i = 0; i < 6; i++)
        check_prompt(eng, json_array_get(prompts, i), m->config.n_vocab, t, &w);
    check_greedy(eng, entry, t->gap);
    return w;
}

int golden_tiny_load(void **state)
{
    (void)state;
    expectations = golden_json("golden/tiny/tiny.json");
    last_logits = golden_floats("golden/tiny/tiny_logits.f32", &n_last_logits);
    return 0;
}

int golden_tiny_unload(void **state)
{
    (void)state;
    json_decref(expectations);
    free(last_logits);
    return 0;
}
