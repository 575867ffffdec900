/*
 * Packed weights of a model, whatever the number of threads that packed them: each matrix is
 * what weight_pack makes of its tensor at once.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/weights.h"
#include "golden.h"

static const char *const models[] = {"tiny-llama-f32.gguf", "tiny-llama-mix.gguf",
                                     "tiny-llama-q4_1.gguf", "tiny-qwen2-q8_0.gguf"};

/* The tensor packed in one piece; free() it. */
static uint8_t *pack_at_once(const struct tensor *t, struct weight *w)
{
    const size_t bytes = weight_packed_bytes(t->type, t->n_rows, t->n_cols);
    uint8_t *data = aligned_alloc(KERNELS_ALIGN, bytes);
    struct err e = {0};
    assert_non_null(data);
    if (weight_pack(w, t->type, t->n_rows, t->n_cols, t->data, data, &e) != 0)
        fail_msg("%s", e.text);
    return data;
}

static bool is_packed(const struct tensor *t, const struct weight *got)
{
    struct weight want;
    uint8_t *data = pack_at_once(t, &want);
    const bool same = got->type == want.type && got->n_rows == want.n_rows &&
                      got->n_cols == want.n_cols && got->n_panels == want.n_panels &&
                      got->panel_bytes == want.panel_bytes &&
                      memcmp(got->data, data, want.n_panels * want.panel_bytes) == 0;
    free(data);
    return same;
}

static void check_model(const struct model *m, const struct weights *w)
{
    for (size_t i = 0; i < m->config.n_layers; i++) {
        const struct model_layer *l = &m->layers[i];
        const struct layer_weights *lw = &w->layers[i];
        assert_true(is_packed(&l->wq, &lw->qkv.parts[0]));
        assert_true(is_packed(&l->wk, &lw->qkv.parts[1]));
        assert_true(is_packed(&l->wv, &lw->qkv.parts[2]));
        assert_true(is_packed(&l->wo, &lw->out.parts[0]));
        assert_true(is_packed(&l->gate, &lw->gate_up.parts[0]));
        assert_true(is_packed(&l->up, &lw->gate_up.parts[1]));
        assert_true(is_packed(&l->down, &lw->down.parts[0]));
    }
    assert_true(is_packed(&m->output, &w->output.parts[0]));
}

static void threads_pack_what_one_call_packs(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof models / sizeof models[0]; i++) {
        struct model *m = golden_open_tiny(models[i]);
        for (size_t n_threads = 1; n_threads <= 3; n_threads++) {
            struct pool *threads = NULL;
            struct weights w;
            assert_int_equal(pool_open(n_threads, &threads, NULL), 0);
            assert_int_equal(weights_open(m, threads, &w, NULL), 0);
            check_model(m, &w);
            weights_close(&w);
            pool_close(threads);
        }
        model_close(m);
    }
}

/* The comparison sees a byte in the last panel, and matrices that were exchanged. */
static void a_wrong_byte_shows(void **state)
{
    (void)state;
    struct model *m = golden_open_tiny(models[2]);
    struct pool *threads = NULL;
    struct weights w;
    assert_int_equal(pool_open(2, &threads, NULL), 0);
    assert_int_equal(weights_open(m, threads, &w, NULL), 0);
    const struct weight *output = &w.output.parts[0];
    output->data[(output->n_panels - 1) * output->panel_bytes] ^= 1;
    assert_false(is_packed(&m->output, output));
    assert_false(is_packed(&m->layers[0].gate, &w.layers[0].gate_up.parts[1]));
    weights_close(&w);
    pool_close(threads);
    model_close(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(threads_pack_what_one_call_packs),
        cmocka_unit_test(a_wrong_byte_shows),
    };
    return cmocka_run_group_tests_name("weights", tests, NULL, NULL);
}
