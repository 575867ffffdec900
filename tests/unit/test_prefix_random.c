/*
 * The prefix tree and the pool against a naive model (prefix_model.h) over long random lives:
 * episodes of a few hundred operations, each with a pool and options of its own. After every
 * operation the counters and the pages of every sequence agree with the model's, the walkers
 * find nothing, and every computed slot of every sequence holds the stamp of exactly its
 * tokens, whether computed, shared or copied.
 *
 * SHEAF_RANDOM_OPS: operations, for longer runs than the suite's. SHEAF_SEED: of the first
 * episode; a failure names its own.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "engine/prefix.h"
#include "kv_stamps.h"
#include "prefix_model.h"

enum {
    PAGE = KV_PAGE_TOKENS,
    PROMPT_MAX = 136,
    EPISODE_OPS = 400,
    TEXTS = 4,
    SALTS = 3,
};

/* What a run of the twins does wrong on purpose. */
enum sabotage {
    NOTHING,
    TAMPERED_PAGE,
    MODEL_WITHOUT_DEMAND,
    TURNS_BACKWARDS,
    MODEL_OF_A_SMALLER_POOL
};

struct text {
    int32_t tokens[MODEL_TOKENS_MAX];
    size_t n;
};

struct seq {
    struct text text; /* prompt and answer */
    size_t n_computed;
    size_t n_committed;
    int32_t pages[MODEL_BLOCKS_MAX];
    size_t n_pages;
    struct prefix_path *path;
};

struct episode {
    uint64_t seed, n_draws;
    struct prefix_options options;
    bool turns_backwards;
    struct kvpool *pool;
    struct prefix_tree *tree;
    struct model model;              /* jobs[i] is that of seqs[i] */
    struct seq seqs[MODEL_JOBS_MAX]; /* gone ones are zeroed */
    struct text texts[TEXTS];        /* what was said lately; prompts begin like it */
    size_t n_wants;
    size_t n_finds, n_forgotten; /* reasons that the tree no longer knows */
    uint64_t digest;             /* of everything that was found */
    char problem[128];           /* the first; empty: none */
};

static const char *const salts[SALTS] = {"", "x", "y"};

static uint64_t draw(struct episode *ep, uint64_t below)
{
    return rng_bits(ep->seed, 3, ep->n_draws++) % below;
}

static void complain(struct episode *ep, const char *what, size_t got, size_t expected)
{
    if (!ep->problem[0])
        snprintf(ep->problem, sizeof ep->problem, "%s: %zu, expected %zu", what, got, expected);
}

static void expect(struct episode *ep, const char *what, size_t got, size_t expected)
{
    ep->digest = rng_bits(ep->digest, got, expected);
    if (got != expected)
        complain(ep, what, got, expected);
}

static struct prefix_options draw_options(struct episode *ep)
{
    static const uint64_t masks[] = {0, 0, 0, 1, 7};
    return (struct prefix_options){
        .enabled = draw(ep, 20) != 0,
        .evicts_by_demand = draw(ep, 3) != 0,
        .tokens_min = draw(ep, 3) == 0 ? draw(ep, 80) : 0,
        .pages_max = draw(ep, 4) == 0 ? 1 + draw(ep, 12) : 0,
        .hash_mask = masks[draw(ep, 5)],
    };
}

static void open_episode(struct episode *ep, uint64_t seed, enum sabotage sabotage)
{
    *ep = (struct episode){.seed = seed, .turns_backwards = sabotage == TURNS_BACKWARDS};
    const size_t n_pages = 5 + draw(ep, 30);
    ep->options = draw_options(ep);
    struct prefix_options model_options = ep->options;
    if (sabotage == MODEL_WITHOUT_DEMAND)
        model_options.evicts_by_demand = false;
    ep->pool = stamps_open_pool(n_pages);
    assert_int_equal(prefix_open(&ep->options, ep->pool, &ep->tree, NULL), 0);
    model_init(&ep->model, &model_options,
               sabotage == MODEL_OF_A_SMALLER_POOL ? n_pages - 1 : n_pages);
}

static struct model_job *job_of(struct episode *ep, const struct seq *seq)
{
    return &ep->model.jobs[seq - ep->seqs];
}

static const char *salt_of(struct episode *ep, const struct seq *seq)
{
    return salts[job_of(ep, seq)->salt];
}

/* Any sequence in this state; NULL when there is none. */
static struct seq *draw_seq(struct episode *ep, enum model_state state)
{
    const size_t first = draw(ep, MODEL_JOBS_MAX);
    for (size_t i = 0; i < MODEL_JOBS_MAX; i++) {
        const size_t at = (first + i) % MODEL_JOBS_MAX;
        if (ep->model.jobs[at].state == state)
            return &ep->seqs[at];
    }
    return NULL;
}

/* Tokens of a small alphabet, so that texts also meet by chance. */
static void draw_tail(struct episode *ep, struct text *text, size_t n, size_t n_max)
{
    const uint64_t alphabet = 1 + draw(ep, 3);
    while (n-- > 0 && text->n < n_max)
        text->tokens[text->n++] = (int32_t)draw(ep, alphabet);
}

/* Whole, or cut where pages end or one token beside it, or anywhere. */
static size_t draw_cut(struct episode *ep, size_t n)
{
    size_t cut = draw(ep, n + 1);
    switch (draw(ep, 3)) {
    case 0: return n;
    case 1: cut = cut / PAGE * PAGE + draw(ep, 3) - (cut >= PAGE); break;
    default: break;
    }
    return cut < n ? cut : n;
}

static void draw_prompt(struct episode *ep, struct text *text)
{
    *text = ep->texts[draw(ep, TEXTS)];
    text->n = draw_cut(ep, text->n < PROMPT_MAX ? text->n : PROMPT_MAX);
    draw_tail(ep, text, draw(ep, 3) ? draw(ep, 20) : draw(ep, 100), PROMPT_MAX);
    draw_tail(ep, text, text->n == 0, PROMPT_MAX);
    ep->texts[draw(ep, TEXTS)] = *text;
}

static void want(struct episode *ep)
{
    struct seq *seq = draw_seq(ep, MODEL_GONE);
    if (!seq)
        return;
    draw_prompt(ep, &seq->text);
    struct model_job *job = job_of(ep, seq);
    const bool is_next = draw(ep, 2);
    *job = (struct model_job){.state = MODEL_WANTED,
                              .salt = draw(ep, 3) ? 0 : (int)draw(ep, SALTS),
                              .tokens = seq->text.tokens,
                              .n_prompt = seq->text.n,
                              .is_next = is_next != ep->turns_backwards,
                              .number = ep->turns_backwards ? ~ep->n_wants : ep->n_wants};
    ep->n_wants++;
    const char *salt = job->salt == 0 && draw(ep, 2) ? NULL : salts[job->salt];
    assert_int_equal(prefix_want(ep->tree, salt, seq->text.tokens, seq->text.n,
                                 is_next ? PREFIX_NEXT : PREFIX_LATER, &seq->path, NULL),
                     0);
}

static void unwant(struct episode *ep)
{
    struct seq *seq = draw_seq(ep, MODEL_WANTED);
    if (!seq)
        return;
    prefix_unwant(ep->tree, seq->path);
    job_of(ep, seq)->state = MODEL_GONE;
    *seq = (struct seq){0};
}

/* The tree forgets in time, and says less then; it must never say something else. */
static bool is_weaker(enum prefix_miss got, enum prefix_miss expected)
{
    return (got == PREFIX_MISS_COLD || got == PREFIX_MISS_DIFFERS || got == PREFIX_MISS_SALT) &&
           expected >= PREFIX_MISS_COLD && expected != PREFIX_MISS_SHORT &&
           expected != PREFIX_MISS_COLD;
}

static void compare_hits(struct episode *ep, const struct prefix_hit *got,
                         const struct prefix_hit *expected)
{
    expect(ep, "n_tokens", got->n_tokens, expected->n_tokens);
    expect(ep, "n_pages_shared", got->n_pages_shared, expected->n_pages_shared);
    expect(ep, "n_coming", got->n_coming, expected->n_coming);
    expect(ep, "miss_at", got->miss_at, expected->miss_at);
    ep->n_finds++;
    if (got->miss == expected->miss)
        return;
    ep->n_forgotten++;
    if (!is_weaker(got->miss, expected->miss))
        complain(ep, "miss", got->miss, expected->miss);
}

static void find(struct episode *ep)
{
    const struct seq *seq = draw_seq(ep, MODEL_WANTED);
    if (!seq)
        return;
    struct prefix_hit got, expected;
    prefix_find(ep->tree, seq->path, seq->text.tokens, seq->text.n, &got);
    model_find(&ep->model, job_of(ep, seq), seq->text.n, &expected);
    compare_hits(ep, &got, &expected);
}

static void start(struct episode *ep)
{
    struct seq *seq = draw_seq(ep, MODEL_WANTED);
    if (!seq)
        return;
    const size_t n_spare = draw(ep, 3);
    struct prefix_hit got = {0}, expected = {0};
    const bool started = prefix_start(ep->tree, seq->path, seq->text.tokens, seq->text.n,
                                      n_spare, seq->pages, &got);
    expect(ep, "started", started,
           model_start(&ep->model, job_of(ep, seq), seq->text.n, n_spare, &expected));
    if (!started)
        return;
    compare_hits(ep, &got, &expected);
    seq->n_pages = (seq->text.n + PAGE - 1) / PAGE;
    seq->n_computed = seq->n_committed = got.n_tokens;
}

static void stop(struct episode *ep, struct seq *seq, bool again)
{
    const size_t n = seq->n_committed + draw(ep, seq->n_computed - seq->n_committed + 1);
    prefix_stop(ep->tree, seq->path, seq->text.tokens, n, seq->pages, seq->n_pages, again);
    model_stop(&ep->model, job_of(ep, seq), n, again);
    ep->texts[draw(ep, TEXTS)] = seq->text;
    seq->n_pages = seq->n_computed = 0;
    if (!again)
        *seq = (struct seq){0};
}

/* False when there is no page to be had. */
static bool make_room(struct episode *ep, struct seq *seq, size_t n_tokens)
{
    while (seq->n_pages * PAGE < n_tokens) {
        const int32_t page = prefix_acquire_page(ep->tree);
        const bool expected = model_acquire_page(&ep->model, job_of(ep, seq));
        expect(ep, "acquired", page != KVPOOL_NO_PAGE, expected);
        if (page == KVPOOL_NO_PAGE)
            return false;
        seq->pages[seq->n_pages++] = page;
    }
    return true;
}

static void compute(struct episode *ep)
{
    struct seq *seq = draw_seq(ep, MODEL_HELD);
    if (!seq)
        return;
    if (seq->n_computed == seq->text.n)
        draw_tail(ep, &seq->text, 1 + draw(ep, 20), MODEL_TOKENS_MAX);
    const size_t left = seq->text.n - seq->n_computed;
    const size_t n = seq->n_computed + (draw(ep, 3) ? left : draw(ep, left + 1));
    if (!make_room(ep, seq, n)) {
        stop(ep, seq, true);
        return;
    }
    stamps_write(ep->pool, seq->pages, salt_of(ep, seq), seq->text.tokens, seq->n_computed, n);
    seq->n_computed = n;
    if (draw(ep, 2))
        return;
    seq->n_committed += draw(ep, 2) ? n - seq->n_committed : draw(ep, n - seq->n_committed + 1);
    const bool partial = draw(ep, 3) == 0;
    prefix_commit(ep->tree, seq->path, seq->text.tokens, seq->n_committed, partial, seq->pages);
    model_commit(&ep->model, job_of(ep, seq), seq->n_committed, partial);
}

static void stop_any(struct episode *ep)
{
    struct seq *seq = draw_seq(ep, MODEL_HELD);
    if (seq)
        stop(ep, seq, draw(ep, 3) == 0);
}

/* Same entry of the model, same page, and no page in two places. */
static void compare_pages(struct episode *ep)
{
    const struct model_entry *owners[MODEL_PAGES_MAX] = {0};
    bool taken[MODEL_PAGES_MAX] = {0};
    for (size_t i = 0; i < MODEL_JOBS_MAX; i++) {
        const struct model_job *job = &ep->model.jobs[i];
        expect(ep, "n_pages", ep->seqs[i].n_pages, job->n_pages);
        for (size_t k = 0; k < job->n_pages && !ep->problem[0]; k++) {
            const int32_t page = ep->seqs[i].pages[k];
            const struct model_entry *entry = job->pages[k];
            if (taken[page] && (!entry || owners[page] != entry))
                complain(ep, "a page is in two places", (size_t)page, 0);
            for (size_t p = 0; entry && p < MODEL_PAGES_MAX; p++)
                if (owners[p] == entry && p != (size_t)page)
                    complain(ep, "two pages for the same tokens", (size_t)page, p);
            taken[page] = true;
            owners[page] = entry;
        }
    }
}

static void compare_contents(struct episode *ep)
{
    for (size_t i = 0; i < MODEL_JOBS_MAX; i++) {
        const struct seq *seq = &ep->seqs[i];
        const size_t n = stamps_first_wrong(ep->pool, seq->pages, salt_of(ep, seq),
                                            seq->text.tokens, seq->n_computed);
        if (n != seq->n_computed)
            complain(ep, "wrong content at token", n, seq->n_computed);
    }
}

static void compare_all(struct episode *ep)
{
    const struct prefix_counters got = prefix_counters(ep->tree);
    const struct prefix_counters *expected = &ep->model.counters;
    expect(ep, "published", got.pages_published, expected->pages_published);
    expect(ep, "adopted", got.pages_adopted, expected->pages_adopted);
    expect(ep, "evicted", got.pages_evicted, expected->pages_evicted);
    expect(ep, "evicted wanted", got.pages_evicted_wanted, expected->pages_evicted_wanted);
    expect(ep, "copied", got.pages_copied, expected->pages_copied);
    expect(ep, "available", prefix_pages_available(ep->tree), model_available(&ep->model));
    expect(ep, "the walkers", prefix_check(ep->tree) && kvpool_check(ep->pool), true);
    compare_pages(ep);
    compare_contents(ep);
}

/* A slot of a page that nobody holds changes. */
static void tamper(struct episode *ep)
{
    for (int32_t page = 0; (size_t)page < kvpool_pages(ep->pool); page++)
        if (kvpool_is_idle(ep->pool, page))
            ((uint64_t *)kvpool_block(ep->pool, 1, page, 1))[0]++;
}

static void operate(struct episode *ep)
{
    static const struct {
        void (*operation)(struct episode *ep);
        unsigned weight;
    } table[] = {{want, 6}, {find, 2}, {start, 6}, {compute, 10}, {stop_any, 3}, {unwant, 1}};
    uint64_t at = draw(ep, 28);
    size_t i = 0;
    for (; at >= table[i].weight; i++)
        at -= table[i].weight;
    table[i].operation(ep);
}

static void close_episode(struct episode *ep)
{
    for (size_t i = 0; i < MODEL_JOBS_MAX; i++) {
        struct seq *seq = &ep->seqs[i];
        if (seq->path && seq->n_pages > 0)
            prefix_stop(ep->tree, seq->path, seq->text.tokens, seq->n_committed, seq->pages,
                        seq->n_pages, false);
        else
            prefix_unwant(ep->tree, seq->path);
    }
    expect(ep, "available at the end", prefix_pages_available(ep->tree),
           kvpool_pages(ep->pool));
    prefix_close(ep->tree);
    expect(ep, "free at the end", kvpool_free_pages(ep->pool), kvpool_pages(ep->pool));
    expect(ep, "the pool's walker", kvpool_check(ep->pool), true);
    kvpool_close(ep->pool);
    model_fini(&ep->model);
}

static void run_episode(struct episode *ep, uint64_t seed, enum sabotage sabotage)
{
    open_episode(ep, seed, sabotage);
    for (size_t i = 0; i < EPISODE_OPS && !ep->problem[0]; i++) {
        if (sabotage == TAMPERED_PAGE && i % 50 == 49)
            tamper(ep);
        operate(ep);
        if (!ep->problem[0])
            compare_all(ep);
    }
    close_episode(ep);
}

static uint64_t number_from(const char *name, uint64_t otherwise)
{
    const char *given = getenv(name);
    return given ? strtoull(given, NULL, 10) : otherwise;
}

static uint64_t first_seed(void)
{
    return number_from("SHEAF_SEED", 20261);
}

static void random_lives_agree_with_the_naive_model(void **state)
{
    (void)state;
    const uint64_t n_ops = number_from("SHEAF_RANDOM_OPS", 80000);
    static struct episode ep;
    struct prefix_counters sum = {0};
    size_t n_finds = 0, n_forgotten = 0;
    for (uint64_t i = 0; i * EPISODE_OPS < n_ops; i++) {
        run_episode(&ep, first_seed() + i, NOTHING);
        if (ep.problem[0])
            fail_msg("SHEAF_SEED=%llu: %s", (unsigned long long)ep.seed, ep.problem);
        sum.pages_published += ep.model.counters.pages_published;
        sum.pages_adopted += ep.model.counters.pages_adopted;
        sum.pages_evicted += ep.model.counters.pages_evicted;
        sum.pages_evicted_wanted += ep.model.counters.pages_evicted_wanted;
        sum.pages_copied += ep.model.counters.pages_copied;
        if (ep.options.hash_mask == 0) { /* else the memory of misses is narrow, too */
            n_finds += ep.n_finds;
            n_forgotten += ep.n_forgotten;
        }
    }
    print_message("%llu operations: %llu published, %llu adopted, %llu evicted (%llu wanted), "
                  "%llu copied; of %zu misses' reasons %zu forgotten\n",
                  (unsigned long long)n_ops, (unsigned long long)sum.pages_published,
                  (unsigned long long)sum.pages_adopted, (unsigned long long)sum.pages_evicted,
                  (unsigned long long)sum.pages_evicted_wanted,
                  (unsigned long long)sum.pages_copied, n_finds, n_forgotten);
    assert_true(sum.pages_adopted > 0 && sum.pages_evicted_wanted > 0 && sum.pages_copied > 0);
    assert_true(n_forgotten * 100 <= n_finds);
}

static void two_runs_of_one_seed_are_the_same(void **state)
{
    (void)state;
    static struct episode a, b;
    for (uint64_t i = 0; i < 3; i++) {
        run_episode(&a, first_seed() + i, NOTHING);
        run_episode(&b, first_seed() + i, NOTHING);
        assert_true(a.digest == b.digest);
    }
    run_episode(&b, first_seed() + 7, NOTHING);
    assert_true(a.digest != b.digest);
}

/* Not in every episode: some draw options that it cannot touch. */
static void sabotage_is_found_out(enum sabotage sabotage, const char *problem,
                                  size_t n_episodes, size_t n_least)
{
    static struct episode ep;
    size_t n_found = 0;
    for (uint64_t i = 0; i < n_episodes; i++) {
        run_episode(&ep, 500 + i, sabotage);
        n_found += ep.problem[0] && strncmp(ep.problem, problem, strlen(problem)) == 0;
    }
    assert_in_range(n_found, n_least, n_episodes);
}

static void a_tampered_page_is_found_out(void **state)
{
    (void)state;
    sabotage_is_found_out(TAMPERED_PAGE, "wrong content at token", 20, 10);
}

static void another_order_of_eviction_is_found_out(void **state)
{
    (void)state;
    sabotage_is_found_out(MODEL_WITHOUT_DEMAND, "evicted wanted", 20, 10);
}

static void another_order_of_turns_is_found_out(void **state)
{
    (void)state;
    sabotage_is_found_out(TURNS_BACKWARDS, "", 200, 3); /* pages that are wanted go seldom */
}

static void a_page_too_many_is_found_out(void **state)
{
    (void)state;
    sabotage_is_found_out(MODEL_OF_A_SMALLER_POOL, "available", 20, 10);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_lives_agree_with_the_naive_model),
        cmocka_unit_test(two_runs_of_one_seed_are_the_same),
        cmocka_unit_test(a_tampered_page_is_found_out),
        cmocka_unit_test(another_order_of_eviction_is_found_out),
        cmocka_unit_test(another_order_of_turns_is_found_out),
        cmocka_unit_test(a_page_too_many_is_found_out),
    };
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests_name("prefix_random", tests, NULL, NULL);
}
