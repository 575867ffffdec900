/* One sequence's sources together: which of them says what, and from where on they learn. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/drafter.h"

enum { V = 100 };

static const struct draft_limits limits = {16, 0.01};
static struct spec_stats stats;

static int fresh_stats(void **state)
{
    (void)state;
    spec_stats_init(&stats);
    drafter_set_priors(&stats);
    return 0;
}

static struct drafter *open(const struct drafter_options *options)
{
    struct drafter_options own = *options;
    own.stats = &stats;
    struct drafter *d = NULL;
    assert_int_equal(drafter_open(&own, &d, NULL), 0);
    return d;
}

static struct draft propose(const struct drafter *d)
{
    struct draft out = {0};
    drafter_propose(d, &limits, &out);
    assert_true(draft_check(&out));
    return out;
}

static void the_document_is_looked_up_with_the_question(void **state)
{
    (void)state;
    /* Document 1 to 9; the question ends with 3 4, the answer begins with 5. */
    const int32_t tokens[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 50, 3, 4, 5};
    struct automaton *document = NULL;
    assert_int_equal(automaton_open(tokens, 9, SIZE_MAX, &document, NULL), 0);
    struct drafter *d =
        open(&(struct drafter_options){.document = document, .n_document = 9, .window = 64});
    automaton_close(document); /* the drafter has its own reference */
    drafter_follow(d, tokens, 12, 12);
    assert_int_equal(propose(d).nodes[0].token, 5);
    drafter_follow(d, tokens, 12, 13);
    const struct draft out = propose(d);
    assert_int_equal(out.nodes[0].token, 6);
    assert_int_equal(out.nodes[1].token, 7);
    assert_int_equal(out.nodes[0].sources, 1 << DRAFT_LOOKUP);
    drafter_close(d);
}

static void a_prediction_waits_for_the_output(void **state)
{
    (void)state;
    const int32_t prediction[] = {21, 22, 23, 24, 25};
    const int32_t tokens[] = {1, 2, 3, 21, 22, 99, 24};
    size_t bytes = 10000;
    struct drafter *d = open(&(struct drafter_options){
        .prediction = prediction, .n_prediction = 5, .prediction_bytes = &bytes});
    drafter_follow(d, tokens, 3, 3);
    assert_int_equal(propose(d).nodes[0].token, 21);
    drafter_follow(d, tokens, 3, 5);
    assert_int_equal(propose(d).nodes[0].token, 23);
    drafter_follow(d, tokens, 3, 6);
    assert_int_equal(propose(d).n_nodes, 0);
    drafter_follow(d, tokens, 3, 7); /* and finds back */
    assert_int_equal(propose(d).nodes[0].token, 25);
    assert_int_equal(propose(d).nodes[0].sources, 1 << DRAFT_PREDICTION);
    drafter_close(d);
}

/* Tokens that a prediction of different ones says from its beginning, each in its place. */
static size_t count_predicted(struct drafter *d, const int32_t *prediction, size_t n)
{
    int32_t *tokens = malloc((n + 1) * sizeof tokens[0]);
    tokens[0] = 1; /* the prompt */
    memcpy(tokens + 1, prediction, n * sizeof tokens[0]);
    size_t known = 0;
    while (known < n) {
        drafter_follow(d, tokens, 1, known + 1);
        const struct draft out = propose(d);
        if (out.n_nodes == 0 || out.nodes[0].token != prediction[known])
            break;
        known++;
    }
    free(tokens);
    return known;
}

static void predictions_are_cut_to_the_room_there_is_and_give_it_back(void **state)
{
    (void)state;
    enum { LONG = 2000, ROOM = 150000 };
    static int32_t prediction[LONG];
    for (int32_t i = 0; i < LONG; i++)
        prediction[i] = 100 + i;
    size_t bytes = ROOM;
    const struct drafter_options options = {
        .prediction = prediction, .n_prediction = LONG, .prediction_bytes = &bytes};
    struct drafter *drafters[20];
    size_t known_before = LONG;
    for (size_t i = 0; i < 20; i++) {
        const size_t left = bytes;
        drafters[i] = open(&options);
        const size_t known = count_predicted(drafters[i], prediction, LONG);
        assert_true(known < LONG && known <= known_before);
        assert_true(known > 0 ? bytes < left : bytes == left);
        assert_true(bytes <= ROOM); /* and not below 0 */
        known_before = known;
    }
    assert_true(known_before < 100);
    for (size_t i = 0; i < 20; i++)
        drafter_close(drafters[i]);
    assert_int_equal(bytes, ROOM);
    bytes = 10;
    struct drafter *none = open(&options);
    assert_int_equal(count_predicted(none, prediction, LONG), 0);
    drafter_close(none);
    assert_int_equal(bytes, 10);
}

static void a_prediction_of_no_tokens_of_the_vocabulary_says_so_and_no_more(void **state)
{
    (void)state;
    const int32_t prediction[] = {INT32_MIN, -1, -2, INT32_MAX, 0, -1, -1};
    const int32_t tokens[] = {1, 0};
    size_t bytes = 10000;
    struct drafter *d = open(&(struct drafter_options){
        .prediction = prediction, .n_prediction = 7, .prediction_bytes = &bytes});
    drafter_follow(d, tokens, 1, 1);
    assert_int_equal(propose(d).n_nodes, 0); /* breaks end what is proposed */
    drafter_follow(d, tokens, 1, 2);
    assert_int_equal(propose(d).n_nodes, 0);
    drafter_close(d);
}

static void question_and_output_are_its_own_tokens(void **state)
{
    (void)state;
    const int32_t tokens[] = {7, 8, 9, 5, 7, 8};
    struct drafter *d = open(&(struct drafter_options){.window = 64});
    drafter_follow(d, tokens, 4, 6);
    const struct draft out = propose(d);
    assert_int_equal(out.nodes[0].token, 9);
    assert_int_equal(out.nodes[0].sources, 1 << DRAFT_SELF);
    drafter_close(d);
}

static void what_one_sequence_says_is_recycled_for_others(void **state)
{
    (void)state;
    struct recycle *r = NULL;
    assert_int_equal(recycle_open(V, &r, NULL), 0);
    const int32_t said[] = {1, 30, 31, 32}, other[] = {2, 30};
    struct drafter *d = open(&(struct drafter_options){.recycle = r});
    drafter_follow(d, said, 1, 4);
    drafter_close(d);
    d = open(&(struct drafter_options){.recycle = r});
    drafter_follow(d, other, 2, 2);
    const struct draft out = propose(d);
    assert_int_equal(out.nodes[0].token, 31);
    assert_int_equal(out.nodes[1].token, 32);
    assert_int_equal(out.nodes[0].sources, 1 << DRAFT_RECYCLE);
    drafter_close(d);
    recycle_close(r);
}

static void sources_that_agree_are_surer_together(void **state)
{
    (void)state;
    const int32_t tokens[] = {1, 2, 3, 4, 5, 6, 2, 3, 4, 9, 2, 3};
    struct automaton *document = NULL;
    assert_int_equal(automaton_open(tokens, 6, SIZE_MAX, &document, NULL), 0);
    const struct drafter_options options = {
        .document = document, .n_document = 6, .window = 64};
    struct drafter *both = open(&options);
    struct drafter *alone = open(&(struct drafter_options){.window = 64});
    drafter_follow(both, tokens, 12, 12);
    drafter_follow(alone, tokens + 6, 6, 6);
    const struct draft out = propose(both), less = propose(alone);
    assert_int_equal(out.nodes[0].token, 4);
    assert_int_equal(out.nodes[0].sources, 1 << DRAFT_LOOKUP | 1 << DRAFT_SELF);
    assert_true(out.nodes[0].p > less.nodes[0].p);
    drafter_close(both);
    drafter_close(alone);
    automaton_close(document);
}

/* Eight tokens match in both; each alone would promise its token in three of four cases. */
static void sources_that_differ_are_not_both_right(void **state)
{
    (void)state;
    const int32_t tokens[] = {1, 2, 3, 4, 5, 6, 7, 8, 9,          /* the document */
                              1, 2, 3, 4, 5, 6, 7, 8, 60, 61, 62, /* the question */
                              1, 2, 3, 4, 5, 6, 7, 8};
    struct automaton *document = NULL;
    assert_int_equal(automaton_open(tokens, 9, SIZE_MAX, &document, NULL), 0);
    struct drafter *d =
        open(&(struct drafter_options){.document = document, .n_document = 9, .window = 64});
    automaton_close(document);
    drafter_follow(d, tokens, 28, 28);
    const struct draft out = propose(d);
    const int nine = draft_find(&out, DRAFT_ROOT, 9), sixty = draft_find(&out, DRAFT_ROOT, 60);
    assert_int_equal(out.nodes[nine].sources, 1 << DRAFT_LOOKUP);
    assert_int_equal(out.nodes[sixty].sources, 1 << DRAFT_SELF);
    assert_true(out.nodes[nine].p + out.nodes[sixty].p < 1);
    drafter_close(d);
}

/* Following in one go is following token by token; only what the model drew is learned. */
static void it_follows_in_any_portions_and_learns_from_output_only(void **state)
{
    (void)state;
    int32_t tokens[60];
    for (int32_t i = 0; i < 60; i++)
        tokens[i] = i * i % 11;
    struct spec_stats before;
    memcpy(&before, &stats, sizeof before);
    struct drafter *at_once = open(&(struct drafter_options){.window = 64});
    drafter_follow(at_once, tokens, 30, 30);
    assert_memory_equal(&stats, &before, sizeof before);
    drafter_follow(at_once, tokens, 30, 60);
    assert_memory_not_equal(&stats, &before, sizeof before);
    const struct spec_stats learned = stats;
    memcpy(&stats, &before, sizeof before);
    struct drafter *one_by_one = open(&(struct drafter_options){.window = 64});
    for (size_t n = 30; n <= 60; n++)
        drafter_follow(one_by_one, tokens, 30, n);
    assert_memory_equal(&stats, &learned, sizeof learned);
    const struct draft x = propose(at_once), y = propose(one_by_one);
    assert_int_equal(x.n_nodes, y.n_nodes);
    assert_memory_equal(x.nodes, y.nodes, x.n_nodes * sizeof x.nodes[0]);
    drafter_close(at_once);
    drafter_close(one_by_one);
    drafter_close(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(the_document_is_looked_up_with_the_question, fresh_stats),
        cmocka_unit_test_setup(a_prediction_waits_for_the_output, fresh_stats),
        cmocka_unit_test_setup(predictions_are_cut_to_the_room_there_is_and_give_it_back,
                               fresh_stats),
        cmocka_unit_test_setup(a_prediction_of_no_tokens_of_the_vocabulary_says_so_and_no_more,
                               fresh_stats),
        cmocka_unit_test_setup(question_and_output_are_its_own_tokens, fresh_stats),
        cmocka_unit_test_setup(what_one_sequence_says_is_recycled_for_others, fresh_stats),
        cmocka_unit_test_setup(sources_that_agree_are_surer_together, fresh_stats),
        cmocka_unit_test_setup(sources_that_differ_are_not_both_right, fresh_stats),
        cmocka_unit_test_setup(it_follows_in_any_portions_and_learns_from_output_only,
                               fresh_stats),
    };
    return cmocka_run_group_tests_name("drafter", tests, NULL, NULL);
}
