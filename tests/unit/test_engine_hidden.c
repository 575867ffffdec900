/* Hidden states of texts: against the logits that engine_logits computes, and with and without
 * a text before. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "engine/engine_hidden.h"
#include "golden.h"

enum { LONG = 100, COMMON = 45 };

struct rig {
    struct model *model;
    struct engine *eng;
    size_t dim, n_vocab;
    int32_t first[LONG], second[LONG]; /* equal up to COMMON */
};

static int set_up(void **state)
{
    struct rig *r = calloc(1, sizeof *r);
    assert_non_null(r);
    r->model = golden_open_tiny("tiny-llama-f32.gguf");
    r->eng = golden_open_engine(r->model, "ref", ACT_F32, KV_F32, NULL);
    r->dim = r->model->config.dim;
    r->n_vocab = r->model->config.n_vocab;
    for (size_t i = 0; i < LONG; i++) {
        r->first[i] = (int32_t)(rng_bits(3, 0, i) % r->n_vocab);
        r->second[i] = i < COMMON ? r->first[i] : (int32_t)(rng_bits(3, 1, i) % r->n_vocab);
    }
    r->second[COMMON] = (r->first[COMMON] + 1) % (int32_t)r->n_vocab;
    *state = r;
    return 0;
}

static int tear_down(void **state)
{
    struct rig *r = *state;
    engine_close(r->eng);
    model_close(r->model);
    free(r);
    return 0;
}

struct rows {
    float hidden[LONG * 256];
    int32_t best[LONG];
    size_t first;
};

static struct rows *run(struct rig *r, struct engine_hidden *h, const int32_t *tokens, size_t n)
{
    struct rows *out = calloc(1, sizeof *out);
    struct err e = {0};
    assert_non_null(out);
    assert_true(r->dim <= 256);
    if (engine_hidden_run(h, tokens, n, &out->first, out->hidden, out->best, &e) != 0)
        fail_msg("%s", e.text);
    return out;
}

static struct engine_hidden *open_hidden(struct rig *r)
{
    struct engine_hidden *h = NULL;
    assert_int_equal(engine_hidden_open(r->eng, &h, NULL), 0);
    return h;
}

static void check_against_logits(struct rig *r, const int32_t *tokens, const struct rows *rows)
{
    float *logits = malloc(LONG * r->n_vocab * sizeof logits[0]);
    assert_int_equal(engine_logits(r->eng, tokens, LONG, logits, NULL), 0);
    const struct tensor *t = &r->model->output;
    for (size_t i = rows->first; i < LONG; i++) {
        const float *row = logits + i * r->n_vocab;
        size_t best = 0;
        for (size_t id = 0; id < r->n_vocab; id++) {
            best = row[id] > row[best] ? id : best;
            assert_int_equal(t->type, QUANT_F32);
            const float *w = (const float *)t->data + id * r->dim;
            double sum = 0;
            for (size_t k = 0; k < r->dim; k++)
                sum += (double)rows->hidden[(i - rows->first) * r->dim + k] * (double)w[k];
            assert_true(fabs(sum - (double)row[id]) < 1e-4);
        }
        assert_int_equal(rows->best[i - rows->first], best);
    }
    free(logits);
}

static void states_are_what_logits_come_from(void **state)
{
    struct rig *r = *state;
    struct engine_hidden *h = open_hidden(r);
    struct rows *first = run(r, h, r->first, LONG);
    struct rows *second = run(r, h, r->second, LONG);
    engine_hidden_close(h);
    assert_int_equal(first->first, 0);
    assert_int_equal(second->first, COMMON);
    check_against_logits(r, r->first, first);
    check_against_logits(r, r->second, second);
    free(first);
    free(second);
}

static void a_text_before_changes_no_bit(void **state)
{
    struct rig *r = *state;
    struct engine_hidden *h = open_hidden(r);
    struct rows *alone = run(r, h, r->second, LONG);
    engine_hidden_close(h);
    h = open_hidden(r);
    struct rows *before = run(r, h, r->first, LONG);
    struct rows *after = run(r, h, r->second, LONG);
    struct rows *again = run(r, h, r->second, LONG - 3);
    engine_hidden_close(h);
    assert_memory_equal(after->hidden, alone->hidden + COMMON * r->dim,
                        (LONG - COMMON) * r->dim * sizeof(float));
    assert_memory_equal(after->best, alone->best + COMMON, (LONG - COMMON) * sizeof(int32_t));
    assert_int_equal(again->first, LONG - 3);
    free(alone);
    free(before);
    free(after);
    free(again);
}

/* Pages went back: as many texts as one likes, and then a refusal that leaves all well. */
static void texts_leave_nothing_behind(void **state)
{
    struct rig *r = *state;
    struct engine_hidden *h = open_hidden(r);
    struct rows *want = run(r, h, r->first, LONG);
    for (int i = 0; i < 50; i++) {
        free(run(r, h, r->second, LONG - (size_t)i));
        struct rows *got = run(r, h, r->first, LONG);
        assert_memory_equal(got->best, want->best + got->first,
                            (LONG - got->first) * sizeof(int32_t));
        free(got);
    }
    const int32_t outside[] = {(int32_t)r->n_vocab};
    size_t first;
    struct err e = {0};
    float hidden[256];
    int32_t best[1];
    assert_int_equal(engine_hidden_run(h, outside, 1, &first, hidden, best, &e), ERR_INVALID);
    struct rows *last = run(r, h, r->first, LONG);
    assert_int_equal(last->first, 0);
    assert_memory_equal(last->hidden, want->hidden, LONG * r->dim * sizeof(float));
    free(last);
    free(want);
    engine_hidden_close(h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(states_are_what_logits_come_from, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_text_before_changes_no_bit, set_up, tear_down),
        cmocka_unit_test_setup_teardown(texts_leave_nothing_behind, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
