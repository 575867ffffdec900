/*
 * Heads at work. A run is held against the same arithmetic in double, over dequantised weights,
 * one row and head after another with everything sorted at the end; numbers of the heads are
 * exact in 8 bits, so that how they are stored changes nothing. Then bits: threads, rows beside
 * a row and kernels change none. What is learned and proposed is worked out by hand.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "engine/medusa.h"
#include "golden.h"
#include "heads_make.h"
#include "heads_plain.h"

enum { ROWS = 70 }; /* more than a tile has */

/* Written so that NaN fails. */
static void assert_near(double x, double expected, double tolerance)
{
    if (!(fabs(x - expected) <= tolerance))
        fail_msg("%g is not %g within %g", x, expected, tolerance);
}

/* ------------------------------------------------------------------ a run */

struct bench {
    struct kernels kernels;
    struct pool *threads;
    struct medusa *medusa;
};

static void open_bench(struct bench *b, const struct model *m, const struct heads *h,
                       const char *isa, size_t n_threads, enum act_kind activations)
{
    setenv("SHEAF_KERNELS", isa, 1);
    assert_int_equal(kernels_open(&b->kernels, NULL), 0);
    assert_int_equal(pool_open(n_threads, &b->threads, NULL), 0);
    const struct medusa_options o = {.heads = h,
                                     .model = m,
                                     .kernels = &b->kernels,
                                     .threads = b->threads,
                                     .activations = activations,
                                     .n_rows_max = ROWS};
    assert_true(medusa_bytes(&o) > 0);
    assert_int_equal(medusa_open(&o, &b->medusa, NULL), 0);
}

static void close_bench(struct bench *b)
{
    medusa_close(b->medusa);
    pool_close(b->threads);
}

static float *make_hidden(size_t dim, uint64_t seed)
{
    float *hidden = malloc(ROWS * dim * sizeof hidden[0]);
    for (size_t i = 0; i < ROWS * dim; i++)
        hidden[i] = (float)(4 * rng_uniform(seed, 2, i) - 2);
    return hidden;
}

/* What is beyond the heads stays zero, so that guesses can be compared as bytes. */
static void run(struct bench *b, const float *hidden, size_t dim, size_t first, size_t n,
                struct medusa_guesses *out)
{
    const float *rows[ROWS];
    memset(out, 0, n * sizeof out[0]);
    for (size_t i = 0; i < n; i++)
        rows[i] = hidden + (first + i) * dim;
    medusa_run(b->medusa, rows, n, out);
}

static void check_run(const struct model *m, const struct heads_shape *shape,
                      enum act_kind activations, double tolerance)
{
    struct heads *h = heads_make(m, shape);
    const char *isas[3];
    const size_t n_isas = golden_isas(isas);
    static struct medusa_guesses said[ROWS];
    float *hidden = make_hidden(h->dim, shape->seed);
    struct bench b;
    open_bench(&b, m, h, isas[n_isas - 1], 2, activations);
    run(&b, hidden, h->dim, 0, ROWS, said);
    for (size_t i = 0; i < h->n_heads; i++) {
        double *output = heads_plain_output(m, h, i);
        for (size_t k = 0; k < ROWS; k += 3) {
            double *logits = heads_plain_logits(h, i, output, hidden + k * h->dim);
            assert_int_equal(said[k].n_heads, h->n_heads);
            heads_plain_check(h, logits, said[k].guesses[i], tolerance);
            free(logits);
        }
        free(output);
    }
    close_bench(&b);
    free(hidden);
    heads_close(h);
}

static const struct heads_shape shapes[] = {
    {.seed = 1, .n_heads = 1, .n_blocks = 1, .scale = 0.03125f},
    {.seed = 2, .n_heads = 3, .n_blocks = 1, .n_draft = 50, .scale = 0.03125f},
    {.seed = 3, .n_heads = 3, .n_blocks = 2, .scale = 0.03125f},
    {.seed = 4, .n_heads = 2, .n_blocks = 0, .has_output = true, .scale = 0.125f},
    {.seed = 5,
     .n_heads = 2,
     .n_blocks = 1,
     .has_output = true,
     .n_draft = 99,
     .scale = 0.0625f},
    {.seed = 6,
     .n_heads = HEADS_MAX,
     .n_blocks = HEADS_BLOCKS_MAX,
     .n_draft = 4,
     .scale = 0.03125f},
    {.seed = 7, .n_heads = 1, .n_blocks = 0, .n_draft = 17, .scale = 1},
};
enum { N_SHAPES = sizeof shapes / sizeof shapes[0] };

static const char *const models[] = {"tiny-llama-f32.gguf", "tiny-llama-q8_0.gguf",
                                     "tiny-llama-q4_1.gguf", "tiny-llama-mix.gguf",
                                     "tiny-qwen3-q8_0.gguf"};
enum { N_MODELS = sizeof models / sizeof models[0] };

static void guesses_are_those_of_plain_arithmetic(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_MODELS; i++) {
        struct model *m = golden_open_tiny(models[i]);
        for (size_t k = 0; k < N_SHAPES; k++) {
            check_run(m, &shapes[k], ACT_F32, 1e-4);
            check_run(m, &shapes[k], ACT_INT8, 0.1);
        }
        model_close(m);
    }
}

/* Whatever the threads, the rows beside it and the kernels. */
static void a_rows_guesses_have_the_same_bits_everywhere(void **state)
{
    (void)state;
    const char *isas[3];
    const size_t n_isas = golden_isas(isas);
    static struct medusa_guesses expected[ROWS], said[ROWS];
    for (size_t i = 0; i < N_MODELS * N_SHAPES; i++) {
        struct model *m = golden_open_tiny(models[i / N_SHAPES]);
        struct heads *h = heads_make(m, &shapes[i % N_SHAPES]);
        float *hidden = make_hidden(h->dim, i);
        for (size_t k = 0; k < 2 * n_isas; k++) {
            struct bench b;
            open_bench(&b, m, h, isas[k / 2], k % 2 ? 3 : 1, i % 2 ? ACT_INT8 : ACT_F32);
            run(&b, hidden, h->dim, 0, ROWS, said);
            if (k == 0)
                memcpy(expected, said, sizeof said);
            assert_memory_equal(said, expected, sizeof said);
            for (size_t row = 0; row < ROWS; row += 23) {
                run(&b, hidden, h->dim, row, 1, said);
                assert_memory_equal(said, &expected[row], sizeof said[0]);
            }
            run(&b, hidden, h->dim, 40, 9, said);
            assert_memory_equal(said, &expected[40], 9 * sizeof said[0]);
            close_bench(&b);
        }
        free(hidden);
        heads_close(h);
        model_close(m);
    }
}

/* Fewer tokens than ranks, equal logits, and what is no number. */
static void there_are_as_many_guesses_as_there_are_numbers(void **state)
{
    (void)state;
    struct model *m = golden_open_tiny("tiny-llama-f32.gguf");
    const struct heads_shape shape = {
        .seed = 9, .n_heads = 2, .has_output = true, .n_draft = 3, .scale = 1};
    struct heads *h = heads_make(m, &shape);
    for (size_t i = 0; i < 3; i++) /* all rows of the second head are the same */
        memcpy(h->heads[1].output + i * h->dim, h->heads[1].output, h->dim * sizeof(float));
    float *hidden = make_hidden(h->dim, 9);
    hidden[h->dim + 3] = NAN;
    struct bench b;
    struct medusa_guesses said[2];
    open_bench(&b, m, h, "ref", 2, ACT_F32);
    run(&b, hidden, h->dim, 0, 2, said);
    assert_int_equal(said[0].guesses[0][3].token, DRAFT_NONE);
    for (size_t r = 0; r < 3; r++) {
        assert_int_equal(said[0].guesses[1][r].token, h->draft_vocab[r]);
        assert_near((double)said[0].guesses[1][r].share, 1.0 / 3, 1e-6);
    }
    for (size_t r = 0; r < MEDUSA_RANKS; r++)
        assert_int_equal(said[1].guesses[0][r].token, DRAFT_NONE);
    close_bench(&b);
    free(hidden);
    heads_close(h);
    model_close(m);
}

/* ------------------------------------------------------------------ learning, proposing */

/* Two heads have 8 bins for each rank. Shares lie in bins of which the middles are
 * (bin + 0.5) / 8 / (rank + 1). */
static const struct medusa_guesses two = {
    .n_heads = 2,
    .guesses = {{{5, 0.5f}, {6, 0.25f}, {7, 0.15f}, {8, 0.1f}},
                {{30, 0.9f}, {31, 0.1f}, {DRAFT_NONE, 0}, {DRAFT_NONE, 0}}}};

static struct spec_stats stated_priors(void)
{
    struct spec_stats stats;
    const struct heads h = {.n_heads = 2,
                            .heads = {{.accuracies = {0.4, 0.1, 0.06, 0.04}},
                                      {.accuracies = {0.2, 0.1, 0.06, 0.04}}}};
    spec_stats_init(&stats);
    medusa_set_priors(&h, &stats);
    return stats;
}

static double p_of(const struct draft *d, int parent, int32_t token)
{
    const int node = draft_find(d, parent, token);
    assert_true(node != DRAFT_NONE);
    return (double)d->nodes[node].p;
}

static struct draft propose(const struct spec_stats *stats, size_t n_nodes)
{
    struct draft d = {.n_nodes = 0};
    medusa_propose(&two, &(struct draft_limits){.n_nodes = n_nodes}, stats, &d);
    assert_true(draft_check(&d));
    return d;
}

/* 0.6 of the first head's tokens are right, 0.4 of the second's. */
static void a_prior_is_the_accuracy_of_the_few_times_the_share(void **state)
{
    (void)state;
    const struct spec_stats stats = stated_priors();
    const struct draft d = propose(&stats, DRAFT_NODES_MAX);
    assert_int_equal(d.n_nodes, 4 + 4 * 2);
    assert_near(p_of(&d, DRAFT_ROOT, 5), 0.6 * 4.5 / 8, 1e-6);
    assert_near(p_of(&d, DRAFT_ROOT, 6), 0.6 * 4.5 / 16, 1e-6);
    assert_near(p_of(&d, DRAFT_ROOT, 7), 0.6 * 3.5 / 24, 1e-6);
    assert_near(p_of(&d, DRAFT_ROOT, 8), 0.6 * 3.5 / 32, 1e-6);
    for (int32_t token = 5; token <= 8; token++) {
        const int parent = draft_find(&d, DRAFT_ROOT, token);
        assert_near(p_of(&d, parent, 30), 0.4 * 7.5 / 8, 1e-6);
        assert_near(p_of(&d, parent, 31), 0.4 * 1.5 / 16, 1e-6);
    }
}

/* 5 (.3375), 6 (.169), 5-30 (.127), 7 (.0875), ... */
static void the_likeliest_paths_are_proposed(void **state)
{
    (void)state;
    const struct spec_stats stats = stated_priors();
    const struct draft d = propose(&stats, 3);
    assert_int_equal(d.n_nodes, 3);
    assert_true(draft_find(&d, DRAFT_ROOT, 6) != DRAFT_NONE);
    p_of(&d, draft_find(&d, DRAFT_ROOT, 5), 30);
    for (size_t i = 0; i < d.n_nodes; i++)
        assert_int_equal(d.nodes[i].sources, 1u << DRAFT_MEDUSA);
}

/* An offer counts one beside the prior's 16. */
static void a_head_is_judged_below_guesses_that_came_true(void **state)
{
    (void)state;
    const double own5 = 0.6 * 4.5 / 8, own6 = 0.6 * 4.5 / 16, own30 = 0.4 * 7.5 / 8;
    struct spec_stats stats = stated_priors();
    medusa_learn(&two, (int32_t[]){9, 30}, 2, &stats); /* 9 was no guess */
    struct draft d = propose(&stats, DRAFT_NODES_MAX);
    assert_near(p_of(&d, DRAFT_ROOT, 5), 16 * own5 / 17, 1e-6);
    assert_near(p_of(&d, draft_find(&d, DRAFT_ROOT, 5), 30), own30, 1e-6);

    stats = stated_priors();
    medusa_learn(&two, (int32_t[]){6, 30, 1}, 3, &stats);
    d = propose(&stats, DRAFT_NODES_MAX);
    assert_near(p_of(&d, DRAFT_ROOT, 5), 16 * own5 / 17, 1e-6);
    assert_near(p_of(&d, DRAFT_ROOT, 6), (16 * own6 + 1) / 17, 1e-6);
    assert_near(p_of(&d, draft_find(&d, DRAFT_ROOT, 5), 30), (16 * own30 + 1) / 17, 1e-6);

    stats = stated_priors();
    medusa_learn(&two, (int32_t[]){6}, 1, &stats); /* what followed is not known */
    d = propose(&stats, DRAFT_NODES_MAX);
    assert_near(p_of(&d, DRAFT_ROOT, 6), (16 * own6 + 1) / 17, 1e-6);
    assert_near(p_of(&d, draft_find(&d, DRAFT_ROOT, 6), 30), own30, 1e-6);
    medusa_learn(&two, NULL, 0, &stats);
}

/* Every cell of as many heads as there may be is one of the source's. */
static void priors_fit_the_cells_of_any_number_of_heads(void **state)
{
    (void)state;
    for (size_t n = 1; n <= HEADS_MAX; n++) {
        const struct heads h = {.n_heads = n};
        struct spec_stats stats;
        spec_stats_init(&stats);
        medusa_set_priors(&h, &stats);
        struct medusa_guesses g = {.n_heads = n};
        int32_t tokens[HEADS_MAX];
        for (size_t i = 0; i < n; i++) {
            tokens[i] = 3;
            for (size_t r = 0; r < MEDUSA_RANKS; r++)
                g.guesses[i][r] = (struct medusa_guess){(int32_t)r, r == 0 ? 1 : NAN};
        }
        medusa_learn(&g, tokens, n, &stats);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(guesses_are_those_of_plain_arithmetic),
        cmocka_unit_test(a_rows_guesses_have_the_same_bits_everywhere),
        cmocka_unit_test(there_are_as_many_guesses_as_there_are_numbers),
        cmocka_unit_test(a_prior_is_the_accuracy_of_the_few_times_the_share),
        cmocka_unit_test(the_likeliest_paths_are_proposed),
        cmocka_unit_test(a_head_is_judged_below_guesses_that_came_true),
        cmocka_unit_test(priors_fit_the_cells_of_any_number_of_heads),
    };
    return cmocka_run_group_tests_name("medusa", tests, NULL, NULL);
}
