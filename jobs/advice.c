/*
 * Groups that break at the same place become patterns; the most promising are counted exactly
 * and become findings.
 */
#include "advice.h"

#include <stdlib.h>
#include <string.h>

#include "advice_int.h"

enum {
    PATTERNS_OPEN_MAX = 8, /* that a further group may still belong to */
    COUNTED_MAX = 16,      /* patterns whose pieces are moved for a try */
};

struct pattern {
    uint32_t start;
    uint32_t leader; /* of its first group */
    uint64_t gain;
    int32_t best_group; /* with the highest gain */
};

struct analysis {
    const struct group_prompt *prompts;
    const struct advice_options *options;
    size_t n;
    struct advice_view *views; /* sorted once the order is known */
    struct advice_order order;
    struct advice_groups groups;
    struct pattern *patterns; /* [n_groups] */
    size_t n_patterns;
};

/* ------------------------------------------------------------------ views */

static const char *salt_of(const struct group_prompt *prompt)
{
    return prompt->salt ? prompt->salt : "";
}

static int by_salt(const void *a, const void *b, void *prompts)
{
    const struct advice_view *left = a, *right = b;
    const struct group_prompt *all = prompts;
    const int order = strcmp(salt_of(&all[left->prompt]), salt_of(&all[right->prompt]));
    return order ? order : (left->prompt > right->prompt) - (left->prompt < right->prompt);
}

static void number_salts(struct analysis *a)
{
    bool is_salted = false;
    for (size_t i = 0; i < a->n && !is_salted; i++)
        is_salted = *salt_of(&a->prompts[i]) != '\0';
    if (!is_salted)
        return;
    qsort_r(a->views, a->n, sizeof a->views[0], by_salt, (void *)(uintptr_t)a->prompts);
    for (size_t i = 1; i < a->n; i++) {
        const char *before = salt_of(&a->prompts[a->views[i - 1].prompt]);
        const bool is_new = strcmp(before, salt_of(&a->prompts[a->views[i].prompt])) != 0;
        a->views[i].salt = a->views[i - 1].salt + is_new;
    }
}

static int make_views(struct analysis *a, struct err *e)
{
    if (a->n > ADVICE_PROMPTS_MAX)
        return ERR_SET(e, ERR_LIMIT, "%zu prompts are too many to compare", a->n);
    a->views = calloc(a->n + 1, sizeof a->views[0]);
    if (!a->views)
        return ERR_SET(e, ERR_NOMEM, "no memory to compare %zu prompts", a->n);
    for (size_t i = 0; i < a->n; i++) {
        if (a->prompts[i].n_tokens >= (size_t)1 << 31)
            return ERR_SET(e, ERR_LIMIT, "a prompt of %zu tokens is too long to compare",
                           a->prompts[i].n_tokens);
        a->views[i] = (struct advice_view){.tokens = a->prompts[i].tokens,
                                           .n = (uint32_t)a->prompts[i].n_tokens,
                                           .prompt = (uint32_t)i};
    }
    number_salts(a);
    return 0;
}

/* From here on a prompt's number is its rank. */
static int sort_views(struct analysis *a, struct err *e)
{
    TRY(advice_order_init(&a->order, a->n, e));
    advice_order_sort(&a->order, a->views);
    struct advice_view *sorted = calloc(a->n + 1, sizeof sorted[0]);
    if (!sorted)
        return ERR_SET(e, ERR_NOMEM, "no memory to compare %zu prompts", a->n);
    for (size_t i = 0; i < a->n; i++) {
        sorted[i] = a->views[a->order.index[i]];
        a->order.index[i] = (uint32_t)i;
    }
    free(a->views);
    a->views = sorted;
    return 0;
}

/* ------------------------------------------------------------------ patterns */

static int by_leader(const void *a, const void *b, void *groups)
{
    const struct advice_group *all = groups;
    const uint32_t left = all[*(const int32_t *)a].leader;
    const uint32_t right = all[*(const int32_t *)b].leader;
    return (left > right) - (left < right);
}

/* Tenants share no tokens in the cache, but they share their advice. */
static bool is_same_place(const struct analysis *a, const struct pattern *pattern,
                          const struct advice_group *group)
{
    const uint32_t low = pattern->start < group->start ? pattern->start : group->start;
    const uint32_t high = pattern->start < group->start ? group->start : pattern->start;
    return high - low <= ADVICE_PIECE_TOKENS &&
           memcmp(a->views[pattern->leader].tokens, a->views[group->leader].tokens,
                  low * sizeof(int32_t)) == 0;
}

static void add_to_pattern(struct analysis *a, size_t index, int32_t group_index)
{
    struct pattern *pattern = &a->patterns[index];
    struct advice_group *group = &a->groups.groups[group_index];
    group->pattern = (int32_t)index;
    pattern->gain += group->gain;
    if (group->start < pattern->start)
        pattern->start = group->start;
    if (group->gain > a->groups.groups[pattern->best_group].gain)
        pattern->best_group = group_index;
}

static void place_group(struct analysis *a, int32_t group_index)
{
    const struct advice_group *group = &a->groups.groups[group_index];
    const size_t open = a->n_patterns < PATTERNS_OPEN_MAX ? a->n_patterns : PATTERNS_OPEN_MAX;
    for (size_t i = 1; i <= open; i++) {
        if (is_same_place(a, &a->patterns[a->n_patterns - i], group)) {
            add_to_pattern(a, a->n_patterns - i, group_index);
            return;
        }
    }
    a->patterns[a->n_patterns] = (struct pattern){
        .start = group->start, .leader = group->leader, .best_group = group_index};
    add_to_pattern(a, a->n_patterns++, group_index);
}

static int find_patterns(struct analysis *a, struct err *e)
{
    const size_t n = a->groups.n_groups;
    a->patterns = calloc(n + 1, sizeof a->patterns[0]);
    int32_t *order = calloc(n + 1, sizeof order[0]);
    if (!a->patterns || !order) {
        free(order);
        return ERR_SET(e, ERR_NOMEM, "no memory to compare prompts");
    }
    for (size_t i = 0; i < n; i++)
        order[i] = (int32_t)i;
    qsort_r(order, n, sizeof order[0], by_leader, a->groups.groups);
    for (size_t i = 0; i < n; i++)
        place_group(a, order[i]);
    free(order);
    return 0;
}

/* ------------------------------------------------------------------ counting */

static void cut(struct advice_view *view, const struct pattern *pattern,
                const struct advice_group *group, int32_t shift)
{
    const uint32_t end = advice_piece_end(group, view, shift);
    view->cut_start = pattern->start;
    view->cut_end = end > pattern->start ? end : pattern->start;
}

/* Moves the pattern's pieces; is_cut[p] tells which prompts have one. */
static size_t cut_pieces(struct analysis *a, int32_t index, bool *is_cut)
{
    const struct pattern *pattern = &a->patterns[index];
    memset(is_cut, 0, a->n * sizeof is_cut[0]);
    for (size_t p = 0; p < a->n; p++)
        a->views[p].cut_start = a->views[p].cut_end = 0;
    for (size_t i = 0; i < a->groups.n_groups; i++) {
        const struct advice_group *group = &a->groups.groups[i];
        if (group->pattern != index)
            continue;
        cut(&a->views[group->leader], pattern, group, 0);
        is_cut[group->leader] = true;
    }
    size_t n = 0;
    for (size_t p = 0; p < a->n; p++) {
        const struct advice_member *member = &a->groups.members[p];
        if (member->group != ADVICE_NONE && a->groups.groups[member->group].pattern == index) {
            cut(&a->views[p], pattern, &a->groups.groups[member->group], member->shift);
            is_cut[p] = true;
        }
        n += is_cut[p];
    }
    return n;
}

/* On average: what a job of the pattern shares with one of its neighbours. */
static size_t shared_per_job(const struct analysis *a, const struct advice_order *order,
                             const bool *is_cut, size_t n_jobs)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < a->n; i++) {
        if (!is_cut[order->index[i]])
            continue;
        const uint32_t before = order->lcp[i];
        const uint32_t after = i + 1 < a->n ? order->lcp[i + 1] : 0;
        sum += before > after ? before : after;
    }
    return (size_t)(sum / n_jobs);
}

static struct advice_piece piece_of(const struct analysis *a, uint32_t p)
{
    const struct advice_view *view = &a->views[p];
    return (struct advice_piece){view->prompt, view->cut_start, view->cut_end};
}

/* Sorted in by what it saves; the worst falls out at the end. */
static void keep_finding(struct advice *out, const struct advice_finding *finding)
{
    size_t at = out->n_findings;
    if (at == ADVICE_FINDINGS_MAX)
        at--;
    else
        out->n_findings++;
    if (at == ADVICE_FINDINGS_MAX - 1 && out->findings[at].saved_tokens > finding->saved_tokens)
        return;
    for (; at > 0 && out->findings[at - 1].saved_tokens < finding->saved_tokens; at--)
        out->findings[at] = out->findings[at - 1];
    out->findings[at] = *finding;
}

static void count_pattern(struct analysis *a, int32_t index, struct advice_order *order,
                          bool *is_cut, struct advice *out)
{
    const struct pattern *pattern = &a->patterns[index];
    const struct advice_group *group = &a->groups.groups[pattern->best_group];
    const size_t n_jobs = cut_pieces(a, index, is_cut);
    advice_order_sort(order, a->views);
    const uint64_t cached = advice_order_cached(order, a->views, a->options->tokens_min);
    if (cached <= out->cached_tokens || cached - out->cached_tokens < a->options->saved_min)
        return;
    const struct advice_finding finding = {
        .position = pattern->start,
        .example = {piece_of(a, group->leader), piece_of(a, group->example)},
        .n_jobs = n_jobs,
        .shared_tokens = shared_per_job(a, order, is_cut, n_jobs),
        .saved_tokens = cached - out->cached_tokens,
    };
    keep_finding(out, &finding);
}

/* The pattern with the highest gain that was not counted yet, or ADVICE_NONE. */
static int32_t take_best(struct analysis *a)
{
    int32_t best = ADVICE_NONE;
    for (size_t i = 0; i < a->n_patterns; i++)
        if (a->patterns[i].gain > (best == ADVICE_NONE ? 0 : a->patterns[best].gain))
            best = (int32_t)i;
    return best;
}

static int count_patterns(struct analysis *a, struct advice *out, struct err *e)
{
    struct advice_order order = {0};
    bool *is_cut = calloc(a->n + 1, sizeof is_cut[0]);
    int rc = is_cut ? 0 : ERR_SET(e, ERR_NOMEM, "no memory to compare prompts");
    if (rc == 0)
        rc = advice_order_init(&order, a->n, e);
    for (int i = 0; i < COUNTED_MAX && rc == 0; i++) {
        const int32_t best = take_best(a);
        if (best == ADVICE_NONE)
            break;
        count_pattern(a, best, &order, is_cut, out);
        a->patterns[best].gain = 0;
    }
    advice_order_fini(&order);
    free(is_cut);
    return rc;
}

int advice_find(const struct group_prompt *prompts, size_t n, const struct advice_options *o,
                struct advice *out, struct err *e)
{
    struct analysis a = {.prompts = prompts, .options = o, .n = n};
    *out = (struct advice){0};
    int rc = 0;
    TRY_OUT(rc, make_views(&a, e));
    TRY_OUT(rc, sort_views(&a, e));
    out->cached_tokens = advice_order_cached(&a.order, a.views, o->tokens_min);
    TRY_OUT(rc, advice_groups_find(&a.groups, a.views, a.order.lcp, n, e));
    TRY_OUT(rc, find_patterns(&a, e));
    TRY_OUT(rc, count_patterns(&a, out, e));
out:
    advice_order_fini(&a.order);
    advice_groups_fini(&a.groups);
    free(a.patterns);
    free(a.views);
    return rc;
}
