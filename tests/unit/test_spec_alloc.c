/*
 * Every allocation of the sources of drafts and of their budget fails in turn: ERR_NOMEM and
 * nothing left behind. After opening, none of them takes memory. Our own allocations are caught
 * by the linker (--wrap).
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "engine/drafter.h"
#include "engine/lookup.h"
#include "engine/spec_budget.h"
#include "failing_alloc.h"

enum { V = 50, TEXT = 120, WINDOW = 64, SAID = 1000, KINDS = 5 };

struct opened {
    struct automaton *a;
    struct ngram *ix;
    struct recycle *r;
    struct spec_budget *b;
    struct drafter *d;
};

static int32_t text[TEXT];
static size_t prediction_bytes = SIZE_MAX;
static struct spec_stats stats;

static int open_one(int which, struct opened *o)
{
    const struct spec_budget_options options = spec_budget_defaults(3);
    const struct drafter_options drafter = {.prediction = text,
                                            .n_prediction = TEXT,
                                            .prediction_bytes = &prediction_bytes,
                                            .window = WINDOW,
                                            .stats = &stats};
    switch (which) {
    case 0: return automaton_open(text, TEXT, SIZE_MAX, &o->a, NULL);
    case 1: return ngram_open(WINDOW, &o->ix, NULL);
    case 2: return recycle_open(V, &o->r, NULL);
    case 3: return spec_budget_open(&options, &o->b, NULL);
    default: return drafter_open(&drafter, &o->d, NULL);
    }
}

static bool is_empty(const struct opened *o)
{
    return !o->a && !o->ix && !o->r && !o->b && !o->d;
}

static void close_all(struct opened *o)
{
    automaton_close(o->a);
    ngram_close(o->ix);
    recycle_close(o->r);
    spec_budget_close(o->b);
    drafter_close(o->d);
    *o = (struct opened){0};
}

static void opening_fails_cleanly_at_every_allocation(void **state)
{
    (void)state;
    for (int which = 0; which < KINDS; which++) {
        struct opened o = {0};
        int rc = ERR_NOMEM;
        long n = 0;
        while (rc != 0) {
            failing_alloc_arm(++n, false);
            rc = open_one(which, &o);
            failing_alloc_disarm();
            assert_true(rc == 0 || rc == ERR_NOMEM);
            assert_true((rc == 0) == !is_empty(&o));
            close_all(&o);
        }
        assert_true(n >= 4);
    }
}

static void use(struct opened *o)
{
    static const struct spec_time_point points[2] = {{1, 100}, {64, 110}};
    struct spec_time time;
    spec_time_init(&time, points, 2);
    struct automaton_cursor c = {0};
    static int32_t said[SAID];
    int32_t last = 0;
    for (int32_t i = 0; i < SAID; i++) {
        const int32_t token = i * i % 7;
        lookup_follow(o->a, &c, DRAFT_LOOKUP, token, &stats);
        lookup_follow_self(o->ix, token, &stats);
        recycle_follow(o->r, last, token, &stats);
        last = token;
        said[i] = token;
        drafter_follow(o->d, said, 1, (size_t)i + 1);
        const struct draft_limits limits = {20, 0.01};
        struct draft drafts[3] = {0};
        lookup_propose(o->a, c, DRAFT_LOOKUP, &limits, &stats, &drafts[0]);
        lookup_propose_self(o->ix, &limits, &stats, &drafts[1]);
        recycle_propose(o->r, token, &limits, &stats, &drafts[2]);
        drafter_propose(o->d, &limits, &drafts[i % 3]);
        const struct spec_step step = {&time, 3, 3, 3, 0, 64};
        struct spec_seq seqs[3];
        for (int k = 0; k < 3; k++)
            seqs[k] = (struct spec_seq){&drafts[k], 63};
        if (spec_budget_wants(o->b, &step))
            spec_budget_observe(o->b, spec_budget_choose(o->b, &step, seqs));
    }
}

static void use_takes_no_memory(void **state)
{
    (void)state;
    spec_stats_init(&stats);
    drafter_set_priors(&stats);
    struct opened o = {0};
    for (int which = 0; which < KINDS; which++)
        assert_int_equal(open_one(which, &o), 0);
    failing_alloc_arm(0, false);
    use(&o);
    failing_alloc_disarm();
    assert_int_equal(failing_alloc_asked(), 0);
    assert_true(spec_budget_counters(o.b).nodes > 1000);
    close_all(&o);
}

int main(void)
{
    for (int32_t i = 0; i < TEXT; i++)
        text[i] = i * i % 7;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(opening_fails_cleanly_at_every_allocation),
        cmocka_unit_test(use_takes_no_memory),
    };
    return cmocka_run_group_tests_name("spec_alloc", tests, NULL, NULL);
}
