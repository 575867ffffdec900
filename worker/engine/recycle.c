#include "engine/recycle.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/size.h"

enum { STREAK_MAX = 7, STREAKS = STREAK_MAX + 1 };
static_assert(RECYCLE_WIDTH * STREAKS <= STATS_CELLS, "the source has a cell for each");

struct recycle {
    size_t n_vocab;
    int32_t *rows;    /* [V, RECYCLE_WIDTH] */
    uint8_t *streaks; /* [V] times in a row that the first successor was drawn */
};

size_t recycle_bytes(size_t n_vocab)
{
    return sizeof(struct recycle) + (n_vocab + 1) * (RECYCLE_WIDTH * sizeof(int32_t) + 1);
}

int recycle_open(size_t n_vocab, struct recycle **out, struct err *e)
{
    *out = NULL;
    struct recycle *r = calloc(1, sizeof *r);
    if (!r)
        return ERR_SET(e, ERR_NOMEM, "no memory for a table of successors");
    r->n_vocab = n_vocab;
    r->rows = malloc((n_vocab + 1) * RECYCLE_WIDTH * sizeof r->rows[0]);
    r->streaks = calloc(n_vocab + 1, sizeof r->streaks[0]);
    if (!r->rows || !r->streaks) {
        recycle_close(r);
        return ERR_SET(e, ERR_NOMEM, "no memory for the successors of %zu tokens", n_vocab);
    }
    for (size_t i = 0; i < n_vocab * RECYCLE_WIDTH; i++)
        r->rows[i] = RECYCLE_NONE;
    *out = r;
    return 0;
}

void recycle_close(struct recycle *r)
{
    if (!r)
        return;
    free(r->rows);
    free(r->streaks);
    free(r);
}

static unsigned cell_of(size_t rank, unsigned streak)
{
    return (unsigned)rank * STREAKS + streak;
}

/* Read off 576 answers of a model of 135M parameters: the first of a row by its streak, and
 * what the first leaves, shared out over the others. */
void recycle_set_priors(struct spec_stats *stats)
{
    static const double first[STREAKS] = {0.27, 0.43, 0.58, 0.66, 0.72, 0.76, 0.8, 0.83};
    static const double others[RECYCLE_WIDTH] = {0, 0.22, 0.13, 0.08, 0.06, 0.05, 0.03, 0.03};
    for (unsigned streak = 0; streak < STREAKS; streak++)
        for (size_t rank = 0; rank < RECYCLE_WIDTH; rank++)
            spec_stats_set_prior(stats, DRAFT_RECYCLE, cell_of(rank, streak),
                                 rank == 0 ? first[streak]
                                           : (1 - first[streak]) * others[rank]);
}

static int32_t *row_of(const struct recycle *r, int32_t token)
{
    ASSERT(token >= 0 && (size_t)token < r->n_vocab);
    return r->rows + (size_t)token * RECYCLE_WIDTH;
}

const int32_t *recycle_row(const struct recycle *r, int32_t token)
{
    return row_of(r, token);
}

static size_t length_of(const int32_t *row)
{
    size_t n = 0;
    while (n < RECYCLE_WIDTH && row[n] != RECYCLE_NONE)
        n++;
    return n;
}

void recycle_follow(struct recycle *r, int32_t token, int32_t next, struct spec_stats *stats)
{
    ASSERT(next >= 0 && (size_t)next < r->n_vocab);
    int32_t *row = row_of(r, token);
    uint8_t *streak = &r->streaks[token];
    const size_t n = length_of(row);
    size_t rank = 0;
    while (rank < n && row[rank] != next)
        rank++;
    if (stats)
        for (size_t i = 0; i < n; i++)
            spec_stats_offer(stats, DRAFT_RECYCLE, cell_of(i, *streak), i == rank);
    if (rank == 0 && n > 0)
        *streak = (uint8_t)size_min(*streak + 1u, STREAK_MAX);
    else
        *streak = 0;
    memmove(row + 1, row, size_min(rank, RECYCLE_WIDTH - 1) * sizeof row[0]);
    row[0] = next;
}

struct growing {
    const struct recycle *r;
    const struct spec_stats *stats;
};

/* The place is the token. */
static size_t grow_children(const void *context, uint64_t place, unsigned depth,
                            struct draft_child out[DRAFT_CHILDREN_MAX])
{
    const struct growing *g = context;
    if (depth > RECYCLE_DEPTH_MAX)
        return 0;
    const int32_t *row = row_of(g->r, (int32_t)place);
    const unsigned streak = g->r->streaks[place];
    const size_t n = size_min(length_of(row), DRAFT_CHILDREN_MAX);
    for (size_t i = 0; i < n; i++)
        out[i] =
            (struct draft_child){.token = row[i],
                                 .p = spec_stats_p(g->stats, DRAFT_RECYCLE, cell_of(i, streak)),
                                 .place = (uint64_t)row[i]};
    return n;
}

void recycle_propose(const struct recycle *r, int32_t token, const struct draft_limits *limits,
                     const struct spec_stats *stats, struct draft *d)
{
    const struct growing context = {r, stats};
    const struct draft_grower g = {DRAFT_RECYCLE, grow_children, &context};
    draft_grow(d, &g, (uint64_t)token, limits);
}
