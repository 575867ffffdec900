/*
 * Drawing from what a device found of a row: the same token as from the whole row, whenever it
 * does; and as the CPU draws it where no rounding of totals is between them. What a device
 * finds is made here by a full sort. The sampler's own source is compiled in, so that the draw
 * from the row can be had where it is not needed.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/sample.c"

enum { V_MAX = 3000, N = DEVICE_CANDIDATES };

/* ------------------------------------------------------------------ what a device finds */

static int by_logit(const void *a, const void *b)
{
    const struct device_candidate *x = a, *y = b;
    if (x->logit != y->logit)
        return x->logit > y->logit ? -1 : 1;
    return x->id - y->id;
}

static struct device_candidates find(const float *logits, size_t n_vocab, float temperature)
{
    static struct device_candidate all[V_MAX];
    struct device_candidates found = {0};
    size_t n = 0;
    for (size_t i = 0; i < n_vocab; i++)
        if (!isnan(logits[i]) && logits[i] != -INFINITY)
            all[n++] = (struct device_candidate){.logit = logits[i], .id = (int32_t)i};
    qsort(all, n, sizeof all[0], by_logit);
    for (size_t i = 0; i < n; i++)
        found.total += (double)kernels_exp((all[i].logit - all[0].logit) / temperature);
    for (size_t i = 0; i < N; i++)
        found.best[i] = i < n ? all[i] : (struct device_candidate){.id = -1};
    return found;
}

/* ------------------------------------------------------------------ draws */

struct drawn {
    int32_t best; /* from the candidates, or -1: they do not do */
    int32_t any;  /* from them or the row */
    int32_t row;  /* from the row whether or not; -1 with top-k */
    int32_t cpu;
};

static struct drawn draw_all(const struct sample_params *p, const float *logits, size_t n_vocab,
                             const struct device_candidates *found, size_t position)
{
    static const int32_t history[V_MAX];
    static float copy[V_MAX];
    struct sampler *s = NULL;
    if (sampler_open(n_vocab, &s, NULL) != 0)
        abort();
    struct drawn d = {.row = -1};
    if (!sample_candidate(s, p, found, NULL, position, &d.best))
        d.best = -1;
    assert_true(sample_candidate(s, p, found, logits, position, &d.any));
    const struct scale scale = {found->best[0].logit, p->temperature};
    if (p->top_k == 0)
        d.row = draw_from_row(s, p, &scale, logits, found->total,
                              rng_uniform(p->seed, p->stream, position));
    memcpy(copy, logits, n_vocab * sizeof copy[0]);
    d.cpu = sample_token(s, p, copy, history, 0, position);
    sampler_close(s);
    return d;
}

static void make_logits(float *logits, size_t n, uint64_t seed, double spread)
{
    for (size_t i = 0; i < n; i++) {
        const double u = rng_uniform(seed, 1, i), v = rng_uniform(seed, 2, i);
        logits[i] = (float)(spread * sqrt(-2 * log(1 - u)) * cos(6.283185307179586 * v));
    }
}

static const struct sample_params cuts[] = {
    {.temperature = 1, .top_p = 1},
    {.temperature = 1, .top_p = 0.9f},
    {.temperature = 0.7f, .top_p = 0.95f},
    {.temperature = 1.5f, .top_p = 0.5f},
    {.temperature = 1, .top_p = 1, .min_p = 0.05f},
    {.temperature = 2, .top_p = 0.999f, .min_p = 0.001f},
    {.temperature = 0.1f, .top_p = 1},
    {.temperature = 20, .top_p = 1},
    {.temperature = 1, .top_p = 1, .top_k = 1},
    {.temperature = 1, .top_p = 1, .top_k = N},
    {.temperature = 1.3f, .top_p = 0.8f, .top_k = 40},
    {.temperature = 1, .top_p = 1, .top_k = 20, .min_p = 0.1f},
};
enum { N_CUTS = sizeof cuts / sizeof cuts[0] };

static struct sample_params params_of(size_t cut, uint64_t seed)
{
    struct sample_params p = cuts[cut];
    p.repetition_penalty = 1;
    p.seed = seed;
    return p;
}

struct tally {
    size_t n_best, n_row; /* which candidates did, and did not, suffice for */
    size_t n_missed;      /* tokens that differ from the row's */
};

/* share: what the total is taken for. */
static void draw_many(size_t cut, size_t n_vocab, double share, struct tally *t)
{
    enum { SEEDS = 8, POSITIONS = 40 };
    static float logits[V_MAX];
    for (uint64_t seed = 0; seed < SEEDS; seed++) {
        const struct sample_params p = params_of(cut, seed);
        make_logits(logits, n_vocab, seed, 0.5 + (double)seed);
        const struct device_candidates right = find(logits, n_vocab, p.temperature);
        struct device_candidates found = right;
        found.total *= share;
        for (size_t position = 0; position < POSITIONS; position++) {
            const struct drawn d = draw_all(&p, logits, n_vocab, &found, position);
            *(d.best >= 0 ? &t->n_best : &t->n_row) += 1;
            if (d.best >= 0)
                assert_int_equal(d.best, d.any);
            if (p.top_k == 0)
                assert_int_equal(d.any, d.row);
            else
                assert_true(d.best >= 0);
            t->n_missed += d.any != d.cpu;
        }
    }
}

static void candidates_give_the_token_of_the_row_and_of_the_cpu(void **state)
{
    (void)state;
    static const size_t sizes[] = {5, N - 1, N, N + 1, 500, V_MAX};
    size_t n_sufficed = 0, n_not = 0;
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        for (size_t cut = 0; cut < N_CUTS; cut++) {
            struct tally t = {0};
            draw_many(cut, sizes[i], 1, &t);
            assert_int_equal(t.n_missed, 0);
            if (sizes[i] < N)
                assert_int_equal(t.n_row, 0);
            n_sufficed += t.n_best;
            n_not += t.n_row;
        }
    print_message("%zu draws from candidates, %zu for which they did not do\n", n_sufficed,
                  n_not);
    assert_true(n_sufficed > 10000 && n_not > 1000);
}

/* The same ways give the same token whatever the total is; the CPU another one. */
static void another_total_draws_other_tokens(void **state)
{
    (void)state;
    struct tally t = {0};
    draw_many(0, 500, 0.7, &t);
    assert_true(t.n_missed > 50);
}

/* ------------------------------------------------------------------ special rows */

static int32_t draw_one(const float *logits, size_t n_vocab, float temperature, size_t position)
{
    struct sample_params p = params_of(0, 1);
    p.temperature = temperature;
    const struct device_candidates found = find(logits, n_vocab, temperature);
    const struct drawn d = draw_all(&p, logits, n_vocab, &found, position);
    assert_int_equal(d.any, d.best >= 0 ? d.best : d.row);
    return d.any;
}

static void rows_of_nothing_give_the_first_token(void **state)
{
    (void)state;
    const float none[] = {NAN, -INFINITY, NAN};
    assert_int_equal(draw_one(none, 3, 1, 0), 0);
    const float one[] = {NAN, -INFINITY, -5, NAN};
    for (size_t position = 0; position < 20; position++)
        assert_int_equal(draw_one(one, 4, 1, position), 2);
}

static void an_infinite_logit_is_taken(void **state)
{
    (void)state;
    const float logits[] = {1, 2, INFINITY, 3, INFINITY, NAN};
    for (size_t position = 0; position < 20; position++)
        assert_int_equal(draw_one(logits, 6, 1, position), 2);
}

/* Where scaled logits are equal those of the row itself still say the order. */
static void temperatures_that_level_all_draw_the_same_either_way(void **state)
{
    (void)state;
    static float logits[V_MAX];
    make_logits(logits, V_MAX, 3, 2);
    size_t n_high = 0;
    for (size_t position = 0; position < 200; position++) {
        const int32_t token = draw_one(logits, V_MAX, 1e30f, position);
        n_high += (size_t)token >= V_MAX / 2;
        assert_int_equal(draw_one(logits, V_MAX, 1e-45f, position),
                         find(logits, V_MAX, 1).best[0].id);
    }
    assert_in_range(n_high, 60, 140);
}

static void ids_outside_of_the_vocabulary_are_never_drawn(void **state)
{
    (void)state;
    static float logits[V_MAX];
    make_logits(logits, 500, 3, 0.1);
    struct device_candidates found = find(logits, 500, 1);
    found.best[1].id = 500;
    found.best[2].id = INT32_MIN;
    const struct sample_params p = params_of(0, 1);
    for (size_t position = 0; position < 100; position++) {
        const struct drawn d = draw_all(&p, logits, 500, &found, position);
        assert_in_range(d.any, 0, 499);
    }
}

static void only_plain_sampling_takes_candidates(void **state)
{
    (void)state;
    const struct logit_bias bias = {1, 2};
    struct sample_params p = params_of(0, 1);
    assert_true(sample_takes_candidates(&p));
    p.top_k = N;
    assert_true(sample_takes_candidates(&p));
    p.top_k = N + 1;
    assert_false(sample_takes_candidates(&p));
    p = params_of(0, 1), p.temperature = 0;
    assert_false(sample_takes_candidates(&p));
    p = params_of(0, 1), p.repetition_penalty = 1.1f;
    assert_false(sample_takes_candidates(&p));
    p = params_of(0, 1), p.presence_penalty = 0.1f;
    assert_false(sample_takes_candidates(&p));
    p = params_of(0, 1), p.frequency_penalty = 0.1f;
    assert_false(sample_takes_candidates(&p));
    p = params_of(0, 1), p.bias = &bias, p.n_bias = 1;
    assert_false(sample_takes_candidates(&p));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(candidates_give_the_token_of_the_row_and_of_the_cpu),
        cmocka_unit_test(another_total_draws_other_tokens),
        cmocka_unit_test(rows_of_nothing_give_the_first_token),
        cmocka_unit_test(an_infinite_logit_is_taken),
        cmocka_unit_test(temperatures_that_level_all_draw_the_same_either_way),
        cmocka_unit_test(ids_outside_of_the_vocabulary_are_never_drawn),
        cmocka_unit_test(only_plain_sampling_takes_candidates),
    };
    return cmocka_run_group_tests_name("sample from candidates", tests, NULL, NULL);
}
