/*
 * The demo model against the float64 reference (tests/golden/xquad/README.md): logits,
 * perplexity, teacher-forced and free greedy texts; 8-bit activations with bf16 KV as users run
 * it, and float32 throughout.
 *
 * Everything is read when SHEAF_GOLDEN_FULL is set, but for plain C, a few tokens a second,
 * which reads a part even then. Without it the fastest kernel set reads most and the others
 * have a glance; that they give the same bits is shown by the twin tests.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "golden.h"

static struct model *model;
static size_t n_vocab;

static const struct engine_options options = {
    .n_threads = 2, .batch = 64, .step_tokens = 256, .chunk_tokens = 64, .context = 4096};

static double log_sum_exp(const float *x, size_t n)
{
    const double max = x[golden_argmax(x, n)];
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += exp(x[i] - max);
    return max + log(sum);
}

/* KL(exact || got) in nats over one row. */
static double kl_divergence(const float *exact, const float *got, size_t n)
{
    const double exact_norm = log_sum_exp(exact, n), got_norm = log_sum_exp(got, n);
    double kl = 0;
    for (size_t i = 0; i < n; i++) {
        const double log_p = exact[i] - exact_norm;
        kl += exp(log_p) * (log_p - (got[i] - got_norm));
    }
    return kl;
}

static double centred_max_abs(const float *a, const float *b, size_t n)
{
    double mean = 0;
    for (size_t i = 0; i < n; i++)
        mean += ((double)a[i] - b[i]) / (double)n;
    double max = 0;
    for (size_t i = 0; i < n; i++) {
        const double d = fabs((double)a[i] - b[i] - mean);
        if (!(d <= max))
            max = d;
    }
    return max;
}

static float *logits_of(struct engine *eng, const int32_t *ids, size_t n)
{
    float *logits = malloc(n * n_vocab * sizeof logits[0]);
    assert_non_null(logits);
    struct err e = {0};
    if (engine_logits(eng, ids, n, logits, &e) != 0)
        fail_msg("%s", e.text);
    return logits;
}

enum extent { GLANCE, PART, MOST, ALL };

static enum extent extent_of(const char *isa)
{
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    (void)isa;
    return GLANCE;
#else
    const char *isas[3];
    const char *fastest = isas[golden_isas(isas) - 1];
    if (strcmp(isa, "ref") == 0)
        return getenv("SHEAF_GOLDEN_FULL") ? PART : GLANCE;
    if (getenv("SHEAF_GOLDEN_FULL"))
        return ALL;
    return strcmp(isa, fastest) == 0 ? MOST : GLANCE;
#endif
}

static size_t bound_of(const char *isa, size_t glance, size_t part, size_t most, size_t all)
{
    const size_t bounds[] = {[GLANCE] = glance, [PART] = part, [MOST] = most, [ALL] = all};
    return bounds[extent_of(isa)];
}

/* A sanitizer looks at one kernel set here; the tiny models show it all of them. */
static size_t kernel_sets(const char *isas[3])
{
    const size_t n = golden_isas(isas);
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    isas[0] = isas[n - 1];
    return 1;
#else
    return n;
#endif
}

static void check_six_prompts(const char *isa, enum act_kind act)
{
    json_t *root = golden_json("golden/xquad/demo_logits.json");
    size_t n_floats;
    float *exact = golden_floats("golden/xquad/demo_logits_last.f32", &n_floats);
    const json_t *prompts = json_object_get(root, "prompts");
    assert_int_equal(json_array_size(prompts), 6);
    assert_int_equal(n_floats, 6 * n_vocab);
    struct engine *eng =
        golden_open_engine(model, isa, act, act == ACT_F32 ? KV_F32 : KV_BF16, &options);
    double kl_worst = 0, abs_worst = 0;
    for (size_t i = 0; i < 6; i++) {
        size_t n;
        int32_t *ids = golden_ids(json_object_get(json_array_get(prompts, i), "ids"), &n);
        if (n <= bound_of(isa, 33, 300, 2000, 2000)) {
            float *logits = logits_of(eng, ids, n);
            const float *got = logits + (n - 1) * n_vocab;
            const float *want = exact + i * n_vocab;
            const double kl = kl_divergence(want, got, n_vocab);
            const double abs = centred_max_abs(want, got, n_vocab);
            if (!(kl <= (act == ACT_F32 ? 1e-6 : 0.02)))
                fail_msg("prompt %zu: KL %g", i, kl);
            if (!(abs <= (act == ACT_F32 ? 2e-3 : 2)))
                fail_msg("prompt %zu: logits off by %g", i, abs);
            kl_worst = fmax(kl_worst, kl);
            abs_worst = fmax(abs_worst, abs);
            free(logits);
        }
        free(ids);
    }
    printf("    six prompts, %s, %s: KL at most %.2g, centred logits off by at most %.2g\n",
           isa, act == ACT_F32 ? "float32" : "int8", kl_worst, abs_worst);
    engine_close(eng);
    free(exact);
    json_decref(root);
}

static void float32_logits_equal_the_reference(void **state)
{
    (void)state;
    const char *isas[3];
    const size_t n = kernel_sets(isas);
    for (size_t i = 0; i < n; i++)
        check_six_prompts(isas[i], ACT_F32);
}

static void int8_logits_stay_near_the_reference(void **state)
{
    (void)state;
    const char *isas[3];
    const size_t n = kernel_sets(isas);
    for (size_t i = 0; i < n; i++)
        check_six_prompts(isas[i], ACT_INT8);
}

static void check_perplexity(const char *isa)
{
    json_t *root = golden_json("golden/xquad/demo_text.json");
    size_t n;
    int32_t *ids = golden_ids(json_object_get(root, "ids"), &n);
    assert_int_equal(n, 2048);
    n = bound_of(isa, 64, 192, 2048, 2048);
    struct engine *eng = golden_open_engine(model, isa, ACT_INT8, KV_BF16, &options);
    float *logits = logits_of(eng, ids, n);
    double got = 0, exact = 0;
    size_t same = 0;
    for (size_t i = 0; i < n; i++) {
        const float *row = logits + i * n_vocab;
        const size_t best = golden_argmax(row, n_vocab);
        const size_t want = (size_t)golden_number(json_object_get(root, "exact_argmax"), i);
        same += best == want;
        if (golden_number(json_object_get(root, "exact_gap"), i) >= 0.75)
            assert_int_equal(best, want);
        if (i + 1 == n)
            break;
        got += log_sum_exp(row, n_vocab) - row[ids[i + 1]];
        exact += golden_number(json_object_get(root, "exact_nll_each"), i);
    }
    const double ratio = exp((got - exact) / (double)(n - 1));
    const double agreement = (double)same / (double)n;
    printf("    text of %zu tokens, %s: perplexity %.4f (%+.2f %% of exact), same arg-max %.2f "
           "%%\n",
           n, isa, exp(got / (double)(n - 1)), 100 * (ratio - 1), 100 * agreement);
    if (n == 2048) {
        assert_true(fabs(ratio - 1) <= 0.01);
        assert_true(agreement >= 0.96);
    } else {
        assert_true(fabs(ratio - 1) <= 0.05);
        assert_true(agreement >= 0.9);
    }
    free(logits);
    engine_close(eng);
    free(ids);
    json_decref(root);
}

static void perplexity_stays_near_the_reference(void **state)
{
    (void)state;
    const char *isas[3];
    const size_t n = kernel_sets(isas);
    for (size_t i = 0; i < n; i++)
        check_perplexity(isas[i]);
}

/* What a KV type alone does to the text's first n positions: everything else is float32. */
struct kv_cost {
    double kl_mean, kl_max, ppl_ratio, same_argmax;
};

static float *logits_over(const char *isa, enum kv_type kv, const int32_t *ids, size_t n)
{
    struct engine *eng = golden_open_engine(model, isa, ACT_F32, kv, &options);
    float *logits = logits_of(eng, ids, n);
    engine_close(eng);
    return logits;
}

static struct kv_cost cost_of(const float *exact, const float *got, const int32_t *ids,
                              size_t n)
{
    struct kv_cost c = {0};
    double nll = 0;
    for (size_t i = 0; i < n; i++) {
        const float *want = exact + i * n_vocab, *row = got + i * n_vocab;
        const double kl = kl_divergence(want, row, n_vocab);
        c.kl_mean += kl / (double)n;
        c.kl_max = kl <= c.kl_max ? c.kl_max : kl;
        c.same_argmax +=
            (golden_argmax(want, n_vocab) == golden_argmax(row, n_vocab)) / (double)n;
        if (i + 1 < n)
            nll += (log_sum_exp(row, n_vocab) - row[ids[i + 1]]) -
                   (log_sum_exp(want, n_vocab) - want[ids[i + 1]]);
    }
    c.ppl_ratio = exp(nll / (double)(n - 1));
    return c;
}

/*
 * Against float64 simulations over all 2,048 positions that round nothing but the cache
 * (demo_kv.json). bf16 is the twin: the same measure finds that it costs a twentieth of int8.
 * Early positions cost less, so a glance has no lower bound.
 */
static void a_kv_type_costs_what_its_rounding_costs(void **state)
{
    (void)state;
    static const struct {
        enum kv_type type;
        const char *name;
        double kl_factor_min, kl_factor_max;
    } rows[] = {{KV_BF16, "bf16", 0.5, 2}, {KV_INT8, "int8_head64", 0.5, 2}};
    const char *isas[3];
    const char *isa = isas[kernel_sets(isas) - 1];
    json_t *costs = golden_json("golden/demo_kv.json");
    json_t *root = golden_json("golden/xquad/demo_text.json");
    size_t n;
    int32_t *ids = golden_ids(json_object_get(root, "ids"), &n);
    n = bound_of(isa, 48, 192, 384, 2048);
    float *exact = logits_over(isa, KV_F32, ids, n);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        float *got = logits_over(isa, rows[i].type, ids, n);
        const struct kv_cost c = cost_of(exact, got, ids, n);
        const json_t *row = json_object_get(costs, rows[i].name);
        const double kl = json_real_value(json_object_get(row, "kl_mean"));
        printf("    KV %s, %s, %zu positions: KL %.3g at most %.3g (simulated: %.3g), "
               "perplexity %+.3f %%, same arg-max %.2f %%\n",
               rows[i].name, isa, n, c.kl_mean, c.kl_max, kl, 100 * (c.ppl_ratio - 1),
               100 * c.same_argmax);
        assert_true(kl > 0);
        assert_true(n < 384 || c.kl_mean >= rows[i].kl_factor_min * kl);
        assert_true(c.kl_mean <= rows[i].kl_factor_max * kl);
        free(got);
    }
    free(exact);
    free(ids);
    json_decref(root);
    json_decref(costs);
}

struct greedy_count {
    size_t steps, same, wide_steps, identical_texts;
};

static int32_t *join(const int32_t *a, size_t n_a, const int32_t *b, size_t n_b)
{
    int32_t *both = malloc((n_a + n_b) * sizeof both[0]);
    memcpy(both, a, n_a * sizeof a[0]);
    memcpy(both + n_a, b, n_b * sizeof b[0]);
    return both;
}

/* Fed the exact ids, the arg-max must agree wherever the reference is sure. */
static void check_forced(struct engine *eng, const json_t *job, double gap_min,
                         struct greedy_count *count)
{
    size_t n_prompt, n_exact;
    int32_t *prompt = golden_ids(json_object_get(job, "prompt_ids"), &n_prompt);
    int32_t *exact = golden_ids(json_object_get(job, "exact_ids"), &n_exact);
    int32_t *both = join(prompt, n_prompt, exact, n_exact);
    float *logits = logits_of(eng, both, n_prompt + n_exact - 1);
    for (size_t i = 0; i < n_exact; i++) {
        const size_t best = golden_argmax(logits + (n_prompt - 1 + i) * n_vocab, n_vocab);
        const double gap = golden_number(json_object_get(job, "gaps"), i);
        count->steps++;
        count->same += best == (size_t)exact[i];
        if (gap < gap_min)
            continue;
        count->wide_steps++;
        assert_int_equal(best, exact[i]);
    }
    free(logits);
    free(both);
    free(exact);
    free(prompt);
}

static void check_forced_jobs(const json_t *jobs, const char *isa, enum kv_type kv,
                              double gap_min, size_t n_wide)
{
    struct engine *eng = golden_open_engine(model, isa, ACT_INT8, kv, &options);
    struct greedy_count count = {0};
    const size_t n_jobs = bound_of(isa, 0, 1, 8, 24);
    for (size_t i = 0; i < n_jobs; i++)
        check_forced(eng, json_array_get(jobs, i), gap_min, &count);
    printf("    forced greedy, %s, KV %s: %zu of %zu steps agree; all %zu with a gap of %g or "
           "more\n",
           isa, kv == KV_F32 ? "f32" : "bf16", count.same, count.steps, count.wide_steps,
           gap_min);
    if (n_jobs == 24)
        assert_int_equal(count.wide_steps, n_wide);
    assert_true((double)count.same >= 0.95 * (double)count.steps);
    engine_close(eng);
}

/*
 * The reference's gap of 0.5 was measured with a float32 KV cache. bf16 keys and values move
 * logits as well, so there it is the gap of 0.75 that holds for 8-bit activations on running
 * text.
 */
static void forced_greedy_steps_agree_where_the_reference_is_sure(void **state)
{
    (void)state;
    json_t *jobs = golden_jsonl("golden/xquad/demo_greedy.jsonl");
    assert_int_equal(json_array_size(jobs), 24);
    const char *isas[3];
    const size_t n = kernel_sets(isas);
    for (size_t k = 0; k < n; k++) {
        check_forced_jobs(jobs, isas[k], KV_F32, 0.5, 617);
        check_forced_jobs(jobs, isas[k], KV_BF16, 0.75, 566);
    }
    json_decref(jobs);
}

/* Through the queue, all 24 at once: equal up to the first step where the reference wavers. */
static void free_greedy_texts_follow_the_reference(void **state)
{
    (void)state;
    json_t *jobs = golden_jsonl("golden/xquad/demo_greedy.jsonl");
    const char *isas[3];
    const char *isa = isas[kernel_sets(isas) - 1];
    struct engine *eng = golden_open_engine(model, isa, ACT_INT8, KV_BF16, &options);
    struct err e = {0};
    const size_t n_jobs = bound_of(isa, 0, 1, 8, 24);
    for (size_t i = 0; i < n_jobs; i++) {
        size_t n_prompt;
        json_t *job = json_array_get(jobs, i);
        int32_t *prompt = golden_ids(json_object_get(job, "prompt_ids"), &n_prompt);
        const struct seq_request req = {.prompt = prompt,
                                        .n_prompt = n_prompt,
                                        .max_tokens = 48,
                                        .sample = sample_params_greedy(),
                                        .user = job};
        if (engine_submit(eng, &req, &e) != 0)
            fail_msg("%s", e.text);
        free(prompt);
    }
    size_t n_identical = 0, n_done = 0;
    bool worked = true;
    while (worked) {
        assert_int_equal(engine_step(eng, &worked, &e), 0);
        struct seq_result r;
        while (engine_collect(eng, &r)) {
            const json_t *job = r.user;
            size_t n_exact;
            int32_t *exact = golden_ids(json_object_get(job, "exact_ids"), &n_exact);
            size_t i = 0;
            while (i < n_exact && i < r.n_tokens && r.tokens[i] == exact[i])
                i++;
            n_identical += i == n_exact && r.n_tokens == n_exact;
            if (i < n_exact) {
                double smallest = 1e9;
                for (size_t j = 0; j <= i; j++)
                    smallest = fmin(smallest, golden_number(json_object_get(job, "gaps"), j));
                assert_true(smallest < 0.5);
            }
            free(exact);
            n_done++;
        }
    }
    assert_int_equal(n_done, n_jobs);
    printf(
        "    free greedy, %s: %zu of %zu texts identical to exact maths (llama.cpp: 9 of 24)\n",
        isa, n_identical, n_jobs);
    engine_close(eng);
    json_decref(jobs);
}

static int open_demo(void **state)
{
    (void)state;
    model = golden_open_model(golden_demo_model());
    n_vocab = model->config.n_vocab;
    return 0;
}

static int close_demo(void **state)
{
    (void)state;
    model_close(model);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(float32_logits_equal_the_reference),
        cmocka_unit_test(int8_logits_stay_near_the_reference),
        cmocka_unit_test(perplexity_stays_near_the_reference),
        cmocka_unit_test(a_kv_type_costs_what_its_rounding_costs),
        cmocka_unit_test(forced_greedy_steps_agree_where_the_reference_is_sure),
        cmocka_unit_test(free_greedy_texts_follow_the_reference),
    };
    return cmocka_run_group_tests_name("golden demo model", tests, open_demo, close_demo);
}
