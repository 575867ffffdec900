/*
 * Attention over pages that several sequences share: the same bits as each sequence alone, and
 * fewer pages read.
 *
 * What is expected comes from a pass of each sequence alone, all of its tokens in one chunk, in
 * pages of its own. Pages nobody has written are NaN.
 */
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

enum { PAGE = KV_PAGE_TOKENS, SEQS_MAX = 40, ROWS_MAX = 256, PAGES_MAX = 640, CONTEXT = 512 };

/* A sequence of a case: its first pages are those of an earlier one. */
struct spec {
    int parent;        /* or -1 */
    size_t n_shared;   /* pages */
    size_t n_computed; /* tokens whose keys are there before the step */
    size_t n_rows;     /* of the step */
};

struct world {
    struct forward_rig rig;
    struct forward *alone, *shared; /* shared_attention off and on */

    struct seq *seqs[SEQS_MAX];
    struct step_segment segments[SEQS_MAX];
    struct step_plan plan;
    float *expected; /* [ROWS_MAX, V] */
};

struct setting {
    const char *model;
    enum act_kind activations;
    enum kv_type kv_type;
    size_t n_threads;
};

static const struct setting settings[] = {
    {"tiny-llama-q4_1.gguf", ACT_INT8, KV_BF16, 1},
    {"tiny-llama-q4_1.gguf", ACT_INT8, KV_BF16, 2},
    {"tiny-qwen2-f32.gguf", ACT_F32, KV_F32, 2},
    {"tiny-qwen3-q8_0.gguf", ACT_INT8, KV_BF16, 3},
};
enum { N_SETTINGS = sizeof settings / sizeof settings[0] };

static void open_world(struct world *w, const struct setting *s, const char *isa)
{
    *w = (struct world){0};
    struct model *m = golden_open_tiny(s->model);
    forward_rig_open(&w->rig, m, isa, s->n_threads, s->kv_type, PAGES_MAX);
    w->alone = forward_rig_pass(&w->rig, ROWS_MAX, s->activations, false);
    w->shared = forward_rig_pass(&w->rig, ROWS_MAX, s->activations, true);
    w->expected = malloc(ROWS_MAX * m->config.n_vocab * sizeof w->expected[0]);
    w->plan.segments = w->segments;
}

static void close_world(struct world *w)
{
    free(w->expected);
    forward_close(w->alone);
    forward_close(w->shared);
    forward_rig_close(&w->rig);
}

/* ------------------------------------------------------------------ sequences and steps */

/* All bits set is a NaN in both element types. */
static void poison_pages(struct world *w)
{
    memset(kvpool_block(w->rig.kv, 0, 0, 0), 0xff, kvpool_bytes(w->rig.kv));
}

static void take_pages(struct world *w, struct seq *seq)
{
    while (seq->n_pages < seq_pages_for(seq->n_tokens)) {
        const int32_t page = kvpool_acquire_page(w->rig.kv);
        assert_int_not_equal(page, KVPOOL_NO_PAGE);
        seq->pages[seq->n_pages++] = page;
    }
}

static void give_pages_back(struct world *w, struct seq *seq)
{
    while (seq->n_pages > 0)
        kvpool_release_page(w->rig.kv, seq->pages[--seq->n_pages]);
}

/* The logits that the sequence's last n_rows have in pages of its own. */
static void expect_rows(struct world *w, const struct seq *seq, size_t n_rows, size_t row)
{
    struct seq *twin = forward_rig_seq(seq->tokens, seq->n_tokens, CONTEXT);
    take_pages(w, twin);
    forward_rig_run(w->alone, twin, 0, twin->n_tokens, n_rows);
    const size_t n_vocab = w->rig.model->config.n_vocab;
    memcpy(w->expected + row * n_vocab, forward_logits(w->alone, 0),
           n_rows * n_vocab * sizeof(float));
    give_pages_back(w, twin);
    seq_close(twin);
}

static struct seq *make_seq(struct world *w, const struct spec *spec, size_t index)
{
    const size_t n_tokens = spec->n_computed + spec->n_rows;
    const struct seq *parent = spec->parent < 0 ? NULL : w->seqs[spec->parent];
    int32_t tokens[CONTEXT];
    for (size_t i = 0; i < n_tokens; i++)
        tokens[i] = i < spec->n_shared * PAGE
                        ? parent->tokens[i]
                        : (int32_t)(rng_bits(5, index, i) % w->rig.model->config.n_vocab);
    struct seq *seq = forward_rig_seq(tokens, n_tokens, CONTEXT);
    for (size_t i = 0; i < spec->n_shared; i++) {
        kvpool_share_page(w->rig.kv, parent->pages[i]);
        seq->pages[seq->n_pages++] = parent->pages[i];
    }
    take_pages(w, seq);
    return seq;
}

/* Sequences, what they have computed before, expectations, and the plan of all their rows. */
static void set_up(struct world *w, const struct spec *specs, size_t n)
{
    poison_pages(w);
    w->plan.n_segments = n;
    w->plan.n_rows = 0;
    for (size_t i = 0; i < n; i++) {
        w->seqs[i] = make_seq(w, &specs[i], i);
        expect_rows(w, w->seqs[i], specs[i].n_rows, w->plan.n_rows);
        w->segments[i] = (struct step_segment){.seq = w->seqs[i],
                                               .row = w->plan.n_rows,
                                               .n_rows = specs[i].n_rows,
                                               .position = specs[i].n_computed,
                                               .n_logits = specs[i].n_rows,
                                               .logits_row = w->plan.n_rows};
        w->plan.n_rows += specs[i].n_rows;
    }
    w->plan.n_logits = w->plan.n_rows;
    for (size_t i = 0; i < n; i++)
        if (specs[i].n_computed > specs[i].n_shared * PAGE)
            forward_rig_run(w->alone, w->seqs[i], specs[i].n_shared * PAGE, specs[i].n_computed,
                            0);
}

static void tear_down(struct world *w)
{
    for (size_t i = 0; i < w->plan.n_segments; i++) {
        give_pages_back(w, w->seqs[i]);
        seq_close(w->seqs[i]);
    }
    assert_int_equal(kvpool_free_pages(w->rig.kv), PAGES_MAX);
}

/* Pages of one layer and head that the step read. */
static size_t run_step(struct world *w, struct forward *f)
{
    const struct model_config *c = &w->rig.model->config;
    const uint64_t before = forward_attention_pages(f);
    forward_run(f, &w->plan);
    const uint64_t n = forward_attention_pages(f) - before;
    assert_int_equal(n % (c->n_layers * c->n_kv_heads), 0);
    return (size_t)(n / (c->n_layers * c->n_kv_heads));
}

/* The first sequence with a row that is not what it is alone, or -1. */
static int first_difference(const struct world *w, struct forward *f)
{
    const size_t n_vocab = w->rig.model->config.n_vocab;
    for (size_t i = 0; i < w->plan.n_segments; i++) {
        const struct step_segment *s = &w->plan.segments[i];
        if (memcmp(forward_logits(f, s->logits_row), w->expected + s->logits_row * n_vocab,
                   s->n_rows * n_vocab * sizeof(float)) != 0)
            return (int)i;
    }
    return -1;
}

static void assert_expectations_are_numbers(const struct world *w)
{
    for (size_t i = 0; i < w->plan.n_rows * w->rig.model->config.n_vocab; i++)
        assert_true(w->expected[i] == w->expected[i]);
}

/* ------------------------------------------------------------------ pages, counted by hand */

static size_t pages_of(const struct step_segment *s)
{
    return (s->position + s->n_rows - 1) / PAGE + 1;
}

/* Every sequence for itself. */
static size_t pages_apart(const struct world *w)
{
    size_t n = 0;
    for (size_t i = 0; i < w->plan.n_segments; i++)
        n += pages_of(&w->segments[i]);
    return n;
}

/* Each page once. */
static size_t pages_together(const struct world *w)
{
    bool seen[PAGES_MAX] = {false};
    size_t n = 0;
    for (size_t i = 0; i < w->plan.n_segments; i++)
        for (size_t k = 0; k < pages_of(&w->segments[i]); k++) {
            bool *page = &seen[w->seqs[i]->pages[k]];
            n += !*page;
            *page = true;
        }
    return n;
}

/* ------------------------------------------------------------------ cases */

struct test_case {
    const char *name;
    struct spec specs[8];
    size_t n;
};

static const struct test_case cases[] = {
    {"one group", {{-1, 0, 70, 1}, {0, 2, 65, 1}, {0, 2, 97, 1}, {0, 2, 80, 1}}, 4},
    {"two groups, taking turns",
     {{-1, 0, 70, 1},
      {-1, 0, 110, 1},
      {0, 2, 65, 1},
      {1, 3, 100, 1},
      {0, 2, 99, 1},
      {1, 3, 97, 1}},
     6},
    {"a system prompt, two documents, examples",
     {{-1, 0, 130, 1},
      {0, 1, 100, 1},
      {0, 3, 120, 1},
      {1, 3, 110, 1},
      {2, 3, 99, 1},
      {1, 2, 70, 1},
      {0, 1, 40, 1}},
     7},
    {"chunks and decode rows",
     {{-1, 0, 70, 1}, {0, 2, 64, 9}, {0, 2, 75, 1}, {0, 1, 32, 2}, {-1, 0, 0, 5}},
     5},
    {"groups of one", {{-1, 0, 31, 1}, {-1, 0, 0, 1}, {-1, 0, 64, 1}, {-1, 0, 20, 13}}, 4},
    {"one sequence", {{-1, 0, 65, 1}}, 1},
    {"a leader that fills the pages which the others read",
     {{-1, 0, 78, 18}, {0, 3, 96, 1}, {0, 3, 96, 3}},
     3},
    {"a row inside pages that others are past",
     {{-1, 0, 100, 1}, {0, 2, 63, 1}, {0, 3, 96, 1}},
     3},
    {"page edges",
     {{-1, 0, 97, 1},
      {0, 1, 63, 1},
      {0, 2, 64, 1},
      {0, 2, 65, 1},
      {0, 3, 96, 1},
      {0, 2, 95, 2}},
     6},
};
enum { N_CASES = sizeof cases / sizeof cases[0] };

/* Small cases fit one block, so that on one thread nothing is read twice. */
static void check_small_case(struct world *w, const struct test_case *t,
                             const struct setting *s)
{
    set_up(w, t->specs, t->n);
    assert_expectations_are_numbers(w);
    const size_t n_shared = run_step(w, w->shared);
    if (first_difference(w, w->shared) >= 0)
        fail_msg("%s, %s: sequence %d differs with shared attention", w->rig.kernels.name,
                 t->name, first_difference(w, w->shared));
    const size_t n_alone = run_step(w, w->alone);
    if (first_difference(w, w->alone) >= 0)
        fail_msg("%s, %s: sequence %d differs", w->rig.kernels.name, t->name,
                 first_difference(w, w->alone));
    if (s->n_threads == 1) {
        assert_int_equal(n_shared, pages_together(w));
        assert_int_equal(n_alone, pages_apart(w));
    }
    tear_down(w);
}

static void every_row_has_the_bits_of_its_sequence_alone(void **state)
{
    (void)state;
    const char *isas[3];
    for (size_t k = golden_isas(isas); k-- > 0;)
        for (size_t i = 0; i < N_SETTINGS; i++) {
            struct world w;
            open_world(&w, &settings[i], isas[k]);
            for (size_t c = 0; c < N_CASES; c++)
                check_small_case(&w, &cases[c], &settings[i]);
            close_world(&w);
        }
}

/* Forty sequences: a page common to all, then documents of two pages, then their own. Plain C
 * is slow and takes one setting. */
static void a_batch_of_forty_reads_less_and_says_the_same(void **state)
{
    (void)state;
    struct spec specs[SEQS_MAX] = {{-1, 0, 110, 1}};
    for (int i = 1; i < SEQS_MAX; i++)
        specs[i] = i < 4 ? (struct spec){0, 1, 100 + (size_t)i, 1}
                         : (struct spec){i % 4, 3, 95 + (size_t)i, 1 + (i == 20)};
    const char *isas[3];
    for (size_t k = golden_isas(isas); k-- > 0;)
        for (size_t i = k == 0 ? N_SETTINGS - 1 : 0; i < N_SETTINGS; i++) {
            struct world w;
            open_world(&w, &settings[i], isas[k]);
            set_up(&w, specs, SEQS_MAX);
            const size_t n_shared = run_step(&w, w.shared);
            assert_int_equal(first_difference(&w, w.shared), -1);
            const size_t n_alone = run_step(&w, w.alone);
            assert_int_equal(first_difference(&w, w.alone), -1);
            assert_in_range(n_shared, pages_together(&w), pages_apart(&w) / 2);
            assert_int_equal(n_alone, pages_apart(&w));
            tear_down(&w);
            close_world(&w);
        }
}

/* The comparison sees a page of another text, in the sequence that holds it and in no other. */
static void a_wrong_page_shows(void **state)
{
    (void)state;
    const struct test_case *t = &cases[0];
    struct world w;
    const char *isas[3];
    open_world(&w, &settings[0], isas[golden_isas(isas) - 1]);
    for (int victim = 1; victim < (int)t->n; victim++) {
        set_up(&w, t->specs, t->n);
        int32_t *page = &w.seqs[victim]->pages[1];
        const int32_t right = *page;
        *page = w.seqs[0]->pages[0];
        run_step(&w, w.shared);
        assert_int_equal(first_difference(&w, w.shared), victim);
        *page = right;
        run_step(&w, w.shared);
        assert_int_equal(first_difference(&w, w.shared), -1);
        tear_down(&w);
    }
    close_world(&w);
}

/* ------------------------------------------------------------------ the plan alone */

/* The spans of a row lead over its own pages, one after another, to its last key. */
static void check_row(const struct attention_plan *p, const struct attention_block *b, size_t i)
{
    const struct attention_row *row = &p->rows[b->first_row + i];
    size_t key = 0;
    for (size_t k = 0; k < b->n_spans; k++) {
        const struct attention_span *s = &p->spans[b->first_span + k];
        if (i < s->first_row || i >= s->first_row + s->n_rows)
            continue;
        assert_int_equal(s->first_page * PAGE, key);
        const int32_t *pages = p->rows[b->first_row + s->first_row].pages;
        const size_t n_pages = (s->n_keys + PAGE - 1) / PAGE;
        assert_memory_equal(pages + s->first_page, row->pages + s->first_page,
                            n_pages * sizeof pages[0]);
        key += n_pages * PAGE;
    }
    assert_int_equal(key / PAGE, (size_t)row->position / PAGE + 1);
}

static void check_plan(const struct attention_plan *p, const struct step_plan *step)
{
    bool seen[STEP_ROWS_MAX] = {false};
    size_t n = 0;
    for (size_t k = 0; k < p->n_blocks; k++)
        for (size_t i = 0; i < p->blocks[k].n_rows; i++, n++) {
            const size_t row = p->rows[p->blocks[k].first_row + i].row;
            assert_false(seen[row]);
            seen[row] = true;
            check_row(p, &p->blocks[k], i);
        }
    assert_int_equal(n, step->n_rows);
}

static size_t draw(uint64_t seed, uint64_t *n_draws, size_t limit)
{
    return rng_bits(seed, 0, (*n_draws)++) % limit;
}

/* A random forest of page lists; rows anywhere, chunks too, even inside shared pages. */
static void fill_random(uint64_t seed, struct seq *seqs, struct step_plan *step)
{
    uint64_t n = 0;
    int32_t next_page = 0;
    step->n_segments = 1 + draw(seed, &n, SEQS_MAX);
    step->n_rows = 0;
    for (size_t i = 0; i < step->n_segments; i++) {
        struct seq *seq = &seqs[i];
        seq->n_pages = 1 + draw(seed, &n, CONTEXT / PAGE);
        const struct seq *parent = i > 0 ? &seqs[draw(seed, &n, i)] : NULL;
        const size_t n_shared = parent ? draw(seed, &n, parent->n_pages + 1) : 0;
        for (size_t k = 0; k < seq->n_pages; k++)
            seq->pages[k] = k < n_shared ? parent->pages[k] : next_page++;
        const size_t position = draw(seed, &n, seq->n_pages * PAGE);
        const size_t left = seq->n_pages * PAGE - position;
        const size_t n_rows = draw(seed, &n, 3) > 0 ? 1 : 1 + draw(seed, &n, left);
        step->segments[i] = (struct step_segment){
            .seq = seq, .row = step->n_rows, .n_rows = n_rows, .position = position};
        step->n_rows += n_rows;
    }
}

static void every_row_of_random_plans_is_led_over_its_own_pages(void **state)
{
    (void)state;
    static int32_t pages[SEQS_MAX][CONTEXT / PAGE];
    struct seq seqs[SEQS_MAX] = {0};
    struct step_segment segments[SEQS_MAX];
    struct step_plan step = {.segments = segments};
    for (size_t i = 0; i < SEQS_MAX; i++)
        seqs[i].pages = pages[i];
    for (size_t n_threads = 1; n_threads <= 4; n_threads++) {
        const struct model_config config = {.n_heads = 9, .n_kv_heads = 3};
        struct forward f = {.config = &config, .plan = &step};
        assert_int_equal(pool_open(n_threads, &f.threads, NULL), 0);
        assert_int_equal(attention_plan_open(&f.attention, STEP_ROWS_MAX, 0, NULL), 0);
        for (uint64_t seed = 0; seed < 500; seed++) {
            fill_random(seed, seqs, &step);
            f.options.shared_attention = seed % 4 != 0;
            if (step.n_rows > STEP_ROWS_MAX)
                continue;
            forward_attention_plan(&f);
            check_plan(&f.attention, &step);
        }
        attention_plan_close(&f.attention);
        pool_close(f.threads);
    }
}

/* 32 rows x 3 KV heads on two threads are six items of sixteen rows, not three of 32. */
static void blocks_spread_evenly_over_the_threads(void **state)
{
    (void)state;
    static const struct {
        size_t n_threads, n_seqs, n_blocks;
    } expected[] = {{1, 32, 1}, {2, 32, 2}, {3, 32, 1}, {4, 32, 4}, {2, 1, 1}};
    int32_t page = 0;
    struct seq seq = {.pages = &page};
    struct step_segment segments[32];
    for (size_t i = 0; i < 32; i++)
        segments[i] = (struct step_segment){.seq = &seq, .row = i, .n_rows = 1};
    for (size_t i = 0; i < sizeof expected / sizeof expected[0]; i++) {
        const struct model_config config = {.n_heads = 9, .n_kv_heads = 3};
        const size_t n = expected[i].n_seqs;
        const struct step_plan step = {.segments = segments, .n_segments = n, .n_rows = n};
        struct forward f = {
            .config = &config, .plan = &step, .options = {.shared_attention = true}};
        assert_int_equal(pool_open(expected[i].n_threads, &f.threads, NULL), 0);
        assert_int_equal(attention_plan_open(&f.attention, n, 0, NULL), 0);
        forward_attention_plan(&f);
        assert_int_equal(f.attention.n_blocks, expected[i].n_blocks);
        attention_plan_close(&f.attention);
        pool_close(f.threads);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_row_has_the_bits_of_its_sequence_alone),
        cmocka_unit_test(a_batch_of_forty_reads_less_and_says_the_same),
        cmocka_unit_test(a_wrong_page_shows),
        cmocka_unit_test(every_row_of_random_plans_is_led_over_its_own_pages),
        cmocka_unit_test(blocks_spread_evenly_over_the_threads),
    };
    return cmocka_run_group_tests_name("forward_shared", tests, NULL, NULL);
}
