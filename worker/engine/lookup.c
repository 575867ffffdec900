#include "engine/lookup.h"

#include <assert.h>
#include <math.h>

#include "base/size.h"

/* What may follow at a place of a text, the likeliest first. */
struct child {
    int32_t token;
    uint32_t place;  /* behind it */
    uint32_t length; /* of the match before it */
    uint32_t count;  /* of the places that match, those that go on this way */
    uint32_t total;  /* of the places that match, those that go on */
};

/* A text that can be looked up: an automaton, or an index and what matches in it. */
struct text {
    size_t (*children)(const struct text *t, uint32_t place, uint32_t length,
                       struct child out[DRAFT_CHILDREN_MAX]);
    const struct automaton *a;
    const struct ngram *ix;
    const struct ngram_match *match;
    enum draft_source source;
    const struct spec_stats *stats;
};

/* ---- cells ------------------------------------------------------------------------------ */

/* How the text goes on: always so far, and how often that was; or mostly, or seldom. */
enum share { SHARE_ONCE, SHARE_ALWAYS, SHARE_MOST, SHARE_SOME, SHARE_FEW, SHARES };

enum { LENGTH_BUCKETS = 10 };
/* Shortest match of each bucket. */
static const uint32_t bucket_begins[LENGTH_BUCKETS] = {1, 2, 3, 4, 5, 7, 9, 13, 17, 25};
static_assert(LENGTH_BUCKETS * SHARES <= STATS_CELLS, "a source has a cell for each");

static enum share share_of(uint32_t count, uint32_t total)
{
    if (count == total)
        return total == 1 ? SHARE_ONCE : SHARE_ALWAYS;
    if (2 * count >= total)
        return SHARE_MOST;
    return 4 * count >= total ? SHARE_SOME : SHARE_FEW;
}

static unsigned cell_of(const struct child *c)
{
    unsigned bucket = 0;
    while (bucket + 1 < LENGTH_BUCKETS && c->length >= bucket_begins[bucket + 1])
        bucket++;
    return bucket * SHARES + share_of(c->count, c->total);
}

/* Read off 576 answers of a model of 135M parameters to questions about documents. Seldom a
 * match is longer than 8 where a text goes on in several ways. */
void lookup_set_priors(struct spec_stats *stats)
{
    static const double document[LENGTH_BUCKETS][SHARES] = {
        {0.31, 0.65, 0.17, 0.15, 0.06}, {0.35, 0.8, 0.18, 0.1, 0.05},
        {0.51, 0.85, 0.33, 0.13, 0.07}, {0.61, 0.85, 0.31, 0.16, 0.07},
        {0.65, 0.88, 0.3, 0.2, 0.07},   {0.73, 0.88, 0.3, 0.2, 0.07},
        {0.81, 0.9, 0.4, 0.2, 0.07},    {0.89, 0.92, 0.4, 0.2, 0.07},
        {0.9, 0.93, 0.4, 0.2, 0.07},    {0.93, 0.95, 0.4, 0.2, 0.07}};
    static const double own[LENGTH_BUCKETS][SHARES] = {
        {0.4, 0.6, 0.2, 0.15, 0.1},   {0.58, 0.74, 0.24, 0.18, 0.1},
        {0.71, 0.78, 0.26, 0.2, 0.1}, {0.75, 0.8, 0.25, 0.2, 0.1},
        {0.77, 0.85, 0.25, 0.2, 0.1}, {0.78, 0.85, 0.25, 0.2, 0.1},
        {0.82, 0.87, 0.4, 0.2, 0.1},  {0.83, 0.88, 0.4, 0.2, 0.1},
        {0.88, 0.9, 0.4, 0.2, 0.1},   {0.93, 0.93, 0.4, 0.2, 0.1}};
    for (unsigned b = 0; b < LENGTH_BUCKETS; b++)
        for (unsigned s = 0; s < SHARES; s++) {
            const unsigned cell = b * SHARES + s;
            spec_stats_set_prior(stats, DRAFT_LOOKUP, cell, document[b][s]);
            spec_stats_set_prior(stats, DRAFT_SELF, cell, own[b][s]);
            /* Who sends a prediction expects most of it to come true. */
            spec_stats_set_prior(stats, DRAFT_PREDICTION, cell, sqrt(own[b][s]));
        }
}

/* ---- texts ------------------------------------------------------------------------------ */

static size_t children_of_state(const struct text *t, uint32_t state, uint32_t length,
                                struct child out[DRAFT_CHILDREN_MAX])
{
    if (length == 0)
        return 0;
    size_t n_edges, n = 0;
    const struct automaton_edge *edges = automaton_edges(t->a, state, &n_edges);
    /* The end of the text goes on with nothing. */
    const uint32_t total = automaton_state_at(t->a, state)->count;
    for (size_t i = 0; i < n_edges && i < AUTOMATON_BEST_EDGES && n < DRAFT_CHILDREN_MAX; i++)
        if (edges[i].token >= 0)
            out[n++] = (struct child){edges[i].token, edges[i].target, length,
                                      automaton_state_at(t->a, edges[i].target)->count, total};
    return n;
}

/* A place is the set of matches that agree so far, and how far that is. */
enum { SET_BITS = NGRAM_MATCHES_MAX };
static_assert(SET_BITS + 8 <= 32, "set and depth fit one place");

static size_t children_of_set(const struct text *t, uint32_t place, uint32_t length,
                              struct child out[DRAFT_CHILDREN_MAX])
{
    const size_t depth = place >> SET_BITS;
    struct child all[NGRAM_MATCHES_MAX];
    size_t n_all = 0;
    uint32_t total = 0;
    for (size_t i = 0; i < t->match->n_ends; i++) {
        const size_t index = t->match->ends[i] + 1 + depth;
        if (!(place >> i & 1) || index >= ngram_n_tokens(t->ix))
            continue;
        total++;
        const int32_t token = ngram_token(t->ix, index);
        size_t k = 0;
        while (k < n_all && all[k].token != token)
            k++;
        if (k == n_all)
            all[n_all++] =
                (struct child){token, (uint32_t)(depth + 1) << SET_BITS, length, 0, 0};
        all[k].count++;
        all[k].place |= UINT32_C(1) << i;
    }
    const size_t n = size_min(n_all, DRAFT_CHILDREN_MAX);
    for (size_t i = 0; i < n; i++) { /* of equals, the most recent */
        size_t best = i;
        for (size_t k = i + 1; k < n_all; k++)
            if (all[k].count > all[best].count)
                best = k;
        const struct child swapped = all[i];
        all[i] = all[best];
        all[best] = swapped;
        out[i] = all[i];
        out[i].total = total;
    }
    return n;
}

/* ---- proposing and learning ------------------------------------------------------------- */

static uint64_t place_of(uint32_t place, uint32_t length)
{
    return (uint64_t)length << 32 | place;
}

static size_t grow_children(const void *context, uint64_t place, unsigned depth,
                            struct draft_child out[DRAFT_CHILDREN_MAX])
{
    const struct text *t = context;
    if (depth > LOOKUP_DEPTH_MAX)
        return 0;
    struct child children[DRAFT_CHILDREN_MAX];
    const size_t n = t->children(t, (uint32_t)place, (uint32_t)(place >> 32), children);
    for (size_t i = 0; i < n; i++)
        out[i] =
            (struct draft_child){.token = children[i].token,
                                 .p = spec_stats_p(t->stats, t->source, cell_of(&children[i])),
                                 .place = place_of(children[i].place, children[i].length + 1)};
    return n;
}

static void propose(const struct text *t, uint32_t place, uint32_t length,
                    const struct draft_limits *limits, struct draft *d)
{
    const struct draft_grower g = {t->source, grow_children, t};
    draft_grow(d, &g, place_of(place, length), limits);
}

static void observe(const struct text *t, uint32_t place, uint32_t length, int32_t token,
                    struct spec_stats *stats)
{
    struct child children[DRAFT_CHILDREN_MAX];
    const size_t n = t->children(t, place, length, children);
    for (size_t i = 0; i < n; i++)
        spec_stats_offer(stats, t->source, cell_of(&children[i]), children[i].token == token);
}

void lookup_propose(const struct automaton *a, struct automaton_cursor cursor,
                    enum draft_source source, const struct draft_limits *limits,
                    const struct spec_stats *stats, struct draft *d)
{
    const struct text t = {
        .children = children_of_state, .a = a, .source = source, .stats = stats};
    propose(&t, cursor.state, cursor.length, limits, d);
}

void lookup_follow(const struct automaton *a, struct automaton_cursor *cursor,
                   enum draft_source source, int32_t token, struct spec_stats *stats)
{
    const struct text t = {.children = children_of_state, .a = a, .source = source};
    if (stats)
        observe(&t, cursor->state, cursor->length, token, stats);
    automaton_advance(a, cursor, token);
}

static uint32_t all_of(const struct ngram_match *match)
{
    return (UINT32_C(1) << match->n_ends) - 1;
}

void lookup_propose_self(const struct ngram *ix, const struct draft_limits *limits,
                         const struct spec_stats *stats, struct draft *d)
{
    struct ngram_match match;
    ngram_find(ix, &match);
    const struct text t = {.children = children_of_set,
                           .ix = ix,
                           .match = &match,
                           .source = DRAFT_SELF,
                           .stats = stats};
    propose(&t, all_of(&match), match.length, limits, d);
}

void lookup_follow_self(struct ngram *ix, int32_t token, struct spec_stats *stats)
{
    if (stats) {
        struct ngram_match match;
        ngram_find(ix, &match);
        const struct text t = {
            .children = children_of_set, .ix = ix, .match = &match, .source = DRAFT_SELF};
        observe(&t, all_of(&match), match.length, token, stats);
    }
    ngram_add(ix, token);
}
