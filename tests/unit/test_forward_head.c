/*
 * Greedy rows get the place of their greatest logit and no logits: the place that a search of
 * all logits finds, whatever stands beside the row and however many threads look. The logits
 * come from the same pass with no row greedy, the search is written here.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/limits.h"
#include "base/rng.h"
#include "engine/forward_int.h"
#include "forward_rig.h"
#include "golden.h"

enum { ROWS = 5, PAGES = ROWS };

/* What the rows of the output matrix are, so that logits are equal, or not numbers. */
enum output { AS_IT_IS, SEVEN_IN_TURN, MANY_NAN, NAN_BUT_LAST, ALL_NAN, ALL_ZERO, N_OUTPUTS };

struct world {
    struct forward_rig rig;
    float *output; /* [V, D] */
    struct forward *forward;
    struct step_segment segments[ROWS];
    struct step_plan plan;
};

/* The world keeps what the model then uses. */
static void fill_output(struct world *w, struct model *m, enum output output)
{
    const size_t n = m->config.n_vocab, dim = m->config.dim;
    const float *given = m->output.data;
    w->output = malloc(n * dim * sizeof(float));
    memcpy(w->output, given, n * dim * sizeof(float));
    for (size_t i = 0; i < n; i++) {
        float *row = w->output + i * dim;
        if (output == SEVEN_IN_TURN)
            memcpy(row, given + i % 7 * dim, dim * sizeof(float));
        const bool is_nan = output == ALL_NAN || (output == NAN_BUT_LAST && i + 1 < n) ||
                            (output == MANY_NAN && rng_bits(3, 0, i) % 2 == 0);
        for (size_t k = 0; k < dim && (is_nan || output == ALL_ZERO); k++)
            row[k] = is_nan ? NAN : 0.0f;
    }
    m->output.data = (void *)w->output;
}

static void open_sequences(struct world *w)
{
    for (size_t i = 0; i < ROWS; i++) {
        const int32_t tokens[] = {(int32_t)(17 * i + 3)};
        struct seq *seq = forward_rig_seq(tokens, 1, KV_PAGE_TOKENS);
        seq->pages[seq->n_pages++] = kvpool_acquire_page(w->rig.kv);
        w->segments[i] = (struct step_segment){
            .seq = seq, .row = i, .n_rows = 1, .n_logits = 1, .logits_row = ROWS - 1 - i};
    }
    w->plan = (struct step_plan){
        .segments = w->segments, .n_segments = ROWS, .n_rows = ROWS, .n_logits = ROWS};
}

static void open_world(struct world *w, const char *isa, size_t n_vocab, size_t n_threads,
                       enum output output)
{
    *w = (struct world){0};
    struct model *m = golden_open_tiny("tiny-llama-f32.gguf");
    m->config.n_vocab = m->output.n_rows = n_vocab;
    fill_output(w, m, output);
    forward_rig_open(&w->rig, m, isa, n_threads, KV_F32, PAGES);
    w->forward = forward_rig_pass(&w->rig, ROWS, ACT_F32, false);
    open_sequences(w);
}

static void close_world(struct world *w)
{
    for (size_t i = 0; i < ROWS; i++) {
        kvpool_release_page(w->rig.kv, w->segments[i].seq->pages[0]);
        w->segments[i].seq->n_pages = 0;
        seq_close(w->segments[i].seq);
    }
    forward_close(w->forward);
    forward_rig_close(&w->rig);
    free(w->output);
}

/* From the end, so that of equals the first stays; numbers only. */
static int32_t search(const float *logits, size_t n)
{
    int32_t best = -1;
    for (size_t i = n; i-- > 0;)
        if (logits[i] == logits[i] && (best < 0 || !(logits[i] < logits[best])))
            best = (int32_t)i;
    return best < 0 ? 0 : best;
}

static float *all_logits(struct world *w)
{
    const size_t n_vocab = w->rig.model->config.n_vocab;
    float *logits = malloc(ROWS * n_vocab * sizeof(float));
    for (size_t i = 0; i < ROWS; i++)
        w->segments[i].is_greedy = false;
    forward_run(w->forward, &w->plan);
    memcpy(logits, forward_logits(w->forward, 0), ROWS * n_vocab * sizeof(float));
    return logits;
}

/* Bit i of greedy: segment i is. */
static void check_rows(struct world *w, const float *logits, unsigned greedy)
{
    const size_t n_vocab = w->rig.model->config.n_vocab;
    for (size_t i = 0; i < ROWS; i++)
        w->segments[i].is_greedy = greedy >> i & 1;
    forward_run(w->forward, &w->plan);
    for (size_t i = 0; i < ROWS; i++) {
        const size_t row = w->segments[i].logits_row;
        const float *want = logits + row * n_vocab;
        if (w->segments[i].is_greedy)
            assert_int_equal(forward_best(w->forward, row), search(want, n_vocab));
        else
            assert_memory_equal(forward_logits(w->forward, row), want, n_vocab * sizeof(float));
    }
}

/* The matrices do what they are there for. */
static void check_output(const float *logits, size_t n_vocab, enum output output)
{
    const int32_t best = search(logits, n_vocab);
    if (output == SEVEN_IN_TURN)
        assert_true(best < 7 && logits[best] == logits[best + 7]);
    if (output == NAN_BUT_LAST)
        assert_int_equal(best, n_vocab - 1);
    if (output == ALL_NAN || output == ALL_ZERO)
        assert_int_equal(best, 0);
}

static void greedy_rows_get_the_first_of_their_greatest_logits(void **state)
{
    (void)state;
    static const size_t vocabularies[] = {320, 317, 97, 96};
    const char *isas[3];
    for (size_t k = golden_isas(isas); k-- > 0;)
        for (size_t v = 0; v < 4; v++)
            for (size_t n_threads = 1; n_threads <= 3; n_threads++)
                for (int output = 0; output < N_OUTPUTS; output++) {
                    struct world w;
                    open_world(&w, isas[k], vocabularies[v], n_threads, (enum output)output);
                    float *logits = all_logits(&w);
                    check_output(logits, vocabularies[v], (enum output)output);
                    for (unsigned greedy = 0; greedy < 1u << ROWS; greedy += 3)
                        check_rows(&w, logits, greedy);
                    check_rows(&w, logits, (1u << ROWS) - 1);
                    free(logits);
                    close_world(&w);
                }
}

/* Six runs of the vocabulary in every order: there is one best. */
static void the_best_does_not_depend_on_the_order_of_the_runs(void **state)
{
    (void)state;
    static const struct best runs[] = {{1.0f, 40}, {NAN, 3},   {2.0f, 200},
                                       {2.0f, 90}, {2.0f, 91}, {-INFINITY, 0}};
    enum { N = sizeof runs / sizeof runs[0] };
    for (size_t order = 0; order < 720; order++) {
        size_t left[N], code = order;
        struct best best = {.index = -1};
        for (size_t i = 0; i < N; i++)
            left[i] = i;
        for (size_t n = N; n > 0; n--) {
            const size_t at = code % n;
            code /= n;
            forward_keep_best(&best, runs[left[at]].value, runs[left[at]].index);
            memmove(left + at, left + at + 1, (n - 1 - at) * sizeof left[0]);
        }
        assert_int_equal(best.index, 90);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(greedy_rows_get_the_first_of_their_greatest_logits),
        cmocka_unit_test(the_best_does_not_depend_on_the_order_of_the_runs),
    };
    return cmocka_run_group_tests_name("forward_head", tests, NULL, NULL);
}
