/*
 * Random models have the sizes of the real ones, can be opened and computed with, and are the
 * same each time. Numbers of weights are those that the models' makers give.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "engine/engine.h"
#include "golden.h"
#include "model/model.h"
#include "model/random_model.h"

static void shapes_have_as_many_weights_as_the_real_models(void **state)
{
    static const struct {
        const char *shape;
        uint64_t n_weights, n_norms;
    } real[] = {{"135m", 134515008, 61 * 576},
                {"1b", 1235814400, 33 * 2048},
                {"3b", 3212749824, 57 * 3072},
                {"8b", 8030261248, 65 * 4096}};
    (void)state;
    for (size_t i = 0; i < sizeof real / sizeof real[0]; i++) {
        const struct random_shape *s = NULL;
        assert_int_equal(random_shape_find(real[i].shape, &s, NULL), 0);
        /* Norms are float32 always. */
        assert_int_equal(random_model_bytes(s, QUANT_F32), 4 * real[i].n_weights);
        assert_int_equal(random_model_bytes(s, QUANT_BF16),
                         2 * real[i].n_weights + 2 * real[i].n_norms);
    }
}

static void what_is_no_shape_or_type_is_refused(void **state)
{
    const struct random_shape *s;
    enum quant_type type;
    struct err e = {0};
    (void)state;
    assert_int_equal(random_shape_find("70b", &s, &e), ERR_USAGE);
    assert_non_null(strstr(e.text, "8b"));
    e = (struct err){0};
    assert_int_equal(random_type_find("Q6_K", &type, &e), ERR_USAGE);
    assert_non_null(strstr(e.text, "Q8_0"));
}

static struct model *make(enum quant_type type, uint64_t seed, const char *path)
{
    const struct random_shape *s = NULL;
    struct model *m = NULL;
    struct err e = {0};
    assert_int_equal(random_shape_find("tiny", &s, &e), 0);
    if (random_model_write(path, s, type, seed, &e) != 0 || model_open(path, &m, &e) != 0)
        fail_msg("%s", e.text);
    unlink(path);
    assert_true(m->file_bytes > random_model_bytes(s, type));
    return m;
}

/* Neither nothing nor without end: logits of the size that such weights give. */
static void check_logits(const struct model *m)
{
    enum { N = 40 };
    int32_t ids[N];
    const size_t n = N * m->config.n_vocab;
    float *logits = malloc(n * sizeof logits[0]);
    double sum = 0;
    struct err e = {0};
    const struct engine_options o = {.n_threads = 1, .batch = N, .chunk_tokens = N};
    struct engine *eng = golden_open_engine(m, "ref", ACT_F32, KV_F32, &o);
    for (int32_t i = 0; i < N; i++)
        ids[i] = 11 * i;
    assert_non_null(logits);
    assert_int_equal(engine_logits(eng, ids, N, logits, &e), 0);
    for (size_t i = 0; i < n; i++)
        sum += (double)logits[i] * (double)logits[i];
    if (!(sum / (double)n > 0.25 && sum / (double)n < 4))
        fail_msg("%s: mean square of logits %g", m->quant, sum / (double)n);
    engine_close(eng);
    free(logits);
}

static void a_random_model_computes_in_every_type(void **state)
{
    static const enum quant_type types[] = {QUANT_F32, QUANT_BF16, QUANT_Q8_0, QUANT_Q4_0};
    char path[64];
    (void)state;
    snprintf(path, sizeof path, "/tmp/random_model.%d.gguf", (int)getpid());
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        struct model *m = make(types[i], RANDOM_SEED, path);
        assert_string_equal(m->quant, quant_find(types[i])->name);
        check_logits(m);
        model_close(m);
    }
}

static void only_the_seed_makes_another_file(void **state)
{
    char path[64];
    (void)state;
    snprintf(path, sizeof path, "/tmp/random_model.%d.gguf", (int)getpid());
    struct model *a = make(QUANT_Q8_0, 1, path);
    struct model *b = make(QUANT_Q8_0, 1, path);
    struct model *c = make(QUANT_Q8_0, 2, path);
    assert_string_equal(a->sha256, b->sha256);
    assert_string_not_equal(a->sha256, c->sha256);
    model_close(a);
    model_close(b);
    model_close(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shapes_have_as_many_weights_as_the_real_models),
        cmocka_unit_test(what_is_no_shape_or_type_is_refused),
        cmocka_unit_test(a_random_model_computes_in_every_type),
        cmocka_unit_test(only_the_seed_makes_another_file),
    };
    return cmocka_run_group_tests_name("random_model", tests, NULL, NULL);
}
