/*
 * Rows of drafts: the same bits as each path of the trie as a sequence of its own; and after
 * the step, keys and values of the path that was drawn where its positions are.
 *
 * What is expected comes from a twin of the sequence that has the path's tokens instead of the
 * draft, in pages of its own. Pages nobody has written are NaN.
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
#include "base/size.h"
#include "engine/forward_int.h"
#include "engine/spec.h"
#include "forward_rig.h"
#include "golden.h"

enum { PAGE = KV_PAGE_TOKENS, SEQS_MAX = 6, ROWS_MAX = 512, PAGES_MAX = 128, CONTEXT = 320 };

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { N_CASES = 10 };
#else
enum { N_CASES = 40 };
#endif

struct world {
    struct forward_rig rig;
    struct prefix_tree *prefixes;
    struct spec *spec;
    struct forward *alone, *apart, *shared; /* the last: shared_attention */
    uint64_t seed, n_draws;

    struct seq *seqs[SEQS_MAX], *twins[SEQS_MAX];
    struct draft drafts[SEQS_MAX];
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
    {"tiny-qwen2-f32.gguf", ACT_F32, KV_F32, 2},
    {"tiny-qwen3-q8_0.gguf", ACT_INT8, KV_INT8, 2},
};
enum { N_SETTINGS = sizeof settings / sizeof settings[0] };

static void must(int rc, const struct err *e)
{
    if (rc != 0)
        fail_msg("%s", e->text);
}

static void propose_nothing(void *ctx, const struct seq *seq, size_t n_max, struct draft *out)
{
    (void)ctx;
    (void)seq;
    (void)n_max;
    (void)out;
}

static void open_world(struct world *w, const struct setting *s, const char *isa)
{
    *w = (struct world){0};
    struct model *m = golden_open_tiny(s->model);
    forward_rig_open(&w->rig, m, isa, s->n_threads, s->kv_type, PAGES_MAX);
    struct err e = {0};
    const struct prefix_options prefix = {.enabled = false};
    must(prefix_open(&prefix, w->rig.kv, &w->prefixes, &e), &e);
    const struct spec_options spec = {.proposers = {{.propose = propose_nothing}},
                                      .n_proposers = 1,
                                      .batch = SEQS_MAX,
                                      .nodes_max = ROWS_MAX,
                                      .n_vocab = m->config.n_vocab};
    must(spec_open(&spec, w->prefixes, w->rig.kv, &w->spec, &e), &e);
    w->alone = forward_rig_pass(&w->rig, ROWS_MAX, s->activations, false);
    w->apart = forward_rig_pass(&w->rig, ROWS_MAX, s->activations, false);
    w->shared = forward_rig_pass(&w->rig, ROWS_MAX, s->activations, true);
    w->expected = malloc(ROWS_MAX * m->config.n_vocab * sizeof w->expected[0]);
    w->plan.segments = w->segments;
}

static void close_world(struct world *w)
{
    free(w->expected);
    forward_close(w->alone);
    forward_close(w->apart);
    forward_close(w->shared);
    spec_close(w->spec);
    prefix_close(w->prefixes);
    forward_rig_close(&w->rig);
}

static size_t roll(struct world *w, size_t limit)
{
    return rng_bits(w->seed, 0, w->n_draws++) % limit;
}

/* ------------------------------------------------------------------ sequences */

static void take_pages(struct world *w, struct seq *seq, size_t n_positions)
{
    assert_true(seq_reserve(seq, w->prefixes, n_positions));
}

static void close_seq(struct world *w, struct seq *seq)
{
    while (seq->n_pages > 0)
        kvpool_release_page(w->rig.kv, seq->pages[--seq->n_pages]);
    seq_close(seq);
}

/* Often a chain and broad; sometimes numbered as it grew, which is not depth first best. */
static void make_draft(struct world *w, size_t n_max, struct draft *out)
{
    const size_t n = roll(w, 8) == 0 ? n_max : roll(w, n_max + 1);
    const size_t style = roll(w, 3);
    out->n_nodes = 0;
    for (size_t i = 0; i < 2 * n && out->n_nodes < n; i++) {
        int parent = (int)out->n_nodes - 1;
        if (style == 0 || (style == 1 && roll(w, 3) == 0))
            parent = (int)roll(w, out->n_nodes + 1) - 1;
        draft_add(out, parent, (int32_t)roll(w, w->rig.model->config.n_vocab), DRAFT_LOOKUP,
                  (float)(1 + roll(w, 8)) / 8);
    }
    draft_order(out);
}

static size_t list_path(const struct draft *d, int node, int32_t *tokens)
{
    const size_t depth = d->nodes[node].depth;
    for (; node != DRAFT_ROOT; node = d->nodes[node].parent)
        tokens[d->nodes[node].depth - 1] = d->nodes[node].token;
    return depth;
}

/* The path's keys and values are in the twin after, its logits in the head's first rows. */
static void run_path(struct world *w, struct seq *twin, size_t root, const struct draft *d,
                     int node)
{
    const size_t depth = list_path(d, node, twin->tokens + root + 1);
    take_pages(w, twin, root + 1 + depth);
    forward_rig_run(w->alone, twin, root + 1, root + 1 + depth, depth);
}

/* Every node by way of the path to it. */
static void expect_rows(struct world *w, const struct step_segment *s, struct seq *twin)
{
    const size_t n_vocab = w->rig.model->config.n_vocab;
    const size_t root = s->position + segment_root(s);
    float *expected = w->expected + s->logits_row * n_vocab;
    take_pages(w, twin, root + 1);
    forward_rig_run(w->alone, twin, 0, root + 1, 1);
    memcpy(expected, forward_logits(w->alone, 0), n_vocab * sizeof(float));
    for (size_t i = 0; i < segment_n_nodes(s); i++) {
        run_path(w, twin, root, s->draft, (int)i);
        memcpy(expected + (i + 1) * n_vocab,
               forward_logits(w->alone, s->draft->nodes[i].depth - 1u),
               n_vocab * sizeof(float));
    }
}

/* A sequence with a draft behind its last token, or a few rows of a prompt; it may begin with
 * full pages of an earlier one. */
static void add_seq(struct world *w, size_t index)
{
    const bool is_prompt = roll(w, 5) == 0;
    const size_t n_before = roll(w, 110);
    const size_t n_plain = 1 + (is_prompt ? roll(w, 40) : 0);
    const struct seq *parent = index > 0 && roll(w, 2) ? w->seqs[roll(w, index)] : NULL;
    const size_t n_common = parent ? size_min(n_before, parent->n_computed) / PAGE * PAGE : 0;
    int32_t tokens[CONTEXT];
    for (size_t i = 0; i < n_before + n_plain; i++)
        tokens[i] =
            i < n_common ? parent->tokens[i] : (int32_t)roll(w, w->rig.model->config.n_vocab);
    struct seq *seq = forward_rig_seq(tokens, n_before + n_plain, CONTEXT);
    for (size_t i = 0; i < n_common / PAGE; i++) {
        kvpool_share_page(w->rig.kv, parent->pages[i]);
        seq->pages[seq->n_pages++] = parent->pages[i];
    }
    seq->n_computed = n_before;
    w->drafts[index].n_nodes = 0;
    if (!is_prompt)
        make_draft(w, roll(w, 3) == 0 ? DRAFT_NODES_MAX : 9, &w->drafts[index]);
    const size_t n_nodes = w->drafts[index].n_nodes;
    take_pages(w, seq, n_before + n_plain + n_nodes);
    forward_rig_run(w->alone, seq, n_common, n_before, 0);
    w->seqs[index] = seq;
    w->twins[index] = forward_rig_seq(tokens, n_before + n_plain, CONTEXT);
    w->segments[index] = (struct step_segment){
        .seq = seq,
        .row = w->plan.n_rows,
        .n_rows = n_plain + n_nodes,
        .position = n_before,
        .n_logits = 1 + n_nodes,
        .logits_row = w->plan.n_logits,
        .draft = is_prompt ? NULL : &w->drafts[index],
    };
    w->plan.n_rows += n_plain + n_nodes;
    w->plan.n_logits += 1 + n_nodes;
}

static void set_up(struct world *w, uint64_t seed)
{
    w->seed = seed;
    w->n_draws = 0;
    memset(kvpool_block(w->rig.kv, 0, 0, 0), 0xff, kvpool_bytes(w->rig.kv));
    w->plan.n_rows = w->plan.n_logits = 0;
    w->plan.n_segments = 1 + roll(w, SEQS_MAX);
    for (size_t i = 0; i < w->plan.n_segments; i++) {
        add_seq(w, i);
        expect_rows(w, &w->segments[i], w->twins[i]);
    }
    assert_true(w->plan.n_rows <= ROWS_MAX);
}

static void tear_down(struct world *w)
{
    for (size_t i = 0; i < w->plan.n_segments; i++) {
        close_seq(w, w->seqs[i]);
        close_seq(w, w->twins[i]);
    }
    assert_int_equal(kvpool_free_pages(w->rig.kv), PAGES_MAX);
}

/* The first logits row that is not what it is alone, or -1. */
static int first_difference(const struct world *w, struct forward *f)
{
    const size_t n_vocab = w->rig.model->config.n_vocab;
    for (size_t i = 0; i < w->plan.n_logits; i++) {
        const float *want = w->expected + i * n_vocab;
        assert_true(want[0] == want[0]);
        if (memcmp(forward_logits(f, i), want, n_vocab * sizeof(float)) != 0)
            return (int)i;
    }
    return -1;
}

/* ------------------------------------------------------------------ after the step */

/* Writes one token's keys and values out of a sequence's pages, alone in a page of zeros. */
static void lift_token(const struct world *w, const struct seq *seq, size_t layer, size_t head,
                       size_t position, void *out)
{
    const struct model_config *c = &w->rig.model->config;
    memset(out, 0, kv_page_bytes(w->rig.kv_type, c->head_dim));
    kv_copy_token(w->rig.kv_type, c->head_dim, out, 0,
                  kvpool_block(w->rig.kv, layer, seq->pages[position / PAGE], head),
                  position % PAGE);
}

static bool have_same_kv(const struct world *w, const struct seq *a, const struct seq *b,
                         size_t n_positions)
{
    const struct model_config *c = &w->rig.model->config;
    const size_t page_bytes = kv_page_bytes(w->rig.kv_type, c->head_dim);
    void *x = malloc(page_bytes), *y = malloc(page_bytes);
    bool same = true;
    for (size_t layer = 0; layer < c->n_layers; layer++)
        for (size_t head = 0; head < c->n_kv_heads; head++)
            for (size_t i = 0; i < n_positions; i++) {
                lift_token(w, a, layer, head, i, x);
                lift_token(w, b, layer, head, i, y);
                same = same && memcmp(x, y, page_bytes) == 0;
            }
    free(x);
    free(y);
    return same;
}

/* The way to a node was drawn, and one token more: nothing that is a node, or one that ends
 * the sequence. Returns how many tokens were drawn. */
static size_t draw_path(struct world *w, const struct step_segment *s, int node)
{
    int32_t *drawn = s->seq->tokens + s->position + 1;
    const size_t depth = node == DRAFT_ROOT ? 0 : list_path(s->draft, node, drawn);
    for (size_t i = 0; i < s->draft->n_nodes; i++)
        if (s->draft->nodes[i].parent == node && roll(w, 2)) {
            drawn[depth] = s->draft->nodes[i].token;
            return depth + 1;
        }
    do
        drawn[depth] = (int32_t)roll(w, w->rig.model->config.n_vocab);
    while (draft_find(s->draft, node, drawn[depth]) != DRAFT_NONE);
    return depth + 1;
}

static void check_kept(struct world *w, size_t index)
{
    struct step_segment *s = &w->segments[index];
    if (!s->draft || s->draft->n_nodes == 0)
        return;
    const int node = (int)roll(w, s->draft->n_nodes + 1) - 1;
    const size_t n_drawn = draw_path(w, s, node);
    const size_t n_before = spec_counters(w->spec).drafted;
    const size_t n_nodes = s->draft->n_nodes;
    if (node != DRAFT_ROOT)
        run_path(w, w->twins[index], s->position, s->draft, node);
    spec_keep(w->spec, s, n_drawn);
    assert_int_equal(s->n_refused, n_nodes - (n_drawn - 1));
    assert_int_equal(spec_counters(w->spec).drafted - n_before, n_nodes);
    assert_int_equal(w->seqs[index]->n_pages, seq_pages_for(s->position + n_drawn));
    assert_true(have_same_kv(w, w->seqs[index], w->twins[index], s->position + n_drawn));
}

/* ------------------------------------------------------------------ tests */

static void check_case(struct world *w, uint64_t seed)
{
    set_up(w, seed);
    forward_run(w->apart, &w->plan);
    if (first_difference(w, w->apart) >= 0)
        fail_msg("%s, case %llu: logits row %d differs", w->rig.kernels.name,
                 (unsigned long long)seed, first_difference(w, w->apart));
    forward_run(w->shared, &w->plan);
    if (first_difference(w, w->shared) >= 0)
        fail_msg("%s, case %llu: logits row %d differs with shared attention",
                 w->rig.kernels.name, (unsigned long long)seed, first_difference(w, w->shared));
    for (size_t i = 0; i < w->plan.n_segments; i++)
        check_kept(w, i);
    const struct draft_counters c = spec_counters(w->spec);
    assert_int_equal(c.drafted, c.accepted + c.rejected);
    tear_down(w);
}

/* Plain C is slow and takes fewer. */
static void every_row_has_the_bits_of_its_path_alone(void **state)
{
    (void)state;
    const char *isas[3];
    for (size_t k = golden_isas(isas); k-- > 0;)
        for (size_t i = 0; i < N_SETTINGS; i++) {
            struct world w;
            open_world(&w, &settings[i], isas[k]);
            for (uint64_t seed = 0; seed < (k == 0 ? N_CASES / 5 : N_CASES); seed++)
                check_case(&w, seed);
            close_world(&w);
        }
}

/* A sequence's pages are read once for its draft as a whole, and of every branch only what lies
 * behind the full pages that it has in common with the others. */
static void a_draft_reads_the_pages_before_it_once(void **state)
{
    (void)state;
    const char *isas[3];
    struct world w;
    open_world(&w, &settings[0], isas[golden_isas(isas) - 1]);
    const struct model_config *c = &w.rig.model->config;
    /* Root at position 95, page 2: a line of two, and siblings of the first and the second. */
    static const int16_t parents[] = {-1, 0, 0, -1};
    enum { N_BEFORE = 95, N_NODES = 4 };
    int32_t tokens[N_BEFORE + 1] = {0};
    struct seq *seq = forward_rig_seq(tokens, N_BEFORE + 1, CONTEXT);
    take_pages(&w, seq, N_BEFORE + 1 + N_NODES);
    forward_rig_run(w.alone, seq, 0, N_BEFORE, 0);
    struct draft d = {.n_nodes = 0};
    for (int i = 0; i < N_NODES; i++)
        draft_add(&d, parents[i], i, DRAFT_LOOKUP, 0.5f);
    w.segments[0] = (struct step_segment){.seq = seq,
                                          .n_rows = 1 + N_NODES,
                                          .position = N_BEFORE,
                                          .n_logits = 1 + N_NODES,
                                          .draft = &d};
    w.plan = (struct step_plan){.segments = w.segments,
                                .n_segments = 1,
                                .n_rows = 1 + N_NODES,
                                .n_logits = 1 + N_NODES};
    const uint64_t before = forward_attention_pages(w.apart);
    forward_run(w.apart, &w.plan);
    const uint64_t n_read = forward_attention_pages(w.apart) - before;
    /* Three of the root's, one behind it, an image for each sibling. */
    assert_int_equal(n_read, c->n_layers * c->n_kv_heads * (3 + 1 + 2));
    close_seq(&w, seq);
    close_world(&w);
}

/* The comparison sees a key out of its place: a node that hangs elsewhere, in its own row or
 * one below it, and a path that was not moved. */
static void a_wrong_ancestor_shows(void **state)
{
    (void)state;
    const char *isas[3];
    struct world w;
    open_world(&w, &settings[0], isas[golden_isas(isas) - 1]);
    size_t n_tried = 0;
    for (uint64_t seed = 100; seed < 140; seed++) {
        set_up(&w, seed);
        struct draft *d = &w.drafts[0];
        int moved = DRAFT_NONE;
        for (size_t i = 0; i < d->n_nodes && moved == DRAFT_NONE; i++)
            for (size_t k = 0; k < i && moved == DRAFT_NONE; k++)
                if (d->nodes[k].depth + 1 == d->nodes[i].depth &&
                    d->nodes[i].parent != (int)k && !attention_is_in_place(d, i)) {
                    d->nodes[i].parent = (int16_t)k;
                    moved = (int)i;
                }
        forward_run(w.apart, &w.plan);
        if (moved == DRAFT_NONE) {
            assert_int_equal(first_difference(&w, w.apart), -1);
        } else {
            assert_int_equal(first_difference(&w, w.apart), moved + 1);
            n_tried++;
        }
        tear_down(&w);
    }
    assert_true(n_tried >= 5);
    close_world(&w);
}

static void a_token_that_was_not_moved_shows(void **state)
{
    (void)state;
    const char *isas[3];
    struct world w;
    open_world(&w, &settings[0], isas[golden_isas(isas) - 1]);
    size_t n_tried = 0;
    for (uint64_t seed = 200; seed < 240; seed++) {
        set_up(&w, seed);
        forward_run(w.apart, &w.plan);
        const struct step_segment *s = &w.segments[0];
        const size_t n = s->draft ? s->draft->n_nodes : 0;
        if (n > 0 && !attention_is_in_place(s->draft, n - 1)) {
            run_path(&w, w.twins[0], s->position, s->draft, (int)n - 1);
            assert_false(have_same_kv(&w, w.seqs[0], w.twins[0],
                                      s->position + 1 + s->draft->nodes[n - 1].depth));
            n_tried++;
        }
        tear_down(&w);
    }
    assert_true(n_tried >= 5);
    close_world(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_row_has_the_bits_of_its_path_alone),
        cmocka_unit_test(a_draft_reads_the_pages_before_it_once),
        cmocka_unit_test(a_wrong_ancestor_shows),
        cmocka_unit_test(a_token_that_was_not_moved_shows),
    };
    return cmocka_run_group_tests_name("forward_draft", tests, NULL, NULL);
}
