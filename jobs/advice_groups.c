/*
 * Pairs of prompts that break at a piece, gathered into groups around a leader. Prompts come
 * in sorted order; one that shares a sample with an earlier prompt, but not what is before it,
 * is laid beside that prompt, and what differs before the common run is the piece.
 */
#include "advice_int.h"

#include <stdlib.h>
#include <string.h>

enum {
    SAMPLES_MAX = 1024, /* looked at in one prompt; about 17 tokens each */
    TRIES_MAX = 4,      /* prompts it is laid beside */
};

struct search {
    const struct advice_view *views;
    struct advice_groups *out;
    struct gram_table table;
};

/* Two prompts, and where they are equal again after they differ at `at`. */
struct pair {
    uint32_t p, q; /* q is the earlier one */
    uint32_t at, p_end, q_end;
    uint32_t run;
};

/* Lays sample x of p over sample y of q; false when no piece explains the difference. */
static bool compare_at(const struct search *s, uint32_t p, uint32_t x, uint32_t q, uint32_t y,
                       struct pair *out)
{
    const struct advice_view *a = &s->views[p], *b = &s->views[q];
    if (a->salt != b->salt ||
        memcmp(a->tokens + x, b->tokens + y, GRAM_TOKENS * sizeof a->tokens[0]) != 0)
        return false;
    const uint32_t at = (uint32_t)advice_common(a, b, 0);
    if (at > x || at > y)
        return false;
    uint32_t p_end = x, q_end = y;
    while (p_end > at && q_end > at && a->tokens[p_end - 1] == b->tokens[q_end - 1]) {
        p_end--;
        q_end--;
    }
    if (p_end - at > ADVICE_PIECE_TOKENS || q_end - at > ADVICE_PIECE_TOKENS)
        return false;
    uint32_t run = x + GRAM_TOKENS - p_end;
    while (p_end + run < a->n && q_end + run < b->n &&
           a->tokens[p_end + run] == b->tokens[q_end + run])
        run++;
    *out = (struct pair){p, q, at, p_end, q_end, run};
    return run >= ADVICE_RUN_TOKENS;
}

static uint32_t moved(uint32_t position, int32_t shift)
{
    const int64_t at = (int64_t)position + shift;
    return at < 0 ? 0 : (uint32_t)at;
}

/* Whether the pair's piece belongs to the group's; shift is that of pair->q in the group. */
static bool join(struct advice_groups *g, int32_t index, int32_t shift, const struct pair *pair)
{
    struct advice_group *group = &g->groups[index];
    const uint32_t end = moved(pair->q_end, -shift);
    const uint32_t union_start = pair->at < group->start ? pair->at : group->start;
    const uint32_t union_end = end > group->end ? end : group->end;
    if (union_end - union_start > ADVICE_SPAN_TOKENS)
        return false;
    group->start = union_start;
    group->end = union_end;
    group->gain += pair->run;
    g->members[pair->p].group = index;
    g->members[pair->p].shift = shift + (int32_t)pair->p_end - (int32_t)pair->q_end;
    return true;
}

static int begin_group(struct advice_groups *g, const struct pair *pair, struct err *e)
{
    if (g->n_groups == g->capacity) {
        const size_t capacity = 2 * g->capacity + 16;
        struct advice_group *groups = realloc(g->groups, capacity * sizeof groups[0]);
        if (!groups)
            return ERR_SET(e, ERR_NOMEM, "no memory to compare prompts");
        g->groups = groups;
        g->capacity = capacity;
    }
    g->members[pair->q].leads = (int32_t)g->n_groups;
    g->groups[g->n_groups++] = (struct advice_group){.leader = pair->q,
                                                     .example = pair->p,
                                                     .start = pair->at,
                                                     .end = pair->q_end,
                                                     .pattern = ADVICE_NONE};
    return 0;
}

static int add_pair(struct advice_groups *g, const struct pair *pair, bool *added,
                    struct err *e)
{
    const struct advice_member earlier = g->members[pair->q];
    *added = earlier.group != ADVICE_NONE && join(g, earlier.group, earlier.shift, pair);
    if (*added)
        return 0;
    if (earlier.leads == ADVICE_NONE)
        TRY(begin_group(g, pair, e));
    *added = join(g, g->members[pair->q].leads, 0, pair);
    return 0;
}

/* Samples that lie in what p shares with the prompt before it are that prompt's own. */
static int look_at(struct search *s, uint32_t p, uint32_t lcp, struct err *e)
{
    struct gram_scan scan;
    gram_scan_begin(&scan, &s->views[p], lcp > ADVICE_RUN_TOKENS ? lcp - ADVICE_RUN_TOKENS : 0);
    bool found = false;
    int tries = 0;
    size_t position;
    uint64_t hash;
    for (int i = 0; i < SAMPLES_MAX && gram_scan_next(&scan, &position, &hash); i++) {
        if (position + GRAM_TOKENS <= lcp || (hash & s->table.mask) != 0)
            continue;
        const struct gram_slot *first = gram_table_add(&s->table, hash, p, (uint32_t)position);
        if (!first || first->prompt == p || found || tries == TRIES_MAX)
            continue;
        struct pair pair;
        tries++;
        if (compare_at(s, p, (uint32_t)position, first->prompt, first->position, &pair))
            TRY(add_pair(s->out, &pair, &found, e));
    }
    return 0;
}

uint32_t advice_piece_end(const struct advice_group *group, const struct advice_view *view,
                          int32_t shift)
{
    const uint32_t end = moved(group->end, shift);
    return end < view->n ? end : view->n;
}

/* A prompt that shares more than the piece with the one before it has the same piece. */
static void inherit(struct advice_groups *g, const struct advice_view *views,
                    const uint32_t *lcp, size_t n)
{
    for (size_t p = 1; p < n; p++) {
        struct advice_member *own = &g->members[p];
        const struct advice_member *before = &g->members[p - 1];
        const bool is_member = before->group != ADVICE_NONE;
        const int32_t index = is_member ? before->group : before->leads;
        if (own->group != ADVICE_NONE || index == ADVICE_NONE)
            continue;
        const int32_t shift = is_member ? before->shift : 0;
        if (lcp[p] < advice_piece_end(&g->groups[index], &views[p - 1], shift))
            continue;
        own->group = index;
        own->shift = shift;
    }
}

static int find_pairs(struct search *s, const uint32_t *lcp, size_t n, struct err *e)
{
    uint64_t n_tokens = 0;
    for (size_t p = 0; p < n; p++)
        n_tokens += s->views[p].n - lcp[p];
    TRY(gram_table_init(&s->table, n_tokens, e));
    int rc = 0;
    for (size_t p = 0; p < n && rc == 0; p++)
        rc = look_at(s, (uint32_t)p, lcp[p], e);
    gram_table_fini(&s->table);
    return rc;
}

int advice_groups_find(struct advice_groups *g, const struct advice_view *views,
                       const uint32_t *lcp, size_t n, struct err *e)
{
    *g = (struct advice_groups){0};
    g->members = calloc(n + 1, sizeof g->members[0]);
    if (!g->members)
        return ERR_SET(e, ERR_NOMEM, "no memory to compare %zu prompts", n);
    for (size_t p = 0; p < n; p++)
        g->members[p] = (struct advice_member){.group = ADVICE_NONE, .leads = ADVICE_NONE};
    struct search s = {.views = views, .out = g};
    const int rc = find_pairs(&s, lcp, n, e);
    if (rc == 0)
        inherit(g, views, lcp, n);
    else
        advice_groups_fini(g);
    return rc;
}

void advice_groups_fini(struct advice_groups *g)
{
    free(g->groups);
    free(g->members);
    *g = (struct advice_groups){0};
}
