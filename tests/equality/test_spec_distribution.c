/*
 * What is drawn with speculation follows the target's distribution: three tokens behind one
 * prompt, drawn under many seeds, against probabilities worked out here from the logits of
 * every way there is (chi-square). A rule that accepts as it should not is seen by the same
 * test.
 *
 * SHEAF_DISTRIBUTION_SEEDS says how many seeds.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "engine/engine_int.h"
#include "golden.h"
#include "heads_make.h"

enum {
    K = 6, /* tokens that are left at each place: top-k */
    PLACES = 3,
    CELLS = K * K * K,
    PROMPT = 4,
    ANSWER = 8, /* a draft has no more nodes than there are tokens to come */
    BATCH = 32,
};
static const float TEMPERATURE = 0.8f;
/* Of a normal distribution: one in a thousand lies beyond. */
static const double BEYOND = 3.09;
/* Cells of fewer expected draws are counted together. */
static const double EXPECTED_MIN = 5;

/* What may follow after a way of 0, 1 or 2 tokens, the likeliest first. */
struct fork {
    int32_t tokens[K];
    double p[K];
};

struct target {
    struct model *model;
    struct heads *heads;
    const char *isa;
    int32_t prompt[PROMPT];
    struct fork first, second[K], third[K][K];
};

/* ------------------------------------------------------------------ expected */

/* Top-k and softmax as they are defined, in doubles. */
static void make_fork(struct engine *eng, const int32_t *tokens, size_t n, struct fork *out)
{
    const size_t n_vocab = eng->model->config.n_vocab;
    float *logits = malloc(n * n_vocab * sizeof logits[0]);
    struct err e = {0};
    double total = 0;
    assert_non_null(logits);
    if (engine_logits(eng, tokens, n, logits, &e) != 0)
        fail_msg("%s", e.text);
    float *last = logits + (n - 1) * n_vocab;
    for (size_t k = 0; k < K; k++) {
        size_t best = 0;
        for (size_t i = 1; i < n_vocab; i++)
            if (last[i] > last[best])
                best = i;
        out->tokens[k] = (int32_t)best;
        out->p[k] = exp((double)last[best] / (double)TEMPERATURE);
        total += out->p[k];
        last[best] = -INFINITY;
    }
    for (size_t k = 0; k < K; k++)
        out->p[k] /= total;
    free(logits);
}

static struct engine *open_engine(const struct target *t, unsigned speculation,
                                  struct draft_proposer proposer)
{
    const struct engine_options o = {.n_threads = 1,
                                     .batch = BATCH,
                                     .step_tokens = 256,
                                     .chunk_tokens = 32,
                                     .context = 64,
                                     .draft_tokens = 512,
                                     .kv_bytes = 8 << 20,
                                     .speculation = speculation,
                                     .heads = t->heads,
                                     .draft_always = true,
                                     .proposer = proposer};
    return golden_open_engine(t->model, t->isa, ACT_INT8, KV_BF16, &o);
}

static void open_target(struct target *t)
{
    const char *isas[3];
    const struct heads_shape shape = {
        .seed = 3, .n_heads = 2, .n_blocks = 1, .scale = 0.03125f};
    *t = (struct target){.model = golden_open_tiny("tiny-llama-q8_0.gguf"),
                         .isa = isas[golden_isas(isas) - 1]};
    t->heads = heads_make(t->model, &shape);
    int32_t way[PROMPT + 2];
    for (size_t i = 0; i < PROMPT; i++)
        way[i] = t->prompt[i] = (int32_t)(rng_bits(21, 0, i) % 300);
    struct engine *eng = open_engine(t, SPECULATION_OFF, (struct draft_proposer){0});
    make_fork(eng, way, PROMPT, &t->first);
    for (size_t a = 0; a < K; a++) {
        way[PROMPT] = t->first.tokens[a];
        make_fork(eng, way, PROMPT + 1, &t->second[a]);
        for (size_t b = 0; b < K; b++) {
            way[PROMPT + 1] = t->second[a].tokens[b];
            make_fork(eng, way, PROMPT + 2, &t->third[a][b]);
        }
    }
    engine_close(eng);
}

static void close_target(struct target *t)
{
    heads_close(t->heads);
    model_close(t->model);
}

/* ------------------------------------------------------------------ the comparison */

static int place_of(const struct fork *f, int32_t token)
{
    for (int k = 0; k < K; k++)
        if (f->tokens[k] == token)
            return k;
    return -1;
}

/* -1: one of them has no probability. */
static int cell_of(const struct target *t, const int32_t *tokens)
{
    const int a = place_of(&t->first, tokens[0]);
    const int b = a < 0 ? -1 : place_of(&t->second[a], tokens[1]);
    const int c = b < 0 ? -1 : place_of(&t->third[a][b], tokens[2]);
    return c < 0 ? -1 : (a * K + b) * K + c;
}

static double expected_of(const struct target *t, size_t cell, size_t n)
{
    const size_t a = cell / (K * K), b = cell / K % K, c = cell % K;
    return (double)n * t->first.p[a] * t->second[a].p[b] * t->third[a][b].p[c];
}

/* What chi-square of so many degrees exceeds once in a thousand (Wilson and Hilferty 1931). */
static double limit_of(size_t degrees)
{
    const double v = 2 / (9 * (double)degrees);
    return (double)degrees * pow(1 - v + BEYOND * sqrt(v), 3);
}

static bool follows(const struct target *t, const size_t *counts, size_t n, const char *name)
{
    double chi = 0, rest = 0, rest_counted = 0;
    size_t n_cells = 0;
    for (size_t cell = 0; cell < CELLS; cell++) {
        const double expected = expected_of(t, cell, n), counted = (double)counts[cell];
        if (expected < EXPECTED_MIN) {
            rest += expected;
            rest_counted += counted;
            continue;
        }
        chi += (counted - expected) * (counted - expected) / expected;
        n_cells++;
    }
    if (rest > 0) {
        chi += (rest_counted - rest) * (rest_counted - rest) / rest;
        n_cells++;
    }
    const double limit = limit_of(n_cells - 1);
    print_message("%s: %zu seeds, %zu cells, chi-square %.1f of at most %.1f\n", name, n,
                  n_cells, chi, limit);
    return chi <= limit;
}

static size_t n_seeds(void)
{
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || defined(SHEAF_REF_ONLY)
    const size_t n = 2000;
#else
    const size_t n = 20000;
#endif
    const char *given = getenv("SHEAF_DISTRIBUTION_SEEDS");
    return given ? strtoull(given, NULL, 10) : n;
}

/* ------------------------------------------------------------------ who drafts */

enum choice { BEST, TREE, LEAST, N_CHOICES };
enum { TREE_WIDTH = 3 };

struct drafting {
    const struct target *target;
    enum choice choice;
};

static void add_level(const struct drafting *d, const struct fork *f, int parent, size_t n_max,
                      unsigned source, struct draft *out)
{
    const size_t from = d->choice == LEAST ? K - 1 : 0;
    const size_t until = d->choice == LEAST ? K : d->choice == TREE ? TREE_WIDTH : 1;
    for (size_t k = from; k < until && out->n_nodes < n_max; k++)
        draft_add(out, parent, f->tokens[k], source, (float)f->p[k]);
}

/* Of the second token and the third. */
static void propose(void *ctx, const struct seq *seq, size_t n_max, struct draft *out)
{
    const struct drafting *d = ctx;
    const struct target *t = d->target;
    const size_t n_drawn = seq_n_output(seq);
    const int a = place_of(&t->first, seq->tokens[PROMPT]);
    if (n_drawn == 2) {
        const int b = place_of(&t->second[a], seq->tokens[PROMPT + 1]);
        add_level(d, &t->third[a][b], DRAFT_ROOT, n_max, DRAFT_MEDUSA, out);
    }
    if (n_drawn != 1)
        return;
    add_level(d, &t->second[a], DRAFT_ROOT, n_max, DRAFT_MODEL, out);
    const size_t n_level = out->n_nodes;
    for (size_t i = 0; i < n_level; i++) {
        const int b = place_of(&t->second[a], out->nodes[i].token);
        add_level(d, &t->third[a][b], (int)i, n_max, DRAFT_MODEL, out);
    }
}

/* ------------------------------------------------------------------ drawn by the engine */

static void submit(struct engine *eng, const struct target *t, uint64_t seed)
{
    struct err e = {0};
    struct seq_request req = {.prompt = t->prompt,
                              .n_prompt = PROMPT,
                              .max_tokens = ANSWER,
                              .ignore_eos = true,
                              .sample = sample_params_greedy()};
    req.sample.temperature = TEMPERATURE;
    req.sample.top_k = K;
    req.sample.seed = seed;
    if (engine_submit(eng, &req, &e) != 0)
        fail_msg("%s", e.text);
}

static void count_answers(struct engine *eng, const struct target *t, size_t *counts)
{
    struct seq_result r;
    struct err e = {0};
    bool worked;
    while (engine_active(eng) > 0) {
        if (!engine_collect(eng, &r)) {
            assert_int_equal(engine_step(eng, &worked, &e), 0);
            continue;
        }
        const int cell = cell_of(t, r.tokens);
        assert_int_equal(r.n_tokens, ANSWER);
        assert_true(cell >= 0);
        counts[cell]++;
    }
}

/* Seeds of their own for each name, so that chance does not spare or strike them all alike. */
static void check_engine(const struct target *t, struct engine *eng, size_t number,
                         const char *name, bool drafts)
{
    static size_t counts[CELLS];
    const size_t n = n_seeds();
    memset(counts, 0, sizeof counts);
    for (size_t seed = 0; seed < n;) {
        for (size_t i = 0; i < BATCH && seed < n; i++)
            submit(eng, t, number * 1000000007 + seed++);
        count_answers(eng, t, counts);
    }
    const struct draft_counters c = engine_counters(eng).drafts;
    print_message("%s: %zu tokens drafted, %zu accepted\n", name, (size_t)c.drafted,
                  (size_t)c.accepted);
    assert_true(drafts ? c.accepted > 0 && c.rejected > 0 : c.drafted == 0);
    assert_true(follows(t, counts, n, name));
    engine_close(eng);
}

static void with_each_source_tokens_follow_the_targets_distribution(void **state)
{
    (void)state;
    struct target t;
    open_target(&t);
    check_engine(&t, open_engine(&t, SPECULATION_OFF, (struct draft_proposer){0}), 1, "off",
                 false);
    check_engine(&t, open_engine(&t, SPECULATION_LOOKUP, (struct draft_proposer){0}), 2,
                 "lookup", true);
    check_engine(&t, open_engine(&t, SPECULATION_HEADS, (struct draft_proposer){0}), 3, "heads",
                 true);
    static const char *const names[N_CHOICES] = {"the likeliest", "a tree", "the least likely"};
    for (enum choice choice = BEST; choice < N_CHOICES; choice++) {
        struct drafting d = {&t, choice};
        check_engine(&t,
                     open_engine(&t, SPECULATION_OFF,
                                 (struct draft_proposer){.propose = propose, .ctx = &d}),
                     4 + choice, names[choice], true);
    }
    close_target(&t);
}

/* ------------------------------------------------------------------ rules of acceptance */

static size_t draw_from(const double *p, double uniform, int without)
{
    double left = uniform * (without < 0 ? 1 : 1 - p[without]);
    size_t last = 0;
    for (size_t k = 0; k < K; k++) {
        if ((int)k == without)
            continue;
        last = k;
        left -= p[k];
        if (left < 0)
            return k;
    }
    return last;
}

/* The likeliest token is drafted and taken when u < p. Else it is known not to be drawn; the
 * biased rule forgets that. */
static size_t accept_or_draw(const struct fork *f, uint64_t seed, uint64_t place,
                             bool is_biased)
{
    if (rng_uniform(seed, 1, place) < f->p[0])
        return 0;
    return draw_from(f->p, rng_uniform(seed, 2, place), is_biased ? -1 : 0);
}

static bool rule_follows(const struct target *t, bool is_biased, const char *name)
{
    static size_t counts[CELLS];
    const size_t n = n_seeds();
    memset(counts, 0, sizeof counts);
    for (uint64_t seed = 0; seed < n; seed++) {
        const size_t a = draw_from(t->first.p, rng_uniform(seed, 2, 0), -1);
        const size_t b = accept_or_draw(&t->second[a], seed, 1, is_biased);
        const size_t c = accept_or_draw(&t->third[a][b], seed, 2, is_biased);
        counts[(a * K + b) * K + c]++;
    }
    return follows(t, counts, n, name);
}

static void a_biased_rule_of_acceptance_is_seen(void **state)
{
    (void)state;
    struct target t;
    open_target(&t);
    assert_true(rule_follows(&t, false, "accepted when u < p, else drawn from the rest"));
    assert_false(rule_follows(&t, true, "accepted when u < p, else drawn from all"));
    close_target(&t);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(with_each_source_tokens_follow_the_targets_distribution),
        cmocka_unit_test(a_biased_rule_of_acceptance_is_seen),
    };
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests_name("distribution with speculation", tests, NULL, NULL);
}
