/*
 * Every order of events in the world of delivery_world.h, to the end: which states there are is
 * remembered, so that each is looked at once. In each of them no job is lost and none is
 * answered twice, ...; and where nothing more happens by itself everything is answered.
 *
 * test_delivery large: more jobs and more faults, for minutes and a gigabyte.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <xxhash.h>

#include "delivery_world.h"

enum { PATH_MAX_ACTIONS = 4096 };

/* 128 bits of hash stand for a state: two of ten million collide with 1 in 10^24. */
struct seen {
    XXH128_hash_t *slots;
    size_t n, capacity; /* a power of two */
};

struct search {
    const struct world_limits *limits;
    struct seen seen;
    size_t n_steps, n_at_rest, depth, depth_max;
    const char *violation; /* NULL: none was found */
    struct action path[PATH_MAX_ACTIONS];
};

static bool is_free(const XXH128_hash_t *h)
{
    return h->low64 == 0 && h->high64 == 0;
}

static XXH128_hash_t *slot_of(const struct seen *s, XXH128_hash_t h)
{
    size_t at = (size_t)h.low64 & (s->capacity - 1);
    while (!is_free(&s->slots[at]) && memcmp(&s->slots[at], &h, sizeof h) != 0)
        at = (at + 1) & (s->capacity - 1);
    return &s->slots[at];
}

static void grow(struct seen *s)
{
    const struct seen old = *s;
    s->capacity = old.capacity ? 2 * old.capacity : 1 << 16;
    s->slots = calloc(s->capacity, sizeof *s->slots);
    if (!s->slots)
        abort();
    for (size_t i = 0; i < old.capacity; i++)
        if (!is_free(&old.slots[i]))
            *slot_of(s, old.slots[i]) = old.slots[i];
    free(old.slots);
}

/* True: for the first time. */
static bool see(struct seen *s, const struct world *w)
{
    if (2 * s->n >= s->capacity)
        grow(s);
    const XXH128_hash_t h = XXH3_128bits(w, sizeof *w);
    XXH128_hash_t *slot = slot_of(s, h);
    if (!is_free(slot))
        return false;
    *slot = h;
    s->n++;
    return true;
}

static void explore(struct search *s, const struct world *w);

static void step_into(struct search *s, const struct world *next, struct action a)
{
    s->n_steps++;
    s->path[s->depth] = a;
    s->violation = world_violation(next, s->limits);
    if (s->violation || !see(&s->seen, next))
        return;
    s->depth++;
    explore(s, next);
    if (!s->violation)
        s->depth--;
}

static void explore(struct search *s, const struct world *w)
{
    bool is_at_rest = true;
    struct world next = *w;
    if (s->depth > s->depth_max)
        s->depth_max = s->depth;
    if (s->depth == PATH_MAX_ACTIONS)
        abort();
    for (int kind = 0; kind < N_ACTIONS; kind++)
        for (int worker = 0; worker < WORLD_WORKERS; worker++)
            for (int c = 0; c < world_choices(s->limits, (enum action_kind)kind); c++) {
                const struct action a = {(uint8_t)kind, (uint8_t)worker, (uint8_t)c};
                if (!world_act(&next, s->limits, a))
                    continue;
                is_at_rest &= world_is_fault(w, a);
                step_into(s, &next, a);
                if (s->violation)
                    return;
                next = *w;
            }
    if (!is_at_rest)
        return;
    s->n_at_rest++;
    s->violation = world_violation_at_rest(w, s->limits);
}

static void search(struct search *s, const struct world_limits *limits)
{
    memset(s, 0, sizeof *s);
    s->limits = limits;
    world_forget_violation();
    struct world w;
    world_begin(&w, limits);
    see(&s->seen, &w);
    explore(s, &w);
    free(s->seen.slots);
}

static void print_path(const struct search *s)
{
    for (size_t i = 0; i <= s->depth; i++)
        print_message("  %s %d %d\n", world_action_name(s->path[i].kind), s->path[i].worker,
                      s->path[i].choice);
    print_message("  %s\n", s->violation);
}

/* ------------------------------------------------------------------ the worlds */

struct named_world {
    const char *name;
    struct world_limits limits;
};

/* partitions, jobs; crashes, kicks, unheard commits, timeouts; coarse, all arrived */
static const struct named_world worlds[] = {
    {"every step, a crash", {1, 1, 1, 0, 1, 1, false, false, false, 0}},
    {"every step, a sleeper", {1, 1, 0, 1, 1, 1, false, false, false, 0}},
    {"every step, a crash and a sleeper", {1, 1, 1, 1, 0, 0, false, false, false, 0}},
    {"four jobs, commits unheard", {1, 4, 0, 0, 1, 1, true, false, false, 0}},
    {"two jobs, a sleeper", {1, 2, 0, 1, 0, 0, true, true, false, 0}},
    {"two jobs, a crash, a commit unheard", {1, 2, 1, 0, 1, 0, true, true, false, 0}},
    {"two partitions, a crash", {2, 1, 1, 0, 1, 0, true, true, false, 0}},
    {"two partitions, a sleeper", {2, 1, 0, 1, 1, 0, true, true, false, 0}},
    {"two partitions, two jobs each", {2, 2, 0, 0, 1, 0, true, true, false, 0}},
};
static const struct named_world large_worlds[] = {
    {"every step, everything at once", {1, 1, 1, 1, 1, 1, false, false, false, 0}},
    {"every step, two jobs, a crash", {1, 2, 1, 0, 0, 0, false, false, false, 0}},
    {"everything twice", {1, 1, 2, 2, 2, 2, true, true, false, 0}},
    {"three jobs, a crash", {1, 3, 1, 0, 0, 0, true, true, false, 0}},
    {"four jobs, a crash", {1, 4, 1, 0, 0, 0, true, true, false, 0}},
    {"three jobs, a sleeper", {1, 3, 0, 1, 0, 0, true, true, false, 0}},
    {"two jobs, a crash and a sleeper", {1, 2, 1, 1, 0, 0, true, true, false, 0}},
    {"two jobs, a crash, commits unheard", {1, 2, 1, 0, 1, 1, true, true, false, 0}},
    {"two jobs, a sleeper, commits unheard", {1, 2, 0, 1, 1, 1, true, true, false, 0}},
    {"two partitions, a crash and a sleeper", {2, 1, 1, 1, 0, 0, true, true, false, 0}},
    {"two partitions, two jobs, a crash", {2, 2, 1, 0, 0, 0, true, true, false, 0}},
};

static struct search the_search;

/* The number of states, 0 when one of them is wrong; then the way there is told. */
static size_t explore_world(const struct named_world *world)
{
    struct search *s = &the_search;
    search(s, &world->limits);
    if (s->violation) {
        print_message("%s:\n", world->name);
        print_path(s);
        return 0;
    }
    printf("%s: %zu states, %zu steps between them, %zu at rest, up to %zu deep\n", world->name,
           s->seen.n, s->n_steps, s->n_at_rest, s->depth_max);
    fflush(stdout);
    return s->n_at_rest > 0 ? s->seen.n : 0;
}

static int explore_large(void)
{
    size_t n = 0;
    for (size_t i = 0; i < sizeof large_worlds / sizeof large_worlds[0]; i++) {
        const size_t n_states = explore_world(&large_worlds[i]);
        if (n_states == 0)
            return 1;
        n += n_states;
    }
    printf("%zu states\n", n);
    return 0;
}

/* test_delivery world PARTITIONS JOBS CRASHES KICKS UNHEARD TIMEOUTS COARSE ARRIVED GUARDS_OFF
 */
static int explore_given(int argc, char **argv)
{
    int n[10] = {1, 1, 0, 0, 0, 0, 1, 1, 0, 0};
    for (int i = 2; i < argc && i < 12; i++)
        n[i - 2] = (int)strtol(argv[i], NULL, 0);
    const struct named_world world = {
        "given",
        {n[0], n[1], n[2], n[3], n[4], n[5], n[6] != 0, n[7] != 0, n[8] != 0, (unsigned)n[9]}};
    return explore_world(&world) == 0;
}

static void every_order_of_events_answers_each_job_once(void **state)
{
    (void)state;
    size_t n = 0;
    for (size_t i = 0; i < sizeof worlds / sizeof worlds[0]; i++) {
        const size_t n_states = explore_world(&worlds[i]);
        assert_true(n_states > 0);
        n += n_states;
    }
    printf("%zu states in all\n", n);
}

/* The same search in small worlds that lack a guard. */
static void each_guard_left_out_is_found(void **state)
{
    (void)state;
    const struct world_limits all = {1, 1, 1, 1, 1, 0, true, true, false, 0};
    const struct world_limits crash = {1, 2, 1, 0, 0, 0, true, true, false, 0};
    static const char twice[] = "a job has two committed answers";
    const struct {
        enum world_guard guard;
        const struct world_limits *limits;
        const char *finds;
    } twins[] = {
        {GUARD_RESULTS_WITH_OFFSETS, &all, "a job is lost: settled without an answer"},
        {GUARD_BITS, &crash, twice},
        {GUARD_COMMITTED_READ, &all, twice},
        {GUARD_GENERATION, &all, twice},
        {GUARD_LOOK_UP, &all, "an answer that was stored is computed again"},
        {GUARD_FIND_OUT, &all, twice},
        {GUARD_SETTLE_LAST, &all, "a tracker counts a job as settled that nobody has answered"},
        {GUARD_STABLE, &all, twice},
        {GUARD_MARK_LAST, &all, "a row is marked as published that nobody can see"},
        {GUARD_STORE_FIRST, &all, "an answer was committed that its worker has not stored"},
        {GUARD_RECONCILE, &all,
         "at rest: the partition's owner has an answer that it takes for unpublished"},
        {GUARD_DROP_REVOKED, &all, "at rest: a worker is stuck"},
    };
    assert_int_equal(sizeof twins / sizeof twins[0], N_GUARDS);
    assert_true(explore_world(&(struct named_world){"with all guards", all}) > 0);
    assert_true(explore_world(&(struct named_world){"with all guards", crash}) > 0);
    for (size_t i = 0; i < N_GUARDS; i++) {
        struct world_limits limits = *twins[i].limits;
        limits.guards_off = 1u << twins[i].guard;
        search(&the_search, &limits);
        assert_non_null(the_search.violation);
        assert_string_equal(the_search.violation, twins[i].finds);
    }
}

static int free_scratch(void **state)
{
    (void)state;
    world_free_scratch();
    return 0;
}

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "large") == 0)
        return explore_large();
    if (argc > 1 && strcmp(argv[1], "world") == 0)
        return explore_given(argc, argv);
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_order_of_events_answers_each_job_once),
        cmocka_unit_test(each_guard_left_out_is_found),
    };
    return cmocka_run_group_tests_name("delivery", tests, NULL, free_scratch);
}
