/*
 * The plan of the step behind one that is still being computed (sched_plan_behind): what it
 * holds, and everything that makes it wait.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/limits.h"
#include "engine/sched.h"

enum { CONTEXT = 512, SEQS_MAX = 8, STEP = 64 };

struct world {
    struct kvpool *pool;
    struct prefix_tree *prefixes;
    struct sched *sched;
    struct step_segment now_segments[SEQS_MAX], behind_segments[SEQS_MAX];
    struct step_plan now, behind;
    struct seq *seqs[SEQS_MAX];
    size_t n_seqs;
};

static void open_world(struct world *w, size_t n_pages, size_t batch)
{
    *w = (struct world){0};
    const struct kvpool_shape shape = {
        .n_pages = n_pages, .n_layers = 1, .n_kv_heads = 1, .head_dim = 16, .type = KV_BF16};
    assert_int_equal(kvpool_open(&shape, &w->pool, NULL), 0);
    const struct prefix_options prefix = {.enabled = false};
    assert_int_equal(prefix_open(&prefix, w->pool, &w->prefixes, NULL), 0);
    const struct sched_limits limits = {batch, STEP, STEP, false};
    assert_int_equal(sched_open(&limits, w->prefixes, &w->sched, NULL), 0);
    w->now.segments = w->now_segments;
    w->behind.segments = w->behind_segments;
}

static void close_world(struct world *w)
{
    while (sched_at(w->sched, 0))
        sched_remove(w->sched, sched_at(w->sched, 0));
    for (size_t i = 0; i < w->n_seqs; i++)
        seq_close(w->seqs[i]);
    sched_close(w->sched);
    prefix_close(w->prefixes);
    assert_int_equal(kvpool_free_pages(w->pool), kvpool_pages(w->pool));
    kvpool_close(w->pool);
}

static struct seq *add(struct world *w, size_t n_prompt, size_t max_tokens)
{
    static const int32_t prompt[CONTEXT];
    const struct seq_request req = {
        .prompt = prompt, .n_prompt = n_prompt, .max_tokens = max_tokens};
    struct seq *seq = NULL;
    assert_int_equal(seq_open(&req, CONTEXT, &seq, NULL), 0);
    assert_int_equal(sched_add(w->sched, seq, NULL), 0);
    return w->seqs[w->n_seqs++] = seq;
}

/* The step that is being computed, all of whose rows are greedy. */
static void begin(struct world *w)
{
    sched_plan_step(w->sched, &w->now);
    for (size_t i = 0; i < w->now.n_segments; i++)
        w->now.segments[i].is_greedy = true;
}

/* Its tokens are there. */
static void end(struct world *w)
{
    sched_commit_step(w->sched, &w->now);
    for (size_t i = 0; i < w->now.n_segments; i++)
        if (w->now.segments[i].n_logits > 0)
            w->now.segments[i].seq->tokens[w->now.segments[i].seq->n_tokens++] = 1;
}

static bool plans(struct world *w)
{
    return sched_plan_behind(w->sched, &w->now, &w->behind);
}

static void each_sequence_has_the_row_of_the_token_that_is_drawn(void **state)
{
    (void)state;
    struct world w;
    open_world(&w, 16, 4);
    struct seq *a = add(&w, 20, 50), *b = add(&w, 10, 50);
    begin(&w); /* both prompts to their ends, the shorter one first */
    assert_true(plans(&w));
    assert_int_equal(w.behind.n_rows, 2);
    assert_int_equal(w.behind.n_logits, 2);
    for (size_t i = 0; i < 2; i++) {
        const struct step_segment *segment = &w.behind.segments[i];
        const struct step_segment *before = &w.now.segments[i];
        assert_ptr_equal(segment->seq, before->seq);
        assert_int_equal(segment->position, segment->seq == a ? 20 : 10);
        assert_int_equal(segment->n_rows, 1);
        assert_int_equal(segment->row, i);
        assert_true(segment->is_behind && segment->is_greedy);
        assert_int_equal(segment->token_of, before->logits_row);
    }
    end(&w);
    assert_true(seq_is_decoding(a) && seq_is_decoding(b));
    begin(&w); /* what would have been planned when the tokens are there */
    assert_int_equal(w.now.n_rows, 2);
    assert_true(w.now.segments[0].position == 20 && w.now.segments[1].position == 10);
    close_world(&w);
}

/* The last of its tokens is drawn by the step; nobody is to compute it. */
static void one_whose_length_is_reached_has_no_row(void **state)
{
    (void)state;
    struct world w;
    open_world(&w, 16, 4);
    add(&w, 10, 1);
    struct seq *b = add(&w, 20, 50);
    begin(&w);
    assert_true(plans(&w));
    assert_int_equal(w.behind.n_segments, 1);
    assert_ptr_equal(w.behind.segments[0].seq, b);
    sched_remove(w.sched, b);
    close_world(&w);
    open_world(&w, 16, 4);
    add(&w, 10, 1);
    begin(&w);
    assert_false(plans(&w));
    close_world(&w);
}

static void a_prompt_that_has_more_to_come_waits(void **state)
{
    (void)state;
    struct world w;
    open_world(&w, 16, 4);
    add(&w, 10, 50);
    add(&w, STEP + 20, 50);
    begin(&w);
    assert_false(plans(&w));
    end(&w);
    begin(&w); /* its end */
    assert_true(plans(&w));
    close_world(&w);
}

static void rows_that_want_logits_or_drafts_wait(void **state)
{
    (void)state;
    static const struct draft draft = {0};
    struct world w;
    open_world(&w, 16, 4);
    add(&w, 10, 50);
    add(&w, 12, 50);
    begin(&w);
    w.now.segments[1].is_greedy = false;
    assert_false(plans(&w));
    w.now.segments[1].is_greedy = true;
    w.now.segments[1].draft = &draft;
    assert_false(plans(&w));
    w.now.segments[1].draft = NULL;
    assert_true(plans(&w));
    close_world(&w);
}

static void a_sequence_that_waits_for_a_free_place_comes_first(void **state)
{
    (void)state;
    struct world w;
    open_world(&w, 16, 2);
    add(&w, 10, 50);
    begin(&w);
    struct seq *late = add(&w, 5, 3);
    assert_false(plans(&w));
    end(&w);
    begin(&w);
    assert_int_equal(w.now.n_segments, 2);
    add(&w, 5, 50);
    assert_true(plans(&w)); /* the batch is full */
    end(&w);
    begin(&w);
    end(&w);
    begin(&w);
    assert_int_equal(late->n_tokens + 1, late->capacity);
    assert_false(plans(&w)); /* and will not be */
    close_world(&w);
}

static void without_a_page_for_every_token_nothing_is_planned(void **state)
{
    (void)state;
    struct world w;
    open_world(&w, 3, 2);
    add(&w, KV_PAGE_TOKENS, 20);
    add(&w, KV_PAGE_TOKENS - 1, 20);
    begin(&w);
    assert_int_equal(w.now.n_segments, 2);
    assert_true(plans(&w)); /* the third page is for the first's next token */
    end(&w);
    begin(&w); /* the second's token fills its page */
    assert_int_equal(w.now.n_segments, 2);
    assert_false(plans(&w));
    close_world(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_sequence_has_the_row_of_the_token_that_is_drawn),
        cmocka_unit_test(one_whose_length_is_reached_has_no_row),
        cmocka_unit_test(a_prompt_that_has_more_to_come_waits),
        cmocka_unit_test(rows_that_want_logits_or_drafts_wait),
        cmocka_unit_test(a_sequence_that_waits_for_a_free_place_comes_first),
        cmocka_unit_test(without_a_page_for_every_token_nothing_is_planned),
    };
    return cmocka_run_group_tests_name("the plan behind a plan", tests, NULL, NULL);
}
