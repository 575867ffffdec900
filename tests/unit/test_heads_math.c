/*
 * The gradient of heads against finite differences of a loss that is computed another way: in
 * double precision, label by label, with libm's exp. No product, packing or activation is
 * shared with what is tested.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "train/heads_math.h"

enum { HEADS = 2, DIM = 24, DRAFT = 37, ROWS = 70 };

static const double shares[HEADS] = {1, 0.8};

struct world {
    float output[DRAFT * DIM];
    float rows[ROWS * DIM];
    int32_t labels[HEADS * ROWS];
    float params[HEADS * (DIM * DIM + DIM)];
};

enum { PARAMS = HEADS * (DIM * DIM + DIM) };

static float draw(uint64_t stream, size_t i, double width)
{
    return (float)(width * (2 * rng_uniform(7, stream, i) - 1));
}

static struct world *make_world(void)
{
    struct world *w = calloc(1, sizeof *w);
    assert_non_null(w);
    for (size_t i = 0; i < DRAFT * DIM; i++)
        w->output[i] = draw(1, i, 1);
    for (size_t i = 0; i < ROWS * DIM; i++)
        w->rows[i] = draw(2, i, 1.5);
    for (size_t i = 0; i < HEADS * ROWS; i++) /* a fifth has none */
        w->labels[i] =
            rng_bits(7, 3, i) % 5 == 0 ? HEADS_NO_LABEL : (int32_t)(rng_bits(7, 4, i) % DRAFT);
    for (size_t i = 0; i < PARAMS; i++)
        w->params[i] = draw(5, i, 0.4);
    return w;
}

/* -log of the probability that a head gives the row's label. */
static double row_loss(const struct world *w, const double *params, size_t head, size_t row)
{
    const double *weight = params + head * (DIM * DIM + DIM), *bias = weight + DIM * DIM;
    double x[DIM], sum = 0, of_label = 0;
    for (size_t o = 0; o < DIM; o++) {
        double a = bias[o];
        for (size_t k = 0; k < DIM; k++)
            a += weight[o * DIM + k] * (double)w->rows[row * DIM + k];
        x[o] = (double)w->rows[row * DIM + o] + a / (1 + exp(-a));
    }
    for (size_t j = 0; j < DRAFT; j++) {
        double logit = 0;
        for (size_t k = 0; k < DIM; k++)
            logit += x[k] * (double)w->output[j * DIM + k];
        sum += exp(logit);
        if ((int32_t)j == w->labels[head * ROWS + row])
            of_label = logit;
    }
    return log(sum) - of_label;
}

static double head_loss(const struct world *w, const double *params, size_t head, size_t *n)
{
    double sum = 0;
    *n = 0;
    for (size_t row = 0; row < ROWS; row++)
        if (w->labels[head * ROWS + row] != HEADS_NO_LABEL) {
            sum += row_loss(w, params, head, row);
            ++*n;
        }
    return sum;
}

static struct heads_math *open_math(const struct world *w, enum kernels_isa isa,
                                    size_t n_threads, struct kernels *k, struct pool **pool)
{
    struct heads_math *m = NULL;
    assert_int_equal(kernels_open_isa(k, isa, NULL), 0);
    assert_int_equal(pool_open(n_threads, pool, NULL), 0);
    const struct heads_math_options o = {.n_heads = HEADS,
                                         .dim = DIM,
                                         .n_draft = DRAFT,
                                         .n_rows_max = ROWS + 13,
                                         .output = w->output,
                                         .shares = shares,
                                         .kernels = k,
                                         .threads = *pool};
    assert_int_equal(heads_math_open(&o, &m, NULL), 0);
    heads_math_set(m, w->params);
    return m;
}

static float *gradient_of(const struct world *w, enum kernels_isa isa, size_t n_threads,
                          double *losses)
{
    struct kernels k;
    struct pool *pool = NULL;
    struct heads_math *m = open_math(w, isa, n_threads, &k, &pool);
    float *gradient = malloc(PARAMS * sizeof gradient[0]);
    assert_non_null(gradient);
    memset(gradient, 0xff, PARAMS * sizeof gradient[0]);
    heads_math_gradient(m, w->rows, ROWS, w->labels, gradient, losses);
    heads_math_close(m);
    pool_close(pool);
    return gradient;
}

static void gradient_is_that_of_finite_differences(void **state)
{
    (void)state;
    struct world *w = make_world();
    double losses[HEADS], worst = 0;
    float *gradient = gradient_of(w, KERNELS_REF, 1, losses);
    double params[PARAMS];
    for (size_t i = 0; i < PARAMS; i++)
        params[i] = (double)w->params[i];
    for (size_t head = 0; head < HEADS; head++) {
        size_t n;
        const double sum = head_loss(w, params, head, &n);
        assert_true(fabs(sum / (double)n - losses[head]) < 1e-5);
    }
    const double step = 1e-5;
    for (size_t i = 0; i < PARAMS; i++) {
        const size_t head = i / (DIM * DIM + DIM);
        size_t n;
        params[i] = (double)w->params[i] + step;
        const double above = head_loss(w, params, head, &n);
        params[i] = (double)w->params[i] - step;
        const double below = head_loss(w, params, head, &n);
        params[i] = (double)w->params[i];
        const double want = shares[head] * (above - below) / (2 * step) / ROWS;
        const double off = fabs((double)gradient[i] - want) / (1e-2 + fabs(want));
        worst = off > worst || isnan(off) ? off : worst;
        if (!(off < 1e-4))
            fail_msg("parameter %zu: %g, finite differences give %g", i, (double)gradient[i],
                     want);
    }
    print_message("gradient: worst relative error %.2g of %d parameters\n", worst, PARAMS);
    free(gradient);
    free(w);
}

static void no_number_of_threads_and_no_kernels_change_a_bit(void **state)
{
    (void)state;
    struct world *w = make_world();
    double losses[HEADS], others[HEADS];
    float *want = gradient_of(w, KERNELS_REF, 1, losses);
    for (int isa = KERNELS_REF; isa <= KERNELS_AVX512; isa++) {
        if (!kernels_has_isa((enum kernels_isa)isa))
            continue;
        for (size_t n_threads = 1; n_threads <= 3; n_threads++) {
            float *got = gradient_of(w, (enum kernels_isa)isa, n_threads, others);
            assert_memory_equal(got, want, PARAMS * sizeof want[0]);
            assert_memory_equal(others, losses, sizeof losses);
            free(got);
        }
    }
    free(want);
    free(w);
}

/* A label's rank is the number of tokens whose probability is greater: the reference counts
 * the labels whose loss is lower. */
static void ranks_count_what_is_likelier(void **state)
{
    (void)state;
    struct world *w = make_world();
    struct kernels k;
    struct pool *pool = NULL;
    struct heads_math *m = open_math(w, KERNELS_REF, 2, &k, &pool);
    int32_t ranks[HEADS * ROWS];
    heads_math_ranks(m, w->rows, ROWS, w->labels, ranks);
    double params[PARAMS];
    for (size_t i = 0; i < PARAMS; i++)
        params[i] = (double)w->params[i];
    for (size_t i = 0; i < HEADS * ROWS; i++) {
        const int32_t label = w->labels[i];
        if (label == HEADS_NO_LABEL) {
            assert_int_equal(ranks[i], DRAFT);
            continue;
        }
        const double loss = row_loss(w, params, i / ROWS, i % ROWS);
        int32_t rank = 0;
        for (int32_t other = 0; other < DRAFT; other++) {
            w->labels[i] = other;
            rank += row_loss(w, params, i / ROWS, i % ROWS) < loss - 1e-6;
        }
        w->labels[i] = label;
        assert_int_equal(ranks[i], rank);
    }
    heads_math_close(m);
    pool_close(pool);
    free(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradient_is_that_of_finite_differences),
        cmocka_unit_test(no_number_of_threads_and_no_kernels_change_a_bit),
        cmocka_unit_test(ranks_count_what_is_likelier),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
