/*
 * Training: that it learns, that it is the same whatever the threads and however often it is
 * stopped, that what is held out has no part in it.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/rng.h"
#include "golden.h"
#include "train/heads_rank.h"
#include "train/trainer.h"

enum { DIM = 32, KINDS = 12, VOCAB = 40, ROWS = 1500 };

#define IDENTITY "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
#define OTHER    "f123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

/* Walks round a ring of kinds; a row is its kind's direction with noise, and the model puts
 * next what its output rows make of that: the token of the kind. */
struct world {
    struct hidden_set set;
    struct draft_vocab vocab;
    float *output;
    struct kernels kernels;
};

static float noise(uint64_t stream, size_t i)
{
    return (float)(2 * rng_uniform(11, stream, i) - 1);
}

static void fill_set(struct hidden_set *set)
{
    *set = (struct hidden_set){.dim = DIM, .n_rows = ROWS};
    set->rows = calloc(ROWS * DIM, sizeof set->rows[0]);
    set->best = calloc(ROWS, sizeof set->best[0]);
    set->n_after = calloc(ROWS, sizeof set->n_after[0]);
    set->is_held_out = calloc(ROWS, sizeof set->is_held_out[0]);
    set->is_answer = calloc(ROWS, sizeof set->is_answer[0]);
    for (size_t row = 0; row < ROWS; row++) {
        const size_t kind = row % KINDS;
        for (size_t k = 0; k < DIM; k++)
            set->rows[row * DIM + k] =
                quant_f32_to_bf16(2 * noise(kind, k) + 0.3f * noise(100, row * DIM + k));
        set->best[row] = (int32_t)(3 * kind);
        set->n_after[row] = (int32_t)(49 - row % 50);
        set->is_held_out[row] = row / 50 % 10 == 9;
    }
}

static struct world *open_world(void)
{
    struct world *w = calloc(1, sizeof *w);
    assert_non_null(w);
    fill_set(&w->set);
    assert_int_equal(draft_vocab_choose(&w->set, VOCAB, 100, &w->vocab, NULL), 0);
    assert_int_equal(w->vocab.n, KINDS);
    w->output = calloc(w->vocab.n * DIM, sizeof w->output[0]);
    for (size_t j = 0; j < w->vocab.n; j++)
        for (size_t k = 0; k < DIM; k++)
            w->output[j * DIM + k] = noise((uint64_t)w->vocab.tokens[j] / 3, k);
    assert_int_equal(kernels_open(&w->kernels, NULL), 0);
    return w;
}

static void close_world(struct world *w)
{
    hidden_set_fini(&w->set);
    draft_vocab_fini(&w->vocab);
    free(w->output);
    free(w);
}

static struct trainer *open_trainer(struct world *w, struct pool *pool, uint64_t seed)
{
    struct trainer_options o = trainer_defaults();
    o.n_heads = 2;
    o.n_rows = 100;
    o.n_epochs = 8;
    o.rate = 5e-3;
    o.seed = seed;
    struct trainer *t = NULL;
    assert_int_equal(
        trainer_open(&o, &w->set, &w->vocab, w->output, &w->kernels, pool, &t, NULL), 0);
    return t;
}

static void run_to(struct trainer *t, uint64_t step)
{
    double losses[HEADS_MAX];
    while (trainer_steps_done(t) < step)
        trainer_step(t, losses);
}

/* Parameters of both heads; free() them. */
static float *params_of(const struct trainer *t)
{
    struct heads h;
    const struct heads_score none = {.n_heads = 2};
    trainer_heads(t, &none, &h);
    float *out = malloc(2 * (DIM * DIM + DIM) * sizeof out[0]);
    for (size_t i = 0; i < 2; i++) {
        float *at = out + i * (DIM * DIM + DIM);
        memcpy(at, h.heads[i].blocks[0].weight, DIM * DIM * sizeof at[0]);
        memcpy(at + DIM * DIM, h.heads[i].blocks[0].bias, DIM * sizeof at[0]);
    }
    return out;
}

enum { PARAMS_BYTES = 2 * (DIM * DIM + DIM) * sizeof(float) };

static float *train(struct world *w, size_t n_threads, uint64_t seed)
{
    struct pool *pool = NULL;
    assert_int_equal(pool_open(n_threads, &pool, NULL), 0);
    struct trainer *t = open_trainer(w, pool, seed);
    run_to(t, trainer_steps(t));
    float *out = params_of(t);
    trainer_close(t);
    pool_close(pool);
    return out;
}

static void heads_learn_what_comes_later(void **state)
{
    (void)state;
    struct world *w = open_world();
    struct pool *pool = NULL;
    assert_int_equal(pool_open(2, &pool, NULL), 0);
    struct trainer *t = open_trainer(w, pool, 1);
    struct heads_score before, after;
    trainer_measure(t, true, &before);
    run_to(t, trainer_steps(t));
    trainer_measure(t, true, &after);
    for (size_t head = 0; head < 2; head++) {
        assert_true(after.n_labels[head] > 100);
        assert_true(heads_score_top(&before, head, 1) < 0.3); /* it says the kind itself */
        assert_true(heads_score_top(&after, head, 1) > 0.95);
    }
    trainer_close(t);
    pool_close(pool);
    close_world(w);
}

static void threads_change_no_bit_and_the_seed_does(void **state)
{
    (void)state;
    struct world *w = open_world();
    float *one = train(w, 1, 1), *three = train(w, 3, 1), *other = train(w, 1, 2);
    assert_memory_equal(one, three, PARAMS_BYTES);
    assert_memory_not_equal(one, other, PARAMS_BYTES);
    free(one);
    free(three);
    free(other);
    close_world(w);
}

static void what_is_held_out_has_no_part_in_it(void **state)
{
    (void)state;
    struct world *w = open_world();
    float *want = train(w, 1, 1);
    for (size_t row = 0; row < ROWS; row++)
        if (w->set.is_held_out[row]) {
            for (size_t k = 0; k < DIM; k++)
                w->set.rows[row * DIM + k] = quant_f32_to_bf16(noise(999, row * DIM + k));
            w->set.best[row] = 1;
        }
    float *got = train(w, 1, 1);
    assert_memory_equal(got, want, PARAMS_BYTES);
    free(got);
    draft_vocab_fini(&w->vocab);
    assert_int_equal(draft_vocab_choose(&w->set, VOCAB, 100, &w->vocab, NULL), 0);
    assert_int_equal(w->vocab.n, KINDS); /* nor in what the heads know of */
    w->set.rows[0] = quant_f32_to_bf16(9);
    got = train(w, 1, 1);
    assert_memory_not_equal(got, want, PARAMS_BYTES); /* what is not does */
    free(got);
    free(want);
    close_world(w);
}

static void a_stopped_training_goes_on_to_the_same_end(void **state)
{
    (void)state;
    struct world *w = open_world();
    float *want = train(w, 1, 1);
    char path[] = "/tmp/sheaf-trainer-XXXXXX";
    const int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    unlink(path);
    struct pool *pool = NULL;
    assert_int_equal(pool_open(2, &pool, NULL), 0);
    /* Within an epoch, at its border, at the very end. */
    const uint64_t stops[] = {1, 7, 26, 27, 80, UINT64_MAX};
    for (size_t i = 0; i < sizeof stops / sizeof stops[0]; i++) {
        struct trainer *t = open_trainer(w, pool, 1);
        bool found;
        assert_int_equal(trainer_load(t, path, IDENTITY, &found, NULL), 0);
        assert_int_equal(found, i > 0);
        assert_int_equal(trainer_steps_done(t), i > 0 ? stops[i - 1] : 0);
        run_to(t, stops[i] < trainer_steps(t) ? stops[i] : trainer_steps(t));
        assert_int_equal(trainer_save(t, path, IDENTITY, NULL), 0);
        struct stat st;
        assert_int_equal(stat(path, &st), 0);
        assert_int_equal(st.st_mode & 0777, 0600);
        if (stops[i] == UINT64_MAX) {
            float *got = params_of(t);
            assert_memory_equal(got, want, PARAMS_BYTES);
            free(got);
        }
        trainer_close(t);
    }
    unlink(path);
    pool_close(pool);
    free(want);
    close_world(w);
}

static void write_file(const char *path, const char *bytes, size_t length)
{
    FILE *out = fopen(path, "wb");
    assert_non_null(out);
    assert_int_equal(fwrite(bytes, 1, length, out), length);
    fclose(out);
}

static void states_of_others_and_damaged_ones_are_refused(void **state)
{
    (void)state;
    struct world *w = open_world();
    struct pool *pool = NULL;
    assert_int_equal(pool_open(1, &pool, NULL), 0);
    char path[] = "/tmp/sheaf-trainer-XXXXXX";
    close(mkstemp(path));
    struct trainer *t = open_trainer(w, pool, 1);
    run_to(t, 5);
    assert_int_equal(trainer_save(t, path, IDENTITY, NULL), 0);
    float *want = params_of(t);
    bool found;
    struct err e = {0};
    assert_int_equal(trainer_check_state("/nowhere/state", IDENTITY, NULL), 0);
    assert_int_equal(trainer_check_state(path, IDENTITY, NULL), 0);
    assert_int_equal(trainer_check_state(path, OTHER, NULL), ERR_STATE);
    assert_int_equal(trainer_load(t, path, OTHER, &found, &e), ERR_STATE);
    assert_non_null(strstr(e.text, "other texts, options or another model"));
    FILE *in = fopen(path, "rb");
    static char bytes[1 << 20];
    const size_t n = fread(bytes, 1, sizeof bytes, in);
    fclose(in);
    assert_true(n > 1000 && n < sizeof bytes);
    for (size_t at = 0; at < n; at += at < 100 || at + 70 > n ? 1 : 997) {
        bytes[at] ^= 4;
        write_file(path, bytes, n);
        assert_int_not_equal(trainer_load(t, path, IDENTITY, &found, NULL), 0);
        bytes[at] ^= 4;
    }
    for (size_t cut = 0; cut < n; cut += n / 40 + 1) {
        write_file(path, bytes, cut);
        assert_int_not_equal(trainer_load(t, path, IDENTITY, &found, NULL), 0);
    }
    float *got = params_of(t);
    assert_memory_equal(got, want, PARAMS_BYTES);
    assert_int_equal(trainer_steps_done(t), 5);
    write_file(path, bytes, n);
    assert_int_equal(trainer_load(t, path, IDENTITY, &found, NULL), 0);
    unlink(path);
    free(got);
    free(want);
    trainer_close(t);
    pool_close(pool);
    close_world(w);
}

/* ------------------------------------------------------------------ with a model */

static void add_repetitive_texts(struct corpus *c, size_t n_vocab)
{
    for (size_t text = 0; text < 60; text++) {
        int32_t tokens[96];
        const size_t start = rng_bits(5, 0, text) % 8;
        for (size_t i = 0; i < 96; i++)
            tokens[i] = (int32_t)(rng_bits(5, 1, (start + i) % 8) % n_vocab);
        tokens[0] = (int32_t)(text % n_vocab); /* no two texts are one */
        assert_int_equal(corpus_add(c, tokens, 96, NULL, 0, 1000, NULL), 0);
    }
}

static void check_ranks(const struct world *w, const struct model *m, struct pool *pool,
                        struct trainer *t, const struct heads_score *want)
{
    struct heads h;
    trainer_heads(t, want, &h);
    size_t n = 0;
    size_t *rows = malloc(w->set.n_rows * sizeof rows[0]);
    for (size_t row = 0; row < w->set.n_rows; row++)
        if (w->set.is_held_out[row] && w->set.n_after[row] > 0)
            rows[n++] = row;
    int32_t *ranks = malloc(2 * n * sizeof ranks[0]);
    struct err e = {0};
    if (heads_rank(&h, m, &w->kernels, pool, &w->set, &w->vocab, rows, n, ranks, &e) != 0)
        fail_msg("%s", e.text);
    struct heads_score got = {.n_heads = 2};
    for (size_t i = 0; i < n; i++)
        heads_score_add(&got, (const int32_t[]){ranks[i], ranks[n + i]},
                        (size_t)w->set.n_after[rows[i]]);
    assert_memory_equal(&got, want, sizeof got);
    free(ranks);
    free(rows);
}

static void a_tiny_model_gets_heads_for_a_repetitive_text(void **state)
{
    (void)state;
    struct model *m = golden_open_tiny("tiny-llama-f32.gguf");
    struct engine *eng = golden_open_engine(m, "ref", ACT_F32, KV_F32, NULL);
    const size_t n_vocab = m->config.n_vocab;
    struct world w = {0};
    struct corpus c = {0};
    add_repetitive_texts(&c, n_vocab);
    assert_int_equal(corpus_prepare(&c, 100000, NULL), 0);
    assert_int_equal(hidden_set_fill(&w.set, eng, m->config.dim, &c, NULL, NULL), 0);
    assert_int_equal(w.set.n_rows, c.n_positions);
    assert_int_equal(draft_vocab_choose(&w.set, n_vocab, 64, &w.vocab, NULL), 0);
    assert_int_equal(draft_vocab_output(&w.vocab, m, &w.output, NULL), 0);
    assert_int_equal(kernels_open(&w.kernels, NULL), 0);
    struct pool *pool = NULL;
    assert_int_equal(pool_open(2, &pool, NULL), 0);
    struct trainer *t = open_trainer(&w, pool, 1);
    struct heads_score before, after;
    trainer_measure(t, true, &before);
    run_to(t, trainer_steps(t));
    trainer_measure(t, true, &after);
    for (size_t head = 0; head < 2; head++) {
        print_message("tiny model, head %zu: top-1 %.3f, before training %.3f\n", head + 1,
                      heads_score_top(&after, head, 1), heads_score_top(&before, head, 1));
        assert_true(heads_score_top(&after, head, 1) > 0.6);
        assert_true(heads_score_top(&after, head, 1) > heads_score_top(&before, head, 1) + 0.3);
    }
    check_ranks(&w, m, pool, t, &after);
    trainer_close(t);
    pool_close(pool);
    hidden_set_fini(&w.set);
    draft_vocab_fini(&w.vocab);
    free(w.output);
    corpus_fini(&c);
    engine_close(eng);
    model_close(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(heads_learn_what_comes_later),
        cmocka_unit_test(threads_change_no_bit_and_the_seed_does),
        cmocka_unit_test(what_is_held_out_has_no_part_in_it),
        cmocka_unit_test(a_stopped_training_goes_on_to_the_same_end),
        cmocka_unit_test(states_of_others_and_damaged_ones_are_refused),
        cmocka_unit_test(a_tiny_model_gets_heads_for_a_repetitive_text),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
