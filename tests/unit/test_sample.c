/*
 * The sampler against arithmetic written another way: doubles, the C library's exp and a full
 * sort. The sampler's own source is compiled in, so that its selection can be tested apart.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/sample.c"

enum { V = 500 };

/* ------------------------------------------------------------------ the other way */

struct entry {
    double x, p;
    int32_t id;
};

static int by_logit(const void *a, const void *b)
{
    const struct entry *x = a, *y = b;
    if (x->x != y->x)
        return x->x > y->x ? -1 : 1;
    return x->id - y->id;
}

/* The distribution after every cut, best first; returns how many are left. */
static size_t expect(const struct sample_params *p, const float *logits, const int32_t *history,
                     size_t n_prompt, size_t n_history, struct entry *out)
{
    size_t n = 0;
    for (int32_t id = 0; id < V; id++) {
        double x = (double)logits[id];
        size_t n_all = 0, n_out = 0;
        for (size_t i = 0; i < p->n_bias; i++)
            x += p->bias[i].id == id ? (double)p->bias[i].bias : 0;
        for (size_t i = 0; i < n_history; i++) {
            n_all += history[i] == id;
            n_out += history[i] == id && i >= n_prompt;
        }
        if (n_all > 0)
            x = x > 0 ? x / (double)p->repetition_penalty : x * (double)p->repetition_penalty;
        x -= (double)p->frequency_penalty * (double)n_out;
        x -= n_out > 0 ? (double)p->presence_penalty : 0;
        if (!isnan(x) && x != -INFINITY)
            out[n++] = (struct entry){.x = x, .id = id};
    }
    qsort(out, n, sizeof out[0], by_logit);
    if (p->temperature == 0)
        return 1;
    if (p->top_k > 0 && (size_t)p->top_k < n)
        n = (size_t)p->top_k;
    double total = 0, sum = 0;
    for (size_t i = 0; i < n; i++)
        total += out[i].p = exp((out[i].x - out[0].x) / (double)p->temperature);
    size_t kept = 0;
    while (kept < n && (kept == 0 || ((p->top_p >= 1 || sum < (double)p->top_p * total) &&
                                      out[kept].p >= (double)p->min_p * out[0].p)))
        sum += out[kept++].p;
    for (size_t i = 0; i < kept; i++)
        out[i].p /= sum;
    return kept;
}

/* ------------------------------------------------------------------ */

static void make_logits(float *logits, uint64_t seed, double spread)
{
    for (size_t i = 0; i < V; i++) {
        const double u = rng_uniform(seed, 1, i), v = rng_uniform(seed, 2, i);
        logits[i] = (float)(spread * sqrt(-2 * log(1 - u)) * cos(6.283185307179586 * v));
    }
}

static int32_t sample(const struct sample_params *p, const float *logits,
                      const int32_t *history, size_t n_prompt, size_t n_history)
{
    struct sampler *s = NULL;
    if (sampler_open(V, &s, NULL) != 0)
        abort();
    float copy[V];
    memcpy(copy, logits, sizeof copy);
    const int32_t token = sample_token(s, p, copy, history, n_prompt, n_history);
    for (size_t i = 0; i < V; i++)
        if (s->counts[i] != 0 || s->seen[i] != 0)
            abort(); /* the next job would be penalised for this one */
    sampler_close(s);
    return token;
}

static void greedy_takes_the_best_and_the_lower_id_among_equals(void **state)
{
    (void)state;
    const struct sample_params p = sample_params_greedy();
    float logits[V];
    for (size_t i = 0; i < V; i++)
        logits[i] = -INFINITY;
    assert_int_equal(sample(&p, logits, NULL, 0, 0), 0);
    logits[7] = logits[9] = 1;
    assert_int_equal(sample(&p, logits, NULL, 0, 0), 7);
    logits[0] = NAN;
    assert_int_equal(sample(&p, logits, NULL, 0, 0), 7);
    logits[8] = logits[499] = NAN;
    logits[400] = 1.5f;
    assert_int_equal(sample(&p, logits, NULL, 0, 0), 400);
    logits[401] = INFINITY;
    assert_int_equal(sample(&p, logits, NULL, 0, 0), 401);
}

static void nan_and_minus_infinity_are_never_drawn(void **state)
{
    (void)state;
    struct sample_params p = sample_params_greedy();
    float logits[V];
    for (size_t i = 0; i < V; i++)
        logits[i] = i % 2 ? NAN : -INFINITY;
    logits[100] = -3;
    logits[201] = -2;
    p.temperature = 2;
    bool seen[V] = {false};
    int32_t history[300] = {0};
    for (size_t n = 0; n < 300; n++)
        seen[sample(&p, logits, history, 0, n)] = true;
    for (size_t i = 0; i < V; i++)
        assert_int_equal(seen[i], i == 100 || i == 201);
    for (size_t i = 0; i < V; i++)
        logits[i] = NAN;
    assert_in_range(sample(&p, logits, NULL, 0, 0), 0, V - 1);
}

static void an_infinite_logit_is_taken_at_every_temperature(void **state)
{
    (void)state;
    struct sample_params p = sample_params_greedy();
    float logits[V];
    make_logits(logits, 3, 2);
    logits[77] = INFINITY;
    for (p.temperature = 0.001f; p.temperature < 3; p.temperature *= 10)
        assert_int_equal(sample(&p, logits, NULL, 0, 0), 77);
}

static void a_vanishing_temperature_is_greedy(void **state)
{
    (void)state;
    static const float temperatures[] = {1e-4f, 1e-5f, 1e-30f, 1e-38f, 1e-45f};
    const int32_t history[20] = {0};
    for (uint64_t seed = 0; seed < 20; seed++) {
        struct sample_params p = sample_params_greedy();
        float logits[V];
        make_logits(logits, seed, 3);
        const int32_t best = sample(&p, logits, NULL, 0, 0);
        for (size_t i = 0; i < sizeof temperatures / sizeof temperatures[0]; i++) {
            p.temperature = temperatures[i];
            for (size_t n = 0; n < 20; n++)
                assert_int_equal(sample(&p, logits, history, 0, n), best);
        }
    }
}

/* Repetition sees prompt and output, the other two the output only; signs matter. */
static void bias_and_penalties_move_the_choice_by_hand_computed_amounts(void **state)
{
    (void)state;
    const int32_t history[] = {1, 2, 3, 3, 4}; /* the first two are the prompt */
    float logits[V];
    for (size_t i = 0; i < V; i++)
        logits[i] = -50;
    logits[1] = 10, logits[3] = 9.5f, logits[5] = 6, logits[4] = 9;
    struct sample_params p = sample_params_greedy();
    assert_int_equal(sample(&p, logits, history, 2, 5), 1);
    p.repetition_penalty = 1.6f; /* 10 -> 6.25, 9.5 -> 5.94, 9 -> 5.6; still above 6 */
    assert_int_equal(sample(&p, logits, history, 2, 5), 1);
    p.repetition_penalty = 2;
    assert_int_equal(sample(&p, logits, history, 2, 5), 5);
    p = sample_params_greedy();
    logits[1] = 8;
    p.presence_penalty = 1; /* 3: 8.5, 4: 8, 1 is in the prompt only: 8 */
    assert_int_equal(sample(&p, logits, history, 2, 5), 3);
    p.frequency_penalty = 1; /* 3: 6.5, 4: 7, 1: 8 */
    assert_int_equal(sample(&p, logits, history, 2, 5), 1);
    p.presence_penalty = p.frequency_penalty = -2; /* 3: 15.5 */
    assert_int_equal(sample(&p, logits, history, 2, 5), 3);
    const struct logit_bias bias[] = {{5, 4}, {5, 6}, {3, -100}};
    p = sample_params_greedy();
    p.bias = bias, p.n_bias = 3; /* 5: 16 */
    assert_int_equal(sample(&p, logits, history, 2, 5), 5);
    for (size_t i = 0; i < V; i++)
        logits[i] = -8;
    logits[2] = -5;
    p = sample_params_greedy();
    p.repetition_penalty = 2; /* a negative logit moves down, not up: -10 */
    assert_int_equal(sample(&p, logits, history, 2, 5), 0);
}

struct cut {
    float temperature;
    int32_t top_k;
    float top_p, min_p, repetition, presence, frequency;
};

static const struct cut cuts[] = {
    {1, 0, 1, 0, 1, 0, 0},
    {1, 5, 1, 0, 1, 0, 0},
    {1, 1, 1, 0, 1, 0, 0},
    {1, 10000, 1, 0, 1, 0, 0},
    {0.7f, 0, 0.9f, 0, 1, 0, 0},
    {1.3f, 0, 0.5f, 0, 1, 0, 0},
    {1, 0, 0.0001f, 0, 1, 0, 0},
    {2, 0, 0.99f, 0, 1, 0, 0},
    {1, 0, 1, 0.1f, 1, 0, 0},
    {1, 0, 1, 1, 1, 0, 0},
    {0.9f, 40, 0.8f, 0.02f, 1, 0, 0},
    {0.9f, 0, 0.9f, 0, 1.2f, 0.5f, 0.3f},
    {1.5f, 300, 0.97f, 0, 0.8f, -1, 0.1f},
};

static struct sample_params params_of(const struct cut *c, uint64_t seed)
{
    return (struct sample_params){.temperature = c->temperature,
                                  .top_k = c->top_k,
                                  .top_p = c->top_p,
                                  .min_p = c->min_p,
                                  .repetition_penalty = c->repetition,
                                  .presence_penalty = c->presence,
                                  .frequency_penalty = c->frequency,
                                  .seed = seed};
}

/* Many draws of one distribution: none outside the cut set, and chi-square of the rest. */
static void check_draws(const struct cut *c, uint64_t seed, double spread)
{
    enum { DRAWS = 4000, PROMPT = 10, HISTORY = 40 };
    float logits[V];
    int32_t history[HISTORY];
    struct entry want[V];
    size_t drawn[V] = {0};
    make_logits(logits, seed, spread);
    for (size_t i = 0; i < HISTORY; i++)
        history[i] = (int32_t)(rng_bits(seed, 9, i) % V);
    struct sample_params p = params_of(c, seed);
    const size_t n = expect(&p, logits, history, PROMPT, HISTORY, want);
    for (p.stream = 0; p.stream < DRAWS; p.stream++)
        drawn[sample(&p, logits, history, PROMPT, HISTORY)]++;
    double chi = 0, rest_want = 0, freedom = -1;
    size_t inside = 0, rest_got = 0;
    for (size_t i = 0; i < n; i++) {
        const double e = want[i].p * DRAWS;
        const size_t got = drawn[want[i].id];
        inside += got;
        if (e < 8) {
            rest_want += e;
            rest_got += got;
            continue;
        }
        chi += ((double)got - e) * ((double)got - e) / e;
        freedom++;
    }
    assert_int_equal(inside, DRAWS);
    if (rest_want >= 8) {
        const double d = (double)rest_got - rest_want;
        chi += d * d / rest_want;
        freedom++;
    }
    /* Mean f, deviation sqrt(2 f): five deviations and a little for small f. */
    if (freedom > 0 && !(chi < freedom + 5 * sqrt(2 * freedom) + 4))
        fail_msg("seed %llu: chi-square %g with %g degrees", (unsigned long long)seed, chi,
                 freedom);
    /* The cut set itself: its least likely member is in it, so it can be drawn. */
    if (n <= 12 && want[n - 1].p > 0.005)
        assert_true(drawn[want[n - 1].id] > 0);
}

static void draws_follow_the_distribution_and_stay_in_the_cut_set(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof cuts / sizeof cuts[0]; i++)
        for (uint64_t seed = 1; seed <= 4; seed++)
            check_draws(&cuts[i], seed, seed % 2 ? 1.5 : 4);
}

/* The size of the set itself, with the draw left out. */
static void cut_sets_have_exactly_the_expected_members(void **state)
{
    (void)state;
    struct sampler *s = NULL;
    assert_int_equal(sampler_open(V, &s, NULL), 0);
    for (size_t i = 0; i < sizeof cuts / sizeof cuts[0]; i++) {
        for (uint64_t seed = 100; seed < 160; seed++) {
            float logits[V];
            struct entry want[V];
            make_logits(logits, seed, 0.2 + (double)(seed % 7));
            struct cut c = cuts[i];
            c.repetition = 1, c.presence = c.frequency = 0;
            const struct sample_params p = params_of(&c, seed);
            const size_t n_want = expect(&p, logits, NULL, 0, 0, want);
            size_t n = gather(s, p.temperature, logits, logits[argmax(logits, V)]);
            if (p.top_k > 0 && (size_t)p.top_k < n) {
                select_best(s->candidates, n, (size_t)p.top_k);
                n = (size_t)p.top_k;
            }
            const size_t n_got = sort_and_cut(s, &p, &APPLIED, n, sum_weights(s, n));
            /* With top-p off the end of the tail may be cut: what rounding makes nothing. */
            double missing = 0;
            for (size_t k = n_got; k < n_want; k++)
                missing += want[k].p;
            if (n_got != n_want && !(n_got < n_want && p.top_p == 1 && missing < 1e-13))
                fail_msg("cut %zu, seed %llu: %zu are left, not %zu (%g)", i,
                         (unsigned long long)seed, n_got, n_want, missing);
            for (size_t k = 0; k < n_got; k++)
                assert_int_equal(s->candidates[k].id, want[k].id);
        }
    }
    sampler_close(s);
}

static void a_draw_depends_on_seed_stream_and_position_only(void **state)
{
    (void)state;
    float logits[V];
    int32_t history[64] = {0}, other[64];
    make_logits(logits, 8, 1);
    for (size_t i = 0; i < 64; i++)
        other[i] = (int32_t)i;
    struct sample_params p = sample_params_greedy();
    p.temperature = 1;
    size_t n_seed = 0, n_stream = 0, n_position = 0;
    for (size_t n = 0; n < 64; n++) {
        p.seed = 1, p.stream = 2;
        const int32_t token = sample(&p, logits, history, 0, n);
        assert_int_equal(sample(&p, logits, other, n / 2, n), token);
        p.seed = 2;
        n_seed += sample(&p, logits, history, 0, n) != token;
        p.seed = 1, p.stream = 3;
        n_stream += sample(&p, logits, history, 0, n) != token;
        p.stream = 2;
        n_position += n > 0 && sample(&p, logits, history, 0, n - 1) != token;
    }
    assert_true(n_seed > 50 && n_stream > 50 && n_position > 50);
}

/* ------------------------------------------------------------------ selection */

static void check_selection(const struct candidate *input, size_t n, size_t n_best)
{
    struct candidate *got = malloc(n * sizeof got[0]), *want = malloc(n * sizeof want[0]);
    memcpy(got, input, n * sizeof got[0]);
    memcpy(want, input, n * sizeof want[0]);
    qsort(want, n, sizeof want[0], compare_candidates);
    select_best(got, n, n_best);
    qsort(got, n_best, sizeof got[0], compare_candidates);
    for (size_t i = 0; i < n_best; i++)
        assert_int_equal(got[i].id, want[i].id);
    qsort(got + n_best, n - n_best, sizeof got[0], compare_candidates);
    for (size_t i = n_best; i < n; i++) /* nothing is lost or doubled */
        assert_int_equal(got[i].id, want[i].id);
    free(got);
    free(want);
}

static float shape_value(size_t shape, size_t i, size_t n)
{
    switch (shape) {
    case 0: return 1;                              /* all equal */
    case 1: return (float)i;                       /* rising */
    case 2: return -(float)i;                      /* falling */
    case 3: return (float)(i < n / 2 ? i : n - i); /* organ pipe */
    case 4: return (float)(i % 3);                 /* few values */
    case 5: return i == n / 2 ? 1 : 0;             /* one stands out */
    case 6: return (float)rng_uniform(4, n, i);    /* random */
    case 7: return i % 2 ? (float)i : -(float)i;   /* saw */
    default: return i % 5 ? -1e30f : -INFINITY;
    }
}

static void selection_agrees_with_a_full_sort(void **state)
{
    (void)state;
    static const size_t sizes[] = {1, 2, 3, 4, 5, 16, 63, 64, 65, 300};
    static struct candidate c[300];
    for (size_t shape = 0; shape < 9; shape++)
        for (size_t k = 0; k < sizeof sizes / sizeof sizes[0]; k++) {
            const size_t n = sizes[k];
            for (size_t i = 0; i < n; i++)
                c[i] = (struct candidate){shape_value(shape, i, n), (int32_t)i};
            for (size_t n_best = 1; n_best <= n; n_best++)
                check_selection(c, n, n_best);
        }
}

static void selection_of_a_whole_vocabulary_ends_for_every_shape(void **state)
{
    (void)state;
    enum { N = 150000 };
    struct candidate *c = malloc(N * sizeof c[0]);
    for (size_t shape = 0; shape < 9; shape++) {
        for (size_t i = 0; i < N; i++)
            c[i] = (struct candidate){shape_value(shape, i, N), (int32_t)i};
        check_selection(c, N, 64);
    }
    free(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(greedy_takes_the_best_and_the_lower_id_among_equals),
        cmocka_unit_test(nan_and_minus_infinity_are_never_drawn),
        cmocka_unit_test(an_infinite_logit_is_taken_at_every_temperature),
        cmocka_unit_test(a_vanishing_temperature_is_greedy),
        cmocka_unit_test(bias_and_penalties_move_the_choice_by_hand_computed_amounts),
        cmocka_unit_test(draws_follow_the_distribution_and_stay_in_the_cut_set),
        cmocka_unit_test(cut_sets_have_exactly_the_expected_members),
        cmocka_unit_test(a_draw_depends_on_seed_stream_and_position_only),
        cmocka_unit_test(selection_agrees_with_a_full_sort),
        cmocka_unit_test(selection_of_a_whole_vocabulary_ends_for_every_shape),
    };
    return cmocka_run_group_tests_name("sample", tests, NULL, NULL);
}
