/*
 * The budget against every possible choice on small steps, and against not drafting at all over
 * long runs, with times and probabilities that are not what the budget was told.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/rng.h"
#include "engine/spec_budget.h"

enum { SEQS_MAX = 32 };

static uint64_t seed, counter;

static double uniform(void)
{
    return rng_uniform(seed, 41, counter++);
}

static size_t draw(size_t n)
{
    return (size_t)(uniform() * (double)n);
}

static struct spec_budget *open(const struct spec_budget_options *options)
{
    struct spec_budget *b = NULL;
    assert_int_equal(spec_budget_open(options, &b, NULL), 0);
    return b;
}

/* Takes whatever gains anything, and explores never. */
static struct spec_budget_options plain(void)
{
    struct spec_budget_options options = spec_budget_defaults(SEQS_MAX);
    options.gain_enter = options.gain_stay = 1;
    options.explore_share = 0;
    return options;
}

static double value_of(const struct draft *d, size_t node)
{
    double value = 1;
    for (int i = (int)node; i != DRAFT_ROOT; i = d->nodes[i].parent)
        value *= (double)d->nodes[i].p;
    return value;
}

/* ---- every possible choice -------------------------------------------------------------- */

enum { SMALL_SEQS = 3, SMALL_NODES = 5 };

static void draw_draft(struct draft *d, size_t n)
{
    d->n_nodes = 0;
    for (size_t i = 0; i < n; i++) {
        const int parent = (int)draw(d->n_nodes + 1) - 1;
        draft_add(d, parent, (int32_t)i, (unsigned)draw(DRAFT_SOURCES),
                  (float)(0.02 + 0.93 * uniform()));
    }
}

/* Flat tiles with jumps, or a slope from a knee on, or both. */
static void draw_time(struct spec_time *t)
{
    struct spec_time_point points[8];
    size_t n_rows = 0;
    double us = 20 + 200 * uniform();
    const size_t n = 1 + draw(8);
    for (size_t i = 0; i < n; i++) {
        n_rows += i % 2 ? 1 : 1 + draw(7);
        us += draw(2) ? 0 : 80 * uniform();
        points[i] = (struct spec_time_point){n_rows, us};
    }
    spec_time_init(t, points, n);
}

static double best_rate_of(const struct spec_step *step, const struct spec_seq *seqs)
{
    size_t at[SMALL_SEQS * SMALL_NODES], of[SMALL_SEQS * SMALL_NODES], n = 0;
    double values[SMALL_SEQS * SMALL_NODES];
    for (size_t i = 0; i < step->n_seqs; i++)
        for (size_t k = 0; k < seqs[i].draft->n_nodes; k++) {
            of[n] = i;
            at[n] = k;
            values[n++] = value_of(seqs[i].draft, k);
        }
    double best = 0;
    for (uint32_t set = 0; set < UINT32_C(1) << n; set++) {
        size_t n_rows = step->n_rows, n_of[SMALL_SEQS] = {0};
        uint32_t nodes_of[SMALL_SEQS] = {0};
        double tokens = step->n_tokens;
        bool is_possible = true;
        for (size_t i = 0; i < n && is_possible; i++) {
            if (!(set >> i & 1))
                continue;
            const int parent = seqs[of[i]].draft->nodes[at[i]].parent;
            is_possible = (parent == DRAFT_ROOT || nodes_of[of[i]] >> parent & 1) &&
                          ++n_of[of[i]] <= seqs[of[i]].n_nodes_max &&
                          ++n_rows <= step->n_rows_max;
            nodes_of[of[i]] |= UINT32_C(1) << at[i];
            tokens += values[i];
        }
        if (!is_possible)
            continue;
        const double rate = tokens / (step->us_more + spec_time_us(step->time, n_rows));
        best = rate > best ? rate : best;
    }
    return best;
}

static double rate_of(const struct spec_step *step, const struct spec_seq *seqs, size_t n_left)
{
    size_t n = 0;
    double tokens = step->n_tokens;
    for (size_t i = 0; i < step->n_seqs; i++) {
        assert_true(draft_check(seqs[i].draft));
        assert_true(seqs[i].draft->n_nodes <= seqs[i].n_nodes_max);
        n += seqs[i].draft->n_nodes;
        for (size_t k = 0; k < seqs[i].draft->n_nodes; k++)
            tokens += value_of(seqs[i].draft, k);
    }
    assert_int_equal(n, n_left);
    assert_true(n == 0 || step->n_rows + n <= step->n_rows_max);
    return tokens / (step->us_more + spec_time_us(step->time, step->n_rows + n));
}

static void check_one_step(struct spec_budget *b, size_t *n_on)
{
    struct spec_time time;
    draw_time(&time);
    struct draft drafts[SMALL_SEQS];
    struct spec_seq seqs[SMALL_SEQS];
    struct spec_step step = {.time = &time, .n_seqs = 1 + draw(SMALL_SEQS)};
    step.n_rows = step.n_seqs + (draw(2) ? draw(20) : 0);
    step.n_tokens = (double)step.n_rows;
    step.us_more = draw(2) ? 100 * uniform() : 0;
    step.n_rows_max = step.n_rows + draw(18);
    for (size_t i = 0; i < step.n_seqs; i++) {
        draw_draft(&drafts[i], draw(SMALL_NODES + 1));
        seqs[i] = (struct spec_seq){&drafts[i], draw(SMALL_NODES + 2)};
    }
    const double best = best_rate_of(&step, seqs);
    size_t n = 0;
    if (spec_budget_wants(b, &step))
        n = spec_budget_choose(b, &step, seqs);
    else
        for (size_t i = 0; i < step.n_seqs; i++)
            drafts[i].n_nodes = 0;
    *n_on += n > 0;
    assert_true(rate_of(&step, seqs, n) >= best * (1 - 1e-6));
}

static void no_choice_gives_more_tokens_per_time(void **state)
{
    (void)state;
    const struct spec_budget_options options = plain();
    size_t n_on = 0;
    for (int episode = 0; episode < 400; episode++) {
        struct spec_budget *b = open(&options);
        check_one_step(b, &n_on);
        spec_budget_close(b);
    }
    assert_true(n_on > 100 && n_on < 400);
}

/* ---- single steps ------------------------------------------------------------------------ */

static void add_chain(struct draft *d, size_t n, double p)
{
    for (size_t i = 0; i < n; i++)
        draft_add(d, (int)i - 1, 7, DRAFT_LOOKUP, (float)p);
}

/* Eight rows cost what one does; then every row costs an eighth. */
static struct spec_time knee_at_8(void)
{
    const struct spec_time_point points[] = {{8, 800}, {16, 1600}};
    struct spec_time t;
    spec_time_init(&t, points, 2);
    return t;
}

static void free_rows_are_filled_and_dear_ones_are_not(void **state)
{
    (void)state;
    const struct spec_budget_options options = plain();
    struct spec_budget *b = open(&options);
    const struct spec_time time = knee_at_8();
    struct draft d = {0};
    add_chain(&d, 20, 0.7);
    const struct spec_seq seq = {&d, 63};
    const struct spec_step alone = {&time, 1, 1, 1, 0, 64};
    assert_true(spec_budget_wants(b, &alone));
    assert_int_equal(spec_budget_choose(b, &alone, &seq), 7);
    /* In a step that is full already not even a sure token pays. */
    const struct spec_step full = {&time, 1, 32, 32, 0, 64};
    assert_false(spec_budget_wants(b, &full));
    spec_budget_close(b);
}

static void the_sequence_that_copies_goes_before_others(void **state)
{
    (void)state;
    const struct spec_budget_options options = plain();
    struct spec_budget *b = open(&options);
    const struct spec_time time = knee_at_8();
    struct draft copies = {0}, guesses = {0};
    add_chain(&copies, 10, 0.97);
    add_chain(&guesses, 3, 0.3);
    const struct spec_seq seqs[2] = {{&guesses, 63}, {&copies, 63}};
    const struct spec_step step = {&time, 2, 2, 2, 0, 64};
    assert_true(spec_budget_wants(b, &step));
    assert_int_equal(spec_budget_choose(b, &step, seqs), 6);
    assert_int_equal(copies.n_nodes, 6);
    assert_int_equal(guesses.n_nodes, 0);
    spec_budget_close(b);
}

/* What is certain is worth as much as what it hangs on. */
static void no_node_is_taken_before_its_parent(void **state)
{
    (void)state;
    const struct spec_budget_options options = plain();
    struct spec_budget *b = open(&options);
    const struct spec_time time = knee_at_8();
    const struct spec_step step = {&time, 1, 1, 1, 0, 64};
    struct draft d = {0};
    for (int i = 0; i < 6; i++)
        draft_add(&d, i - 1, i, DRAFT_MODEL, 1);
    const struct spec_seq seq = {&d, 3};
    assert_true(spec_budget_wants(b, &step));
    assert_int_equal(spec_budget_choose(b, &step, &seq), 3);
    assert_int_equal(d.n_nodes, 3);
    for (int i = 0; i < 3; i++)
        assert_int_equal(d.nodes[i].token, i);
    spec_budget_close(b);
}

static void drafting_begins_at_a_gain_and_stays_on_above_less(void **state)
{
    (void)state;
    struct spec_budget_options options = plain();
    options.gain_enter = 1.2;
    struct spec_budget *b = open(&options);
    /* A second row costs a tenth: a token of 0.2 gains 1.2 / 1.1, one of 0.5 gains 1.5 / 1.1.
     */
    const struct spec_time_point points[] = {{1, 100}, {2, 110}};
    struct spec_time time;
    spec_time_init(&time, points, 2);
    const struct spec_step step = {&time, 1, 1, 1, 0, 2};
    const struct {
        double p;
        size_t n;
    } cases[] = {{0.2, 0}, {0.2, 0}, {0.5, 1}, {0.2, 1}, {0.05, 0}, {0.2, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct draft d = {0};
        add_chain(&d, 1, cases[i].p);
        const struct spec_seq seq = {&d, 63};
        assert_true(spec_budget_wants(b, &step));
        assert_int_equal(spec_budget_choose(b, &step, &seq), cases[i].n);
    }
    spec_budget_close(b);
}

static void while_off_single_nodes_take_turns_within_their_share(void **state)
{
    (void)state;
    const struct spec_budget_options options = spec_budget_defaults(SEQS_MAX);
    struct spec_budget *b = open(&options);
    const struct spec_time_point points[] = {{1, 100}, {101, 10100}}; /* a row costs a row */
    struct spec_time time;
    spec_time_init(&time, points, 2);
    enum { SEQS = 4, STEPS = 40000 };
    const struct spec_step step = {&time, SEQS, SEQS, SEQS, 0, 64};
    size_t n_explored[SEQS] = {0}, n_asked = 0, n_rows = 0;
    for (int i = 0; i < STEPS; i++) {
        if (!spec_budget_wants(b, &step))
            continue;
        n_asked++;
        struct draft drafts[SEQS] = {0};
        struct spec_seq seqs[SEQS];
        for (size_t k = 0; k < SEQS; k++) {
            add_chain(&drafts[k], k == 2 ? 0 : 3, 0.5);
            seqs[k] = (struct spec_seq){&drafts[k], 63};
        }
        n_rows += spec_budget_choose(b, &step, seqs);
        for (size_t k = 0; k < SEQS; k++) {
            assert_true(drafts[k].n_nodes <= 1);
            n_explored[k] += drafts[k].n_nodes;
        }
        spec_budget_observe(b, 0);
    }
    assert_true(n_rows == n_asked && n_rows > 0);
    /* Half a per cent of the time, and a node costs a quarter of a step. */
    assert_true((double)n_rows <= 0.005 * STEPS * SEQS + 1);
    assert_true((double)n_rows > 0.004 * STEPS * SEQS);
    assert_int_equal(n_explored[2], 0);
    for (size_t k = 0; k < SEQS; k++)
        assert_true(k == 2 || n_explored[k] + 2 >= n_rows / 3);
    const struct spec_budget_counters c = spec_budget_counters(b);
    assert_int_equal(c.steps, STEPS);
    assert_int_equal(c.steps_explored, n_rows);
    assert_int_equal(c.steps_unasked, STEPS - n_asked);
    assert_int_equal(c.steps_on, 0);
    spec_budget_close(b);
}

/* After 8, 16, 32, ... and then always 256 steps with drafts. */
static void while_on_steps_without_drafts_are_put_in(void **state)
{
    (void)state;
    const struct spec_budget_options options = plain();
    struct spec_budget *b = open(&options);
    const struct spec_time time = knee_at_8();
    const struct spec_step step = {&time, 1, 1, 1, 0, 64};
    size_t n_on = 0, expected = 8;
    for (int i = 0; i < 2000; i++) {
        struct draft d = {0};
        add_chain(&d, 3, 0.7);
        const struct spec_seq seq = {&d, 63};
        if (spec_budget_wants(b, &step)) {
            assert_int_equal(spec_budget_choose(b, &step, &seq), 3);
            n_on++;
            continue;
        }
        assert_int_equal(n_on, expected);
        expected = expected < 256 ? 2 * expected : 256;
        n_on = 0;
    }
    assert_int_equal(expected, 256);
    assert_int_equal(spec_budget_counters(b).steps_control,
                     5 + (2000 - 8 - 16 - 32 - 64 - 128 - 5) / 257);
    spec_budget_close(b);
}

static void drafts_that_disappoint_are_trusted_less(void **state)
{
    (void)state;
    const struct spec_budget_options options = plain();
    struct spec_budget *b = open(&options);
    const struct spec_time_point points[] = {{1, 100}, {2, 140}};
    struct spec_time time;
    spec_time_init(&time, points, 2);
    const struct spec_step step = {&time, 1, 1, 1, 0, 2};
    size_t n_wasted = 0;
    for (int i = 0; i < 500; i++) {
        struct draft d = {0};
        add_chain(&d, 1, 0.6);
        const struct spec_seq seq = {&d, 63};
        if (spec_budget_wants(b, &step))
            n_wasted += spec_budget_choose(b, &step, &seq);
        spec_budget_observe(b, 0);
    }
    assert_true(n_wasted > 5 && n_wasted < 50);
    spec_budget_close(b);
}

/* ---- long runs --------------------------------------------------------------------------- */

/* What sequences are like, what their drafts claim, and what steps really take. */
struct world {
    const char *name;
    size_t n_seqs;
    double p_copying, p_guess;       /* that a drafted token comes true */
    double said_copying, said_guess; /* what the draft says of it */
    double share_copying;            /* of the time */
    double knee, slope;              /* real step time: 100 + slope * rows behind the knee */
    double told_slope;               /* what the table says of it */
    double gain_min, gain_max;       /* speed, against not drafting */
};

static double real_us(const struct world *w, size_t n_rows)
{
    const double behind = (double)n_rows - w->knee;
    return 100 + (behind > 0 ? w->slope * behind : 0);
}

struct runner {
    bool is_copying;
    size_t left; /* of this phase */
};

static void propose(const struct world *w, struct runner *r, struct draft *d)
{
    if (r->left-- == 0) {
        r->is_copying = uniform() < w->share_copying;
        r->left = 20 + draw(40);
    }
    add_chain(d, r->is_copying ? 16 : 3, r->is_copying ? w->said_copying : w->said_guess);
}

static size_t accept(const struct world *w, const struct runner *r, const struct draft *d)
{
    size_t n = 0;
    while (n < d->n_nodes && uniform() < (r->is_copying ? w->p_copying : w->p_guess))
        n++;
    return n;
}

static double run(const struct world *w)
{
    enum { STEPS = 20000 };
    const struct spec_budget_options options = spec_budget_defaults(SEQS_MAX);
    struct spec_budget *b = open(&options);
    struct spec_time_point points[16];
    for (size_t i = 0; i < 16; i++) {
        struct world told = *w;
        told.slope = w->told_slope;
        points[i] = (struct spec_time_point){1 + 5 * i, real_us(&told, 1 + 5 * i)};
    }
    struct spec_time time;
    spec_time_init(&time, points, 16);
    struct runner runners[SEQS_MAX] = {0};
    double us = 0, tokens = 0;
    for (int i = 0; i < STEPS; i++) {
        const struct spec_step step = {&time, w->n_seqs, w->n_seqs, (double)w->n_seqs, 0, 76};
        struct draft drafts[SEQS_MAX] = {0};
        struct spec_seq seqs[SEQS_MAX];
        size_t n = 0, n_accepted = 0;
        for (size_t k = 0; k < w->n_seqs; k++) {
            propose(w, &runners[k], &drafts[k]);
            seqs[k] = (struct spec_seq){&drafts[k], 63};
        }
        if (spec_budget_wants(b, &step)) {
            n = spec_budget_choose(b, &step, seqs);
            for (size_t k = 0; k < w->n_seqs; k++)
                n_accepted += accept(w, &runners[k], &drafts[k]);
            spec_budget_observe(b, n_accepted);
        }
        const double spent = real_us(w, w->n_seqs + n) * (0.93 + 0.14 * uniform());
        spec_time_observe(&time, w->n_seqs + n, spent);
        us += spent;
        tokens += (double)(w->n_seqs + n_accepted);
    }
    spec_budget_close(b);
    return tokens / us / ((double)w->n_seqs / real_us(w, w->n_seqs));
}

static void no_run_is_slower_than_without_drafts(void **state)
{
    (void)state;
    /* copying, guess: true, then said; share; knee, slope; told */
    const struct world worlds[] = {
        {"one copies", 1, .95, .3, .95, .3, .6, 5, 18, 18, 1.8, 4},
        {"one guesses", 1, .95, .2, .95, .2, 0, 5, 18, 18, 1.15, 1.4},
        {"eight copy", 8, .95, .3, .95, .3, .6, 5, 18, 18, 0.985, 1.2},
        {"eight, one in ten copies", 8, .95, .2, .95, .2, .1, 5, 18, 18, 0.985, 1.2},
        {"full, all copy", 32, .95, .3, .95, .3, 1, 1, 20, 20, 0.985, 1.2},
        {"full, all guess", 32, .95, .2, .95, .2, 0, 1, 20, 20, 0.985, 1.01},
        {"drafts lie", 1, .3, .02, .95, .5, .5, 5, 18, 18, 0.985, 2},
        {"drafts lie where rows are dear", 8, .3, .02, .95, .5, .5, 5, 18, 18, 0.97, 1.1},
        {"drafts are too modest", 1, .95, .6, .6, .3, .5, 5, 18, 18, 1.5, 4},
        {"rows were said to be free", 8, .9, .2, .9, .2, .3, 5, 18, 6, 0.97, 1.2},
        {"rows were said to cost nothing", 8, .9, .2, .9, .2, .3, 5, 18, 0, 0.8, 1.2},
        {"rows were said to be dear", 8, .95, .3, .95, .3, .9, 64, 18, 18, 1.5, 12},
        {"rows are free", 4, .9, .2, .9, .2, .3, 64, 0, 0, 1.5, 6},
    };
    for (size_t i = 0; i < sizeof worlds / sizeof worlds[0]; i++) {
        const double gain = run(&worlds[i]);
        print_message("%-32s %.3f times the speed without\n", worlds[i].name, gain);
        assert_true(gain >= worlds[i].gain_min && gain <= worlds[i].gain_max);
    }
}

int main(int argc, char **argv)
{
    seed = argc > 1 ? strtoull(argv[1], NULL, 10) : 20261130;
    print_message("seed %llu\n", (unsigned long long)seed);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_choice_gives_more_tokens_per_time),
        cmocka_unit_test(free_rows_are_filled_and_dear_ones_are_not),
        cmocka_unit_test(the_sequence_that_copies_goes_before_others),
        cmocka_unit_test(no_node_is_taken_before_its_parent),
        cmocka_unit_test(drafting_begins_at_a_gain_and_stays_on_above_less),
        cmocka_unit_test(while_off_single_nodes_take_turns_within_their_share),
        cmocka_unit_test(while_on_steps_without_drafts_are_put_in),
        cmocka_unit_test(drafts_that_disappoint_are_trusted_less),
        cmocka_unit_test(no_run_is_slower_than_without_drafts),
    };
    return cmocka_run_group_tests_name("spec_budget", tests, NULL, NULL);
}
